package aggregator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// ownerName returns a name that identifies an owner.
func ownerName(o *pb.Owner) string { return o.GetAddress() + " " + o.GetNode() + " " + o.GetNetns() }

// randomNode is a node with the addresses of its pods, by namespace record.
type randomNode struct {
	*source
	held map[uint32][]netip.Addr
}

// randomStore returns a core with owners of IPv4 and IPv6 addresses on three nodes, where some
// addresses have many owners.
func randomStore(t *testing.T, random *rand.Rand) (*core, []randomNode) {
	t.Helper()
	s := newTestCore(t)
	var nodes []randomNode
	for n := range 3 {
		r := randomNode{s.source(), make(map[uint32][]netip.Addr)}
		m := snapshot(hello(fmt.Sprintf("n%d", n), 1))
		for record := uint32(2); record < 40; record++ {
			m = records.Merge(m, podVeth(record, fmt.Sprintf("p%d", record), "172.17.0.1"))
			for range 30 {
				a := randomAddress(random)
				r.held[record] = append(r.held[record], a)
				m.Claims = append(m.Claims, assigned(record, a.String()))
			}
		}
		r.must(t, m)
		nodes = append(nodes, r)
	}
	return s, nodes
}

func randomAddress(random *rand.Rand) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint32(b[12:], 10<<24|random.Uint32N(5000))
	if random.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	b[0], b[12] = 0xfd, 0
	return netip.AddrFrom16(b)
}

// names returns the names of owners.
func names(owners []*pb.Owner) (all []string) {
	for _, o := range owners {
		all = append(all, ownerName(o))
	}
	return all
}

func TestPagesHaveAllOwnersOnceInOrder(t *testing.T) {
	s, _ := randomStore(t, rand.New(rand.NewPCG(1, 1)))
	owners := s.pages(t, &pb.ListOwnersRequest{}, 10_000)
	all := names(owners)
	if len(all) < 3000 {
		t.Fatalf("got %d owners: the test has no effect", len(all))
	}
	address := func(o *pb.Owner) netip.Addr { return netip.MustParseAddr(o.GetAddress()) }
	if !slices.IsSortedFunc(owners, func(a, b *pb.Owner) int { return address(a).Compare(address(b)) }) {
		t.Error("the owners are not in the order of their addresses")
	}
	if unique := slices.Compact(slices.Sorted(slices.Values(all))); len(unique) != len(all) {
		t.Errorf("got %d owners, %d of them different", len(all), len(unique))
	}
	for _, size := range []int{7, 64, 65, 999} {
		if got := names(s.pages(t, &pb.ListOwnersRequest{}, size)); !slices.Equal(got, all) {
			t.Errorf("got %d owners in pages of %d, want all %d", len(got), size, len(all))
		}
	}
	in := func(prefix string) func(*pb.Owner) bool {
		return func(o *pb.Owner) bool { return netip.MustParsePrefix(prefix).Contains(address(o)) }
	}
	for _, test := range []struct {
		q       *pb.ListOwnersRequest
		matches func(o *pb.Owner) bool
		none    bool
	}{
		{&pb.ListOwnersRequest{Cidr: "10.0.4.0/22"}, in("10.0.4.0/22"), false},
		{&pb.ListOwnersRequest{Cidr: "fd00::/112"}, in("fd00::/112"), false},
		{&pb.ListOwnersRequest{Cidr: "10.0.0.3/24"}, in("10.0.0.0/24"), false}, // not masked
		{&pb.ListOwnersRequest{Cidr: "0.0.0.0/0", Node: "n1"}, func(o *pb.Owner) bool { return address(o).Is4() && o.GetNode() == "n1" }, false},
		{&pb.ListOwnersRequest{Address: "172.17.0.1"}, func(o *pb.Owner) bool { return o.GetAddress() == "172.17.0.1" }, false},
		{&pb.ListOwnersRequest{Address: "172.17.0.1", Cidr: "10.0.0.0/8"}, func(*pb.Owner) bool { return false }, true},
		{&pb.ListOwnersRequest{Node: "n2", Pod: "p7"}, func(o *pb.Owner) bool { return o.GetNode() == "n2" && o.GetWorkload().GetName() == "p7" }, false},
		{&pb.ListOwnersRequest{State: pb.Owner_LIVE}, func(o *pb.Owner) bool { return o.GetState() == pb.Owner_LIVE }, false},
		{&pb.ListOwnersRequest{State: pb.Owner_STALE}, func(o *pb.Owner) bool { return o.GetState() == pb.Owner_STALE }, true},
		{&pb.ListOwnersRequest{Node: "none"}, func(*pb.Owner) bool { return false }, true},
	} {
		want := slices.DeleteFunc(slices.Clone(owners), func(o *pb.Owner) bool { return !test.matches(o) })
		if got := s.pages(t, test.q, 13); !slices.Equal(names(got), names(want)) || (len(want) == 0) != test.none {
			t.Errorf("got %d owners of %v, want %d", len(got), test.q, len(want))
		}
	}
}

// A filter by node finds the node's owners even if only other nodes saw them.
func TestOwnersOfANodeIncludeThoseThatOtherNodesSaw(t *testing.T) {
	l := newLab(t, Config{})
	agents := l.onLAN(2, samePods)
	const seen = "192.0.2.7"
	agents[0].send(records.Claims(entered(pb.Evidence_ANNOUNCED, seen, []byte{2, 3, 0, 0, 0, 2}))).sync()
	for node, want := range map[string][]string{"n1": {addr}, "n2": {addr, seen}, "n3": nil} {
		var got []string
		for _, o := range l.owners(&pb.ListOwnersRequest{Node: node}) {
			got = append(got, o.GetAddress())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", node, got, want)
		}
	}
}

// A watch of a state that changes continuously sends the current state and each change, and its
// client arrives at the actual state. While the current state is being sent, there are more changes
// than the ring can hold, both in the part already sent and in the rest.
func TestWatchSendsChangesDuringTheWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seed = 0
		random := rand.New(rand.NewPCG(seed, 2))
		s, nodes := randomStore(t, random)
		known := map[string]*pb.Owner{}
		changes, sent := 0, 0
		change := func() {
			changes++
			r := nodes[random.IntN(len(nodes))]
			record := 2 + random.Uint32N(38)
			a := randomAddress(random)
			m := &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(record, a.String())}}
			switch random.IntN(5) {
			case 0, 1:
				if held := r.held[record]; len(held) > 0 {
					at := random.IntN(len(held))
					m.Claims[0].Address = held[at].AsSlice()
					r.held[record] = slices.Delete(held, at, at+1)
				}
				m.Claims[0].Gone = true
			case 2:
				m = &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{podNamespace(record, fmt.Sprintf("name%d", changes))}}
			default:
				r.held[record] = append(r.held[record], a)
			}
			if err := r.send(m); err != nil {
				t.Fatal(err)
			}
		}
		complete, failed := false, errors.New("LOST")
		stream := &streamOf[pb.WatchOwnersResponse]{send: func(m *pb.WatchOwnersResponse) error {
			sent++
			switch m.GetType() {
			case added, updated:
				known[ownerName(m.GetOwner())] = m.GetOwner()
			case removed:
				delete(known, ownerName(m.GetOwner()))
			case pb.Watch_LOST:
				return failed
			case pb.Watch_BOOKMARK:
				complete = true
			default:
			}
			if m.GetType() == added && !complete { // mostly for an owner of the initial state
				change()
			}
			return nil
		}}
		var cancel func()
		stream.ctx, cancel = context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.witness.WatchOwners(&pb.WatchOwnersRequest{}, stream) }()
		synctest.Wait() // all events have been sent
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled || !complete {
			t.Fatalf("seed %d: after %d messages: %v", seed, sent, err)
		}
		if changes < 2*live.BusSize {
			t.Fatalf("seed %d: only %d changes were made: the test has no effect", seed, changes)
		}
		want := map[string]*pb.Owner{}
		for _, o := range s.pages(t, &pb.ListOwnersRequest{}, 1000) {
			want[ownerName(o)] = o
		}
		same := func(a, b *pb.Owner) bool {
			return a.GetWorkload().GetName() == b.GetWorkload().GetName() && a.GetState() == b.GetState() && a.GetExcluded() == b.GetExcluded()
		}
		if !maps.EqualFunc(known, want, same) {
			t.Errorf("seed %d: a client knows %d owners, want the %d that there are", seed, len(known), len(want))
			for name, o := range want {
				if known[name] == nil || !same(known[name], o) {
					t.Errorf("%s is %v, want %v", name, known[name], o)
					break
				}
			}
		}
	})
}

func TestConflictsAreFiltered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		l.dial().send(snapshot(hello("n1", 1),
			podVeth(2, "a", "10.244.0.5"), podVeth(3, "b", "10.244.0.5"), podVeth(4, "c", "10.250.0.5"), podVeth(5, "d", "10.250.0.5"))).sync()
		l.dial().send(snapshot(hello("n2", 1), podVeth(2, "e", "fd00::5"), podVeth(3, "f", "fd00::5"))).sync()
		if all := l.conflicts(); len(all) != 3 {
			t.Fatalf("got %v, want three conflicts", all)
		}
		cause := l.conflicts()[0].GetCause()
		for want, queries := range map[string][]*pb.ListConflictsRequest{
			"[10.244.0.5 10.250.0.5 fd00::5]": {{}, {Namespace: "default"}, {State: pb.Conflict_SUSPECTED}, {Cause: cause}},
			"[10.244.0.5 10.250.0.5]":         {{Node: "n1"}, {Cidr: "10.0.0.0/8"}, {Cidr: "0.0.0.0/0", Node: "n1"}},
			"[10.250.0.5]":                    {{Cidr: "10.250.0.0/16"}, {Pod: "d"}, {Address: "10.250.0.5"}, {Mac: "02:00:00:00:00:04"}},
			"[fd00::5]":                       {{Node: "n2"}, {Cidr: "fd00::/64"}, {Pod: "e", Namespace: "default"}},
			"[]":                              {{Node: "n1", Pod: "e"}, {State: pb.Conflict_CONFIRMED}, {Cause: verdict.CauseTunnelAddress}, {Cidr: "10.0.0.0/8", Address: "fd00::5"}, {Namespace: "kube-system"}},
		} {
			for _, q := range queries {
				out, err := l.client.ListConflicts(l.ctx, q)
				got := []string{}
				for _, c := range out.GetConflicts() {
					got = append(got, c.GetAddress())
				}
				if err != nil || fmt.Sprint(got) != want {
					t.Errorf("got %v and %v for {%v}, want %s", got, err, q, want)
				}
			}
		}
	})
}

func TestAFilteredWatchSeesConflictsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", "10.244.0.5"), podVeth(3, "b", "10.244.0.6"))).sync()
		// Each returned function reads the changes of a watch up to the given one, and returns
		// those before it.
		watch := func(q *pb.WatchConflictsRequest) func(until string) []string {
			stream, err := l.client.WatchConflicts(l.ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			return func(until string) (before []string) {
				for range 20 {
					m, err := stream.Recv()
					if err != nil {
						t.Fatal(err)
					}
					if c := m.GetConflict(); c != nil {
						got := fmt.Sprint(c.GetAddress(), " ", m.GetType(), " ", c.GetState())
						if got == until {
							return before
						}
						before = append(before, got)
					}
				}
				t.Fatalf("got %v, want %s", before, until)
				return nil
			}
		}
		all, confirmed := watch(&pb.WatchConflictsRequest{}), watch(&pb.WatchConflictsRequest{State: pb.Conflict_CONFIRMED})
		elsewhere := watch(&pb.WatchConflictsRequest{Node: "n2"})
		synctest.Wait()
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(3, "10.244.0.5")}}).sync()
		all("10.244.0.5 ADDED SUSPECTED")
		a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
		all("10.244.0.5 UPDATED CONFIRMED")
		if got := confirmed("10.244.0.5 ADDED CONFIRMED"); len(got) != 0 {
			t.Errorf("got %v before it was confirmed, want nothing", got)
		}
		a.send(gone(assigned(3, "10.244.0.5"))).sync()
		all("10.244.0.5 UPDATED RESOLVED")
		confirmed("10.244.0.5 REMOVED RESOLVED")
		l.dial().send(snapshot(hello("n2", 1), podVeth(2, "c", "10.250.0.5"), podVeth(3, "d", "10.250.0.5"))).sync()
		if got := elsewhere("10.250.0.5 ADDED SUSPECTED"); len(got) != 0 {
			t.Errorf("got %v of another node, want no event", got)
		}
	})
}

func TestAFilteredWatchSeesFindingsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", "10.244.0.5"), poolOf(hostLocal("10.244.0.0/16", pb.Pool_KNOWN)))).sync()
		l.dial().send(snapshot(hello("n2", 1), podVeth(2, "b", "10.244.9.5"), poolOf(hostLocal("10.244.0.0/16", pb.Pool_KNOWN)))).sync()
		if all := l.waitFindings(2); len(all) != 2 {
			t.Fatalf("got %v, want two findings", all)
		}
		for want, queries := range map[string][]*pb.ListFindingsRequest{
			"[10.244.0.5 10.244.9.5]": {{}, {Cidr: "10.244.0.0/16"}, {Namespace: "default"}, {Kind: verdict.FindingInUseUnallocated}},
			"[10.244.9.5]":            {{Node: "n2"}, {Cidr: "10.244.9.0/24"}, {Pod: "b"}, {Address: "10.244.9.5", Mac: "02-00-00-00-00-02"}},
			"[]":                      {{Node: "n2", Pod: "a"}, {Kind: verdict.FindingLeaked}, {Cidr: "fd00::/8"}, {Namespace: "other"}, {Mac: "02:00:00:00:00:09"}},
		} {
			for _, q := range queries {
				out, err := l.client.ListFindings(l.ctx, q)
				got := []string{}
				for _, f := range out.GetFindings() {
					got = append(got, f.GetAddress())
				}
				if err != nil || fmt.Sprint(got) != want {
					t.Errorf("got %v and %v for {%v}, want %s", got, err, q, want)
				}
				w := &pb.WatchFindingsRequest{Kind: q.Kind, Address: q.Address, Node: q.Node, Cidr: q.Cidr, Namespace: q.Namespace, Pod: q.Pod, Mac: q.Mac}
				stream, err := l.client.WatchFindings(l.ctx, w)
				if err != nil {
					t.Fatal(err)
				}
				got = []string{}
				for {
					m, err := stream.Recv()
					if err != nil {
						t.Fatal(err)
					}
					if m.GetType() == pb.Watch_BOOKMARK {
						break
					}
					got = append(got, m.GetFinding().GetAddress())
				}
				if fmt.Sprint(got) != want {
					t.Errorf("a watch got %v for {%v}, want %s", got, q, want)
				}
			}
		}
	})
}

// waitFindings waits until there are n findings, and returns them.
func (l *lab) waitFindings(n int) (all []*pb.Finding) {
	for range 100 {
		if all = l.findings(); len(all) == n {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return all
}

func TestRangesAreMerged(t *testing.T) {
	r := func(first, last string) ipam.Range {
		return ipam.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	}
	got := ipam.Union([]ipam.Range{
		r("fd00::", "fd00::ff"), r("10.0.2.0", "10.0.2.255"), r("10.0.0.0", "10.0.0.255"), r("10.0.1.0", "10.0.1.255"), r("10.0.0.7", "10.0.0.9"),
		r("10.0.4.0", "10.0.4.9"), r("255.255.255.0", "255.255.255.255"), r("::", "::1"),
	})
	want := []ipam.Range{
		r("10.0.0.0", "10.0.2.255"), r("10.0.4.0", "10.0.4.9"), r("255.255.255.0", "255.255.255.255"), r("::", "::1"), r("fd00::", "fd00::ff"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
