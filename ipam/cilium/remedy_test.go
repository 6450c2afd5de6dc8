package cilium_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it.
func TestRemedies(t *testing.T) {
	holder := ipamtest.Holder()
	of := func(pool *ipam.Pool, node, pod string, h *ipam.Holder) ipam.Case {
		c := ipam.Case{Address: netip.MustParseAddr("10.0.2.5"), Pool: pool, Node: node, Holder: h, Allocation: ipam.Allocation{Node: "node-b"}}
		if pod != "" {
			c.Allocation.Namespace, c.Allocation.Pod = "shop", pod
		}
		return c
	}
	pool := &ipam.Pool{IPAM: cilium.IPAM.Name, Name: "node-a"}
	r := ipamtest.Remedies{IPAM: &cilium.IPAM}
	r.Reserve("in use, not allocated", of(pool, "node-c", "", holder))
	r.Reserve("the holder is not known", of(pool, "node-c", "", nil))
	r.Reserve("the node is not known either", of(pool, "", "", nil))
	r.Reassign("allocated to another pod", of(pool, "node-c", "old", holder))
	r.Reassign("allocated to another owner", of(pool, "node-c", "", holder))
	r.Release("leaked by a pod", of(pool, "node-c", "old", nil))
	r.Release("leaked by a pod of an unknown pool", of(pool, "", "old", nil))
	r.Release("leaked by another owner", of(pool, "node-c", "", nil))
	copied := of(pool, "node-c", "old", holder)
	copied.Allocation.Location = "ciliumendpointslices ces-1 /endpoints of shop/old"
	r.Reassign("allocated to another pod in a CiliumEndpointSlice", copied)
	copied.Holder = nil
	r.Release("leaked in a CiliumEndpointSlice", copied)
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/cilium -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	a, pool := netip.MustParseAddr("10.0.2.5"), &ipam.Pool{Name: "node-a"}
	text := ipamtest.DescribePools(&cilium.IPAM, "", a, pool) + "\n" + ipamtest.DescribePools(&cilium.IPAM, "node-a", a, pool) +
		"\n" + cilium.IPAM.PoolTitle(&ipam.Pool{Name: "CiliumPodIPPool default"}, "") + "\n"
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/cilium -update` and review it")
}

func TestTraits(t *testing.T) {
	want := ipam.Traits{Mirrored: true, StartDelay: 5 * time.Minute, EndDelay: 30 * time.Second, OwnNamespaces: true}
	if got := cilium.IPAM.Traits; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
