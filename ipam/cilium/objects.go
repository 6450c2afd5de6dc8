package cilium

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// older is the version of pools in former releases of Cilium.
const older = "v2alpha1"

// The custom resources of Cilium.
var (
	Nodes     = ipam.Kind{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes", Name: "CiliumNode"}
	Endpoints = ipam.Kind{Group: "cilium.io", Version: "v2", Resource: "ciliumendpoints", Name: "CiliumEndpoint"}
	Pools     = ipam.Kind{Group: "cilium.io", Version: "v2", Resource: "ciliumpodippools", Name: "CiliumPodIPPool"}
	Balancers = ipam.Kind{Group: "cilium.io", Version: "v2", Resource: "ciliumloadbalancerippools", Name: "CiliumLoadBalancerIPPool"}
	Slices    = ipam.Kind{Group: "cilium.io", Version: older, Resource: "ciliumendpointslices", Name: "CiliumEndpointSlice"}
)

// node is the record of a CiliumNode.
type node struct {
	prefixes []netip.Prefix
	ranges   []ipam.Range // what the node allocates of the prefixes
	// single are the addresses that the node has one by one, and used are those it has allocated.
	single []netip.Addr
	used   []use
	// grows means that the operator gives the node more addresses when few are left.
	grows bool
	// own are the node's own addresses in its ranges. internal are the addresses by which
	// endpoints refer to the node.
	own, internal []netip.Addr
	problem       string // why the node cannot be read
	// invalid describes an address that cannot be read. The others are known.
	invalid string
}

// use is an allocated address in the status of a CiliumNode.
type use struct {
	addr  netip.Addr
	owner string
}

// endpoint is the record of a CiliumEndpoint, or of its copy in a CiliumEndpointSlice.
type endpoint struct {
	addrs     []netip.Addr
	node      netip.Addr
	container string // empty in copies
	at        int64  // when the object was created, in nanoseconds since the Unix epoch; 0 in copies
	identity  uint32 // 0 if it is not that of a pod
}

// podIdentity returns a security identity if it can be that of a pod, and 0 otherwise: those below 100 are reserved, such as
// for hosts, health checks and pods without labels (ReservedIdentity in pkg/identity).
func podIdentity(id int64) uint32 {
	if id < 100 || id > math.MaxUint32 {
		return 0
	}
	return uint32(id)
}

// slice is the record of a CiliumEndpointSlice: its endpoints by pod.
type slice map[ipam.Key]*endpoint

// networking is how both objects describe the addresses of an endpoint.
type networking struct {
	Addressing []struct {
		IPv4 string `json:"ipv4"`
		IPv6 string `json:"ipv6"`
	} `json:"addressing"`
	Node string `json:"node"`
}

// endpoint returns a record with the addresses; nil if there are none. invalid describes a part that is
// not an address; empty if there is none.
func (n *networking) endpoint() (r *endpoint, invalid string) {
	r = &endpoint{}
	parse := func(text string, into func(netip.Addr)) {
		if a, err := netip.ParseAddr(text); err == nil {
			into(a.Unmap())
		} else if text != "" {
			invalid = fmt.Sprintf("%q in its networking is not an address", ipam.Shorten(text))
		}
	}
	for _, pair := range n.Addressing {
		for _, text := range []string{pair.IPv4, pair.IPv6} {
			parse(text, func(a netip.Addr) { r.addrs = append(r.addrs, a) })
		}
	}
	parse(n.Node, func(a netip.Addr) { r.node = a })
	if len(r.addrs) == 0 {
		return nil, invalid
	}
	r.addrs = slices.Clip(r.addrs)
	return r, invalid
}

func readNode(o *ipam.Object) (ipam.Key, *node) {
	at := o.Key()
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
					First bool     `json:"allowFirstIP"`
					Last  bool     `json:"allowLastIP"`
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
	if err := o.Decode(&spec, &status); err != nil {
		return at, &node{problem: o.Invalid(Nodes.Name, err.Error())}
	}
	r := &node{}
	add := func(texts []string, first, last, single bool) {
		for _, text := range texts {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				r.problem = fmt.Sprintf("CiliumNode %s is invalid: %q is not a CIDR", at.Name, ipam.Shorten(text))
				return
			}
			if single && p.IsSingleIP() {
				r.single = append(r.single, p.Addr())
				continue
			}
			usable, all := ipam.Usable(p), ipam.RangeOf(p)
			if first {
				usable.First = all.First
			}
			if last {
				usable.Last = all.Last
			}
			r.prefixes, r.ranges = append(r.prefixes, p.Masked()), append(r.ranges, usable)
		}
	}
	add(spec.IPAM.PodCIDRs, false, false, false)
	// Since 1.20, single addresses of a cloud's interfaces are here, too (eniPoolAccessor in pkg/ipam/eni.go).
	for _, p := range spec.IPAM.Pools.Allocated {
		r.grows = true
		add(p.CIDRs, p.First, p.Last, true)
	}
	if r.problem != "" {
		return at, r
	}
	unknown := func(text string) {
		r.invalid = fmt.Sprintf("CiliumNode %s is invalid: %q is not an address", at.Name, ipam.Shorten(text))
	}
	for text := range spec.IPAM.Pool {
		if a, err := netip.ParseAddr(text); err == nil {
			r.single, r.grows = append(r.single, a.Unmap()), true
		} else {
			unknown(text)
		}
	}
	slices.SortFunc(r.single, netip.Addr.Compare)
	for text, u := range status.IPAM.Used {
		if a, err := netip.ParseAddr(text); err == nil {
			r.used = append(r.used, use{a.Unmap(), u.Owner})
		} else {
			unknown(text)
		}
	}
	slices.SortFunc(r.used, func(a, b use) int { return a.addr.Compare(b.addr) })
	own := func(to *[]netip.Addr, text string) {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(*to, a.Unmap()) {
			*to = append(*to, a.Unmap())
		}
	}
	for _, a := range spec.Addresses {
		switch a.Type {
		case "CiliumInternalIP":
			own(&r.own, a.IP)
		case "InternalIP":
			own(&r.internal, a.IP)
		}
	}
	for _, text := range []string{spec.Health.IPv4, spec.Health.IPv6, spec.Ingress.IPv4, spec.Ingress.IPv6} {
		own(&r.own, text)
	}
	return at, r
}

// readEndpoint returns the record of a CiliumEndpoint. The record is nil if the endpoint has no
// address yet.
func readEndpoint(o *ipam.Object) (at ipam.Key, r *endpoint, problem string) {
	at = ipam.Key{Namespace: ipam.Interned(o.Namespace), Name: o.Name}
	var status struct {
		External struct {
			ContainerID string `json:"container-id"`
		} `json:"external-identifiers"`
		Identity struct {
			ID int64 `json:"id"`
		} `json:"identity"`
		Networking networking `json:"networking"`
	}
	if err := o.Decode(nil, &status); err != nil {
		return at, nil, o.Invalid(Endpoints.Name, err.Error())
	}
	r, invalid := status.Networking.endpoint()
	if invalid != "" {
		problem = o.Invalid(Endpoints.Name, invalid)
	}
	if r == nil {
		return at, nil, problem
	}
	r.container, r.identity = status.External.ContainerID, podIdentity(status.Identity.ID)
	if !o.Created.IsZero() {
		r.at = o.Created.UnixNano()
	}
	return at, r, problem
}

// pool is the record of a CiliumPodIPPool.
type pool struct {
	ranges  []ipam.Range
	problem string // why the pool cannot be read
}

// poolCIDR is a CIDR of a CiliumPodIPPool: a string, or an object in version v2.
type poolCIDR string

// UnmarshalJSON implements json.Unmarshaler.
func (c *poolCIDR) UnmarshalJSON(raw []byte) error {
	var object struct {
		CIDR *string `json:"cidr"`
	}
	if object.CIDR = (*string)(c); len(raw) > 0 && raw[0] == '"' {
		return json.Unmarshal(raw, object.CIDR)
	}
	return json.Unmarshal(raw, &object)
}

func readPool(o *ipam.Object) (ipam.Key, *pool) {
	type family struct {
		CIDRs []poolCIDR `json:"cidrs"`
	}
	var spec struct {
		IPv4 family `json:"ipv4"`
		IPv6 family `json:"ipv6"`
	}
	r := &pool{}
	err := ipam.Part(o.Spec, "spec", &spec)
	for _, text := range slices.Concat(spec.IPv4.CIDRs, spec.IPv6.CIDRs) {
		p, invalid := netip.ParsePrefix(string(text))
		if err == nil && invalid != nil {
			err = fmt.Errorf("%q is not a CIDR", string(text))
		}
		if err == nil {
			r.ranges = append(r.ranges, ipam.RangeOf(p.Masked()))
		}
	}
	if err != nil {
		return o.Key(), &pool{problem: o.Invalid(Pools.Name, err.Error())}
	}
	r.ranges = ipam.Union(r.ranges)
	return o.Key(), r
}

// readBalancer returns the ranges of a CiliumLoadBalancerIPPool. No addresses are allocated from one that is disabled, nor the
// first and the last one of a CIDR if they are not allowed. Cilium before 1.15 has cidrs in place of blocks.
func readBalancer(o *ipam.Object) (ranges []ipam.Range, err error) {
	var spec struct {
		Disabled  bool   `json:"disabled"`
		FirstLast string `json:"allowFirstLastIPs"`
		Blocks    []struct {
			CIDR  string `json:"cidr"`
			Start string `json:"start"`
			Stop  string `json:"stop"`
		} `json:"blocks"`
		CIDRs []struct {
			CIDR string `json:"cidr"`
		} `json:"cidrs"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil || spec.Disabled {
		return nil, err
	}
	texts := make([]string, 0, len(spec.Blocks)+len(spec.CIDRs))
	for _, b := range spec.Blocks {
		texts = append(texts, cmp.Or(b.CIDR, b.Start+"-"+cmp.Or(b.Stop, b.Start)))
	}
	for _, c := range spec.CIDRs {
		texts = append(texts, c.CIDR)
	}
	for _, text := range texts {
		r, err := ipam.ParseRange(text, "-")
		if err != nil {
			return nil, err
		}
		if p, err := netip.ParsePrefix(text); err == nil && spec.FirstLast == "No" {
			r = ipam.Usable(p.Masked())
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// readSlice returns the record of a CiliumEndpointSlice. Its fields are not in a spec.
func readSlice(o *ipam.Object) (at ipam.Key, r *slice, problem string) {
	var endpoints []struct {
		Name       string     `json:"name"`
		Identity   int64      `json:"id"`
		Networking networking `json:"networking"`
	}
	if len(o.Endpoints) == 0 {
		return o.Key(), nil, ""
	}
	if err := ipam.Part(o.Endpoints, "endpoints", &endpoints); err != nil {
		return o.Key(), nil, o.Invalid(Slices.Name, err.Error())
	}
	all := make(slice, len(endpoints))
	namespace := ipam.Interned(o.EndpointsNamespace)
	for i := range endpoints {
		e, invalid := endpoints[i].Networking.endpoint()
		if invalid != "" {
			problem = o.Invalid(Slices.Name, invalid)
		}
		if e != nil {
			e.identity = podIdentity(endpoints[i].Identity)
			all[ipam.Key{Namespace: namespace, Name: endpoints[i].Name}] = e
		}
	}
	return o.Key(), &all, problem
}
