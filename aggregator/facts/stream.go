package facts

import (
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ForgetNodeAfter is how long a node that timed out remains listed.
const ForgetNodeAfter = 24 * time.Hour

// Connect attaches a stream to its node. It ends an older stream of the same agent that is half
// open, and refuses an agent that is older than the current one.
func (f *Facts) Connect(p Peer, hello *pb.Hello, vouched string) (n *Node, b *Batch, err error) {
	b = newBatch()
	f.piece(b, func() { n, err = f.connect(p, hello, NodeID{hello.GetBootId(), hello.GetNetns(), vouched}) })
	f.close(b)
	return n, b, err
}

func (f *Facts) connect(p Peer, hello *pb.Hello, id NodeID) (*Node, error) {
	n := f.byID[id]
	if n == nil {
		if err := f.mayBeOneMore(id); err != nil {
			return nil, err
		}
		n = newNode(id)
		n.Rec.VIPProgram = f.programs[id.Place()]
		if of := f.accountOfName(id.Vouched); of != nil {
			n.account = of
		}
	}
	if n.cost == 0 {
		if err := f.chargeConnection(n); err != nil {
			return nil, err
		}
	}
	if f.byID[id] == nil {
		f.add(n)
	}
	if old := n.Peer; old != nil {
		if hello.GetEpoch() < n.Rec.Epoch {
			return nil, status.Errorf(codes.FailedPrecondition,
				"a newer agent already reports for node %s: run only one agent per network namespace", n.Rec.Name)
		}
		old.End(status.Errorf(codes.Aborted, "replaced by another connection of the agent of node %s", n.Rec.Name))
	}
	for _, p := range n.Pools {
		p.former = p.former || hello.GetEpoch() != n.Rec.Epoch
	}
	n.former = n.former || n.hasRecords() && hello.GetEpoch() != n.Rec.Epoch
	now := f.now()
	n.Peer = p
	n.Rec.Epoch = hello.GetEpoch()
	n.Version, n.Kernel = hello.GetVersion(), hello.GetKernel()
	n.ConnectedAt, n.LastHeard = now, now
	if n.Name != hello.GetNode() {
		unlist1(f.called, n.Name, n)
		n.Name = hello.GetNode()
		list1(f.called, n.Name, n)
		f.label(n)
	}
	if n.Rec.Unheard && n.due == 0 {
		f.arm(n, now.Add(f.Policy.NodeTimeout)) // in case it never sends a snapshot
	}
	return n, nil
}

// mayBeOneMore returns an error for an agent that has reported too many nodes, which would use up
// the memory of all.
func (f *Facts) mayBeOneMore(id NodeID) error {
	if len(f.byID) >= maxNodes {
		return status.Errorf(codes.ResourceExhausted, "the limit of %d nodes is reached", maxNodes)
	}
	same := 0
	for _, other := range f.called[id.Vouched] { // none without a credential, because each agent reports a name
		if other.ID.Vouched == id.Vouched && (other.Peer != nil || !other.Rec.TimedOut) {
			same++
		}
	}
	if same >= maxOfOneName {
		return status.Errorf(codes.ResourceExhausted, "node %s has connected with %d different boot IDs or network namespaces: wait until some of them time out (--node-timeout)", id.Vouched, same)
	}
	return nil
}

// Disconnect detaches a stream that has ended from its node. shared reports whether another node
// had the same name while both were connected.
func (f *Facts) Disconnect(p Peer, n *Node, shared func(*Node) bool) []*Batch {
	batches, rebooted := f.disconnect(p, n, shared)
	if rebooted {
		batches = append(batches, f.giveUp([]*Node{n}, true))
	}
	return batches
}

// disconnect detaches a stream. It also reports whether the machine of the node rebooted.
func (f *Facts) disconnect(p Peer, n *Node, shared func(*Node) bool) (batches []*Batch, rebooted bool) {
	n.writer.Lock()
	defer n.writer.Unlock()
	b, over := newBatch(), false
	var left []*Node // the node, if it has records
	f.piece(b, func() {
		if over = n.Peer != p; over {
			return
		}
		n.Peer = nil
		f.coverageChanged() // its report is no longer awaited
		if over = n.Rec.TimedOut; !over {
			return
		}
		if n.hasRecords() { // an incomplete snapshot was applied
			left = []*Node{n}
		} else {
			f.releaseAll(n)
			f.arm(n, f.now().Add(ForgetNodeAfter))
		}
	})
	if over {
		f.close(b)
		return []*Batch{f.forget(b, left)}, false
	}
	f.touchPieces(b, n)
	f.piece(b, func() {
		if n.Peer != nil {
			return // another stream has connected in the meantime
		}
		if !n.Rec.Unheard {
			n.Rec.Unheard, n.Shared = true, shared(n)
			f.publishPlace(n)
			f.changes.name(n)
		}
		// A node that reconnects without sending a snapshot does not extend its timeout.
		f.arm(n, f.now().Add(f.Policy.NodeTimeout))
		for _, other := range f.called[n.Name] {
			rebooted = rebooted || other.Peer != nil && !other.Rec.Unheard && n.rebootedAs(other)
		}
	})
	f.close(b)
	return []*Batch{b}, rebooted
}

// Ring runs the work on nodes and links that is due, and returns when to call it again; 0 for
// never.
func (f *Facts) Ring() verdict.Stamp {
	var due, former []*Node
	b := newBatch()
	f.piece(b, func() {
		now := f.now()
		f.next, f.ringing = 0, true
		for n := range f.Nodes {
			if n.formerUntil != 0 && n.formerUntil <= now {
				former = append(former, n)
			} else {
				f.next = soonest(f.next, n.formerUntil)
			}
			switch {
			case n.due == 0:
			case n.due <= now:
				n.due = 0
				due = append(due, n)
			default:
				f.next = soonest(f.next, n.due)
			}
		}
		if at := f.topology.Due(); at != 0 && at <= now {
			f.topology.Rotate(now)
		}
	})
	f.close(b)
	f.timeOut(due)
	for _, n := range former {
		f.dropFormer(n)
	}
	f.Update(func() { f.ringing = false })
	for _, q := range f.queues {
		q.stir()
	}
	f.RLock()
	defer f.RUnlock()
	return soonest(f.next, f.topology.Due())
}

// Overdue reports whether work on nodes or links is due or running. Judgements that are due must
// wait for it. The caller holds the lock.
func (f *Facts) Overdue(now verdict.Stamp) bool {
	at := f.topology.Due()
	return f.ringing || f.next != 0 && f.next <= now || at != 0 && at <= now
}

// heard marks a node as connected once its snapshot is complete. All of its addresses must have
// been touched.
func (f *Facts) heard(n *Node) {
	n.due = 0
	if !n.Rec.Unheard {
		return
	}
	n.Rec.Unheard, n.Rec.TimedOut, n.Rec.Rebooted, n.JudgedAt = false, false, false, 0
	f.changes.name(n)
	for ns := range n.namespaces.all {
		f.changes.lacking(n, n.namespaces.at(ns).record)
	}
	f.publishPlace(n)
}

// publishPlace publishes whether a node is connected. It does so for disconnected nodes with the
// same boot ID and network namespace, too, because their state depends on it.
func (f *Facts) publishPlace(n *Node) {
	for _, other := range f.places[n.ID.Place()] {
		if other == n || !other.Rec.Unheard {
			f.changes.node(other)
		}
	}
}

// A Snapshot is the complete state of a node.
type Snapshot struct {
	// Messages are the messages of the snapshot, which may be read twice. Those with namespaces, links and interfaces
	// must come before those with wire claims.
	Messages iter.Seq[*pb.ReportRequest]
	// Excess is the number of wire claims above the limit. LeftOut counts the records that did not
	// fit into memory.
	Excess  int
	LeftOut LeftOut
	// Corrections is the number of corrected strings by field.
	Corrections map[string]int
	// Checked returns the addresses of a check that the agent has answered.
	Checked func(id uint64) []index.Address
}

// Snapshot replaces all records of a node at once by those of the snapshot. done is called with the
// lock held as soon as the messages have been applied.
func (f *Facts) Snapshot(p Peer, n *Node, in *Snapshot, done func()) ([]*Batch, error) {
	b, old, err := f.snapshot(p, n, in, done)
	batches := []*Batch{b}
	if len(old) > 0 {
		batches = append(batches, f.forgetRebooted(b, old))
	}
	return batches, err
}

// rebooted returns the nodes that may be the same machine as a node before a reboot; markOver skips
// those that are connected.
func (f *Facts) rebooted(n *Node) (old []*Node) {
	f.RLock()
	defer f.RUnlock()
	for _, other := range f.called[n.Name] {
		if other.rebootedAs(n) {
			old = append(old, other)
		}
	}
	return old
}

// snapshot also returns the nodes that are the same machine before a reboot. Their records end in
// the same step; otherwise they would be duplicates of the new ones.
func (f *Facts) snapshot(p Peer, n *Node, in *Snapshot, done func()) (b *Batch, old []*Node, err error) {
	n.writer.Lock()
	defer n.writer.Unlock()
	b = newBatch()
	b.listed = true
	defer f.close(b)
	defer f.piece(b, func() { n.Applying = false })
	a := applying{facts: f, node: n, peer: p, batch: b, snapshot: true}
	returned := false
	a.do(func() {
		n.LastHeard, f.changes.Answered = a.now, n
		a.step = n.Rec.ClockStep - n.stepped
		n.sweep++
		n.Applying = true
		n.Excess, n.LeftOut = 0, in.LeftOut
		f.dropBeliefs(n)                           // those in the snapshot replace them
		returned = n.Rec.Unheard && n.hasRecords() // new records are touched in any case
	})
	if n.former {
		a.remember()
		var namespaces []*pb.NamespaceRecord // of all messages: any of them may have the number of any other
		for m := range in.Messages {
			namespaces = append(namespaces, m.GetNamespaces()...)
		}
		a.do(func() { f.renumber(n, namespaces) })
	}
	a.correct()
	var checked []uint64
	for m := range in.Messages {
		a.apply(m)
		checked = append(checked, m.GetChecked()...)
	}
	a.do(done)
	a.sweepOut()
	if returned {
		f.touchPieces(b, n)
	}
	a.do(func() {
		f.answer(n, checked, in.Checked, a.now)
		corrected := len(n.Corrections) > 0
		n.Corrections = maps.Clone(in.Corrections)
		f.dropExcess(n, in.Excess)
		f.completed(n, corrected)
		if n.former {
			n.former = false
			f.expireFormer(n)
		}
		if n.Rec.Listed == 0 || n.Rec.TimedOut { // frames of the node from before may be in the snapshot
			n.outsideAfter = max(n.outsideAfter, a.now)
		}
		n.Rec.Listed = f.now()
		f.buryDeparted(n)
		f.heard(n)
		f.touchDisputes(n) // the node must be asked to watch them
		n.trim()
	})
	a.dropOutdated()
	if a.err == nil {
		old = f.markOver(b, f.rebooted(n), true)
	}
	return b, old, a.err
}

// Delta applies a message of changes that was received at a time.
func (f *Facts) Delta(p Peer, n *Node, m *pb.ReportRequest, at verdict.Stamp, checked func(id uint64) []index.Address) (*Batch, error) {
	n.writer.Lock()
	defer n.writer.Unlock()
	b := received(at, residence(m))
	defer f.close(b)
	a := applying{facts: f, node: n, peer: p, batch: b}
	tooMany := false
	a.do(func() {
		n.LastHeard, f.changes.Answered = a.now, n
		a.step = n.Rec.ClockStep - n.stepped
		tooMany = n.claims.count-n.wireClaims+kernelClaims(m) > MaxClaims
	})
	if tooMany {
		return b, TooMany("claims", strconv.Itoa(MaxClaims))
	}
	a.correct()
	a.apply(m)
	if len(m.GetChecked()) > 0 {
		a.do(func() { f.answer(n, m.GetChecked(), checked, a.now) })
	}
	return b, a.err
}

// answer handles answers to checks.
func (f *Facts) answer(n *Node, ids []uint64, checked func(id uint64) []index.Address, now verdict.Stamp) {
	for _, id := range ids {
		for _, a := range checked(id) {
			f.readAgain(n, a, now)
		}
	}
}

// readAgain records that a node has read an address again from its kernel.
func (f *Facts) readAgain(n *Node, a index.Address, now verdict.Stamp) {
	for c := range n.same(f.addresses.of(a, n.number)) {
		if one := n.claims.at(c); one.kind == verdict.Assigned {
			f.touch(a)
			h := n.history(one)
			h.mark = now
			n.setHistory(one, h)
		}
	}
}

// leastSkewChange is by how much the skew of a node must change, beyond what measuring it may be wrong by, if its clock
// was set.
const leastSkewChange = time.Second

// A Skew is how far the clock of a node is ahead of ours, give or take Within: a message may take any part of the time
// between a question and its answer, which is long if a process was stopped meanwhile.
type Skew struct{ Ahead, Within time.Duration }

// Heard records that the agent of a node has sent a message, even if the message is applied later or not at all.
// skew is nil if the message does not show it. A call for a stream that was replaced has no effect.
func (f *Facts) Heard(p Peer, n *Node, skew *Skew) {
	f.Update(func() {
		if n.Peer != p {
			return
		}
		if skew != nil {
			f.measured(n, *skew)
		}
		n.LastHeard, f.changes.Answered = f.now(), n
	})
}

// AwaitNodes has conflicts with devices outside of all nodes wait, because these may be nodes that were connected before the start
// and have not reported since: new conflicts until then, and those from before the start until AwaitNodes(0).
func (f *Facts) AwaitNodes(until verdict.Stamp) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaitedUntil = until
}

// measured takes over how far the clock of a node is ahead, unless what is known is more exact and still possible.
func (f *Facts) measured(n *Node, skew Skew) {
	step := skew.Ahead - n.Rec.Skew
	set := step.Abs() > leastSkewChange+skew.Within+n.Rec.SkewWithin
	if n.Rec.SkewKnown && !set && skew.Within > n.Rec.SkewWithin && (step.Abs() <= skew.Within || skew.Within > leastSkewChange/2) {
		return // the next answer may take less time
	}
	if n.Rec.SkewKnown && set {
		n.Rec.ClockSet, n.Rec.ClockStep = f.now().Add(skew.Ahead), n.Rec.ClockStep+step
	}
	n.Rec.Skew, n.Rec.SkewKnown, n.Rec.SkewWithin = skew.Ahead, true, skew.Within
}

// Judged records that everything in the last snapshot of a stream has been judged.
func (f *Facts) Judged(p Peer, n *Node) {
	f.Update(func() {
		if n.Peer == p && n.JudgedAt == 0 {
			n.JudgedAt = f.now()
			f.coverageChanged()
		}
	})
}

// InOnePlace returns the names of the other nodes that report the same boot ID and network
// namespace as a node, sorted; nil if there are none. The caller holds the lock.
func (f *Facts) InOnePlace(n *Node) (others []string) {
	for _, other := range f.At(n.ID.Place()) {
		if other != n && !other.Rec.Unheard && !n.Rec.Unheard {
			others = append(others, other.Rec.Name)
		}
	}
	slices.Sort(others)
	return others
}

// RecordKinds are the kinds of records, as metrics name them.
var RecordKinds = [...]string{"namespace", "link", "interface", "claim", "pool", "allocation", "belief"}
