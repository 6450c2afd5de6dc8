package kube

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/podips"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const nodeFeed = "nodes"

type nodeRecord struct {
	name  string
	uid   string
	cidrs []netip.Prefix
	// addresses are the addresses at which the cluster reaches the node (InternalIP).
	addresses []netip.Addr
	added     verdict.Stamp
	// other means that agents cannot run on the node: it has another operating system, or it
	// is a virtual node. simulated means that its addresses and those of its pods are those of others.
	other, simulated bool
	ready            corev1.ConditionStatus
	// reason and message are the reason and message of the Ready condition, and since is its last
	// change.
	reason, message string
	since           verdict.Stamp
	// conflict is the condition AddressConflict; nil if the node has none.
	conflict *nodeCondition
}

type nodes struct {
	ipam.Mirror[*corev1.Node, nodeRecord]
	cluster *Cluster
	// moved has the pod CIDRs for which the result of InPodCIDR is outdated.
	moved []netip.Prefix
	// turned means that a node is simulated now, or is no longer.
	turned bool
}

func newNodes(c *Cluster) nodes {
	return nodes{cluster: c, Mirror: ipam.Mirror[*corev1.Node, nodeRecord]{
		Parse:   readNode,
		Changed: func(_ ipam.Key, before, after *nodeRecord) { c.nodes.changed(before, after) },
		Settled: func() { // once for all nodes that changed together
			if c.nodes.turned {
				c.nodes.turned = false
				c.compareAll(func(netip.Addr) bool { return true })
			}
			if len(c.nodes.moved) == 0 {
				return
			}
			var ranges []ipam.Range
			for _, r := range c.nodes.Records {
				for _, p := range r.cidrs {
					ranges = append(ranges, ipam.RangeOf(p))
				}
			}
			ranges = ipam.Union(ranges)
			c.cidrs.Store(&ranges)
			for _, p := range c.nodes.moved {
				c.pending.networks[p] = struct{}{}
			}
			c.nodes.moved = nil
		},
	}}
}

func (n *nodes) of(name string) *nodeRecord { return n.Records[ipam.Key{Name: name}] }

// readNode returns the record of a node, and what of its addresses cannot be read.
func readNode(node *corev1.Node) (at ipam.Key, r *nodeRecord, problem string) {
	at, r = ipam.Key{Name: node.Name}, &nodeRecord{name: node.Name, uid: string(node.UID), added: verdict.At(node.CreationTimestamp.Time)}
	// DaemonSets have no pods on a virtual node, that is, one of virtual-kubelet (such as the virtual nodes of AKS), of Liqo
	// or of Fargate on EKS.
	kind := node.Labels["type"]
	virtual := kind == "virtual-kubelet" || node.Labels["liqo.io/type"] == "virtual-node" ||
		slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "virtual-kubelet.io/provider" })
	os := cmp.Or(node.Labels[corev1.LabelOSStable], node.Status.NodeInfo.OperatingSystem, string(corev1.Linux))
	r.other = os != string(corev1.Linux) || virtual || node.Labels["eks.amazonaws.com/compute-type"] == "fargate"
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	for _, cidr := range cidrs {
		address, bits, _ := strings.Cut(cidr, "/")
		if a, err := ipam.ParseAddress(address); err == nil {
			cidr = a.String() + "/" + bits // without leading zeros
		}
		if p, err := netip.ParsePrefix(cidr); err == nil {
			r.cidrs = append(r.cidrs, p.Masked())
		} else {
			problem = unreadAddress("Node "+node.Name, "/spec/podCIDRs", cidr)
		}
	}
	// Simulated nodes (KWOK) and virtual ones have addresses of others.
	if r.simulated = virtual || kind == "kwok"; !r.simulated {
		for _, address := range node.Status.Addresses {
			switch a, err := ipam.ParseAddress(address.Address); {
			case address.Type != corev1.NodeInternalIP:
			case err != nil:
				problem = unreadAddress("Node "+node.Name, podips.NodeStatus, address.Address)
			default:
				r.addresses = append(r.addresses, a)
			}
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == conflictCondition {
			r.conflict = &nodeCondition{condition.Status, condition.Message}
		}
		if condition.Type == corev1.NodeReady {
			r.ready, r.since = condition.Status, verdict.At(condition.LastTransitionTime.Time)
			if r.ready != corev1.ConditionTrue {
				r.reason, r.message = ipam.Plain(condition.Reason), ipam.Shorten(condition.Message)
			}
		}
	}
	return at, r, problem
}

// own reports whether an address is the node's own: the first InternalIP of its family.
func (r *nodeRecord) own(a netip.Addr) bool {
	first := slices.IndexFunc(r.addresses, func(own netip.Addr) bool { return own.Is4() == a.Is4() })
	return first >= 0 && r.addresses[first] == a
}

// nodeAddresses is the record of a node for the comparison of its addresses with those of other nodes.
type nodeAddresses struct{ *nodeRecord }

// Pod implements podips.Record.
func (r nodeAddresses) Pod() podips.Pod {
	if r.nodeRecord == nil {
		return podips.Pod{}
	}
	return podips.Pod{Node: r.name, IPs: r.addresses, Exclusive: true}
}

// changed collects the changed pod CIDRs and queues notifications. The caller holds mu.
func (n *nodes) changed(before, after *nodeRecord) {
	was, is := ptr.Deref(before, nodeRecord{}), ptr.Deref(after, nodeRecord{})
	if !slices.Equal(was.cidrs, is.cidrs) {
		n.moved = append(append(n.moved, was.cidrs...), is.cidrs...)
	}
	n.turned = n.turned || was.simulated != is.simulated
	n.cluster.nodeAddresses.Changed(nodeAddresses{before}, nodeAddresses{after})
	n.cluster.compare(was.addresses...)
	n.cluster.compare(is.addresses...)
	if after == nil || before == nil || !slices.Equal(was.addresses, is.addresses) {
		n.cluster.pending.nodes[cmp.Or(was.name, is.name)] = struct{}{}
	}
	if after == nil || before == nil || was.ready != is.ready || was.uid != is.uid {
		n.cluster.pending.relate(cmp.Or(was.name, is.name))
	}
}

// NodeRange is a pod CIDR of a node (Node.spec.podCIDRs).
type NodeRange struct {
	Node   string
	Prefix netip.Prefix
}

// NodeRanges returns the pod CIDRs of all nodes, ordered by address. Of two overlapping ranges
// with the same first address, the larger comes first. Changes.Networks reports when they
// change.
func (c *Cluster) NodeRanges() (all []NodeRange) {
	if c == nil {
		return nil
	}
	c.mu.RLock()
	for _, r := range c.nodes.Records {
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

// NodeAddress is a node's own address.
type NodeAddress struct {
	Node    string
	Address netip.Addr
}

// NodeAddresses returns the own addresses of all nodes. Changes.Nodes reports when they change.
func (c *Cluster) NodeAddresses() (all []NodeAddress) {
	if c == nil {
		return nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, r := range c.nodes.Records {
		for _, a := range r.addresses {
			if r.own(a) {
				all = append(all, NodeAddress{r.name, a})
			}
		}
	}
	return all
}

// NodesCovered reports whether an agent reports for each node of the cluster. known is false
// if there is no cluster. all is false if the mirror is not live or has no nodes.
func (c *Cluster) NodesCovered(reports func(name string) bool) (all, known bool) {
	names, live := c.NodeNames()
	return live && !slices.ContainsFunc(names, func(name string) bool { return !reports(name) }), c != nil
}

// NodeNames returns the names of the cluster's nodes. known is false if there is no cluster,
// or if the mirror is not live or has no nodes.
func (c *Cluster) NodeNames() (names []string, known bool) {
	return c.namesOf(func(*nodeRecord) bool { return true })
}

// AgentNodes returns the nodes that are expected to have an agent: those that a pod of the
// agents runs on or was created for. If no such pod is known, it returns all nodes that an
// agent can run on. known has the same meaning as for NodeNames.
func (c *Cluster) AgentNodes() (names []string, known bool) {
	return c.namesOf(func(r *nodeRecord) bool {
		return c.pods.agents[r.name] != nil || !r.other && len(c.pods.agents) == 0
	})
}

func (c *Cluster) namesOf(which func(*nodeRecord) bool) (names []string, known bool) {
	if c == nil {
		return nil, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.health.state != pb.Kubernetes_LIVE || len(c.nodes.Records) == 0 {
		return nil, false
	}
	for _, r := range c.nodes.Records {
		if which(r) {
			names = append(names, r.name)
		}
	}
	return names, true
}

func stampNow() verdict.Stamp { return verdict.At(time.Now()) }
