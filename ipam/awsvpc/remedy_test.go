package awsvpc

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it. Restarts are only by hand,
// because ipamd may give the successor the address of another holder.
func TestRemedies(t *testing.T) {
	pod := ipamtest.Holder()
	of := func(container string, h *ipam.Holder) ipam.Case {
		return ipam.Case{
			Address: netip.MustParseAddr("10.0.0.5"), Pool: &ipam.Pool{IPAM: Name, Name: "/run/aws-node/ipam.json"}, Node: "n1@2", Holder: h,
			Allocation: ipam.Allocation{ContainerID: container},
		}
	}
	r := ipamtest.Remedies{IPAM: &IPAM}
	r.Reserve("in use by a pod, not allocated", of("", pod))
	r.Reserve("in use by a device", of("", &ipam.Holder{Name: "device"}))
	r.Reserve("in use by an unknown holder", of("", nil))
	r.Reassign("allocated to another container", of("c0ffee000000000", pod))
	r.Reassign("allocated to a container that is not known", of("", pod))
	r.Reassign("allocated to a container whose name is a command", of("a; reboot", pod))
	r.Release("leaked by a container", of("c0ffee000000000", nil))
	r.Release("leaked by a container that is not known", of("", nil))
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/awsvpc -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	pool := &ipam.Pool{IPAM: Name, Name: "/run/aws-node/ipam.json"}
	text := ipamtest.DescribePools(&IPAM, "n1", netip.MustParseAddr("10.0.0.5"), pool) + ipamtest.DescribePools(&IPAM, "", netip.MustParseAddr("10.0.0.5"), pool)
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/awsvpc -update` and review it")
}
