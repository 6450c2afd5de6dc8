// Package judge judges addresses, and keeps conflicts and findings. Each address belongs to one of 256
// partitions, and each partition to one of a few goroutines: Shards. Only that goroutine judges the
// addresses of the partition and stores the outcome. An address with one undisputed owner takes only an
// index entry, and its owner is derived from the facts when it is needed. Findings also looks for problems
// of more than one address: of pools, ranges, node names, cloned hardware addresses, and namespaces that
// lack an address. The package makes no text.
package judge

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

// judgedAtOnce is the number of addresses that are judged before the lock is released for writers
// of the facts.
const judgedAtOnce = 8

// An OwnerChange is the kind of a change of an owner.
type OwnerChange uint8

// The kinds of changes.
const (
	Added OwnerChange = iota
	Updated
	Removed
)

// A Listener is notified of judgements. Its methods are called while the facts are held for
// reading. Several goroutines call them, but never concurrently for one address.
type Listener interface {
	// OwnerChanged is called, if owners are watched, with an owner of an address and its previous state, which is nil for a
	// new owner. all are the owners of the address.
	OwnerChanged(what OwnerChange, a index.Address, o, before *verdict.Owner, all []verdict.Owner)
	// ConflictChanged is called with a conflict and its previous state. opened is set if it was not
	// active before.
	ConflictChanged(c, before *verdict.Conflict, opened bool)
	// Detected is called with the time that it took to detect a conflict.
	Detected(took time.Duration)
	// Acknowledged looks up the acknowledgement of a conflict. It returns the time until which the
	// acknowledgement holds, 0 if there is none, and whether it has just lapsed.
	Acknowledged(c *verdict.Conflict) (until verdict.Stamp, lapsed bool)
	// Audited is called with the current and the previous findings of an address.
	Audited(a index.Address, owners []verdict.Owner, found, before []verdict.Finding, contested bool)
	// Cloned is called with the cloned hardware addresses in claims to an address.
	Cloned(a index.Address, clones []verdict.Spoof)
	// Spoke is called with an owner that is, or was, only seen on the wire.
	Spoke(o *verdict.Owner)
	// Rested is called when a goroutine has emptied its queue. The facts are not held then.
	Rested()
	// Panicked is called when the judgement of an address has panicked.
	Panicked()
}

// Config is the configuration of Shards.
type Config struct {
	Policy    *verdict.Policy
	Log       *slog.Logger
	Clock     func() verdict.Stamp
	Facts     *facts.Facts
	Conflicts *Conflicts
	Listener  Listener
	// Workers is the number of goroutines. It must equal the number of queues of the facts.
	Workers int
}

// A Place is an entry of the index: an address with owners. It takes 17 bytes.
type Place struct {
	addr [16]byte
	kind uint8 // scope kind of the only owner, or several
}

// several is the kind of a place with several owners.
const several = 255

// From returns the place at which a walk over the index begins with an address.
func From(a index.Address) Place { return Place{addr: a.Bytes()} }

// Address returns the address.
func (p Place) Address() index.Address { return index.AddressFrom(p.addr) }

func lessPlace(a, b Place) bool { return a.Address().Less(b.Address()) }

// Shards are all partitions. Use New.
type Shards struct {
	Config
	index    *index.Set[Place]
	workers  []*worker
	unjudged unjudged
}

// New returns shards that do nothing before Run.
func New(cfg Config) *Shards {
	s := &Shards{Config: cfg, index: index.NewSet(lessPlace)}
	for i := range cfg.Workers {
		s.workers = append(s.workers, &worker{
			shards: s, queue: cfg.Facts.Queue(i), builder: cfg.Facts.Builder(), second: cfg.Facts.Builder(), verdicts: verdict.NewJudge(cfg.Policy),
			entries: make(map[index.Address]*entry), wake: newSignal(),
		})
	}
	return s
}

// Places returns a snapshot of the addresses that have owners.
func (s *Shards) Places() *index.Snapshot[Place] { return s.index.Snapshot() }

// Counts returns the number of owners by their widest scope.
func (s *Shards) Counts() (counts [verdict.NetworkScope + 1]int) {
	for _, w := range s.workers {
		for kind := range counts {
			counts[kind] += int(w.counts[kind].Load())
		}
	}
	return counts
}

// Waiting returns the number of addresses that are queued for judgement.
func (s *Shards) Waiting() (n int) {
	for _, w := range s.workers {
		n += w.queue.Len()
	}
	return n
}

// A worker is one goroutine with its partitions.
type worker struct {
	shards  *Shards
	queue   *facts.Queue
	builder *facts.Builder
	// second makes another case while the case of builder is in use.
	second   *facts.Builder
	verdicts *verdict.Judge
	entries  map[index.Address]*entry
	timers   timers
	// waits is set while timers wait for overdue nodes to be timed out.
	waits bool
	// withFormer is the number of entries with former owners.
	withFormer int
	counts     [verdict.NetworkScope + 1]atomic.Int64
	// expired are claims to delete, and done are the items to finish, when the lock has been
	// released.
	expired []expired
	done    []*facts.Item
	// aside has functions that the goroutine calls when wake is set; asideMu guards it.
	asideMu sync.Mutex
	aside   []func()
	wake    signal
}

type expired struct {
	item   *facts.Item
	claims []facts.Ref
}

// unjudged has the addresses whose judgement panicked.
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
		s.Log.Error("panic while judging an address: please report this bug; the address is judged again when it changes",
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

// Unjudged returns the number of addresses whose judgement panicked.
func (s *Shards) Unjudged() int {
	s.unjudged.mu.Lock()
	defer s.unjudged.mu.Unlock()
	return len(s.unjudged.addrs)
}

// A Reader returns the owners of addresses. Use Shards.Reader. A Reader is not safe for concurrent
// use.
type Reader struct {
	shards  *Shards
	builder *facts.Builder
	judge   *verdict.Judge
}

// Reader returns a new Reader.
func (s *Shards) Reader() *Reader {
	return &Reader{s, s.Facts.Builder(), verdict.NewJudge(s.Policy)}
}

// OwnersOf returns the owners of an address as they were last published. The caller holds the
// facts. The result is valid until the next call.
func (r *Reader) OwnersOf(a index.Address) []verdict.Owner {
	s := r.shards
	if owners, kept := s.Conflicts.Owners(a); kept {
		return owners
	}
	if owners, derived := s.Facts.Before(a); derived {
		return owners
	}
	return r.judge.Judge(r.builder.Case(a, false)).Owners
}
