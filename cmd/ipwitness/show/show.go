// Package show renders the output of the commands: tables and pages for people, JSON and YAML for
// programs, and the live output of ipwitness run. The writer and the time are parameters: the
// package uses no network, terminal or clock.
package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// none stands for an unknown value in a table.
const none = "-"

// ResolvedName returns a name of an owner like pb.OwnerName, which distinguishes external devices by their MAC.
func ResolvedName(o *pb.ResolvedOwner) string {
	name := pb.OwnerName(&pb.Owner{Node: o.GetNode(), Workload: &pb.Workload{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), Uid: o.GetUid()}})
	if o.GetKind() == pb.Workload_EXTERNAL {
		name += "/" + o.GetMac()
	}
	if o.GetCluster() != "" {
		name += " in " + o.GetCluster()
	}
	return name
}

// OwnerNames returns short names that distinguish the owners of one conflict. Equal names get the MAC
// address (external devices), the node, or the network namespace if the node is also the same.
func OwnerNames(owners []*pb.Owner) []string {
	out := make([]string, len(owners))
	count := map[string]int{}
	across := slices.ContainsFunc(owners, func(o *pb.Owner) bool { return o.GetCluster() != owners[0].GetCluster() })
	for i, o := range owners {
		out[i] = pb.OwnerName(o)
		if across {
			out[i] += " in " + o.GetCluster()
		}
		if o.GetWorkload().GetKind() == pb.Workload_EXTERNAL {
			out[i] += "/" + o.GetMac()
		}
		count[out[i]]++
	}
	for i, o := range owners {
		if count[out[i]] > 1 && o.GetWorkload().GetKind() != pb.Workload_HOST {
			out[i] += "@" + o.GetNode()
			count[out[i]]++
		}
	}
	for i, o := range owners {
		if count[out[i]] > 1 && o.GetNetns() != "" {
			out[i] += " (netns " + o.GetNetns() + ")"
		}
	}
	return out
}

// place returns where an owner holds its address, as INTERFACE (HOST-INTERFACE).
func place(o *pb.Owner) string {
	if host := o.GetHostInterface(); host != "" && host != o.GetInterface() {
		return strings.TrimSpace(o.GetInterface() + " (" + host + ")")
	}
	return o.GetInterface()
}

// scope formats a scope as KIND NAME.
func scope(s *pb.Scope) string {
	if s.GetKind() == pb.Scope_UNSPECIFIED {
		return ""
	}
	return strings.TrimSpace(s.GetKind().String() + " " + s.GetName())
}

// evidenceKinds lists the kinds of evidence, each once, strongest first.
func evidenceKinds(o *pb.Owner) string {
	var kinds []pb.Evidence_Kind
	for _, e := range o.GetEvidence() {
		kinds = append(kinds, e.GetKind())
	}
	slices.Sort(kinds)
	var out []string
	for _, k := range slices.Compact(kinds) {
		out = append(out, k.String())
	}
	return strings.Join(out, ",")
}

// heldSince returns when the address was configured in the kernel or, if that is not known, when the
// owner was first seen with it.
func heldSince(o *pb.Owner) *timestamppb.Timestamp {
	if o.GetAssignedAt() != nil {
		return o.GetAssignedAt()
	}
	return o.GetFirstSeen()
}

// age formats the time from ts to now in at most two units: 12s, 3m5s, 4h10m, 2d3h.
func age(ts *timestamppb.Timestamp, now time.Time) string {
	if ts == nil {
		return ""
	}
	return Duration(now.Sub(ts.AsTime()))
}

// ago formats the time from ts to now as a phrase.
func ago(ts *timestamppb.Timestamp, now time.Time) string {
	if ts == nil {
		return ""
	}
	return age(ts, now) + " ago"
}

// shortest is the shortest duration that Duration tells from none.
const shortest = 100 * time.Millisecond

// Duration formats a duration in at most two units: 0.4s, 12s, 3m5s, 4h10m, 2d3h. A negative
// duration, which can result from the clocks of two machines, is 0s.
func Duration(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second && d >= shortest:
		return fmt.Sprintf("%.1fs", d.Truncate(shortest).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return units(d, time.Minute, "m", time.Second, "s")
	case d < 24*time.Hour:
		return units(d, time.Hour, "h", time.Minute, "m")
	default:
		return units(d, 24*time.Hour, "d", time.Hour, "h")
	}
}

func units(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	s := fmt.Sprintf("%d%s", d/big, bigName)
	if rest := d % big / small; rest > 0 {
		s += fmt.Sprintf("%d%s", rest, smallName)
	}
	return s
}

// zone is the time zone of all times shown to people, including those in text from the
// server. Each output names it once.
const zone = "UTC"

// clock returns the time of day in UTC, with the date if it is not today's.
func clock(ts *timestamppb.Timestamp, now time.Time) string { return clockTo("15:04:05.000", ts, now) }

// clockTo is like clock with another layout of the time of day.
func clockTo(layout string, ts *timestamppb.Timestamp, now time.Time) string {
	if ts == nil {
		return ""
	}
	t := ts.AsTime()
	if t.Format(time.DateOnly) != now.UTC().Format(time.DateOnly) {
		layout = time.DateOnly + " " + layout
	}
	return t.Format(layout)
}

// Count returns a number with its noun: 1 owner, 2 owners.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// clean replaces characters that could control a terminal, because anyone who creates a container or
// an interface can choose its name.
func clean(s string) string { return form.Visible(s) }

// A Tone is the meaning of a colour. A coloured word says the same without its colour.
type Tone int

// The tones.
const (
	PlainTone  Tone = iota
	BadTone         // somebody has to act
	WarnTone        // somebody should look
	GoodTone        // it is over
	DimTone         // of less importance
	StrongTone      // a title
)

// Codes are the escape codes of the tones. Red is bold, so that it differs from green without colours, too.
var Codes = [...]string{BadTone: "1;31", WarnTone: "33", GoodTone: "32", DimTone: "2", StrongTone: "1"}

// painter adds colours if it is true.
type painter bool

// tone colours a text.
func (p painter) tone(t Tone, s string) string {
	if !p || t == PlainTone {
		return s
	}
	return "\x1b[" + Codes[t] + "m" + s + "\x1b[0m"
}

// unless returns the plain tone if a state is as it should be, and otherwise another one.
func unless(good bool, t Tone) Tone {
	if good {
		return PlainTone
	}
	return t
}

// conflictTone returns the tone of the state of a conflict. An acknowledged conflict needs no action.
func conflictTone(c *pb.Conflict) Tone {
	switch {
	case c.GetState() == pb.Conflict_RESOLVED:
		return GoodTone
	case c.GetAcknowledgement() != nil:
		return DimTone
	case c.GetState() == pb.Conflict_CONFIRMED:
		return BadTone
	}
	return WarnTone
}

func ownerTone(o *pb.Owner) Tone { return unless(o.GetState() == pb.Owner_LIVE, WarnTone) }

func nodeTone(n *pb.Node) Tone { return unless(n.GetState() == pb.Node_LIVE, BadTone) }

// findingTone returns the tone of the severity of a finding.
func findingTone(f *pb.Finding) Tone {
	switch f.GetSeverity() {
	case pb.Finding_CRITICAL:
		return BadTone
	case pb.Finding_WARNING:
		return WarnTone
	}
	return PlainTone
}

// tint colours the first occurrence of a word in a text.
func (p painter) tint(t Tone, word, text string) string {
	if word == "" {
		return text
	}
	return strings.Replace(text, word, p.tone(t, word), 1)
}
