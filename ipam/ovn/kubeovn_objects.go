package ovn

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

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

// subnet is the record of a Subnet.
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

// readSubnet returns the record of a Subnet.
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
	for text := range fields(spec.CIDRBlock) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return invalid(true, "%q in its cidrBlock is not a CIDR", text)
		}
		s.ranges = append(s.ranges, ipam.Usable(p))
	}
	for text := range fields(spec.Gateway) {
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

// fields yields the elements of a list that is separated by commas: an IPv4 part and an IPv6 part.
func fields(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for text := range strings.SplitSeq(list, ",") {
			if text = strings.TrimSpace(text); text != "" && !yield(text) {
				return
			}
		}
	}
}

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
	err := ipam.Part(o.Spec, "spec", &spec)
	if err == nil && len(o.Status) > 0 {
		err = ipam.Part(o.Status, "status", &status)
	}
	if err != nil {
		return unreadable(o, VIPs.Name, "", err)
	}
	r := &record{subnet: ipam.Interned(spec.Subnet)}
	return r.withAddresses(o, VIPs, cmp.Or(status.V4, spec.V4)+","+cmp.Or(status.V6, spec.V6))
}

// withAddresses returns the record with the addresses in a list.
func (r *record) withAddresses(o *ipam.Object, k ipam.Kind, list string) (ipam.Key, *record) {
	if !o.Created.IsZero() {
		r.at = o.Created.UnixNano()
	}
	for text := range fields(list) {
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
