package live

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// conditionsEvery is the interval at which the conditions of Nodes are compared with the conflicts.
const conditionsEvery = 2 * time.Second

// Conditions keeps the condition AddressConflict of Kubernetes' Nodes. All fields are required.
type Conditions struct {
	Facts            *facts.Facts
	Shards           *judge.Shards
	Acknowledgements *Acknowledgements
	Coverage         *Coverage
	Kubernetes       *kube.Cluster
}

// Run keeps the conditions until ctx ends.
func (s *Conditions) Run(ctx context.Context) {
	for ctx.Err() == nil {
		s.Kubernetes.SetConditions(ctx, s.current())
		select {
		case <-ctx.Done():
		case <-time.After(conditionsEvery):
		}
	}
}

// current returns a function that returns the message of the condition of a Node, by its name in Kubernetes; empty if there
// is no confirmed conflict on it, which is known if nothing is awaited, each node that should have an agent has reported, its own
// reports all addresses, and no conflict on it is suspected. Acknowledged conflicts do not count.
func (s *Conditions) current() func(name string) (message string, known bool) {
	complete := !Starting(s.Coverage.Current())
	conflicts := make(map[string][]*verdict.Conflict) // by the labels of their nodes
	active := slices.DeleteFunc(s.Shards.Conflicts.All(), func(c *verdict.Conflict) bool { return !c.Active() || s.Acknowledgements.Of(c.ID) != nil })
	slices.SortFunc(active, func(a, b *verdict.Conflict) int { return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.ID, b.ID)) })
	reporting := make(map[string][]*facts.Node)
	s.Facts.RLock()
	complete = complete && len(s.Coverage.Attend().Absent) == 0
	for _, c := range active {
		for i := range c.Owners {
			if o := &c.Owners[i]; o.Kind() != verdict.External {
				if at := labelOf(o); !slices.Contains(conflicts[at], c) {
					conflicts[at] = append(conflicts[at], c)
				}
			}
		}
	}
	for n := range s.Facts.Nodes {
		if !n.Rec.Unheard && n.JudgedAt != 0 && !n.Incomplete() && !n.Status.GetBlind() {
			reporting[facts.Label(n.Name)] = append(reporting[facts.Label(n.Name)], n)
		}
	}
	s.Facts.RUnlock()
	return func(name string) (message string, known bool) {
		s.Facts.RLock()
		defer s.Facts.RUnlock()
		known = complete && slices.ContainsFunc(reporting[facts.Label(name)], func(n *facts.Node) bool { return n.Rec.Called(name) })
		var confirmed []*verdict.Conflict
		for _, c := range conflicts[facts.Label(name)] {
			switch {
			case !slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return o.Kind() != verdict.External && o.OnNode(name) }):
			case c.Phase == verdict.Confirmed:
				confirmed = append(confirmed, c)
			default:
				known = false
			}
		}
		if len(confirmed) > 0 {
			message = explain.Condition(confirmed)
		}
		return message, known
	}
}

// labelOf returns the label of the node of an owner.
func labelOf(o *verdict.Owner) string {
	if o.Pod != nil && o.Pod.Node != "" {
		return facts.Label(o.Pod.Node)
	}
	own, _, _ := strings.Cut(o.Node.Name, "@")
	return facts.Label(own)
}
