package aggregator

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// forgetNodeAfter is how long a node that timed out is still listed.
const forgetNodeAfter = 24 * time.Hour

// store is the live state: the nodes' tables, the addresses with what was
// judged of them, and what is due. Everything in it is behind mu, and whoever
// changes a record judges all addresses on it before letting go.
type store struct {
	policy  verdict.Policy
	log     *slog.Logger
	metrics *metrics
	base    time.Time
	wake    chan struct{}
	// complaints are what the log says of streams.
	complaints complaints
	// untidy holds one token after a snapshot.
	untidy chan struct{}

	owners, conflicts *hub
	findings          findings
	archive           archive

	mu    sync.Mutex
	table table
	nodes map[nodeID]*node
	// places has the first of all nodes that say that they are in one place, called of
	// those that call themselves the same, and shown of those that are shown by one name.
	places        chains[nodeID, *node]
	called, shown chains[string, *node]
	// kube is the Kubernetes API; nil where there is none to ask.
	kube     *kube.Cluster
	pools    pools
	coverage coverage
	seen     seen
	// alone is set if no agent is expected but the one in this process.
	alone    bool
	overlaps overlaps
	// pods has the first of all namespaces with one pod, by podKey.
	pods chains[verdict.Packed, *namespace]
	// sandboxes has the first of all namespaces with one container id.
	sandboxes chains[verdict.Packed, *namespace]
	// macs are those that several nodes may meet.
	macs map[verdict.MAC]*abroad
	topology
	tombstones
	alarms   alarms
	byID     map[string]*entry
	resolved []ended
	// acknowledged has active conflicts only, by id.
	acknowledged map[string]*acknowledgement
	contested    map[*entry]struct{}
	clones       map[cloneKey]*clone
	// hidden are the clones that no claim may show any more.
	hidden []cloneKey

	// Of the change under way.
	touched  []*entry
	checks   map[*node][]netip.Addr
	lent     verdict.Case // what caseOf lends
	sweeping bool
	// reach are ranges of which some pool says something new, looked the pools of
	// which something changed.
	reach  []verdict.Range
	looked []*pool
	texts  map[string]string

	budget     budget
	ownerCount [verdict.NetworkScope + 1]int
}

func newStore(policy verdict.Policy, log *slog.Logger, m *metrics) *store {
	base := time.Now()
	s := &store{
		policy: policy, log: log, metrics: m, base: base,
		wake:         make(chan struct{}, 1),
		untidy:       make(chan struct{}, 1),
		owners:       newHub(base.UnixNano()),
		conflicts:    newHub(base.UnixNano()),
		nodes:        make(map[nodeID]*node),
		places:       newChains(func(n *node) nodeID { return n.id.place() }, func(n *node) **node { return &n.alike }),
		called:       newChains(func(n *node) string { return n.name }, func(n *node) **node { return &n.alsoCalled }),
		shown:        newChains(func(n *node) string { return n.rec.Name }, func(n *node) **node { return &n.alsoShown }),
		pods:         newChains(func(ns *namespace) verdict.Packed { return podKey(ns.rec) }, func(ns *namespace) **namespace { return &ns.alike }),
		sandboxes:    newChains(func(ns *namespace) verdict.Packed { return ns.rec.Who.ContainerID() }, func(ns *namespace) **namespace { return &ns.together }),
		macs:         make(map[verdict.MAC]*abroad),
		table:        newTable(),
		pools:        newPools(),
		topology:     newTopology(),
		tombstones:   tombstones{tombs: make(map[tombstone]death)},
		byID:         make(map[string]*entry),
		acknowledged: make(map[string]*acknowledgement),
		contested:    make(map[*entry]struct{}),
		clones:       make(map[cloneKey]*clone),
		texts:        make(map[string]string),
		checks:       make(map[*node][]netip.Addr),
	}
	s.findings = newFindings(base.UnixNano(), s.clock)
	s.archive = newArchive(&dataDir{}, nil)
	return s
}

// clock is the wall clock of the start, carried on by the monotonic clock: it
// never jumps, whatever is done to the wall clock.
func (s *store) clock() verdict.Stamp {
	return verdict.At(s.base).Add(time.Since(s.base))
}

// connect makes a session the one that reports for its node. An older one that
// is half open is ended; an older agent is refused.
func (s *store) connect(r *session, hello *pb.Hello) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := nodeID{hello.GetBootId(), hello.GetNetns(), r.caller.Vouched(hello.GetNode())}
	n := s.nodes[id]
	if n == nil {
		if err := s.mayBeOneMore(id); err != nil {
			return err
		}
		n = newNode(id)
		if of := s.accountOfName(id.vouched); of != nil {
			n.account = of
		}
	}
	if n.cost == 0 {
		if err := s.open(n); err != nil {
			return err
		}
	}
	if s.nodes[id] == nil {
		s.addNode(n)
	}
	if old := n.session; old != nil {
		if hello.GetEpoch() < n.rec.Epoch {
			return status.Errorf(codes.FailedPrecondition,
				"a newer agent already reports for node %s: stop one of the two, there must be one agent in a network namespace", n.rec.Name)
		}
		old.end(status.Errorf(codes.Aborted, "another connection of the agent of node %s took over", n.rec.Name))
		s.untell(n)
	}
	now := s.clock()
	base := len(s.touched)
	n.session, r.node = r, n
	n.rec.Epoch = hello.GetEpoch()
	n.version, n.kernel = hello.GetVersion(), hello.GetKernel()
	n.connectedAt, n.lastHeard = now, now
	if n.name != hello.GetNode() {
		s.called.leave(n)
		n.name = hello.GetNode()
		s.called.enter(n)
		s.label(n)
	}
	if n.rec.Unheard && !n.alarm.set() {
		s.arm(n, now.Add(s.policy.NodeTimeout)) // it may never send a snapshot
	}
	s.judgeTouched(base, received{}) // what has another name now
	return nil
}

// addNode and dropNode take a node in, and out again.
func (s *store) addNode(n *node) {
	s.coverageChanged()
	s.nodes[n.id] = n
	s.places.enter(n)
	s.called.enter(n)
	s.shown.enter(n)
}

func (s *store) dropNode(n *node) {
	s.coverageChanged()
	delete(s.nodes, n.id)
	s.places.leave(n)
	s.called.leave(n)
	s.shown.leave(n)
}

// mayBeOneMore refuses an agent that says it is on very many nodes: it would take the
// memory of all.
func (s *store) mayBeOneMore(id nodeID) error {
	if len(s.nodes) >= maxNodes {
		return status.Errorf(codes.ResourceExhausted, "there are %d nodes already: no more are taken", maxNodes)
	}
	if id.vouched == "" {
		return nil
	}
	same := 0
	for other := s.called.get(id.vouched); other != nil; other = other.alsoCalled {
		if other.id.vouched == id.vouched && (other.session != nil || !other.rec.TimedOut) {
			same++
		}
	}
	if same >= maxOfOneName {
		return status.Errorf(codes.ResourceExhausted, "node %s has come with %d boot ids or network namespaces: more are not taken until those are given up, see --node-timeout", id.vouched, same)
	}
	return nil
}

// label gives a node the name that its agent calls itself. Of two with one name
// one has more to it: the one that is silent (a node that was booted anew is
// another node, with the same name), or else the one with the later identity, so
// that each has the same name after every restart.
func (s *store) label(n *node) {
	before, name := n.rec.Name, n.name
	// No two have one name for a moment: findings are known by it.
	for _, other := range s.shownAs(n.name) {
		switch {
		case other == n:
		case other.session == nil || n.id.compare(other.id) < 0:
			s.rename(other, s.longName(other))
			s.touchNode(other)
			s.publishNode(other)
		default:
			name = s.longName(n)
		}
	}
	s.rename(n, name)
	if before != "" && before != n.rec.Name {
		s.touchNode(n)
		s.publishNode(n)
	}
	s.checkNames(n)
}

// rename gives a node another name, by which findings about its pools are known.
func (s *store) rename(n *node, name string) {
	if n.rec.Name == name {
		return
	}
	for _, p := range n.pools {
		s.dropPoolFindings(p)
		s.lookAt(p)
	}
	s.overlapped(n)
	s.shown.leave(n)
	n.rec.Name = name
	s.shown.enter(n)
	for l := range n.links.all() { // links are in order of the names of their nodes
		for y := range layers {
			if d := l.domain(y); d != nil {
				s.nameDomain(d)
				s.touchDomain(d)
			}
		}
	}
}

// shownAs are all nodes that are shown by a name.
func (s *store) shownAs(name string) (nodes []*node) {
	for n := s.shown.get(name); n != nil; n = n.alsoShown {
		nodes = append(nodes, n)
	}
	return nodes
}

func (id nodeID) compare(other nodeID) int {
	return cmp.Or(strings.Compare(id.boot, other.boot), strings.Compare(id.netns, other.netns), strings.Compare(id.vouched, other.vouched))
}

// unlabel gives the name of a node that is given up to one that is heard from and
// had to have a longer one.
func (s *store) unlabel(n *node) {
	if n.rec.Name != n.name {
		return
	}
	for other := s.called.get(n.name); other != nil; other = other.alsoCalled {
		if other != n && !other.rec.Unheard {
			s.rename(n, s.longName(n))
			s.rename(other, other.name)
			s.touchNode(other)
			s.publishNode(other)
			s.checkNames(other)
			return
		}
	}
}

// longName is a node's name with as much of its identity as it takes.
func (s *store) longName(n *node) string {
	name := n.name + "@" + n.id.boot[:min(len(n.id.boot), 8)]
	for other := s.shown.get(name); other != nil; other = other.alsoShown {
		if other != n {
			return name + "." + n.id.netns
		}
	}
	return name
}

// disconnect tells that a session is over: its node is not heard from any more.
func (s *store) disconnect(r *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.letGo(r)
	n := r.node
	if n == nil || n.session != r {
		return
	}
	n.session = nil
	s.untell(n)
	if n.rec.TimedOut { // it came without a snapshot
		s.settleUp(n)
		s.arm(n, s.clock().Add(forgetNodeAfter))
		return
	}
	if !n.rec.Unheard {
		n.rec.Unheard, n.shared = true, s.findings.found[n]
		s.publishPlace(n)
		s.checkNames(n)
	}
	// One that came without a snapshot has no more time than it had.
	s.arm(n, s.clock().Add(s.policy.NodeTimeout))
	base := len(s.touched)
	s.touchNode(n)
	for other := s.called.get(n.name); other != nil; other = other.alsoCalled {
		if other.session != nil && !other.rec.Unheard && n.bootedAs(other) {
			s.booted(n)
			break
		}
	}
	s.judgeTouched(base, received{})
}

// bootedAs tells whether a node is what a silent one of its name became when its
// machine was booted: it has a hardware address of an uplink, and another boot id.
func (n *node) bootedAs(now *node) bool {
	if n == now || n.shared || n.id.boot == now.id.boot {
		return false
	}
	old := n.uplinks() // of a clone, they are the same, too
	return slices.ContainsFunc(now.uplinks(), func(mac verdict.MAC) bool { return slices.Contains(old, mac) })
}

// uplinks are the hardware addresses of a node's uplinks, but for those that
// several may have by design.
func (n *node) uplinks() (macs []verdict.MAC) {
	own := n.namespaces.get(verdict.OwnRecord)
	if own == nil {
		return nil
	}
	for _, i := range own.ifaces {
		if i.rec.Uplink && i.rec.MAC != "" && !i.rec.MAC.Shared() {
			macs = append(macs, i.rec.MAC)
		}
	}
	return macs
}

// booted ends all that nodes had before their machine was booted: no network
// namespace outlives that.
func (s *store) booted(nodes ...*node) {
	for _, n := range nodes {
		n.rec.Rebooted = true
	}
	s.giveUp(nodes)
}

// touchNode has the addresses judged again that a node has claims or allocations of.
func (s *store) touchNode(n *node) {
	for i := range n.interfaces.all() {
		s.touchAll(i.holdings)
	}
	for _, p := range n.pools {
		for e := range p.entries.all() {
			s.touch(e)
		}
	}
}

// untell forgets what a node was told to look at: its next session starts anew.
func (s *store) untell(n *node) {
	for e := range s.contested {
		delete(e.dispute.told, n)
	}
}

// timeOut ends the owners of nodes that were not heard from for too long, and
// forgets the nodes themselves a day later.
func (s *store) timeOut(nodes []*node) {
	var over []*node
	for _, n := range nodes {
		switch {
		case !n.rec.Unheard:
		case !n.rec.TimedOut:
			over = append(over, n)
		case n.session == nil:
			s.settleUp(n)
			s.dropNode(n)
		}
	}
	s.giveUp(over)
}

// giveUp ends all that nodes were known to have. That of all of them ends before anything of it
// is forgotten, so that it does not matter in which order the nodes come.
func (s *store) giveUp(nodes []*node) {
	var over []*holding
	for _, n := range nodes {
		n.rec.TimedOut = true
		for i := range n.interfaces.all() {
			over = append(over, i.holdings...)
		}
	}
	for _, h := range over { // once with the reason, then without the claims
		s.judge(h.entry, received{})
	}
	for _, h := range over {
		n := s.nodeOf(h)
		if n.rec.Rebooted && h.Interface.Namespace.Record != verdict.OwnRecord {
			s.end(n, h) // with what others saw of it, which the machine still is for its own
			continue
		}
		s.unlist(n, h)
		s.touch(h.entry)
	}
	for _, n := range nodes {
		s.emptyNode(n)
	}
}

// emptyNode forgets all records of a node but its claims, which have ended.
func (s *store) emptyNode(n *node) {
	for l := range n.links.all() { // first, as what is left of a domain may be the node's own
		s.leaveDomains(l)
	}
	for i := range n.interfaces.all() {
		s.unlistHardware(n, i)
	}
	for ns := range n.namespaces.all() {
		s.unlistPod(ns)
		s.endLacks(ns)
	}
	s.endPools(n)
	n.reset()
	s.settleUp(n)
	s.unlabel(n)
	s.publishNode(n)
	s.disarm(n)
	s.arm(n, s.clock().Add(forgetNodeAfter))
}

// heard marks a node whose snapshot is complete.
func (s *store) heard(n *node) {
	s.disarm(n)
	if !n.rec.Unheard {
		return
	}
	n.rec.Unheard, n.rec.TimedOut, n.rec.Rebooted = false, false, false
	s.checkNames(n)
	s.touchNode(n)
	for ns := range n.namespaces.all() {
		s.lack(ns)
	}
	s.publishPlace(n)
}

// publishPlace makes it known of a node whether it is heard from, with what that says of
// those that say that they are in its place.
func (s *store) publishPlace(n *node) {
	for other := s.places.get(n.id.place()); other != nil; other = other.alike {
		if other == n || !other.rec.Unheard {
			s.publishNode(other)
		}
	}
}

// publishNode makes the state of a node known in all watches.
func (s *store) publishNode(n *node) {
	s.coverageChanged()
	e := event{typ: nodeChanged, node: s.nodeProto(n)}
	if s.owners.heard(s.clock()) {
		s.owners.publish(e)
	}
	s.conflicts.publish(e)
}

// snapshot replaces all records of a node in one step by the messages that the session has kept
// and the last ones.
func (s *store) snapshot(r *session, last []*pb.ReportRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := r.node
	if n.session != r {
		return errTakenOver
	}
	now := s.clock()
	s.answered(n)
	n.sweep++
	base := len(s.touched)
	n.excess, n.leftOut = 0, r.pending.leftOut
	var checked []uint64
	for m := range r.pending.all(last) {
		s.apply(n, m, now, true)
		checked = append(checked, m.GetChecked()...)
	}
	s.letGo(r)
	s.sweeping = true
	s.sweepOut(n)
	s.sweeping = false
	s.answer(r, checked, now)
	n.corrected = nil
	s.dropExcess(n, r.excess)
	s.tellCorrected(n, r.corrected)
	s.completed(n)
	s.heard(n)
	var before []*node
	for old := s.called.get(n.name); old != nil; old = old.alsoCalled {
		if old.rec.Unheard && !old.rec.TimedOut && old.session == nil && old.bootedAs(n) {
			before = append(before, old)
		}
	}
	s.booted(before...)
	s.judgeTouched(base, received{})
	s.tellAll(n)
	select {
	case s.untidy <- struct{}{}:
	default:
	}
	if n.session != r {
		return errTakenOver
	}
	return nil
}

// tidyAfter is how long no snapshot came when what they left behind is given back.
const tidyAfter = 5 * time.Second

// tidy gives the memory back that snapshots took while they were under way, until
// ctx ends: the runtime would keep it for minutes, and a restart of many agents
// leaves more of it than what is known of them.
func (s *store) tidy(ctx context.Context) {
	quiet := time.NewTimer(tidyAfter)
	quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.untidy:
			quiet.Reset(tidyAfter)
		case <-quiet.C:
			debug.FreeOSMemory()
		}
	}
}

// tellAll tells a node that came back what is contested of its addresses.
func (s *store) tellAll(n *node) {
	for e := range s.contested {
		if slices.ContainsFunc(e.holdings, func(h *holding) bool { return h.port.namespace.rec.Node == n.rec }) {
			s.contest(e, true)
		}
	}
}

// delta applies one message of changes.
func (s *store) delta(r *session, m *pb.ReportRequest, at verdict.Stamp) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := r.node
	if n.session != r {
		return errTakenOver
	}
	now := s.clock()
	s.answered(n)
	base := len(s.touched)
	if n.claims-n.wireClaims+kernelClaims(m) > maxClaims {
		return tooMany("claims", strconv.Itoa(maxClaims))
	}
	s.tellCorrected(n, r.corrected)
	residence := s.apply(n, m, now, false)
	s.answer(r, m.GetChecked(), now)
	s.judgeTouched(base, received{at: at, residence: residence})
	return nil
}

// answer takes the answers to checks.
func (s *store) answer(r *session, checked []uint64, now verdict.Stamp) {
	for _, id := range checked {
		for _, a := range r.checked(id) {
			s.readAgain(r.node, a, now)
		}
	}
}

// readAgain tells that a node has read an address again from its kernel.
func (s *store) readAgain(n *node, a netip.Addr, now verdict.Stamp) {
	e := s.table.get(a)
	if e == nil {
		return
	}
	for _, h := range e.holdings {
		if h.Kind == verdict.Assigned && h.Node() == n.rec {
			h.Read = now
			s.touch(e)
		}
	}
}
