package facts

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/index"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// check walks all tables and compares what finds records with the records.
func (f *Facts) check(t *testing.T, when string) {
	t.Helper()
	addresses := map[index.Address]bool{}
	for n := range f.Nodes {
		users := map[uint32]int32{}
		wires, byMAC, byInterface, byAddress := 0, 0, 0, 0
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
					t.Fatalf("%s: a claim is listed wrongly", when)
				}
				before = c
			}
			if one.mac.form != noMAC {
				found := false
				for k := n.holder(one.mac); k != 0; k = n.interfaces.at(k).alike {
					found = found || k == i
				}
				meets := false
				for by, k := range f.abroadOf(one.mac.bytes) {
					meets = meets || by == n && k == i
				}
				if !found || meets != f.meets(n, i) {
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
			}
		}
		for hw := range n.hardware.all {
			count := uint32(0)
			for range n.by(hw) {
				byMAC++
				count++
			}
			one := n.hardware.at(hw)
			if one.mac.apart() && f.seen.of(one.mac.bytes, n.number) != hw || one.count != count || count == 0 || n.hardwareOf(one.mac) != hw {
				t.Fatalf("%s: %v is kept for nothing, or not found", when, one.mac)
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

// checkCharges checks that a node is charged what its records are charged.
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

// Whatever comes and goes, all that finds records agrees with them.
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
			Attachment: pb.InterfaceRecord_Attachment(1 + r.IntN(5)), Uplink: record == 1 && r.IntN(2) == 0, PeerNamespace: pick[uint32](r, 0, 2, 3), Gone: r.IntN(5) == 0,
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
