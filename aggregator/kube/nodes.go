package kube

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// nodeFeed is the feed that says which nodes are of the cluster.
const nodeFeed = "nodes"

// nodeRecord is what is kept of a node.
type nodeRecord struct {
	name  string
	uid   string
	cidrs []netip.Prefix
	added verdict.Stamp
	// other is set where the node has another operating system, or is no machine, and so
	// has no agent.
	other bool
	ready corev1.ConditionStatus
	// reason and said are why it is not ready, since is since when.
	reason, said string
	since        verdict.Stamp
}

// nodes are the nodes of the cluster.
type nodes struct {
	mirror[nodeRecord]
	// moved are the ranges by which what InPodCIDR says is not what the nodes say.
	moved []netip.Prefix
}

func newNodes(c *Cluster) nodes {
	return nodes{mirror: mirror[nodeRecord]{
		cluster: c, records: make(map[key]*nodeRecord),
		read:    readNode,
		same:    sameNode,
		changed: func(_ key, before, after *nodeRecord) { c.nodes.changed(before, after) },
		settled: func() { c.nodes.keepRanges() },
	}}
}

// of is the node of a name; nil for none.
func (n *nodes) of(name string) *nodeRecord { return n.records[key{name: name}] }

// readNode keeps of a node what is used.
func readNode(o runtime.Object) (key, *nodeRecord) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return key{}, nil
	}
	r := &nodeRecord{name: node.Name, uid: string(node.UID), added: verdict.At(node.CreationTimestamp.Time)}
	os := cmp.Or(node.Labels[corev1.LabelOSStable], node.Status.NodeInfo.OperatingSystem)
	r.other = os != "" && os != string(corev1.Linux) || virtual(node.Labels)
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	for _, cidr := range cidrs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			r.cidrs = append(r.cidrs, p.Masked())
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			r.ready, r.since = condition.Status, verdict.At(condition.LastTransitionTime.Time)
			if r.ready != corev1.ConditionTrue {
				r.reason, r.said = plain(condition.Reason), shorten(condition.Message)
			}
		}
	}
	return key{name: node.Name}, r
}

// virtual tells by its labels whether a node is no machine: a provider of virtual-kubelet
// (AKS has virtual nodes of it), or EKS' Fargate. No DaemonSet has a pod there.
func virtual(labels map[string]string) bool {
	return labels["type"] == "virtual-kubelet" || labels["eks.amazonaws.com/compute-type"] == "fargate"
}

func sameNode(a, b *nodeRecord) bool {
	return a.uid == b.uid && a.added == b.added && a.other == b.other && a.ready == b.ready && a.reason == b.reason && a.said == b.said && a.since == b.since &&
		slices.Equal(a.cidrs, b.cidrs)
}

// changed keeps the ranges, and notes what to tell. It is called under mu.
func (n *nodes) changed(before, after *nodeRecord) {
	var was, is nodeRecord
	if before != nil {
		was = *before
	}
	if after != nil {
		is = *after
	}
	if !slices.Equal(was.cidrs, is.cidrs) {
		n.moved = append(append(n.moved, was.cidrs...), is.cidrs...)
	}
	if after == nil || before == nil {
		changes := &n.cluster.pending.changes
		changes.Nodes = append(changes.Nodes, cmp.Or(was.name, is.name))
	}
	if after == nil || before == nil || was.ready != is.ready || was.uid != is.uid {
		n.cluster.pending.relate(cmp.Or(was.name, is.name))
	}
}

// ranges are sets of addresses that do not touch, in order.
type ranges struct{ first, last []netip.Addr }

// newRanges are the addresses of prefixes, which may overlap.
func newRanges(prefixes []netip.Prefix) *ranges {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	r := &ranges{}
	for _, p := range prefixes {
		first, last := p.Addr(), verdict.RangeOf(p).Last
		if n := len(r.last); n > 0 && first.Compare(r.last[n-1]) <= 0 { // IPv4 comes before IPv6
			if last.Compare(r.last[n-1]) > 0 {
				r.last[n-1] = last
			}
			continue
		}
		r.first, r.last = append(r.first, first), append(r.last, last)
	}
	return r
}

// contain tells whether an address is in one of them.
func (r *ranges) contain(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	i, found := slices.BinarySearchFunc(r.first, a, netip.Addr.Compare)
	return found || i > 0 && a.Compare(r.last[i-1]) <= 0
}

// keepRanges has InPodCIDR say what the nodes say: once for many that changed. It
// is called under mu.
func (n *nodes) keepRanges() {
	if len(n.moved) == 0 {
		return
	}
	var prefixes []netip.Prefix
	for _, r := range n.records {
		prefixes = append(prefixes, r.cidrs...)
	}
	n.cluster.cidrs.Store(newRanges(prefixes))
	changes := &n.cluster.pending.changes
	changes.Networks, n.moved = append(changes.Networks, n.moved...), nil
}

// NodeRange is a range of pods of a node (Node.spec.podCIDRs).
type NodeRange struct {
	Node   string
	Prefix netip.Prefix
}

// NodeRanges are the ranges of all nodes, in the order of their addresses: of two that
// overlap, the larger comes first. They change when Changes.Networks says so.
func (c *Cluster) NodeRanges() (all []NodeRange) {
	if c == nil {
		return nil
	}
	c.mu.RLock()
	for _, r := range c.nodes.records {
		for _, p := range r.cidrs {
			all = append(all, NodeRange{r.name, p})
		}
	}
	c.mu.RUnlock()
	slices.SortFunc(all, func(a, b NodeRange) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), cmp.Compare(a.Node, b.Node))
	})
	return all
}

// NodesCovered tells whether an agent reports for each node of the cluster: known says
// that there is a cluster to ask. Where the API is not heard from, or has no nodes to
// tell of, not all nodes are covered.
func (c *Cluster) NodesCovered(reports func(name string) bool) (all, known bool) {
	if c == nil {
		return false, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.health.state != pb.Kubernetes_LIVE || len(c.nodes.records) == 0 {
		return false, true
	}
	for _, r := range c.nodes.records {
		if !reports(r.name) {
			return false, true
		}
	}
	return true, true
}

// NodeNames are the nodes of the cluster; known says that there is one, which is heard
// from and has told of its nodes.
func (c *Cluster) NodeNames() (names []string, known bool) {
	return c.namesOf(func(*nodeRecord) bool { return true })
}

// AgentNodes are the nodes of the cluster that are meant to have an agent: those that a pod
// of agents is on, or is made for, and, where no such pod is known, all that one can be on.
// known is as of NodeNames.
func (c *Cluster) AgentNodes() (names []string, known bool) {
	return c.namesOf(func(r *nodeRecord) bool {
		return c.pods.agents[r.name] > 0 || !r.other && len(c.pods.agents) == 0
	})
}

func (c *Cluster) namesOf(which func(*nodeRecord) bool) (names []string, known bool) {
	if c == nil {
		return nil, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.health.state != pb.Kubernetes_LIVE || len(c.nodes.records) == 0 {
		return nil, false
	}
	for _, r := range c.nodes.records {
		if which(r) {
			names = append(names, r.name)
		}
	}
	return names, true
}

// addedLately tells whether the node is new.
func (r *nodeRecord) addedLately(now verdict.Stamp) bool {
	return r.added != 0 && now.Sub(r.added) < lately
}

// stampNow is the time by our clock.
func stampNow() verdict.Stamp { return verdict.At(time.Now()) }
