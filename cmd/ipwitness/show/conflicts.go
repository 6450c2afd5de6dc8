package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// conflictColumns returns the columns of a table of conflicts.
func conflictColumns() []column[*pb.Conflict] {
	return []column[*pb.Conflict]{
		{header: "ID", room: 16, cell: func(c *pb.Conflict, _ time.Time) string { return c.GetId() }},
		{header: "ADDRESS", room: 15, cell: func(c *pb.Conflict, _ time.Time) string { return c.GetAddress() }},
		{header: "STATE", room: 9, cell: func(c *pb.Conflict, _ time.Time) string { return ConflictState(c) }},
		{header: "SCOPE", room: 20, cell: func(c *pb.Conflict, _ time.Time) string { return scope(c.GetScope()) }},
		{header: "OWNERS", room: 40, cell: func(c *pb.Conflict, _ time.Time) string { return ConflictNames(c) }},
		{header: "CAUSE", cell: func(c *pb.Conflict, _ time.Time) string { return c.GetCause() }},
		{header: "SINCE", ages: true, at: (*pb.Conflict).GetDetectedAt, cell: func(c *pb.Conflict, now time.Time) string { return ago(c.GetDetectedAt(), now) }},
		{header: "RULE", wide: true, cell: func(c *pb.Conflict, _ time.Time) string { return c.GetRule() }},
		{header: "EPISODE", wide: true, cell: func(c *pb.Conflict, _ time.Time) string { return fmt.Sprint(c.GetEpisode()) }},
		{header: "CONFIRMED", wide: true, ages: true, at: (*pb.Conflict).GetConfirmedAt, cell: func(c *pb.Conflict, now time.Time) string { return ago(c.GetConfirmedAt(), now) }},
		{header: "RESOLVED", wide: true, ages: true, at: (*pb.Conflict).GetResolvedAt, cell: func(c *pb.Conflict, now time.Time) string { return ago(c.GetResolvedAt(), now) }},
	}
}

// ConflictNames returns the short names of the owners of a conflict.
func ConflictNames(c *pb.Conflict) string { return strings.Join(names(c.GetOwners()), " | ") }

// ConflictState returns the state of a conflict, and whether it is acknowledged.
func ConflictState(c *pb.Conflict) string {
	if c.GetAcknowledgement() != nil {
		return c.GetState().String() + " (ack)"
	}
	return c.GetState().String()
}

// ConflictLine describes a conflict in a line that distinguishes it from others of its address.
func ConflictLine(c *pb.Conflict) string {
	return clean(join("  ", c.GetId(), scope(c.GetScope()), ConflictNames(c)))
}

// Acknowledged writes whether a conflict is acknowledged.
func Acknowledged(w io.Writer, c *pb.Conflict, now time.Time) error {
	p := &page{now: now}
	about := fmt.Sprintf("Conflict %s of %s (%s)", c.GetId(), c.GetAddress(), ConflictNames(c))
	if ack := c.GetAcknowledgement(); ack != nil {
		p.line("%s is acknowledged %s", about, until(ack, time.TimeOnly+" "+zone, now))
	} else {
		p.line("%s is not acknowledged.", about)
	}
	return p.write(w)
}

// until returns how long an acknowledgement lasts, in a layout of the time of day, its reason and
// its author.
func until(ack *pb.Acknowledgement, layout string, now time.Time) string {
	by := ""
	if ack.GetAcknowledgedBy() != "" {
		by = " (" + ack.GetAcknowledgedBy() + ")"
	}
	return fmt.Sprintf("until %s: %s", clockTo(layout, ack.GetExpiresAt(), now), strings.Join(strings.Fields(ack.GetReason()), " ")) + by
}

// ConflictChanges returns a Changes of conflicts.
func ConflictChanges() *Changes[*pb.Conflict] { return NewChanges((*pb.Conflict).GetId) }

// Conflicts writes conflicts as a table.
func Conflicts(w io.Writer, conflicts []*pb.Conflict, layout Layout, now time.Time) error {
	return listOf(w, layout, narrow(conflictColumns(), layout.Wide), conflicts, now)
}

// Conflict writes the details of one conflict as a page.
func Conflict(w io.Writer, c *pb.Conflict, now time.Time) error {
	p := &page{now: now}
	p.line("%s", c.GetSummary())
	if ack := c.GetAcknowledgement(); ack != nil {
		p.line("Acknowledged %s", until(ack, time.TimeOnly, now))
	}
	p.line("")
	id := c.GetId()
	if c.GetEpisode() > 1 {
		id += fmt.Sprintf(" (episode %d)", c.GetEpisode())
	}
	p.fields(
		"Conflict", id,
		"Address", c.GetAddress(),
		"State", ConflictState(c)+lasting(c, now),
		"Scope", scope(c.GetScope()),
		"Rule", c.GetRule(),
		"Cause", c.GetCause(),
		"Times", zone,
	)
	p.why(c)
	p.owners("Owners:", c.GetOwners())
	p.timeline(c)
	p.related("Kubernetes says:", c.GetRelated())
	p.remedy(c.GetRemedy())
	return p.write(w)
}

// lasting formats how long a conflict has lasted.
func lasting(c *pb.Conflict, now time.Time) string {
	from := c.GetDetectedAt()
	switch {
	case from == nil:
		return ""
	case c.GetResolvedAt() != nil:
		return ", lasted " + age(from, c.GetResolvedAt().AsTime())
	default:
		return ", for " + age(from, now)
	}
}

// timeline adds the events of a conflict in chronological order.
func (p *page) timeline(c *pb.Conflict) {
	type event struct {
		at   *timestamppb.Timestamp
		what string
	}
	var events []event
	add := func(at *timestamppb.Timestamp, what string) {
		if at != nil {
			events = append(events, event{at, what})
		}
	}
	owners := c.GetOwners()
	for i, name := range names(owners) {
		add(owners[i].GetAssignedAt(), name+" got the address")
		add(owners[i].GetFirstSeen(), name+" was first seen with the address")
	}
	add(c.GetDetectedAt(), "suspected")
	add(c.GetConfirmedAt(), "confirmed")
	add(c.GetAcknowledgement().GetAcknowledgedAt(), "acknowledged")
	add(c.GetResolvedAt(), "resolved")
	slices.SortStableFunc(events, func(a, b event) int {
		return a.at.AsTime().Compare(b.at.AsTime())
	})
	p.line("")
	p.line("Timeline:")
	t := NewTable(p)
	for _, e := range events {
		t.Row("  "+clock(e.at, p.now), e.what)
	}
	_ = t.Flush() // writing to a page cannot fail
}
