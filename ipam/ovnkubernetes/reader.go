package ovnkubernetes

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// Claims are the IPAMClaims.
var Claims = ipam.Kind{Group: "k8s.cni.cncf.io", Version: "v1alpha1", Resource: "ipamclaims", Name: "IPAMClaim"}

// claim is the record of an IPAMClaim.
type claim struct {
	network, iface, pod string
	addrs               []netip.Addr
	at                  int64 // when the object was created, in nanoseconds since the Unix epoch
}

// readClaim returns the record of an IPAMClaim. It is nil if the claim has no address. names interns
// strings that occur often.
func readClaim(o *ipam.Object, names *ipam.Interned) (ipam.Key, *claim) {
	at := ipam.Key{Namespace: names.Of(o.Namespace), Name: o.Name}
	var spec struct {
		Network   string `json:"network"`
		Interface string `json:"interface"`
	}
	var status struct {
		IPs      []string `json:"ips"`
		OwnerPod string   `json:"ownerPod"`
	}
	if ipam.Part(o.Spec, "spec", &spec) != nil || ipam.Part(o.Status, "status", &status) != nil {
		return at, nil
	}
	c := &claim{network: names.Of(spec.Network), iface: names.Of(spec.Interface), pod: status.OwnerPod}
	if !o.Created.IsZero() {
		c.at = o.Created.UnixNano()
	}
	for _, text := range status.IPs {
		if p, err := netip.ParsePrefix(text); err == nil {
			c.addrs = append(c.addrs, p.Addr().Unmap())
		}
	}
	if len(c.addrs) == 0 {
		return at, nil
	}
	c.addrs = slices.Clip(c.addrs)
	return at, c
}

// reader reads IPAMClaims. The claims of one network are a pool. Its ranges are not known, because
// most of its addresses are allocated without a claim: only addresses that are claimed twice are
// found.
type reader struct {
	ipam.Publisher
	claims ipam.Mirror[*ipam.Object, claim]
	// networks counts the claims of each network.
	networks map[string]int
	// names interns strings that occur often. Only the feed uses it.
	names ipam.Interned
}

func newObjects(p ipam.Publisher) *ipam.Objects {
	r := &reader{Publisher: p, networks: make(map[string]int)}
	r.claims = ipam.Mirror[*ipam.Object, claim]{
		Read:    func(o *ipam.Object) (ipam.Key, *claim) { return readClaim(o, &r.names) },
		Changed: r.changed,
	}
	return &ipam.Objects{Resources: []*ipam.Resource{{Kind: Claims, Role: ipam.Needed, Store: &r.claims, Lost: "the addresses of persistent IPAMClaims are unknown"}}}
}

// changed publishes the change of a claim.
func (r *reader) changed(at ipam.Key, before, after *claim) {
	r.Use()
	if after != nil {
		if r.networks[after.network]++; r.networks[after.network] == 1 {
			r.Put(ipam.Pool{Name: after.network, Served: ipam.Served{Realm: after.network}}, "", false)
		}
		for _, a := range after.addrs {
			r.Allocate(after.network, after.allocation(at, a), after.at)
		}
	}
	if before == nil {
		return
	}
	for _, a := range before.addrs {
		if after == nil || after.network != before.network || !slices.Contains(after.addrs, a) {
			r.Release(before.network, before.allocation(at, a))
		}
	}
	if r.networks[before.network]--; r.networks[before.network] == 0 {
		delete(r.networks, before.network)
		r.Drop(before.network)
	}
}

// allocation returns the allocation to publish for an address of a claim. A claim without a pod is
// named after itself.
func (c *claim) allocation(at ipam.Key, a netip.Addr) ipam.Allocation {
	pod := c.pod
	if pod == "" {
		pod = at.Name
	}
	return ipam.Allocation{Address: a, Namespace: at.Namespace, Pod: pod, Interface: c.iface, Kept: true, Location: "ipamclaims " + at.Namespace + "/" + at.Name}
}
