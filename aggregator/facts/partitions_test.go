package facts

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Two addresses of different partitions.
const inOne, inOther = "10.0.0.1", "10.0.0.3"

// newShared returns facts that serve no partition yet.
func newShared(t testing.TB) *Facts {
	t.Helper()
	var now verdict.Stamp
	return New(Config{
		Policy: &policyForTests, Log: slog.New(slog.DiscardHandler), Clock: func() verdict.Stamp { now++; return now },
		Listener: &ignoring{dropped: map[string]int{}}, Queues: 2, Sharing: true,
	})
}

func addressOf(a string) index.Address { return index.AddressOf(netip.MustParseAddr(a)) }

// partitionsOf returns the partitions of some addresses.
func partitionsOf(t testing.TB, addresses ...string) (set PartitionSet) {
	t.Helper()
	for _, a := range addresses {
		set[addressOf(a).Partition()] = true
	}
	if set.Count() != len(addresses) {
		t.Fatalf("got %d partitions of %v, want different ones", set.Count(), addresses)
	}
	return set
}

// byRevision returns a report whose claims were selected by a revision of the partitions, and are complete.
func byRevision(revision uint64, m *pb.ReportRequest) *pb.ReportRequest {
	m.Partitions, m.Complete = revision, revision
	return m
}

func TestClaimsOfPartitionsOfOtherReplicasAreNotTaken(t *testing.T) {
	f := newShared(t)
	f.Serve(partitionsOf(t, inOne))
	p, n := connectNode(t, f, "n1")
	if p.served.GetRevision() != 2 || !p.served.Serves(addressOf(inOne).Partition()) || p.served.Serves(addressOf(inOther).Partition()) {
		t.Errorf("got partitions %v for the agent, want the one that is served", p.served)
	}
	own := assigned(1, inOther)
	m := pod(2, inOne)
	m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{Namespace: 1, Index: 2, Name: "eth0", Attachment: pb.InterfaceRecord_OWN})
	m.Claims = append(m.Claims, assigned(2, inOther), announced(2, inOther, []byte{2, 0, 0, 0, 0, 2}), own)
	snapshotOf(t, f, p, n, byRevision(2, m))
	if n.Claims() != 2 || len(f.owners(inOne)) != 1 {
		t.Errorf("got %d claims and owners %v, want the one of the partition, and that of the agent's own namespace", n.Claims(), f.owners(inOne))
	}
	if got := f.judgeAll(); len(got) != 1 || got[0].String() != inOne {
		t.Errorf("got %v to judge, want %s", got, inOne)
	}
	// The address of the agent's own namespace is judged when its partition is gained.
	f.Serve(partitionsOf(t, inOne, inOther))
	if got := f.judgeAll(); len(got) != 1 || got[0].String() != inOther {
		t.Errorf("got %v to judge, want %s", got, inOther)
	}
	deltaOf(t, f, p, n, byRevision(3, &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(2, inOther)}}))
	if len(f.owners(inOther)) != 2 {
		t.Errorf("got owners %v, want both", f.owners(inOther))
	}
}

func TestALostPartitionIsForgottenSilently(t *testing.T) {
	f := newShared(t)
	both := partitionsOf(t, inOne, inOther)
	f.Serve(both)
	p, n := connectNode(t, f, "n1")
	m := pod(2, inOne)
	m.Claims = append(m.Claims, assigned(2, inOther), announced(2, inOther, []byte{2, 0, 0, 0, 0, 2}))
	snapshotOf(t, f, p, n, byRevision(2, m))
	f.judgeAll()
	lost, _ := f.Serve(partitionsOf(t, inOne))
	if lost != partitionsOf(t, inOther) || n.Claims() != 1 || f.Claimed(addressOf(inOther)) {
		t.Errorf("got %d claims, want one", n.Claims())
	}
	if got := f.judgeAll(); len(got) != 0 {
		t.Errorf("got %v to judge, want nothing", got)
	}
	if f.Serve(both); p.served.GetRevision() != 4 {
		t.Errorf("got revision %d, want 4", p.served.GetRevision())
	}
	// A claim that was sent before the partition was lost may have ended since then.
	deltaOf(t, f, p, n, &pb.ReportRequest{Partitions: 2, Claims: []*pb.ClaimRecord{assigned(2, inOther)}})
	if f.Claimed(addressOf(inOther)) {
		t.Error("took a claim from before the partition was lost")
	}
	deltaOf(t, f, p, n, byRevision(4, &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(2, inOther)}}))
	if len(f.owners(inOther)) != 1 {
		t.Error("did not take the claim that was sent again")
	}
}

// As long as a node has not sent the claims of a partition, nothing is known to be absent.
func TestAPartitionIsCompleteWhenAllNodesHaveSentIt(t *testing.T) {
	f := newShared(t)
	f.Serve(partitionsOf(t, inOne))
	p1, n1 := connectNode(t, f, "n1")
	p2, n2 := connectNode(t, f, "n2")
	for p, n := range map[*quiet]*Node{p1: n1, p2: n2} {
		snapshotOf(t, f, p, n, byRevision(2, &pb.ReportRequest{
			Namespaces:  []*pb.NamespaceRecord{{Id: 1, Netns: "1"}},
			Pools:       []*pb.PoolRecord{{Ipam: hostlocal.Name, Name: "pods", State: pb.Pool_KNOWN}},
			Allocations: []*pb.AllocationRecord{{Ipam: hostlocal.Name, Pool: "pods", Address: netip.MustParseAddr(inOther).AsSlice()}},
		}))
	}
	f.Serve(partitionsOf(t, inOne, inOther))
	f.judgeAll()
	complete := func() (one, other, covered bool) {
		f.RLock()
		defer f.RUnlock()
		for _, of := range f.Builder().Case(addressOf(inOther), true).Nodes {
			covered = covered || of.Covered
		}
		return f.Complete(addressOf(inOne)), f.Complete(addressOf(inOther)), covered
	}
	if one, other, covered := complete(); !one || other || covered {
		t.Errorf("gained: got complete %v, %v, covered %v, want only the first", one, other, covered)
	}
	deltaOf(t, f, p1, n1, byRevision(3, &pb.ReportRequest{}))
	if one, other, covered := complete(); !one || other || covered {
		t.Errorf("one node has sent it: got complete %v, %v, covered %v, want only the first", one, other, covered)
	}
	deltaOf(t, f, p2, n2, byRevision(3, &pb.ReportRequest{}))
	if one, other, covered := complete(); !one || !other || !covered {
		t.Errorf("both have sent it: got complete %v, %v, covered %v, want all", one, other, covered)
	}
	if got := f.judgeAll(); len(got) != 1 || got[0].String() != inOther {
		t.Errorf("got %v to judge, want the allocated address", got)
	}
	// A node that is not connected is not waited for.
	f.Serve(partitionsOf(t, inOne))
	f.Serve(partitionsOf(t, inOne, inOther))
	deltaOf(t, f, p1, n1, byRevision(5, &pb.ReportRequest{}))
	if _, other, _ := complete(); other {
		t.Error("got complete without the second node")
	}
	f.Disconnect(p2, n2, func(*Node) bool { return false })
	if _, other, _ := complete(); !other {
		t.Error("got incomplete after the second node has left")
	}
}
