package cilium

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// The custom resources of Cilium.
var (
	Nodes     = ipam.Kind{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes", Name: "CiliumNode"}
	Endpoints = ipam.Kind{Group: "cilium.io", Version: "v2", Resource: "ciliumendpoints", Name: "CiliumEndpoint"}
)

// node is the record of a CiliumNode.
type node struct {
	prefixes []netip.Prefix
	// single are the addresses that the node has one by one, and used are those it has allocated.
	single []netip.Addr
	used   []use
	// grows means that the operator gives the node more addresses when few are left.
	grows bool
	// own are the node's own addresses in its ranges. internal are the addresses by which
	// endpoints refer to the node.
	own, internal []netip.Addr
	problem       string // why the node cannot be read
}

// use is an allocated address in the status of a CiliumNode.
type use struct {
	addr  netip.Addr
	owner string
}

// endpoint is the record of a CiliumEndpoint.
type endpoint struct {
	addrs     []netip.Addr
	node      netip.Addr
	container string
	at        int64 // when the object was created, in nanoseconds since the Unix epoch
}

// readNode returns the record of a CiliumNode.
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
	err := ipam.Part(o.Spec, "spec", &spec)
	if err == nil && len(o.Status) > 0 {
		err = ipam.Part(o.Status, "status", &status)
	}
	if err != nil {
		return at, &node{problem: fmt.Sprintf("CiliumNode %s is invalid: %s", at.Name, ipam.Shorten(err.Error()))}
	}
	r := &node{}
	for _, p := range spec.IPAM.Pools.Allocated {
		r.grows = true
		spec.IPAM.PodCIDRs = append(spec.IPAM.PodCIDRs, p.CIDRs...)
	}
	for _, text := range spec.IPAM.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			r.problem = fmt.Sprintf("CiliumNode %s is invalid: %q is not a CIDR", at.Name, ipam.Shorten(text))
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
	for text, u := range status.IPAM.Used {
		if a, err := netip.ParseAddr(text); err == nil {
			r.used = append(r.used, use{a.Unmap(), u.Owner})
		}
	}
	slices.SortFunc(r.used, func(a, b use) int { return a.addr.Compare(b.addr) })
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

// readEndpoint returns the record of a CiliumEndpoint. The record is nil if the endpoint has no
// address. names interns strings that occur often.
func readEndpoint(o *ipam.Object, names *ipam.Interned) (ipam.Key, *endpoint) {
	at := ipam.Key{Namespace: names.Of(o.Namespace), Name: o.Name}
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
	if ipam.Part(o.Status, "status", &status) != nil {
		return at, nil
	}
	r := &endpoint{container: status.External.ContainerID}
	if !o.Created.IsZero() {
		r.at = o.Created.UnixNano()
	}
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
