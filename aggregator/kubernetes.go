package aggregator

import (
	"context"
	"iter"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/shard"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// manyPods are so many at once as only a listing gives, which leaves behind much
// more memory than what is kept of it.
const manyPods = 1000

// kubernetesChanged brings what the Kubernetes API says to those that it is about.
func (s *store) kubernetesChanged(c kube.Changes) {
	if c.State || len(c.Nodes) > 0 {
		s.coverageChanged()
	}
	if len(c.Pods) > 0 {
		keys := make([]string, 0, 2*len(c.Pods))
		for _, p := range c.Pods {
			keys = append(keys, p.UID, p.Namespace+"/"+p.Name)
		}
		s.judgedBy(s.facts.PodsChanged(keys))
	}
	if c.State || len(c.Nodes) > 0 {
		slices.Sort(c.Nodes)
		s.judgedBy(s.facts.PodsOnChanged(func(node string) bool {
			_, moved := slices.BinarySearch(c.Nodes, node)
			return c.State || moved
		}))
	}
	if len(c.Networks) > 0 {
		var ranges []verdict.Range
		for _, p := range c.Networks {
			ranges = append(ranges, verdict.RangeOf(p))
		}
		s.judgeInside(ranges)
	}
	if len(c.Pods) >= manyPods {
		s.untidy()
	}
	if len(c.IPAM) > 0 {
		b, reach := s.facts.IPAMChanged(c.IPAM)
		s.judgedBy(b)
		s.judgeInside(reach)
	}
	if len(c.Networks) > 0 || len(c.Nodes) > 0 {
		s.overlapped(nil)
	}
	if len(c.Related) > 0 {
		s.retell(c.Related)
	}
}

// judgeInside has the owners of the addresses of ranges judged again.
func (s *store) judgeInside(ranges []verdict.Range) {
	for _, r := range merged(ranges) {
		var some []index.Address
		for p := range s.within(r) {
			if some = append(some, p.Address()); len(some) == judgedTogether {
				s.judgedBy(s.facts.Touch(some))
				some = some[:0]
			}
		}
		s.judgedBy(s.facts.Touch(some))
	}
}

// judgedTogether is the number of addresses of a range that are judged at a time.
const judgedTogether = 4096

// within yields the places of a range in order, as they were when it was called.
func (s *store) within(r verdict.Range) iter.Seq[shard.Place] {
	last := index.AddressOf(r.Last)
	return until(s.shards.Places().From(shard.From(index.AddressOf(r.First))), func(p shard.Place) bool { return last.Less(p.Address()) })
}

// retell makes the conflicts known again that have an owner on one of the nodes.
func (s *store) retell(nodes []string) {
	told := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		told[n] = true
	}
	var addrs []index.Address
	s.facts.RLock()
	for _, c := range s.shards.Conflicts.All() {
		if c.Active() && slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return told[o.Node.Name] }) {
			addrs = append(addrs, index.AddressOf(c.Address))
		}
	}
	s.facts.RUnlock()
	s.judgedBy(s.facts.Retell(addrs))
}

// announce has conflicts told as Kubernetes Events until ctx ends.
func (s *store) announce(ctx context.Context) {
	s.accountOf(ctx, "Kubernetes Events", s.told.conflicts, func(e *event) {
		if e.conflict != nil {
			s.kube.Announce(e.conflict)
		}
	})
}

// related is what the Kubernetes API has to say beside a conflict.
func (s *store) related(c *pb.Conflict) []*pb.Related {
	if c.GetState() == pb.Conflict_RESOLVED {
		return nil
	}
	return s.kube.Related(c)
}

// kubernetesOf returns what the Kubernetes API says beside a conflict; nothing about one that is
// over.
func (s *store) kubernetesOf(c *verdict.Conflict, related []*pb.Related) explain.Kubernetes {
	if !c.Active() {
		return explain.Kubernetes{}
	}
	says := explain.Kubernetes{
		Live: s.kube.Status().GetState() == pb.Kubernetes_LIVE, Events: s.kube.EventsHeard(), Whole: len(related) < kube.MostRelated,
	}
	for _, r := range related {
		says.Related = append(says.Related, explain.Related{
			Kind: r.GetKind(), Namespace: r.GetNamespace(), Name: r.GetName(), Reason: r.GetReason(), Message: r.GetMessage(), Count: r.GetCount(),
		})
	}
	return says
}
