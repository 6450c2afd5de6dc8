// Package shard judges addresses. Each address belongs to one of 256 partitions, and each partition
// to one of a few goroutines. Only that goroutine judges the addresses of the partition and
// remembers the outcome. An address with one undisputed owner is only an entry of the index: its
// owner is derived from the facts when it is needed.
package shard

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// judgedAtOnce is the number of addresses that are judged before writers of the facts get a turn.
const judgedAtOnce = 8

// An OwnerChange is what happened to an owner.
type OwnerChange uint8

// The changes.
const (
	Added OwnerChange = iota
	Updated
	Removed
)

// A Listener is notified of judgements. Its methods are called with the facts held for reading, and
// by several goroutines, but never concurrently for one address.
type Listener interface {
	// OwnerChanged is called with an owner of an address and its previous state, nil if it was
	// added; all are the owners of the address.
	OwnerChanged(what OwnerChange, a index.Address, o, before *verdict.Owner, all []verdict.Owner)
	// OwnersWatched reports whether OwnerChanged needs to be called.
	OwnersWatched() bool
	// ConflictChanged is called with a conflict and its previous state. opened is set if it was not
	// active then.
	ConflictChanged(c, before *verdict.Conflict, opened bool)
	// Detected is called with the time that it took to suspect a conflict.
	Detected(took time.Duration)
	// Acknowledged looks up the acknowledgement of a conflict, which may come back or lapse. It
	// returns the time until which it holds, 0 if there is none, and whether it lapsed just now.
	Acknowledged(c *verdict.Conflict) (until verdict.Stamp, lapsed bool)
	// Audited is called with what the audit of an address found, and what it had found before.
	Audited(a index.Address, owners []verdict.Owner, found, before []verdict.Finding, contested bool)
	// Cloned is called with the cloned hardware addresses in the claims of an address.
	Cloned(a index.Address, clones []verdict.Spoof)
	// Spoke is called with an owner that only wire claims show, or showed.
	Spoke(o *verdict.Owner)
	// Rested is called when a goroutine has judged all addresses in its queue, without the facts
	// held.
	Rested()
	// Panicked counts an address that could not be judged.
	Panicked()
}

// Config is what shards need.
type Config struct {
	Policy   *verdict.Policy
	Log      *slog.Logger
	Clock    func() verdict.Stamp
	Facts    *facts.Facts
	Listener Listener
	// Workers is the number of goroutines; the facts have as many queues.
	Workers int
}

// A Place is an address that has owners, in the index. It has 17 bytes.
type Place struct {
	addr [16]byte
	kind uint8 // of the scope of its one owner, or several
}

// several is the kind of a place with several owners.
const several = 255

// From returns the place from which a walk begins with an address and continues with those after it.
func From(a index.Address) Place { return Place{addr: a.Bytes()} }

// Address returns the address.
func (p Place) Address() index.Address { return index.AddressFrom(p.addr) }

func lessPlace(a, b Place) bool { return a.Address().Less(b.Address()) }

// Shards are all partitions. Use New.
type Shards struct {
	Config
	Conflicts *Conflicts
	index     *index.Index[Place]
	workers   []*worker
	unjudged  unjudged
}

// New returns shards that do nothing before Run.
func New(cfg Config) *Shards {
	s := &Shards{Config: cfg, index: index.New(Place.Address, lessPlace), Conflicts: newConflicts()}
	for i := range cfg.Workers {
		s.workers = append(s.workers, &worker{
			shards: s, queue: cfg.Facts.Queue(i), builder: cfg.Facts.Builder(), second: cfg.Facts.Builder(), verdicts: verdict.NewJudge(cfg.Policy),
			entries: make(map[index.Address]*entry), forgotten: make(chan struct{}, 1),
		})
	}
	return s
}

// Places returns the addresses that have owners, as of now.
func (s *Shards) Places() *index.Snapshot[Place] { return s.index.Snapshot() }

// Counts returns the number of owners by the widest scope in which they are compared.
func (s *Shards) Counts() (counts [verdict.NetworkScope + 1]int) {
	for _, w := range s.workers {
		for kind := range counts {
			counts[kind] += int(w.counts[kind].Load())
		}
	}
	return counts
}

// Waiting returns the number of addresses that wait to be judged.
func (s *Shards) Waiting() (n int) {
	for _, w := range s.workers {
		n += w.queue.Len()
	}
	return n
}

// worker is one goroutine with its partitions.
type worker struct {
	shards  *Shards
	queue   *facts.Queue
	builder *facts.Builder
	// second makes a case while builder has another one.
	second   *facts.Builder
	verdicts *verdict.Judge
	entries  map[index.Address]*entry
	timers   timers
	// waits is set while due addresses wait for nodes that are due.
	waits  bool
	counts [verdict.NetworkScope + 1]atomic.Int64
	// expired are claims to be ended, done the items that are finished when the lock is given up.
	expired []expired
	done    []*facts.Item
	// forget are conflicts that are too old to be kept.
	forgetMu  sync.Mutex
	forget    []conflictPlace
	forgotten chan struct{}
}

type expired struct {
	item   *facts.Item
	claims []facts.Ref
}

// unjudged are the addresses that could not be judged.
type unjudged struct {
	mu    sync.Mutex
	addrs map[index.Address]struct{}
	some  atomic.Bool
}

func (s *Shards) failed(a index.Address, r any) {
	u := &s.unjudged
	u.mu.Lock()
	_, known := u.addrs[a]
	if u.addrs == nil {
		u.addrs = make(map[index.Address]struct{})
	}
	u.addrs[a] = struct{}{}
	u.some.Store(true)
	u.mu.Unlock()
	s.Listener.Panicked()
	if !known {
		s.Log.Error("judge address: this is a defect, please report it; the address is not judged until something changes about it",
			"address", a.Addr(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	}
}

func (s *Shards) judged(a index.Address) {
	u := &s.unjudged
	if !u.some.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.addrs, a)
	u.some.Store(len(u.addrs) > 0)
}

// Unjudged returns the number of addresses that could not be judged.
func (s *Shards) Unjudged() int {
	s.unjudged.mu.Lock()
	defer s.unjudged.mu.Unlock()
	return len(s.unjudged.addrs)
}
