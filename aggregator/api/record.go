package api

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// recordAgainAfter is the time after which recording starts again after an error.
const recordAgainAfter = time.Second

// Record records everything in the journal until ctx ends: first the present state, then every change,
// as a watch sends them. It begins when recalled is closed: before the agents that were connected have
// reported again after a restart, or have timed out, their owners would seem to be gone.
func (s *Service) Record(ctx context.Context, recalled <-chan struct{}) {
	select {
	case <-recalled:
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil { // each time until the journal is replaced
		replaced := s.Journal.Replaced()
		ctx, cancel := context.WithCancel(ctx)
		var group sync.WaitGroup
		for _, record := range []func(context.Context) error{
			func(ctx context.Context) error { return record(ctx, s, s.watchOwners(&filter{})) },
			func(ctx context.Context) error {
				return record(ctx, s, s.watchConflicts(&conflictFilter{}, &conflictFilter{}))
			},
			func(ctx context.Context) error { return record(ctx, s, s.watchFindings(&findingFilter{})) },
		} {
			group.Go(func() {
				for ctx.Err() == nil {
					if err := record(ctx); err != nil && ctx.Err() == nil {
						s.Journal.Log.Error("cannot record changes: starting again", "error", err)
						select {
						case <-time.After(recordAgainAfter):
						case <-ctx.Done():
						}
					}
				}
			})
		}
		select {
		case <-replaced:
		case <-ctx.Done():
		}
		cancel()
		group.Wait()
	}
}

// record runs a watch whose subscriber is the journal. That of the conflicts records the nodes, too, whose
// events come together.
func record[K, T any](ctx context.Context, s *Service, w *watch[K, T]) error {
	feed, nodes := s.Journal.Feed(w.past.kind), s.Journal.Feed(pb.Event_NODE)
	withNodes := w.past.kind == pb.Event_CONFLICT
	w.events.Join()
	defer w.events.Leave()
	w.coverage = func() *pb.Coverage { return nil } // the nodes are recorded instead
	arriving := true                                // while the present state is recorded
	busy := true                                    // while more may have happened than is recorded
	w.flush = func() error {
		if !busy {
			return nil
		}
		busy = false
		if withNodes {
			return errors.Join(nodes.Idle(), feed.Idle())
		}
		return feed.Idle()
	}
	w.send = func(m *message) error {
		busy = true
		c := &journal.Change{Type: m.typ, Owner: m.owner, Conflict: m.conflict, Finding: m.finding, Revision: w.reached}
		switch {
		case m.typ == pb.Watch_LOST:
			arriving = true
			return errors.Join(feed.Lost(uint64(m.lost)), feed.Begin())
		case m.typ == pb.Watch_BOOKMARK && !arriving:
			return nil
		case m.typ == pb.Watch_BOOKMARK:
			arriving = false
			if withNodes {
				if err := s.recordNodes(nodes); err != nil {
					return err
				}
			}
			return errors.Join(feed.Complete(), feed.Passed(w.reached))
		case m.event == nil:
			c.At, c.ID, c.Revision = s.now(), m.id, 0
			return feed.Present(c)
		case m.node != nil: // which changes nothing of the other items
			var err error
			if withNodes {
				err = nodes.Changed(&journal.Change{At: m.event.At.Time(), Type: pb.Watch_UPDATED, Node: m.node})
			}
			return errors.Join(err, feed.Passed(w.reached))
		}
		c.At, c.ID = m.event.At.Time(), m.event.Holder.Owner.ID
		return feed.Changed(c)
	}
	if err := feed.Begin(); err != nil {
		return err
	}
	err := w.follow(ctx, "")
	if feed.Lost(0) != nil && err == nil {
		err = errStopping
	}
	return err
}

// recordNodes records the present state of the nodes.
func (s *Service) recordNodes(feed journal.Feed) error {
	if err := feed.Begin(); err != nil {
		return err
	}
	for _, n := range s.nodes("") {
		if err := feed.Present(&journal.Change{At: s.now(), Type: pb.Watch_ADDED, Node: n}); err != nil {
			return err
		}
	}
	return feed.Complete()
}

func (s *Service) now() time.Time { return s.Facts.Clock().Time() }
