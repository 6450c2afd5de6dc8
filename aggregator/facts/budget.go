package facts

import (
	"encoding/hex"
	"iter"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The kernel may kill the aggregator when it exceeds the memory limit of its cgroup, and the
// agents' snapshots would fill it again after the restart. Therefore, reported records are charged
// to a budget with the measured live heap of each kind of record. Nodes share the budget: a node
// may exceed its share only while there is free memory.

const (
	// BudgetOverhead is the memory in bytes that the aggregator needs without any node.
	BudgetOverhead = 32 << 20
	// LeastBudget is the smallest budget in bytes, regardless of the memory limit.
	LeastBudget = 8 << 20
	// firstRefill and lastRefill are the shortest and the longest time before an incomplete
	// node is asked for another snapshot. The time doubles whenever the snapshot did not fit.
	firstRefill, lastRefill = 5 * time.Second, 10 * time.Minute
)

// budget is the memory for records that agents report, and the part of it that is in use.
type budget struct {
	limit int64 // in bytes; 0 for no limit
	used  int64 // in bytes: the sum of all accounts and of common
	// common is the charge of objects of the Kubernetes API, which belong to no node.
	common int64
	// accounts is the number of accounts with a charge.
	accounts int64
}

// An account is the charge of one node, or of all nodes whose agents use one credential. An agent
// thus cannot enlarge its share by reporting more boot IDs.
type account struct{ used int64 }

// charges is the charge of one node.
type charges struct {
	// account is the account of the node; used is the charge of this node in bytes.
	account *account
	used    int64
	// cost is the charge of the node's connection, and statusCost is the charge of its status.
	cost, statusCost int32
	// LeftOut counts the records that did not fit into memory. loggedIncomplete is set once this has
	// been logged.
	LeftOut          LeftOut
	loggedIncomplete bool
	refill           refill
}

// LeftOut counts the records of a node since its last snapshot that did not fit into memory.
// Records counts the records of kernels and IPAMs, and Wire counts the wire claims.
type LeftOut struct{ Records, Wire int }

// refill is when an incomplete node is asked for a snapshot again.
type refill struct {
	at      verdict.Stamp
	backoff time.Duration
}

// newBudget returns the budget for a memory limit in bytes; 0 for no limit. Half of the memory is
// for records that agents report. The other half is for garbage, clients, snapshots that are being
// received, and the copy of the Kubernetes API.
func newBudget(memory int64) budget {
	if memory <= 0 {
		return budget{}
	}
	return budget{limit: max(LeastBudget, (memory-BudgetOverhead)/2)}
}

// Budget returns the bytes charged for records, and the limit; 0 for no limit. The caller holds the
// lock, as for the methods below.
func (f *Facts) Budget() (used, limit int64) { return f.used, f.limit }

// Charged returns the charge of the node in bytes.
func (n *charges) Charged() int64 { return n.used }

// Incomplete reports whether some records of a node were dropped.
func (n *Node) Incomplete() bool { return n.LeftOut != LeftOut{} || n.Excess > 0 }

// share returns the number of bytes that an account may always use, regardless of other accounts.
func (b *budget) share(of *account) int64 {
	accounts := b.accounts
	if of.used == 0 {
		accounts++
	}
	return (b.limit - b.common) / accounts
}

// evictBatch returns the least number of bytes that are freed when a node is cut to its share.
// Evicting in batches is cheaper, because each eviction walks the node's tables.
func (b *budget) evictBatch() int64 { return b.limit / 128 }

// high returns the total charge in bytes up to which an account may exceed its share.
func (b *budget) high() int64 { return b.limit - b.limit/16 }

func (b *budget) spend(a *account, bytes int64) {
	b.used += bytes
	if a == nil {
		b.common += bytes
		return
	}
	was := a.used
	a.used += bytes
	switch {
	case was == 0 && a.used > 0:
		b.accounts++
	case was > 0 && a.used == 0:
		b.accounts--
	}
}

// fits reports whether there is memory for more bytes of a node; n is nil for records of no node. If first is
// set, wire claims of the same node may be evicted for them. A known claim is never evicted to make room for
// itself: a kernel claim replaces wire claims only, and a wire claim replaces records of other accounts only.
func (f *Facts) fits(n *Node, more int, first bool) bool {
	return n == nil || more <= 0 || f.limit == 0 || f.makeRoom(n, int64(more), first)
}

// setCharge sets the charge of one record of a node to cost, which has holds. A cost of 0 releases the charge.
func setCharge[C ~int32 | ~uint16](f *Facts, n *Node, has *C, cost int) {
	more := int64(cost) - int64(*has)
	*has = C(cost) //nolint:gosec // a few kilobytes
	if n == nil {
		f.spend(nil, more)
		return
	}
	n.used += more
	f.spend(n.account, more)
}

// charge sets the charge of one record to cost. If there is not enough memory, it changes nothing and returns
// false.
func (f *Facts) charge(n *Node, has *int32, cost int, first bool) bool {
	if !f.fits(n, cost-int(*has), first) {
		return false
	}
	setCharge(f, n, has, cost)
	return true
}

// makeRoom reports whether a node may use more bytes. For a node within its share, it evicts
// records of nodes that exceed theirs.
func (f *Facts) makeRoom(n *Node, bytes int64, first bool) bool {
	b := &f.budget
	within := func() bool { return n.account.used+bytes <= b.share(n.account) }
	if b.used+bytes <= b.high() {
		return true
	}
	if from := f.mostWire(n); !within() && first && from.wireClaims > 0 {
		f.evict(from, max(bytes, b.evictBatch()), true)
	}
	if !within() {
		return b.used+bytes <= b.high()
	}
	for b.used+bytes > b.limit {
		over := f.mostOverShare(f.share(n.account))
		if over == nil || !f.evict(over, max(bytes, b.evictBatch()), false) {
			return false
		}
	}
	return true
}

// mostOverShare returns the node whose account exceeds the share the most; nil if no account does.
func (f *Facts) mostOverShare(share int64) (most *Node) {
	for n := range f.Nodes {
		if n.account.used <= share {
			continue
		}
		if most == nil || n.account.used > most.account.used || n.account == most.account && n.used > most.used {
			most = n
		}
	}
	return most
}

// mostWire returns n if it has wire claims. Otherwise it returns the node of the same account
// with the most wire claims.
func (f *Facts) mostWire(n *Node) *Node {
	if n.wireClaims > 0 {
		return n
	}
	most := n
	for _, other := range f.called[n.ID.Vouched] {
		if other.account == n.account && other.wireClaims > most.wireClaims {
			most = other
		}
	}
	return most
}

// evict removes records of a node until the given number of bytes is free. It removes wire claims
// to addresses that nothing else reports first, then other wire claims, and then, unless wireOnly
// is set, records of the kernel and IPAM. It reports whether it freed anything.
func (f *Facts) evict(n *Node, bytes int64, wireOnly bool) bool {
	before := n.used
	drop := func(all iter.Seq[uint32], record string, which func(uint32) bool, end func(uint32)) {
		for i := range all {
			if before-n.used >= bytes {
				return
			}
			if which(i) {
				wire := record == "claim" && n.claims.at(i).wire() != 0
				end(i)
				f.countRefused(n, record, wire)
			}
		}
	}
	claims := func(which func(uint32) bool) {
		drop(n.claims.all, "claim", which, func(c uint32) { f.removeFromIndexes(n, c) })
	}
	every := func(uint32) bool { return true }
	claims(func(c uint32) bool { return f.seenOnlyOnWire(n, c) })
	claims(func(c uint32) bool { return n.claims.at(c).wire() != 0 })
	if wireOnly {
		return n.used < before
	}
	claims(func(c uint32) bool { return !f.rivals(n.claims.at(c).addr) })
	claims(every)
	for len(n.Pools) > 0 && before-n.used < bytes {
		f.endPool(n.Pools[len(n.Pools)-1])
		f.countRefused(n, "pool", false)
	}
	drop(n.interfaces.all, "interface", every, func(i uint32) { f.endInterface(n, i, ending{}) })
	drop(n.namespaces.all, "namespace", every, func(ns uint32) { f.endNamespace(n, ns, ending{}) })
	drop(n.links.all, "link", func(l uint32) bool { return n.links.at(l).flags.has(known) }, func(l uint32) { f.endLink(n, l) })
	return n.used < before
}

// seenOnlyOnWire reports whether a wire claim is to an undisputed address that only frames of its
// sender show.
func (f *Facts) seenOnlyOnWire(n *Node, c uint32) bool {
	one := n.claims.at(c)
	if one.wire() == 0 || len(f.allocations[one.addr]) > 0 || f.rivals(one.addr) {
		return false
	}
	for other, k := range f.claimsTo(one.addr) {
		if other.claims.at(k).wire() == 0 {
			return false
		}
	}
	return true
}

// macAt returns the MAC in a claim.
func (t *tables) macAt(c uint32) verdict.MAC {
	one := t.claims.at(c)
	if one.wire() == 0 {
		return t.texts.macOf(t.interfaces.at(one.port).mac)
	}
	return t.texts.macOf(t.hardware.at(t.wires.at(one.wire()).hardware).mac)
}

// accountOfName returns the account of all nodes whose agents authenticate with a name; nil if
// there is none yet.
func (f *Facts) accountOfName(vouched string) *account {
	if i := slices.IndexFunc(f.called[vouched], func(n *Node) bool { return n.ID.Vouched == vouched }); i >= 0 {
		return f.called[vouched][i].account
	}
	return nil
}

// chargeConnection charges a node for its connection, or returns an error. A node that was charged
// before a reboot is always accepted, because its old records are dropped once it reports.
func (f *Facts) chargeConnection(n *Node) error {
	if f.charge(n, &n.cost, nodeCost, true) {
		return nil
	}
	if n.account.used > 0 {
		n.cost, n.used = nodeCost, n.used+nodeCost
		f.spend(n.account, nodeCost)
		return nil
	}
	return status.Errorf(codes.ResourceExhausted,
		"not enough memory for another node: %d nodes share %d MiB; raise the memory limit of the aggregator (see docs/sizing.md)", f.accounts, f.limit>>20)
}

// releaseAll releases all charges of a node whose tables are dropped.
func (f *Facts) releaseAll(n *Node) {
	f.spend(n.account, -n.used)
	n.used, n.cost, n.statusCost, n.LeftOut = 0, 0, 0, LeftOut{}
}

// countRefused counts a record that did not fit into memory. Only the first one is logged.
func (f *Facts) countRefused(n *Node, record string, wire bool) {
	f.changes.Refused[record]++
	if wire {
		n.LeftOut.Wire++
	} else {
		n.LeftOut.Records++
	}
	if !n.loggedIncomplete {
		n.loggedIncomplete = true
		f.Log.Warn("memory budget exhausted: some records of the node are dropped", "node", n.Rec.Name,
			"charged_bytes", n.used, "share_bytes", f.share(n.account), "budget_bytes", f.limit)
		if !n.Rec.Unheard { // otherwise, it is published when the node reconnects
			f.changes.node(n)
		}
	}
}

// completed updates the state of a node after a snapshot, of which some records may have been
// dropped. corrected is set if strings of the node were corrected before: the next one may soon be, too, so that
// the pause between requests goes on.
func (f *Facts) completed(n *Node, corrected bool) {
	if n.faulty() {
		n.refill.backoff = min(max(firstRefill, 2*n.refill.backoff), lastRefill)
		n.refill.at = f.now().Add(n.refill.backoff)
		return
	}
	if n.refill != (refill{}) || n.loggedIncomplete {
		f.changes.node(n)
	}
	if !corrected {
		n.refill = refill{}
	}
	if n.loggedIncomplete {
		n.loggedIncomplete = false
		f.Log.Info("memory budget is sufficient again: all records of the node are kept", "node", n.Rec.Name)
	}
}

// faulty reports whether records of a node were dropped or corrected since its last snapshot. Whether that has
// ended is known from another snapshot.
func (n *Node) faulty() bool { return n.Incomplete() || len(n.Corrections) > 0 }

// Refill asks one node of which records were dropped or corrected for a snapshot: of the nodes for which there is
// enough memory, one that is incomplete before others, and then the one that uses the least.
func (f *Facts) Refill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, now := &f.budget, f.now()
	var next *Node
	for n := range f.Nodes {
		room := n.Excess == 0 || n.wireClaims < MaxClaims
		if n.LeftOut != (LeftOut{}) {
			room = b.used <= b.limit*3/4 || n.account.used <= b.share(n.account)*3/4
		}
		if !n.faulty() || n.Peer == nil || n.refill.at > now || !room {
			continue
		}
		if next == nil || n.Incomplete() && !next.Incomplete() || n.Incomplete() == next.Incomplete() && n.used < next.used {
			next = n
		}
	}
	if next == nil {
		return
	}
	if now.Sub(next.refill.at) > lastRefill {
		next.refill.backoff = 0 // nothing was wrong for a while
	}
	next.refill.backoff = min(max(firstRefill, 2*next.refill.backoff), lastRefill)
	next.refill.at = now.Add(next.refill.backoff)
	next.Peer.AskResync()
}

// Hold charges a node for a message that is kept, and reports whether there is enough memory.
func (f *Facts) Hold(n *Node, bytes int) (held bool) {
	b := newBatch() // collects the addresses of evicted records
	f.piece(b, func() {
		if held = f.limit == 0 || f.makeRoom(n, int64(bytes), true); held {
			f.spend(n.account, int64(bytes))
		}
	})
	f.close(b)
	return held
}

// Release releases bytes charged by Hold. The caller holds the lock for writing.
func (f *Facts) Release(n *Node, bytes int64) { f.spend(n.account, -bytes) }

// The live heap in bytes of one record without its strings. TestRecordsCostWhatIsCharged compares
// these numbers with measurements.
const (
	nodeCost       = 48 << 10 // including its connection and stream
	namespaceCost  = 150
	intendedCost   = 1200 // including a finding
	interfaceCost  = 120
	linkCost       = 64
	KernelCost     = 280
	WireCost       = 640
	rivalCost      = 9000 // additional cost of a claim that may conflict with another one
	poolCost       = 1792
	rangeCost      = 80
	allocationCost = 3136 // including a finding
	statusCost     = 6    // per byte of the message
)

// rivals reports whether the claims to an address have several hardware addresses or several
// namespaces.
func (f *Facts) rivals(a index.Address) bool {
	var first verdict.MAC
	var home ref
	some := false
	for n, c := range f.claimsTo(a) {
		one := n.claims.at(c)
		if mac := n.macAt(c); !some {
			some, first = true, mac
		} else if mac != first {
			return true
		}
		if one.wire() == 0 {
			at := refOf(n.number, n.interfaces.at(one.port).namespace)
			if home != 0 && home != at {
				return true
			}
			home = at
		}
	}
	return false
}

// rival reports whether a claim may conflict with another claim to its address, and thus takes more
// memory.
func (f *Facts) rival(n *Node, a index.Address, port uint32, key claimKey) bool {
	m := n.texts.macOf(key.mac)
	if m == "" {
		m = n.texts.macOf(n.interfaces.at(port).mac)
	}
	for other, c := range f.claimsTo(a) {
		one := other.claims.at(c)
		if other.macAt(c) != m || key.mac.form == noMAC && one.wire() == 0 &&
			(other != n || other.interfaces.at(one.port).namespace != n.interfaces.at(port).namespace) {
			return true
		}
	}
	return false
}

// claimCost returns the charge of a new claim.
func (f *Facts) claimCost(n *Node, a index.Address, port uint32, key claimKey, rec *pb.ClaimRecord) int {
	cost := KernelCost
	if key.mac.form != noMAC {
		cost = WireCost
		if name := rec.GetLink(); name != "" && n.link(name) == 0 {
			cost += linkCost + textCost(name)
		}
	}
	if f.Claimed(a) && f.rival(n, a, port, key) {
		cost += rivalCost
	}
	return min(cost+textCost(rec.GetNetwork()), math.MaxUint16) // limited by the size of the field
}

// changedCost returns the charge of a known claim after its network or link changed. It includes a
// new link that only this claim uses.
func changedCost(n *Node, c uint32, rec *pb.ClaimRecord) int {
	one := n.claims.at(c)
	cost := int(one.cost) + textCost(rec.GetNetwork()) - textCost(n.texts.get(one.network))
	if name := rec.GetLink(); one.wire() != 0 && name != "" && n.link(name) == 0 {
		cost += linkCost + textCost(name)
	}
	return min(cost, math.MaxUint16)
}

// textCost returns the charge of strings: their size in blocks of the allocator.
func textCost(texts ...string) (cost int) {
	for _, s := range texts {
		if s != "" {
			cost += 16 + len(s)*9/8
		}
	}
	return cost
}

func namespaceCostOf(rec *pb.NamespaceRecord) int {
	w := rec.GetWorkload()
	cost := namespaceCost + len(rec.GetIntended())*intendedCost
	for field, source := range w.GetSources() {
		cost += textCost(field, source)
	}
	return cost + textCost(rec.GetNetns(), w.GetNamespace(), w.GetName(), w.GetUid(), w.GetContainerId(), w.GetSource(), w.GetProcess(), w.GetVirtualMachine(), w.GetVipProgram())
}

func interfaceCostOf(rec *pb.InterfaceRecord) int {
	return min(interfaceCost+textCost(rec.GetName(), rec.GetKind(), rec.GetLink(), rec.GetHostInterface(), rec.GetVrf()), math.MaxUint16)
}

func allocationCostOf(al *verdict.Allocation) int {
	return allocationCost + textCost(al.ContainerID, al.Interface, al.Pod, al.Namespace, al.Location, al.MAC, al.FormerMAC, al.Hostname, al.FixedIn, al.ReservedFor)
}

func poolCostOf(rec *pb.PoolRecord) int {
	return poolCost + (len(rec.GetRanges())+len(rec.GetGateways()))*rangeCost +
		textCost(rec.GetName(), rec.GetIpam(), rec.GetNetwork(), rec.GetProblem(), rec.GetPlugin(), rec.GetDevice(), rec.GetConfig(), hex.EncodeToString(rec.GetClientId()))
}
