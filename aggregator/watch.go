package aggregator

import (
	"context"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// bookmarkEvery is how often a watcher hears from us though nothing happens.
	bookmarkEvery = 15 * time.Second
	// snapshotPage is the number of items of the current state that are built at a time, and
	// thus held in memory for each subscriber that does not read. snapshotPlaces is the number
	// of places that are searched for at a time; each search walks the whole table.
	snapshotPage   = 16
	snapshotPlaces = 1024
)

// watch is one watcher of a hub: what it is sent, and how.
type watch struct {
	hub   *hub
	clock func() verdict.Stamp
	// patience is of all that is sent.
	patience *patience
	// present sends the present state.
	present func() error
	// change sends an event, or leaves it out.
	change   func(*event) error
	bookmark func(token string, coverage *pb.Coverage) error
	// coverage returns the coverage of the current state.
	coverage func() *pb.Coverage
	lost     func(n uint32) error
}

// WatchOwners sends the owners there are, then every change.
func (w witness) WatchOwners(q *pb.WatchOwnersRequest, stream pb.WitnessService_WatchOwnersServer) error {
	f, err := newFilter(q)
	if err != nil {
		return err
	}
	patience := newPatience()
	send := patient(patience, stream.Send)
	return watch{
		hub: w.store.owners, clock: w.store.clock, patience: patience, coverage: w.store.currentCoverage,
		present: func() error {
			return w.store.eachOwner(&f, func(o *pb.Owner) error {
				return send(&pb.WatchOwnersResponse{Type: added, Owner: o})
			})
		},
		change: func(e *event) error {
			typ, ok := f.event(e)
			if !ok {
				return nil
			}
			return send(&pb.WatchOwnersResponse{Type: typ, Owner: e.owner, Node: e.node})
		},
		bookmark: func(token string, coverage *pb.Coverage) error {
			return send(&pb.WatchOwnersResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage})
		},
		lost: func(n uint32) error {
			return send(&pb.WatchOwnersResponse{Type: pb.Watch_LOST, Lost: n})
		},
	}.serve(stream.Context(), w.stopped, q.GetResumeToken())
}

// WatchConflicts sends the active conflicts, then every change.
func (w witness) WatchConflicts(q *pb.WatchConflictsRequest, stream pb.WitnessService_WatchConflictsServer) error {
	addr, err := optionalAddress(q.GetAddress())
	if err != nil {
		return err
	}
	matches := func(a netip.Addr) bool { return !addr.IsValid() || a == addr }
	patience := newPatience()
	send := patient(patience, stream.Send)
	return watch{
		hub: w.store.conflicts, clock: w.store.clock, patience: patience, coverage: w.store.currentCoverage,
		present: func() error {
			wanted := func(c *verdict.Conflict) bool { return c.Active() && matches(c.Address) }
			for from := (place{}); ; {
				places := w.store.conflictPlaces(wanted, from, snapshotPlaces)
				for _, at := range places {
					if c := w.store.conflictAt(at, wanted); c != nil {
						if err := send(&pb.WatchConflictsResponse{Type: added, Conflict: c}); err != nil {
							return err
						}
					}
				}
				if len(places) < snapshotPlaces {
					return nil
				}
				from = places[len(places)-1]
			}
		},
		change: func(e *event) error {
			if e.conflict != nil && !matches(e.addr) {
				return nil
			}
			return send(&pb.WatchConflictsResponse{Type: e.typ, Conflict: e.conflict, Node: e.node})
		},
		bookmark: func(token string, coverage *pb.Coverage) error {
			return send(&pb.WatchConflictsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage})
		},
		lost: func(n uint32) error {
			return send(&pb.WatchConflictsResponse{Type: pb.Watch_LOST, Lost: n})
		},
	}.serve(stream.Context(), w.stopped, q.GetResumeToken())
}

// serve serves the watcher until it leaves, lets a Send wait for too long, or the
// aggregator stops.
func (w watch) serve(ctx context.Context, stopped <-chan struct{}, token string) error {
	w.hub.join()
	defer func() { w.hub.leave(w.clock()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	done := make(chan error, 1)
	go func() { done <- w.follow(ctx, token) }()
	select {
	case err := <-done:
		return err
	case <-w.patience.late.C:
		return errCutOff(w.hub.token(w.patience.from.Load()))
	case <-access.Revoked(ctx):
		return access.ErrRevoked
	case <-stopped:
		return errStopping
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// follow sends the present state, then changes. A Send of it can take for ever.
func (w watch) follow(ctx context.Context, token string) error {
	next, resumed, err := w.hub.resume(token)
	if err != nil {
		return err
	}
	coverage := w.coverage()
	if !resumed {
		if token != "" { // what follows replaces all that the watcher has
			if err := w.lost(0); err != nil {
				return err
			}
		}
		next = w.hub.revision()
		if err := w.present(); err != nil {
			return err
		}
	}
	w.patience.from.Store(next)
	if err := w.bookmark(w.hub.token(next), coverage); err != nil {
		return err
	}

	quiet := time.NewTicker(bookmarkEvery)
	defer quiet.Stop()
	var events []event
	for {
		var lost uint64
		var changed <-chan struct{}
		from := next
		events, next, lost, changed = w.hub.since(from, events[:0])
		if lost > 0 {
			w.patience.from.Store(anew)
			coverage = w.coverage()
			if err := w.lost(uint32(min(lost, math.MaxUint32))); err != nil {
				return err
			}
			if err := w.present(); err != nil {
				return err
			}
			w.patience.from.Store(next)
			if err := w.bookmark(w.hub.token(next), coverage); err != nil {
				return err
			}
			continue
		}
		ofNode := false
		for i := range events {
			ofNode = ofNode || events[i].node != nil
			if err := w.change(&events[i]); err != nil {
				return err
			}
			w.patience.from.Store(from + uint64(i) + 1)
		}
		clear(events)
		if ofNode {
			if now := w.coverage(); !sameCoverage(now, coverage) {
				coverage = now
				if err := w.bookmark(w.hub.token(next), coverage); err != nil {
					return err
				}
			}
		}
		if changed == nil {
			if ctx.Err() != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
			continue
		}
		select {
		case <-changed:
		case <-quiet.C:
			coverage = w.coverage()
			if err := w.bookmark(w.hub.token(next), coverage); err != nil {
				return err
			}
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

var errStopping = status.Error(codes.Unavailable, "the aggregator is stopping: connect again, with the last resume token")

// errReportStopping is the same for an agent, which has no token.
var errReportStopping = status.Error(codes.Unavailable, "the aggregator is stopping")

// token is what a watcher resumes with: this instance of the hub and a revision.
func (h *hub) token(revision uint64) string {
	return strconv.FormatInt(h.instance, 36) + "-" + strconv.FormatUint(revision, 36)
}

// resume reads a token and tells whether all since then is still known. One of
// another instance is like none.
func (h *hub) resume(token string) (from uint64, ok bool, err error) {
	if token == "" {
		return 0, false, nil
	}
	instance, revision, cut := strings.Cut(token, "-")
	from, err = strconv.ParseUint(revision, 36, 64)
	if !cut || err != nil {
		return 0, false, status.Error(codes.InvalidArgument, "resume_token is not one that was given out: leave it out to begin anew")
	}
	return from, instance == strconv.FormatInt(h.instance, 36) && h.holds(from), nil
}
