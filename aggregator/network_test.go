package aggregator

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

func TestExternalDeviceSeenByTwoNodesIsOneOwner(t *testing.T) {
	l := newLab(t, Config{})
	agents := l.onLAN(2, func(node int) *pb.ReportRequest { return ownAddress(fmt.Sprintf("192.0.2.%d", node)) })
	external := []byte{6, 6, 6, 6, 6, 6}
	for _, a := range agents {
		a.send(records.Claims(entered(pb.Evidence_ANNOUNCED, "192.0.2.50", external))).sync()
	}
	if got := l.owners(&pb.ListOwnersRequest{Address: "192.0.2.50"}); len(got) != 2 {
		t.Errorf("got %v, want two owners on links that are not known to be one", got)
	}
	agents[0].send(records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))).sync()
	got := l.owners(&pb.ListOwnersRequest{Address: "192.0.2.50"})
	if len(got) != 1 || len(got[0].GetEvidence()) != 2 || got[0].GetNode() != "n1" {
		t.Errorf("got %v, want one owner with two witnesses", got)
	}
	// Frames that n1 sees with n2's own address belong to n2.
	got = l.owners(&pb.ListOwnersRequest{Address: "192.0.2.2"})
	if len(got) != 1 || got[0].GetNode() != "n2" || len(got[0].GetEvidence()) != 2 {
		t.Errorf("got %v, want n2 with a witness", got)
	}
}

func TestEndOfAnOwnerEndsItsSightings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		mac := []byte{2, 3, 0, 0, 0, 2}
		agents := l.onLAN(2, onlyOn(2, macvlan(2, "web", addr, mac)))
		agents[0].send(records.Claims(entered(pb.Evidence_ANNOUNCED, addr, mac))).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || len(got[0].GetEvidence()) != 2 {
			t.Fatalf("got %v, want one owner with two witnesses", got)
		}
		time.Sleep(time.Second)
		agents[1].send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}}).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 0 {
			t.Fatalf("got %v, want nobody", got)
		}
		// A delayed frame arrives as a change, and in the snapshot of an agent that reconnects.
		late := entered(pb.Evidence_ANNOUNCED, addr, mac)
		late.Count, late.Age = 2, durationpb.New(500*time.Millisecond)
		agents[0].send(records.Claims(late)).sync()
		time.Sleep(time.Minute)
		late.Age = durationpb.New(time.Minute + 500*time.Millisecond)
		agents[0].cancel()
		synctest.Wait()
		back := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), records.Claims(late))).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 0 {
			t.Errorf("got %v, want no owner: it was seen before the end", got)
		}
		late.Count, late.Age = 3, durationpb.New(time.Millisecond)
		back.send(records.Claims(late)).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || got[0].GetWorkload().GetKind() != pb.Workload_EXTERNAL {
			t.Errorf("got %v, want an external device: it was seen after the end", got)
		}
	})
}

// Containers of two nodes are at bridges in namespaces that a VXLAN device there joins: only a declared network says so.
func TestBridgesInNamespacesOfTwoNodes(t *testing.T) {
	inner := func(node int) *pb.ReportRequest {
		m := podVeth(2, fmt.Sprint("c", node), addr)
		m.Links = []*pb.LinkRecord{{Name: "br0@4011", Kind: pb.LinkRecord_BRIDGE}}
		m.Interfaces = []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Name: "eth0", Kind: "veth", Mac: records.MAC(uint32(node)), Attachment: pb.InterfaceRecord_INNER, Link: "br0@4011"}} //nolint:gosec // 1 or 2
		return m
	}
	for _, declared := range []bool{false, true} {
		var cfg Config
		if declared {
			cfg.Networks = []verdict.Network{{Name: "inner", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
		}
		l := newLab(t, cfg)
		l.onLAN(2, inner)
		if got := len(l.conflicts()) > 0; got != declared {
			t.Errorf("declared %t: got conflicts %v", declared, l.conflicts())
		}
	}
}

func TestNetworks(t *testing.T) {
	given := func(record uint32, name string) *pb.ReportRequest {
		m := podVeth(record, name, addr)
		m.Claims[0].Network = "cbr0"
		return m
	}
	plain := func(record uint32, name string) *pb.ReportRequest { return podVeth(record, name, addr) }
	second := func(record uint32, name string) *pb.ReportRequest {
		m := given(record, name)
		m.Interfaces[0].Name = "net1"
		return m
	}
	container := func(record uint32, name string) *pb.ReportRequest {
		m := given(record, name)
		m.Namespaces[0].Workload.Kind = pb.Workload_CONTAINER
		return m
	}
	ovs := func(record uint32, name string) *pb.ReportRequest {
		m := given(record, name)
		m.Links[0].Kind = pb.LinkRecord_OVS_PORT
		return m
	}
	vrf := func(record uint32, name string) *pb.ReportRequest {
		m := given(record, name)
		m.Interfaces[0].Vrf = "red"
		return m
	}
	pods := []verdict.Network{{Name: "all", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, {
		Name: "tenants", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	}}
	for name, c := range map[string]struct {
		one, two func(uint32, string) *pb.ReportRequest
		declared []verdict.Network
		scope    string
	}{
		"two pods":                         {one: given, two: given, scope: "pods"},
		"one pod and who knows what":       {one: given, two: plain},
		"two of which nothing is known":    {one: plain, two: plain},
		"second interfaces":                {one: second, two: second},
		"containers":                       {one: container, two: container},
		"ports of an Open vSwitch":         {one: ovs, two: ovs, scope: "pods"},
		"pods in VRFs":                     {one: vrf, two: vrf},
		"in a declared network":            {one: plain, two: container, declared: pods, scope: "tenants"},
		"pods in a declared network":       {one: given, two: given, declared: pods, scope: "tenants"},
		"in a declared network, but a VRF": {one: vrf, two: plain, declared: pods},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, Config{Networks: c.declared})
			l.dial().send(snapshot(hello("n1", 1), c.one(2, "a"))).sync()
			l.dial().send(snapshot(hello("n2", 1), c.two(2, "b"))).sync()
			got := l.conflicts()
			if c.scope == "" {
				if len(got) != 0 {
					t.Errorf("got %v, want none", got)
				}
				return
			}
			if len(got) != 1 || got[0].GetScope().GetKind() != pb.Scope_NETWORK || got[0].GetScope().GetName() != c.scope {
				t.Errorf("got %v, want one in NETWORK %s", got, c.scope)
			}
		})
	}
}

func TestConflictOfOneNodeIsWidenedByAnotherNode(t *testing.T) {
	l := newLab(t, Config{})
	one, two := podVeth(2, "a", addr), podVeth(3, "b", addr)
	a := l.dial().send(snapshot(hello("n1", 1), one, two)).sync()
	first := l.conflict(pb.Conflict_SUSPECTED)
	for _, m := range []*pb.ReportRequest{one, two} {
		m.Claims[0].Network = "cbr0"
	}
	a.send(records.Claims(one.Claims[0], two.Claims[0])).sync()
	if c := l.conflict(pb.Conflict_SUSPECTED); c.GetScope().GetKind() != pb.Scope_NODE || c.GetId() != first.GetId() {
		t.Errorf("got %v, want the conflict to keep the scope of the node", c)
	}
	if got := l.owners(&pb.ListOwnersRequest{})[0].GetScope(); got.GetKind() != pb.Scope_NETWORK {
		t.Errorf("got scope %v of a pod, want the widest that applies", got)
	}
	three := podVeth(2, "c", addr)
	three.Claims[0].Network = "cbr0"
	b := l.dial().send(snapshot(hello("n2", 1), three)).sync()
	if c := l.conflict(pb.Conflict_SUSPECTED); c.GetId() != first.GetId() || len(c.GetOwners()) != 3 {
		t.Errorf("got %v, want the third owner in it", c)
	}
	b.send(gone(three.Claims[0])).sync()
	if c := l.conflict(pb.Conflict_SUSPECTED); c.GetId() != first.GetId() || len(c.GetOwners()) != 2 {
		t.Errorf("got %v, want the third owner gone again", c)
	}
}

func TestConflictOfOneLANIsIndependentOfTheOrder(t *testing.T) {
	for _, order := range []string{"the frame", "the results of CNI"} {
		l := newLab(t, Config{})
		agents := l.onLAN(2)
		frame := records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))
		if order == "the frame" {
			agents[0].send(frame).sync()
		}
		for i, a := range agents {
			m := samePods(i + 1)
			m.Interfaces[0].Name, m.Claims[0].Network = "eth0", "lan"
			if order != "the frame" && i == 1 {
				agents[0].send(frame).sync()
			}
			a.send(m).sync()
		}
		if c := l.conflict(pb.Conflict_SUSPECTED); c.GetScope().GetName() != "n1/eth0" {
			t.Errorf("%s first: got %v, want a conflict of the link", order, c.GetScope())
		}
	}
}
