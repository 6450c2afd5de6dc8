package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/cilium"
)

// ciliumObjects reads Cilium's IPAM. Cilium gives each node ranges or single addresses (CiliumNode),
// and the agent on the node allocates pod addresses from them. The agent records an allocation
// in an object for each pod (CiliumEndpoint). Allocations of single addresses are also in the
// CiliumNode.
type ciliumObjects struct {
	*publisher
	nodes     mirror[ciliumNode]
	endpoints mirror[ciliumEndpoint]
	// dirty has nodes that changed, each with its last published record.
	dirty map[string]*ciliumNode
	// index finds the node of an address, as of the last publication of endpoints.
	index ciliumIndex
	// names interns strings that occur often. Only the feed of endpoints uses it.
	names interned
}

// ciliumNode is the record of a CiliumNode.
type ciliumNode struct {
	prefixes []netip.Prefix
	// single are the addresses that the node has one by one, and used are those it has
	// allocated.
	single []netip.Addr
	used   []ciliumUse
	// grows means that the operator gives the node more addresses when few are left.
	grows bool
	// own are the node's own addresses in its ranges. internal are the addresses by which
	// endpoints refer to the node.
	own, internal []netip.Addr
	odd           string // why the node cannot be read
}

// ciliumUse is an allocated address in the status of a CiliumNode.
type ciliumUse struct {
	addr  netip.Addr
	owner string
}

// ciliumEndpoint is the record of a CiliumEndpoint.
type ciliumEndpoint struct {
	addrs     []netip.Addr
	node      netip.Addr
	container string
	at        verdict.Stamp
}

// ciliumIndex finds the node that an address belongs to.
type ciliumIndex struct {
	byPrefix map[netip.Prefix]string
	lengths  map[int]bool // prefix lengths in use; negative for IPv6
	byIP     map[netip.Addr]string
}

func newCilium(c *Cluster) *publisher {
	k := &ciliumObjects{dirty: make(map[string]*ciliumNode)}
	k.nodes = mirror[ciliumNode]{
		cluster: c, records: make(map[key]*ciliumNode), read: readCiliumNode, same: sameCiliumNode,
		changed: func(at key, before, _ *ciliumNode) {
			if _, noted := k.dirty[at.name]; !noted {
				k.dirty[at.name] = before
			}
		},
		settled: k.settle,
	}
	k.endpoints = mirror[ciliumEndpoint]{
		cluster: c, records: make(map[key]*ciliumEndpoint), read: k.readEndpoint,
		same: func(a, b *ciliumEndpoint) bool {
			return a.node == b.node && a.container == b.container && slices.Equal(a.addrs, b.addrs)
		},
		changed: k.endpointChanged,
	}
	nodes := newSource(c, ciliumNodes, &k.nodes, "which addresses Cilium gives is not known")
	endpoints := newSource(c, ciliumEndpoints, &k.endpoints, "what Cilium has given is not known")
	nodes.needed, endpoints.needed = true, true
	k.publisher = newIPAM(c, cilium.Name, nodes, endpoints)
	return k.publisher
}

// readCiliumNode returns the record of a CiliumNode.
func readCiliumNode(o runtime.Object) (key, *ciliumNode) {
	node, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	at := key{name: node.Name}
	type pair struct {
		IPv4 string `json:"ipv4"`
		IPv6 string `json:"ipv6"`
	}
	var spec struct {
		Addresses []struct {
			Type string `json:"type"`
			IP   string `json:"ip"`
		} `json:"addresses"`
		Health  pair `json:"health"`
		Ingress pair `json:"ingress"`
		IPAM    struct {
			PodCIDRs []string            `json:"podCIDRs"`
			Pool     map[string]struct{} `json:"pool"`
			Pools    struct {
				Allocated []struct {
					CIDRs []string `json:"cidrs"`
				} `json:"allocated"`
			} `json:"pools"`
		} `json:"ipam"`
	}
	var status struct {
		IPAM struct {
			Used map[string]struct {
				Owner string `json:"owner"`
			} `json:"used"`
		} `json:"ipam"`
	}
	err := part(node.Spec, "spec", &spec)
	if err == nil && len(node.Status) > 0 {
		err = part(node.Status, "status", &status)
	}
	if err != nil {
		return at, &ciliumNode{odd: fmt.Sprintf("the CiliumNode %s is odd: %s", at.name, shorten(err.Error()))}
	}
	r := &ciliumNode{}
	for _, p := range spec.IPAM.Pools.Allocated {
		r.grows = true
		spec.IPAM.PodCIDRs = append(spec.IPAM.PodCIDRs, p.CIDRs...)
	}
	for _, text := range spec.IPAM.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			r.odd = fmt.Sprintf("the CiliumNode %s is odd: %q is no range of addresses", at.name, shorten(text))
			return at, r
		}
		r.prefixes = append(r.prefixes, p.Masked())
	}
	for text := range spec.IPAM.Pool {
		if a, err := netip.ParseAddr(text); err == nil {
			r.single, r.grows = append(r.single, a.Unmap()), true
		}
	}
	slices.SortFunc(r.single, netip.Addr.Compare)
	for text, use := range status.IPAM.Used {
		if a, err := netip.ParseAddr(text); err == nil {
			r.used = append(r.used, ciliumUse{a.Unmap(), use.Owner})
		}
	}
	slices.SortFunc(r.used, func(a, b ciliumUse) int { return a.addr.Compare(b.addr) })
	add := func(to *[]netip.Addr, text string) {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(*to, a.Unmap()) {
			*to = append(*to, a.Unmap())
		}
	}
	for _, a := range spec.Addresses {
		switch a.Type {
		case "CiliumInternalIP":
			add(&r.own, a.IP)
		case "InternalIP":
			add(&r.internal, a.IP)
		}
	}
	for _, text := range []string{spec.Health.IPv4, spec.Health.IPv6, spec.Ingress.IPv4, spec.Ingress.IPv6} {
		add(&r.own, text)
	}
	return at, r
}

func sameCiliumNode(a, b *ciliumNode) bool {
	return a.odd == b.odd && a.grows == b.grows && slices.Equal(a.prefixes, b.prefixes) && slices.Equal(a.single, b.single) && slices.Equal(a.used, b.used) &&
		slices.Equal(a.own, b.own) && slices.Equal(a.internal, b.internal)
}

// readEndpoint returns the record of a CiliumEndpoint. The record is nil if the endpoint has
// no address.
func (k *ciliumObjects) readEndpoint(o runtime.Object) (key, *ciliumEndpoint) {
	endpoint, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	at := key{k.names.of(endpoint.Namespace), endpoint.Name}
	var status struct {
		External struct {
			ContainerID string `json:"container-id"`
		} `json:"external-identifiers"`
		Networking struct {
			Addressing []struct {
				IPv4 string `json:"ipv4"`
				IPv6 string `json:"ipv6"`
			} `json:"addressing"`
			Node string `json:"node"`
		} `json:"networking"`
	}
	if part(endpoint.Status, "status", &status) != nil {
		return at, nil
	}
	r := &ciliumEndpoint{container: status.External.ContainerID, at: verdict.At(endpoint.CreationTimestamp.Time)}
	for _, pair := range status.Networking.Addressing {
		for _, text := range []string{pair.IPv4, pair.IPv6} {
			if a, err := netip.ParseAddr(text); err == nil {
				r.addrs = append(r.addrs, a.Unmap())
			}
		}
	}
	if len(r.addrs) == 0 {
		return at, nil
	}
	r.addrs = slices.Clip(r.addrs)
	if a, err := netip.ParseAddr(status.Networking.Node); err == nil {
		r.node = a.Unmap()
	}
	return at, r
}

// newIndex returns an index of the current nodes.
func (k *ciliumObjects) newIndex() ciliumIndex {
	x := ciliumIndex{byPrefix: make(map[netip.Prefix]string), lengths: make(map[int]bool), byIP: make(map[netip.Addr]string)}
	for at, n := range k.nodes.records {
		for _, p := range n.prefixes {
			if other, known := x.byPrefix[p]; !known || at.name < other { // if two nodes have the same range, always choose the same one
				x.byPrefix[p] = at.name
			}
			if p.Addr().Is4() {
				x.lengths[p.Bits()] = true
			} else {
				x.lengths[-p.Bits()] = true
			}
		}
		for _, a := range n.internal {
			x.byIP[a] = at.name
		}
	}
	return x
}

// of returns the node whose range contains an address. If no range does, it returns the node
// that the endpoint is on, or the empty string.
func (x *ciliumIndex) of(a, node netip.Addr) string {
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

// settle publishes the changes of nodes. The caller holds mu.
func (k *ciliumObjects) settle() {
	if len(k.dirty) == 0 {
		return
	}
	// There are many more endpoints than changed nodes. An endpoint can have moved to another
	// node only if it is in a range that changed, or on a node whose own addresses changed.
	moved := false
	var prefixes []netip.Prefix
	nodes := make(map[netip.Addr]bool)
	for _, name := range slices.Sorted(maps.Keys(k.dirty)) {
		was, is := k.dirty[name], k.nodes.records[key{name: name}]
		if was == nil || is == nil || !slices.Equal(was.prefixes, is.prefixes) || !slices.Equal(was.internal, is.internal) {
			moved = true
			for _, n := range []*ciliumNode{was, is} {
				if n == nil {
					continue
				}
				prefixes = append(prefixes, n.prefixes...)
				for _, a := range n.internal {
					nodes[a] = true
				}
			}
		}
		if is != nil {
			k.tellNode(name, was, is)
		}
	}
	if moved {
		was := k.index
		k.index = k.newIndex()
		within := newRanges(prefixes).contain
		for at, e := range k.endpoints.records {
			if nodes[e.node] || slices.ContainsFunc(e.addrs, within) {
				k.move(at, e, &was)
			}
		}
	}
	for name, was := range k.dirty {
		if k.nodes.records[key{name: name}] == nil {
			k.tellUses(name, was, &ciliumNode{})
			k.drop(name)
		}
	}
	clear(k.dirty)
}

// tellNode publishes the current state of a node's pool.
func (k *ciliumObjects) tellNode(name string, was, is *ciliumNode) {
	next := verdict.Pool{Pool: ipam.Pool{Name: name, Wiring: ipam.Wiring{Plugin: "cilium-cni", Routed: true}, Grows: is.grows, Config: "ciliumnodes " + name}}
	if is.odd != "" {
		if p := k.pools[name]; p != nil {
			next = *p.told
		}
		if was != nil {
			is.used = was.used // keep the published allocations: they may still exist
		}
		k.put(next, is.odd, true)
		return
	}
	for _, p := range is.prefixes {
		next.Ranges = append(next.Ranges, ipam.Usable(p))
	}
	for _, a := range is.single {
		next.Ranges = append(next.Ranges, ipam.Range{First: a, Last: a})
	}
	next.Ranges = ipam.Union(next.Ranges)
	for _, a := range is.own {
		if slices.ContainsFunc(next.Ranges, func(r ipam.Range) bool { return r.Contains(a) }) {
			next.Gateways = append(next.Gateways, a)
		}
	}
	k.put(next, "", false)
	if was == nil {
		was = &ciliumNode{}
	}
	k.tellUses(name, was, is)
}

// tellUses publishes the differences between the allocations in two records of a node.
func (k *ciliumObjects) tellUses(name string, before, after *ciliumNode) {
	if before == nil {
		return
	}
	was, is := before.used, after.used
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].addr.Less(is[0].addr):
			k.allocate(name, was[0].allocation(name), true)
			was = was[1:]
		case len(was) == 0 || is[0].addr.Less(was[0].addr):
			k.use()
			k.allocate(name, is[0].allocation(name), false)
			is = is[1:]
		default:
			if was[0] != is[0] {
				k.allocate(name, is[0].allocation(name), false)
			}
			was, is = was[1:], is[1:]
		}
	}
}

// allocation returns the allocation to publish for an address in a node's status.
func (u *ciliumUse) allocation(node string) verdict.Allocation {
	al := verdict.Allocation{Allocation: ipam.Allocation{Address: u.addr, Node: node, Location: "ciliumnodes " + node + " /status/ipam/used/" + u.addr.String()}}
	owner, _ := strings.CutSuffix(u.owner, " [restored]") // the Cilium agent restored it after a restart
	owner, iface, _ := strings.Cut(owner, ":")
	if namespace, pod, ok := strings.Cut(owner, "/"); ok {
		al.Namespace, al.Pod, al.Interface = namespace, pod, iface
	} else {
		al.Purpose = "Cilium's " + cmp.Or(plain(owner), "own")
	}
	return al
}

// endpointChanged publishes the changes of an endpoint. The caller holds mu.
func (k *ciliumObjects) endpointChanged(at key, before, after *ciliumEndpoint) {
	k.use()
	if after != nil {
		for i, a := range after.addrs {
			if before != nil && before.node == after.node && before.container == after.container && slices.Contains(before.addrs, a) {
				continue
			}
			pool := k.index.of(a, after.node)
			k.allocate(pool, k.allocation(at, after, i, pool, &k.index), false)
		}
	}
	if before == nil {
		return
	}
	for i, a := range before.addrs {
		pool := k.index.of(a, before.node)
		if after == nil || !slices.Contains(after.addrs, a) || k.index.of(a, after.node) != pool {
			k.allocate(pool, k.allocation(at, before, i, pool, &k.index), true)
		}
	}
}

// move publishes an endpoint again if its addresses belong to other pools than before.
func (k *ciliumObjects) move(at key, e *ciliumEndpoint, was *ciliumIndex) {
	for i, a := range e.addrs {
		before, after := was.of(a, e.node), k.index.of(a, e.node)
		if before == after && was.byIP[e.node] == k.index.byIP[e.node] {
			continue
		}
		k.allocate(after, k.allocation(at, e, i, after, &k.index), false)
		if before != after {
			k.allocate(before, k.allocation(at, e, i, before, was), true)
		}
	}
}

// allocation returns the allocation to publish for the address of an endpoint.
func (k *ciliumObjects) allocation(at key, e *ciliumEndpoint, i int, pool string, x *ciliumIndex) verdict.Allocation {
	return verdict.Allocation{
		Allocation: ipam.Allocation{
			Address: e.addrs[i], Node: cmp.Or(x.byIP[e.node], pool), Namespace: at.namespace, Pod: at.name, ContainerID: e.container,
			Location: "ciliumendpoints " + at.namespace + "/" + at.name + " /status/networking/addressing",
		}, AllocatedAt: e.at,
	}
}
