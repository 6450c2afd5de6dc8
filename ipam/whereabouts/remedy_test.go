package whereabouts_test

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt; -update writes it.
func TestRemedies(t *testing.T) {
	four := &ipam.Pool{IPAM: whereabouts.Name, Name: "kube-system/192.0.2.0-29", Base: netip.MustParseAddr("192.0.2.0")}
	six := &ipam.Pool{IPAM: whereabouts.Name, Name: "kube-system/blue-fd00-0-0-1---64", Base: netip.MustParseAddr("fd00:0:0:1::"), Served: ipam.Served{Realm: "blue"}}
	far := &ipam.Pool{IPAM: whereabouts.Name, Name: "kube-system/fd00---64", Base: netip.MustParseAddr("fd00::")}
	noName := &ipam.Pool{IPAM: whereabouts.Name, Name: "192.0.2.0-29", Base: four.Base}
	noBase := &ipam.Pool{IPAM: whereabouts.Name, Name: four.Name}
	known := ipamtest.Holder()
	of := func(p *ipam.Pool, h *ipam.Holder, al ipam.Allocation) ipam.Case {
		a := "192.0.2.3"
		switch p {
		case six:
			a = "fd00:0:0:1::5"
		case far:
			a = "fd00::8000:0:0:5"
		}
		return ipam.Case{Address: netip.MustParseAddr(a), Pool: p, Holder: h, Allocation: al}
	}
	none, other := ipam.Allocation{}, ipam.Allocation{Namespace: "shop", Pod: "cam-1", ContainerID: "0d1e2f3a4b5c", Interface: "net1"}
	at := func(location string) ipam.Allocation {
		al := other
		al.Location = location
		return al
	}
	noID := ipam.Allocation{Namespace: "shop", Pod: "cam-1", Location: "ippools kube-system/blue-fd00-0-0-1---64 /spec/allocations/5"}
	r := ipamtest.Remedies{IPAM: &whereabouts.IPAM}
	r.Reserve("in use, not allocated", of(four, known, none))
	r.Reserve("in use, not allocated, of a named network", of(six, ipamtest.Holder(func(h *ipam.Holder) { h.UID = "" }), none))
	r.Reserve("the holder is not known", of(four, nil, none))
	r.Reserve("the pod is not known", of(four, ipamtest.Holder(func(h *ipam.Holder) { h.Pod = "" }), none))
	r.Reserve("the interface is not known", of(four, ipamtest.Holder(func(h *ipam.Holder) { h.Interface = "" }), none))
	r.Reserve("the sandbox is not known", of(four, ipamtest.Holder(func(h *ipam.Holder) { h.Sandbox = "" }), none))
	r.Reserve("the IPPool is not known", of(noName, known, none))
	r.Reserve("the base of the IPPool is not known", of(noBase, known, none))
	r.Reserve("further from the base than whereabouts reads", of(far, known, none))
	r.Reassign("allocated to another pod", of(four, known, other))
	r.Reassign("allocated to another pod, without a container", of(six, known, noID))
	r.Reassign("allocated to an unknown pod", of(four, known, none))
	r.Reassign("allocated to a pod, and the holder is not known", of(four, nil, other))
	r.Release("leaked, in the pool and in a reservation", of(four, nil, at("ippools kube-system/192.0.2.0-29 /spec/allocations/3; overlappingrangeipreservations kube-system/192.0.2.3")))
	r.Release("leaked, with an offset and a reservation of other forms", of(four, nil, at("ippools kube-system/192.0.2.0-29 /spec/allocations/4; overlappingrangeipreservations kube-system/192-0-2-3")))
	r.Release("leaked in a named network, without a container", of(six, nil, noID))
	r.Release("leaked at an offset that is none", of(four, nil, at("ippools kube-system/192.0.2.0-29 /spec/allocations/3x")))
	r.Release("leaked without an offset", of(four, nil, at("ippools kube-system/192.0.2.0-29 /spec/allocations/")))
	r.Release("leaked in an unknown IPPool", of(noName, nil, at("ippools kube-system/192.0.2.0-29 /spec/allocations/3")))
	r.Release("leaked in an IPPool whose base is not known", of(noBase, nil, at("ippools kube-system/192.0.2.0-29 /spec/allocations/3")))
	r.Release("leaked by an unknown pod", of(four, nil, none))
	golden.Compare(t, "testdata/remedies.txt", r.String(), "run `go test ./ipam/whereabouts -update` and review it")
}

// TestTextsAboutPools compares texts with testdata/pools.txt; -update writes it.
func TestTextsAboutPools(t *testing.T) {
	pool := func(name, config string, base netip.Addr) *ipam.Pool {
		return &ipam.Pool{Name: name, Config: config, Base: base}
	}
	base := netip.MustParseAddr("192.0.2.0")
	text := ipamtest.DescribePools(&whereabouts.IPAM, "", netip.MustParseAddr("192.0.2.3"),
		pool("kube-system/192.0.2.0-29", "network-attachment-definitions shop/lan", base),
		pool("kube-system/0.0.0.0-0", "", netip.MustParseAddr("0.0.0.0")),
		pool("kube-system/192.0.2.0-32", "", base),
		pool("kube-system/192.0.2.0-33", "", base),
		pool("kube-system/192.0.2.0-29", "", netip.Addr{}),
		pool("kube-system/lan", "", base),
		pool("kube-system/", "", base))
	golden.Compare(t, "testdata/pools.txt", text, "run `go test ./ipam/whereabouts -update` and review it")
}

func TestTraits(t *testing.T) {
	if got, want := whereabouts.IPAM.Traits, (ipam.Traits{Secondary: true}); got != want || !whereabouts.IPAM.Rebuild {
		t.Errorf("got %+v, rebuilt %t, want %+v, and that the plan writes lost records", got, whereabouts.IPAM.Rebuild, want)
	}
}
