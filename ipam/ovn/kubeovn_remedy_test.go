package ovn_test

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it.
func TestRemedies(t *testing.T) {
	pool := &ipam.Pool{IPAM: ovn.KubeOVN.Name, Name: "ovn-default"}
	of := func(h *ipam.Holder, al ipam.Allocation) ipam.Case {
		return ipam.Case{Address: netip.MustParseAddr("10.16.0.5"), Pool: pool, Holder: h, Allocation: al}
	}
	other := ipam.Allocation{Namespace: "shop", Pod: "cart-0", Node: "node-b", Location: "ips cart-0.shop"}
	machine := ipam.Allocation{Namespace: "shop", Pod: "db", Kept: true, Location: "ips db.shop"}
	r := ipamtest.Remedies{IPAM: &ovn.KubeOVN}
	r.Reserve("in use, not allocated", of(ipamtest.Holder(), ipam.Allocation{}))
	r.Reserve("the holder is not known", of(nil, ipam.Allocation{}))
	r.Reassign("allocated to another pod", of(ipamtest.Holder(), other))
	r.Reassign("allocated to a virtual machine", of(ipamtest.Holder(), machine))
	r.Reassign("allocated to no pod", of(ipamtest.Holder(), ipam.Allocation{Purpose: "Kube-OVN's join address", Location: "ips node-n1"}))
	r.Release("leaked", of(nil, other))
	r.Release("leaked by an unknown pod", of(nil, ipam.Allocation{Location: "ips x"}))
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/ovn -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	text := ipamtest.DescribePools(&ovn.KubeOVN, "", netip.MustParseAddr("10.16.0.5"), &ipam.Pool{Name: "ovn-default", Config: "subnets ovn-default"})
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/ovn -update` and review it")
}

func TestTraits(t *testing.T) {
	if got, want := ovn.KubeOVN.Traits, (ipam.Traits{}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
