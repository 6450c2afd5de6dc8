package facts

import (
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// ignoring only counts dropped records.
type ignoring struct{ dropped map[string]int }

func (d *ignoring) changed(c *Changes) {
	for record, n := range c.Dropped {
		d.dropped[record] += n
	}
}

func unwatched() bool { return false }

func undisputed(func(index.Address) bool) {}

// quiet is a Peer that only counts requests for snapshots.
type quiet struct {
	ended error
	asked int           // requests for a snapshot
	lag   time.Duration // 0 if it is not known
	// departed are the owners that departed.
	departed []string
}

func (q *quiet) End(err error)            { q.ended = err }
func (q *quiet) Contest(netip.Addr, bool) {}
func (q *quiet) Check(netip.Addr)         {}
func (q *quiet) Departed(a netip.Addr, mac verdict.MAC) {
	q.departed = append(q.departed, a.String()+" "+mac.String())
}
func (q *quiet) Ping(verdict.Stamp)                             {}
func (q *quiet) AskResync()                                     { q.asked++ }
func (q *quiet) Lag(verdict.Stamp) (lag time.Duration, ok bool) { return q.lag, q.lag != 0 }

var policyForTests = verdict.Policy{Cluster: "c", Settle: 3 * time.Second, StaleAfter: time.Minute, NodeTimeout: time.Minute}

func newFacts(t testing.TB) (*Facts, *ignoring) {
	t.Helper()
	l := &ignoring{dropped: map[string]int{}}
	var now verdict.Stamp
	return New(Config{
		Policy: &policyForTests, Log: slog.New(slog.DiscardHandler), Clock: func() verdict.Stamp { now++; return now }, Changed: l.changed, OwnersWatched: unwatched, Disputed: undisputed, Queues: 2,
	}), l
}

// judgeAll empties the queues and returns the addresses.
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

// pod returns a report of a namespace with an interface, its host end and an address.
func pod(record uint32, addr string) *pb.ReportRequest {
	port := records.Port(record)
	m := records.Veth(record, 4000+int(record), &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: port, Uid: "uid" + port}, assigned(record, addr))
	m.Namespaces = append([]*pb.NamespaceRecord{{Id: 1, Netns: "1"}}, m.Namespaces...)
	return m
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

// Records above the limit of their kind are dropped. Known records of a node are kept.
func TestRecordsOfEachKindAreLimited(t *testing.T) {
	f, l := newFacts(t)
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
	for range 2 { // repetitions change nothing
		deltaOf(t, f, p, n, m)
	}
	if got, want := []int{n.namespaces.count, n.links.count, n.interfaces.count}, []int{MaxNamespaces, MaxLinks, MaxInterfaces}; !slices.Equal(got, want) {
		t.Errorf("namespaces, links, interfaces: got %d, want %d", got, want)
	}
	for _, kind := range []string{"namespace", "link", "interface"} {
		if got := l.dropped[kind]; got != 2*more {
			t.Errorf("got %d times a %s dropped, want %d", got, kind, 2*more)
		}
	}
}

func TestClaimsOverTheLimitAreLeftOut(t *testing.T) {
	f, dropped := newFacts(t)
	p, n := connectNode(t, f, "n1")
	snapshotOf(t, f, p, n, pod(2, "10.0.0.1"))
	deltaOf(t, f, p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(2, "10.0.0.1", []byte{2, 0, 0, 0, 0, 2})}})
	n.wireClaims += MaxClaims - 1
	deltaOf(t, f, p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(2, "10.0.0.1", []byte{2, 0, 0, 0, 0, 3}), assigned(2, "10.0.0.2")}})
	if n.Excess != 1 || dropped.dropped["claim"] != 1 || len(f.owners("10.0.0.2")) != 1 {
		t.Errorf("got %d left out, %v dropped and owners %v, want 1 and the kernel's", n.Excess, dropped.dropped, f.owners("10.0.0.2"))
	}
	n.wireClaims = 1 - MaxClaims
	if _, err := f.Delta(p, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(2, "10.0.0.3")}}, 0, nil); status.Code(err) != codes.ResourceExhausted || len(f.owners("10.0.0.3")) != 0 {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED and nothing of the message taken", err)
	}
}

// The limit of allocations applies to a node, regardless of the number of its pools.
func TestOneNodeDoesNotUseUpTheLimits(t *testing.T) {
	f, _ := newFacts(t)
	p, n := connectNode(t, f, "n1")
	give := func(pool, addr string, gone bool) {
		deltaOf(t, f, p, n, &pb.ReportRequest{
			Pools:       []*pb.PoolRecord{{Ipam: hostlocal.Name, Name: pool, State: pb.Pool_KNOWN}},
			Allocations: []*pb.AllocationRecord{{Ipam: hostlocal.Name, Pool: pool, Address: netip.MustParseAddr(addr).AsSlice(), Gone: gone}},
		})
	}
	give("a", "10.0.0.1", false)
	give("b", "10.1.0.1", false)
	if n.allocated != 2 {
		t.Fatalf("got %d allocations, want 2", n.allocated)
	}
	n.allocated = MaxNodeAllocations
	if give("c", "10.2.0.1", false); f.Allocations() != 2 {
		t.Errorf("got %d allocations, want one above the limit to be dropped", f.Allocations())
	}
	n.allocated = 2
	if give("a", "10.0.0.1", true); n.allocated != 1 || f.Allocations() != 1 {
		t.Errorf("got %d and %d allocations, want 1 each", n.allocated, f.Allocations())
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

// A machine that reboots often is not refused because of its earlier boot IDs.
func TestEarlierBootsDoNotExcludeANode(t *testing.T) {
	f, _ := newFacts(t)
	for i := range maxOfOneName {
		n := newNode(NodeID{fmt.Sprint("boot", i), "1", "n1"})
		n.Name = "n1"
		f.add(n)
	}
	more := NodeID{"boot more", "1", "n1"}
	if err := f.mayBeOneMore(more); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("another boot: got %v, want ResourceExhausted", err)
	}
	if err := f.mayBeOneMore(NodeID{"boot0", "1", "n2"}); err != nil {
		t.Errorf("of another name: %v", err)
	}
	f.byID[NodeID{"boot0", "1", "n1"}].Rec.TimedOut = true
	if err := f.mayBeOneMore(more); err != nil {
		t.Errorf("another boot after one has timed out: %v", err)
	}
}

// Sources and intended addresses are kept in memory, so words that are longer than those of an
// agent are dropped.
func TestLongStringsAreNotKept(t *testing.T) {
	long := string(make([]byte, MaxWord+1))
	if got := intended([]*pb.Intended{{Address: "10.0.0.1", Source: long}, {Address: "10.0.0.2", Interface: long}, {Address: "10.0.0.3", Source: "cri"}}); got != "10.0.0.3 cri " {
		t.Errorf("got %d bytes of intended addresses", len(got))
	}
	if got := sources(map[string]string{long: "cri", "uid": long, "name": "cri"}); got != "name=cri" {
		t.Errorf("got %d bytes of sources", len(got))
	}
	if got := intended([]*pb.Intended{{Address: "10.0.0.2", Source: "cri", Network: "lab"}, {Address: "10.0.0.1", Source: "cri", Network: long}}); got != "10.0.0.1 cri \n10.0.0.2 cri  lab" {
		t.Errorf("got intended addresses %q, want them in order", got)
	}
	word := strings.Repeat("w", MaxWord)
	if got, want := intended([]*pb.Intended{{Address: "10.0.0.1", Source: word, Interface: word}}), "10.0.0.1 "+word+" "+word; got != want {
		t.Errorf("got %q of the longest words, want %q", got, want)
	}
	if got, want := sources(map[string]string{word: word}), word+"="+word; got != want {
		t.Errorf("got %q of the longest words, want %q", got, want)
	}
}

// Addresses touched by a snapshot are not judged before its end, and small changes are judged
// first.
func TestSmallBatchesAreJudgedFirst(t *testing.T) {
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
		t.Fatalf("got %v and %d waiting addresses, want %d", err, inside, 2*fewAddresses+1)
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
	f, _ := newFacts(t)
	p, n := connectNode(t, f, "n1")
	snapshotOf(t, f, p, n, pod(2, "10.0.0.1"))
	f.judgeAll()
	f.OwnersWatched = func() bool { return true }
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
