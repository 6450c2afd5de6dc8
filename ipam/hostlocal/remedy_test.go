package hostlocal

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it.
func TestRemedies(t *testing.T) {
	pool, noPath := &ipam.Pool{IPAM: Name, Name: "/var/lib/cni/networks/cbr0"}, &ipam.Pool{IPAM: Name, Name: "cbr0"}
	known := ipamtest.Holder()
	of := func(p *ipam.Pool, node, container string, h *ipam.Holder) ipam.Case {
		return ipam.Case{Address: netip.MustParseAddr("10.244.0.5"), Pool: p, Node: node, Holder: h, Allocation: ipam.Allocation{ContainerID: container}}
	}
	const other = "0d1e2f3a4b5c6d7e"
	r := ipamtest.Remedies{IPAM: &IPAM}
	r.Reserve("in use, not allocated", of(pool, "node-a", "", known))
	r.Reserve("of a container in a namespace that is not known", of(pool, "node-a", "", ipamtest.Holder(func(h *ipam.Holder) { h.IsPod, h.Netns = false, "" })))
	r.Reserve("the holder is not known", of(pool, "node-a", "", nil))
	r.Reserve("the sandbox is not known", of(pool, "node-a", "", ipamtest.Holder(func(h *ipam.Holder) { h.Sandbox = "" })))
	r.Reserve("the interface is not known", of(pool, "node-a", "", ipamtest.Holder(func(h *ipam.Holder) { h.Interface = "" })))
	r.Reserve("the directory and the node are not known", of(noPath, "", "", known))
	renamed := &ipam.Pool{IPAM: Name, Name: "/var/lib/cni/networks/pods", Served: ipam.Served{Network: "pods"}, Config: "/etc/cni/net.d/10-pods.conflist"}
	r.Reserve("the holder has it from another network", of(renamed, "node-a", "", ipamtest.Holder(func(h *ipam.Holder) { h.Network = "cbr0" })))
	r.Reassign("allocated to another container", of(pool, "node-a", other, known))
	r.Reassign("allocated to a container that is not known", of(pool, "node-a", "", known))
	r.Reassign("allocated to another container, and the holder is not known", of(pool, "node-a", other, nil))
	r.Release("leaked by a container", of(pool, "node-a", other, nil))
	r.Release("leaked by a container that is not known", of(pool, "node-a", "", nil))
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/hostlocal -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	a, configured := netip.MustParseAddr("10.244.0.5"), &ipam.Pool{Name: "/var/lib/cni/networks/cbr0", Config: "/etc/cni/net.d/10-flannel.conflist"}
	text := ipamtest.DescribePools(&IPAM, "node-a", a, configured, &ipam.Pool{Name: "/var/lib/cni/networks/cbr0/"}, &ipam.Pool{Name: "cbr0"}) + "\n" +
		ipamtest.DescribePools(&IPAM, "", a, configured)
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/hostlocal -update` and review it")
	if !IPAM.Rebuild {
		t.Error("the plan does not write lost records, want it to")
	}
}
