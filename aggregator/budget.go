package aggregator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The aggregator may be killed when it takes more memory than its cgroup allows, and
// the agents' snapshots then fill it again. So what agents report is charged to a
// budget, by the live heap that each kind of record was measured to take, and the
// budget is shared: a node may use more than its share only while there is room.

// Bytes of live heap that one record takes, without its texts. TestRecordsCostWhatIsCharged
// compares them with the heap.
const (
	nodeCost       = 48 << 10 // with its connection and its stream
	namespaceCost  = 320
	intendedCost   = 1200 // with a finding
	interfaceCost  = 400
	linkCost       = 160
	kernelCost     = 560
	wireCost       = 660
	rivalCost      = 2900 // more for a claim that may be in conflict with another one
	poolCost       = 1400
	rangeCost      = 80
	allocationCost = 1200 // with a finding
	statusCost     = 6    // for each byte of the message
)

const (
	// budgetOverhead is what the aggregator takes while no node reports.
	budgetOverhead = 32 << 20
	// leastBudget is the smallest budget, whatever the limit.
	leastBudget = 8 << 20
	// refillEvery is how often it is looked whether an incomplete node has room now.
	refillEvery = 5 * time.Second
	// firstRefill and lastRefill are how long an incomplete node waits for another
	// snapshot: twice as long each time that there was no room for all of it.
	firstRefill, lastRefill = 5 * time.Second, 10 * time.Minute
)

// budget is the memory for what agents report, and how much of it is charged. It is
// behind the store's mu.
type budget struct {
	limit int64 // 0 for none
	used  int64 // by all accounts, and by common
	// common is charged to no node: it is what the Kubernetes API says.
	common int64
	// accounts counts those that have something charged.
	accounts int64
}

// account is what is charged to one node, or to all nodes that one credential vouches
// for: more boot ids do not make its share larger.
type account struct{ used int64 }

// leftOut counts the records of a node that there was no memory for since its last
// snapshot: what its kernels and IPAM say, and what the wire shows.
type leftOut struct{ records, wire int }

// refill is when an incomplete node is asked for a snapshot again.
type refill struct {
	at      verdict.Stamp
	backoff time.Duration
}

// newBudget is the budget of an aggregator that may use so many bytes of memory; 0 for
// any number. Half of them are for what agents report: the garbage collector, clients,
// snapshots on their way and the mirror of the Kubernetes API take the rest.
func newBudget(memory int64) budget {
	if memory <= 0 {
		return budget{}
	}
	return budget{limit: max(leastBudget, (memory-budgetOverhead)/2)}
}

// share is what an account may use however much others do.
func (b *budget) share(of *account) int64 {
	accounts := b.accounts
	if of.used == 0 {
		accounts++
	}
	return (b.limit - b.common) / accounts
}

// evictAtOnce is how many bytes at least are freed when a node is cut to its share: to
// look for them means to walk its tables.
func (b *budget) evictAtOnce() int64 { return b.limit / 128 }

// high is up to where an account may use more than its share.
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

// charge charges a node, or nobody where n is nil, with what one of its records costs
// now; has is what it was charged before. 0 gives it back, which is never refused.
// Where there is no room it changes nothing and gives false. Records that come first
// take the place of the node's own claims of the wire.
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

// makeRoom tells whether there is room for so many bytes more of a node: it is made
// where the node is within its share, at the expense of those that are not.
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

// mostOverShare is the node of the account that is the furthest over its share; nil
// where none is.
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

// mostWire is a node, or where it has no claims of the wire, the one of its account that
// has the most.
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

// evict takes records of a node out, until so many bytes are free: claims of the wire
// for addresses that nobody else knows, then others of the wire, then, unless only
// those may go, what kernels and IPAM say. It tells whether anything is free now.
func (s *store) evict(n *node, bytes int64, wireOnly bool) bool {
	before := n.used
	enough := func() bool { return before-n.used >= bytes }
	// From the end: what is taken out is replaced by the last one of its list.
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

// stranger tells whether a claim of the wire is for an address that is known by frames
// of its sender only, and that nobody disputes.
func (h *holding) stranger() bool {
	e := h.entry
	return h.mac != nil && e.dispute == nil && e.booking == nil && e.holdings[0].mac != nil
}

// rival tells whether a claim may be in conflict with another one of its address: that
// takes more memory.
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

// claimCost is what a claim costs; others is the entry that it comes to, nil for a new one.
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

// changedCost is what a claim costs that is known, when it names another network or
// link: a link that only it names goes with it.
func changedCost(n *node, h *holding, rec *pb.ClaimRecord) int {
	cost := int(h.cost) + textCost(rec.GetNetwork()) - textCost(h.Network)
	if name := rec.GetLink(); h.mac != nil && name != "" && n.links.get(name) == nil {
		cost += linkCost + textCost(name)
	}
	return cost
}

// textCost is what texts cost: their bytes, in blocks of the allocator.
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

// accountOfName is the account of all nodes that one credential vouches for; nil where
// there is none yet.
func (s *store) accountOfName(vouched string) *account {
	for n := s.called.get(vouched); vouched != "" && n != nil; n = n.alsoCalled {
		if n.id.vouched == vouched {
			return n.account
		}
	}
	return nil
}

// open charges a node with its connection, or refuses it. One that was booted is let
// in whatever there is of it from before: that is given up because it comes.
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

// settleUp gives back all that a node is charged with, when its tables are dropped.
func (s *store) settleUp(n *node) {
	s.budget.add(n.account, -n.used)
	n.used, n.cost, n.statusCost, n.leftOut = 0, 0, 0, leftOut{}
}

// refuse counts a record that there was no memory for. The log says so once.
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
		if !n.rec.Unheard { // else it is known with the rest
			s.publishNode(n)
		}
	}
}

// incomplete tells whether some of what a node reports is left out.
func (n *node) incomplete() bool { return n.leftOut != leftOut{} || n.excess > 0 }

// blind tells whether a node may have addresses that are not known: that nobody holds
// one says nothing then.
func (n *node) blind() bool { return n.status.GetBlind() || n.leftOut.records > 0 }

// memoryProblem is what is said of a node that is incomplete for want of memory.
func (s *store) memoryProblem(n *node) []string {
	if n.leftOut == (leftOut{}) {
		return nil
	}
	return []string{fmt.Sprintf(
		"the aggregator has no memory for all that this node reports: %d records of its kernel and IPAM and %d sightings on the wire are left out, "+
			"so that duplicates of them are not seen. The node uses %d MiB of the %d MiB that all nodes share: "+
			"find out why it reports so much (a port that floods, interfaces that are not to be watched), or give the aggregator more memory",
		n.leftOut.records, n.leftOut.wire, n.used>>20, s.budget.limit>>20)}
}

// completed notes that a snapshot was taken, and how much of it was left out.
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

// refillNodes asks nodes for what was left out, once there is room, until ctx ends.
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

// refillOne asks one node for a snapshot: of those for which there is room, the one
// that uses the least.
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
