package facts

import (
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// applying applies the messages of a node to its tables, piece by piece. If another stream has
// replaced this one, it stops and err is set.
type applying struct {
	facts    *Facts
	node     *Node
	peer     Peer
	batch    *Batch
	snapshot bool
	// step is by how much the clock of the node was set since the last message.
	step time.Duration
	// now is the time of the current piece.
	now verdict.Stamp
	err error
	// inside is set while a piece runs.
	inside bool
	// outdated are the addresses of frames that were seen too long ago to count by themselves.
	outdated []index.Address
}

// do runs one piece.
func (a *applying) do(what func()) {
	if a.inside {
		what()
		return
	}
	a.inside = true
	defer func() { a.inside = false }()
	a.facts.piece(a.batch, func() {
		if a.node.Peer != a.peer {
			a.err = ErrTakenOver
			return
		}
		if a.now == 0 || !a.snapshot {
			a.now = a.facts.now()
		}
		what()
	})
}

// apply applies one message.
func (a *applying) apply(m *pb.ReportRequest) {
	claims := m.GetClaims()
	if a.snapshot {
		claims = kernelFirst(claims)
		a.do(func() { a.node.reserve(m) })
	}
	all := func() {
		apply(a, m.GetNamespaces(), a.namespace)
		apply(a, m.GetLinks(), a.link)
		apply(a, m.GetInterfaces(), a.iface)
		apply(a, claims, a.claim)
		apply(a, m.GetPools(), func(rec *pb.PoolRecord) { a.facts.applyPool(a.node, rec, a.now) })
		apply(a, m.GetAllocations(), func(rec *pb.AllocationRecord) { a.facts.applyAllocation(a.node, rec, a.now) })
		apply(a, m.GetBeliefs(), a.belief)
		a.do(func() { a.status(m.GetStatus()) })
	}
	counts := [...]int{len(m.GetNamespaces()), len(m.GetLinks()), len(m.GetInterfaces()), len(claims), len(m.GetPools()), len(m.GetAllocations()), len(m.GetBeliefs())}
	if records := 0; slices.ContainsFunc(counts[:], func(n int) bool { records += n; return records > piece }) {
		all()
	} else {
		a.do(all)
	}
}

// apply applies records, a piece at a time.
func apply[T any](a *applying, records []T, one func(T)) {
	for some := range slices.Chunk(records, piece) {
		a.do(func() {
			for _, rec := range some {
				one(rec)
			}
		})
	}
}

// status stores the status of an agent. It keeps only the number of ports.
func (a *applying) status(rec *pb.StatusRecord) {
	if rec == nil {
		return
	}
	f, n := a.facts, a.node
	ports := len(rec.GetPorts())
	rec.Ports = nil
	for _, texts := range []*[]string{&rec.Problems, &rec.UnreadIpams, &rec.UnreadableIpams} {
		*texts = slices.Clone((*texts)[:min(MaxProblems, len(*texts))]) // a slice of the original would retain all of them
	}
	if !f.charge(n, &n.statusCost, statusCost*proto.Size(rec), true) {
		f.countRefused(n, "status", false)
	} else {
		if n.Status.GetBlind() != rec.GetBlind() {
			f.touchNode(n) // allocations can be found to be leaked only on nodes whose addresses are known
		}
		n.Status, n.Ports = rec, ports
		f.coverageChanged()
		if !n.Rec.Unheard {
			f.restorePools(n) // perhaps the records have been read now
		}
	}
	s := n.Status.GetNodeName()
	name := ipam.NodeName{Name: s.GetName(), Source: Known(s.GetSource(), ipam.HostName), File: s.GetFile()}
	if n.Rec.IPAMName != name {
		n.Rec.IPAMName = name
		f.touchNode(n) // the causes of conflicts may follow from it
	}
	program, ended, sees := n.Status.GetVipProgram(), n.Status.GetVipProgramEnded(), n.Status.GetSeesProcesses()
	if program == "" && n.Rec.VIPProgram != "" { // a former agent has seen it
		program, ended = n.Rec.VIPProgram, n.Rec.VIPProgramEnded || sees
	}
	if program != n.Rec.VIPProgram || ended != n.Rec.VIPProgramEnded || sees != n.Rec.SeesProcesses {
		n.Rec.VIPProgram, n.Rec.VIPProgramEnded, n.Rec.SeesProcesses = program, ended, sees
		f.touchNode(n) // it decides which node keeps a virtual address
	}
}

func (a *applying) namespace(rec *pb.NamespaceRecord) {
	f, n := a.facts, a.node
	old := n.namespace(rec.GetId())
	if rec.GetGone() {
		if old != 0 {
			f.endNamespace(n, old, ending{})
		}
		return
	}
	if rec.GetId() == 0 || old == 0 && n.namespaces.count >= MaxNamespaces {
		f.changes.Dropped["namespace"]++
		return
	}
	cost, has := namespaceCostOf(rec), 0
	if old != 0 {
		has = int(n.namespaces.at(old).cost)
	}
	if !f.fits(n, cost-has, true) {
		f.countRefused(n, "namespace", false)
		return
	}
	netns := rec.GetNetns()
	if rec.GetId() == verdict.OwnRecord && netns == "" {
		netns = n.ID.Netns
	}
	now := f.setNamespace(n, rec.GetId(), netns, who(rec.GetWorkload()), intended(rec.GetIntended()))
	setCharge(f, n, &n.namespaces.at(now).cost, cost)
}

func (a *applying) link(rec *pb.LinkRecord) {
	f, n := a.facts, a.node
	old := n.link(rec.GetName())
	if rec.GetGone() {
		if old != 0 {
			f.endLink(n, old)
		}
		return
	}
	if old == 0 && n.links.count >= MaxLinks {
		f.changes.Dropped["link"]++
		return
	}
	cost, has := linkCost+textCost(rec.GetName()), 0
	if old != 0 {
		has = int(n.links.at(old).cost)
	}
	if !f.fits(n, cost-has, true) {
		f.countRefused(n, "link", false)
		return
	}
	l := f.setLink(n, rec.GetName(), Known(rec.GetKind(), verdict.Overlay), rec.GetRouted(), rec.GetDistributed(), rec.GetNoCarrier())
	setCharge(f, n, &n.links.at(l).cost, cost)
}

// tap is the link kind of tap devices, which connect virtual machines.
const tap = "tun"

func (a *applying) iface(rec *pb.InterfaceRecord) {
	f, n := a.facts, a.node
	old := n.iface(rec.GetNamespace(), rec.GetIndex())
	if rec.GetGone() {
		if old != 0 {
			f.endInterface(n, old, ending{})
		}
		return
	}
	ns := n.namespace(rec.GetNamespace())
	attachment := Known(rec.GetAttachment(), verdict.Inner)
	if ns == 0 || attachment == 0 || old == 0 && n.interfaces.count >= MaxInterfaces {
		f.changes.Dropped["interface"]++
		return
	}
	cost, has := interfaceCostOf(rec), 0
	if old != 0 {
		has = int(n.interfaces.at(old).cost)
	}
	if !f.fits(n, cost-has, true) {
		f.countRefused(n, "interface", false)
		return
	}
	t := &n.texts
	next := iface{
		namespace: ns, index: rec.GetIndex(), attachment: attachment, name: t.put(rec.GetName()), kind: t.put(rec.GetKind()),
		mac: t.mac(verdict.MAC(rec.GetMac())),
	}
	others := rare{host: next.setFar(rec.GetPeerNamespace(), t.put(rec.GetHostInterface())), vrf: t.put(rec.GetVrf())}
	next.flags.set(uplink, rec.GetUplink())
	next.flags.set(tapped, rec.GetKind() == tap)
	next.flags.set(macvtap, rec.GetKind() == "macvtap" && attachment == verdict.Own)
	next.flags.set(hairpin, rec.GetHairpin())
	next.flags.set(noARP, rec.GetNoArp())
	next.flags.set(pvlan, rec.GetProxyArpPvlan())
	i := f.setInterface(n, old, next, others, rec.GetLink())
	setCharge(f, n, &n.interfaces.at(i).cost, cost)
}

func (a *applying) claim(rec *pb.ClaimRecord) {
	f, n := a.facts, a.node
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	port := n.iface(rec.GetNamespace(), rec.GetIndex())
	kind := Known(rec.GetKind(), verdict.WouldAnswer)
	if port == 0 {
		if !rec.GetGone() { // a removed one ended with its interface
			f.changes.Dropped["claim"]++
		}
		return
	}
	kernel := FromKernel(rec)
	if kind == 0 || addr.IsUnspecified() || addr.IsMulticast() || addr.Is4In6() || !kernel && len(rec.GetMac()) == 0 {
		f.changes.Dropped["claim"]++
		return
	}
	if addr.IsLoopback() {
		return // loopback addresses are in every namespace and never compared
	}
	key := claimKey{kind: kind}
	if !kernel {
		key = claimKey{
			kind, n.texts.mac(verdict.MAC(rec.GetMac())), uint16(rec.GetVlan()), uint16(rec.GetInnerVlan()), //nolint:gosec // below 4096
			rec.GetNoOverride(), n.texts.mac(verdict.MAC(rec.GetSource())),
		}
	}
	at := a.now
	if rec.GetAge() != nil {
		at = a.now.Add(-max(0, rec.GetAge().AsDuration()))
	}

	key128 := index.AddressOf(addr)
	first := f.addresses.of(key128, n.number)
	c := n.find(first, port, key)
	fresh := c == 0 || n.Rec.Unheard // while the node was disconnected, its frames did not expire
	switch {
	case rec.GetGone():
		if c != 0 {
			f.end(n, c, ending{late: max(0, rec.GetResidence().AsDuration())})
		}
		return
	case c == 0 && !kernel && f.isBuried(n, key128, n.texts.macOf(key.mac), at):
		n.departed(key128, n.texts.macOf(key.mac))
		return // seen before its sender gave the address up
	case c == 0 && !kernel && !a.snapshot && n.wireClaims >= MaxClaims:
		f.dropExcess(n, 1)
		return
	case c == 0:
		if kernel {
			f.replaceFormer(n, first, port)
		}
		cost := f.claimCost(n, key128, port, key, rec)
		if !f.fits(n, cost, kernel) {
			f.countRefused(n, "claim", !kernel)
			return
		}
		c = f.addToIndexes(n, key128, port, key, rec.GetLink(), prefixOf(rec), a.now)
		setCharge(f, n, &n.claims.at(c).cost, cost)
		a.saw(c, rec, at)
		f.resume(n, c)
	default:
		one := n.claims.at(c)
		h := n.history(one)
		switch {
		case a.snapshot && h.last == Stamp(rec.GetLastSeen()) && h.count == rec.GetCount() && n.texts.get(one.network) == rec.GetNetwork() &&
			(!kernel || (one.flags&leadsHere != 0) == rec.GetRouted()) && (one.flags&takenAlong != 0) == rec.GetTakenAlong() &&
			one.answer == answerOf(rec):
			// The claim is known and was not seen since.
			f.moveClaimLink(n, c, rec.GetLink())
		case !f.fits(n, changedCost(n, c, rec)-int(one.cost), kernel):
			f.countRefused(n, "claim", !kernel)
			return
		default:
			setCharge(f, n, &one.cost, changedCost(n, c, rec))
			f.moveClaimLink(n, c, rec.GetLink())
			if h.count != rec.GetCount() {
				a.seenAgain(c)
			}
			a.saw(c, rec, at)
		}
	}
	one := n.claims.at(c)
	one.sweep = n.sweep
	one.flags &^= former
	if a.snapshot && fresh && one.wire() != 0 && n.wires.at(one.wire()).seen.Add(2*f.Policy.StaleAfter) <= a.now {
		a.outdated = append(a.outdated, key128)
	}
}

// sameAssignment is by how much the kernel's time of one assignment may be later at another start of an agent.
const sameAssignment = time.Second

func prefixOf(rec *pb.ClaimRecord) uint8 { return uint8(rec.GetPrefixLength()) } //nolint:gosec // 128 at most

// answerOf returns what makes a kernel answer, and whether its packet filters may drop the answers.
func answerOf(rec *pb.ClaimRecord) uint8 {
	return uint8(Known(rec.GetAnswer(), verdict.ByRule)) | uint8(Known(rec.GetFilter(), verdict.FilterUnreadable))<<4
}

// seenAgain updates the mark of a claim that is seen again. For a wire claim, the mark is the time
// of the previous sighting. For a kernel claim in a message of changes, it is the current time,
// because the kernel has just reported the claim.
func (a *applying) seenAgain(c uint32) {
	n := a.node
	one := n.claims.at(c)
	h := n.history(one)
	switch {
	case one.wire() != 0:
		h.mark = n.wires.at(one.wire()).seen
	case !a.snapshot:
		a.facts.touch(one.addr)
		h.mark = a.now
	}
	n.setHistory(one, h)
}

// saw copies the fields of a claim record. The time of a sighting is computed from its age by the
// agent's monotonic clock and never from a wall clock.
func (a *applying) saw(c uint32, rec *pb.ClaimRecord, at verdict.Stamp) {
	f, n := a.facts, a.node
	one := n.claims.at(c)
	h, before := n.history(one), verdict.Stamp(0)
	if one.wire() == 0 {
		f.touch(one.addr)
	} else {
		w := n.wires.at(one.wire())
		before = w.seen
		if h.count == 0 || w.flags.has(byNode) != rec.GetRouted() || !w.isSettled() {
			f.touch(one.addr)
		}
		w.flags.set(byNode, rec.GetRouted())
		w.seen = max(w.seen, at)
		one.begun = min(one.begun, w.seen)
	}
	remembered := one.flags&(former|continued) != 0
	one.flags = uint16(rec.GetFlags()) &^ ours //nolint:gosec // 12 bits
	if one.wire() == 0 && rec.GetRouted() {
		one.flags |= leadsHere
	}
	if rec.GetTakenAlong() {
		one.flags |= takenAlong
	}
	if rec.GetPeer() {
		one.flags |= hasPeer
	}
	one.answer = answerOf(rec)
	f.setPrefix(n, c, prefixOf(rec))
	first, assigned := Stamp(rec.GetFirstSeen()), Stamp(rec.GetAssignedAt())
	switch again := assigned.Sub(one.assigned); {
	case one.first == 0, again > sameAssignment, !remembered && (first < one.first || again < -sameAssignment):
		one.first, one.assigned = first, assigned
	case remembered: // a kernel does not tell a new agent when it began to use an address that it had before
		one.flags |= continued
	}
	h.last, h.count = Stamp(rec.GetLastSeen()), rec.GetCount()
	n.setHistory(one, h)
	if n.texts.get(one.network) != rec.GetNetwork() {
		one.network = n.texts.put(rec.GetNetwork())
		f.changes.ranges(n)
	}
	if one.wire() != 0 && n.interfaces.at(one.port).flags.has(uplink) {
		f.queueSighting(refOf(n.number, c))
		f.sawOwn(n, c, before)
	}
}

// sweepOut removes all records that the snapshot did not contain.
func (a *applying) sweepOut() {
	f, n := a.facts, a.node
	ends := ending{sweeping: true}
	sweep(a, &n.claims, func(one *claim) bool { return one.sweep != n.sweep && !one.outlives() }, func(c uint32) { f.end(n, c, ends) })
	sweep(a, &n.namespaces, func(one *namespace) bool { return one.sweep != n.sweep }, func(ns uint32) { f.endNamespace(n, ns, ends) })
	sweep(a, &n.interfaces, func(one *iface) bool { return one.sweep != n.sweep }, func(i uint32) { f.endInterface(n, i, ends) })
	sweep(a, &n.links, func(one *link) bool { return one.flags.has(known) && one.sweep != n.sweep }, func(l uint32) { f.endLink(n, l) })
	a.do(func() { f.sweepPools(n) })
	if n.former {
		sweep(a, &n.claims, (*claim).outlives, func(c uint32) {
			if f.formerLimit(n, c) <= a.now {
				f.end(n, c, ending{})
			}
		})
	}
}

// dropOutdated removes the frames that were too old when they arrived, unless the owner of the address still has it: before
// anything is judged, because a sender of answers for other addresses could be taken for a proxy.
func (a *applying) dropOutdated() {
	f := a.facts
	if len(a.outdated) > 0 {
		f.merge(a.batch)
	}
	for some := range slices.Chunk(a.outdated, piece) {
		a.do(func() {
			for _, addr := range some {
				expired := f.Policy.Judge(f.scratch.of(addr, false)).Expired
				for _, r := range f.scratch.Refs(expired) {
					f.removeFromIndexes(f.nodes[r.node()], r.index())
				}
			}
		})
	}
}

// sweep ends the records for which old returns true, in pieces.
func sweep[T any](a *applying, records *slab[T], old func(*T) bool, end func(uint32)) {
	for from, more := uint32(1), true; more && a.err == nil; {
		a.do(func() {
			from, more = records.some(from, func(i uint32) {
				if old(records.at(i)) {
					end(i)
				}
			})
		})
	}
}

// dropExcess counts wire claims of a node above the limit.
func (f *Facts) dropExcess(n *Node, claims int) {
	n.Excess += claims
	f.changes.Dropped["claim"] += claims
}
