package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An Episode is the time in which two pods have an address.
type Episode struct {
	Address string
	// Held is the pod that always has the address, and Pod the one that has it for a while. No other episode
	// has this Pod.
	Held, Pod string
	// Nodes are the nodes of both pods.
	Nodes [2]string
	// Told is set if the Kubernetes API has the pods and nodes, so that they get Events.
	Told bool
	// Begun is the time before the second pod got the address. Ended is the time before it lost the
	// address; zero while it has it.
	Begun, Ended time.Time
}

// over reports whether the episode has ended.
func (e *Episode) over() bool { return !e.Ended.IsZero() }

// Duplicates are the addresses that two pods have now and then. Use NewDuplicates.
type Duplicates struct {
	// Appeared and Left are called before a pod of a told duplicate gets its address, and after it has lost
	// it. They may be nil.
	Appeared, Left func(pod, node, addr string) error

	mu       sync.Mutex
	episodes []*Episode
	// waiting are the episodes that not all replicas know yet.
	waiting map[*Episode]bool
}

// NewDuplicates returns a set without any.
func NewDuplicates() *Duplicates { return &Duplicates{waiting: make(map[*Episode]bool)} }

// Behind reports whether the replicas have not known an episode for some time.
func (d *Duplicates) Behind(by time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for e := range d.waiting {
		if time.Since(e.Begun) > by {
			return true
		}
	}
	return false
}

// awaited notes that an episode waits for the replicas, or does not any longer.
func (d *Duplicates) awaited(e *Episode, waits bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if waits {
		d.waiting[e] = true
	} else {
		delete(d.waiting, e)
	}
}

// A Duplicate is one of these addresses.
type Duplicate struct {
	of      *Duplicates
	addr    netip.Addr
	held    string
	a, b    *Node
	told    bool
	number  int
	record  uint32 // of the second pod
	current *Episode
}

// podPrefix begins the names of second pods.
const podPrefix = "second-"

// Add adds an address, and the pod that always has it on a node. The second one will be on another node.
func (d *Duplicates) Add(addr netip.Addr, a, b *Node, told bool) (*Duplicate, error) {
	one := &Duplicate{of: d, addr: addr, a: a, b: b, told: told, held: "first-" + strings.ReplaceAll(addr.String(), ".", "-")}
	if told && d.Appeared != nil {
		if err := d.Appeared(one.held, a.Name, addr.String()); err != nil {
			return nil, err
		}
	}
	a.AddPod(one.held, addr)
	return one, nil
}

// Begin gives the address to a second pod.
func (d *Duplicate) Begin() (*Episode, error) {
	d.number++
	e := &Episode{
		Address: d.addr.String(), Held: d.held, Pod: fmt.Sprintf("%s%s-%d", podPrefix, strings.ReplaceAll(d.addr.String(), ".", "-"), d.number),
		Nodes: [2]string{d.a.Name, d.b.Name}, Told: d.told,
	}
	if d.told && d.of.Appeared != nil {
		if err := d.of.Appeared(e.Pod, d.b.Name, e.Address); err != nil {
			return nil, err
		}
	}
	d.of.mu.Lock()
	e.Begun = time.Now()
	d.of.episodes = append(d.of.episodes, e)
	d.of.mu.Unlock()
	d.current = e
	d.record = d.b.AddPod(e.Pod, d.addr)
	return e, nil
}

// End takes the address from the second pod.
func (d *Duplicate) End() error {
	e := d.current
	d.of.mu.Lock()
	e.Ended = time.Now()
	d.of.mu.Unlock()
	d.b.RemovePod(d.record, d.addr)
	if d.told && d.of.Left != nil {
		return d.of.Left(e.Pod, d.b.Name, e.Address)
	}
	return nil
}

// Episodes returns all episodes so far.
func (d *Duplicates) Episodes() []*Episode {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*Episode, 0, len(d.episodes))
	for _, e := range d.episodes {
		same := *e
		all = append(all, &same)
	}
	return all
}

// Cycle begins and ends the duplicate until ctx ends. seen reports whether all replicas that are in service
// know that a pod's episode is in a state. rest is the longest time before and within an episode.
func (d *Duplicate) Cycle(ctx context.Context, seen func(pod string, state pb.Conflict_State) bool, rest time.Duration) error {
	for {
		if !sleep(ctx, rest/2+rand.N(rest/2)) {
			return nil
		}
		e, err := d.Begin()
		if err != nil {
			return err
		}
		d.of.awaited(e, true)
		known := await(ctx, func() bool { return seen(e.Pod, pb.Conflict_CONFIRMED) })
		d.of.awaited(e, false)
		known = known && sleep(ctx, rest/2+rand.N(rest/2))
		if err := d.End(); err != nil {
			return err
		}
		if !known || !await(ctx, func() bool { return seen(e.Pod, pb.Conflict_RESOLVED) }) {
			return nil
		}
	}
}

// sleep waits, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// await waits for a condition, and reports whether ctx goes on.
func await(ctx context.Context, cond func() bool) bool {
	for !cond() {
		if !sleep(ctx, 5*time.Millisecond) {
			return false
		}
	}
	return true
}

// podOf returns the second pod of a conflict; empty if no owner is one.
func podOf(c *pb.Conflict) string {
	for _, o := range c.GetOwners() {
		if name := o.GetWorkload().GetName(); strings.HasPrefix(name, podPrefix) {
			return name
		}
	}
	return ""
}

// An Outage is a time in which a replica cannot know everything.
type Outage struct{ From, Until time.Time }

// A Told is what a replica says about a conflict at a time.
type Told struct {
	At           time.Time
	ID, Address  string
	Pod          string // the second pod; empty if there is none
	State        pb.Conflict_State
	Number       uint32 // of the episode, as the replica counts
	Acknowledged string // the reason
}

// ToldOf returns what a conflict says.
func ToldOf(c *pb.Conflict, at time.Time) Told {
	return Told{
		At: at, ID: c.GetId(), Address: c.GetAddress(), Pod: podOf(c), State: c.GetState(), Number: c.GetEpisode(),
		Acknowledged: c.GetAcknowledgement().GetReason(),
	}
}

// A Replica is what a test has learnt about a replica.
type Replica struct {
	Name string

	mu sync.Mutex
	// latest is the last state of each address. first is when the replica first told of a pod.
	latest  map[string]Told
	first   map[string]time.Time
	told    []Told // what a watch delivered as it happened
	away    bool
	outages []Outage
	kills   []time.Time
	// mutes are the times in which it could not lead.
	mutes []Outage

	// History has the records of conflicts at the end, in order, with its gaps, and Active the conflicts that
	// last.
	History, Active []Told
	Gaps            []Outage
}

// NewReplica returns a replica that is not in service yet.
func NewReplica(name string) *Replica {
	return &Replica{Name: name, latest: make(map[string]Told), first: make(map[string]time.Time), away: true, outages: []Outage{{}}}
}

// Deliver notes what a watch has delivered. present is set for the state that there was when it began.
func (r *Replica) Deliver(c *pb.Conflict, at time.Time, present bool) {
	t := ToldOf(c, at)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest[t.Address] = t
	if present {
		return
	}
	r.told = append(r.told, t)
	if _, known := r.first[t.Pod]; !known && t.State != pb.Conflict_RESOLVED {
		r.first[t.Pod] = at
	}
}

// Killed notes that the replica is about to be killed, and Leave that it is about to be cut off.
func (r *Replica) Killed() {
	r.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kills = append(r.kills, time.Now())
}

// Leave notes that the replica may miss something from now on.
func (r *Replica) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = true
	r.outages = append(r.outages, Outage{From: time.Now()})
}

// Return notes that the replica is in service, and knows everything since a time.
func (r *Replica) Return(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = false
	r.outages[len(r.outages)-1].Until = since
}

// Mute notes that the replica cannot lead from now on, or that it can again, although it is in service.
func (r *Replica) Mute(mute bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if mute {
		r.mutes = append(r.mutes, Outage{From: time.Now()})
	} else {
		r.mutes[len(r.mutes)-1].Until = time.Now()
	}
}

// Knows reports whether the replica has told that the episode of a pod is in a state, or is not in service.
func (r *Replica) Knows(e string, state pb.Conflict_State) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		return true
	}
	for _, t := range r.latest {
		if t.Pod == e {
			return t.State == state
		}
	}
	return false
}

// Latest returns the last state of an address that the replica has told.
func (r *Replica) Latest(addr string) Told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest[addr]
}

// served reports whether the replica was in service from one time to another.
func (r *Replica) served(from, until time.Time) bool {
	return !slices.ContainsFunc(r.outages, func(o Outage) bool {
		return o.From.Before(until) && (o.Until.IsZero() || o.Until.After(from))
	})
}

// Latency returns how long it took at most from the beginning of an episode until the replica told of it,
// among the episodes that began while it was in service, and their number.
func (r *Replica) Latency(episodes []*Episode, from, until time.Time) (longest time.Duration, of int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range episodes {
		at, told := r.first[e.Pod]
		if !told || e.Begun.Before(from) || e.Begun.After(until) || !r.served(e.Begun, at) {
			continue
		}
		of++
		longest = max(longest, at.Sub(e.Begun))
	}
	return longest, of
}
