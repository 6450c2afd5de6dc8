package judge

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// world has facts without judgements, and the findings about them.
type world struct {
	testing.TB
	*Findings
	facts *facts.Facts
	ended []string
	// changed has the addresses of the findings that were new or had changed.
	changed [][]netip.Addr
}

func newWorld(t testing.TB, kubernetes facts.Kubernetes) *world {
	t.Helper()
	w := &world{TB: t}
	w.facts = facts.New(facts.Config{
		Policy: &verdict.Policy{Cluster: "c", NodeTimeout: time.Minute, StaleAfter: time.Minute}, Log: slog.New(slog.DiscardHandler),
		Clock: func() verdict.Stamp { return verdict.At(time.Now()) }, Changed: w.factsChanged, OwnersWatched: func() bool { return false }, Disputed: func(func(index.Address) bool) {},
		Kubernetes: kubernetes, Followed: kubernetes != nil, Queues: 1,
	})
	w.Findings = NewFindings(FindingsConfig{Facts: w.facts, Waiting: func() int { return 0 }, Awaits: func(*verdict.Finding) bool { return false }, Listener: w})
	return w
}

func (w *world) FindingChanged(now, _ *Found) {
	addresses := audit.Addresses(now.Finding)
	if len(addresses) == 0 {
		addresses = []netip.Addr{now.Address}
	}
	w.changed = append(w.changed, addresses)
}

func (w *world) FindingEnded(over *Found, superseded bool) { w.ended = append(w.ended, over.ID) }

// factsChanged passes on the changes of the facts from which findings follow.
func (w *world) factsChanged(c *facts.Changes) {
	if len(c.Refused) > 0 || c.Dropped["claim"]+c.Dropped["interface"]+c.Dropped["pool"] > 0 {
		w.Errorf("records are dropped: %v, %v", c.Refused, c.Dropped)
	}
	w.Changed(c)
}

// stream is the report stream of a node.
type stream struct{ facts.Peer }

func (stream) Contest(netip.Addr, bool)         {}
func (stream) Check(netip.Addr)                 {}
func (stream) Departed(netip.Addr, verdict.MAC) {}

// node makes a node report, and returns the node and its stream.
func (w *world) node(name string, parts ...*pb.ReportRequest) (*facts.Node, *stream) {
	w.Helper()
	s := &stream{}
	n, _, err := w.facts.Connect(s, &pb.Hello{Node: name, BootId: "boot-" + name, Netns: "4026531840", Epoch: 1}, "")
	if err != nil {
		w.Fatal(err)
	}
	host := &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "4026531840", Workload: &pb.Workload{Kind: pb.Workload_HOST}}}}
	messages := slices.Values(append([]*pb.ReportRequest{host}, parts...))
	if _, err := w.facts.Snapshot(s, n, &facts.Snapshot{Messages: messages}, func() {}); err != nil {
		w.Fatal(err)
	}
	return n, s
}

// pod returns a report of a namespace with an interface, its host end and an address.
func pod(record uint32, name, addr string) *pb.ReportRequest {
	return records.Veth(record, 4026532000+int(record), &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: name, Uid: "uid-" + name}, assigned(record, addr))
}

func assigned(record uint32, addr string) *pb.ClaimRecord {
	return &pb.ClaimRecord{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: record, Index: 2,
		PrefixLength: 24, FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), AssignedAt: timestamppb.Now(), Count: 1,
	}
}
