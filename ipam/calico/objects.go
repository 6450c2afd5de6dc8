package calico

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// The custom resources of Calico.
var (
	Pools        = kind("ippools", "IPPool")
	Blocks       = kind("ipamblocks", "IPAMBlock")
	Affinities   = kind("blockaffinities", "BlockAffinity")
	Advertised   = kind("bgpconfigurations", "BGPConfiguration")
	Reservations = kind("ipreservations", "IPReservation")
)

func kind(resource, name string) ipam.Kind {
	return ipam.Kind{Group: "crd.projectcalico.org", Version: "v1", Resource: resource, Name: name}
}

// pool is the record of an IPPool.
type pool struct {
	prefix   netip.Prefix
	disabled bool
	// asked means that only pods that request the pool by name get addresses from it.
	asked bool
	// services means that only Services get addresses from it.
	services bool
	problem  string // why the pool cannot be read
}

func readPool(o *ipam.Object) (ipam.Key, *pool) {
	var spec struct {
		CIDR     string   `json:"cidr"`
		Disabled bool     `json:"disabled"`
		Nodes    string   `json:"nodeSelector"`
		Mode     string   `json:"assignmentMode"`
		Uses     []string `json:"allowedUses"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		return o.Key(), &pool{problem: fmt.Sprintf("IPPool %s of Calico is invalid: %s", o.Name, ipam.Shorten(err.Error()))}
	}
	prefix, err := netip.ParsePrefix(spec.CIDR)
	if err != nil {
		return o.Key(), &pool{problem: fmt.Sprintf("IPPool %s of Calico is invalid: its cidr %q is not a CIDR", o.Name, ipam.Shorten(spec.CIDR))}
	}
	asked := strings.ReplaceAll(spec.Nodes, " ", "") == "!all()" || spec.Mode == "Manual"
	return o.Key(), &pool{prefix: prefix.Masked(), disabled: spec.Disabled, asked: asked, services: slices.Equal(spec.Uses, []string{"LoadBalancer"})}
}

// readAdvertised returns the ranges of the load balancers' addresses that a BGPConfiguration has nodes advertise.
func readAdvertised(o *ipam.Object) ([]ipam.Range, error) {
	var spec struct {
		Ranges []struct {
			CIDR string `json:"cidr"`
		} `json:"serviceLoadBalancerIPs"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		return nil, err
	}
	var texts []string
	for _, r := range spec.Ranges {
		texts = append(texts, r.CIDR)
	}
	return ipam.CIDRs(texts...)
}

// reservation is the record of an IPReservation.
type reservation struct {
	prefixes []netip.Prefix
}

// invalid returns the problem of an object that cannot be read.
func invalid(k ipam.Kind, o *ipam.Object, what string) string {
	return fmt.Sprintf("%s %s of Calico is invalid: %s", k.Name, o.Name, ipam.Shorten(what))
}

// readReservation returns the record of an IPReservation: its ranges and addresses. Calico cannot read others
// either.
func readReservation(o *ipam.Object) (at ipam.Key, r *reservation, problem string) {
	var spec struct {
		CIDRs []string `json:"reservedCIDRs"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		return o.Key(), &reservation{}, invalid(Reservations, o, err.Error())
	}
	r = &reservation{}
	for _, text := range spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			r.prefixes = append(r.prefixes, p.Masked())
		} else if a, err := netip.ParseAddr(text); err == nil {
			r.prefixes = append(r.prefixes, netip.PrefixFrom(a, a.BitLen()))
		} else if text != "" {
			problem = invalid(Reservations, o, fmt.Sprintf("%q is neither a CIDR nor an address", text))
		}
	}
	return o.Key(), r, problem
}

// block is the record of an IPAMBlock.
type block struct {
	prefix      netip.Prefix
	allocations []allocation // by ordinal
	// problem describes an inconsistency; bad means that the block cannot be read because of it.
	problem string
	bad     bool
}

// allocation is an allocated address of a block and its owner.
type allocation struct {
	ordinal                                  int32
	at                                       int64 // in nanoseconds since the Unix epoch; 0 if it is not known
	node, namespace, pod, container, purpose string
}

// attribute describes the owner of an address.
type attribute struct {
	Handle    string            `json:"handle_id"`
	Owner     map[string]string `json:"secondary"`
	Alternate map[string]string `json:"alternate"`
}

// readBlock returns the record of an IPAMBlock.
func readBlock(o *ipam.Object) (ipam.Key, *block) {
	at := o.Key()
	var spec struct {
		CIDR        string      `json:"cidr"`
		Deleted     bool        `json:"deleted"`
		Allocations []*int      `json:"allocations"`
		Attributes  []attribute `json:"attributes"`
	}
	r := &block{}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		r.problem, r.bad, r.prefix = problemOf(at, err.Error()), true, prefixOf(at.Name)
		return at, r
	}
	if spec.Deleted {
		return at, nil // Calico marks a block as deleted before it deletes the object
	}
	prefix, err := netip.ParsePrefix(spec.CIDR)
	if err != nil {
		r.problem, r.bad, r.prefix = problemOf(at, fmt.Sprintf("its cidr %q is not a CIDR", spec.CIDR)), true, prefixOf(at.Name)
		return at, r
	}
	r.prefix = prefix.Masked()
	n := 0
	for _, index := range spec.Allocations {
		if index != nil {
			n++
		}
	}
	r.allocations = make([]allocation, 0, n)
	for ordinal, index := range spec.Allocations {
		if index == nil {
			continue
		}
		if addr, fits := ipam.Plus(r.prefix.Addr(), uint64(ordinal)); !fits || !r.prefix.Contains(addr) { //nolint:gosec // not negative
			r.problem = problemOf(at, fmt.Sprintf("it has %d addresses, and /spec/allocations has %d", ipam.RangeOf(r.prefix).Size(), len(spec.Allocations)))
			break
		}
		al := allocation{ordinal: int32(ordinal)} //nolint:gosec // no object has so many
		if *index < 0 || *index >= len(spec.Attributes) {
			r.problem = cmp.Or(r.problem, problemOf(at, fmt.Sprintf("/spec/allocations/%d refers to attributes %d of %d: the owner of that address is unknown", ordinal, *index, len(spec.Attributes))))
		} else if !al.own(&spec.Attributes[*index]) {
			continue
		}
		r.allocations = append(r.allocations, al)
	}
	return at, r
}

// problemOf returns the description of an inconsistent block.
func problemOf(at ipam.Key, what string) string {
	return fmt.Sprintf("IPAMBlock %s of Calico is invalid: %s; check it with `calicoctl ipam check`", at.Name, ipam.Shorten(what))
}

// prefixOf returns the range of a block, parsed from a name such as 10-244-0-64-26.
func prefixOf(name string) netip.Prefix {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return netip.Prefix{}
	}
	for _, by := range []string{".", ":"} {
		if p, err := netip.ParsePrefix(strings.ReplaceAll(name[:i], "-", by) + "/" + name[i+1:]); err == nil {
			return p.Masked()
		}
	}
	return netip.Prefix{}
}

// purposes describes addresses that Calico allocates for other purposes than pods, by attribute
// type.
var purposes = map[string]string{
	"ipipTunnelAddress": "IP-in-IP tunnel", "vxlanTunnelAddress": "VXLAN tunnel", "vxlanV6TunnelAddress": "VXLAN tunnel",
	"wireguardTunnelAddress": "WireGuard tunnel", "wireguardV6TunnelAddress": "WireGuard tunnel",
}

// reserved is the handle of the addresses that Windows reserves.
const reserved = "windows-reserved-ipam-handle"

// own sets the owner of an address. It returns false if the address is reserved and cannot have an
// owner.
func (al *allocation) own(a *attribute) bool {
	handle, _, _ := strings.Cut(a.Handle, "\r") // some Calico releases wrote more after a carriage return
	if strings.EqualFold(handle, reserved) {
		return false
	}
	al.node = ipam.Interned(a.Owner["node"])
	switch kind := a.Owner["type"]; {
	case a.Owner["pod"] != "":
		al.namespace = ipam.Interned(a.Owner["namespace"])
		if al.pod = a.Owner["pod"]; len(a.Alternate) > 0 {
			al.pod, al.node = "", "" // during a live migration, two pods on two nodes have the address
		}
		// The handle of a virtual machine ends with its name, not with a container ID.
		if id := handle[strings.LastIndexByte(handle, '.')+1:]; len(id) >= 12 && strings.Trim(id, "0123456789abcdef") == "" {
			al.container = strings.Clone(id)
		}
	case purposes[kind] != "":
		al.purpose = purposes[kind]
	case a.Owner["service"] != "":
		al.purpose, al.node = ipam.Interned("load balancer of Service "+a.Owner["namespace"]+"/"+a.Owner["service"]), ""
	case kind != "":
		al.purpose = ipam.Interned(ipam.Plain(kind))
	}
	// The time is in the format of Go's time.Time.String.
	text, _, _ := strings.Cut(a.Owner["timestamp"], " m=")
	if at, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text); err == nil && !at.IsZero() {
		al.at = at.UnixNano()
	}
	return true
}

// affinity is the record of a BlockAffinity: the node that a block is bound to.
type affinity struct {
	node   string
	prefix netip.Prefix
}

// readAffinity returns the record of a BlockAffinity. The record is nil unless the block is bound to
// a node.
func readAffinity(o *ipam.Object) (ipam.Key, *affinity, string) {
	var spec struct {
		Node    string `json:"node"`
		CIDR    string `json:"cidr"`
		Type    string `json:"type"`
		Deleted any    `json:"deleted"` // "true" or true
	}
	err := ipam.Part(o.Spec, "spec", &spec)
	if err == nil && (fmt.Sprint(spec.Deleted) == "true" || spec.Type != "" && spec.Type != "host" || spec.Node == "") {
		return o.Key(), nil, ""
	}
	var prefix netip.Prefix
	if err == nil {
		prefix, err = netip.ParsePrefix(spec.CIDR)
	}
	if err != nil {
		return o.Key(), &affinity{}, invalid(Affinities, o, err.Error())
	}
	return o.Key(), &affinity{node: spec.Node, prefix: prefix.Masked()}, ""
}
