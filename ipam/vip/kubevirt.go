// This file describes the virtual machines of KubeVirt. Two pods run one machine while it is
// migrated, and both may have its address. The object of the machine says which pod it is in. No IPAM
// allocates anything here.
//
// The format is that of kubevirt.io/v1 in staging/src/kubevirt.io/api/core/v1/types.go of KubeVirt
// 1.6.

package vip

import (
	"maps"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// Machines are the objects of virtual machines.
var Machines = ipam.Kind{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances", Name: "VirtualMachineInstance"}

// KubeVirt describes KubeVirt.
var KubeVirt = ipam.IPAM{
	Name: "kubevirt", Title: "KubeVirt",
	Traits:  ipam.Traits{Assigns: true},
	Objects: newMachines,
}

func newMachines(p ipam.Publisher) *ipam.Objects {
	machines := &ipam.Mirror[*ipam.Object, ipam.Machine]{
		Parse: readMachine, Unread: &ipam.Unread{Publisher: p, Kind: Machines},
		Same: func(a, b *ipam.Machine) bool {
			return a.Node == b.Node && a.Migrating == b.Migrating && slices.Equal(a.Pods, b.Pods)
		},
		Changed: func(_ ipam.Key, before, after *ipam.Machine) {
			var pods []string
			for _, m := range []*ipam.Machine{before, after} {
				if m != nil {
					pods = append(pods, m.Pods...)
				}
			}
			if at := p.MachineChanged(pods); after != nil {
				after.Since = at
			}
		},
	}
	return &ipam.Objects{
		Resources: []*ipam.Resource{
			{Kind: Machines, Role: ipam.Extra, Store: machines, Lost: "the node of a migrated virtual machine is unknown"},
		},
		Machine: func(at ipam.Key) *ipam.Machine {
			if m := machines.Records[at]; m != nil && m.Node != "" {
				return m
			}
			return nil
		},
	}
}

// readMachine returns the record of a virtual machine; nil if it runs nowhere, and an empty one if its object cannot be
// read. Nothing depends on it alone.
func readMachine(o *ipam.Object) (ipam.Key, *ipam.Machine, string) {
	at := o.Key()
	var status struct {
		NodeName       string            `json:"nodeName"`
		ActivePods     map[string]string `json:"activePods"`
		MigrationState *struct {
			Completed bool `json:"completed"`
			Failed    bool `json:"failed"`
		} `json:"migrationState"`
	}
	if err := o.Decode(nil, &status); err != nil {
		return at, &ipam.Machine{}, o.Invalid(Machines.Name, err.Error())
	}
	if status.NodeName == "" {
		return at, nil, ""
	}
	m := &ipam.Machine{Node: status.NodeName, Migrating: status.MigrationState != nil && !status.MigrationState.Completed && !status.MigrationState.Failed}
	m.Pods = slices.Sorted(maps.Keys(status.ActivePods))
	return at, m, ""
}
