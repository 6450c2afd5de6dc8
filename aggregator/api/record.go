package api

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/live"
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
	for ctx.Err() == nil {
		s.recordOnce(ctx)
	}
}

// recordOnce records until ctx ends or the journal has to start again.
func (s *Service) recordOnce(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replaced := s.Journal.Replaced()
	go func() {
		select {
		case <-replaced:
			cancel()
		case <-ctx.Done():
		}
	}()
	var group sync.WaitGroup
	for _, record := range []func(context.Context) error{s.recordOwners, s.recordConflicts, s.recordFindings} {
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
	group.Wait()
}

// A step records one item or one change.
type step func() error

// recording is a watch whose subscriber is the journal.
type recording struct {
	feed journal.Feed
	// begun is set while the present state is recorded.
	begun bool
	// present is called before the present state is complete; nil if there is nothing to do.
	present func() error
	// reached is the revision after the event that is being recorded.
	reached *uint64
}

// passed records that an event changes nothing in the journal, or has changed something else.
func (r *recording) passed() error { return r.feed.Passed(*r.reached) }

func (r *recording) begin(lost uint64, known bool) error {
	r.begun = true
	if known {
		if err := r.feed.Lost(lost); err != nil {
			return err
		}
	}
	return r.feed.Begin()
}

// record runs a watch for the journal.
func record[K, T any](ctx context.Context, s *Service, r *recording, x *watch[K, T, step]) error {
	x.events.Join()
	defer x.events.Leave()
	x.coverage = func() *pb.Coverage { return nil } // the nodes are recorded instead
	x.patience = newPatience()
	x.send = func(do *step) error { return (*do)() }
	x.flush = func() error { return nil }
	r.reached = &x.reached
	x.bookmark = func(string, *pb.Coverage) *step {
		return new(step(func() error {
			if !r.begun {
				return nil
			}
			r.begun = false
			if r.present != nil {
				if err := r.present(); err != nil {
					return err
				}
			}
			if err := r.feed.Complete(); err != nil {
				return err
			}
			return r.feed.Passed(x.reached)
		}))
	}
	x.lost = func(n uint32) *step { return new(step(func() error { return r.begin(uint64(n), true) })) }
	if err := r.begin(0, false); err != nil {
		return err
	}
	err := x.follow(ctx, "")
	if r.feed.Lost(0) != nil && err == nil {
		err = errStopping
	}
	return err
}

func (s *Service) recordOwners(ctx context.Context) error {
	f := filter{}
	r := &recording{feed: s.Journal.Feed(pb.Event_OWNER)}
	return record(ctx, s, r, &watch[index.Address, *pb.Owner, step]{
		events: s.Events.Owners,
		walk:   func() *walk[index.Address, *pb.Owner] { return s.walkOwners(&f, place{}) },
		key:    ownerKey,
		add: func(o item[*pb.Owner]) *step {
			return new(step(func() error {
				return r.feed.Present(&journal.Change{At: s.now(), Type: pb.Watch_ADDED, ID: o.at.(place).id, Owner: o.it})
			}))
		},
		event: func(e *live.Event) *step {
			if e.Owner == nil {
				return new(step(r.passed))
			}
			return new(step(func() error {
				return r.feed.Changed(&journal.Change{At: e.At.Time(), Type: e.Type, ID: e.Holder.Owner.ID, Owner: e.Owner, Revision: *r.reached})
			}))
		},
	})
}

// recordConflicts records the conflicts and the nodes, whose events come together.
func (s *Service) recordConflicts(ctx context.Context) error {
	f := conflictFilter{}
	r := &recording{feed: s.Journal.Feed(pb.Event_CONFLICT)}
	nodes := s.Journal.Feed(pb.Event_NODE)
	r.present = func() error { return s.recordNodes(nodes) }
	return record(ctx, s, r, &watch[place, *pb.Conflict, step]{
		events: s.Events.Conflicts,
		walk:   func() *walk[place, *pb.Conflict] { return s.walkConflicts(&f, place{}) },
		key:    conflictKey,
		add: func(c item[*pb.Conflict]) *step {
			return new(step(func() error {
				return r.feed.Present(&journal.Change{At: s.now(), Type: pb.Watch_ADDED, Conflict: c.it})
			}))
		},
		event: func(e *live.Event) *step {
			return new(step(func() error {
				if e.Node != nil {
					return errors.Join(nodes.Changed(&journal.Change{At: e.At.Time(), Type: pb.Watch_UPDATED, Node: e.Node}), r.passed())
				}
				return r.feed.Changed(&journal.Change{At: e.At.Time(), Type: e.Type, Conflict: e.Conflict, Revision: *r.reached})
			}))
		},
	})
}

// recordNodes records the present state of the nodes.
func (s *Service) recordNodes(feed journal.Feed) error {
	if err := feed.Begin(); err != nil {
		return err
	}
	q, err := s.ListNodes(context.Background(), &pb.ListNodesRequest{})
	if err != nil {
		return err
	}
	for _, n := range q.GetNodes() {
		if err := feed.Present(&journal.Change{At: s.now(), Type: pb.Watch_ADDED, Node: n}); err != nil {
			return err
		}
	}
	return feed.Complete()
}

func (s *Service) recordFindings(ctx context.Context) error {
	f := findingFilter{}
	r := &recording{feed: s.Journal.Feed(pb.Event_FINDING)}
	return record(ctx, s, r, &watch[*judge.Found, *pb.Finding, step]{
		events: s.Events.Findings,
		walk:   func() *walk[*judge.Found, *pb.Finding] { return s.walkFindings(&f, judge.FindingPlace{}) },
		key:    findingKey,
		add: func(one item[*pb.Finding]) *step {
			return new(step(func() error {
				return r.feed.Present(&journal.Change{At: s.now(), Type: pb.Watch_ADDED, Finding: one.it})
			}))
		},
		event: func(e *live.Event) *step {
			return new(step(func() error {
				return r.feed.Changed(&journal.Change{At: e.At.Time(), Type: e.Type, Finding: e.Finding, Revision: *r.reached})
			}))
		},
	})
}

func (s *Service) now() time.Time { return s.Facts.Clock().Time() }
