package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Bound is the time before a kill within which delivered changes may be missing in the history, on a machine
// that is not overloaded.
const Bound = 100 * time.Millisecond

// A Notification is an event that a receiver has accepted.
type Notification struct {
	// ID is the idempotency key. Type is conflict.confirmed, conflict.resolved and so on.
	ID, Type string
	Told
}

// Run is everything that a test has learnt, at a time when all replicas are in service and nothing changes any
// more.
type Run struct {
	Episodes []*Episode
	Replicas []*Replica
	// Notifications are in the order in which they arrived, with those that were repeated.
	Notifications []Notification
	// Streamed are the conflicts in the stream of NATS.
	Streamed []Told
	// Events has the number of Events of each reason about each object: a pod or a node.
	Events map[About]int
	// Acknowledged are the reasons of the acknowledgements that are in effect, by address.
	Acknowledged map[string]string
	// Unled are the times in which a replica led that was not in service, so that nothing was told of what began
	// then.
	Unled []Outage
	// Slack is added to Bound: the time that the slowest small write took on this machine.
	Slack time.Duration
}

// About is the object of an Event, and its reason and address.
type About struct{ Object, Reason, Address string }

// The reasons of Events.
const (
	ConflictReason = "AddressConflict"
	ResolvedReason = "AddressConflictResolved"
	// OrphanReason begins the reasons of findings about sandboxes without a pod.
	OrphanReason = "OrphanedSandbox"
)

// Result is what Check has found.
type Result struct {
	// Problems are empty if everything is as it must be. Addresses are those that they are about.
	Problems  []string
	Addresses []string
	// Episodes is the number of episodes, Whole the number of those during which all replicas were in service, and
	// Due the number of those that had to be told. Told is the number of episodes of which the receiver was told.
	Episodes, Whole, Due, Told int
	// Repeated is the number of notifications that arrived again, with the same id. Lost is the number of
	// changes that a watch had delivered shortly before a kill, and that the history lacks.
	Repeated, Lost int
	// Earliest is the longest time before a kill at which a missing change was delivered.
	Earliest time.Duration
}

func (r Result) String() string {
	return fmt.Sprintf("%d episodes, %d of them with all replicas in service; %d told to the receiver, %d had to be; %d notifications were repeated; "+
		"%d delivered changes are not in a history, the earliest delivered %s before a kill", r.Episodes, r.Whole, r.Told, r.Due, r.Repeated, r.Lost, r.Earliest)
}

// checker collects the problems of a run.
type checker struct {
	*Run
	Result
	byPod map[string]*Episode
	// last is the last episode of each address.
	last map[string]*Episode
	ids  map[string]string // of the conflict of each address
}

// Check compares what the replicas and receivers say with what has happened.
func Check(run *Run) Result {
	c := &checker{Run: run, byPod: make(map[string]*Episode), last: make(map[string]*Episode), ids: make(map[string]string)}
	c.Result.Episodes = len(run.Episodes)
	for _, e := range run.Episodes {
		c.byPod[e.Pod], c.last[e.Address] = e, e
		if c.whole(e) {
			c.Whole++
		}
	}
	for _, r := range run.Replicas {
		c.checkPresent(r)
		c.checkHistory(r)
		c.checkDelivered(r)
	}
	for _, t := range c.Streamed {
		c.happened("the stream", t)
	}
	c.checkNotifications()
	c.checkEvents()
	return c.Result
}

// problem notes a problem with the conflict of an address.
func (c *checker) problem(addr, format string, args ...any) {
	c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
	if !slices.Contains(c.Addresses, addr) {
		c.Addresses = append(c.Addresses, addr)
	}
}

// addressOf returns the address of a pod; empty if there is none.
func (c *checker) addressOf(pod string) string {
	if e := c.byPod[pod]; e != nil {
		return e.Address
	}
	return ""
}

// whole reports whether all replicas were in service during an episode.
func (c *checker) whole(e *Episode) bool {
	return !slices.ContainsFunc(c.Replicas, func(r *Replica) bool { return !served(r, e) })
}

// after is the time after an episode within which a replica in service records its end, and a leader tells it, on a
// machine that is overloaded.
const after = 5 * time.Second

// shortest is how long an episode lasts at least that no replica in service overlooks.
const shortest = time.Second

// due reports whether the receiver has to be told of an episode: there is a replica that was in service until shortly
// after it and could lead, and all that were have recorded that it was confirmed. One of them leads then, or becomes
// the leader.
func (c *checker) due(e *Episode) bool {
	end := time.Now()
	if e.over() {
		end = e.Ended.Add(after)
	}
	if slices.ContainsFunc(c.Unled, func(o Outage) bool { return o.From.Before(end) && o.Until.After(e.Begun) }) {
		return false
	}
	knew := slices.DeleteFunc(slices.Clone(c.Replicas), func(r *Replica) bool { return !r.served(e.Begun, end) })
	leads := func(r *Replica) bool {
		return !slices.ContainsFunc(r.mutes, func(o Outage) bool { return o.From.Before(end) && (o.Until.IsZero() || o.Until.After(e.Begun)) })
	}
	return slices.ContainsFunc(knew, leads) && !slices.ContainsFunc(knew, func(r *Replica) bool { return !r.confirmed(e) })
}

// confirmed reports whether a replica has recorded that an episode was confirmed.
func (r *Replica) confirmed(e *Episode) bool {
	return slices.ContainsFunc(r.History, func(t Told) bool { return t.Pod == e.Pod && t.State == pb.Conflict_CONFIRMED })
}

// recorded reports whether a replica has recorded the beginning and the end of an episode. A history with a gap may have
// the beginning alone, and the next one instead of the end.
func (c *checker) recorded(e *Episode) bool {
	return slices.ContainsFunc(c.Replicas, func(r *Replica) bool {
		return r.confirmed(e) && slices.ContainsFunc(r.History, func(t Told) bool { return t.Pod == e.Pod && t.State == pb.Conflict_RESOLVED })
	})
}

// served reports whether a replica was in service during an episode.
func served(r *Replica, e *Episode) bool {
	until := e.Ended.Add(after)
	if !e.over() {
		until = time.Now()
	}
	return r.served(e.Begun, until)
}

// same checks that a conflict has the same id everywhere.
func (c *checker) same(by string, t Told) {
	if id, known := c.ids[t.Address]; known && id != t.ID {
		c.problem(t.Address, "%s calls the conflict of %s %s, elsewhere it is %s", by, t.Address, t.ID, id)
	}
	c.ids[t.Address] = t.ID
}

// happened checks that what is told has happened.
func (c *checker) happened(by string, t Told) {
	c.same(by, t)
	e := c.byPod[t.Pod]
	switch {
	case e == nil || e.Address != t.Address:
		c.problem(t.Address, "%s has a conflict of %s with %q, which did not happen: %+v", by, t.Address, t.Pod, t)
	case t.At.Before(e.Begun):
		c.problem(t.Address, "%s has %+v, which began later, at %s", by, t, e.Begun)
	case t.State == pb.Conflict_RESOLVED && (!e.over() || t.At.Before(e.Ended)):
		c.problem(t.Address, "%s has the end of %s at %s before it ended: %+v", by, t.Pod, t.Address, t)
	}
}

// checkPresent checks that a replica has exactly the conflicts that last, with their acknowledgements.
func (c *checker) checkPresent(r *Replica) {
	lacking := make(map[string]*Episode)
	for addr, e := range c.last {
		if !e.over() {
			lacking[addr] = e
		}
	}
	for _, t := range r.Active {
		c.same(r.Name, t)
		e := lacking[t.Address]
		if e == nil || e.Pod != t.Pod || t.State != pb.Conflict_CONFIRMED {
			c.problem(t.Address, "%s lists %+v, which is over or listed twice", r.Name, t)
			continue
		}
		if want := c.Acknowledged[t.Address]; t.Acknowledged != want {
			c.problem(t.Address, "%s has the acknowledgement %q of %s, want %q", r.Name, t.Acknowledged, t.Address, want)
		}
		delete(lacking, t.Address)
	}
	for _, addr := range slices.Sorted(maps.Keys(lacking)) {
		c.problem(addr, "%s does not list the conflict of %s with %s", r.Name, addr, lacking[addr].Pod)
	}
}

// transition is a state that an episode came into.
type transition struct {
	pod   string
	state pb.Conflict_State
}

// checkHistory checks that a replica has recorded each state of an episode once, if it was in service, and
// nothing that did not happen.
func (c *checker) checkHistory(r *Replica) {
	times := make(map[transition]int)
	before := make(map[string]transition) // by address
	for _, t := range r.History {
		c.happened("the history of "+r.Name, t)
		now := transition{t.Pod, t.State}
		if before[t.Address] != now {
			times[now]++
		}
		before[t.Address] = now
	}
	for now, n := range times {
		if n > 1 {
			c.problem(c.addressOf(now.pod), "the history of %s has %d times that %s became %s", r.Name, n, now.pod, now.state)
		}
	}
	for _, e := range c.Run.Episodes {
		if !served(r, e) || e.over() && e.Ended.Sub(e.Begun) < shortest && times[transition{e.Pod, pb.Conflict_SUSPECTED}] == 0 {
			continue
		}
		states := []pb.Conflict_State{pb.Conflict_CONFIRMED}
		if e.over() {
			states = append(states, pb.Conflict_RESOLVED)
		}
		for _, state := range states {
			if times[transition{e.Pod, state}] == 0 && times[transition{e.Pod, pb.Conflict_SUSPECTED}] > 0 && state == pb.Conflict_CONFIRMED && e.over() {
				continue // it was over before it could be confirmed
			}
			if times[transition{e.Pod, state}] == 0 && !c.lost(r, transition{e.Pod, state}) {
				c.problem(e.Address, "the history of %s lacks that %s became %s, although it was in service from %s to %s", r.Name, e.Pod, state, e.Begun, e.Ended)
			}
		}
	}
}

// lost reports whether a watch has delivered a change that the history may lack.
func (c *checker) lost(r *Replica, what transition) bool {
	i := slices.IndexFunc(r.told, func(t Told) bool { return t.Pod == what.pod && t.State == what.state })
	return i >= 0 && (r.gapAt(r.told[i].At, Bound+c.Slack) || r.killedWithin(r.told[i].At, Bound+c.Slack) > 0)
}

// gapAt reports whether the history says that it lacks changes of a time, such as those while the replica started.
func (r *Replica) gapAt(at time.Time, slack time.Duration) bool {
	return slices.ContainsFunc(r.Gaps, func(g Outage) bool { return !at.Before(g.From) && !at.After(g.Until.Add(slack)) })
}

// killedWithin returns how long after a time the replica was killed; 0 if it was not killed within some time.
func (r *Replica) killedWithin(at time.Time, some time.Duration) time.Duration {
	i := slices.IndexFunc(r.kills, func(kill time.Time) bool { return kill.After(at) })
	if i < 0 || r.kills[i].Sub(at) > some {
		return 0
	}
	return r.kills[i].Sub(at)
}

// checkDelivered checks that a replica has recorded what a watch has delivered, except for the last changes
// before a kill.
func (c *checker) checkDelivered(r *Replica) {
	recorded := make(map[transition]bool)
	for _, t := range r.History {
		recorded[transition{t.Pod, t.State}] = true
	}
	for _, t := range r.told {
		c.happened("the watch of "+r.Name, t)
		if len(r.outages) > 0 && r.outages[0].From.IsZero() && t.At.Before(r.outages[0].Until) {
			continue // a new history begins with the state once the replica is ready
		}
		if recorded[transition{t.Pod, t.State}] || r.gapAt(t.At, Bound+c.Slack) {
			continue
		}
		before := r.killedWithin(t.At, Bound+c.Slack)
		if before == 0 {
			c.problem(t.Address, "the history of %s lacks %+v, which a watch has delivered", r.Name, t)
			continue
		}
		c.Lost++
		c.Earliest = max(c.Earliest, before)
	}
}

// The types of notifications that come once for each episode.
const (
	confirmedType = "conflict.confirmed"
	resolvedType  = "conflict.resolved"
)

// checkNotifications checks that a receiver that drops duplicates was told of the beginning and the end of each
// episode once, and of nothing else. It is told only of the end if each replica overlooked the beginning, or started then. A new leader repeats what is recent, and delivers what the former one missed, so
// episodes may be told in another order.
func (c *checker) checkNotifications() {
	byID := make(map[string]Notification)
	times := map[string]map[string]int{confirmedType: {}, resolvedType: {}} // by type and pod
	for _, n := range c.Notifications {
		if first, again := byID[n.ID]; again {
			c.Repeated++
			if first.Type != n.Type || first.Told.ID != n.Told.ID || first.Pod != n.Pod {
				c.problem(n.Address, "the receiver got %+v and %+v with one id", first, n)
			}
			continue
		}
		byID[n.ID] = n
		c.happened("the receiver", n.Told)
		if of := times[n.Type]; of != nil {
			of[n.Pod]++
		}
	}
	c.Told = len(times[confirmedType])
	for typ, all := range times {
		for pod, n := range all {
			if n > 1 {
				c.problem(c.addressOf(pod), "the receiver was told %d times, with several ids, that %s is %s", n, pod, typ)
			}
		}
	}
	for _, e := range c.Run.Episodes {
		switch begun, ended := times[confirmedType][e.Pod], times[resolvedType][e.Pod]; {
		case begun == 0 && ended > 0 && slices.ContainsFunc(c.Replicas, func(r *Replica) bool { return r.confirmed(e) }):
			c.problem(e.Address, "the receiver was told only of the end of the conflict of %s with %s", e.Address, e.Pod)
		case begun > 0 && ended == 0 && e.over() && c.recorded(e):
			c.problem(e.Address, "the receiver was not told of the end of the conflict of %s with %s", e.Address, e.Pod)
		case begun == 0 && !e.over():
			c.problem(e.Address, "the receiver was not told of the conflict of %s with %s", e.Address, e.Pod)
		}
	}
	for _, e := range c.Run.Episodes {
		if !c.due(e) {
			continue
		}
		c.Due++
		for _, typ := range []string{confirmedType, resolvedType} {
			if times[typ][e.Pod] == 0 && (typ == confirmedType || e.over() && c.recorded(e)) {
				c.problem(e.Address, "the receiver was not told %s of %s at %s from %s to %s, which all replicas in service knew", typ, e.Pod, e.Address, e.Begun, e.Ended)
			}
		}
	}
}

// confirmed reports whether all replicas have recorded that an episode was confirmed.
func (c *checker) confirmed(e *Episode) bool {
	return !slices.ContainsFunc(c.Replicas, func(r *Replica) bool { return !r.confirmed(e) })
}

// checkEvents checks that there is one Event about each pod and node of an episode.
func (c *checker) checkEvents() {
	want, most := make(map[About]int), make(map[About]int)
	strange := make(map[string]bool) // nodes with pods that the API does not have: their sandboxes are orphaned
	add := func(a About, sure bool) {
		if most[a]++; sure {
			want[a]++
		}
	}
	for _, e := range c.Run.Episodes {
		if !e.Told { // the API may have the nodes
			strange[e.Nodes[0]] = true
			for _, node := range e.Nodes {
				add(About{node, ConflictReason, e.Address}, false)
				add(About{node, ResolvedReason, e.Address}, false)
			}
			continue
		}
		sure := !e.over() || c.whole(e) && c.confirmed(e)
		for _, object := range []string{e.Held, e.Nodes[0], e.Nodes[1]} {
			add(About{object, ConflictReason, e.Address}, sure)
			if e.over() {
				add(About{object, ResolvedReason, e.Address}, sure)
			}
		}
		add(About{e.Pod, ConflictReason, e.Address}, !e.over())
		if e.over() { // if the pod is still known then
			add(About{e.Pod, ResolvedReason, e.Address}, false)
		}
	}
	for a, n := range c.Events {
		if n > most[a] && (!strange[a.Object] || !strings.HasPrefix(a.Reason, OrphanReason)) {
			c.problem(a.Address, "there are %d Events %s about %s and %s, want at most %d", n, a.Reason, a.Object, a.Address, most[a])
		}
	}
	for a, n := range want {
		if c.Events[a] < n {
			c.problem(a.Address, "there are %d Events %s about %s and %s, want %d", c.Events[a], a.Reason, a.Object, a.Address, n)
		}
	}
}
