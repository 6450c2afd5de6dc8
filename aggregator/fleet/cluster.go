package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A position is how far the journal of a cluster has recorded its stream. It is the note of the journal, in JSON,
// so it is always that of the last record.
type position struct {
	stream.Position
	// Done is the number of transitions of the next message that are recorded.
	Done uint32
	// Waiting is set while messages are missing, and Since is the time from which on they are; zero if
	// that is not known.
	Waiting bool
	Since   time.Time
	// Until is the time up to which everything is recorded, and Heard is when the stream got the last
	// message.
	Until, Heard time.Time
}

func (p *position) encode() []byte {
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // it has only texts, numbers and times
	}
	return raw
}

// kinds are the kinds of items that the state of a cluster has.
var kinds = [...]pb.Event_Kind{pb.Event_NODE, pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING}

// A cluster is one cluster of a fleet. One goroutine follows its stream.
type cluster struct {
	api.Records
	log   *slog.Logger
	clock func() time.Time

	// from is where the journal was resumed. last is the number of the last message that was received,
	// and state is set while a complete state arrives. The goroutine that follows the stream uses them.
	from  journal.Resumption
	last  uint64
	state bool

	mu sync.Mutex
	// at is how far the stream was read. known is set once that is known.
	at    position
	known bool
	// coverage is that of the last message; nil if none has arrived since the start.
	coverage *pb.Coverage
	// failing is why the stream cannot be read; nil if it can. gaps counts the gaps in the stream, and
	// messages the messages.
	failing        error
	gaps, messages uint64
	// foreign are the messages that no aggregator of the cluster has published.
	foreign stream.Foreign
}

func (f *Fleet) newCluster(name string) *cluster {
	c := &cluster{Records: api.Records{Name: name}, log: f.Log.With("cluster", name), clock: f.Clock}
	c.Journal = f.newJournal(filepath.Join("clusters", stream.Name(name)), c.log, c.reached)
	return c
}

// reached returns the time up to which everything was sent to the journal.
func (c *cluster) reached() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.Until.IsZero() {
		return time.UnixMicro(0)
	}
	return c.at.Until
}

// run follows the stream until ctx ends.
func (c *cluster) run(ctx context.Context, link *stream.Link) {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { c.Journal.Run(ctx) })
	for ctx.Err() == nil {
		err := c.follow(ctx, link)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, context.Canceled) { // the journal has started again
			err = nil
		}
		c.mu.Lock()
		if c.failing == nil && err != nil {
			c.log.Warn("cannot read the stream: trying again", "error", err)
		}
		c.failing = err
		c.mu.Unlock()
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
		}
	}
}

// follow records the stream until ctx ends, or the stream or the journal cannot be used.
func (c *cluster) follow(ctx context.Context, link *stream.Link) error {
	if err := c.resume(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replaced := c.from.Replaced
	go func() {
		select {
		case <-replaced:
			cancel()
		case <-ctx.Done():
		}
	}()
	c.last, c.state = c.at.Sequence, false
	return link.Follow(ctx, c.Name, c.at.Position, c.apply)
}

// resume continues the journal, unless that was done already.
func (c *cluster) resume() error {
	if c.from.Replaced != nil {
		select {
		case <-c.from.Replaced:
		default:
			return nil
		}
	}
	from, err := c.Journal.Resumption()
	if err != nil {
		return err
	}
	at := position{Waiting: true}
	if from.Note != nil {
		at.Waiting = false
		if err := json.Unmarshal(from.Note, &at); err != nil {
			return fmt.Errorf("read the position in the stream: %w", err)
		}
	}
	at.Waiting = at.Waiting || !from.Begun
	c.from = from
	c.set(at)
	switch {
	case !from.Begun: // the first state follows
		return nil
	case at.Waiting:
		return c.Journal.LoseSince(at.Since, pb.Gap_NOT_RECEIVED)
	}
	return c.Journal.Resume(from)
}

func (c *cluster) set(at position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.known = at, true
}

// skip passes over a foreign message. A state that arrives continues after it.
func (c *cluster) skip(at *position, number uint64) error {
	c.mu.Lock()
	c.foreign.Note(number, c.clock())
	c.failing = nil
	c.mu.Unlock()
	if number != c.last+1 {
		return nil // the next message of the cluster shows that others are missing
	}
	if c.last = number; c.state {
		return nil
	}
	at.Sequence = number
	c.set(*at)
	return c.Journal.Note(c.from, at.encode())
}

func (c *cluster) apply(m stream.Message) error {
	at := c.at // only this goroutine changes it
	if m.Foreign {
		return c.skip(&at, m.GetSequence())
	}
	if missed := m.GetSequence() != c.last+1 || m.GetStream() != at.Stream; missed || c.state && m.GetPart() == pb.TransitionBatch_UNSPECIFIED {
		if err := c.lose(&at); err != nil {
			return err
		}
	}
	c.last = m.GetSequence()
	at.Stream, at.Heard = m.GetStream(), m.Stored
	c.mu.Lock()
	c.at.Heard, c.at.Stream, c.coverage = at.Heard, at.Stream, m.GetCoverage()
	c.messages++
	if c.failing != nil {
		c.log.Info("the stream can be read again")
		c.failing = nil
	}
	c.mu.Unlock()
	switch m.GetPart() {
	case pb.TransitionBatch_STATE_BEGINS:
		for _, kind := range kinds {
			if err := c.Journal.Feed(kind).Begin(); err != nil {
				return err
			}
		}
		c.state = true
	case pb.TransitionBatch_STATE, pb.TransitionBatch_STATE_ENDS:
	default:
		return c.changes(&at, m)
	}
	if !c.state {
		return nil // its beginning was missed
	}
	for _, t := range m.GetTransitions() {
		change := changeOf(t)
		if change == nil {
			continue
		}
		change.At, change.Type = m.GetUntil().AsTime(), pb.Watch_ADDED
		if err := c.Journal.Feed(t.GetEvent().GetKind()).Present(change); err != nil {
			return err
		}
	}
	if m.GetPart() == pb.TransitionBatch_STATE_ENDS {
		return c.complete(&at, m)
	}
	return nil
}

// lose notes that messages are missing, so that nothing is recorded before the next state.
func (c *cluster) lose(at *position) error {
	c.state = false
	if at.Waiting {
		return nil
	}
	c.log.Warn("messages are missing in the stream: waiting for the next complete state", "after", at.Sequence)
	at.Waiting, at.Since, at.Done = true, at.Until, 0
	c.mu.Lock()
	c.gaps++
	c.mu.Unlock()
	c.set(*at)
	return errors.Join(c.Journal.LoseSince(at.Since, pb.Gap_NOT_RECEIVED), c.Journal.Note(c.from, at.encode()))
}

func (c *cluster) complete(at *position, m stream.Message) error {
	c.state = false
	at.Sequence, at.Done, at.Waiting, at.Since, at.Until = m.GetSequence(), 0, false, time.Time{}, later(at.Until, m.GetUntil().AsTime())
	c.mu.Lock()
	c.at.Until = at.Until // what is gone is gone at this time
	c.mu.Unlock()
	for _, kind := range kinds {
		if err := c.Journal.Feed(kind).Complete(); err != nil {
			return err
		}
	}
	if err := c.Journal.Note(c.from, at.encode()); err != nil {
		return err
	}
	if err := c.Journal.Feed(pb.Event_NODE).Flush(); err != nil { // the state is known when the cluster is LIVE
		return err
	}
	c.set(*at)
	return nil
}

func (c *cluster) changes(at *position, m stream.Message) error {
	some := m.GetTransitions()
	if at.Waiting {
		some = nil
	}
	for i, t := range some {
		if i < int(at.Done) {
			continue // before a restart
		}
		at.Done++
		if g := t.GetGap(); g != nil {
			at.Until = later(at.Until, g.GetUntil().AsTime())
			if err := c.Journal.Missing(g, at.encode()); err != nil {
				return err
			}
			continue
		}
		change := changeOf(t)
		if change == nil {
			continue
		}
		at.Until = later(at.Until, change.At)
		change.Note = at.encode()
		if err := c.Journal.Feed(t.GetEvent().GetKind()).Changed(change); err != nil {
			return err
		}
	}
	at.Sequence, at.Done = m.GetSequence(), 0
	if !at.Waiting {
		at.Until = later(at.Until, m.GetUntil().AsTime())
	}
	c.set(*at)
	return c.Journal.Note(c.from, at.encode())
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lives returns the state of what is known of the cluster, at a time.
func (c *cluster) lives(now time.Time) pb.Cluster_State {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.known, c.at.Waiting:
		return pb.Cluster_WAITING
	case now.Sub(c.at.Heard) > heardWithin:
		return pb.Cluster_DISCONNECTED
	}
	return pb.Cluster_LIVE
}

func (c *cluster) message() *pb.Cluster {
	now := c.clock()
	out := &pb.Cluster{Name: c.Name, State: c.lives(now), Problems: c.problems(now)}
	if oldest := c.Journal.Oldest(); !oldest.IsZero() {
		out.ReachesBackTo = timestamppb.New(oldest)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out.Sequence, out.Coverage = c.at.Sequence, c.coverage
	if !c.at.Heard.IsZero() {
		out.LastHeard, out.Lag = timestamppb.New(c.at.Heard), durationpb.New(max(0, now.Sub(c.at.Heard)))
	}
	if !c.at.Until.IsZero() {
		out.Until = timestamppb.New(c.at.Until)
	}
	return out
}

// problems describes what is wrong with the stream and the journal.
func (c *cluster) problems(now time.Time) (problems []string) {
	for _, p := range c.Journal.Problems() {
		problems = append(problems, fmt.Sprintf("the records in %s: %s", p.Path, p.Err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(c.failing, stream.ErrNoStream):
		problems = append(problems, fmt.Sprintf("the hub has no mirror %s", stream.Name(c.Name)))
	case c.failing != nil:
		problems = append(problems, fmt.Sprintf("the stream cannot be read: %s", c.failing))
	case c.known && !c.at.Heard.IsZero() && now.Sub(c.at.Heard) > heardWithin:
		problems = append(problems, "the mirror gets nothing from the cluster: its aggregator, its NATS servers or their connection to the hub are down")
	}
	if problem := c.foreign.Problem(c.Name, now); problem != "" {
		problems = append(problems, problem)
	}
	if c.at.Waiting && !c.at.Since.IsZero() {
		problems = append(problems, fmt.Sprintf("messages in the stream are missing since %s: what has changed since then is known after the next complete state, which the cluster publishes at least once a day",
			c.at.Since.UTC().Format(time.RFC3339)))
	}
	return problems
}
