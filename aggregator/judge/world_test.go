package judge_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// world has facts and shards, with a listener that records events.
type world struct {
	*testing.T
	policy verdict.Policy
	facts  *facts.Facts
	shards *judge.Shards
	nodes  []*node
	addrs  map[netip.Addr]bool // all addresses that were reported

	mu      sync.Mutex
	heard   []string
	watched bool
	// retained are the owners that were published, with their description at that time.
	retained []retained
	rested   int
	running  bool // Run has not returned
	logged   int
	// broken is an address whose judgement panics.
	broken index.Address
	// acknowledged is until when each conflict is acknowledged; lapsed has the conflicts whose
	// acknowledgement has lapsed.
	acknowledged map[string]verdict.Stamp
	lapsed       map[string]bool
}

// retained is an owner that a subscriber retains.
type retained struct {
	owner *verdict.Owner
	was   string
}

// newWorld returns a world in which addresses are not judged yet. It must be called in a synctest
// bubble.
func newWorld(t *testing.T, workers int) *world {
	w := &world{
		T:       t,
		watched: true, addrs: map[netip.Addr]bool{}, acknowledged: map[string]verdict.Stamp{}, lapsed: map[string]bool{},
		policy: verdict.Policy{
			Cluster: "c", Settle: time.Second, StaleAfter: 5 * time.Minute, NodeTimeout: time.Minute,
			HandoverGrace: 10 * time.Second, MigrationGrace: time.Minute, LeakedAfter: time.Minute,
		},
	}
	log := slog.New(slog.NewTextHandler(w, nil))
	conflicts := judge.NewConflicts()
	w.facts = facts.New(facts.Config{Policy: &w.policy, Log: log, Clock: clock, Changed: w.changed, OwnersWatched: w.ownersWatched, Disputed: conflicts.Disputed, Queues: workers, Stopped: t.Context().Done()})
	w.shards = judge.New(judge.Config{Policy: &w.policy, Log: log, Clock: clock, Facts: w.facts, Conflicts: conflicts, Listener: w, Workers: workers})
	return w
}

// inWorld runs a test in a synctest bubble in which addresses are judged.
func inWorld(t *testing.T, workers int, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, workers)
		defer w.run()()
		test(w)
		w.wantRetained()
	})
}

// wantRetained checks that the owners that were published have not changed since.
func (w *world) wantRetained() {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.retained {
		if got := describe(r.owner); got != r.was {
			w.Errorf("got a published owner that has become\n\t%s, want\n\t%s", got, r.was)
		}
	}
}

// describe returns the fields of an owner that a later judgement could overwrite.
func describe(o *verdict.Owner) string {
	text := fmt.Sprintf("%s %s %s %s", o.ID, o.MAC, nameOf(o), states[o.State])
	for _, c := range o.Claims {
		text += fmt.Sprintf(", %d by %s on %d of %s seen %d", c.Kind, c.MAC, c.Interface.Index, c.Interface.Namespace.ID, c.Seen)
	}
	return text
}

// run judges addresses until the returned function is called.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var group sync.WaitGroup
	group.Go(func() {
		w.running = true
		w.shards.Run(ctx)
		w.running = false
	})
	group.Go(func() { w.ring(ctx) })
	return func() { cancel(); group.Wait() }
}

// ring runs the work on nodes and links that is due.
func (w *world) ring(ctx context.Context) {
	for {
		next := time.Hour
		if at := w.facts.Ring(); at != 0 {
			next = max(0, at.Sub(clock()))
		}
		select {
		case <-ctx.Done():
			return
		case <-w.facts.Woken():
		case <-time.After(next):
		}
	}
}

func clock() verdict.Stamp { return verdict.At(time.Now()) }

// set changes the state of the listener.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// rests returns how often the queues were emptied.
func (w *world) rests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rested
}

func (w *world) hear(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, fmt.Sprintf(format, args...))
}

// wantHeard checks the events since the last call, in any order, and that the stored state agrees
// with the facts.
func (w *world) wantHeard(why string, want ...string) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	got := w.heard
	w.heard = nil
	w.mu.Unlock()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Errorf("%s: got\n\t%q, want\n\t%q", why, got, want)
	}
	w.check(why)
}

// check judges all addresses from scratch, and compares the outcome with the shards.
func (w *world) check(why string) {
	w.Helper()
	w.facts.RLock()
	defer w.facts.RUnlock()
	var places []netip.Addr
	var counts [verdict.NetworkScope + 1]int
	all := map[string]*verdict.Conflict{}
	var order []string
	disputed := map[netip.Addr]bool{}
	for _, addr := range slices.SortedFunc(maps.Keys(w.addrs), netip.Addr.Compare) {
		a := index.AddressOf(addr)
		conflicts := w.shards.Conflicts.Of(a)
		c := w.facts.Builder().Case(a, len(conflicts) > 0)
		last := ""
		active := 0
		for i := range conflicts {
			one := &conflicts[i]
			if one.Address != addr || one.ID <= last {
				w.Errorf("%s: %s has conflict %s of %s after %q", why, addr, one.ID, one.Address, last)
			}
			last = one.ID
			all[one.ID] = one
			order = append(order, one.ID)
			c.Conflicts = append(c.Conflicts, one.Memory())
			if one.Active() {
				active++
			}
		}
		judged := w.policy.Judge(c)
		if len(judged.Owners) > 0 {
			places = append(places, addr)
		}
		for _, o := range judged.Owners {
			counts[o.Scope.Kind]++
		}
		if len(judged.Conflicts) != active {
			w.Errorf("%s: %s has %d active conflicts, want %d", why, addr, active, len(judged.Conflicts))
		}
		if judged.Contested || len(judged.Owners) > 1 {
			disputed[addr] = true
		}
		owners, kept := w.shards.Conflicts.Owners(a)
		if several := len(judged.Owners) > 1 || len(judged.Owners) == 1 && (len(conflicts) > 0 || judged.Contested); kept != several {
			w.Errorf("%s: owners of %s are kept: %t, want %t", why, addr, kept, several)
		}
		same := func(a, b verdict.Owner) bool { return a.Same(&b) }
		if kept && !slices.EqualFunc(owners, judged.Owners, same) {
			w.Errorf("%s: %s has owners %+v, want %+v", why, addr, owners, judged.Owners)
		}
	}
	var got []netip.Addr
	for p := range w.shards.Places().From(judge.Place{}) {
		got = append(got, p.Address().Addr())
	}
	if !slices.Equal(got, places) {
		w.Errorf("%s: got places %v, want %v", why, got, places)
	}
	if got := w.shards.Counts(); got != counts {
		w.Errorf("%s: got counts %v, want %v", why, got, counts)
	}
	w.checkConflicts(why, all, order)
	for range w.shards.Conflicts.Disputed {
		break
	}
	looked := map[netip.Addr]bool{}
	for a := range w.shards.Conflicts.Disputed {
		looked[a.Addr()] = true
	}
	if !maps.Equal(looked, disputed) {
		w.Errorf("%s: got disputed addresses %v, want %v", why, looked, disputed)
	}
}

// checkConflicts checks that the list of conflicts is complete and ordered.
func (w *world) checkConflicts(why string, all map[string]*verdict.Conflict, order []string) {
	w.Helper()
	conflicts := w.shards.Conflicts
	if _, _, listed := w.shards.Kept(); listed != len(all) {
		w.Errorf("%s: got %d conflicts in the list, want %d", why, listed, len(all))
	}
	if conflicts.Len() != len(all) || len(conflicts.All()) != len(all) {
		w.Errorf("%s: got %d conflicts, and a list of %d, want %d", why, conflicts.Len(), len(conflicts.All()), len(all))
	}
	var got []string
	for c := range conflicts.After(index.Address{}, "") {
		got = append(got, c.ID)
	}
	if !slices.Equal(got, order) {
		w.Errorf("%s: got conflicts %q, want %q", why, got, order)
	}
	for i, id := range order {
		if conflicts.Get(id) == nil {
			w.Errorf("%s: conflict %s is not found", why, id)
		}
		var next []string
		for c := range conflicts.After(index.AddressOf(all[id].Address), id) {
			next = append(next, c.ID)
			break
		}
		if !slices.Equal(next, order[i+1:min(i+2, len(order))]) {
			w.Errorf("%s: got %q after %s, want the next one of %q", why, next, id, order)
		}
	}
}

// after advances the time.
func (w *world) after(d time.Duration) {
	time.Sleep(d) // synctest time
	synctest.Wait()
}

// wantKept checks the number of entries and timers.
func (w *world) wantKept(why string, entries, timers int) {
	w.Helper()
	synctest.Wait()
	if e, t, _ := w.shards.Kept(); e != entries || t != timers {
		w.Errorf("%s: got %d addresses of which something is remembered and %d timers, want %d and %d", why, e, t, entries, timers)
	}
}

// of returns the only conflict of an address.
func (w *world) of(addr string) verdict.Conflict {
	w.Helper()
	all := w.shards.Conflicts.Of(index.AddressOf(netip.MustParseAddr(addr)))
	if len(all) != 1 {
		w.Fatalf("got %d conflicts of %s, want one", len(all), addr)
	}
	return all[0]
}

// A node is a node with the stream of its agent.
type node struct {
	w    *world
	name string
	rec  *facts.Node
	*stream
}

// stream is the stream of an agent. It records the requests to the agent.
type stream struct {
	w    *world
	name string
}

// connect adds a node whose agent reports an empty snapshot.
func (w *world) connect(name string) *node {
	w.Helper()
	n := &node{w: w, name: name}
	w.nodes = append(w.nodes, n)
	n.reconnect()
	return n
}

// reconnect sends a snapshot on a new stream.
func (n *node) reconnect(messages ...*pb.ReportRequest) {
	n.w.Helper()
	var err error
	n.stream = &stream{n.w, n.name}
	n.rec, _, err = n.w.facts.Connect(n.stream, &pb.Hello{Node: n.name, BootId: "boot-" + n.name, Netns: "1", Epoch: 1}, "")
	if err != nil {
		n.w.Fatal(err)
	}
	n.snapshot(messages...)
}

// snapshot sends a snapshot.
func (n *node) snapshot(messages ...*pb.ReportRequest) {
	n.w.Helper()
	messages = append([]*pb.ReportRequest{{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}}}, messages...)
	n.w.know(messages...)
	if _, err := n.w.facts.Snapshot(n.stream, n.rec, &facts.Snapshot{Messages: slices.Values(messages)}, func() {}); err != nil {
		n.w.Fatal(err)
	}
	synctest.Wait()
}

// report sends changes in one message, which took 5 ms to be received and read.
func (n *node) report(messages ...*pb.ReportRequest) {
	n.w.Helper()
	n.w.know(messages...)
	all := &pb.ReportRequest{}
	for _, m := range messages {
		proto.Merge(all, m)
	}
	if _, err := n.w.facts.Delta(n.stream, n.rec, all, clock().Add(-5*time.Millisecond), n.asked); err != nil {
		n.w.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) know(messages ...*pb.ReportRequest) {
	for _, m := range messages {
		for _, c := range m.GetClaims() {
			a, _ := netip.AddrFromSlice(c.GetAddress())
			w.addrs[a] = true
		}
	}
}

// asked returns all known addresses, because each check is for all of them.
func (n *node) asked(uint64) (all []index.Address) {
	for a := range n.w.addrs {
		all = append(all, index.AddressOf(a))
	}
	return all
}

// answer reports that the kernel still has its addresses.
func (n *node) answer() { n.report(&pb.ReportRequest{Checked: []uint64{1}}) }

// silence ends the stream of a node.
func (n *node) silence() {
	n.w.facts.Disconnect(n.stream, n.rec, func(*facts.Node) bool { return false })
	synctest.Wait()
}

func (s *stream) End(err error) { s.w.hear("%s: end: %v", s.name, err) }

func (s *stream) Contest(a netip.Addr, contested bool) {
	s.w.hear("%s: contest %s %t", s.name, a, contested)
}

func (s *stream) Check(a netip.Addr)                      { s.w.hear("%s: check %s", s.name, a) }
func (s *stream) Departed(netip.Addr, verdict.MAC)        {}
func (s *stream) AskResync()                              { s.w.hear("%s: resync", s.name) }
func (s *stream) Ping(verdict.Stamp)                      {}
func (s *stream) Lag(verdict.Stamp) (time.Duration, bool) { return 0, false }

// changed records only records that are not among the facts.
func (w *world) changed(c *facts.Changes) {
	for record, n := range c.Dropped {
		if n > 0 {
			w.hear("dropped %d of %s", n, record)
		}
	}
	for record := range c.Refused {
		w.hear("refused %s", record)
	}
}

func (w *world) ownersWatched() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched
}

// The listener of the shards.

// nameOf returns the name of an owner's workload, or its hardware address.
func nameOf(o *verdict.Owner) string {
	if _, name := o.Named(); name != "" {
		return name
	}
	return o.MAC.String()
}

var states = map[verdict.State]string{verdict.Live: "live", verdict.Stale: "stale", verdict.Unheard: "unheard", verdict.Gone: "gone"}

func (w *world) OwnerChanged(what judge.OwnerChange, a index.Address, o, before *verdict.Owner, all []verdict.Owner) {
	w.mu.Lock()
	broken := a == w.broken
	w.mu.Unlock()
	if broken {
		panic("a defect")
	}
	w.retain(o)
	was := ""
	if before != nil {
		w.retain(before)
		was = " was " + states[before.State]
	}
	w.hear("%s %s %s %s%s of %d", map[judge.OwnerChange]string{judge.Added: "added", judge.Updated: "updated", judge.Removed: "removed"}[what],
		a.Addr(), nameOf(o), states[o.State], was, len(all))
}

func (w *world) retain(o *verdict.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retained = append(w.retained, retained{o, describe(o)})
}

var phases = map[verdict.Phase]string{verdict.Suspected: "suspected", verdict.Confirmed: "confirmed", verdict.Resolved: "resolved"}

func (w *world) ConflictChanged(c, before *verdict.Conflict, opened bool) {
	text := "conflict"
	if opened {
		text = "opened"
	}
	w.hear("%s %s %s episode %d was %s of %d", text, c.Address, phases[c.Phase], c.Episode, phases[before.Phase], len(c.Owners))
}

func (w *world) Detected(took time.Duration) { w.hear("detected in %s", took) }

func (w *world) Acknowledged(c *verdict.Conflict) (until verdict.Stamp, lapsed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	until, lapsed = w.acknowledged[c.ID], w.lapsed[c.ID]
	delete(w.lapsed, c.ID)
	return until, lapsed
}

func (w *world) Audited(a index.Address, owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	kinds := func(all []verdict.Finding) (kinds []string) {
		for _, f := range all {
			if f.Waiting {
				f.Kind += "?"
			}
			kinds = append(kinds, f.Kind)
		}
		return kinds
	}
	w.hear("audited %s of %d: %q was %q contested %t", a.Addr(), len(owners), kinds(found), kinds(before), contested)
}

func (w *world) Cloned(a index.Address, clones []verdict.Spoof) {
	w.hear("cloned %s %d", a.Addr(), len(clones))
}

func (w *world) Spoke(o *verdict.Owner) { w.hear("spoke %s %s", nameOf(o), states[o.State]) }

func (w *world) Rested() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rested++
}

func (w *world) Panicked() { w.hear("panicked") }

// Write implements io.Writer for the log.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logged++
	return len(p), nil
}
