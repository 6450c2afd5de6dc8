package calico_test

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it.
func TestRemedies(t *testing.T) {
	pool := &ipam.Pool{IPAM: calico.IPAM.Name, Name: "default-ipv4-ippool"}
	misnamed := func(h *ipam.Holder) {
		h.WrongName = ipam.NodeName{Name: "template-0", Source: ipam.FileName, File: "/var/lib/calico/nodename"}
	}
	holder := ipamtest.Holder(misnamed)
	of := func(namespace, pod, node string, h *ipam.Holder) ipam.Case {
		return ipam.Case{
			Address: netip.MustParseAddr("10.244.0.5"), Pool: pool, Holder: h,
			Allocation: ipam.Allocation{Namespace: namespace, Pod: pod, Node: node},
		}
	}
	r := ipamtest.Remedies{IPAM: &calico.IPAM}
	r.Reserve("in use, not allocated", of("", "", "", holder))
	r.Reassign("allocated to its pod on a node with a wrong name", of("shop", "web", "template-0", holder))
	r.Reassign("a wrong name, and the right one is not known", of("shop", "web", "template-0", ipamtest.Holder(misnamed, func(h *ipam.Holder) { h.KubernetesNode = "" })))
	from := func(source ipam.NameSource, file string) *ipam.Holder {
		return ipamtest.Holder(func(h *ipam.Holder) { h.WrongName = ipam.NodeName{Name: "template-0", Source: source, File: file} })
	}
	r.Reassign("a wrong name in the CNI configuration", of("shop", "web", "template-0", from(ipam.ConfName, "/etc/cni/net.d/10-calico.conflist")))
	r.Reassign("the name of the host is wrong", of("shop", "web", "template-0", from(ipam.HostName, "/var/lib/calico/nodename")))
	r.Reassign("a wrong name that has been corrected", of("shop", "web", "template-0", ipamtest.Holder()))
	r.Reassign("allocated to a wrong node without a pod", of("", "", "template-0", ipamtest.Holder()))
	r.Reassign("allocated to nobody", of("", "", "", holder))
	r.Reassign("allocated to its pod, without a node", of("shop", "web", "", holder))
	r.Reassign("allocated to its pod on its node", of("shop", "web", "node-a", ipamtest.Holder(misnamed, func(h *ipam.Holder) { h.OfAllocation = true })))
	r.Reassign("allocated to another pod", of("shop", "-cart", "template-0", holder))
	r.Reassign("allocated to a pod of another namespace", of("other", "web", "template-0", holder))
	r.Reassign("allocated to a pod, and the holder is not known", of("shop", "web", "template-0", nil))
	r.Release("leaked by a pod", of("shop", "web", "node-a", nil))
	r.Release("leaked by an unknown owner", of("", "", "node-a", nil))
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/calico -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	text := ipamtest.DescribePools(&calico.IPAM, "", netip.MustParseAddr("10.244.0.5"), &ipam.Pool{Name: "default-ipv4-ippool"})
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/calico -update` and review it")
}
