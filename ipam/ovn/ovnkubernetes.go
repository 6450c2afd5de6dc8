package ovn

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// This file describes the IPAM of OVN-Kubernetes, which records the addresses of pods in
// their annotations, and keeps those of virtual machines in IPAMClaims. Of the annotations, only
// addresses that several pods have in the default network are published.
//
// The format of the claims is that of k8snetworkplumbingwg/ipamclaims 0.5
// (pkg/crd/ipamclaims/v1alpha1/types.go).

// OVNKubernetes describes OVN-Kubernetes.
var OVNKubernetes = ipam.IPAM{
	Name: "ovn-kubernetes", Title: "OVN-Kubernetes",
	PodDevice: "ovn-k8s-mp0", // an internal port of Open vSwitch; those of user-defined networks have other numbers
	PoolKind:  "network",
	Objects:   newOVNKubernetes,
}

const (
	// Annotation is the annotation in which OVN-Kubernetes records the addresses of a pod
	// (go-controller/pkg/util/pod_annotation.go). It restores its allocations from it.
	Annotation = "k8s.ovn.org/pod-networks"
	// DefaultNetwork is the key of the cluster's default network in the annotation.
	DefaultNetwork = "default"
	// Annotated is the JSON pointer of the annotation in a pod (RFC 6901).
	Annotated = "/metadata/annotations/k8s.ovn.org~1pod-networks"
)

// longest is the maximum length of an annotation that is parsed.
const longest = 64 << 10

// Networks returns the addresses in an annotation, which have a prefix length, by the key of their
// network: DefaultNetwork, or the name of a NetworkAttachmentDefinition. It returns false if the
// annotation, or one of its networks, cannot be read.
func Networks(annotation string) (addresses map[string][]string, ok bool) {
	var networks map[string]ipam.Item[struct {
		IPs []string `json:"ip_addresses"`
		IP  string   `json:"ip_address"` // of older versions
	}]
	if len(annotation) > longest || json.Unmarshal([]byte(annotation), &networks) != nil {
		return nil, false
	}
	addresses, ok = make(map[string][]string, len(networks)), true
	for key, network := range networks {
		ok = ok && network.Err == nil
		addresses[key] = network.Value.IPs
		if len(network.Value.IPs) == 0 && network.Value.IP != "" {
			addresses[key] = []string{network.Value.IP}
		}
	}
	return addresses, ok
}

// Addresses returns the addresses in the default network according to an annotation: at most one of
// each family. There are none if the annotation cannot be read.
func Addresses(annotation string) (all []netip.Addr) {
	if annotation == "" {
		return nil
	}
	networks, _ := Networks(annotation)
	for _, text := range networks[DefaultNetwork] {
		if p, err := netip.ParsePrefix(text); err == nil && len(all) < 2 {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}

// Claims are the IPAMClaims.
var Claims = ipam.Kind{Group: "k8s.cni.cncf.io", Version: "v1alpha1", Resource: "ipamclaims", Name: "IPAMClaim"}

// claim is the record of an IPAMClaim.
type claim struct {
	network, iface, pod string
	addrs               []netip.Addr
	at                  int64 // when the object was created, in nanoseconds since the Unix epoch
}

// readClaim returns the record of an IPAMClaim. It is nil if the claim has no address.
func readClaim(o *ipam.Object) (at ipam.Key, c *claim, problem string) {
	at = ipam.Key{Namespace: ipam.Interned(o.Namespace), Name: o.Name}
	var spec struct {
		Network   string `json:"network"`
		Interface string `json:"interface"`
	}
	var status struct {
		IPs      []string `json:"ips"`
		OwnerPod string   `json:"ownerPod"`
	}
	if err := o.Decode(&spec, &status); err != nil {
		return at, nil, o.Invalid(Claims.Name, err.Error())
	}
	c = &claim{network: ipam.Interned(spec.Network), iface: ipam.Interned(spec.Interface), pod: status.OwnerPod}
	if !o.Created.IsZero() {
		c.at = o.Created.UnixNano()
	}
	for _, text := range status.IPs {
		if p, err := netip.ParsePrefix(text); err == nil {
			c.addrs = append(c.addrs, p.Addr().Unmap())
		} else {
			problem = o.Invalid(Claims.Name, fmt.Sprintf("%q in its status is not an address with a prefix length", text))
		}
	}
	if len(c.addrs) == 0 {
		return at, nil, problem
	}
	c.addrs = slices.Clip(c.addrs)
	return at, c, problem
}

// ovnKubernetesReader reads IPAMClaims. The claims of one network are a pool. Its ranges are not known, because
// most of its addresses are allocated without a claim: only addresses that are claimed twice are
// found.
type ovnKubernetesReader struct {
	ipam.Publisher
	claims ipam.Mirror[*ipam.Object, claim]
	// networks counts the claims of each network with addresses.
	networks map[string]int
}

func newOVNKubernetes(p ipam.Publisher) *ipam.Objects {
	r := &ovnKubernetesReader{Publisher: p, networks: make(map[string]int)}
	r.claims = ipam.Mirror[*ipam.Object, claim]{Parse: readClaim, Unread: &ipam.Unread{Publisher: p, Kind: Claims}, Changed: r.changed}
	return &ipam.Objects{Resources: []*ipam.Resource{{Kind: Claims, Role: ipam.Needed, Store: &r.claims, Lost: "the addresses of persistent IPAMClaims are unknown"}}}
}

func (r *ovnKubernetesReader) changed(at ipam.Key, before, after *claim) {
	r.Use()
	if after != nil {
		if r.networks[after.network]++; r.networks[after.network] == 1 {
			r.Put(ipam.Pool{Name: after.network, Served: ipam.Served{Realm: after.network}}, "", false)
		}
	}
	ipam.Move(r, before.records(at), after.records(at))
	if before == nil {
		return
	}
	if r.networks[before.network]--; r.networks[before.network] == 0 {
		delete(r.networks, before.network)
		r.Drop(before.network)
	}
}

// records returns the allocations of a claim; nil for no claim. A claim without a pod is named after itself.
func (c *claim) records(at ipam.Key) (all []ipam.Record) {
	if c == nil {
		return nil
	}
	for _, a := range c.addrs {
		all = append(all, ipam.Record{Pool: c.network, At: c.at, Allocation: ipam.Allocation{
			Address: a, Namespace: at.Namespace, Pod: cmp.Or(c.pod, at.Name), Interface: c.iface, Kept: true, Location: "ipamclaims " + at.Namespace + "/" + at.Name,
		}})
	}
	return all
}
