package share

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The keeper is the only writer of the journal. It records what is in the log, in the order of the log, also
// what this replica says itself, so that all journals have the same. The log decides who serves a partition:
// the replica whose state of it began last. What another one says of it later is ignored, so a replica that
// was paused for too long changes nothing.

// A letter is an encoded message with its ID, by which JetStream recognizes it.
type letter struct {
	id  string
	raw []byte
}

// mailbox has the messages that wait to be published.
type mailbox struct {
	mu  sync.Mutex
	all []letter
	// bytes is their size, and peak the largest one since there were none.
	bytes, peak int
	overflown   bool
	// cut are the kinds of states of which a part was dropped. What follows of such a state is dropped,
	// too: its end would say that the items of that part are gone.
	cut  map[pb.Event_Kind]bool
	wake chan struct{}
}

// An arrival is a message of the log, or the beginning of a reading.
type arrival struct {
	batch *pb.ShareBatch // nil at the beginning, and for a message of another version
	// created is the creation time of the log, and sequence the number of the message.
	created  int64
	sequence uint64
	// missed is set if messages before this one are missing.
	missed bool
	// expected are the replicas that send their state because of that.
	expected []string
}

// A said is what this replica says of its partitions.
type said struct {
	part pb.ShareBatch_Part
	kind pb.Event_Kind
	// set are the partitions of a state that begins.
	set    facts.PartitionSet
	change *journal.Change
}

// note is how far the journal has recorded the log: the creation time of the log, and the number of the
// last message.
type note struct {
	created  int64
	sequence uint64
}

const noteSize = 8 + 8

func (n *note) encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, noteSize), uint64(n.created)) //nolint:gosec // read back as it was
	return binary.BigEndian.AppendUint64(b, n.sequence)
}

func decodeNote(b []byte) (n note) {
	if len(b) == noteSize {
		n.created, n.sequence = int64(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:]) //nolint:gosec // as it was written
	}
	return n
}

// keeper is the state of the goroutine that fills the journal.
type keeper struct {
	*Share
	from journal.Resumption
	note note
	// holders has, for each kind and partition, the name of the replica whose state of it began last; empty
	// if it is not known.
	holders map[pb.Event_Kind]*[len(facts.PartitionSet{})]string
	// states has the partitions of the states that are arriving.
	states map[stateID]facts.PartitionSet
	// foreign is set if another replica had taken a partition of this one at the last look.
	foreign bool
	// expected are the states that have to arrive.
	expected map[stateID]bool
}

type stateID struct {
	kind    pb.Event_Kind
	replica string
}

// Keep fills the journal until ctx ends.
func (s *Share) Keep(ctx context.Context) {
	select {
	case <-s.Journal.Opened():
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil {
		if err := s.keepOnce(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("cannot record in the journal: starting again", "error", err)
			_ = sleep(ctx, againAfter)
		}
	}
}

// keepOnce fills the journal until ctx ends or the journal starts again.
func (s *Share) keepOnce(ctx context.Context) error {
	from, err := s.Journal.Resumption()
	if err != nil {
		return err
	}
	k := &keeper{Share: s, from: from, holders: make(map[pb.Event_Kind]*[len(facts.PartitionSet{})]string), states: make(map[stateID]facts.PartitionSet)}
	k.note = decodeNote(from.Note)
	for _, kind := range []pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE} {
		k.holders[kind] = new([len(facts.PartitionSet{})]string)
	}
	if err := s.Journal.Resume(from); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer func() { cancel(); reading.Wait() }()
	at := k.note // the keeper may still record what was read
	reading.Go(func() {
		for ctx.Err() == nil {
			if err := s.read(ctx, &at); err != nil && ctx.Err() == nil {
				s.Log.Debug("cannot read the log of the replicas: trying again", "error", err)
				_ = sleep(ctx, againAfter)
			}
		}
	})
	look := time.NewTicker(ownEvery)
	defer look.Stop()
	for {
		select {
		case m := <-s.arrivals:
			err = k.arrived(&m)
		case <-look.C:
			k.own()
		case <-from.Replaced:
			return nil
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ownEvery is how often it is looked whether the log has a partition as that of another replica although this
// one serves it: one that was paused, and did not know yet that its lease had ended.
const ownEvery = 2 * time.Second

// own publishes the state again if another replica has taken a partition that this one serves, for longer
// than it takes to hand a partition over.
func (k *keeper) own() {
	set, _ := k.Recording()
	foreign := false
	for _, holders := range k.holders {
		for p, in := range set {
			foreign = foreign || in && holders[p] != "" && holders[p] != k.Replica
		}
	}
	if foreign && k.foreign {
		k.Restate()
		foreign = false
	}
	k.foreign = foreign
}

// keep passes a message of the log to the keeper. It returns false when that has ended.
func (s *Share) keep(ctx context.Context, m arrival) bool {
	select {
	case s.arrivals <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// arrived records a message of the log.
func (k *keeper) arrived(m *arrival) error {
	begun := k.note.sequence != 0
	k.note.created, k.note.sequence = m.created, m.sequence
	if m.missed && begun {
		now := k.Clock()
		since, _, _ := k.Journal.Written()
		gap := &pb.Gap{From: timestamppb.New(since), Until: timestamppb.New(now), Reason: pb.Gap_NOT_RECEIVED}
		if err := k.Journal.Missing(gap, k.note.encode()); err != nil {
			return err
		}
	}
	if len(m.expected) > 0 {
		k.expected = make(map[stateID]bool)
		for _, name := range m.expected {
			for kind := range k.holders {
				k.expected[stateID{kind, name}] = true
			}
		}
	}
	b := m.batch
	if b == nil {
		return k.Journal.Note(k.from, k.note.encode())
	}
	var err error
	switch b.GetPart() {
	case pb.ShareBatch_BEGINS:
		err = k.begins(b.GetReplica(), b.GetKind(), setOf(b.GetPartitions()))
	case pb.ShareBatch_STATE:
		err = k.changes(b, true)
	case pb.ShareBatch_ENDS:
		err = k.ends(b.GetReplica(), b.GetKind())
	default:
		err = k.changes(b, false)
	}
	return errors.Join(err, k.Journal.Note(k.from, k.note.encode()))
}

// begins notes that the state of some partitions follows, which a replica serves from now on.
func (k *keeper) begins(replica string, kind pb.Event_Kind, set facts.PartitionSet) error {
	holders := k.holders[kind]
	if holders == nil {
		return nil
	}
	for p, in := range set {
		if in {
			holders[p] = replica
		}
	}
	k.states[stateID{kind, replica}] = set
	return k.Journal.Feed(kind).From(replica).Begin(func(p int) bool { return set[p] })
}

// ends records that the state of some partitions is complete.
func (k *keeper) ends(replica string, kind pb.Event_Kind) error {
	id := stateID{kind, replica}
	set, there := k.states[id]
	if !there {
		return nil // its beginning was missed
	}
	delete(k.states, id)
	k.Untidy()
	holders := *k.holders[kind]
	feed := k.Journal.Feed(kind).From(replica)
	if err := feed.Complete(func(p int) bool { return set[p] && holders[p] == replica }); err != nil {
		return err
	}
	if k.expected[id] {
		if delete(k.expected, id); len(k.expected) == 0 {
			if err := feed.Flush(); err != nil {
				return err
			}
			k.caughtUp()
		}
	}
	return nil
}

// holds reports whether a replica may say something about a partition.
func (k *keeper) holds(replica string, kind pb.Event_Kind, p int) bool {
	holder := k.holders[kind][p]
	return holder == "" || holder == replica
}

// changes records transitions of a replica, or items of its state.
func (k *keeper) changes(b *pb.ShareBatch, state bool) error {
	if _, begun := k.states[stateID{b.GetKind(), b.GetReplica()}]; state && !begun {
		return nil // its beginning was missed
	}
	for _, t := range b.GetTransitions() {
		c := changeOf(t)
		if c == nil {
			continue
		}
		kind := t.GetEvent().GetKind()
		p, err := journal.Partition(c)
		if err != nil || !k.holds(b.GetReplica(), kind, p) {
			continue // something else has written it, or another replica knows it better
		}
		if state {
			err = k.Journal.Feed(kind).From(b.GetReplica()).Present(c)
		} else if err = k.Journal.Feed(kind).Changed(c); b.GetReplica() != k.Replica {
			k.Heard(t.GetEvent())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changeOf returns what a transition changes; nil if it is of an unknown kind.
func changeOf(t *pb.Transition) *journal.Change {
	e := t.GetEvent()
	c := &journal.Change{
		At: e.GetTime().AsTime(), Type: e.GetType(), Item: t.GetItem(),
		Owner: e.GetOwner(), Conflict: e.GetConflict(), Finding: e.GetFinding(), Node: e.GetNode(),
	}
	if c.Owner == nil && c.Conflict == nil && c.Finding == nil && c.Node == nil {
		return nil
	}
	return c
}

// say publishes what this replica says, until ctx ends.
func (s *Share) say(ctx context.Context) {
	var o outbox
	for {
		if len(s.saying) == 0 {
			s.post(o.take())
		}
		select {
		case one := <-s.saying:
			switch one.part {
			case pb.ShareBatch_BEGINS:
				s.post(o.take())
				m := o.begin(s, one.part, one.kind)
				m.Partitions = bitsOf(&one.set)
				s.post(m)
			case pb.ShareBatch_ENDS:
				s.post(o.take())
				s.post(o.begin(s, one.part, one.kind))
			case pb.ShareBatch_STATE:
				s.room(ctx)
				s.post(o.add(s, one.part, one.kind, transitionOf(one.kind, one.change)))
			default:
				s.post(o.add(s, one.part, pb.Event_UNSPECIFIED, transitionOf(one.kind, one.change)))
			}
		case <-ctx.Done():
			s.post(o.take())
			return
		}
	}
}

// transitionOf returns a change as messages have it. Nothing of the change may be changed afterwards.
func transitionOf(kind pb.Event_Kind, c *journal.Change) *pb.Transition {
	e := &pb.Event{
		Time: timestamppb.New(c.At), Type: c.Type, Kind: kind, Owner: c.Owner, Conflict: c.Conflict, Finding: c.Finding, Node: c.Node,
	}
	t := &pb.Transition{Event: e}
	if c.Owner != nil {
		t.Item = journal.ItemOf(c.ID)
	}
	return t
}

// A Feed records what this replica says of one kind of items, as journal.Feed does. Items of partitions that
// it does not serve are left out.
type Feed struct {
	share *Share
	kind  pb.Event_Kind
	set   facts.PartitionSet
}

// Feed returns the feed of a kind for some partitions.
func (s *Share) Feed(kind pb.Event_Kind, set facts.PartitionSet) Feed { return Feed{s, kind, set} }

var errEnded = errors.New("the aggregator stops")

func (f Feed) put(one said) error {
	select {
	case f.share.saying <- one:
		return nil
	case <-f.share.ended:
		return errEnded
	}
}

// Begin announces that the present state follows.
func (f Feed) Begin() error {
	return f.put(said{part: pb.ShareBatch_BEGINS, kind: f.kind, set: f.set})
}

// Complete announces that the present state was sent.
func (f Feed) Complete() error { return f.put(said{part: pb.ShareBatch_ENDS, kind: f.kind}) }

// Present records an item of the present state.
func (f Feed) Present(c *journal.Change) error { return f.record(pb.ShareBatch_STATE, c) }

// Changed records a change.
func (f Feed) Changed(c *journal.Change) error { return f.record(pb.ShareBatch_UNSPECIFIED, c) }

func (f Feed) record(part pb.ShareBatch_Part, c *journal.Change) error {
	p, err := journal.Partition(c)
	if err != nil || !f.set[p] {
		return err
	}
	one := *c
	return f.put(said{part: part, kind: f.kind, change: &one})
}

// Passed does nothing: watches of shared addresses do not resume from the events of one process.
func (f Feed) Passed(uint64) error { return nil }

// Lost does nothing: the state follows.
func (f Feed) Lost(uint64) error { return nil }

// Restate has this replica record and publish the state of its partitions again.
func (s *Share) Restate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.restated)
	s.restated = make(chan struct{})
}

// Recording returns the partitions to record, and a channel that is closed when others are to be recorded,
// or the same ones from the beginning.
func (s *Share) Recording() (facts.PartitionSet, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recording, s.restated
}
