// Package facts stores what agents and the Kubernetes API report: a table for each node, the links
// of different nodes that are one, and the data of IPAMs. It makes no judgements. It queues the
// addresses that a change affects, and makes the cases from which they are judged.
//
// Everything is guarded by one lock. A writer holds it for a bounded part of its work, so that
// readers wait only briefly. A reader holds it for one case or one page.
package facts

import (
	"hash/maphash"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// Kubernetes is the part of the Kubernetes API that facts depend on.
type Kubernetes interface {
	Pod(namespace, name, uid, node string) *verdict.PodObject
	PodNamed(namespace, name string) *verdict.PodObject
	KnownUntil() verdict.Stamp
	InPodCIDR(a netip.Addr) bool
	InPodCIDROf(node string, a netip.Addr) bool
	Internal(node string, a netip.Addr) bool
	OneTenant() bool
	FormerEndpoints(a netip.Addr) (former []ipam.Endpoint, known bool)
	NodesCovered(reports func(name string) bool) (all, asked bool)
}

// Config is the configuration of Facts. All fields are required.
type Config struct {
	Policy *verdict.Policy
	Log    *slog.Logger
	Clock  func() verdict.Stamp
	// Changed is called at the end of each step with what it has changed besides addresses. The lock is still held
	// for writing, so that no reader sees facts without what follows from them: Changed must return at once and
	// change no facts.
	Changed func(*Changes)
	// OwnersWatched reports whether the owners of an address must be derived before they change.
	OwnersWatched func() bool
	// Disputed yields the addresses that nodes watch more closely, and those with several owners.
	Disputed iter.Seq[index.Address]
	// Kubernetes must not be nil, but it may be a nil *kube.Cluster, which is empty. Followed is
	// set if the Kubernetes API is used.
	Kubernetes Kubernetes
	Followed   bool
	// Queues is the number of goroutines that judge addresses.
	Queues int
	// Memory is the memory limit of the process in bytes; 0 for no limit.
	Memory int64
	// Stopped is closed when no more addresses will be judged.
	Stopped <-chan struct{}
}

// Facts is the state that agents and the Kubernetes API report. Use New.
type Facts struct {
	Config

	mu sync.RWMutex
	registry
	budget
	ipamRecords
	addresses *refs[index.Address] // the first claim of each node
	// pods has the namespaces of each pod, and sandboxes those with a container ID.
	pods, sandboxes *refs[verdict.Packed]
	// holders has, for each MAC and node, an interface with the MAC whose frames may enter another
	// node. seen has the hardware addresses named by claims, for MACs that identify one interface.
	holders, seen *refs[[6]byte]
	// sightings are claims that may show that links are one and have not been looked at yet.
	sightings    []ref
	topology     *Topology
	awaitedUntil verdict.Stamp // see AwaitNodes
	// tombstones has the holders that recently gave up addresses. burials are the tombstones in order
	// of time; a renewed tombstone occurs twice.
	tombstones map[tombstone]death
	believed   map[index.Address][]*belief
	formerMACs map[[6]byte]formerMAC
	burials    []burial
	queues     []*Queue
	// batch is the batch of the current piece. disputes has the nodes whose disputed addresses must
	// be judged again after the piece.
	batch    *Batch
	disputes map[*Node][]netip.Prefix
	// scratch makes cases during a change.
	scratch *Builder
	// changes are the changes of the current step.
	changes Changes
	// tenures, programs and departures, by the name of the node, are what was recalled from before the start.
	tenures    map[index.Address][]Tenure
	programs   map[NodeID]string
	departures map[string][]Departure
	// coverage caches whether all nodes are covered. It has its own lock because readers update it.
	coverage struct {
		mu  sync.Mutex
		at  verdict.Stamp
		all bool
	}
}

// New returns empty facts.
func New(cfg Config) *Facts {
	f := &Facts{
		Config: cfg, registry: newRegistry(), budget: newBudget(cfg.Memory), ipamRecords: newIPAM(),
		tombstones: make(map[tombstone]death), believed: make(map[index.Address][]*belief), formerMACs: make(map[[6]byte]formerMAC), disputes: make(map[*Node][]netip.Prefix), changes: newChanges(),
	}
	hashMAC := func(m [6]byte) uint64 { return maphash.Bytes(seed, m[:]) }
	hashPacked := func(p verdict.Packed) uint64 { return hashText(string(p)) }
	f.addresses = newRefs(hashAddress, func(r ref) index.Address { return f.nodes[r.node()].claims.at(r.index()).addr })
	f.pods = newRefs(hashPacked, func(r ref) verdict.Packed { return podKey(f.nodes[r.node()].whoOf(r.index())) })
	f.sandboxes = newRefs(hashPacked, func(r ref) verdict.Packed { return f.nodes[r.node()].whoOf(r.index()).ContainerID() })
	f.holders = newRefs(hashMAC, func(r ref) [6]byte { return f.nodes[r.node()].interfaces.at(r.index()).mac.bytes })
	f.seen = newRefs(hashMAC, func(r ref) [6]byte { return f.nodes[r.node()].hardware.at(r.index()).mac.bytes })
	f.topology = NewTopology(cfg.Policy.StaleAfter, f.linkChanging, f.linkRenaming)
	f.scratch = f.Builder()
	for range cfg.Queues {
		f.queues = append(f.queues, newQueue())
	}
	return f
}

func hashAddress(a index.Address) uint64 { return maphash.Comparable(seed, a) }

func (f *Facts) now() verdict.Stamp { return f.Clock() }

// Queue returns one of the queues of addresses to be judged.
func (f *Facts) Queue(i int) *Queue { return f.queues[i] }

func (f *Facts) queue(a index.Address) *Queue { return f.queues[a.Partition()%len(f.queues)] }

// RLock locks the facts against changes while a reader makes one case or one page. Functions whose
// caller holds the facts must be called before RUnlock.
func (f *Facts) RLock() { f.mu.RLock() }

// RUnlock releases the lock of RLock.
func (f *Facts) RUnlock() { f.mu.RUnlock() }

// Await waits until all judgements in progress have ended.
func (f *Facts) Await() {
	f.mu.Lock()
	f.mu.Unlock() //nolint:staticcheck // nothing is changed
}

// Update makes a small change to a node on which no judgement depends.
func (f *Facts) Update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.tell()
}

// piece runs a part of a change with the lock held.
func (f *Facts) piece(b *Batch, do func()) {
	f.Update(func() {
		f.batch = b
		do()
		f.touchDisputed()
		f.batch = nil
	})
}

// inPieces calls do for each item, a piece at a time.
func inPieces[T any](f *Facts, b *Batch, all []T, do func(T)) {
	for some := range slices.Chunk(all, piece) {
		f.piece(b, func() {
			for _, one := range some {
				do(one)
			}
		})
	}
}

// merge merges the links that a change shows to be one.
func (f *Facts) merge(b *Batch) {
	for more := true; more; {
		f.piece(b, func() { more = f.mergeLinks(piece) })
	}
}

// close ends a change: it merges the links that the change shows to be one, and releases the
// touched addresses to be judged.
func (f *Facts) close(b *Batch) {
	f.merge(b)
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
