package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ConflictKind is how conflicts are listed.
var ConflictKind = Kind[*pb.Conflict]{
	Name: "conflict", Key: (*pb.Conflict).GetId, ID: (*pb.Conflict).GetId, columns: conflictColumns,
	Orders: []string{"address", "cause", "id", "owners", "scope", "since", "state"},
	over:   func(c *pb.Conflict) bool { return !Active(c) },
}

// Active reports whether a conflict is not resolved.
func Active(c *pb.Conflict) bool { return c.GetState() != pb.Conflict_RESOLVED }

func conflictColumns() []Column[*pb.Conflict] {
	return []Column[*pb.Conflict]{
		{Header: "ID", trait: trait{rank: 6}, room: 16, cell: func(c *pb.Conflict, _ time.Time) string { return c.GetId() }},
		{Header: "ADDRESS", Order: byAddress((*pb.Conflict).GetAddress), trait: trait{folds: true}, room: 15, cell: func(c *pb.Conflict, _ time.Time) string { return c.GetAddress() }},
		{Header: "STATE", Tone: conflictTone, Order: by((*pb.Conflict).GetState), room: 9, cell: func(c *pb.Conflict, _ time.Time) string { return ConflictState(c) }},
		{Header: "SCOPE", Order: byScope[*pb.Conflict], trait: trait{rank: 7}, room: 20, cell: func(c *pb.Conflict, _ time.Time) string { return scope(c.GetScope()) }},
		{Header: "OWNERS", trait: trait{folds: true, cut: 32}, room: 40, cell: func(c *pb.Conflict, _ time.Time) string { return ConflictNames(c) }, lines: func(c *pb.Conflict) []string { return OwnerNames(c.GetOwners()) }},
		{Header: "CAUSE", trait: trait{rank: 2}, cell: func(c *pb.Conflict, _ time.Time) string { return c.GetCause() }},
		{Header: "SINCE", trait: trait{rank: 1}, ages: true, at: (*pb.Conflict).GetDetectedAt, cell: since},
		{Header: "RULE", wide: true, cell: func(c *pb.Conflict, _ time.Time) string { return c.GetRule() }},
		{Header: "EPISODE", wide: true, cell: func(c *pb.Conflict, _ time.Time) string { return fmt.Sprint(c.GetEpisode()) }},
		{Header: "CONFIRMED", wide: true, ages: true, at: (*pb.Conflict).GetConfirmedAt, cell: func(c *pb.Conflict, now time.Time) string { return ago(c.GetConfirmedAt(), now) }},
		{Header: "RESOLVED", wide: true, ages: true, at: (*pb.Conflict).GetResolvedAt, cell: func(c *pb.Conflict, now time.Time) string { return ago(c.GetResolvedAt(), now) }},
	}
}

// ConflictNames returns the short names of the owners of a conflict, or of some of them for a row of several conflicts.
func ConflictNames(c *pb.Conflict) string {
	names := OwnerNames(c.GetOwners())
	if len(names) > named+1 && c.GetId() == "" {
		return few(names)
	}
	return strings.Join(names, " | ")
}

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
func Acknowledged(w io.Writer, c *pb.Conflict, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	about := fmt.Sprintf("Conflict %s of %s (%s)", c.GetId(), c.GetAddress(), ConflictNames(c))
	if ack := c.GetAcknowledgement(); ack != nil {
		p.text("", about+" is acknowledged "+until(ack, time.TimeOnly+" "+zone, now))
	} else {
		p.text("", about+" is not acknowledged.")
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

// since returns when a conflict was detected and, if it is over, how long it lasted.
func since(c *pb.Conflict, now time.Time) string {
	text := ago(c.GetDetectedAt(), now)
	if text == "" || c.GetResolvedAt() == nil {
		return text
	}
	return text + ", for " + age(c.GetDetectedAt(), c.GetResolvedAt().AsTime())
}

// Conflicts writes conflicts as a table. Many conflicts of one incident in one state share one row, unless
// the layout is ungrouped or wide; the notes say how to list them.
func Conflicts(w io.Writer, conflicts []*pb.Conflict, layout Layout, now time.Time) (notes []string, err error) {
	rows := conflicts
	if !layout.Ungrouped && !layout.Wide {
		rows = grouped(conflicts, func(c *pb.Conflict) string {
			if c.GetIncident() == "" {
				return ""
			}
			return strings.Join([]string{c.GetIncident(), ConflictState(c), scope(c.GetScope()), c.GetCause()}, "\x00")
		}, func(all []*pb.Conflict) *pb.Conflict {
			one := all[0]
			notes = append(notes, fmt.Sprintf("%d addresses of one incident share a line: '%s incidents %s' shows the steps to take, and --ungrouped lists each.",
				len(all), cmp.Or(layout.Program, "ipwitness"), one.GetIncident()))
			out := &pb.Conflict{State: one.GetState(), Scope: one.GetScope(), Cause: one.GetCause(), Clusters: one.GetClusters(), Acknowledgement: one.GetAcknowledgement()}
			owners := map[string]bool{}
			for _, c := range all { // from when the first of them was detected until the last of them was resolved
				for _, o := range c.GetOwners() {
					if of := holder(o); !owners[of] {
						owners[of] = true
						out.Owners = append(out.Owners, o)
					}
				}
				if CompareTimes(c.GetDetectedAt(), out.GetDetectedAt()) < 0 { // unknown times are last
					out.DetectedAt = c.GetDetectedAt()
				}
				if at := c.GetResolvedAt(); at != nil && (out.GetResolvedAt() == nil || CompareTimes(at, out.GetResolvedAt()) > 0) {
					out.ResolvedAt = at
				}
			}
			out.Address = fmt.Sprintf("%s and %d more", one.GetAddress(), len(all)-1)
			return out
		})
	}
	return notes, list(w, layout, clustered(narrow(conflictColumns(), layout.Wide), rows), rows, now)
}

// mostAlike is the number of items with the same key that have a row each.
const mostAlike = 3

// grouped combines items with the same key, if there are many. A group takes the place of its first item. Items
// without a key are not combined.
func grouped[T comparable](items []T, key func(T) string, combine func([]T) T) (rows []T) {
	alike := map[string][]T{}
	for _, item := range items {
		alike[key(item)] = append(alike[key(item)], item)
	}
	for _, item := range items {
		switch all := alike[key(item)]; {
		case key(item) == "" || len(all) <= mostAlike:
			rows = append(rows, item)
		case all[0] == item:
			rows = append(rows, combine(all))
		}
	}
	return rows
}

// Conflict writes the details of one conflict as a page.
func Conflict(w io.Writer, c *pb.Conflict, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	p.text("", c.GetSummary())
	if ack := c.GetAcknowledgement(); ack != nil {
		p.text("", "Acknowledged "+until(ack, time.TimeOnly, now))
	}
	p.line("")
	id := c.GetId()
	if c.GetEpisode() > 1 {
		id += fmt.Sprintf(" (episode %d)", c.GetEpisode())
	}
	p.fields("Conflict", id, "Cluster", clusterOf(c), "Address", c.GetAddress())
	p.toned(conflictTone(c), ConflictState(c), "State:     ", ConflictState(c)+lasting(c, now))
	p.fields(
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
		if d := c.GetResolvedAt().AsTime().Sub(from.AsTime()); d < shortest {
			return ", lasted less than " + Duration(shortest)
		}
		return ", lasted " + age(from, c.GetResolvedAt().AsTime())
	default:
		return ", for " + age(from, now)
	}
}

// earlier returns the earlier of two times; nil if the first one is not known.
func earlier(at, other *timestamppb.Timestamp) *timestamppb.Timestamp {
	if at != nil && CompareTimes(other, at) < 0 {
		return other
	}
	return at
}

// timeline adds the events of a conflict in chronological order.
func (p *page) timeline(c *pb.Conflict) {
	type event struct {
		at   *timestamppb.Timestamp
		what string
	}
	var events []event
	owners := c.GetOwners()
	for i, name := range OwnerNames(owners) {
		got, seen, what := owners[i].GetAssignedAt(), owners[i].GetFirstSeen(), " got the address"
		if at := slices.Index(c.GetOrder(), uint32(i)); at >= 0 && at < 2 { // there is no conflict without them: clocks differ
			if seen = earlier(seen, c.GetDetectedAt()); c.GetConfirmedAt() == nil || CompareTimes(got, c.GetConfirmedAt()) < 0 { // else it got it again
				got = earlier(got, c.GetDetectedAt())
			}
		}
		switch late := got.AsTime().Sub(seen.AsTime()); {
		case got == nil || seen == nil || late <= 0:
		case late <= time.Second: // the stamps of kernels are coarse
			got = seen
		default:
			what = " got the address again"
		}
		events = append(events, event{got, name + what}, event{seen, name + " was first seen with the address"})
	}
	events = append(events, event{c.GetDetectedAt(), "suspected"}, event{c.GetConfirmedAt(), "confirmed"},
		event{c.GetAcknowledgement().GetAcknowledgedAt(), "acknowledged"}, event{c.GetResolvedAt(), "resolved"})
	slices.SortStableFunc(events, func(a, b event) int { return CompareTimes(a.at, b.at) })
	var rows [][]string
	for _, e := range events {
		if e.at != nil {
			rows = append(rows, []string{"  " + clock(e.at, p.now), e.what})
		}
	}
	p.rows("Timeline:", rows)
}
