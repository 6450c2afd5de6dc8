package azure

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it. Only a restart of the holder
// may repair a record, and only by hand.
func TestRemedies(t *testing.T) {
	pool := &ipam.Pool{IPAM: Name, Name: "/run/azure-cns/azure-endpoints.json"}
	pod, other := ipamtest.Holder(), ipamtest.Holder(func(h *ipam.Holder) { h.IsPod = false })
	of := func(container string, h *ipam.Holder) ipam.Case {
		return ipam.Case{Address: netip.MustParseAddr("10.241.0.5"), Pool: pool, Node: "n1", Holder: h, Allocation: ipam.Allocation{ContainerID: container}}
	}
	r := ipamtest.Remedies{IPAM: &IPAM}
	r.Reserve("in use by a pod, not allocated", of("", pod))
	r.Reserve("in use by a container", of("", other))
	r.Reserve("in use by an unknown holder", of("", nil))
	r.Reassign("allocated to another container", of("c0123456789abcdef", pod))
	r.Reassign("allocated to another container, and the holder is none of Kubernetes", of("c0123456789abcdef", other))
	r.Reassign("allocated to another container, and the holder is not known", of("c0123456789abcdef", nil))
	r.Release("leaked by a container", of("c0123456789abcdef", nil))
	r.Release("leaked by a container that is not known", of("", nil))
	hostile := of("$(rm)", other)
	hostile.Node = "-n; rm"
	r.Reserve("names that are commands", hostile)
	r.Release("names that are commands", hostile)
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/azure -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	text := ipamtest.DescribePools(&IPAM, "n1", netip.MustParseAddr("10.241.0.5"), &ipam.Pool{Name: "/run/azure-cns/azure-endpoints.json"}, &ipam.Pool{Name: "/run/azure-cns/azure-endpoints.json" + second})
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/azure -update` and review it")
}
