// Package registry lists the supported IPAMs.
package registry

import (
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/antrea"
	"github.com/ipwitness/ipwitness/ipam/awsvpc"
	"github.com/ipwitness/ipwitness/ipam/azure"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/containers"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/dra"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// All has all supported IPAMs and controllers of virtual addresses, in the order of the documentation.
var All = []*ipam.IPAM{
	&hostlocal.IPAM, &whereabouts.IPAM, &calico.IPAM, &cilium.IPAM, &ovn.KubeOVN, &spiderpool.IPAM, &antrea.IPAM, &ovn.OVNKubernetes,
	&awsvpc.IPAM, &azure.IPAM, &dhcp.Dnsmasq, &dhcp.Kea, &dhcp.Udhcpd, &dhcp.Client, &containers.Docker, &containers.Podman, &podips.IPAM, &vip.KubeProxy, &vip.KubeVIP, &vip.MetalLB, &vip.EgressIP, &vip.KubeVirt, &dra.IPAM,
}

// unknown has nothing that distinguishes it.
var unknown ipam.IPAM

// Of returns the IPAM with a name; an IPAM without a name or traits if there is none.
func Of(name string) *ipam.IPAM {
	if m := first(func(m *ipam.IPAM) bool { return m.Name == name }); m != nil {
		return m
	}
	return &unknown
}

// Traits returns the traits of the IPAM with a name.
func Traits(name string) ipam.Traits {
	m := Of(name)
	t := m.Traits
	t.NamesNodes, t.NodePools = m.NodeName != nil, m.Has("ranges/field")
	return t
}

// NodeNamed returns the IPAM that has its own name for each node.
func NodeNamed() *ipam.IPAM {
	return first(func(m *ipam.IPAM) bool { return m.NodeName != nil })
}

// WithPodDevice returns the IPAM that reaches pods through a device of this name; nil if there is
// none.
func WithPodDevice(name string) *ipam.IPAM {
	return first(func(m *ipam.IPAM) bool { return m.PodDevice != "" && m.PodDevice == name })
}

func first(is func(*ipam.IPAM) bool) *ipam.IPAM {
	if i := slices.IndexFunc(All, is); i >= 0 {
		return All[i]
	}
	return nil
}

// Titles returns the titles of the IPAMs that allocate addresses, as a list in a sentence: "host-local,
// Calico and Cilium", with "and" as the conjunction. It leaves out the IPAMs that match rejects.
func Titles(conjunction string, match func(*ipam.IPAM) bool) string {
	var titles []string
	for _, m := range All {
		if !m.Status && !m.Assigns && match(m) {
			titles = append(titles, m.Title)
		}
	}
	last := len(titles) - 1
	if last < 1 {
		return strings.Join(titles, "")
	}
	return strings.Join(titles[:last], ", ") + " " + conjunction + " " + titles[last]
}

// Any matches all IPAMs.
func Any(*ipam.IPAM) bool { return true }

// OfNodes matches the IPAMs whose records are files on the nodes.
func OfNodes(m *ipam.IPAM) bool { return m.Files != nil }

// OfCluster matches the IPAMs whose records are custom resources.
func OfCluster(m *ipam.IPAM) bool { return m.Objects != nil }
