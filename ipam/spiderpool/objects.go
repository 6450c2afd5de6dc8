package spiderpool

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// The custom resources of Spiderpool.
var (
	Pools     = ipam.Kind{Group: "spiderpool.spidernet.io", Version: "v2beta1", Resource: "spiderippools", Name: "SpiderIPPool"}
	Endpoints = ipam.Kind{Group: "spiderpool.spidernet.io", Version: "v2beta1", Resource: "spiderendpoints", Name: "SpiderEndpoint"}
)

// pool is the record of a SpiderIPPool. It serves the CNI networks that it names, or any.
type pool = ipam.ListedPool[entry]

type entry struct {
	addr       netip.Addr
	pod, iface string // pod is NAMESPACE/NAME
}

func compare(a, b *entry) int { return a.addr.Compare(b.addr) }

func readPool(o *ipam.Object) (ipam.Key, *pool) {
	var spec struct {
		Subnet     string   `json:"subnet"`
		IPs        []string `json:"ips"`
		ExcludeIPs []string `json:"excludeIPs"`
		Gateway    string   `json:"gateway"`
		MultusName []string `json:"multusName"`
	}
	var status struct {
		// AllocatedIPs is JSON in a string.
		AllocatedIPs string `json:"allocatedIPs"`
	}
	var allocated map[string]struct {
		Interface string `json:"interface"`
		Pod       string `json:"pod"`
	}
	p := &pool{Pool: ipam.Pool{Name: o.Name, Config: "spiderippools " + o.Name}}
	invalid := func(bad bool, what string) (ipam.Key, *pool) {
		p.Problem, p.Bad = o.Invalid(Pools.Name, what), bad
		return o.Key(), p
	}
	err := o.Decode(&spec, &status)
	if err == nil && status.AllocatedIPs != "" {
		err = ipam.Part(json.RawMessage(status.AllocatedIPs), "status.allocatedIPs", &allocated)
	}
	if err != nil {
		return invalid(true, err.Error())
	}
	for _, text := range spec.IPs {
		r, err := ipam.ParseRange(text, "-")
		if err != nil {
			return invalid(true, "its ips: "+err.Error())
		}
		p.Ranges = append(p.Ranges, r)
	}
	for _, text := range spec.ExcludeIPs {
		r, err := ipam.ParseRange(text, "-")
		if err != nil {
			invalid(false, "its excludeIPs: "+err.Error())
			continue
		}
		p.Ranges = ipam.Without(p.Ranges, r)
	}
	p.Ranges = ipam.Union(p.Ranges)
	if a, err := netip.ParseAddr(spec.Gateway); err == nil && ipam.Contain(p.Ranges, a.Unmap()) {
		p.Gateways = append(p.Gateways, a.Unmap())
	}
	for _, name := range spec.MultusName {
		// Spiderpool names the network in the CNI configuration after the object.
		if _, name, ok := strings.Cut(name, "/"); ok && !strings.Contains(name, "*") {
			p.Networks = append(p.Networks, name)
		} else {
			p.Networks = nil // a pattern, or a name in the namespace of Spiderpool
			break
		}
	}
	for text, al := range allocated {
		a, err := netip.ParseAddr(text)
		if err != nil {
			invalid(false, fmt.Sprintf("%q in its status.allocatedIPs is not an address", text))
			continue
		}
		p.Entries = append(p.Entries, entry{addr: a.Unmap(), pod: al.Pod, iface: ipam.Interned(al.Interface)})
	}
	slices.SortFunc(p.Entries, func(a, b entry) int { return compare(&a, &b) })
	p.Entries = slices.Clip(p.Entries)
	return o.Key(), p
}

// endpoint is the record of a SpiderEndpoint.
type endpoint struct {
	node string
	kept bool
	at   []place
}

// place is an address of an endpoint, with the pool that it is from.
type place struct {
	pool string
	addr netip.Addr
}

// keeping are the kinds of owners whose pods keep their addresses.
var keeping = []string{"StatefulSet", "VirtualMachineInstance", "VirtualMachine"}

func readEndpoint(o *ipam.Object) (at ipam.Key, e *endpoint, problem string) {
	var status struct {
		Current struct {
			Node string `json:"node"`
			IPs  []struct {
				IPv4     string `json:"ipv4"`
				IPv4Pool string `json:"ipv4Pool"`
				IPv6     string `json:"ipv6"`
				IPv6Pool string `json:"ipv6Pool"`
			} `json:"ips"`
		} `json:"current"`
		OwnerControllerType string `json:"ownerControllerType"`
	}
	at = ipam.Key{Namespace: ipam.Interned(o.Namespace), Name: o.Name}
	if len(o.Status) == 0 {
		return at, nil, ""
	}
	if err := o.Decode(nil, &status); err != nil {
		return at, nil, o.Invalid(Endpoints.Name, err.Error())
	}
	e = &endpoint{node: ipam.Interned(status.Current.Node), kept: slices.Contains(keeping, status.OwnerControllerType)}
	for _, ip := range status.Current.IPs {
		for _, p := range [][2]string{{ip.IPv4, ip.IPv4Pool}, {ip.IPv6, ip.IPv6Pool}} {
			text, _, _ := strings.Cut(p[0], "/")
			if a, err := netip.ParseAddr(text); err == nil {
				e.at = append(e.at, place{ipam.Interned(p[1]), a.Unmap()})
			} else if text != "" {
				problem = o.Invalid(Endpoints.Name, fmt.Sprintf("%q in its status is not an address", text))
			}
		}
	}
	if problem != "" && len(e.at) == 0 {
		return at, nil, problem
	}
	e.at = slices.Clip(e.at)
	return at, e, problem
}
