// Package facts is what agents, and the Kubernetes API, have said: a table for each node, which
// links of different nodes are one, and what IPAMs say. It judges nothing: it hands the addresses
// that something changed about to queues, and makes the cases from which they are judged.
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

// A Listener hears what changed beside addresses. All of its methods are called with the lock
// held for writing: they return at once and change no facts.
type Listener interface {
	// NodeChanged tells that the state of a node changed.
	NodeChanged(n *Node)
	// NamesChanged tells that a node came, left or is called otherwise.
	NamesChanged(n *Node)
	// Answered tells that a node reports, so that it is there.
	Answered(n *Node)
	// RangesChanged tells that a node, or with nil the cluster, may give other addresses.
	RangesChanged(n *Node)
	// MayLack tells that a namespace may lack an address that it was meant to have.
	MayLack(n *Node, record uint32)
	// PoolChanged tells that a pool or its allocations changed, PoolEnded that it is no more, or
	// is of another name from now on.
	PoolChanged(p *Pool)
	PoolEnded(p *Pool)
	// CoverageChanged tells that an agent may see more or less of its node.
	CoverageChanged()
	// OwnersWatched reports whether owners are to be known as they were before they change.
	OwnersWatched() bool
	// Contested yields the addresses that nodes look at more closely.
	Contested(yield func(index.Address) bool)
	// AtRisk returns the addresses in use that a pool takes for free.
	AtRisk(p *Pool) []netip.Addr
	// Dropped and Refused count records that do not fit, and those that there is no memory for.
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
	// Kubernetes may be nothing but says nothing then; Followed is set if it says something.
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
	// batch is the one of the piece under way, disputes are the nodes whose disputed addresses are
	// to be judged again after it.
	batch    *Batch
	disputes map[*Node]struct{}
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
	f := &Facts{Config: cfg, registry: newRegistry(), disputes: make(map[*Node]struct{})}
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

// RLock holds the facts as they are, for one case or for one page. What is documented to need that is
// called before RUnlock.
func (f *Facts) RLock() { f.mu.RLock() }

// RUnlock lets the facts change again.
func (f *Facts) RUnlock() { f.mu.RUnlock() }

// Update changes something small of a node that no judgement goes by.
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

// close ends a change: what its frames say of links is looked at, and all that it touched is to
// be judged.
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
