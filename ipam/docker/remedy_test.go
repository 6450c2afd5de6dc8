package docker

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/engine"
	"github.com/ipwitness/ipwitness/ipam/ipamtest"
	"github.com/ipwitness/ipwitness/tests/golden"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it.
func TestRemedies(t *testing.T) {
	pool := &ipam.Pool{IPAM: Name, Name: "/db#lan", Served: ipam.Served{Network: ipam.EngineNetwork(Name, "lan")}}
	of := func(container string, h *ipam.Holder) ipam.Case {
		return ipam.Case{Address: netip.MustParseAddr("172.17.0.3"), Pool: pool, Node: "host-a", Holder: h, Allocation: ipam.Allocation{ContainerID: container}}
	}
	holder := ipamtest.Holder(func(h *ipam.Holder) { h.IsPod, h.Name = false, "container web" })
	const other = "0d1e2f3a4b5c6d7e"
	r := ipamtest.Remedies{IPAM: &IPAM}
	r.Reserve("in use, not allocated", of("", holder))
	r.Reserve("the holder is not known", of("", nil))
	r.Reassign("allocated to another container", of(other, holder))
	r.Release("leaked by a container", of(other, nil))
	r.Release("leaked by a container that is not known", of("", nil))
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/docker -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	known := &ipam.Pool{Name: "/db#lan", Served: ipam.Served{Network: ipam.EngineNetwork(Name, "lan")}}
	text := ipamtest.DescribePools(&IPAM, "host-a", netip.MustParseAddr("172.17.0.3"), known, &ipam.Pool{Name: "/db"}) + "\n" +
		ipamtest.DescribePools(&IPAM, "", netip.MustParseAddr("172.17.0.3"), known)
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/docker -update` and review it")
	if got := engine.NetworkName(known); got != "lan" {
		t.Errorf("got network %q, want lan", got)
	}
}

func TestNamesInCommandsAreQuoted(t *testing.T) {
	for _, a := range restart("host-a", "$(rm)") {
		if a.Node != "host-a" || strings.Count(a.Command, "$(rm)") != strings.Count(a.Command, "'$(rm)'") {
			t.Errorf("got %+v, want a command on the node, with a quoted id", a)
		}
	}
}
