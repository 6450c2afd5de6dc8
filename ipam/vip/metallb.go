// This file describes the addresses that MetalLB announces in layer 2 mode. For each Service,
// one of its speakers answers for the addresses of the Service. MetalLB allocates these addresses, but
// only to Services; which node answers for them is in an object of each speaker.
//
// The format is that of metallb.io/v1beta1 in api/v1beta1 (servicel2status_types.go, ipaddresspool_types.go) of MetalLB 0.15.
// Objects of versions before 0.14.9 do not name the Service. There is no such object in BGP mode.

package vip

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// ServiceL2Statuses are the objects that say which node announces a Service.
var ServiceL2Statuses = ipam.Kind{Group: "metallb.io", Version: "v1beta1", Resource: "servicel2statuses", Name: "ServiceL2Status"}

// IPAddressPools are the objects with the ranges from which Services get addresses.
var IPAddressPools = ipam.Kind{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools", Name: "IPAddressPool"}

// MetalLB describes MetalLB.
var MetalLB = ipam.IPAM{
	Name: "metallb", Title: "MetalLB",
	Traits:  ipam.Traits{Assigns: true},
	Objects: newMetalLB,
	Repair:  ipam.Repair{Texts: ipam.ReadTexts("vip/metallb.txt")},
}

type serviceL2Status struct {
	node    string
	service ipam.Key
	problem string
}

// readServiceL2Status returns the record of a ServiceL2Status; nil if its speaker has not filled it in yet.
func readServiceL2Status(o *ipam.Object) (ipam.Key, *serviceL2Status) {
	at := o.Key()
	var s struct {
		Node             string `json:"node"`
		ServiceName      string `json:"serviceName"`
		ServiceNamespace string `json:"serviceNamespace"`
	}
	if len(o.Status) == 0 {
		return at, nil
	}
	problem := func(text string) (ipam.Key, *serviceL2Status) {
		return at, &serviceL2Status{problem: "ServiceL2Status " + at.Namespace + "/" + at.Name + ": " + ipam.Shorten(text)}
	}
	switch err := ipam.Part(o.Status, "status", &s); {
	case err != nil:
		return problem(err.Error())
	case s.Node == "":
		return at, nil
	case s.ServiceName == "" || s.ServiceNamespace == "":
		return problem("its status does not name the Service, as in MetalLB before 0.14.9")
	}
	return at, &serviceL2Status{node: s.Node, service: ipam.Key{Namespace: s.ServiceNamespace, Name: s.ServiceName}}
}

func readIPAddressPool(o *ipam.Object) (ranges []ipam.Range, err error) {
	var spec struct {
		Addresses     []string `json:"addresses"`
		AvoidBuggyIPs bool     `json:"avoidBuggyIPs"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		return nil, err
	}
	for _, text := range spec.Addresses {
		r, err := ipam.ParseRange(strings.ReplaceAll(text, " ", ""), "-")
		if err != nil {
			return nil, err
		}
		if spec.AvoidBuggyIPs {
			ranges = append(ranges, withoutOutermost(r)...)
		} else {
			ranges = append(ranges, r)
		}
	}
	return ranges, nil
}

// withoutOutermost returns the parts of a range without the IPv4 addresses that end in 0 or 255 (avoidBuggyIPs).
func withoutOutermost(r ipam.Range) (parts []ipam.Range) {
	const most = 256 // parts; a larger range is returned whole
	if !r.First.Is4() || !r.Last.Is4() {
		return []ipam.Range{r}
	}
	first, last := binary.BigEndian.Uint32(r.First.AsSlice()), binary.BigEndian.Uint32(r.Last.AsSlice())
	if first > last || last>>8-first>>8 >= most {
		return []ipam.Range{r}
	}
	address := func(n uint32) netip.Addr { return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n))) }
	for part := first >> 8; part <= last>>8; part++ {
		if a, b := max(first, part<<8+1), min(last, part<<8+254); a <= b {
			parts = append(parts, ipam.Range{First: address(a), Last: address(b)})
		}
	}
	return parts
}

// metalLBReader combines the objects of the speakers with the addresses of Services.
type metalLBReader struct {
	*ipam.Assignments
	statuses ipam.Mirror[*ipam.Object, serviceL2Status]
	// of has the objects of each Service. There are several while another speaker takes over.
	of map[ipam.Key][]ipam.Key
}

func newMetalLB(p ipam.Publisher) *ipam.Objects {
	r := &metalLBReader{Assignments: ipam.NewAssignments(p, "services"), of: make(map[ipam.Key][]ipam.Key)}
	r.statuses = ipam.Mirror[*ipam.Object, serviceL2Status]{Read: readServiceL2Status, Changed: r.changed}
	return &ipam.Objects{
		Resources: []*ipam.Resource{
			{Kind: ServiceL2Statuses, Role: ipam.Used, Store: &r.statuses, Lost: "the nodes on which MetalLB announces addresses are unknown"},
			{
				Kind: IPAddressPools, Role: ipam.Extra, Lost: "addresses in use that MetalLB may give to Services are not detected",
				Store: ipam.NewServiceRanges(p, IPAddressPools, ipam.Ingress, readIPAddressPool, nil),
			},
		},
		ServiceChanged: func(service ipam.Key) {
			for _, at := range r.of[service] {
				r.assign(at)
			}
		},
	}
}

// changed updates the objects of Services, and publishes an object.
func (r *metalLBReader) changed(at ipam.Key, before, after *serviceL2Status) {
	if before != nil {
		if rest := slices.DeleteFunc(r.of[before.service], func(other ipam.Key) bool { return other == at }); len(rest) > 0 {
			r.of[before.service] = rest
		} else {
			delete(r.of, before.service)
		}
	}
	if after != nil && after.problem == "" {
		r.of[after.service] = append(r.of[after.service], at)
	}
	r.assign(at)
}

// assign publishes the addresses that an object assigns.
func (r *metalLBReader) assign(at ipam.Key) {
	s := cmp.Or(r.statuses.Records[at], &serviceL2Status{})
	var assigned []ipam.Allocation
	if s.problem == "" {
		for _, a := range r.Service(s.service).Ingress() {
			assigned = append(assigned, ipam.Allocation{
				Address: a, Node: s.node, Purpose: "Service " + s.service.Namespace + "/" + s.service.Name,
				Location: ServiceL2Statuses.Resource + " " + at.Namespace + "/" + at.Name + " /status/node",
			})
		}
	}
	r.Set(at, assigned, s.problem)
}
