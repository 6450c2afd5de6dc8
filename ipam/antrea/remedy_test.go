package antrea_test

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/antrea"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it.
func TestRemedies(t *testing.T) {
	pool := &ipam.Pool{IPAM: antrea.IPAM.Name, Name: "pool1"}
	of := func(h *ipam.Holder, al ipam.Allocation) ipam.Case {
		return ipam.Case{Address: netip.MustParseAddr("192.168.240.132"), Pool: pool, Holder: h, Allocation: al}
	}
	r := ipamtest.Remedies{IPAM: &antrea.IPAM}
	r.Reserve("in use, not allocated", of(ipamtest.Holder(), ipam.Allocation{}))
	r.Reassign("allocated to another pod", of(ipamtest.Holder(), ipam.Allocation{Namespace: "shop", Pod: "cart-0"}))
	r.Reassign("allocated to an unknown pod", of(ipamtest.Holder(), ipam.Allocation{}))
	r.Release("leaked", of(nil, ipam.Allocation{Namespace: "shop", Pod: "cart-0"}))
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/antrea -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	text := ipamtest.DescribePools(&antrea.IPAM, "", netip.MustParseAddr("192.168.240.132"), &ipam.Pool{Name: "pool1", Config: "ippools pool1"})
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/antrea -update` and review it")
}

func TestTraits(t *testing.T) {
	if got, want := antrea.IPAM.Traits, (ipam.Traits{}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
