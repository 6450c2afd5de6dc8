// Package show renders what ipwitness knows: tables and pages for people, JSON
// and YAML for programs, and the live account of ipwitness run. It writes to
// the writer it is given and is told the time; it knows no network, no terminal
// and no clock.
package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// none stands in a table for what is not known.
const none = "-"

// Name gives the short name of an owner: NAMESPACE/POD (pod-uid/UID, cut, where
// that is all), container/NAME, vm/NAME, host/NODE, netns/NAME, process/NAME
// (PID) or, for a device outside, external.
func Name(o *pb.Owner) string {
	w := o.GetWorkload()
	switch w.GetKind() {
	case pb.Workload_POD:
		if w.GetName() == "" {
			return "pod-uid/" + shortID(w.GetUid())
		}
		return w.GetNamespace() + "/" + w.GetName()
	case pb.Workload_CONTAINER:
		if w.GetSource() == "netns" {
			return "netns/" + w.GetName() // that is all the name says
		}
		return "container/" + first(w.GetName(), shortID(w.GetContainerId()), o.GetNetns())
	case pb.Workload_VM:
		return "vm/" + first(w.GetName(), o.GetNetns())
	case pb.Workload_HOST:
		return "host/" + first(o.GetNode(), w.GetName())
	case pb.Workload_EXTERNAL:
		return "external"
	default:
		if w.GetName() == "" && w.GetProcess() != "" {
			return "process/" + w.GetProcess()
		}
		return "netns/" + first(w.GetName(), o.GetNetns(), "?")
	}
}

// names gives short names that tell the owners of one conflict apart: those
// that are equal get their MAC address (external devices), their node, or their
// network namespace where the node is one, too.
func names(owners []*pb.Owner) []string {
	out := make([]string, len(owners))
	count := map[string]int{}
	for i, o := range owners {
		out[i] = Name(o)
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

// shortID cuts a container id to the length that docker ps shows.
func shortID(id string) string { return id[:min(len(id), 12)] }

// place gives where an owner holds its address: INTERFACE (HOST-INTERFACE).
func place(o *pb.Owner) string {
	if host := o.GetHostInterface(); host != "" && host != o.GetInterface() {
		return strings.TrimSpace(o.GetInterface() + " (" + host + ")")
	}
	return o.GetInterface()
}

// scope gives a scope as KIND NAME.
func scope(s *pb.Scope) string {
	if s.GetKind() == pb.Scope_UNSPECIFIED {
		return ""
	}
	return strings.TrimSpace(s.GetKind().String() + " " + s.GetName())
}

// evidenceKinds gives the kinds of evidence, each once, strongest first.
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

// heldSince is when the kernel was given the address or, where nobody knows,
// when the owner was first seen with it.
func heldSince(o *pb.Owner) *timestamppb.Timestamp {
	if o.GetAssignedAt() != nil {
		return o.GetAssignedAt()
	}
	return o.GetFirstSeen()
}

// age gives the time from ts to now in at most two units: 12s, 3m5s, 4h10m, 2d3h.
func age(ts *timestamppb.Timestamp, now time.Time) string {
	if ts == nil {
		return ""
	}
	return Duration(now.Sub(ts.AsTime()))
}

// ago is age, as a phrase.
func ago(ts *timestamppb.Timestamp, now time.Time) string {
	if ts == nil {
		return ""
	}
	return age(ts, now) + " ago"
}

// Duration gives a duration in at most two units: 0.4s, 12s, 3m5s, 4h10m, 2d3h.
// A negative one, which clocks of two machines can give, is 0s.
func Duration(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second && d >= 100*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
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

// clockTo is clock in another layout of the time of day.
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

// Count gives a number with its noun: 1 owner, 2 owners.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// first gives the first that is not empty.
func first(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}

// clean replaces what could steer a terminal: names come from whoever made the
// container or the interface.
func clean(s string) string { return form.Visible(s) }
