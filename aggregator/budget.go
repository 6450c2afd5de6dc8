package aggregator

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The kernel may kill the aggregator when it exceeds the memory limit of its cgroup, and the
// agents' snapshots would fill it again after the restart. Therefore records that agents report
// are charged to a budget. The charge is the measured live heap of each kind of record. Nodes
// share the budget: a node may exceed its share only while there is room.

// Bytes of live heap that one record takes, without its strings. TestRecordsCostWhatIsCharged
// compares them with the heap.
const (
	nodeCost       = 48 << 10 // including its connection and stream
	namespaceCost  = 320
	intendedCost   = 1200 // including a finding
	interfaceCost  = 400
	linkCost       = 160
	kernelCost     = 560
	wireCost       = 660
	rivalCost      = 2900 // extra for a claim that may conflict with another claim
	poolCost       = 1400
	rangeCost      = 80
	allocationCost = 1200 // including a finding
	statusCost     = 6    // per byte of the message
)

const (
	// budgetOverhead is the memory in bytes that the aggregator takes while no node reports.
	budgetOverhead = 32 << 20
	// leastBudget is the smallest budget in bytes, whatever the memory limit.
	leastBudget = 8 << 20
	// refillEvery is the interval at which an incomplete node may be asked for a snapshot.
	refillEvery = 5 * time.Second
	// firstRefill and lastRefill are the shortest and the longest time before an incomplete
	// node is asked for another snapshot. The time doubles whenever the snapshot did not fit.
	firstRefill, lastRefill = 5 * time.Second, 10 * time.Minute
)

// budget is the memory for records that agents report, and how much of it is charged. The
// store's mu protects it.
type budget struct {
	limit int64 // in bytes; 0 means no limit
	used  int64 // in bytes: the sum of all accounts and of common
	// common is charged to no node: it is for objects of the Kubernetes API.
	common int64
	// accounts is the number of accounts with a charge.
	accounts int64
}

// An account is the charge of one node, or of all nodes that one credential vouches for. An
// agent cannot enlarge its share by reporting more boot ids.
type account struct{ used int64 }

// leftOut counts the records of a node that did not fit into memory since its last snapshot:
// records is for those of the kernel and IPAM, wire for those of observed frames.
type leftOut struct{ records, wire int }

// refill is the time at which an incomplete node is asked for a snapshot again.
type refill struct {
	at      verdict.Stamp
	backoff time.Duration
}

// newBudget returns the budget of an aggregator that may use memory bytes; 0 means no limit.
// Half of the memory is for records that agents report. The garbage collector, clients,
// snapshots in transit and the mirror of the Kubernetes API take the other half.
func newBudget(memory int64) budget {
	if memory <= 0 {
		return budget{}
	}
	return budget{limit: max(leastBudget, (memory-budgetOverhead)/2)}
}

// share returns the bytes that an account may use however much other accounts use.
func (b *budget) share(of *account) int64 {
	accounts := b.accounts
	if of.used == 0 {
		accounts++
	}
	return (b.limit - b.common) / accounts
}

// evictAtOnce returns the number of bytes that are freed at least when a node is cut to its
// share. Evicting in batches is cheaper, because each eviction walks the node's tables.
func (b *budget) evictAtOnce() int64 { return b.limit / 128 }

// high returns the total charge in bytes up to which an account may exceed its share.
func (b *budget) high() int64 { return b.limit - b.limit/16 }

func (b *budget) add(a *account, bytes int64) {
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

// charge sets the charge of one record of a node to cost; a nil n is for records of no node.
// has holds the previous charge. A cost of 0 releases the charge and always succeeds. Without
// room charge changes nothing and returns false. If first is set, the record may replace wire
// claims of the same node.
func (s *store) charge(n *node, has *int32, cost int, first bool) bool {
	more := int64(cost) - int64(*has)
	b := &s.budget
	if n == nil {
		b.add(nil, more)
		*has = int32(cost)
		return true
	}
	if more > 0 && b.limit > 0 && !s.makeRoom(n, more, first) {
		return false
	}
	n.used += more
	b.add(n.account, more)
	*has = int32(cost)
	return true
}

// makeRoom reports whether a node may use that many more bytes. For a node within its share it
// makes room at the expense of nodes that exceed theirs.
func (s *store) makeRoom(n *node, bytes int64, first bool) bool {
	b := &s.budget
	within := func() bool { return n.account.used+bytes <= b.share(n.account) }
	if b.used+bytes <= b.high() || b.used+bytes <= b.limit && within() {
		return true
	}
	if !within() {
		from := s.mostWire(n)
		if !first || from.wireClaims == 0 || !s.evict(from, max(bytes, b.evictAtOnce()), true) {
			return false
		}
		return b.used+bytes <= b.high() || within() && b.used+bytes <= b.limit
	}
	for b.used+bytes > b.limit {
		over := s.mostOverShare(n)
		if over == nil || !s.evict(over, max(bytes, b.evictAtOnce()), false) {
			return false
		}
	}
	return true
}

// mostOverShare returns the node whose account exceeds its share the most; nil if no account
// does.
func (s *store) mostOverShare(but *node) (most *node) {
	share := s.budget.share(but.account)
	for _, n := range s.nodes {
		if n.account == but.account || n.account.used <= share || n.used == 0 {
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
func (s *store) mostWire(n *node) *node {
	if n.wireClaims > 0 {
		return n
	}
	most := n
	for other := s.called.get(n.id.vouched); n.id.vouched != "" && other != nil; other = other.alsoCalled {
		if other.account == n.account && other.wireClaims > most.wireClaims {
			most = other
		}
	}
	return most
}

// evict removes records of a node until that many bytes are free. The order is: wire claims for
// addresses that nothing else reports, other wire claims, then records of the kernel and IPAM
// unless wireOnly is set. It reports whether it freed anything.
func (s *store) evict(n *node, bytes int64, wireOnly bool) bool {
	before := n.used
	enough := func() bool { return before-n.used >= bytes }
	// Backwards, because the last element of the list replaces a removed one.
	claims := func(which func(*holding) bool) {
		for i := range n.interfaces.all() {
			for at := len(i.holdings) - 1; at >= 0 && !enough(); at-- {
				if h := i.holdings[at]; which(h) {
					wire := h.mac != nil
					s.unlist(n, h)
					s.touch(h.entry)
					s.refuse(n, "claim", wire)
				}
			}
			if enough() {
				return
			}
		}
	}
	claims((*holding).stranger)
	if !enough() {
		claims(func(h *holding) bool { return h.mac != nil })
	}
	if wireOnly {
		return n.used < before
	}
	claims(func(h *holding) bool { return h.entry.dispute == nil })
	claims(func(*holding) bool { return true })
	for len(n.pools) > 0 && !enough() {
		s.endPool(n.pools[len(n.pools)-1])
		s.refuse(n, "pool", false)
	}
	for _, i := range slices.Collect(n.interfaces.all()) {
		if enough() {
			break
		}
		s.endInterface(n, i)
		s.refuse(n, "interface", false)
	}
	for _, ns := range slices.Collect(n.namespaces.all()) {
		if enough() {
			break
		}
		s.endNamespace(n, ns)
		s.refuse(n, "namespace", false)
	}
	for _, l := range slices.Collect(n.links.all()) {
		if enough() {
			break
		}
		if l.known {
			s.endLink(n, l)
			s.refuse(n, "link", false)
		}
	}
	return n.used < before
}

// stranger reports whether a wire claim is for an undisputed address that only frames of its
// sender show.
func (h *holding) stranger() bool {
	e := h.entry
	return h.mac != nil && e.dispute == nil && e.booking == nil && e.holdings[0].mac != nil
}

// rival reports whether a claim may be in conflict with another claim to its address. Such a
// claim takes more memory.
func rival(e *entry, port *iface, key claimKey) bool {
	if e == nil {
		return false
	}
	mac := key.mac
	if mac == "" {
		mac = port.rec.MAC
	}
	for _, other := range e.holdings {
		theirs := other.MAC
		if theirs == "" {
			theirs = other.Interface.MAC
		}
		if theirs != mac || key.mac == "" && other.mac == nil && other.Interface.Namespace != port.namespace.rec {
			return true
		}
	}
	return false
}

// claimCost returns the charge of a claim. others is the entry of its address, nil for a new
// one.
func claimCost(n *node, others *entry, port *iface, key claimKey, rec *pb.ClaimRecord) int {
	cost := kernelCost
	if key.mac != "" {
		cost = wireCost
		if name := rec.GetLink(); name != "" && n.links.get(name) == nil {
			cost += linkCost + textCost(name)
		}
	}
	if rival(others, port, key) {
		cost += rivalCost
	}
	return cost + textCost(rec.GetNetwork())
}

// changedCost returns the charge of a known claim after its network or link changed. It
// includes a new link that only this claim names.
func changedCost(n *node, h *holding, rec *pb.ClaimRecord) int {
	cost := int(h.cost) + textCost(rec.GetNetwork()) - textCost(h.Network)
	if name := rec.GetLink(); h.mac != nil && name != "" && n.links.get(name) == nil {
		cost += linkCost + textCost(name)
	}
	return cost
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
	return cost + textCost(rec.GetNetns(), w.GetNamespace(), w.GetName(), w.GetUid(), w.GetContainerId(), w.GetSource(), w.GetProcess(), w.GetVirtualMachine())
}

func interfaceCostOf(rec *pb.InterfaceRecord) int {
	return interfaceCost + textCost(rec.GetName(), rec.GetKind(), rec.GetLink(), rec.GetHostInterface(), rec.GetVrf())
}

func allocationCostOf(al *verdict.Allocation) int {
	return allocationCost + textCost(al.ContainerID, al.Interface, al.Pod, al.Namespace, al.Location)
}

func poolCostOf(rec *pb.PoolRecord) int {
	return poolCost + (len(rec.GetRanges())+len(rec.GetGateways()))*rangeCost +
		textCost(rec.GetName(), rec.GetIpam(), rec.GetNetwork(), rec.GetProblem(), rec.GetPlugin(), rec.GetDevice(), rec.GetConfig())
}

// accountOfName returns the account of all nodes that one credential vouches for; nil if there
// is none yet.
func (s *store) accountOfName(vouched string) *account {
	for n := s.called.get(vouched); vouched != "" && n != nil; n = n.alsoCalled {
		if n.id.vouched == vouched {
			return n.account
		}
	}
	return nil
}

// open charges a node for its connection, or refuses the node. A node that has a charge from
// before a reboot is always accepted: its old records are dropped once it reports.
func (s *store) open(n *node) error {
	if s.charge(n, &n.cost, nodeCost, true) {
		return nil
	}
	if n.account.used > 0 {
		n.cost, n.used = nodeCost, n.used+nodeCost
		s.budget.add(n.account, nodeCost)
		return nil
	}
	return status.Errorf(codes.ResourceExhausted,
		"there is no memory for another node: %d nodes share %d MiB; give the aggregator more (see docs/sizing.md)", s.budget.accounts, s.budget.limit>>20)
}

// settleUp releases all charges of a node when its tables are dropped.
func (s *store) settleUp(n *node) {
	s.budget.add(n.account, -n.used)
	n.used, n.cost, n.statusCost, n.leftOut = 0, 0, 0, leftOut{}
}

// refuse counts a record that did not fit into memory. It is logged once.
func (s *store) refuse(n *node, record string, wire bool) {
	s.metrics.refused.WithLabelValues(record).Inc()
	if wire {
		n.leftOut.wire++
	} else {
		n.leftOut.records++
	}
	if !n.saidIncomplete {
		n.saidIncomplete = true
		s.log.Warn("there is no memory for all that a node reports: some of it is left out", "node", n.rec.Name,
			"charged_bytes", n.used, "share_bytes", s.budget.share(n.account), "budget_bytes", s.budget.limit)
		if !n.rec.Unheard { // otherwise it is published with the node's return
			s.publishNode(n)
		}
	}
}

// incomplete reports whether some records of a node are left out.
func (n *node) incomplete() bool { return n.leftOut != leftOut{} || n.excess > 0 }

// blind reports whether a node may have addresses that are not known. The absence of an owner
// proves nothing then.
func (n *node) blind() bool { return n.status.GetBlind() || n.leftOut.records > 0 }

// memoryProblem describes in words that records of a node are left out for want of memory.
func (s *store) memoryProblem(n *node) []string {
	if n.leftOut == (leftOut{}) {
		return nil
	}
	return []string{explain.NoMemory(n.leftOut.records, n.leftOut.wire, n.used, s.budget.limit)}
}

// completed notes that a snapshot was applied, and how much of it was left out.
func (s *store) completed(n *node) {
	if n.leftOut != (leftOut{}) {
		n.refill.backoff = min(max(firstRefill, 2*n.refill.backoff), lastRefill)
		n.refill.at = s.clock().Add(n.refill.backoff)
		return
	}
	n.refill = refill{}
	if n.saidIncomplete {
		n.saidIncomplete = false
		s.log.Info("there is memory again for all that a node reports", "node", n.rec.Name)
		s.publishNode(n)
	}
}

// refillNodes asks incomplete nodes for a snapshot once there is room, until ctx is done.
func (s *store) refillNodes(ctx context.Context) {
	ticker := time.NewTicker(refillEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.refillOne()
		}
	}
}

// refillOne asks one node for a snapshot: the node that uses the least memory among those that
// fit.
func (s *store) refillOne() {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, now := &s.budget, s.clock()
	var next *node
	for _, n := range s.nodes {
		room := b.used <= b.limit*3/4 || n.account.used <= b.share(n.account)*3/4
		if n.leftOut == (leftOut{}) || n.session == nil || n.refill.at > now || !room {
			continue
		}
		if next == nil || n.used < next.used {
			next = n
		}
	}
	if next == nil {
		return
	}
	next.refill.backoff = min(max(firstRefill, 2*next.refill.backoff), lastRefill)
	next.refill.at = now.Add(next.refill.backoff)
	next.session.askResync()
}
