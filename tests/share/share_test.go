// Package share tests how replicas share the addresses on a real NATS server.
package share

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/share"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// lab is a real NATS server with the replicas of a cluster.
type lab struct {
	*testing.T
	server *nats.Server
	url    string
	nkey   string // file with a seed; empty for none
}

func newLab(t *testing.T) *lab {
	t.Helper()
	bin, err := nats.Binary("../..")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{T: t}
	if l.server, err = nats.Start(nil, bin, t.TempDir(), nats.Config{Name: "one", Port: -1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.server.Kill)
	if l.url, err = l.server.URL(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// replica is a replica without agents, so that a partition is complete as soon as it is gained.
type replica struct {
	*share.Share
	facts    *facts.Facts
	findings *findings.Findings
	journal  *journal.Journal
	name     string
	complete atomic.Bool
	stop     func()

	mu sync.Mutex
	// knows are the owners that the replica knows of, by address.
	knows map[string]*journal.Change
}

var policy = verdict.Policy{Cluster: "a.b", Settle: time.Second, StaleAfter: time.Minute, NodeTimeout: time.Minute}

// join starts a replica that knows some owners.
func (l *lab) join(name string, owners ...*journal.Change) *replica {
	l.Helper()
	return l.joinIn(name, l.TempDir(), owners...)
}

// joinIn starts a replica with a data directory.
func (l *lab) joinIn(name, dir string, owners ...*journal.Change) *replica {
	l.Helper()
	r := &replica{name: name, knows: make(map[string]*journal.Change)}
	for _, o := range owners {
		r.knows["id-"+o.Owner.GetAddress()] = o
	}
	r.complete.Store(true)
	ctx, cancel := context.WithCancel(l.Context())
	log := slog.New(slog.NewTextHandler(l.Output(), nil)).With("replica", name)
	r.facts = facts.New(facts.Config{
		Policy: &policy, Log: log, Clock: func() verdict.Stamp { return verdict.At(time.Now()) }, Listener: ignoring{}, Queues: 1, Sharing: true, Stopped: ctx.Done(),
	})
	r.findings = findings.New(findings.Config{Facts: r.facts, Waiting: func() int { return 0 }})
	instance := time.Now().UnixNano()
	r.journal = journal.New(journal.Config{Dir: dir, Retention: time.Hour, Size: 1 << 30, Instance: instance, Clock: time.Now, Log: log})
	var err error
	r.Share, err = share.New(share.Config{
		Settings: stream.Settings{Servers: []string{l.url}, NKey: l.nkey}, Cluster: "a.b", Replica: name, Instance: instance, Facts: r.facts, Findings: r.findings, Journal: r.journal, Heard: func(*pb.Event) {},
		Gained: func(ctx context.Context, _ facts.PartitionSet, complete func() bool) error {
			for tick := time.NewTicker(10 * time.Millisecond); !complete(); {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		},
		Handle: func(context.Context, string, []byte, func(proto.Message) error) error { return nil },

		Drop: func(facts.PartitionSet) {}, Untidy: func() {}, Judge: func(*facts.Batch) {}, Complete: r.complete.Load, Log: log, Clock: time.Now,
	})
	if err != nil {
		l.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { r.journal.Run(ctx) })
	group.Go(func() { r.Run(ctx) })
	group.Go(func() {
		for ctx.Err() == nil {
			set, again := r.Recording()
			r.say(set)
			select {
			case <-again:
			case <-ctx.Done():
			}
		}
	})
	r.stop = func() { cancel(); group.Wait() }
	l.Cleanup(r.stop)
	return r
}

// shares describes how many partitions each replica serves, and checks that each is served by one.
func shares(all ...*replica) (counts []int, once bool) {
	var by [index.Partitions]int
	for _, r := range all {
		s, _ := r.State()
		counts = append(counts, s.Complete.Count())
		for p := range by {
			if s.Served[p] {
				by[p]++
			}
		}
	}
	for _, n := range by {
		if n != 1 {
			return counts, false
		}
	}
	return counts, true
}

func (l *lab) wantShared(why string, all ...*replica) {
	l.Helper()
	wait.Until(l, why, func() bool {
		counts, once := shares(all...)
		sum := 0
		for _, n := range counts {
			sum += n
			once = once && n > index.Partitions/len(all)/2
		}
		return once && sum == index.Partitions
	})
}

func TestEachPartitionIsServedByOneReplica(t *testing.T) {
	l := newLab(t)
	a := l.join("a")
	l.wantShared("alone", a)
	b := l.join("b")
	l.wantShared("two", a, b)
	before, _ := a.State()
	c := l.join("c")
	l.wantShared("three", a, b, c)
	after, _ := a.State()
	for p := range after.Served {
		if after.Served[p] && !before.Served[p] {
			t.Fatalf("replica a got partition %d because another one came", p)
		}
	}
	if s, _ := a.State(); fmt.Sprint(s.Names()) != "[b c]" || s.Missing() != 0 || s.Failing != nil {
		t.Errorf("got %v, %d missing, %v, want b and c, and nothing missing", s.Names(), s.Missing(), s.Failing)
	}
	b.stop() // it gives up its lease
	l.wantShared("one has stopped", a, c)
	l.join("b")
	wait.Until(t, "it is back", func() bool { s, _ := a.State(); return fmt.Sprint(s.Names()) == "[b c]" })
}

// As long as the new holder of a partition does not have all claims, the former one goes on.
func TestAPartitionIsHandedOverWhenItIsComplete(t *testing.T) {
	l := newLab(t)
	a := l.join("a")
	l.wantShared("alone", a)
	b := l.join("b")
	b.complete.Store(false)
	agent := &peer{}
	n, _, err := b.facts.Connect(agent, &pb.Hello{Node: "n1", BootId: "boot", Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	var set facts.PartitionSet
	wait.Until(t, "the partitions for the agent", func() bool {
		s, _ := b.State()
		set = s.Served
		return set.Count() > index.Partitions/4 && agent.set.Load().GetRevision() == 2
	})
	send := func(complete uint64) {
		if _, err := b.facts.Snapshot(agent, n, &facts.Snapshot{Messages: func(yield func(*pb.ReportRequest) bool) {
			yield(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}, Partitions: 2, Complete: complete})
		}}, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	send(1)
	b.complete.Store(true)
	for range 3 { // a renews its lease, and still serves everything
		was, _ := a.State()
		other, changed := b.State()
		if was.Served.Count() != index.Partitions || other.Complete.Count() != 0 {
			t.Fatalf("got %d partitions at a and %d complete ones at b, want all and none", was.Served.Count(), other.Complete.Count())
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		}
	}
	send(2)
	l.wantShared("complete", a, b)
}

// While NATS is away, replicas go on. A replica that cannot reach it learns afterwards what others have
// taken over.
func TestReplicasGoOnWithoutNATS(t *testing.T) {
	l := newLab(t)
	a, b := l.join("a"), l.join("b")
	l.wantShared("two", a, b)
	before, _ := a.State()
	l.server.Kill()
	wait.Until(t, "NATS is away", func() bool {
		s, _ := a.State()
		o, _ := b.State()
		return s.Failing != nil && o.Failing != nil && time.Since(s.Since) > 6*time.Second
	})
	if s, _ := a.State(); s.Served != before.Served || len(s.Others) != 1 {
		t.Errorf("got %d partitions and %d others, want as before", s.Served.Count(), len(s.Others))
	}
	if err := l.server.Restart(l.url); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "NATS is back", func() bool {
		s, _ := a.State()
		o, _ := b.State()
		return s.Failing == nil && o.Failing == nil
	})
	l.wantShared("as before", a, b)
	if s, _ := a.State(); s.Served != before.Served {
		t.Error("partitions were moved although nobody was gone")
	}
}

// A replica records what happens in a partition only when the others can know that it serves it. Before that,
// the former holder does, and each episode would be recorded twice.
func TestAReplicaRecordsWhatItsLeaseNames(t *testing.T) {
	l := newLab(t)
	a, b := l.join("a"), l.join("b")
	l.wantShared("two", a, b)
	c := l.join("c")
	c.complete.Store(false)
	agent := &peer{}
	n, _, err := c.facts.Connect(agent, &pb.Hello{Node: "n1", BootId: "boot", Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the partitions for the agent", func() bool { return agent.set.Load().GetRevision() == 2 })
	l.server.Kill()
	if _, err := c.facts.Snapshot(agent, n, &facts.Snapshot{Messages: func(yield func(*pb.ReportRequest) bool) {
		yield(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}, Partitions: 2, Complete: 2})
	}}, func() {}); err != nil {
		t.Fatal(err)
	}
	c.complete.Store(true)
	wait.Until(t, "all claims without NATS", func() bool { s, _ := c.State(); return s.Complete.Count() > 0 })
	if set, _ := c.Recording(); set.Count() != 0 {
		t.Errorf("without NATS, %d partitions are recorded that the others know nothing of, want none", set.Count())
	}
	if set, _ := a.Recording(); set.Count() < index.Partitions/4 {
		t.Errorf("without NATS, %d partitions are recorded that the others know of, want all of a", set.Count())
	}
	if err := l.server.Restart(l.url); err != nil {
		t.Fatal(err)
	}
	l.wantShared("NATS is back", a, b, c)
	wait.Until(t, "what is complete is recorded", func() bool {
		s, _ := c.State()
		set, _ := c.Recording()
		return set == s.Complete
	})
}

// What follows from claims of several partitions, replicas tell each other.
func TestReplicasTellEachOther(t *testing.T) {
	l := newLab(t)
	a, b := l.join("a"), l.join("b")
	l.wantShared("two", a, b)
	link := func(name string) facts.LinkID {
		return facts.LinkID{Node: facts.NodeID{Boot: "boot-" + name, Netns: "1"}, Name: "eth0"}
	}
	for i, name := range []string{"n1", "n2"} {
		agent := &peer{}
		n, _, err := b.facts.Connect(agent, &pb.Hello{Node: name, BootId: "boot-" + name, Netns: "1", Epoch: 1}, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.facts.Snapshot(agent, n, &facts.Snapshot{Messages: func(yield func(*pb.ReportRequest) bool) {
			yield(&pb.ReportRequest{
				Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}, Links: []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
				Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 9, Name: "eth0", Mac: []byte{2, 0, 0, 0, 0, byte(i)}, Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true}},
			})
		}}, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	a.Sighted(facts.Sighting{Entered: link("n1"), Home: link("n2"), MAC: verdict.MAC([]byte{2, 0, 0, 0, 0, 1}), Seen: a.facts.Clock()})
	wait.Until(t, "one domain", func() bool {
		b.facts.RLock()
		defer b.facts.RUnlock()
		_, topology := b.facts.SharedMACs()
		return topology.Domains(0) == 1
	})
}

// peer is an agent.
type peer struct {
	facts.Peer
	set atomic.Pointer[pb.PartitionSet]
}

func (p *peer) Serve(set *pb.PartitionSet) { p.set.Store(set) }

// ignoring is a listener of the facts.
type ignoring struct{}

func (ignoring) NodeChanged(*facts.Node)            {}
func (ignoring) NamesChanged(*facts.Node)           {}
func (ignoring) Answered(*facts.Node)               {}
func (ignoring) RangesChanged(*facts.Node)          {}
func (ignoring) MayLack(*facts.Node, uint32)        {}
func (ignoring) PoolChanged(*facts.Pool)            {}
func (ignoring) PoolEnded(*facts.Pool)              {}
func (ignoring) CoverageChanged()                   {}
func (ignoring) OwnersWatched() bool                { return false }
func (ignoring) Contested(func(index.Address) bool) {}
func (ignoring) AtRisk(*facts.Pool) []netip.Addr    { return nil }
func (ignoring) Sighted(facts.Sighting)             {}
func (ignoring) Dropped(string, int)                {}
func (ignoring) Refused(string)                     {}
