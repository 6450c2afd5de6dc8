package facts

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// The state of the Kubernetes API is kept elsewhere and joined to owners when their addresses are
// judged. This file finds the owners that are in a pod, so that they are judged again when the
// pod's object changes.

// podKey returns the key under which a namespace of a pod is indexed: the UID of the pod or, if it
// is not known, its namespace and name; empty if the namespace belongs to no pod.
func podKey(who verdict.Who) verdict.Packed {
	if who.Kind() != verdict.Pod {
		return ""
	}
	if uid := who.UID(); uid != "" {
		return uid
	}
	if name := who.Name(); name != "" {
		return verdict.Pack(who.Namespace() + "/" + name)
	}
	return ""
}

// A chain is a list of the namespaces of a node with the same key, linked by one of their fields.
type chain struct {
	refs *refs[verdict.Packed]
	key  func(verdict.Who) verdict.Packed
	next func(*namespace) *uint32
}

func (f *Facts) podChain() chain {
	return chain{f.pods, podKey, func(ns *namespace) *uint32 { return &ns.alike }}
}

func (f *Facts) sandboxChain() chain {
	return chain{f.sandboxes, verdict.Who.ContainerID, func(ns *namespace) *uint32 { return &ns.together }}
}

func (x chain) enter(n *Node, ns uint32) {
	key := x.key(n.whoOf(ns))
	if key == "" {
		return
	}
	*x.next(n.namespaces.at(ns)) = x.refs.of(key, n.number)
	x.refs.set(key, refOf(n.number, ns))
}

func (x chain) leave(n *Node, ns uint32) {
	key := x.key(n.whoOf(ns))
	if key == "" {
		return
	}
	after := x.next(n.namespaces.at(ns))
	switch at := x.refs.of(key, n.number); {
	case at != ns:
		for *x.next(n.namespaces.at(at)) != ns {
			at = *x.next(n.namespaces.at(at))
		}
		*x.next(n.namespaces.at(at)) = *after
	case *after != 0:
		x.refs.set(key, refOf(n.number, *after))
	default:
		x.refs.remove(key, n.number)
	}
}

// listPod indexes a namespace by its sandbox and, if Kubernetes is used, by its pod. unlistPod
// removes it from these indexes before its record changes.
func (f *Facts) listPod(n *Node, ns uint32) {
	f.touchSandbox(n.whoOf(ns))
	f.sandboxChain().enter(n, ns)
	if f.Followed && n.namespaces.at(ns).record != verdict.OwnRecord {
		f.podChain().enter(n, ns)
	}
}

func (f *Facts) unlistPod(n *Node, ns uint32) {
	f.touchSandbox(n.whoOf(ns))
	f.sandboxChain().leave(n, ns)
	if f.Followed && n.namespaces.at(ns).record != verdict.OwnRecord {
		f.podChain().leave(n, ns)
	}
}

// sandbox reports whether there is a namespace with a container ID.
func (f *Facts) sandbox(containerID string) bool {
	r, _ := f.sandboxes.first(verdict.Pack(containerID))
	return r != 0
}

// PodObject returns what the Kubernetes API says about the pod in a namespace. The caller holds
// the lock.
func (f *Facts) PodObject(ns *verdict.Namespace) *verdict.PodObject {
	if !f.Followed || ns == nil || ns.Who.Kind() != verdict.Pod {
		return nil
	}
	w := ns.Who.Workload()
	return f.Kubernetes.Pod(w.Namespace, w.Name, w.UID, ns.Node.Name)
}

// WithoutTenant returns the number of pods of a node that are on a port of a plugin with tenants, and
// whose tenant is not known, although there may be several. The caller holds the lock.
func (f *Facts) WithoutTenant(n *Node) (pods int) {
	if f.Followed && f.Kubernetes.OneTenant() {
		return 0
	}
	for i := range n.interfaces.all {
		one := n.interfaces.at(i)
		if one.attachment != verdict.Peer || one.link == 0 || n.links.at(one.link).kind != verdict.OVSPort {
			continue
		}
		at := n.record(i)
		if at.Namespace.Who.Kind() != verdict.Pod || !ipam.SeparatesTenants(at.HostInterface) {
			continue
		}
		pod := f.PodObject(at.Namespace)
		if pod == nil || !slices.ContainsFunc(pod.Memberships, func(m verdict.Membership) bool { return m.OVS }) {
			pods++
		}
	}
	return pods
}

// touchPod touches all addresses of a pod.
func (f *Facts) touchPod(key string) {
	for r := range f.pods.all(verdict.Pack(key)) {
		n := f.nodes[r.node()]
		for ns := r.index(); ns != 0; ns = n.namespaces.at(ns).alike {
			f.touchNamespace(n, ns)
		}
	}
}

func (f *Facts) touchNamespace(n *Node, ns uint32) {
	record := n.namespaces.at(ns).record
	f.changes.lacking(n, record)
	for i := range n.inside(ns) {
		f.touchClaims(n, i)
	}
	f.touchPorts(n, record)
}

// PodsChanged queues all addresses of pods for judgement. A key is the UID of a pod, or its
// namespace and name.
func (f *Facts) PodsChanged(keys []string) *Batch {
	b := newBatch()
	b.pods = true
	inPieces(f, b, keys, f.touchPod)
	f.close(b)
	return b
}

// PodsOnChanged queues all addresses of the pods on some nodes for judgement.
func (f *Facts) PodsOnChanged(on func(name string) bool) *Batch {
	b := newBatch()
	b.pods = true
	for _, n := range f.allNodes() {
		for from, more := uint32(1), true; more; {
			f.piece(b, func() {
				if more = f.byID[n.ID] == n && on(n.Rec.Name); !more {
					return
				}
				from, more = n.namespaces.some(from, func(ns uint32) {
					if n.whoOf(ns).Kind() == verdict.Pod {
						f.touchNamespace(n, ns)
					}
				})
			})
		}
	}
	f.close(b)
	return b
}

// allNodes returns the current nodes.
func (f *Facts) allNodes() []*Node {
	f.RLock()
	defer f.RUnlock()
	return slices.Collect(f.Nodes)
}

// Touch queues addresses for judgement.
func (f *Facts) Touch(addrs []index.Address) *Batch { return f.touchList(newBatch(), addrs) }

// Republish queues addresses for judgement, and has their active conflicts published even if they do
// not change.
func (f *Facts) Republish(addrs []index.Address) *Batch {
	b := newBatch()
	b.republish = true
	return f.touchList(b, addrs)
}

func (f *Facts) touchList(b *Batch, addrs []index.Address) *Batch {
	inPieces(f, b, addrs, func(a index.Address) { f.touch(a) })
	f.close(b)
	return b
}
