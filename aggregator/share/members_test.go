package share

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// bucket is the bucket of the leases. Its servers are away if err is set.
type bucket struct {
	jetstream.KeyValue
	revision uint64 // of the own lease; 0 if there is none
	record   pb.ReplicaRecord
	err      error
}

func (b *bucket) write(value []byte, allowed bool) (uint64, error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case !allowed:
		return 0, jetstream.ErrKeyExists
	}
	b.revision++
	return b.revision, proto.Unmarshal(value, &b.record)
}

func (b *bucket) Create(_ context.Context, _ string, value []byte, _ ...jetstream.KVCreateOpt) (uint64, error) {
	return b.write(value, b.revision == 0)
}

func (b *bucket) Update(_ context.Context, _ string, value []byte, revision uint64) (uint64, error) {
	return b.write(value, b.revision == revision)
}

// entry is a lease of another replica in the bucket.
type entry struct {
	jetstream.KeyValueEntry
	key   string
	value []byte
	op    jetstream.KeyValueOp
}

func (e entry) Key() string                     { return e.key }
func (e entry) Value() []byte                   { return e.value }
func (e entry) Operation() jetstream.KeyValueOp { return e.op }

// group is the members as one of them knows them, with a clock that tests set.
type group struct {
	*testing.T
	*members
	bucket *bucket
	now    time.Time
	served facts.PartitionSet
}

// newGroup returns a replica that has a lease and has read those of all others, of which there are none.
func newGroup(t *testing.T) *group {
	t.Helper()
	g := &group{T: t, bucket: new(bucket), now: time.Unix(1_700_000_000, 0)}
	g.members = &members{prefix: "c.", name: "a", clock: func() time.Time { return g.now }, bucket: g.bucket, others: make(map[string]*member)}
	g.beat()
	g.hear(nil)
	g.look()
	return g
}

// beat renews the lease.
func (g *group) beat() {
	g.Helper()
	if err := g.renew(g.Context(), g.served); err != nil {
		g.Fatal(err)
	}
}

// hears takes the lease of another replica, which serves some partitions completely.
func (g *group) hears(name string, complete facts.PartitionSet) {
	g.Helper()
	value, err := proto.Marshal(&pb.ReplicaRecord{Complete: bitsOf(&complete)})
	if err != nil {
		g.Fatal(err)
	}
	g.hear(entry{key: g.prefix + stream.Token(name), value: value, op: jetstream.KeyValuePut})
}

// look expires leases, and serves what is to be served.
func (g *group) look() (gone []string) {
	gone = g.expire()
	g.served = g.serve(g.served)
	return gone
}

// share returns the partitions that are to be served by a replica.
func (g *group) share(name string) (set facts.PartitionSet) {
	for p := range set {
		set[p] = g.holder(p) == name
	}
	return set
}

func (g *group) want(why string, want facts.PartitionSet) {
	g.Helper()
	if g.served != want {
		g.Errorf("%s: %d partitions are served, want %d", why, g.served.Count(), want.Count())
	}
}

func all() (set facts.PartitionSet) {
	for p := range set {
		set[p] = true
	}
	return set
}

func without(set, other facts.PartitionSet) facts.PartitionSet {
	for p := range set {
		set[p] = set[p] && !other[p]
	}
	return set
}

// A replica that is alone serves everything, as soon as it has a lease and has read those of all others.
func TestNothingIsServedBeforeTheOthersAreKnown(t *testing.T) {
	g := newGroup(t)
	g.want("alone", all())

	g.served, g.known = facts.PartitionSet{}, false
	g.look()
	g.want("before the leases of others are read", facts.PartitionSet{})
	g.known, g.revision = true, 0
	g.look()
	g.want("without a lease", facts.PartitionSet{})
	g.revision = 1
	g.look()
	g.want("with both", all())
}

// A partition is handed over when the new holder serves it completely, and not before.
func TestAPartitionIsServedUntilItsNewHolderIsComplete(t *testing.T) {
	g := newGroup(t)
	g.hears("b", facts.PartitionSet{})
	of := g.share("b")
	if n := of.Count(); n < 64 || n > 192 {
		t.Fatalf("got %d partitions for the second replica, want about half", n)
	}
	g.look()
	g.want("b has joined, and is not complete", all())
	some := of
	for p, n := 0, 0; n < 10; p++ {
		if some[p] {
			some[p] = false
			n++
		}
	}
	g.hears("b", some)
	g.look()
	g.want("others may not know yet that b is complete but for some partitions", all())
	g.now = g.now.Add(letGoAfter)
	g.look()
	g.want("b is complete but for some partitions", without(all(), some))
	g.hears("b", of)
	g.now = g.now.Add(letGoAfter)
	g.look()
	g.want("b is complete", g.share("a"))

	g.hears("c", facts.PartitionSet{}) // which takes partitions of both
	ofC := g.share("c")
	before := g.served
	g.look()
	g.want("c has joined, and is not complete", before)
	g.hears("c", ofC)
	g.now = g.now.Add(letGoAfter)
	g.look()
	g.want("c is complete", without(before, ofC))

	g.hear(entry{key: "c.c", op: jetstream.KeyValueDelete})
	g.look()
	g.want("c has left", g.share("a"))
}

// The partitions of a replica whose lease has ended are taken over. While this replica cannot renew its own
// lease, and for the time of a lease after that, no other lease ends: the others could not renew theirs either.
func TestALeaseEndsOnlyIfTheOwnOneDoesNot(t *testing.T) {
	g := newGroup(t)
	pass := func(d time.Duration, heard ...string) (gone []string) {
		g.Helper()
		for end := g.now.Add(d); g.now.Before(end); {
			g.now = g.now.Add(beatEvery)
			if g.bucket.err == nil {
				g.beat()
			}
			for _, name := range heard {
				g.hears(name, g.share(name))
			}
			gone = append(gone, g.look()...)
		}
		return gone
	}
	g.hears("b", facts.PartitionSet{})
	g.hears("c", facts.PartitionSet{})
	if gone := pass(2*leaseFor, "b", "c"); gone != nil {
		t.Fatalf("%q are gone, want none while they are heard", gone)
	}
	g.want("three replicas", g.share("a"))

	before := g.served
	g.bucket.err = errors.New("no servers")
	if gone := pass(10 * leaseFor); gone != nil {
		t.Errorf("without NATS, %q are gone, want none", gone)
	}
	g.want("without NATS", before)
	g.bucket.err = nil
	if gone := pass(leaseFor); gone != nil {
		t.Errorf("NATS is back: %q are gone, before they could be heard", gone)
	}
	if gone := pass(2*leaseFor, "c"); !slices.Equal(gone, []string{"b"}) {
		t.Errorf("got %q, want that b is gone, which is not heard", gone)
	}
	g.want("b is gone", g.share("a"))
	g.now = g.now.Add(2 * leaseFor) // NATS does not answer, and nothing else is done meanwhile
	if gone := pass(beatEvery); gone != nil {
		t.Errorf("NATS answers again: %q are gone, before they could be heard", gone)
	}
	if n := before.Count(); g.served.Count() <= n {
		t.Errorf("got %d partitions, want more than the %d before", g.served.Count(), n)
	}
}

// A replica whose own lease has ended gives up what others serve completely by now, and keeps the rest. It
// decides that only when it has read their leases again, and names no partition as complete before.
func TestAReplicaWithAnEndedLeaseLooksWhatOthersHaveTaken(t *testing.T) {
	g := newGroup(t)
	g.hears("b", facts.PartitionSet{})
	g.hears("b", g.share("b"))
	g.look()
	before := g.served

	g.bucket.revision = 0 // its lease has ended while it was paused
	g.now = g.now.Add(time.Minute)
	if err := g.renew(t.Context(), g.served); !errors.Is(err, errEnd) {
		t.Fatalf("got %v, want that the lease has ended", err)
	}
	g.look()
	g.want("before the leases are read", before)
	g.beat()
	if complete := setOf(g.bucket.record.GetComplete()); complete != (facts.PartitionSet{}) {
		t.Errorf("the new lease names %d complete partitions, want none before it is known what others serve", complete.Count())
	}
	taken := g.share("b")
	for p, n := 0, 0; n < 20; p++ {
		if before[p] {
			taken[p] = true
			n++
		}
	}
	g.hears("b", taken)
	g.hear(nil)
	g.look()
	g.want("after the leases are read", without(before, taken))
	g.beat()
	if complete := setOf(g.bucket.record.GetComplete()); complete != g.served {
		t.Errorf("the lease names %d complete partitions, want %d", complete.Count(), g.served.Count())
	}
	g.look()
	g.want("later", g.share("a")) // gained again, with the past that b knows
}

// A process that starts again takes the lease of the former one.
func TestTheLeaseOfAFormerProcessIsTaken(t *testing.T) {
	g := newGroup(t)
	g.bucket.revision, g.revision = 7, 0
	if err := g.renew(t.Context(), g.served); err != nil {
		t.Fatal(err)
	}
	if g.revision != 8 {
		t.Errorf("got the revision %d, want the one after that of the former process", g.revision)
	}
}

func (b *bucket) Get(context.Context, string) (jetstream.KeyValueEntry, error) {
	if b.revision == 0 {
		return nil, jetstream.ErrKeyNotFound
	}
	value, err := proto.Marshal(&b.record)
	return former{revision: b.revision, value: value}, errors.Join(b.err, err)
}

// former is the lease of a former process.
type former struct {
	jetstream.KeyValueEntry
	revision uint64
	value    []byte
}

func (f former) Revision() uint64 { return f.revision }
func (f former) Value() []byte    { return f.value }

// Two processes with one name are a mistake, which both report.
func TestAnotherProcessWithTheSameNameIsNamed(t *testing.T) {
	g := newGroup(t)
	g.bucket.record.Instance, g.bucket.revision = g.instance+1, g.bucket.revision+1
	if err := g.renew(t.Context(), g.served); !errors.Is(err, errTaken) {
		t.Errorf("got %v, want that another process has the lease", err)
	}
}
