package aggregator

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// What the Kubernetes API says is kept in kube, and joined to owners when their
// addresses are judged. Here is how it gets there: who has a pod is looked for by
// the pod, and judged again when the API says something else of it.

// podKey is by what a namespace of a pod is found: the pod's uid or, where that is
// not known, its namespace and name; empty for one that has no pod.
func podKey(ns *verdict.Namespace) verdict.Packed {
	if ns.Record == verdict.OwnRecord || ns.Who.Kind() != verdict.Pod {
		return ""
	}
	if uid := ns.Who.UID(); uid != "" {
		return uid
	}
	if name := ns.Who.Name(); name != "" {
		return verdict.Pack(ns.Who.Namespace() + "/" + name)
	}
	return ""
}

// listPod enters a namespace by its sandbox, and by its pod if there is a cluster to
// ask for it.
func (s *store) listPod(ns *namespace) {
	if ns.rec.Who.ContainerID() != "" {
		s.sandboxes.enter(ns)
	}
	if s.kube != nil && podKey(ns.rec) != "" {
		s.pods.enter(ns)
	}
}

// unlistPod takes out what listPod entered, before the record changes.
func (s *store) unlistPod(ns *namespace) {
	if ns.rec.Who.ContainerID() != "" {
		s.sandboxes.leave(ns)
	}
	if s.kube != nil && podKey(ns.rec) != "" {
		s.pods.leave(ns)
	}
}

// touchPod has all looked at that a pod has.
func (s *store) touchPod(key string) {
	for ns := s.pods.get(verdict.Pack(key)); ns != nil; ns = ns.alike {
		s.touchNamespace(ns)
	}
}

func (s *store) touchNamespace(ns *namespace) {
	s.lack(ns)
	for _, i := range ns.ifaces {
		s.touchAll(i.holdings)
	}
	rec := ns.rec.Node
	if n := s.nodes[idOf(rec)]; n != nil {
		s.touchPorts(n, ns.rec.Record)
	}
}

// manyPods are so many at once as only a listing gives, which leaves behind much
// more memory than what is kept of it.
const manyPods = 1000

// judgePods judges all that the pods of some nodes have, and gives up the lock after
// each node.
func (s *store) judgePods(on func(node string) bool) {
	for _, n := range slices.Collect(maps.Values(s.nodes)) {
		if !on(n.rec.Name) {
			continue
		}
		base := len(s.touched)
		for ns := range n.namespaces.all() {
			if ns.rec.Who.Kind() == verdict.Pod {
				s.touchNamespace(ns)
			}
		}
		s.judgeTouched(base, received{})
		s.mu.Unlock()
		s.mu.Lock()
	}
}

// judgeInside judges the addresses inside. It walks the table, and gives up the lock
// after each part of it.
func (s *store) judgeInside(inside func(netip.Addr) bool) {
	for i := range s.table.shards {
		base := len(s.touched)
		for e := range s.table.shards[i].all() {
			if inside(e.addr) {
				s.touch(e)
			}
		}
		s.judgeTouched(base, received{})
		s.mu.Unlock()
		s.mu.Lock()
	}
}

// kubernetesChanged brings what the Kubernetes API says to who it is about.
func (s *store) kubernetesChanged(c kube.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.State || len(c.Nodes) > 0 {
		s.coverageChanged()
	}
	for some := range slices.Chunk(c.Pods, judgedAtOnce) {
		base := len(s.touched) // anew each time: others use the stack, too
		for _, p := range some {
			s.touchPod(p.UID)
			s.touchPod(p.Namespace + "/" + p.Name)
		}
		s.judgeTouched(base, received{})
		s.mu.Unlock()
		s.mu.Lock()
	}
	if c.State || len(c.Nodes) > 0 {
		slices.Sort(c.Nodes)
		s.judgePods(func(node string) bool {
			_, moved := slices.BinarySearch(c.Nodes, node)
			return c.State || moved
		})
	}
	if len(c.Networks) > 0 {
		s.judgeInside(kube.Within(c.Networks))
	}
	if len(c.Pods) >= manyPods {
		select {
		case s.untidy <- struct{}{}:
		default:
		}
	}
	if len(c.IPAM) > 0 {
		s.ipamChanged(c.IPAM)
	}
	if len(c.Networks) > 0 || len(c.Nodes) > 0 {
		s.overlapped(nil)
	}
	if len(c.Related) > 0 {
		s.retell(c.Related)
	}
}

// retell makes the conflicts known again that have an owner on one of the nodes.
func (s *store) retell(nodes []string) {
	told := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		told[n] = true
	}
	for e := range s.contested {
		for _, c := range e.conflicts() {
			if c.Active() && slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return told[o.Node.Name] }) {
				s.conflicts.publish(event{typ: updated, addr: c.Address, conflict: s.conflictProto(&c)})
			}
		}
	}
}

// announce has conflicts told as Kubernetes Events until ctx ends.
func (s *store) announce(ctx context.Context) {
	s.accountOf(ctx, "Kubernetes Events", s.conflicts, func(e *event) {
		if e.conflict != nil {
			s.kube.Announce(e.conflict)
		}
	})
}

// podObject returns what the Kubernetes API says about the pod in a namespace.
func (s *store) podObject(ns *verdict.Namespace) *verdict.PodObject {
	if s.kube == nil || ns == nil || ns.Who.Kind() != verdict.Pod {
		return nil
	}
	w := ns.Who.Workload()
	return s.kube.Pod(w.Namespace, w.Name, w.UID, ns.Node.Name)
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
