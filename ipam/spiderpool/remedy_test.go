package spiderpool_test

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it.
func TestRemedies(t *testing.T) {
	pool := &ipam.Pool{IPAM: spiderpool.IPAM.Name, Name: "v4pool"}
	of := func(h *ipam.Holder, al ipam.Allocation) ipam.Case {
		return ipam.Case{Address: netip.MustParseAddr("10.6.168.101"), Pool: pool, Holder: h, Allocation: al}
	}
	unnamed := ipamtest.Holder(func(h *ipam.Holder) { h.Pod = "" })
	r := ipamtest.Remedies{IPAM: &spiderpool.IPAM}
	r.Reserve("in use, not allocated", of(ipamtest.Holder(), ipam.Allocation{}))
	r.Reserve("the pod is not known", of(unnamed, ipam.Allocation{}))
	r.Reserve("the holder is not known", of(nil, ipam.Allocation{}))
	r.Reassign("allocated to another pod", of(ipamtest.Holder(), ipam.Allocation{Namespace: "shop", Pod: "cart-0"}))
	r.Reassign("allocated to an unknown pod", of(ipamtest.Holder(), ipam.Allocation{}))
	r.Release("leaked", of(nil, ipam.Allocation{Namespace: "shop", Pod: "cart-0"}))
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/spiderpool -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	text := ipamtest.DescribePools(&spiderpool.IPAM, "", netip.MustParseAddr("10.6.168.101"), &ipam.Pool{Name: "v4pool", Config: "spiderippools v4pool"}) +
		ipamtest.DescribePools(&spiderpool.IPAM, "", netip.MustParseAddr("fd00::1"), &ipam.Pool{Name: "v6pool", Config: "spiderippools v6pool"})
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/spiderpool -update` and review it")
}

func TestTraits(t *testing.T) {
	if got, want := spiderpool.IPAM.Traits, (ipam.Traits{Secondary: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
