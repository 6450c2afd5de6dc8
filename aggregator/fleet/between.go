package fleet

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// judgeEvery is how often suspected conflicts are judged again.
	judgeEvery = time.Second
	// keepResolved is how long a resolved conflict is remembered for its next episode, and mostResolved is
	// the number of those that are.
	keepResolved = 24 * time.Hour
	mostResolved = 10_000
)

// between finds conflicts between clusters, in the networks that they share. It watches the journals of
// the clusters like a subscriber, and has a journal of its own.
type between struct {
	api.Records
	fleet    *Fleet
	networks networks
	log      *slog.Logger
	clock    func() time.Time

	mu sync.Mutex
	// followed is the watch that the owners come from.
	followed *api.RecordedWatch
	// where has the clusters with owners of each address of a shared network.
	where map[netip.Addr][]string
	// dirty are the addresses to judge; true if an owner may have left.
	dirty map[netip.Addr]bool
	// contests are the conflicts, by address. An address is in one network.
	contests map[netip.Addr]*contest
	// begun is set when the present conflicts are recorded.
	begun bool

	// ready is set when all clusters were judged once since the start.
	ready atomic.Bool
}

// run judges until ctx ends.
func (b *between) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { b.Journal.Run(ctx) })
	group.Go(func() { b.repeat(ctx) })
	if err := b.recall(ctx); err != nil && ctx.Err() == nil {
		b.log.Error("cannot read the conflicts between clusters of before the start: their episodes begin again", "error", err)
	}
	for ctx.Err() == nil {
		if err := b.watch().Follow(ctx); err != nil && ctx.Err() == nil {
			b.log.Error("cannot read the records of the clusters: trying again", "error", err)
		}
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
		}
	}
}

// recall reads the conflicts that were recorded before the start.
func (b *between) recall(ctx context.Context) error {
	sel, err := api.SelectConflicts(&pb.ListConflictsRequest{}, true)
	if err != nil {
		return err
	}
	now := b.clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Items(ctx, sel, time.Time{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
		a, err := netip.ParseAddr(e.GetConflict().GetAddress())
		n := b.networks.of(a)
		if err == nil && n != nil && n.Name == e.GetConflict().GetScope().GetName() {
			b.contests[a] = &contest{n, e.GetConflict(), now}
		}
		return true
	})
}

func (b *between) watch() *api.RecordedWatch {
	shared := func(e *pb.Event) bool {
		a, err := netip.ParseAddr(e.GetOwner().GetAddress())
		return err == nil && b.networks.of(a) != nil
	}
	sel := api.Selection{Changes: journal.Query{Kind: pb.Event_OWNER, Match: shared}, Matches: shared}
	if len(b.networks) == 1 && len(b.networks[0].Prefixes) == 1 {
		sel.Span = ipam.RangeOf(b.networks[0].Prefixes[0])
	}
	w := &api.RecordedWatch{
		Sources: func() ([]*api.Records, <-chan struct{}, error) { return b.fleet.sources(nil, pb.Event_OWNER) },
		Select:  sel, Present: true, At: make(api.Positions),
		Coverage: func() *pb.Coverage { return nil }, Token: func(api.Positions) string { return "" },
		Flush: b.judgeDirty,
		Send: func(m api.Recorded) error {
			switch {
			case m.Type == pb.Watch_LOST:
				b.reset()
			case m.Event != nil:
				b.changed(m.Event)
			}
			return nil
		},
	}
	b.mu.Lock()
	b.followed = w // first: of none of the clusters has it sent anything
	b.mu.Unlock()
	b.reset()
	return w
}

// reset forgets the owners, because all that are present follow.
func (b *between) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.where)
	for a, c := range b.contests {
		if c.active() {
			b.dirty[a] = false
		}
	}
}

func (b *between) changed(e *pb.Event) {
	a, err := netip.ParseAddr(e.GetOwner().GetAddress())
	n := b.networks.of(a)
	if err != nil || n == nil || !n.has(e.GetCluster()) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	left := e.GetType() == pb.Watch_REMOVED || !counts(e.GetOwner())
	if !left && !slices.Contains(b.where[a], e.GetCluster()) {
		b.where[a] = append(b.where[a], e.GetCluster())
	}
	if left || len(b.where[a]) > 1 || b.contests[a].active() {
		b.dirty[a] = b.dirty[a] || left
	}
}

// judgeDirty judges the addresses that have changed. At the beginning, it records the present conflicts.
func (b *between) judgeDirty() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a, left := range b.dirty {
		if b.arriving(b.contests[a]) {
			continue
		}
		if err := b.judge(a, left); err != nil {
			return err
		}
		delete(b.dirty, a)
	}
	b.ready.Store(true)
	if b.begun {
		return nil
	}
	return b.begin()
}

// arriving reports whether the state of a cluster with an owner in a conflict is arriving, so that its owners are not known.
// The caller holds the lock.
func (b *between) arriving(c *contest) bool {
	if !c.active() {
		return false
	}
	clusters, _, _ := b.fleet.named(nil) // an error concerns names
	return slices.ContainsFunc(clusters, func(of *cluster) bool {
		return (of.Journal.Fresh() || !b.followed.Has(of.Name)) && slices.ContainsFunc(c.conflict.GetOwners(), func(o *pb.Owner) bool { return o.GetCluster() == of.Name })
	})
}

// begin records the present conflicts. The caller holds the lock.
func (b *between) begin() error {
	feed := b.Journal.Feed(pb.Event_CONFLICT)
	for _, kind := range kinds {
		if err := b.Journal.Feed(kind).Begin(); err != nil {
			return err
		}
	}
	for _, c := range b.contests {
		if c.active() {
			if err := feed.Present(&journal.Change{At: b.clock(), Type: pb.Watch_ADDED, Conflict: c.conflict}); err != nil {
				return err
			}
		}
	}
	for _, kind := range kinds {
		if err := b.Journal.Feed(kind).Complete(); err != nil {
			return err
		}
	}
	b.begun = true
	return nil
}

// judge judges an address. The caller holds the lock.
func (b *between) judge(a netip.Addr, left bool) error {
	n, before, names := b.networks.of(a), b.contests[a], b.where[a]
	if len(names) < 2 && !before.active() && !left {
		return nil
	}
	var owners []*pb.Owner
	clusters, _, err := b.fleet.named(nil)
	if err != nil {
		return err
	}
	clusters = slices.DeleteFunc(clusters, func(c *cluster) bool { return !slices.Contains(names, c.Name) })
	sel, err := api.SelectOwners(&pb.ListOwnersRequest{Address: a.String()})
	if err != nil {
		return err
	}
	var still []string
	for _, c := range clusters {
		counted := false
		if err := c.Items(context.Background(), sel, time.Time{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
			owners = append(owners, e.GetOwner())
			counted = counted || counts(e.GetOwner())
			return true
		}); err != nil {
			return err
		}
		if counted {
			still = append(still, c.Name)
		}
	}
	if b.where[a] = still; len(still) == 0 {
		delete(b.where, a)
	}
	now := b.clock()
	heard := func(name string, after time.Time) bool {
		i := slices.IndexFunc(clusters, func(c *cluster) bool { return c.Name == name })
		if i < 0 || clusters[i].lives(now) != pb.Cluster_LIVE {
			return false
		}
		clusters[i].mu.Lock()
		defer clusters[i].mu.Unlock()
		return clusters[i].at.Heard.After(after)
	}
	after := judge(before, n, a, owners, heard, now)
	if after == before {
		return nil
	}
	b.contests[a] = after
	if !b.begun {
		return nil
	}
	typ := pb.Watch_UPDATED
	if !before.active() {
		typ = pb.Watch_ADDED
	}
	return b.Journal.Feed(pb.Event_CONFLICT).Changed(&journal.Change{At: now, Type: typ, Conflict: after.conflict})
}

// repeat judges suspected conflicts again, forgets resolved ones, and records everything again if the
// journal has started again, until ctx ends.
func (b *between) repeat(ctx context.Context) {
	select {
	case <-b.Journal.Opened():
	case <-ctx.Done():
		return
	}
	replaced := b.Journal.Replaced()
	tick := time.NewTicker(judgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := b.again(); err != nil {
				b.log.Error("cannot judge the conflicts between clusters: trying again", "error", err)
			}
		case <-replaced:
			replaced = b.Journal.Replaced()
			b.mu.Lock()
			b.begun = false
			b.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

func (b *between) again() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ready.Load() {
		return nil
	}
	if !b.begun {
		if err := b.begin(); err != nil {
			return err
		}
	}
	now, resolved := b.clock(), 0
	for _, a := range slices.SortedFunc(maps.Keys(b.contests), netip.Addr.Compare) {
		switch c := b.contests[a].conflict; c.GetState() {
		case pb.Conflict_SUSPECTED:
			if b.arriving(b.contests[a]) {
				continue
			}
			if err := b.judge(a, false); err != nil {
				return err
			}
		case pb.Conflict_RESOLVED:
			if resolved++; resolved > mostResolved || now.Sub(c.GetResolvedAt().AsTime()) > keepResolved {
				delete(b.contests, a)
			}
		default:
		}
	}
	return nil
}
