package aggregator

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// nodeMAC is the hardware address of the n-th node's uplink.
func nodeMAC(n int) []byte { return []byte{2, 2, 0, 0, byte(n >> 8), byte(n)} }

// uplink is a node's eth0, the second interface of its own namespace.
func uplink(mac []byte) *pb.ReportRequest {
	return &pb.ReportRequest{
		Links: []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: 2, Name: "eth0", Mac: mac, Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true,
		}},
	}
}

// macvlan is a pod with an address on a node's eth0.
func macvlan(record uint32, name, addr string, mac []byte) *pb.ReportRequest {
	return &pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{podNamespace(record, name)},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: record, Index: 2, Name: "net1", Kind: "macvlan", Mac: mac,
			Attachment: pb.InterfaceRecord_LOWER, Link: "eth0", HostInterface: "eth0",
		}},
		Claims: []*pb.ClaimRecord{assigned(record, addr)},
	}
}

// entered is a frame that came in by a node's eth0.
func entered(kind pb.Evidence_Kind, addr string, mac []byte) *pb.ClaimRecord {
	return &pb.ClaimRecord{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: kind, Namespace: 1, Index: 2, Mac: mac, Link: "eth0",
		FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), Count: 1,
	}
}

func claims(c ...*pb.ClaimRecord) *pb.ReportRequest { return &pb.ReportRequest{Claims: c} }

// ownAddress is an address of the node itself, on its eth0.
func ownAddress(addr string) *pb.ReportRequest { return claims(assigned(1, addr)) }

// onLAN connects nodes n1, n2, … whose uplinks have the MACs of nodeMAC.
func (l *lab) onLAN(n int, parts ...func(node int) *pb.ReportRequest) (agents []*agent) {
	l.Helper()
	for i := range n {
		m := []*pb.ReportRequest{uplink(nodeMAC(i + 1))}
		for _, part := range parts {
			m = append(m, part(i+1))
		}
		h := hello(fmt.Sprintf("n%d", i+1), 1)
		agents = append(agents, l.dial().send(snapshot(h, m...)).sync())
	}
	return agents
}

func samePods(node int) *pb.ReportRequest {
	return macvlan(2, fmt.Sprintf("pod%d", node), addr, []byte{2, 3, 0, 0, 0, byte(node)})
}

func TestAFrameOfAnotherNodeMakesTheirLinksOne(t *testing.T) {
	for name, c := range map[string]struct {
		frame *pb.ClaimRecord
		// others are nodes that have more.
		more func(node int) *pb.ReportRequest
		one  bool
	}{
		"another node's MAC":          {frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)), one: true},
		"a MAC of another node's pod": {frame: entered(pb.Evidence_ANNOUNCED, "192.0.2.7", []byte{2, 3, 0, 0, 0, 2}), one: true},
		"a stranger's MAC":            {frame: entered(pb.Evidence_USED, "192.0.2.2", []byte{6, 6, 6, 6, 6, 6})},
		"our own MAC":                 {frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(1))},
		"another sender": {frame: func() *pb.ClaimRecord {
			c := entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))
			c.Source = []byte{6, 6, 6, 6, 6, 6}
			return c
		}()},
		"a MAC that two nodes have": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", []byte{2, 9, 9, 9, 9, 9}),
			more: func(node int) *pb.ReportRequest {
				if node == 1 {
					return &pb.ReportRequest{}
				}
				return macvlan(9, "x", "192.0.2.99", []byte{2, 9, 9, 9, 9, 9})
			},
		},
		"a virtual router's MAC": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", []byte{0, 0, 0x5e, 0, 1, 7}),
			more:  onlyOn(2, macvlan(9, "x", "192.0.2.99", []byte{0, 0, 0x5e, 0, 1, 7})),
		},
		"a MAC that docker made of an address": {
			frame: entered(pb.Evidence_USED, "172.17.0.2", []byte{2, 0x42, 172, 17, 0, 2}),
			more:  onlyOn(2, macvlan(9, "x", "172.17.0.2", []byte{2, 0x42, 172, 17, 0, 2})),
		},
		"the MAC of a pod that is on a wire of its own": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", podMAC(9)),
			more:  onlyOn(2, podVeth(9, "x", "10.244.0.99")),
		},
		"a MAC of two links of the other node": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)),
			more:  onlyOn(2, vlan10("")),
		},
		"a MAC of two links, of which one has the address": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)),
			more:  onlyOn(2, merge(ownAddress("192.0.2.2"), vlan10(""))),
		},
		"a MAC of two links, of which one has the address, of our subnet": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)),
			more: func(node int) *pb.ReportRequest {
				if node == 1 {
					return ownAddress("192.0.2.1")
				}
				return onlyOn(2, merge(ownAddress("192.0.2.2"), vlan10("")))(node)
			}, one: true,
		},
		"a MAC of two links, of which one has the address, which it announced": {
			frame: entered(pb.Evidence_ANNOUNCED, "192.0.2.2", nodeMAC(2)),
			more:  onlyOn(2, merge(ownAddress("192.0.2.2"), vlan10(""))), one: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{})
				if c.more == nil {
					c.more = func(int) *pb.ReportRequest { return &pb.ReportRequest{} }
				}
				agents := l.onLAN(3, samePods, c.more)
				if got := l.conflicts(); len(got) != 0 {
					t.Fatalf("got %v, want no conflict before a frame", got)
				}
				agents[0].send(claims(c.frame)).sync()
				got := l.conflicts()
				if !c.one {
					if len(got) != 0 {
						t.Errorf("got %v, want no conflict", got)
					}
					return
				}
				if len(got) != 1 || got[0].GetScope().GetName() != "n1/eth0" || len(got[0].GetOwners()) != 2 || got[0].GetRule() != "assigned-twice" {
					t.Errorf("got %v, want a conflict of n1 and n2 on link n1/eth0", got)
				}
			})
		})
	}
}

func onlyOn(node int, part *pb.ReportRequest) func(int) *pb.ReportRequest {
	return func(n int) *pb.ReportRequest {
		if n != node {
			return &pb.ReportRequest{}
		}
		return part
	}
}

// vlan10 is eth0.10 of node n2, which has the MAC of eth0.
func vlan10(addr string) *pb.ReportRequest {
	m := &pb.ReportRequest{
		Links: []*pb.LinkRecord{{Name: "eth0.10", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: 3, Name: "eth0.10", Kind: "vlan", Mac: nodeMAC(2), Attachment: pb.InterfaceRecord_OWN, Link: "eth0.10",
		}},
	}
	if addr != "" {
		c := assigned(1, addr)
		c.Index = 3
		m.Claims = append(m.Claims, c)
	}
	return m
}

func TestTheFrameMayComeBeforeItsSendersNode(t *testing.T) {
	l := newLab(t, Config{})
	one := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), samePods(1))).sync()
	one.send(claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))).sync()
	l.dial().send(snapshot(hello("n2", 1), uplink(nodeMAC(2)), samePods(2))).sync()
	if c := l.conflict(pb.Conflict_SUSPECTED); len(c.GetOwners()) != 2 {
		t.Errorf("got %v, want two owners", c)
	}
}

func TestAStitchAgesOutButNotUnderAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{StaleAfter: time.Minute})
		agents := l.onLAN(2, samePods)
		agents[0].send(claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))).sync()
		answer := func() {
			for i, a := range agents {
				_ = a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
				_ = i
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		answer()
		first := l.conflict(pb.Conflict_CONFIRMED)
		time.Sleep(time.Hour) // without a frame
		if c := l.conflict(pb.Conflict_CONFIRMED); c.GetId() != first.GetId() || c.GetEpisode() != 1 {
			t.Errorf("got %v, want the conflict to go on", c)
		}

		agents[1].send(gone(assigned(2, addr))).sync()
		l.conflict(pb.Conflict_RESOLVED)
		time.Sleep(8 * time.Minute) // two generations and more
		agents[1].send(claims(assigned(2, addr))).sync()
		l.conflict(pb.Conflict_RESOLVED)
		if len(l.store.domains) != 0 || len(l.store.present)+len(l.store.previous) != 0 {
			t.Errorf("got %d domains and stitches %v %v, want none", len(l.store.domains), l.store.present, l.store.previous)
		}

		again := entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))
		again.Count = 2
		agents[0].send(claims(again)).sync()
		if c := l.conflict(pb.Conflict_SUSPECTED); c.GetId() != first.GetId() || c.GetEpisode() != 2 {
			t.Errorf("got %v, want the second episode of %s", c, first.GetId())
		}
	})
}

func TestAStrangerSeenByTwoNodesIsOneOwner(t *testing.T) {
	l := newLab(t, Config{})
	agents := l.onLAN(2, func(node int) *pb.ReportRequest { return ownAddress(fmt.Sprintf("192.0.2.%d", node)) })
	stranger := []byte{6, 6, 6, 6, 6, 6}
	for _, a := range agents {
		a.send(claims(entered(pb.Evidence_ANNOUNCED, "192.0.2.50", stranger))).sync()
	}
	if got := l.owners(&pb.ListOwnersRequest{Address: "192.0.2.50"}); len(got) != 2 {
		t.Errorf("got %v, want two owners on links that are not known to be one", got)
	}
	agents[0].send(claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))).sync()
	got := l.owners(&pb.ListOwnersRequest{Address: "192.0.2.50"})
	if len(got) != 1 || len(got[0].GetEvidence()) != 2 || got[0].GetNode() != "n1" {
		t.Errorf("got %v, want one owner with two witnesses", got)
	}
	// And what n1 sees of n2's own address is n2's.
	got = l.owners(&pb.ListOwnersRequest{Address: "192.0.2.2"})
	if len(got) != 1 || got[0].GetNode() != "n2" || len(got[0].GetEvidence()) != 2 {
		t.Errorf("got %v, want n2 with a witness", got)
	}
}

func TestAnOwnersEndAtHomeEndsWhatOthersSaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		mac := []byte{2, 3, 0, 0, 0, 2}
		agents := l.onLAN(2, onlyOn(2, macvlan(2, "web", addr, mac)))
		agents[0].send(claims(entered(pb.Evidence_ANNOUNCED, addr, mac))).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || len(got[0].GetEvidence()) != 2 {
			t.Fatalf("got %v, want one owner with two witnesses", got)
		}
		time.Sleep(time.Second)
		agents[1].send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}}).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 0 {
			t.Fatalf("got %v, want nobody", got)
		}
		// A frame that was under way: as a change, and in the snapshot of an agent
		// that comes back.
		late := entered(pb.Evidence_ANNOUNCED, addr, mac)
		late.Count, late.Age = 2, durationpb.New(500*time.Millisecond)
		agents[0].send(claims(late)).sync()
		time.Sleep(time.Minute)
		late.Age = durationpb.New(time.Minute + 500*time.Millisecond)
		agents[0].cancel()
		synctest.Wait()
		back := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), claims(late))).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 0 {
			t.Errorf("got %v, want nobody: it was seen before the end", got)
		}
		late.Count, late.Age = 3, durationpb.New(time.Millisecond)
		back.send(claims(late)).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || got[0].GetWorkload().GetKind() != pb.Workload_EXTERNAL {
			t.Errorf("got %v, want a stranger: it was seen after the end", got)
		}
	})
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
		"ports of an Open vSwitch":         {one: ovs, two: ovs},
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

func TestPodsOfOneNodeAreItsConflictUnlessAnotherNodeHasOneToo(t *testing.T) {
	l := newLab(t, Config{})
	one, two := podVeth(2, "a", addr), podVeth(3, "b", addr)
	a := l.dial().send(snapshot(hello("n1", 1), one, two)).sync()
	first := l.conflict(pb.Conflict_SUSPECTED)
	for _, m := range []*pb.ReportRequest{one, two} {
		m.Claims[0].Network = "cbr0"
	}
	a.send(claims(one.Claims[0], two.Claims[0])).sync()
	if c := l.conflict(pb.Conflict_SUSPECTED); c.GetScope().GetKind() != pb.Scope_NODE || c.GetId() != first.GetId() {
		t.Errorf("got %v, want the conflict to stay that of the node", c)
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

func TestPodsOfOneLANAreItsConflictWhateverCameFirst(t *testing.T) {
	for _, order := range []string{"the frame", "the results of CNI"} {
		l := newLab(t, Config{})
		agents := l.onLAN(2)
		frame := claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))
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

func TestAMachineThatWasBootedAnewHasNothingOfBefore(t *testing.T) {
	for _, order := range []string{"the old one is silent first", "the new one comes first"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{})
				old := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), podVeth(2, "a", addr))).sync()
				h := hello("n1", 2)
				h.BootId = "another-boot"
				if strings.HasPrefix(order, "the old") {
					old.cancel()
					synctest.Wait()
				}
				old.mute.Store(true) // it is not there any more
				time.Sleep(time.Second)
				l.dial().send(snapshot(h, uplink(nodeMAC(1)), podVeth(5, "b", addr))).sync()
				if strings.HasPrefix(order, "the new") {
					if err := old.ended(); !strings.Contains(err.Error(), "nothing was heard") {
						t.Errorf("got %v, want that the agent is silent", err)
					}
					synctest.Wait()
				}
				got := l.owners(&pb.ListOwnersRequest{})
				if len(got) != 1 || got[0].GetWorkload().GetName() != "b" || got[0].GetNode() != "n1" {
					t.Errorf("got %v, want the pod of the new boot only", got)
				}
			})
		})
	}
}

func TestLagAndSkewAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial()
		a.mute.Store(true)
		a.send(snapshot(hello("n1", 1))).sync()
		node := func() *pb.Node {
			out, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return out.GetNodes()[0]
		}
		if n := node(); n.GetSkew() != nil || n.GetLag() != nil {
			t.Errorf("got %v, want lag and skew unknown", n)
		}
		time.Sleep(5 * time.Second)
		if n := node(); n.GetLag().AsDuration() != 5*time.Second {
			t.Errorf("got lag %v, want the 5s since a ping that was not answered", n.GetLag())
		}
		a.send(&pb.ReportRequest{Pong: &pb.Pong{Id: 1, SentAt: timestamppb.New(time.Now().Add(time.Hour))}}).sync()
		synctest.Wait()
		// It took five seconds, so it may be from any time of them.
		if n := node(); n.GetSkew().AsDuration() != time.Hour+2500*time.Millisecond || n.GetLag().AsDuration() != 2500*time.Millisecond {
			t.Errorf("got %v, want the clock an hour and 2.5s ahead", n)
		}
	})
}

// TestDomainsAreWhatStitchesOfTwoGenerationsConnect makes random stitches, ends
// links and begins generations, and compares with a plain search.
func TestDomainsAreWhatStitchesOfTwoGenerationsConnect(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := newStore(verdict.Policy{Cluster: "c", StaleAfter: time.Minute}, slog.New(slog.DiscardHandler), newMetrics())
		var links []*link
		fresh := func(i int) *link {
			id := nodeID{fmt.Sprint("boot", i), "1", ""}
			n := s.nodes[id]
			if n == nil {
				n = newNode(id)
				n.rec.Name = fmt.Sprint("n", i)
				s.nodes[id] = n
			}
			l := n.link("eth0")
			l.known = true
			return l
		}
		const count = 8
		for i := range count {
			links = append(links, fresh(i))
		}
		var edges [2][][2]*link // of this generation, and of the one before
		for step := range 60 {
			switch a, b := r.IntN(count), r.IntN(count); r.IntN(8) {
			case 0:
				s.rotate()
				edges[1], edges[0] = edges[0], nil
			case 1:
				s.endLink(links[a].node, links[a])
				links[a] = fresh(a)
			default:
				if a != b {
					s.stitch(links[a], links[b], "\x02\x00\x00\x00\x00\x01", s.clock())
					edges[0] = append(edges[0], [2]*link{links[a], links[b]})
				}
			}
			for _, a := range links {
				for _, b := range links {
					want := a != b && connected(slices.Concat(edges[0], edges[1]), a, b)
					if got := a != b && a.domain != nil && a.domain == b.domain; got != want {
						t.Fatalf("seed %d, step %d: %s and %s are one: got %v, want %v", seed, step, a.node.rec.Name, b.node.rec.Name, got, want)
					}
				}
				if (a.domain == nil) != (a.rec.Domain == nil) || a.domain != nil && (a.domain.rec != a.rec.Domain || !slices.Contains(a.domain.links, a)) {
					t.Fatalf("seed %d, step %d: %s has not the record of its domain", seed, step, a.node.rec.Name)
				}
			}
			for d := range s.domains {
				first := slices.MinFunc(d.links, compareLinks)
				if len(d.links) < 2 || d.rec.Node != first.node.rec || d.rec.Name != first.rec.Name {
					t.Fatalf("seed %d, step %d: domain %v of %d links is not named by its first", seed, step, d.rec, len(d.links))
				}
			}
		}
	}
}

func connected(edges [][2]*link, from, to *link) bool {
	reached := []*link{from}
	for i := 0; i < len(reached); i++ {
		for _, e := range edges {
			for k := range e {
				if e[k] == reached[i] && !slices.Contains(reached, e[1-k]) {
					reached = append(reached, e[1-k])
				}
			}
		}
	}
	return slices.Contains(reached, to)
}
