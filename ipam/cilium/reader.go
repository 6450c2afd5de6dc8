package cilium

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// reader reads the objects of Cilium. Cilium gives each node ranges or single addresses
// (CiliumNode), and the agent on the node allocates pod addresses from them. The agent records an
// allocation in an object for each pod (CiliumEndpoint). Allocations of single addresses are also in
// the CiliumNode.
//
// In large clusters, Cilium's operator copies the endpoints to objects for up to 100 of them
// (CiliumEndpointSlice), seconds later. It can also make these from pods, and then there need not be
// a CiliumEndpoint for each pod (--disable-endpoint-crd). So a copy counts only for a pod without a
// CiliumEndpoint.
type reader struct {
	ipam.Publisher
	nodes     ipam.Mirror[*ipam.Object, node]
	endpoints ipam.Mirror[*ipam.Object, endpoint]
	slices    ipam.Mirror[*ipam.Object, slice]
	pools     ipam.Mirror[*ipam.Object, pool]
	// copies has the names of the CiliumEndpointSlices that each pod is in.
	copies map[ipam.Key][]string
	// dirty has nodes that changed, each with its last published record.
	dirty map[string]*node
	// index finds the node of an address, as of the last publication of endpoints.
	index index
}

// index finds the node that an address belongs to.
type index struct {
	byPrefix map[netip.Prefix]string
	lengths  map[int]bool // prefix lengths in use; negative for IPv6
	byIP     map[netip.Addr]string
}

func newReader(p ipam.Publisher) *reader {
	r := &reader{Publisher: p, dirty: make(map[string]*node), copies: make(map[ipam.Key][]string)}
	r.nodes = ipam.Mirror[*ipam.Object, node]{
		Read: readNode,
		Changed: func(at ipam.Key, before, _ *node) {
			if _, noted := r.dirty[at.Name]; !noted {
				r.dirty[at.Name] = before
			}
		},
		Settled: r.settle,
	}
	r.endpoints = ipam.Mirror[*ipam.Object, endpoint]{
		Parse: readEndpoint, Unread: &ipam.Unread{Publisher: p, Kind: Endpoints, Allocates: true}, Changed: r.endpointChanged,
	}
	r.slices = ipam.Mirror[*ipam.Object, slice]{
		Parse: readSlice, Unread: &ipam.Unread{Publisher: p, Kind: Slices, Allocates: true}, Changed: r.sliceChanged,
	}
	r.pools = ipam.Mirror[*ipam.Object, pool]{Read: readPool, Changed: r.poolChanged}
	return r
}

func newObjects(p ipam.Publisher) *ipam.Objects {
	r := newReader(p)
	return &ipam.Objects{
		Resources: []*ipam.Resource{
			{Kind: Nodes, Role: ipam.Needed, Store: &r.nodes, Lost: "the address pools of Cilium are unknown"},
			{Kind: Endpoints, Role: ipam.Used, Store: &r.endpoints, Lost: "the allocations of Cilium are unknown"},
			{Kind: Slices, Role: ipam.Used, Store: &r.slices, Lost: "the allocations of Cilium that have no CiliumEndpoint are unknown"},
			{Kind: Pools, Older: older, Role: ipam.Extra, Store: &r.pools, Lost: "pools of Cilium that overlap are not noticed"},
			{
				Kind: Balancers, Older: older, Role: ipam.Extra, Lost: "addresses in use that Cilium may give to Services are not detected",
				Store: ipam.NewServiceRanges(p, Balancers, ipam.Ingress, readBalancer, nil),
			},
		},
	}
}

// poolChanged publishes a CiliumPodIPPool. No address is allocated from it: the pools of the nodes have
// the parts of its ranges that nodes have. Its name differs from the names of nodes.
func (r *reader) poolChanged(at ipam.Key, _, after *pool) {
	next := ipam.Pool{Name: Pools.Name + " " + at.Name, Config: Pools.Resource + " " + at.Name}
	if after == nil {
		r.Drop(next.Name)
		return
	}
	next.Divided = after.ranges
	ipam.Publish(r, next, after.problem, after.problem != "")
}

func (r *reader) newIndex() index {
	x := index{byPrefix: make(map[netip.Prefix]string), lengths: make(map[int]bool), byIP: make(map[netip.Addr]string)}
	for at, n := range r.nodes.Records {
		for _, p := range n.prefixes {
			if other, known := x.byPrefix[p]; !known || at.Name < other { // if two nodes have the same range, always choose the same one
				x.byPrefix[p] = at.Name
			}
			if p.Addr().Is4() {
				x.lengths[p.Bits()] = true
			} else {
				x.lengths[-p.Bits()] = true
			}
		}
		for _, a := range n.internal {
			x.byIP[a] = at.Name
		}
	}
	return x
}

// of returns the node whose range contains an address. If no range does, it returns the node that
// the endpoint is on, or the empty string.
func (x *index) of(a, node netip.Addr) string {
	name, longest := "", -1
	for length := range x.lengths {
		bits := length
		if a.Is6() {
			bits = -length
		}
		if bits <= longest || bits < 0 || bits > a.BitLen() {
			continue
		}
		if p, err := a.Prefix(bits); err == nil && x.byPrefix[p] != "" {
			name, longest = x.byPrefix[p], bits
		}
	}
	return cmp.Or(name, x.byIP[node])
}

func (r *reader) settle() {
	if len(r.dirty) == 0 {
		return
	}
	// There are many more endpoints than changed nodes. An endpoint can have moved to another node
	// only if it is in a range that changed, or on a node whose own addresses changed.
	moved := false
	var ranges []ipam.Range
	nodes := make(map[netip.Addr]bool)
	for _, name := range slices.Sorted(maps.Keys(r.dirty)) {
		was, is := r.dirty[name], r.nodes.Records[ipam.Key{Name: name}]
		if was == nil || is == nil || !slices.Equal(was.prefixes, is.prefixes) || !slices.Equal(was.internal, is.internal) {
			moved = true
			for _, n := range []*node{was, is} {
				if n == nil {
					continue
				}
				for _, p := range n.prefixes {
					ranges = append(ranges, ipam.RangeOf(p))
				}
				for _, a := range n.internal {
					nodes[a] = true
				}
			}
		}
		if is != nil {
			r.publishNode(name, was, is)
		}
	}
	if moved {
		was := r.index
		r.index = r.newIndex()
		ranges = ipam.Union(ranges)
		within := func(a netip.Addr) bool { return ipam.Contain(ranges, a) }
		concerned := func(e *endpoint) bool { return nodes[e.node] || slices.ContainsFunc(e.addrs, within) }
		for at, e := range r.endpoints.Records {
			if concerned(e) {
				ipam.Move(r, e.records(ofEndpoint(at), &was), e.records(ofEndpoint(at), &r.index))
			}
		}
		for at, names := range r.copies {
			if r.endpoints.Records[at] != nil {
				continue
			}
			for _, name := range names {
				if e := r.copyIn(name, at); concerned(e) {
					ipam.Move(r, e.records(ofCopy(name, at), &was), e.records(ofCopy(name, at), &r.index))
				}
			}
		}
	}
	for name, was := range r.dirty {
		if r.nodes.Records[ipam.Key{Name: name}] == nil {
			r.publishUses(name, was, &node{})
			r.Drop(name)
		}
	}
	clear(r.dirty)
}

// publishNode publishes the current state of a node's pool.
func (r *reader) publishNode(name string, was, is *node) {
	next := ipam.Pool{Name: name, Wiring: ipam.Wiring{Plugin: "cilium-cni", Routed: true}, Grows: is.grows, Single: len(is.single) > 0 && len(is.prefixes) == 0, Config: "ciliumnodes " + name}
	if is.problem != "" {
		if was != nil {
			is.used = was.used // keep the published allocations: they may still exist
		}
		ipam.Publish(r, next, is.problem, true)
		return
	}
	next.Ranges = slices.Clone(is.ranges)
	for _, a := range is.single {
		next.Ranges = append(next.Ranges, ipam.Range{First: a, Last: a})
	}
	next.Ranges = ipam.Union(next.Ranges)
	for _, a := range is.own {
		if slices.ContainsFunc(next.Ranges, func(r ipam.Range) bool { return r.Contains(a) }) {
			next.Gateways = append(next.Gateways, a)
		}
	}
	r.Put(next, is.invalid, false)
	was = cmp.Or(was, &node{})
	r.publishUses(name, was, is)
}

// publishUses publishes the differences between the allocations in two records of a node.
func (r *reader) publishUses(name string, before, after *node) {
	if before == nil {
		return
	}
	ipam.Differences(before.used, after.used, func(a, b *use) int { return a.addr.Compare(b.addr) }, func(u *use) {
		r.Use()
		r.Allocate(name, u.allocation(name), 0)
	}, func(u *use) { r.Release(name, u.allocation(name)) })
}

func (u *use) allocation(node string) ipam.Allocation {
	al := ipam.Allocation{Address: u.addr, Node: node, Location: "ciliumnodes " + node + " /status/ipam/used/" + u.addr.String()}
	owner, _ := strings.CutSuffix(u.owner, " [restored]") // the Cilium agent restored it after a restart
	owner, iface, _ := strings.Cut(owner, ":")
	if namespace, pod, ok := strings.Cut(owner, "/"); ok {
		al.Namespace, al.Pod, al.Interface = namespace, pod, iface
	} else {
		al.Purpose = "Cilium's " + cmp.Or(ipam.Plain(owner), "own")
	}
	return al
}

// source is where an endpoint is recorded: its own object, or a CiliumEndpointSlice.
type source struct {
	pod      ipam.Key
	location string
}

func ofEndpoint(pod ipam.Key) source {
	return source{pod, Endpoints.Resource + " " + pod.Namespace + "/" + pod.Name + " /status/networking/addressing"}
}

func ofCopy(name string, pod ipam.Key) source {
	return source{pod, Slices.Resource + " " + name + " /endpoints of " + pod.Namespace + "/" + pod.Name}
}

// copyIn returns the endpoint of a pod in a CiliumEndpointSlice.
func (r *reader) copyIn(name string, pod ipam.Key) *endpoint {
	return (*r.slices.Records[ipam.Key{Name: name}])[pod]
}

func (r *reader) endpointChanged(at ipam.Key, before, after *endpoint) {
	r.Use()
	if after == nil {
		for _, name := range r.copies[at] {
			r.update(ofCopy(name, at), nil, r.copyIn(name, at))
		}
	}
	r.update(ofEndpoint(at), before, after)
	if before == nil {
		for _, name := range r.copies[at] {
			r.update(ofCopy(name, at), r.copyIn(name, at), nil)
		}
	}
}

// sliceChanged publishes the changes of the endpoints in a CiliumEndpointSlice, except of those with
// an object of their own.
func (r *reader) sliceChanged(at ipam.Key, before, after *slice) {
	var had, has slice
	if before != nil {
		had = *before
	}
	if after != nil {
		has = *after
	}
	if len(had)+len(has) > 0 {
		r.Use()
	}
	changed := func(pod ipam.Key, was, is *endpoint) {
		if r.endpoints.Records[pod] == nil {
			r.update(ofCopy(at.Name, pod), was, is)
		}
	}
	for pod, e := range has {
		was := had[pod]
		if was == nil {
			r.copies[pod] = append(r.copies[pod], at.Name)
		}
		changed(pod, was, e)
	}
	for pod, was := range had {
		if has[pod] != nil {
			continue
		}
		rest := slices.DeleteFunc(r.copies[pod], func(name string) bool { return name == at.Name })
		if r.copies[pod] = rest; len(rest) == 0 {
			delete(r.copies, pod)
		}
		changed(pod, was, nil)
	}
}

// update publishes the differences between two states of an endpoint. A state is nil if there was
// none.
func (r *reader) update(at source, before, after *endpoint) {
	ipam.Move(r, before.records(at, &r.index), after.records(at, &r.index))
}

// records returns the allocations of an endpoint at a source; nil for no endpoint.
func (e *endpoint) records(at source, x *index) (all []ipam.Record) {
	if e == nil {
		return nil
	}
	for _, a := range e.addrs {
		pool := x.of(a, e.node)
		all = append(all, ipam.Record{Pool: pool, At: e.at, Allocation: ipam.Allocation{
			Address: a, Node: cmp.Or(x.byIP[e.node], pool), Namespace: at.pod.Namespace, Pod: at.pod.Name, ContainerID: e.container, Identity: e.identity, Location: at.location,
		}})
	}
	return all
}
