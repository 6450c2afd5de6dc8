package ipamtest

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/golden"
)

// CheckEngine compares the texts about a container engine with remedies.txt and pools.txt in its
// directory of testdata, which -update writes. It also checks that names in commands are quoted.
func CheckEngine(t *testing.T, m *ipam.IPAM) {
	t.Helper()
	review := "run `go test ./ipam/containers -update` and review it"
	lan := &ipam.Pool{IPAM: m.Name, Name: "/db#lan", Served: ipam.Served{Network: ipam.EngineNetwork(m.Name, "lan")}}
	addr := netip.MustParseAddr("172.17.0.3")
	of := func(container string, h *ipam.Holder) ipam.Case {
		return ipam.Case{Address: addr, Pool: lan, Node: "host-a", Holder: h, Allocation: ipam.Allocation{ContainerID: container}}
	}
	holder := Holder(func(h *ipam.Holder) { h.IsPod, h.Name = false, "container web" })
	const other = "0d1e2f3a4b5c6d7e"
	r := Remedies{IPAM: m}
	r.Reserve("in use, not allocated", of("", holder))
	r.Reserve("the holder is not known", of("", nil))
	r.Reassign("allocated to another container", of(other, holder))
	r.Release("leaked by a container", of(other, nil))
	r.Release("leaked by a container that is not known", of("", nil))
	golden.Compare(t, "testdata/"+m.Name+"/remedies.txt", r.String(), review)
	text := DescribePools(m, "host-a", addr, lan, &ipam.Pool{Name: "/db"}) + "\n" + DescribePools(m, "", addr, lan)
	golden.Compare(t, "testdata/"+m.Name+"/pools.txt", text, review)
	for _, a := range m.Steps("restart-container", ipam.Case{Node: "host-a", Allocation: ipam.Allocation{ContainerID: "$(rm)"}}) {
		if a.Node != "host-a" || strings.Count(a.Command, "$(rm)") != strings.Count(a.Command, "'$(rm)'") {
			t.Errorf("got %+v, want a command on the node, with a quoted id", a)
		}
	}
}
