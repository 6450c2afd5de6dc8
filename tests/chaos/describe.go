package chaos

import (
	"fmt"
	"strings"
	"time"
)

// Describe returns what happened to an address, and what was told of it, for people.
func (r *Run) Describe(addr string) string {
	var b strings.Builder
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.UTC().Format("15:04:05.000")
	}
	fmt.Fprintf(&b, "%s:\n", addr)
	for _, e := range r.Episodes {
		if e.Address == addr {
			fmt.Fprintf(&b, "  %s %s %s\n", at(e.Begun), at(e.Ended), e.Pod)
		}
	}
	for _, n := range r.Notifications {
		if n.Address == addr {
			fmt.Fprintf(&b, "  told %s %s %s %s\n", at(n.At), n.Type, n.Pod, n.ID)
		}
	}
	for _, one := range r.Replicas {
		fmt.Fprintf(&b, "  %s was away", one.Name)
		for _, o := range one.outages {
			fmt.Fprintf(&b, " %s-%s", at(o.From), at(o.Until))
		}
		b.WriteString(", its history has the gaps")
		for _, g := range one.Gaps {
			fmt.Fprintf(&b, " %s-%s", at(g.From), at(g.Until))
		}
		b.WriteString("\n")
		for _, t := range one.History {
			if t.Address == addr {
				fmt.Fprintf(&b, "    %s %s %s episode %d\n", at(t.At), t.State, t.Pod, t.Number)
			}
		}
	}
	for a, n := range r.Events {
		if a.Address == addr {
			fmt.Fprintf(&b, "  %d Events %s about %s\n", n, a.Reason, a.Object)
		}
	}
	return b.String()
}
