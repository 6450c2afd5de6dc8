package facts

import (
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// deaf is a Listener that counts what is dropped.
type deaf struct {
	dropped map[string]int
	watched bool
}

func (d *deaf) NodeChanged(*Node)                  {}
func (d *deaf) NamesChanged(*Node)                 {}
func (d *deaf) Answered(*Node)                     {}
func (d *deaf) RangesChanged(*Node)                {}
func (d *deaf) MayLack(*Node, uint32)              {}
func (d *deaf) PoolChanged(*Pool)                  {}
func (d *deaf) PoolEnded(*Pool)                    {}
func (d *deaf) CoverageChanged()                   {}
func (d *deaf) OwnersWatched() bool                { return d.watched }
func (d *deaf) Contested(func(index.Address) bool) {}
func (d *deaf) AtRisk(*Pool) []netip.Addr          { return nil }
func (d *deaf) Dropped(record string, n int)       { d.dropped[record] += n }
func (d *deaf) Refused(string)                     {}

// quiet is a Peer that is told things in vain.
type quiet struct{ ended error }

func (q *quiet) End(err error)                                  { q.ended = err }
func (q *quiet) Contest(netip.Addr, bool)                       {}
func (q *quiet) Check(netip.Addr)                               {}
func (q *quiet) AskResync()                                     {}
func (q *quiet) Lag(verdict.Stamp) (lag time.Duration, ok bool) { return 0, false }

var policyForTests = verdict.Policy{Cluster: "c", Settle: 3 * time.Second, StaleAfter: time.Minute, NodeTimeout: time.Minute}

func newFacts(t testing.TB) (*Facts, *deaf) {
	t.Helper()
	l := &deaf{dropped: map[string]int{}}
	var now verdict.Stamp
	return New(Config{
		Policy: &policyForTests, Log: slog.New(slog.DiscardHandler), Clock: func() verdict.Stamp { now++; return now }, Listener: l, Queues: 2,
	}), l
}

// judgeAll takes all that waits from the queues, and returns the addresses.
func (f *Facts) judgeAll() (addrs []netip.Addr) {
	f.RLock()
	defer f.RUnlock()
	for _, q := range f.queues {
		for item := q.Next(); item != nil; item = q.Next() {
			addrs = append(addrs, item.Address.Addr())
			item.Finish()
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

func connectNode(t testing.TB, f *Facts, name string) (*quiet, *Node) {
	t.Helper()
	p := &quiet{}
	n, _, err := f.Connect(p, &pb.Hello{Node: name, BootId: "boot-" + name, Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	return p, n
}

func once(messages ...*pb.ReportRequest) iter.Seq[*pb.ReportRequest] { return slices.Values(messages) }

func snapshotOf(t testing.TB, f *Facts, p Peer, n *Node, messages ...*pb.ReportRequest) []*Batch {
	t.Helper()
	batches, err := f.Snapshot(p, n, &Snapshot{Messages: once(messages...)}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	return batches
}

func deltaOf(t testing.TB, f *Facts, p Peer, n *Node, m *pb.ReportRequest) *Batch {
	t.Helper()
	b, err := f.Delta(p, n, m, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pod is a namespace with an interface and its host end, and an address.
func pod(record uint32, addr string) *pb.ReportRequest {
	port := "veth" + strconv.Itoa(int(record))
	return &pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{
			{Id: 1, Netns: "1"},
			{Id: record, Netns: strconv.Itoa(4000 + int(record)), Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: port, Uid: "uid" + port}},
		},
		Links: []*pb.LinkRecord{{Name: port, Kind: pb.LinkRecord_POINT_TO_POINT}},
		Interfaces: []*pb.InterfaceRecord{
			{Namespace: record, Index: 2, Name: "eth0", Mac: []byte{2, 0, 0, 0, 0, byte(record)}, Attachment: pb.InterfaceRecord_PEER, Link: port},
			{Namespace: 1, Index: 100 + record, Name: port, Mac: []byte{2, 1, 0, 0, 0, byte(record)}, Attachment: pb.InterfaceRecord_OWN, Link: port, PeerNamespace: record},
		},
		Claims: []*pb.ClaimRecord{assigned(record, addr)},
	}
}

func assigned(record uint32, addr string) *pb.ClaimRecord {
	return &pb.ClaimRecord{Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: record, Index: 2, Count: 1, PrefixLength: 24}
}

func announced(record uint32, addr string, mac []byte) *pb.ClaimRecord {
	return &pb.ClaimRecord{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 100 + record, Mac: mac,
		Link: "veth" + strconv.Itoa(int(record)), Count: 1,
	}
}

func (f *Facts) owners(a string) []verdict.Owner {
	f.RLock()
	defer f.RUnlock()
	return f.Policy.Judge(f.Builder().Case(index.AddressOf(netip.MustParseAddr(a)), false)).Owners
}

// Records beyond the limit of their kind are dropped; records that a node already has stay.
func TestRecordsOfEachKindAreLimited(t *testing.T) {
	f, _ := newFacts(t)
	p, n := connectNode(t, f, "n1")
	const more = 10
	m := &pb.ReportRequest{}
	for i := range uint32(MaxNamespaces + more) {
		m.Namespaces = append(m.Namespaces, &pb.NamespaceRecord{Id: i + 1})
	}
	for i := range MaxLinks + more {
		m.Links = append(m.Links, &pb.LinkRecord{Name: fmt.Sprint("veth", i), Kind: pb.LinkRecord_POINT_TO_POINT})
	}
	for i := range uint32(MaxInterfaces + more) {
		m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{Namespace: 1, Index: i + 1, Name: "eth0", Attachment: pb.InterfaceRecord_OWN})
	}
	for range 2 { // sending them again changes nothing
		deltaOf(t, f, p, n, m)
	}
	if got, want := []int{n.namespaces.count, n.links.count, n.interfaces.count}, []int{MaxNamespaces, MaxLinks, MaxInterfaces}; !slices.Equal(got, want) {
		t.Errorf("namespaces, links, interfaces: got %d, want %d", got, want)
	}
}

func TestClaimsOverTheLimitAreLeftOut(t *testing.T) {
	f, dropped := newFacts(t)
	p, n := connectNode(t, f, "n1")
	snapshotOf(t, f, p, n, pod(2, "10.0.0.1"))
	deltaOf(t, f, p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(2, "10.0.0.1", []byte{2, 0, 0, 0, 0, 2})}})
	n.wireClaims += MaxClaims - 1
	deltaOf(t, f, p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(2, "10.0.0.1", []byte{2, 0, 0, 0, 0, 3}), assigned(2, "10.0.0.2")}})
	if n.Excess() != 1 || dropped.dropped["claim"] != 1 || len(f.owners("10.0.0.2")) != 1 {
		t.Errorf("got %d left out, %v dropped and owners %v, want 1 and what the kernel has", n.Excess(), dropped.dropped, f.owners("10.0.0.2"))
	}
	n.wireClaims = 1 - MaxClaims
	if _, err := f.Delta(p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(2, "10.0.0.3")}}, 0, nil); status.Code(err) != codes.ResourceExhausted || len(f.owners("10.0.0.3")) != 0 {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED and nothing of the message taken", err)
	}
}

// What one node may say that it has given counts for the node, in however many pools.
func TestOneNodeDoesNotTakeTheRoomOfAll(t *testing.T) {
	f, _ := newFacts(t)
	p, n := connectNode(t, f, "n1")
	give := func(pool, addr string, gone bool) {
		deltaOf(t, f, p, n, &pb.ReportRequest{
			Pools:       []*pb.PoolRecord{{Ipam: verdict.HostLocal, Name: pool, State: pb.Pool_KNOWN}},
			Allocations: []*pb.AllocationRecord{{Ipam: verdict.HostLocal, Pool: pool, Address: netip.MustParseAddr(addr).AsSlice(), Gone: gone}},
		})
	}
	give("a", "10.0.0.1", false)
	give("b", "10.1.0.1", false)
	if n.allocated != 2 {
		t.Fatalf("got %d allocations, want 2", n.allocated)
	}
	n.allocated = MaxNodeAllocations
	if give("c", "10.2.0.1", false); f.Allocations() != 2 {
		t.Errorf("got %d allocations, want the one that is too many to be dropped", f.Allocations())
	}
	n.allocated = 2
	if give("a", "10.0.0.1", true); n.allocated != 1 || f.Allocations() != 1 {
		t.Errorf("got %d and %d allocations, want 1", n.allocated, f.Allocations())
	}
}

func TestNodesAreLimited(t *testing.T) {
	f, _ := newFacts(t)
	more := NodeID{"boot", "1", "one more"}
	for i := range maxNodes {
		if err := f.mayBeOneMore(more); err != nil {
			t.Fatalf("node %d: %v", i+1, err)
		}
		n := newNode(NodeID{fmt.Sprint("boot", i), "1", fmt.Sprint("n", i)})
		n.number = uint32(len(f.nodes))
		f.nodes, f.byID[n.ID] = append(f.nodes, n), n
	}
	if err := f.mayBeOneMore(more); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more than %d nodes: got %v, want ResourceExhausted", maxNodes, err)
	}
}

// A machine that is rebooted again and again is not kept out for what it was.
func TestWhatANodeWasDoesNotKeepItOut(t *testing.T) {
	f, _ := newFacts(t)
	for i := range maxOfOneName {
		n := newNode(NodeID{fmt.Sprint("boot", i), "1", "n1"})
		n.Name = "n1"
		f.add(n)
	}
	more := NodeID{"boot more", "1", "n1"}
	if err := f.mayBeOneMore(more); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one boot more: got %v, want ResourceExhausted", err)
	}
	if err := f.mayBeOneMore(NodeID{"boot0", "1", "n2"}); err != nil {
		t.Errorf("of another name: %v", err)
	}
	f.byID[NodeID{"boot0", "1", "n1"}].Rec.TimedOut = true
	if err := f.mayBeOneMore(more); err != nil {
		t.Errorf("one boot more when one is given up: %v", err)
	}
}

// What an agent says of sources and intended addresses is kept in memory: long words are
// no agent's.
func TestLongWordsAreNotKept(t *testing.T) {
	long := string(make([]byte, MaxWord+1))
	if got := intended([]*pb.Intended{{Address: "10.0.0.1", Source: long}, {Address: "10.0.0.2", Interface: long}, {Address: "10.0.0.3", Source: "cri"}}); got != "10.0.0.3 cri " {
		t.Errorf("got %d bytes of intended addresses", len(got))
	}
	if got := sources(map[string]string{long: "cri", "uid": long, "name": "cri"}); got != "name=cri" {
		t.Errorf("got %d bytes of sources", len(got))
	}
}

// While a snapshot is under way nobody judges what it touched; small changes come before it.
func TestBatchesAreJudgedWholeAndSmallOnesFirst(t *testing.T) {
	f, _ := newFacts(t)
	p, n := connectNode(t, f, "n1")
	m := pod(2, "10.0.0.1")
	for i := range 2 * fewAddresses {
		m.Claims = append(m.Claims, assigned(2, fmt.Sprintf("10.0.1.%d", i+1)))
	}
	inside := 0
	batches, err := f.Snapshot(p, n, &Snapshot{Messages: once(m)}, func() {
		for _, q := range f.queues {
			if item := q.Next(); item != nil {
				t.Errorf("got %s to judge while the snapshot is under way", item.Address.Addr())
			}
			inside += q.Len()
		}
	})
	if err != nil || inside != 2*fewAddresses+1 {
		t.Fatalf("got %v and %d addresses that wait, want %d", err, inside, 2*fewAddresses+1)
	}
	b := deltaOf(t, f, p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(2, "10.0.2.1"), assigned(2, "10.0.1.7")}})
	f.RLock()
	for _, a := range []string{"10.0.2.1", "10.0.1.7"} {
		f.queue(index.AddressOf(netip.MustParseAddr(a))).Next().Finish()
	}
	f.RUnlock()
	select {
	case <-b.Done():
	default:
		t.Error("the small change is not judged first")
	}
	if got := len(f.judgeAll()); got != 2*fewAddresses {
		t.Errorf("got %d more addresses, want %d", got, 2*fewAddresses)
	}
	for _, b := range batches {
		<-b.Done()
	}
}

func TestOwnersAreDerivedBeforeTheyChange(t *testing.T) {
	f, l := newFacts(t)
	p, n := connectNode(t, f, "n1")
	snapshotOf(t, f, p, n, pod(2, "10.0.0.1"))
	f.judgeAll()
	l.watched = true
	gone := assigned(2, "10.0.0.1")
	gone.Gone = true
	deltaOf(t, f, p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{gone}})
	deltaOf(t, f, p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(2, "10.0.0.1")}})
	a := index.AddressOf(netip.MustParseAddr("10.0.0.1"))
	f.RLock()
	defer f.RUnlock()
	item := f.queue(a).Next()
	if !item.Derived || len(item.Before) != 1 || item.Before[0].Namespace.Who.Name() != "veth2" {
		t.Errorf("got %v before, want the pod as it was before both changes", item.Before)
	}
}

// check walks all tables and compares what finds records with the records.
func (f *Facts) check(t *testing.T, when string) {
	t.Helper()
	claims := 0
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
			found := false
			for k := range n.same(f.addresses.of(claim.addr, n.number)) {
				found = found || k == c
			}
			if found {
				byAddress++
			}
			if claim.wire != 0 {
				wires++
				if l := n.wires.at(claim.wire).link; l != 0 {
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
		claims += n.claims.count
	}
	if got := f.addresses.len(); got > claims {
		t.Fatalf("%s: got %d addresses of %d claims", when, got, claims)
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
				snapshotOf(t, f, s.p, s.n, merge(pod(2, "10.0.0.1"), m))
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

func merge(a, b *pb.ReportRequest) *pb.ReportRequest {
	a.Namespaces, a.Links = append(a.Namespaces, b.Namespaces...), append(a.Links, b.Links...)
	a.Interfaces, a.Claims = append(a.Interfaces, b.Interfaces...), append(a.Claims, b.Claims...)
	return a
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

func TestRefsAreLikeAMapOfLists(t *testing.T) {
	keys := map[ref]uint64{}
	x := newRefs(func(k uint64) uint64 { return hashNumbers(k%7, 0) }, func(r ref) uint64 { return keys[r] })
	want := map[uint64]map[uint32]ref{}
	r := rand.New(rand.NewPCG(4, 2))
	for step := range 20_000 {
		k, node := r.Uint64N(40), 1+r.Uint32N(5)
		if r.IntN(2) == 0 {
			x.remove(k, node)
			delete(want[k], node)
		} else {
			one := refOf(node, r.Uint32N(1<<20))
			if _, taken := keys[one]; taken && keys[one] != k {
				continue
			}
			keys[one] = k
			if x.set(k, one); want[k] == nil {
				want[k] = map[uint32]ref{}
			}
			want[k][node] = one
		}
		got := map[uint32]ref{}
		for one := range x.all(k) {
			got[one.node()] = one
		}
		if fmt.Sprint(got) != fmt.Sprint(want[k]) {
			t.Fatalf("step %d: got %v, want %v", step, got, want[k])
		}
	}
}
