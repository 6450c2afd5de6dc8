// Package ovn describes the IPAMs of the two networks of pods that are built on OVN: Kube-OVN and
// OVN-Kubernetes.
package ovn

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// This file describes the IPAM of Kube-OVN, whose controller keeps the allocations in memory and
// writes an IP object for each of them. Deleting the object frees the address. After a restart, the
// controller restores the allocations from the annotations of pods, and those of StatefulSets and
// virtual machines from their IP objects.
//
// The format of the objects is that of Kube-OVN 1.14 (pkg/apis/kubeovn/v1: ip.go, subnet.go, vip.go;
// pkg/controller: ip.go, init.go).

// KubeOVN describes Kube-OVN.
var KubeOVN = ipam.IPAM{
	Name: "kube-ovn", Title: "Kube-OVN",
	PoolKind: Subnets.Name,
	Objects:  newKubeOVN,
	Repair:   ipam.Repair{Texts: ipam.ReadTexts("ovn/kubeovn.txt"), Words: words},
}

// words returns the values that the texts of remedies name: the IP object that may be deleted once its pod is gone.
func words(c *ipam.Case) map[string]any {
	object, is := strings.CutPrefix(c.Allocation.Location, IPs.Resource+" ")
	if !is || c.Allocation.Pod == "" || c.Allocation.Kept {
		object = ""
	}
	return map[string]any{"object": object}
}

// The custom resources of Kube-OVN.
var (
	Subnets = ipam.Kind{Group: "kubeovn.io", Version: "v1", Resource: "subnets", Name: "Subnet"}
	IPs     = ipam.Kind{Group: "kubeovn.io", Version: "v1", Resource: "ips", Name: "IP"}
	VIPs    = ipam.Kind{Group: "kubeovn.io", Version: "v1", Resource: "vips", Name: "Vip"}
)

const (
	// defaultVPC is the VPC of pods that no other VPC is configured for.
	defaultVPC = "ovn-cluster"
	// ovn is the provider of subnets on Open vSwitch. The providers of further ones end with it.
	ovn = "ovn"
	// reservedLabel marks IP objects that a person created for a pod in advance.
	reservedLabel = "ovn.kubernetes.io/ip_reserved"
	// subnetLabel has the subnet of an IP object.
	subnetLabel = "ovn.kubernetes.io/subnet"
	// interconnection is how the names of addresses between underlay and overlay begin.
	interconnection = "u2o-interconnection."
)

type subnet struct {
	ranges   []ipam.Range
	gateways []netip.Addr
	// realm is the VPC of the subnet, or its provider if that is not OVN, or the subnet itself if it is
	// a VLAN that no VPC routes to; empty for the default VPC. VPCs and subnets have the names of the
	// networks in which the addresses of their pods are compared.
	realm string
	// problem describes an inconsistency; bad means that the subnet cannot be read because of it.
	problem string
	bad     bool
}

func readSubnet(o *ipam.Object) (ipam.Key, *subnet) {
	var spec struct {
		VPC        string   `json:"vpc"`
		CIDRBlock  string   `json:"cidrBlock"`
		Gateway    string   `json:"gateway"`
		ExcludeIPs []string `json:"excludeIps"`
		Provider   string   `json:"provider"`
		VLAN       string   `json:"vlan"`
		// The VPC routes to an underlay subnet with one of these.
		LogicalGateway  bool `json:"logicalGateway"`
		Interconnection bool `json:"u2oInterconnection"`
	}
	s := &subnet{}
	invalid := func(bad bool, format string, args ...any) (ipam.Key, *subnet) {
		s.problem, s.bad = fmt.Sprintf("Subnet %s of Kube-OVN is invalid: ", o.Name)+ipam.Shorten(fmt.Sprintf(format, args...)), bad
		return o.Key(), s
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		return invalid(true, "%v", err)
	}
	switch {
	case spec.Provider != "" && spec.Provider != ovn && !strings.HasSuffix(spec.Provider, "."+ovn):
		s.realm = spec.Provider
	case spec.VLAN != "" && !spec.LogicalGateway && !spec.Interconnection:
		s.realm = "subnet/" + o.Name
	case spec.VPC != "" && spec.VPC != defaultVPC:
		s.realm = "vpc/" + spec.VPC
	}
	for _, text := range fields(spec.CIDRBlock) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return invalid(true, "%q in its cidrBlock is not a CIDR", text)
		}
		s.ranges = append(s.ranges, ipam.Usable(p))
	}
	for _, text := range fields(spec.Gateway) {
		if a, err := netip.ParseAddr(text); err == nil {
			s.gateways = append(s.gateways, a.Unmap())
		}
	}
	for _, text := range spec.ExcludeIPs {
		r, err := ipam.ParseRange(text, "..")
		if err != nil {
			return invalid(false, "its excludeIps: %v", err)
		}
		s.ranges = ipam.Without(s.ranges, r)
	}
	// An excluded gateway is in no range.
	s.gateways = slices.DeleteFunc(s.gateways, func(a netip.Addr) bool {
		return !slices.ContainsFunc(s.ranges, func(r ipam.Range) bool { return r.Contains(a) })
	})
	return o.Key(), s
}

// fields returns the elements of a list that is separated by commas: an IPv4 part and an IPv6 part.
func fields(list string) []string { return strings.Fields(strings.ReplaceAll(list, ",", " ")) }

// record is the record of an IP or a Vip.
type record struct {
	subnet, namespace, pod, node, purpose string
	addrs                                 []netip.Addr
	kept                                  bool
	at                                    int64 // when the object was created, in nanoseconds since the Unix epoch
	// problem describes why an address of the object cannot be read; bad means that nothing of the object
	// can.
	problem string
	bad     bool
}

// unreadable returns the record of an object that cannot be read.
func unreadable(o *ipam.Object, kind, subnet string, err error) (ipam.Key, *record) {
	return o.Key(), &record{subnet: subnet, problem: kind + " " + o.Name + " of Kube-OVN is invalid: " + ipam.Shorten(err.Error()), bad: true}
}

// readIP returns the record of an IP object. It is nil if the object has no address.
func readIP(o *ipam.Object) (ipam.Key, *record) {
	var spec struct {
		PodName     string `json:"podName"`
		Namespace   string `json:"namespace"`
		Subnet      string `json:"subnet"`
		NodeName    string `json:"nodeName"`
		IPAddress   string `json:"ipAddress"`
		V4IPAddress string `json:"v4IpAddress"`
		V6IPAddress string `json:"v6IpAddress"`
		PodType     string `json:"podType"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		return unreadable(o, IPs.Name, o.Labels[subnetLabel], err)
	}
	r := &record{
		subnet: ipam.Interned(spec.Subnet), namespace: ipam.Interned(spec.Namespace), pod: spec.PodName, node: ipam.Interned(spec.NodeName),
		kept: spec.PodType != "" || o.Labels[reservedLabel] == "true",
	}
	if spec.Namespace == "" {
		r.pod, r.purpose = "", "Kube-OVN's join address"
		if strings.HasPrefix(o.Name, interconnection) {
			r.purpose = "Kube-OVN's underlay interconnection"
		}
	}
	both := spec.V4IPAddress + "," + spec.V6IPAddress
	if both == "," {
		both = spec.IPAddress
	}
	return r.withAddresses(o, IPs, both)
}

// readVIP returns the record of a Vip, which reserves an address for any pod. It is nil if the object
// has no address yet.
func readVIP(o *ipam.Object) (ipam.Key, *record) {
	var spec struct {
		Subnet string `json:"subnet"`
		V4     string `json:"v4ip"`
		V6     string `json:"v6ip"`
	}
	var status struct {
		V4 string `json:"v4ip"`
		V6 string `json:"v6ip"`
	}
	if err := o.Decode(&spec, &status); err != nil {
		return unreadable(o, VIPs.Name, "", err)
	}
	r := &record{subnet: ipam.Interned(spec.Subnet)}
	return r.withAddresses(o, VIPs, cmp.Or(status.V4, spec.V4)+","+cmp.Or(status.V6, spec.V6))
}

func (r *record) withAddresses(o *ipam.Object, k ipam.Kind, list string) (ipam.Key, *record) {
	if !o.Created.IsZero() {
		r.at = o.Created.UnixNano()
	}
	for _, text := range fields(list) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			r.problem = fmt.Sprintf("%s %s of Kube-OVN is invalid: %q is not an address", k.Name, o.Name, ipam.Shorten(text))
			continue
		}
		r.addrs = append(r.addrs, a.Unmap())
	}
	if len(r.addrs) == 0 && r.problem == "" {
		return o.Key(), nil
	}
	r.addrs = slices.Clip(r.addrs)
	return o.Key(), r
}

// kubeOVNReader reads the objects of Kube-OVN. Each Subnet is a pool, and each IP and Vip is an allocation
// from one of them.
type kubeOVNReader struct {
	ipam.Publisher
	subnets ipam.Mirror[*ipam.Object, subnet]
	ips     ledger
	vips    ledger
	// dirty has the subnets to publish again.
	dirty map[string]bool
}

// ledger has the objects of one kind that allocate addresses.
type ledger struct {
	ipam.Mirror[*ipam.Object, record]
	reader *kubeOVNReader
	kind   ipam.Kind
	// invalid has the objects of each subnet that have a problem, and unread those whose subnet is not
	// known.
	invalid map[string]map[ipam.Key]string
	unread  ipam.Unread
}

func newKubeOVN(p ipam.Publisher) *ipam.Objects {
	r := &kubeOVNReader{Publisher: p, dirty: make(map[string]bool)}
	r.subnets = ipam.Mirror[*ipam.Object, subnet]{
		Read:    readSubnet,
		Changed: func(at ipam.Key, _, _ *subnet) { r.dirty[at.Name] = true }, Settled: r.settle,
	}
	r.ips.init(r, IPs, readIP)
	r.vips.init(r, VIPs, readVIP)
	return &ipam.Objects{Resources: []*ipam.Resource{
		{Kind: Subnets, Role: ipam.Needed, Store: &r.subnets, Lost: "the address pools of Kube-OVN are unknown"},
		{Kind: IPs, Role: ipam.Needed, Store: &r.ips, Lost: "the allocations of Kube-OVN are unknown"},
		{Kind: VIPs, Store: &r.vips, Lost: "the virtual addresses that Kube-OVN reserves are unknown"},
	}}
}

func (l *ledger) init(r *kubeOVNReader, k ipam.Kind, read func(*ipam.Object) (ipam.Key, *record)) {
	l.reader, l.kind, l.invalid, l.unread = r, k, make(map[string]map[ipam.Key]string), ipam.Unread{Publisher: r.Publisher, Kind: k, Allocates: true}
	l.Mirror = ipam.Mirror[*ipam.Object, record]{Read: read, Changed: l.changed, Settled: r.settle}
}

// changed publishes the change of an object. One that cannot be read keeps its addresses: they may still
// be allocated.
func (l *ledger) changed(at ipam.Key, before, after *record) {
	r := l.reader
	if after != nil && after.bad && before != nil {
		problem := after.problem
		*after = *before
		after.problem, after.bad = problem, true
	}
	if after == nil || !after.bad {
		r.Use()
	}
	l.note(at, before, "")
	if after != nil {
		l.note(at, after, after.problem)
	}
	ipam.Move(r, l.records(at, before), l.records(at, after))
}

func (l *ledger) note(at ipam.Key, of *record, problem string) {
	if of != nil && of.subnet == "" {
		l.unread.Set(at, problem)
		return
	}
	if of == nil || l.invalid[of.subnet][at] == problem {
		return
	}
	l.reader.dirty[of.subnet] = true
	if problem == "" {
		if delete(l.invalid[of.subnet], at); len(l.invalid[of.subnet]) == 0 {
			delete(l.invalid, of.subnet)
		}
		return
	}
	if l.invalid[of.subnet] == nil {
		l.invalid[of.subnet] = make(map[ipam.Key]string)
	}
	l.invalid[of.subnet][at] = problem
}

// records returns the allocations of an object; nil for no object.
func (l *ledger) records(at ipam.Key, r *record) (all []ipam.Record) {
	if r == nil {
		return nil
	}
	for _, a := range r.addrs {
		all = append(all, ipam.Record{Pool: r.subnet, At: r.at, Allocation: ipam.Allocation{
			Address: a, Node: r.node, Namespace: r.namespace, Pod: r.pod, Purpose: r.purpose, Kept: r.kept, Location: l.kind.Resource + " " + at.Name,
		}})
	}
	return all
}

// settle publishes the subnets that changed, and the allocations of new ones.
func (r *kubeOVNReader) settle() {
	added, gone := make(map[string]bool), make(map[string]bool)
	for name := range r.dirty {
		if s := r.subnets.Records[ipam.Key{Name: name}]; s == nil {
			gone[name] = r.Pool(name) != nil
		} else {
			last := r.Pool(name)
			added[name] = last == nil
			next := ipam.Pool{
				Name: name, Served: ipam.Served{Realm: s.realm}, Ranges: s.ranges, Gateways: s.gateways, Config: "subnets " + name,
				Wiring: ipam.Wiring{Plugin: "kube-ovn"},
			}
			if s.bad && last != nil {
				next = *last
			}
			problem, bad := s.problem, s.bad
			for _, l := range []*ledger{&r.ips, &r.vips} {
				for at, other := range l.invalid[name] {
					if problem == "" || other < problem && !s.bad {
						problem = other
					}
					bad = bad || l.Records[at] != nil && l.Records[at].bad && len(l.Records[at].addrs) == 0
				}
			}
			r.Put(next, problem, bad)
		}
	}
	clear(r.dirty)
	for _, l := range []*ledger{&r.ips, &r.vips} {
		ipam.Move(r, nil, l.of(added))
		ipam.Move(r, l.of(gone), nil)
	}
	for name := range gone {
		r.Drop(name)
	}
}

func (l *ledger) of(subnets map[string]bool) (all []ipam.Record) {
	if !slices.Contains(slices.Collect(maps.Values(subnets)), true) {
		return nil
	}
	for at, r := range l.Records {
		if subnets[r.subnet] {
			all = append(all, l.records(at, r)...)
		}
	}
	return all
}
