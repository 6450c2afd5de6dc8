// Package dra describes the addresses of network devices that pods get by dynamic resource allocation. Drivers write them
// into the status of ResourceClaims. What allocated them is not known.
//
// The format is that of resource.k8s.io/v1 in Kubernetes 1.34.
package dra

import (
	"fmt"
	"net/netip"
	"reflect"

	"github.com/ipwitness/ipwitness/ipam"
)

// Claims are the objects with the addresses.
var Claims = ipam.Kind{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims", Name: "ResourceClaim"}

// IPAM describes ResourceClaims.
var IPAM = ipam.IPAM{
	Name: "resource-claims", Title: "ResourceClaims",
	Traits:  ipam.Traits{Status: true},
	Objects: newClaims,
}

// claim is the record of a ResourceClaim that one pod uses: its UID and the addresses of its devices.
type claim struct {
	pod     string
	devices []ipam.DeviceAddress
}

func newClaims(p ipam.Publisher) *ipam.Objects {
	of := make(map[string]map[ipam.Key][]ipam.DeviceAddress) // by the UID of the pod
	claims := &ipam.Mirror[*ipam.Object, claim]{
		Parse: read, Unread: &ipam.Unread{Publisher: p, Kind: Claims},
		Same: func(a, b *claim) bool { return reflect.DeepEqual(a, b) },
		Changed: func(at ipam.Key, before, after *claim) {
			if before != nil {
				if delete(of[before.pod], at); len(of[before.pod]) == 0 {
					delete(of, before.pod)
				}
			}
			if after != nil {
				if of[after.pod] == nil {
					of[after.pod] = make(map[ipam.Key][]ipam.DeviceAddress)
				}
				of[after.pod][at] = after.devices
			}
			for _, c := range []*claim{before, after} {
				if c != nil {
					p.DevicesChanged(c.pod)
				}
			}
		},
	}
	return &ipam.Objects{
		Resources: []*ipam.Resource{
			{Kind: Claims, Role: ipam.Extra, Store: claims, Lost: "addresses of devices from ResourceClaims are not known to be those of pods"},
		},
		Devices: func(uid string) (all []ipam.DeviceAddress) {
			for _, devices := range of[uid] {
				all = append(all, devices...)
			}
			return all
		},
	}
}

// read returns the record of a ResourceClaim; nil if no pod uses it or its devices have no addresses. If several pods use
// it, nothing says which of them has a device.
func read(o *ipam.Object) (at ipam.Key, _ *claim, problem string) {
	at = o.Key()
	var status struct {
		ReservedFor []struct {
			Resource string `json:"resource"`
			UID      string `json:"uid"`
		} `json:"reservedFor"`
		Devices []struct {
			Network struct {
				Interface string   `json:"interfaceName"`
				IPs       []string `json:"ips"`
			} `json:"networkData"`
		} `json:"devices"`
	}
	if err := o.Decode(nil, &status); err != nil {
		return at, nil, o.Invalid(Claims.Name, err.Error())
	}
	if len(status.ReservedFor) != 1 || status.ReservedFor[0].Resource != "pods" {
		return at, nil, ""
	}
	r := &claim{pod: status.ReservedFor[0].UID}
	for _, d := range status.Devices {
		for _, text := range d.Network.IPs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				problem = o.Invalid(Claims.Name, fmt.Sprintf("%q in networkData of a device is not an address with a prefix length", text))
				continue
			}
			r.devices = append(r.devices, ipam.DeviceAddress{Address: p.Addr().Unmap(), Interface: d.Network.Interface})
		}
	}
	if len(r.devices) == 0 {
		return at, nil, problem
	}
	return at, r, problem
}
