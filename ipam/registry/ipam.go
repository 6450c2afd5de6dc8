// Package registry lists the supported IPAMs.
package registry

import (
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// All has all supported IPAMs, in the order of the documentation.
var All = []*ipam.IPAM{&hostlocal.IPAM, &whereabouts.IPAM, &calico.IPAM, &cilium.IPAM, &podips.IPAM}

// unknown has nothing that distinguishes it.
var unknown ipam.IPAM

// Of returns the IPAM with a name; an IPAM without a name or traits if there is none.
func Of(name string) *ipam.IPAM {
	if i := slices.IndexFunc(All, func(m *ipam.IPAM) bool { return m.Name == name }); i >= 0 {
		return All[i]
	}
	return &unknown
}
