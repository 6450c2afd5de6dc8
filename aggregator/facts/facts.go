// Package facts holds what agents and the Kubernetes API have said: a table for each node, the
// links of different nodes that are one, and the data of IPAMs. It judges nothing: it queues the
// addresses that a change affects, and makes the cases from which they are judged.
//
// Everything is behind one lock. A writer holds it for one bounded piece of its work, so that
// readers wait for a moment at most; a reader holds it for one case, or for one page.
package facts

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/topology"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Listener is notified of changes other than those of addresses. All of its methods are called
// with the lock held for writing: they return at once and change no facts.
type Listener interface {
	// NodeChanged is called when the state of a node has changed.
	NodeChanged(n *Node)
	// NamesChanged is called when a node has connected, disconnected or changed its name.
	NamesChanged(n *Node)
	// Answered is called when a message shows that the agent of a node is alive.
	Answered(n *Node)
	// RangesChanged is called when a node, or with nil the cluster, may give out other addresses.
	RangesChanged(n *Node)
	// MayLack is called when a namespace may lack an address that it was meant to have.
	MayLack(n *Node, record uint32)
	// PoolChanged is called when a pool or its allocations have changed, PoolEnded when it was
	// removed or is about to be renamed.
	PoolChanged(p *Pool)
	PoolEnded(p *Pool)
	// CoverageChanged is called when an agent may see more or less of its node.
	CoverageChanged()
	// OwnersWatched reports whether the owners of an address are to be derived before they change.
	OwnersWatched() bool
	// Contested yields the addresses that nodes look at more closely.
	Contested(yield func(index.Address) bool)
	// AtRisk returns the addresses in use that a pool considers free.
	AtRisk(p *Pool) []netip.Addr
	// Dropped counts records that are invalid or exceed a limit, Refused those that did not fit
	// into memory.
	Dropped(record string, n int)
	Refused(record string)
}

// Kubernetes is what the Kubernetes API says.
type Kubernetes interface {
	Pod(namespace, name, uid, node string) *verdict.PodObject
	PodNamed(namespace, name string) *verdict.PodObject
	KnownUntil() verdict.Stamp
	InPodCIDR(a netip.Addr) bool
	InPodCIDROf(node string, a netip.Addr) bool
	NodesCovered(reports func(name string) bool) (all, asked bool)
}

// Config is what facts need. No field may be left out.
type Config struct {
	Policy   *verdict.Policy
	Log      *slog.Logger
	Clock    func() verdict.Stamp
	Listener Listener
	// Kubernetes must not be nil, but may be a nil *kube.Cluster, which says nothing. Followed is
	// set if it says something.
	Kubernetes Kubernetes
	Followed   bool
	// Queues is the number of goroutines that judge.
	Queues int
	// Memory is the number of bytes that the process may use; 0 means no limit.
	Memory int64
	// Stopped is closed when nothing is judged any more.
	Stopped <-chan struct{}
}

// Facts are what is known. Use New.
type Facts struct {
	Config

	mu sync.RWMutex
	*registry
	addresses *refs[index.Address] // the first claim of each node
	topology  *topology.Topology
	queues    []*Queue
	// batch is the batch of the piece under way. disputes has the nodes whose disputed addresses
	// are to be judged again after the piece.
	batch    *Batch
	disputes map[*Node][]netip.Prefix
	// scratch makes cases while something changes.
	scratch *Builder
	parts
}

// parts are what the facts consist of. Each of them has its own words, and uses the others.
type parts struct {
	*streams  // nodes come, report, and go
	*editor   // records come, change, and go
	*touching // what may be judged otherwise after a change
	*reader   // what is known, for others
	*ledger   // memory
	*sharing  // MACs that several nodes may meet
	*podIndex
	*tombstones
	*ipam
	*cover
}

type (
	streams  struct{ *Facts }
	editor   struct{ *Facts }
	touching struct{ *Facts }
	reader   struct{ *Facts }
)

// New returns facts about nothing.
func New(cfg Config) *Facts {
	f := &Facts{Config: cfg, registry: newRegistry(), disputes: make(map[*Node][]netip.Prefix)}
	f.addresses = newRefs(hashAddress, func(r ref) index.Address { return f.nodes[r.node()].claims.at(r.index()).addr })
	f.parts = parts{
		&streams{f}, &editor{f}, &touching{f}, &reader{f}, &ledger{f, newBudget(cfg.Memory)}, newSharing(f), newPodIndex(f), newTombstones(f), newIPAM(f), &cover{Facts: f},
	}
	f.topology = topology.New(cfg.Policy.StaleAfter, f.linkChanging, f.linkRenaming)
	f.scratch = f.Builder()
	for range cfg.Queues {
		f.queues = append(f.queues, newQueue())
	}
	return f
}

func hashAddress(a index.Address) uint64 { return maphashComparable(a) }

func hashPacked(p verdict.Packed) uint64 { return hashText(string(p)) }

func (f *Facts) now() verdict.Stamp { return f.Clock() }

// Queue returns one of the queues of addresses that are to be judged.
func (f *Facts) Queue(i int) *Queue { return f.queues[i] }

func (f *Facts) queue(a index.Address) *Queue { return f.queues[a.Partition()%len(f.queues)] }

// RLock keeps the facts from changing, for one case or one page. Functions that need the facts held
// are called before RUnlock.
func (f *Facts) RLock() { f.mu.RLock() }

// RUnlock lets the facts change again.
func (f *Facts) RUnlock() { f.mu.RUnlock() }

// Update makes a small change to a node that no judgement depends on.
func (f *Facts) Update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// piece does one piece of a change.
func (f *Facts) piece(b *Batch, do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batch = b
	do()
	f.touchDisputed()
	f.batch = nil
}

// close ends a change: it looks for links that the change shows to be one, and releases the touched
// addresses to be judged.
func (f *Facts) close(b *Batch) {
	for more := true; more; {
		f.piece(b, func() { more = f.mergeLinks(piece) })
	}
	how := soon
	if len(b.addrs) > fewAddresses {
		how = later
	}
	for len(b.addrs) > 0 {
		some := b.addrs[:min(len(b.addrs), piece)]
		b.addrs = b.addrs[len(some):]
		for _, a := range some {
			f.queue(a).release(a, how)
		}
	}
	b.addrs = nil
	b.less()
}

// received returns a batch for a message that was received at a time.
func received(at verdict.Stamp, residence time.Duration) *Batch {
	b := newBatch()
	b.at, b.residence = at, residence
	return b
}
