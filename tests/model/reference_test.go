package model_test

import (
	"cmp"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// The fixed times of the aggregator.
const (
	forgetNodeAfter = 24 * time.Hour
	keepResolvedFor = 24 * time.Hour
	snapshotWithin  = time.Minute
	lateWithin      = 100 * time.Millisecond
	pingEvery       = 3 * time.Second
	silentAfter     = 10 * time.Second
)

// A reference keeps the reports of agents in plain lists and maps, and judges every address again
// after each change. It shares only the rules of verdict with the aggregator.
type reference struct {
	policy   verdict.Policy
	now      verdict.Stamp
	nodes    []*node // in the order in which they first connected
	sessions map[*session]bool
	memory   map[netip.Addr]*memory
	// twins are the IDs of findings about one MAC in several namespaces, which the reference does not make.
	twins map[string]bool
	// tombstones are the addresses that holders have released, with their MACs.
	tombstones map[tomb]death
	// formerMACs has the interfaces that had a MAC before.
	formerMACs map[verdict.MAC]formerMAC
	// since is the time since when each finding has been reported.
	since map[string]verdict.Stamp
	// checks are the claims that their nodes are asked to read again.
	checks []*claim
	// changed is the time of the last change, stirred that of the last one that was not a judgement that was due.
	changed, stirred verdict.Stamp
	lan              lan
}

// A memory is the state that a judgement of an address passes on to the next one.
type memory struct {
	owners      []verdict.Owner
	claims      map[string][]*claim // claims of the owners, by ID
	conflicts   []verdict.Conflict
	allocations []*allocation
	vanished    []*verdict.Allocation
	past        []verdict.Past
	found       []verdict.Finding
	clones      []verdict.Spoof
	again       verdict.Stamp
}

type formerMAC struct {
	node             *node
	namespace, index uint32
	until            verdict.Stamp
}

type tomb struct {
	addr netip.Addr
	mac  verdict.MAC
}

type death struct {
	at   verdict.Stamp
	node *node
}

// A session is the aggregator's end of a stream.
type session struct {
	node         *node
	agent        *agent
	inside, lost bool
	parts        []*pb.ReportRequest
	synced, over bool
	start, heard verdict.Stamp
	// asked is the time of a ping that a mute agent does not answer; 0 for none.
	asked verdict.Stamp
	// took is the duration of the last slow answer. It applies until a ping is answered immediately
	// again.
	took      time.Duration
	tookUntil verdict.Stamp
}

// A node is the state that one agent has reported.
type node struct {
	rec        *verdict.Node // Name, Epoch, Unheard, TimedOut, Rebooted
	name       string        // the name that its agent reports
	session    *session
	namespaces map[uint32]*namespace
	links      map[string]*link
	interfaces []*iface
	claims     []*claim
	pools      []*pool
	beliefs    []belief
	blind      bool
	shared     bool // another node had the same name at the same time
	sure       bool // it certainly exists, and so does another node with its name
	due        verdict.Stamp
	sweep      int
	connected  verdict.Stamp
	// former is set if another agent has reported the state, until the snapshot of the present one is complete.
	// formerUntil is when the claims end that only a former agent has reported.
	former      bool
	formerUntil verdict.Stamp
	// outsideAfter is when frames with its MACs that enter it begin to count as those of machines outside.
	outsideAfter verdict.Stamp
}

type namespace struct {
	rec   *verdict.Namespace // never changes
	lacks []verdict.Finding  // findings about missing intended addresses
	sweep int
}

type iface struct {
	node      *node
	namespace *namespace
	rec       verdict.Interface // without Namespace and Link
	link      *link
	sweep     int
}

type claim struct {
	verdict.Claim // without Interface and Link
	node          *node
	addr          netip.Addr
	port          *iface
	link          *link
	sweep         int
	ended         bool
	former        bool // only a former agent has reported it
	continued     bool // its times are those of a former agent
}

type pool struct {
	rec   *verdict.Pool
	node  *node
	sweep int
}

type allocation struct {
	*verdict.Allocation
	pool  *pool
	sweep int
}

func newReference(policy verdict.Policy, now verdict.Stamp) *reference {
	return &reference{
		policy: policy, now: now, sessions: map[*session]bool{}, memory: map[netip.Addr]*memory{}, twins: map[string]bool{}, tombstones: map[tomb]death{}, formerMACs: map[verdict.MAC]formerMAC{},
		since: map[string]verdict.Stamp{}, lan: lan{oneWays: map[[2]*link]*oneWay{}},
	}
}

func (r *reference) of(a netip.Addr) *memory {
	m := r.memory[a]
	if m == nil {
		m = &memory{claims: map[string][]*claim{}}
		r.memory[a] = m
	}
	return m
}

// settled reports whether the aggregator has compared all beliefs since the last change: it does so at intervals of the grace for
// hand-overs, because an interface may get the hardware address of an entry without any change of the address.
func (r *reference) settled() bool {
	return r.now >= r.stirred.Add(3*r.policy.HandoverGrace+2*r.policy.Settle)
}

// quiet reports whether nothing has changed for the delay of late findings.
func (r *reference) quiet() bool { return r.now >= r.changed.Add(lateAfter) }

// receive processes one message.
func (r *reference) receive(s *session, m *pb.ReportRequest) {
	if s.over {
		return
	}
	s.heard, r.stirred = r.now, r.now
	if m.GetHello() != nil && !r.connect(s, m.GetHello()) {
		r.end(s)
		return
	}
	if m.GetSnapshotBegin() {
		s.lost, s.inside, s.parts = false, true, nil
	}
	switch {
	case s.lost:
	case !s.inside:
		r.apply(s.node, m, false)
		r.judge()
	default:
		s.parts = append(s.parts, m)
		if m.GetSnapshotEnd() {
			s.inside, s.synced = false, true
			r.snapshot(s)
		}
	}
}

// connect starts a session. It reports whether the agent is accepted.
func (r *reference) connect(s *session, hello *pb.Hello) bool {
	var n *node
	for _, known := range r.nodes {
		if known.rec.Boot == hello.GetBootId() && known.rec.Netns == hello.GetNetns() {
			n = known
		}
	}
	if n == nil {
		n = &node{rec: &verdict.Node{Boot: hello.GetBootId(), Netns: hello.GetNetns(), Unheard: true}}
		n.reset()
		r.nodes = append(r.nodes, n)
	}
	if n.session != nil {
		if hello.GetEpoch() < n.rec.Epoch {
			return false
		}
		r.end(n.session)
	}
	n.former = n.former || len(n.namespaces)+len(n.links)+len(n.pools) > 0 && hello.GetEpoch() != n.rec.Epoch
	n.session, s.node, n.connected = s, n, r.now
	n.rec.Epoch = hello.GetEpoch()
	if n.name != hello.GetNode() {
		n.name = hello.GetNode()
		r.label(n)
	}
	if n.rec.Unheard && n.due == 0 {
		n.due = r.now.Add(r.policy.NodeTimeout)
	}
	r.judge()
	return true
}

func (n *node) reset() {
	n.namespaces, n.links, n.interfaces, n.claims, n.pools, n.beliefs = map[uint32]*namespace{}, map[string]*link{}, nil, nil, nil, nil
}

// end makes the aggregator end a session.
func (r *reference) end(s *session) {
	s.over = true
	delete(r.sessions, s)
}

// disconnect ends a session.
func (r *reference) disconnect(s *session) {
	r.end(s)
	r.stirred = r.now
	n := s.node
	if n == nil || n.session != s {
		return
	}
	if !n.rec.Unheard {
		n.shared = n.sure
	}
	n.session, n.sure = nil, false
	if n.rec.TimedOut {
		n.arm(r.now.Add(forgetNodeAfter))
		return
	}
	n.rec.Unheard = true
	n.arm(r.now.Add(r.policy.NodeTimeout))
	for _, other := range r.nodes {
		if other.name == n.name && other.session != nil && !other.rec.Unheard && n.bootedAs(other) {
			r.booted(n)
			break
		}
	}
	r.judge()
}

// live reports whether a node is connected.
func (n *node) live() bool { return n.session != nil && !n.rec.Unheard }

// arm sets the node's timer, unless it is due sooner.
func (n *node) arm(at verdict.Stamp) {
	if n.due == 0 || at < n.due {
		n.due = at
	}
}

// longName returns the name of a node with as much of its identity as is necessary.
func (r *reference) longName(n *node) string {
	name := n.name + "@" + n.rec.Boot[:min(len(n.rec.Boot), 8)]
	for _, other := range r.nodes {
		if other != n && other.rec.Name == name {
			return name + "." + n.rec.Netns
		}
	}
	return name
}

// label gives a node the name that its agent reports. Another node with that name gets a longer
// one: the silent node, or else the one with the later identity.
func (r *reference) label(n *node) {
	name := n.name
	for _, other := range r.nodes {
		switch {
		case other == n || other.rec.Name != n.name:
		case other.session == nil || cmp.Or(strings.Compare(n.rec.Boot, other.rec.Boot), strings.Compare(n.rec.Netns, other.rec.Netns)) < 0:
			other.rec.Name = r.longName(other)
		default:
			name = r.longName(n)
		}
	}
	n.rec.Name = name
}

// unlabel gives the name that a node releases to a connected node that had a longer one.
func (r *reference) unlabel(n *node) {
	if n.rec.Name != n.name {
		return
	}
	for _, other := range r.nodes {
		if other != n && other.name == n.name && !other.rec.Unheard {
			n.rec.Name, other.rec.Name = r.longName(n), other.name
			return
		}
	}
}

// uplinks returns the MACs of a node's uplinks, except those that other nodes share by design.
func (n *node) uplinks() (macs []verdict.MAC) {
	for _, i := range n.interfaces {
		if i.namespace.rec.Record == verdict.OwnRecord && i.rec.Uplink && i.rec.MAC != "" && !i.rec.MAC.Shared() {
			macs = append(macs, i.rec.MAC)
		}
	}
	return macs
}

// bootedAs reports whether a silent node has become another one because its machine was rebooted.
func (n *node) bootedAs(now *node) bool {
	if n == now || n.shared || n.rec.Boot == now.rec.Boot {
		return false
	}
	return slices.ContainsFunc(now.uplinks(), func(mac verdict.MAC) bool { return slices.Contains(n.uplinks(), mac) })
}

// booted ends all state that nodes had before the reboot of their machine.
func (r *reference) booted(nodes ...*node) {
	for _, n := range nodes {
		n.rec.Rebooted = true
	}
	r.giveUp(nodes)
}

// timeOut ends the state of nodes that were silent for too long, and forgets the nodes a day later.
func (r *reference) timeOut(nodes []*node) {
	var over []*node
	for _, n := range nodes {
		n.due = 0
		switch {
		case !n.rec.Unheard:
		case !n.rec.TimedOut:
			over = append(over, n)
		case n.session == nil:
			r.nodes = slices.DeleteFunc(r.nodes, func(other *node) bool { return other == n })
		}
	}
	r.giveUp(over)
}

// giveUp ends all known state of nodes.
func (r *reference) giveUp(nodes []*node) {
	var over []*claim
	for _, n := range nodes {
		n.rec.TimedOut = true
		over = append(over, n.claims...)
	}
	r.judgeThose(over)
	for _, c := range over {
		if c.node.rec.Rebooted && c.port.namespace.rec.Record != verdict.OwnRecord {
			r.endClaim(c, false, 0)
		} else {
			r.remove(c)
		}
	}
	for _, n := range nodes {
		for _, name := range slices.Sorted(maps.Keys(n.links)) {
			r.leaveDomains(n.links[name])
		}
		for _, i := range slices.Clone(n.interfaces) {
			r.change(i, func() { n.interfaces = slices.DeleteFunc(n.interfaces, func(other *iface) bool { return other == i }) })
		}
		for _, p := range slices.Clone(n.pools) {
			r.endPool(p)
		}
		maps.DeleteFunc(r.formerMACs, func(_ verdict.MAC, by formerMAC) bool { return by.node == n })
		n.reset()
		r.unlabel(n)
		n.due = r.now.Add(forgetNodeAfter)
	}
}

// snapshot replaces the state of a node.
func (r *reference) snapshot(s *session) {
	n := s.node
	n.sweep++
	n.beliefs = nil // those in the snapshot replace them
	if n.former {
		for _, c := range n.claims {
			if c.Kind == verdict.DADFailed && !c.former {
				c.Read = r.now
			}
			c.former = true
		}
		var namespaces []*pb.NamespaceRecord
		for _, m := range s.parts {
			namespaces = append(namespaces, m.GetNamespaces()...)
		}
		n.renumber(namespaces)
	}
	last := s.parts[len(s.parts)-1]
	var wire []*pb.ReportRequest
	for _, m := range s.parts[:len(s.parts)-1] {
		kernel, frames := split(m.GetClaims())
		r.applyAll(n, m, kernel, true)
		wire = append(wire, &pb.ReportRequest{Claims: frames})
	}
	kernel, frames := split(last.GetClaims())
	r.applyAll(n, last, append(kernel, frames...), true)
	for _, m := range wire {
		r.applyAll(n, m, m.GetClaims(), true)
	}
	s.parts = nil
	r.sweepOut(n)
	n.rec.Unheard = false
	if n.former {
		n.former = false
		r.dropFormer(n)
	}
	n.due = 0
	if n.rec.Listed == 0 || n.rec.TimedOut {
		n.outsideAfter = max(n.outsideAfter, r.now)
	}
	n.rec.TimedOut, n.rec.Rebooted, n.rec.Listed = false, false, r.now
	r.merge()
	for again := true; again; {
		again = false
		w := r.world()
		for _, a := range r.addresses() {
			for _, c := range r.policy.Judge(r.caseOf(w, a)).Expired {
				r.remove(w.of[c])
				again = true
			}
		}
	}
	var before []*node
	for _, old := range r.nodes {
		if old.name == n.name && old.rec.Unheard && !old.rec.TimedOut && old.session == nil && old.bootedAs(n) {
			before = append(before, old)
		}
	}
	r.booted(before...)
	r.judge()
}

func split(claims []*pb.ClaimRecord) (kernel, wire []*pb.ClaimRecord) {
	for _, c := range claims {
		if fromKernel(c) {
			kernel = append(kernel, c)
		} else {
			wire = append(wire, c)
		}
	}
	return kernel, wire
}

// sweepOut ends all state that was not in a snapshot.
func (r *reference) sweepOut(n *node) {
	for _, c := range slices.Clone(n.claims) {
		if c.sweep != n.sweep && !c.outlives() {
			r.endClaim(c, true, 0)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(n.namespaces)) {
		if ns := n.namespaces[id]; ns.sweep != n.sweep {
			r.endNamespace(n, ns, true)
		}
	}
	for _, i := range slices.Clone(n.interfaces) {
		if i.sweep != n.sweep {
			r.endInterface(i, true)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.links)) {
		if l := n.links[name]; l.known && l.sweep != n.sweep {
			r.endLink(l)
		}
	}
	for _, p := range slices.Clone(n.pools) {
		if p.sweep != n.sweep {
			r.endPool(p)
			continue
		}
		for _, m := range r.memory {
			for _, al := range slices.Clone(m.allocations) {
				if al.pool == p && al.sweep != n.sweep {
					m.vanish(al)
				}
			}
		}
	}
}

// apply applies a message with changes.
func (r *reference) apply(n *node, m *pb.ReportRequest, snapshot bool) {
	r.applyAll(n, m, m.GetClaims(), snapshot)
}

// applyAll applies the records of a message, with claims that replace its own.
func (r *reference) applyAll(n *node, m *pb.ReportRequest, claims []*pb.ClaimRecord, snapshot bool) {
	for _, rec := range m.GetNamespaces() {
		r.applyNamespace(n, rec)
	}
	for _, rec := range m.GetLinks() {
		r.applyLink(n, rec)
	}
	for _, rec := range m.GetInterfaces() {
		r.applyInterface(n, rec)
	}
	for _, rec := range claims {
		r.applyClaim(n, rec, snapshot)
	}
	for _, rec := range m.GetPools() {
		r.applyPool(n, rec)
	}
	for _, rec := range m.GetAllocations() {
		r.applyAllocation(n, rec)
	}
	for _, rec := range m.GetBeliefs() {
		r.applyBelief(n, rec)
	}
	if m.GetStatus() != nil {
		n.blind = m.GetStatus().GetBlind()
	}
}

func (r *reference) applyNamespace(n *node, rec *pb.NamespaceRecord) {
	old := n.namespaces[rec.GetId()]
	if rec.GetGone() {
		if old != nil {
			r.endNamespace(n, old, false)
		}
		return
	}
	w := rec.GetWorkload()
	next := &verdict.Namespace{
		Node: n.rec, Record: rec.GetId(), Netns: rec.GetNetns(), Intended: packIntended(rec.GetIntended()),
		Who: verdict.Workload{
			Kind: verdict.WorkloadKind(w.GetKind()), Namespace: w.GetNamespace(), Name: w.GetName(), UID: w.GetUid(), ContainerID: w.GetContainerId(),
			Source: w.GetSource(), VirtualMachine: w.GetVirtualMachine(),
		}.Who(),
	}
	next.ID = verdicttest.NamespaceID(n.rec, next.Record, next.Netns)
	// A namespace whose inode becomes known keeps its identity. With any other change of its ID it
	// is a different one.
	if old != nil && old.rec.ID != next.ID && old.rec.ID != verdicttest.NamespaceID(n.rec, next.Record, "") {
		r.endNamespace(n, old, false)
		old = nil
	}
	switch {
	case old == nil:
		old = &namespace{rec: next}
		n.namespaces[next.Record] = old
	case *old.rec != *next:
		old.rec = next
		for _, i := range n.interfaces {
			if i.namespace == old {
				r.change(i, func() {})
			}
		}
	}
	old.sweep = n.sweep
}

// packIntended packs addresses in the format of verdict.Namespace.
func packIntended(list []*pb.Intended) string {
	var lines []string
	for _, i := range list {
		lines = append(lines, i.GetAddress()+" "+i.GetSource()+" "+i.GetInterface())
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// endNamespace ends a namespace with its interfaces and claims, including claims that entered by
// its port.
func (r *reference) endNamespace(n *node, ns *namespace, sweeping bool) {
	for _, c := range slices.Clone(n.claims) {
		if c.port.namespace == ns {
			r.endClaim(c, sweeping, 0)
		}
	}
	for _, i := range slices.Clone(n.interfaces) {
		if i.namespace == ns {
			r.endInterface(i, sweeping)
		}
	}
	if ns.rec.Record != verdict.OwnRecord {
		for _, c := range slices.Clone(n.claims) {
			if c.wire() && c.port.namespace.rec.Record == verdict.OwnRecord && c.port.rec.Peer == ns.rec.Record {
				r.endClaim(c, sweeping, 0)
			}
		}
	}
	delete(n.namespaces, ns.rec.Record)
}

func (r *reference) applyLink(n *node, rec *pb.LinkRecord) {
	l := n.links[rec.GetName()]
	if rec.GetGone() {
		if l != nil {
			r.endLink(l)
		}
		return
	}
	l = n.link(rec.GetName())
	lost := verdict.Stamp(0)
	if rec.GetNoCarrier() {
		lost = cmp.Or(l.lost, r.now)
	}
	if kind := verdict.LinkKind(rec.GetKind()); l.kind != kind || l.routed != rec.GetRouted() || l.lost != lost {
		r.changeLink(l, func() { l.kind, l.routed, l.lost = kind, rec.GetRouted(), lost })
	}
	l.known, l.sweep = true, n.sweep
}

// link returns a node's link, and creates it if it is unknown.
func (n *node) link(name string) *link {
	if name == "" {
		return nil
	}
	if n.links[name] == nil {
		n.links[name] = &link{node: n, name: name}
	}
	return n.links[name]
}

// endLink ends a link. Its name is kept while the link is used.
func (r *reference) endLink(l *link) {
	l.known = false
	r.leaveDomains(l)
	if l.used() {
		r.changeLink(l, func() { l.kind, l.routed, l.lost = 0, false, 0 })
	}
	r.dropLink(l)
}

// used reports whether a link is used by an interface or a claim.
func (l *link) used() bool {
	return slices.ContainsFunc(l.node.interfaces, func(i *iface) bool { return i.link == l }) ||
		slices.ContainsFunc(l.node.claims, func(c *claim) bool { return c.link == l })
}

// dropLink forgets a link that is not known or has ended, once it is unused.
func (r *reference) dropLink(l *link) {
	if l != nil && !l.known && !l.used() && l.node.links[l.name] == l {
		delete(l.node.links, l.name)
		r.leaveDomains(l)
	}
}

func (n *node) iface(namespace, index uint32) *iface {
	for _, i := range n.interfaces {
		if i.namespace.rec.Record == namespace && i.rec.Index == index {
			return i
		}
	}
	return nil
}

func (r *reference) applyInterface(n *node, rec *pb.InterfaceRecord) {
	i := n.iface(rec.GetNamespace(), rec.GetIndex())
	if rec.GetGone() {
		if i != nil {
			r.endInterface(i, false)
		}
		return
	}
	ns := n.namespaces[rec.GetNamespace()]
	if ns == nil {
		return
	}
	next := verdict.Interface{
		Index: rec.GetIndex(), Name: rec.GetName(), MAC: verdict.MAC(rec.GetMac()), Attachment: verdict.Attachment(rec.GetAttachment()),
		HostInterface: rec.GetHostInterface(), VRF: rec.GetVrf(), Uplink: rec.GetUplink(), Peer: rec.GetPeerNamespace(),
		Tap: rec.GetKind() == "tun", Kind: rec.GetKind(),
		PodDevice: rec.GetAttachment() == pb.InterfaceRecord_OWN && registry.WithPodDevice(rec.GetName()) != nil,
	}
	if i == nil {
		i = &iface{node: n, namespace: ns, rec: verdict.Interface{Index: rec.GetIndex()}}
		n.interfaces = append(n.interfaces, i)
	}
	if l := n.link(rec.GetLink()); i.rec != next || i.link != l {
		if i.link != l || i.rec.MAC != next.MAC || i.rec.Peer != next.Peer {
			r.endFormer(n, func(c *claim) bool { return c.port == i })
		}
		old, uplink := i.link, i.rec.Uplink
		if i.rec.MAC != next.MAC {
			r.giveUpMAC(i)
			if i.meets() {
				r.formerMACs[i.rec.MAC] = formerMAC{n, ns.rec.Record, i.rec.Index, r.now}
			}
		}
		r.change(i, func() { i.rec, i.link = next, l })
		if old != l {
			r.dropLink(old)
		}
		if uplink != next.Uplink {
			for _, c := range n.claims {
				if c.port == i {
					r.lan.sightings = append(r.lan.sightings, c)
				}
			}
		}
	}
	i.sweep = n.sweep
}

// endInterface ends an interface with the claims on it.
func (r *reference) endInterface(i *iface, sweeping bool) {
	n := i.node
	for _, c := range slices.Clone(n.claims) {
		if c.port == i {
			r.endClaim(c, sweeping, 0)
		}
	}
	r.giveUpMAC(i)
	r.change(i, func() { n.interfaces = slices.DeleteFunc(n.interfaces, func(other *iface) bool { return other == i }) })
	r.dropLink(i.link)
}

// giveUpMAC ends the sightings with the MAC of an interface that no other interface of its node has,
// for the addresses that the node has.
func (r *reference) giveUpMAC(i *iface) {
	n, mac := i.node, i.rec.MAC
	if !i.meets() || slices.ContainsFunc(r.reachingOthers(mac), func(other *iface) bool { return other != i && other.node == n }) {
		return
	}
	assigned := map[netip.Addr]bool{}
	for _, c := range n.claims {
		if c.Kind == verdict.Assigned {
			assigned[c.addr] = true
			if c.port == i {
				r.tombstones[tomb{c.addr, mac}] = death{r.now, n}
			}
		}
	}
	for _, by := range r.nodes {
		for _, c := range slices.Clone(by.claims) {
			inside := by == n && c.port.rec.Peer != 0 && !c.port.rec.Uplink
			if c.wire() && c.MAC == mac && !inside && assigned[c.addr] {
				r.remove(c)
				r.tombstones[tomb{c.addr, mac}] = death{r.now, n}
			}
		}
	}
}

func (c *claim) wire() bool { return c.Kind != verdict.Assigned && c.Kind != verdict.DADFailed }

func (n *node) claim(addr netip.Addr, port *iface, key verdict.Claim) *claim {
	for _, c := range n.claims {
		if c.addr == addr && c.port == port && c.Kind == key.Kind && c.MAC == key.MAC && c.VLAN == key.VLAN && c.InnerVLAN == key.InnerVLAN &&
			c.NoOverride == key.NoOverride && c.Source == key.Source {
			return c
		}
	}
	return nil
}

func (r *reference) applyClaim(n *node, rec *pb.ClaimRecord, snapshot bool) {
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	port := n.iface(rec.GetNamespace(), rec.GetIndex())
	kernel := fromKernel(rec)
	if port == nil || addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() || !kernel && len(rec.GetMac()) == 0 {
		return
	}
	key := verdict.Claim{Kind: verdict.Evidence(rec.GetKind())}
	if !kernel {
		key.MAC, key.Source = verdict.MAC(rec.GetMac()), verdict.MAC(rec.GetSource())
		key.VLAN, key.InnerVLAN, key.NoOverride = uint16(rec.GetVlan()), uint16(rec.GetInnerVlan()), rec.GetNoOverride()
	}
	at := r.now.Add(-rec.GetAge().AsDuration())
	c := n.claim(addr, port, key)
	switch {
	case rec.GetGone():
		if c != nil {
			r.endClaim(c, false, rec.GetResidence().AsDuration())
		}
		return
	case c == nil && !kernel && r.buried(n, addr, key.MAC, at):
		return
	case c == nil:
		if kernel {
			r.endFormer(n, func(c *claim) bool { return c.addr == addr && c.port == port && !c.wire() })
		}
		c = &claim{Claim: key, node: n, addr: addr, port: port}
		c.Begun, c.Read = r.now, r.now
		if !kernel {
			c.link = port.link
			if rec.GetLink() != "" {
				c.link = n.link(rec.GetLink())
			}
		}
		n.claims = append(n.claims, c)
		r.saw(c, rec, at)
		if c.Kind == verdict.Assigned {
			r.place(c)
			r.returned(c)
		}
	case snapshot && c.Last == stamp(rec.GetLastSeen()) && c.Count == rec.GetCount() && c.Network == rec.GetNetwork():
		r.moveClaim(c, rec)
	default:
		r.moveClaim(c, rec)
		if c.Count != rec.GetCount() {
			c.Before = c.Seen
			if !snapshot {
				c.Read = r.now
			}
		}
		r.saw(c, rec, at)
	}
	c.sweep, c.former = n.sweep, false
}

// saw updates a claim from its record.
func (r *reference) saw(c *claim, rec *pb.ClaimRecord, at verdict.Stamp) {
	c.Routed, c.PrefixLength, c.Flags, c.Count = rec.GetRouted(), uint8(rec.GetPrefixLength()), rec.GetFlags(), rec.GetCount()
	first, assigned := stamp(rec.GetFirstSeen()), stamp(rec.GetAssignedAt())
	switch {
	case c.First == 0, assigned.Sub(c.AssignedAt) > time.Second:
		c.First, c.AssignedAt, c.continued = first, assigned, false
	case c.former, c.continued:
		c.continued = true
	case first < c.First, c.AssignedAt.Sub(assigned) > time.Second:
		c.First, c.AssignedAt = first, assigned
	}
	c.Last, c.Network = stamp(rec.GetLastSeen()), rec.GetNetwork()
	c.TakenAlong = rec.GetTakenAlong()
	c.Answer = verdict.KernelAnswer{By: verdict.AnswerSource(rec.GetAnswer()), Filter: verdict.AnswerFilter(rec.GetFilter())}
	c.Seen = max(c.Seen, at)
	if c.wire() {
		c.Begun = min(c.Begun, c.Seen)
		if c.port.rec.Uplink {
			r.lan.sightings = append(r.lan.sightings, c)
		}
		r.returned(c)
	}
}

// returned records when the LAN of a node returns its own frames: one with its MAC, and an address that it has or had shortly
// before, enters it. c is the frame, or the claim by which a kernel has the address.
func (r *reference) returned(c *claim) {
	n := c.node
	for _, frame := range n.claims {
		if frame.addr != c.addr || frame != c && c.Kind != verdict.Assigned || !frame.hasOwnMAC() {
			continue
		}
		left, ended := r.tombstones[tomb{frame.addr, frame.MAC}]
		late := ended && left.node == n && frame.Seen <= left.at.Add(r.policy.HandoverGrace) && r.now < left.at.Add(r.policy.StaleAfter)
		if late || slices.ContainsFunc(n.claims, func(own *claim) bool { return own.addr == c.addr && own.Kind == verdict.Assigned }) {
			n.outsideAfter = max(n.outsideAfter, frame.Seen.Add(r.policy.StaleAfter))
		}
	}
}

// hasOwnMAC reports whether a claim is a frame that entered its node from outside with a MAC of the node.
func (c *claim) hasOwnMAC() bool {
	return c.wire() && c.Kind != verdict.Believed && c.port.rec.Uplink && !c.MAC.Shared() && slices.ContainsFunc(c.node.interfaces, func(i *iface) bool { return i.rec.MAC == c.MAC })
}

func (r *reference) moveClaim(c *claim, rec *pb.ClaimRecord) {
	if !c.wire() || rec.GetLink() == "" || c.link != nil && c.link.name == rec.GetLink() {
		return
	}
	old := c.link
	c.link = c.node.link(rec.GetLink())
	r.dropLink(old)
}

func stamp(t *timestamppb.Timestamp) verdict.Stamp {
	if t == nil {
		return 0
	}
	return verdict.At(t.AsTime())
}

// remove removes a claim.
func (r *reference) remove(c *claim) {
	if c.ended {
		return
	}
	c.ended = true
	c.node.claims = slices.DeleteFunc(c.node.claims, func(other *claim) bool { return other == c })
	r.dropLink(c.link)
}

// endClaim ends a claim. If the kernels no longer report an address of a holder, the holder's
// sightings end as well, because nothing else would end them.
func (r *reference) endClaim(c *claim, sweeping bool, residence time.Duration) {
	if c.ended {
		return
	}
	r.remove(c)
	if c.wire() {
		return
	}
	id := c.port.namespace.rec.ID
	still, there := false, false // whether the holder has the address, and whether with that MAC
	for other := range r.claims(c.addr) {
		refused := c.Kind == verdict.Assigned && other.Kind == verdict.DADFailed // it gave the address up
		if !other.wire() && !refused && other.port.namespace.rec.ID == id {
			still, there = true, there || other.port.meets() && other.port.rec.MAC == c.port.rec.MAC
		}
	}
	at := r.now.Add(-residence)
	if c.port.meets() && !there {
		r.tombstones[tomb{c.addr, c.port.rec.MAC}] = death{at, c.node}
	}
	if still {
		return
	}
	m := r.memory[c.addr]
	if m == nil {
		return
	}
	for _, sighting := range m.claims[id] {
		if sighting.ended || !sighting.wire() || sighting.node == c.node && sweeping && sighting.sweep == c.node.sweep {
			continue
		}
		r.remove(sighting)
		if sighting.node != c.node {
			r.tombstones[tomb{c.addr, sighting.MAC}] = death{at, c.node}
		}
	}
}

// lag returns how far a session may be behind its agent: half of the time that the last ping took,
// or the time for which a ping has been unanswered.
func (s *session) lag(now verdict.Stamp) time.Duration {
	took := s.took
	if s.tookUntil != 0 && s.tookUntil <= now {
		took = 0
	}
	unanswered := time.Duration(0)
	if s.asked != 0 {
		unanswered = now.Sub(s.asked)
	}
	if took == 0 && unanswered <= pingEvery {
		return 0
	}
	return max(took/2, unanswered)
}

// buried reports whether a node saw a frame before its sender released the address. The stream may
// be behind its agent.
func (r *reference) buried(by *node, addr netip.Addr, mac verdict.MAC, seen verdict.Stamp) bool {
	late := lateWithin + by.session.lag(r.now)
	d, ok := r.tombstones[tomb{addr, mac}]
	return ok && d.node != by && r.now < d.at.Add(r.policy.StaleAfter) && seen <= d.at.Add(late)
}

// claims yields the claims of an address.
func (r *reference) claims(a netip.Addr) func(yield func(*claim) bool) {
	return func(yield func(*claim) bool) {
		for _, n := range r.nodes {
			for _, c := range n.claims {
				if c.addr == a && !yield(c) {
					return
				}
			}
		}
	}
}

func (n *node) pool(name string) *pool {
	for _, p := range n.pools {
		if p.rec.Name == name {
			return p
		}
	}
	return nil
}

func (r *reference) applyPool(n *node, rec *pb.PoolRecord) {
	p := n.pool(rec.GetName())
	if rec.GetGone() {
		if p != nil {
			r.endPool(p)
		}
		return
	}
	next := verdict.Pool{
		Pool: ipam.Pool{IPAM: rec.GetIpam(), Traits: registry.Traits(rec.GetIpam()), Name: rec.GetName(), Served: ipam.Served{Network: rec.GetNetwork()}, State: ipam.State(rec.GetState()), Problem: rec.GetProblem(), Wiring: ipam.Wiring{Plugin: rec.GetPlugin(), Device: rec.GetDevice(), Routed: rec.GetRouted()}, Config: rec.GetConfig()}, Node: n.rec, Loss: verdict.Loss{LostAt: stamp(rec.GetLostAt()), Lost: rec.GetLost()},
	}
	next.Server, _ = netip.AddrFromSlice(rec.GetServer())
	next.ClientID = hex.EncodeToString(rec.GetClientId())
	for _, g := range rec.GetRanges() {
		first, _ := netip.AddrFromSlice(g.GetFirst())
		last, _ := netip.AddrFromSlice(g.GetLast())
		next.Ranges = append(next.Ranges, ipam.Range{First: first, Last: last})
	}
	for _, g := range rec.GetGateways() {
		a, _ := netip.AddrFromSlice(g)
		next.Gateways = append(next.Gateways, a)
	}
	if p == nil {
		p = &pool{rec: &verdict.Pool{}, node: n}
		n.pools = append(n.pools, p)
	}
	if next.LostAt != 0 {
		if next.LostHeard = r.now; p.rec.LostAt == next.LostAt {
			next.LostHeard = p.rec.LostHeard
		}
	}
	*p.rec = next
	p.sweep = n.sweep
}

// endPool ends a pool and its allocations, which does not mean that they were released.
func (r *reference) endPool(p *pool) {
	p.rec.State = ipam.Stale
	for _, m := range r.memory {
		for _, al := range slices.Clone(m.allocations) {
			if al.pool == p {
				m.vanish(al)
			}
		}
	}
	p.node.pools = slices.DeleteFunc(p.node.pools, func(other *pool) bool { return other == p })
}

func (m *memory) vanish(al *allocation) {
	m.allocations = slices.DeleteFunc(m.allocations, func(other *allocation) bool { return other == al })
	m.vanished = append(m.vanished, al.Allocation)
}

func (r *reference) applyAllocation(n *node, rec *pb.AllocationRecord) {
	p := n.pool(rec.GetPool())
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	if p == nil {
		return
	}
	m := r.of(addr)
	at := slices.IndexFunc(m.allocations, func(al *allocation) bool { return al.pool == p })
	if rec.GetGone() {
		if at >= 0 {
			m.vanish(m.allocations[at])
		}
		return
	}
	next := &allocation{&verdict.Allocation{
		Pool: p.rec, Allocation: ipam.Allocation{
			Address: addr, ContainerID: rec.GetContainerId(), Interface: rec.GetInterface(), Namespace: rec.GetNamespace(), Pod: rec.GetPod(),
		},
		AllocatedAt: stamp(rec.GetAllocatedAt()), Heard: r.now,
	}, p, n.sweep}
	if at < 0 {
		m.allocations = append(m.allocations, next)
		return
	}
	have := m.allocations[at]
	if was := *have.Allocation; was.Allocation == next.Allocation.Allocation && was.AllocatedAt == next.AllocatedAt {
		have.sweep = n.sweep
		return
	}
	if have.ContainerID != next.ContainerID || have.Pod != next.Pod || have.Namespace != next.Namespace {
		m.vanished = append(m.vanished, have.Allocation)
	}
	m.allocations[at] = next
}
