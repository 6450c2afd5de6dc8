package facts

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/index"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// check walks all tables, and compares the indexes with the records.
func (f *Facts) check(t *testing.T, when string) {
	t.Helper()
	addresses := map[index.Address]bool{}
	for n := range f.Nodes {
		users := map[uint32]int32{}
		wires, histories, byMAC, byInterface, byAddress := 0, 0, 0, 0, 0
		for i := range n.interfaces.all {
			one := n.interfaces.at(i)
			if n.iface(n.namespaces.at(one.namespace).record, one.index) != i {
				t.Fatalf("%s: an interface is not found", when)
			}
			if one.link != 0 {
				users[one.link]++
			}
			before := uint32(0)
			for c := range n.on(i) {
				byInterface++
				if claim := n.claims.at(c); claim.port != i || claim.before != before {
					t.Fatalf("%s: a claim is not in its list, or in another one", when)
				}
				before = c
			}
			if one.mac.form != noMAC {
				found := false
				for k := n.holder(one.mac); k != 0; k = n.interfaces.at(k).alike {
					found = found || k == i
				}
				if at := f.holders.of(one.mac.bytes, n.number); at != 0 && !f.reachesOthers(n, at) {
					t.Fatalf("%s: an interface that cannot be on the link of another node is found by %v", when, one.mac)
				}
				meets := false
				for by, k := range f.holdersOf(one.mac.bytes) {
					meets = meets || by == n && k == i
				}
				if !found || meets != f.reachesOthers(n, i) {
					t.Fatalf("%s: the interface with %v is not found by it", when, one.mac)
				}
			}
		}
		for ns := range n.namespaces.all {
			if n.namespace(n.namespaces.at(ns).record) != ns {
				t.Fatalf("%s: a namespace is not found", when)
			}
			for i := range n.inside(ns) {
				if n.interfaces.at(i).namespace != ns {
					t.Fatalf("%s: an interface is in another namespace", when)
				}
			}
		}
		for c := range n.claims.all {
			claim := n.claims.at(c)
			addresses[claim.addr] = true
			found := false
			for k := range n.same(f.addresses.of(claim.addr, n.number)) {
				found = found || k == c
			}
			if found {
				byAddress++
			}
			if claim.wire() != 0 {
				wires++
				if l := n.wires.at(claim.wire()).link; l != 0 {
					users[l]++
				}
			} else if claim.more != 0 {
				histories++
			}
		}
		if histories != n.histories.count {
			t.Fatalf("%s: got %d histories, want %d", when, n.histories.count, histories)
		}
		for i, r := range n.rare {
			if !n.interfaces.has(i) || r == (rare{}) {
				t.Fatalf("%s: rare fields are kept without an interface", when)
			}
		}
		for source, list := range n.sources {
			for _, c := range list {
				if !n.claims.has(c) || n.texts.macOf(n.wires.at(n.claims.at(c).wire()).source) != source {
					t.Fatalf("%s: a claim is not in the list of its sender, or in another one", when)
				}
			}
			if len(list) == 0 {
				t.Fatalf("%s: a sender without claims is kept", when)
			}
		}
		for hw := range n.hardware.all {
			count := uint32(0)
			for range n.by(hw) {
				byMAC++
				count++
			}
			one := n.hardware.at(hw)
			if one.mac.identifiesOne() && f.seen.of(one.mac.bytes, n.number) != hw || one.count != count || count == 0 || n.hardwareOf(one.mac) != hw {
				t.Fatalf("%s: %v is kept without records, or not found", when, one.mac)
			}
		}
		for l := range n.links.all {
			if one := n.links.at(l); one.users != users[l] || n.link(n.texts.get(one.name)) != l || one.users == 0 && !one.flags.has(known) {
				t.Fatalf("%s: link %s has %d users, want %d", when, n.texts.get(one.name), one.users, users[l])
			}
		}
		if byInterface != n.claims.count || byAddress != n.claims.count || wires != n.wireClaims || byMAC != wires || n.wires.count != wires {
			t.Fatalf("%s: got %d claims on interfaces, %d by address, %d by MAC of %d, %d of the wire", when, byInterface, byAddress, byMAC, n.claims.count, wires)
		}
		f.checkCharges(t, n, when)
	}
	if got := f.addresses.len(); got != len(addresses) {
		t.Fatalf("%s: got %d addresses, want %d", when, got, len(addresses))
	}
}

// checkCharges checks that the charge of a node is the sum of its records' charges.
func (f *Facts) checkCharges(t *testing.T, n *Node, when string) {
	t.Helper()
	given := int64(0)
	for _, all := range f.allocations {
		for _, al := range all {
			if al.Pool.Node == n.Rec {
				given += int64(al.cost)
			}
		}
	}
	sum := int64(n.cost) + int64(n.statusCost)
	for i := range n.namespaces.all {
		sum += int64(n.namespaces.at(i).cost)
	}
	for i := range n.links.all {
		sum += int64(n.links.at(i).cost)
	}
	for i := range n.interfaces.all {
		sum += int64(n.interfaces.at(i).cost)
	}
	for i := range n.claims.all {
		sum += int64(n.claims.at(i).cost)
	}
	for _, p := range n.Pools {
		sum += int64(p.cost)
	}
	if left := n.used - sum - given; left != 0 {
		t.Fatalf("%s: node %s is charged %d bytes more than its records", when, n.Rec.Name, left)
	}
}

// After any sequence of changes, all indexes agree with the records.
func TestTablesAgreeAfterEachChange(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		f, _ := newFacts(t)
		type side struct {
			p *quiet
			n *Node
		}
		var sides []side
		for i := range 3 {
			p, n := connectNode(t, f, fmt.Sprint("n", i))
			snapshotOf(t, f, p, n, &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}})
			sides = append(sides, side{p, n})
		}
		for step := range 250 {
			s := sides[r.IntN(len(sides))]
			m := randomChange(r)
			if r.IntN(40) == 0 {
				snapshotOf(t, f, s.p, s.n, records.Merge(pod(2, "10.0.0.1"), m))
			} else {
				deltaOf(t, f, s.p, s.n, m)
			}
			if r.IntN(20) == 0 {
				s.n.compact()
			}
			f.judgeAll()
			f.check(t, fmt.Sprintf("seed %d step %d", seed, step))
		}
	}
}

func pick[T any](r *rand.Rand, items ...T) T { return items[r.IntN(len(items))] }

func randomChange(r *rand.Rand) *pb.ReportRequest {
	record := pick[uint32](r, 1, 2, 3, 4)
	mac := pick(r, []byte{2, 0, 0, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 2}, []byte{2, 0, 0, 0, 0, 3}, make([]byte, 20), nil)
	link := pick(r, "l1", "l2", "l3", "")
	switch r.IntN(6) {
	case 0:
		return &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{
			Id: record, Netns: pick(r, "", "4001", "0042"), Gone: record > 1 && r.IntN(3) == 0,
			Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: pick(r, "a", "b"), ContainerId: pick(r, "", "c1", "c2")},
		}}}
	case 1:
		if link == "" {
			link = "l1"
		}
		return &pb.ReportRequest{Links: []*pb.LinkRecord{{Name: link, Kind: pick(r, pb.LinkRecord_BRIDGE, pb.LinkRecord_POINT_TO_POINT, pb.LinkRecord_UPLINK), Gone: r.IntN(4) == 0}}}
	case 2, 3:
		return &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{
			Namespace: record, Index: pick[uint32](r, 2, 3), Name: "eth0", Mac: mac, Link: link, Kind: pick(r, "veth", "vlan"),
			Attachment: pb.InterfaceRecord_Attachment(1 + r.IntN(5)), Uplink: record == 1 && r.IntN(2) == 0, PeerNamespace: pick[uint32](r, 0, 2, 3), Gone: r.IntN(5) == 0, Vrf: pick(r, "", "red"),
		}}}
	}
	c := assigned(record, pick(r, "10.0.0.1", "10.0.0.2", "fe80::1"))
	c.Index, c.Gone, c.Count = pick[uint32](r, 2, 3), r.IntN(4) == 0, r.Uint32N(3)
	if record == 1 && mac != nil && r.IntN(3) > 0 {
		c.Kind, c.Mac, c.Link = pick(r, pb.Evidence_ANSWERED, pb.Evidence_USED, pb.Evidence_BELIEVED), mac, link
		if r.IntN(4) == 0 {
			c.Source = []byte{2, 0, 0, 0, 0, 9}
		}
	}
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{c}}
}

// Compacting the texts of a node does not change its records.
func TestTextsInUseStayWhenOthersAreDropped(t *testing.T) {
	unusual := []byte("twenty bytes of a MAC")
	m := bridgeAndPods()
	for _, i := range m.Interfaces {
		switch i.Namespace {
		case 2:
			i.Mac, i.HostInterface, i.Vrf = unusual, "host", "red"
		case 3:
			i.PeerNamespace, i.HostInterface = 2, "other"
		}
	}
	m.Namespaces[3].Intended = []*pb.Intended{{Address: "10.0.0.7", Source: "cri", Interface: "eth0"}}
	frame := &pb.ClaimRecord{
		Address: []byte{10, 0, 0, 2}, Kind: pb.Evidence_USED, Namespace: 1, Index: 12, Mac: unusual, Source: []byte("twenty bytes of them"), Link: "far", Network: "net9", Count: 1,
	}
	m.Claims = append(m.Claims, frame)
	s := newScene(t)
	a := s.joins("n1", "b1", 1, m)
	what := func() (text string) {
		for _, addr := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.1.0.1", "10.1.0.4", "10.2.0.1"} {
			text += s.text(addr) + "\n"
		}
		for _, i := range a.n.InterfacesOf(1) {
			text += fmt.Sprintf("%s %s %s\n", i.Name, i.Kind, i.VRF)
		}
		return text + a.n.NamespaceOf(5).ID + a.n.NamespaceOf(5).Intended
	}
	want := what()
	for i := range 500 {
		a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 9, Netns: "9", Workload: &pb.Workload{Kind: pb.Workload_CONTAINER, Name: fmt.Sprint("container", i)}}}})
	}
	full := a.n.texts.arena.Len()
	a.snapshot(m)
	if got := a.n.texts.arena.Len(); got > full/4 {
		t.Errorf("got %d bytes of texts after a snapshot, %d before", got, full)
	}
	if got := what(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	frame.Gone = true
	if a.report(records.Claims(frame)); s.WiredOrFailed(key("10.0.0.2")) {
		t.Error("got a removed frame")
	}
	s.check(t, "the frame is gone")
}
