package aggregator

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// What one node may report at most: an agent that counts wrongly must not take
// the memory of all.
const (
	maxClaims     = 250_000 // kernel claims, and as many wire claims
	maxInterfaces = 100_000
	maxNamespaces = 50_000
	maxLinks      = 100_000
	maxSnapshot   = 256 << 20 // bytes: several times what the largest node has to say
	maxText       = 1024      // bytes of a problem
	maxProblems   = 256
	maxTexts      = 10_000
	maxNodes      = 20_000
	maxOfOneName  = 16                            // nodes that one agent says it is: it may be booted often
	maxSeconds    = math.MaxInt64 / 1_000_000_000 // of a stamp: in the year 2262
)

var errTakenOver = status.Error(codes.Aborted, "another connection of this node's agent took over")

func tooMany(what, limit string) error {
	return status.Errorf(codes.ResourceExhausted,
		"the agent reports too many %s: the limit is %s for one node; exclude interfaces that are not to be watched", what, limit)
}

// validate refuses a report that no agent of any version sends. Single fields have been
// checked before by rules. Records that only a newer agent sends are dropped and counted
// later, one by one.
func validate(m *pb.ReportRequest) error {
	bad := func(what string) error {
		return status.Error(codes.InvalidArgument, what+": this is not what an ipwitness agent sends")
	}
	for _, c := range m.GetClaims() {
		switch {
		case c.GetVlan() > 4095 || c.GetInnerVlan() > 4095:
			return bad("a VLAN id must be below 4096")
		case c.GetPrefixLength() > uint32(8*len(c.GetAddress())): //nolint:gosec // 16 bytes at most
			return bad("a prefix has at most as many bits as its address")
		}
	}
	for _, ns := range m.GetNamespaces() {
		if len(ns.GetWorkload().GetSources()) > maxSources || len(ns.GetIntended()) > maxIntended {
			return bad("a namespace has too many sources or addresses")
		}
	}
	if len(m.GetStatus().GetFlooding()) > maxFlooding {
		return bad("there are too many ports that flood")
	}
	for _, p := range m.GetPools() {
		if len(p.GetRanges()) > maxRanges || len(p.GetGateways()) > maxRanges {
			return bad("the ranges of a pool are too many")
		}
		for _, r := range p.GetRanges() {
			if len(r.GetLast()) != len(r.GetFirst()) || bytes.Compare(r.GetFirst(), r.GetLast()) > 0 {
				return bad("a range must have two addresses of 4 or 16 bytes, the smaller one first")
			}
		}
	}
	for _, l := range m.GetLinks() {
		if l.GetName() == "" {
			return bad("the name of a link is empty")
		}
	}
	return nil
}

// known is a number of the contract; 0 for one that a newer agent may send.
func known[E ~int32, T ~uint8](number E, last T) T {
	if number < 0 || number > E(last) {
		return 0
	}
	return T(number)
}

// apply brings one message into a node's tables and tells how long the slowest
// claim of it was in the agent.
func (s *store) apply(n *node, m *pb.ReportRequest, now verdict.Stamp, snapshot bool) (residence time.Duration) {
	s.metrics.took(m)
	for _, rec := range m.GetNamespaces() {
		s.applyNamespace(n, rec)
	}
	for _, rec := range m.GetLinks() {
		s.applyLink(n, rec)
	}
	for _, rec := range m.GetInterfaces() {
		s.applyInterface(n, rec)
	}
	claims := m.GetClaims()
	if snapshot {
		claims = kernelFirst(claims)
	}
	for _, rec := range claims {
		s.applyClaim(n, rec, now, snapshot)
		if !rec.GetGone() {
			residence = max(residence, rec.GetResidence().AsDuration())
		}
	}
	for _, rec := range m.GetPools() {
		s.applyPool(n, rec, now)
	}
	for _, rec := range m.GetAllocations() {
		s.applyAllocation(n, rec, now)
	}
	if m.GetStatus() != nil {
		s.applyStatus(n, m.GetStatus())
		if name := n.status.GetCalicoNodename(); n.rec.CalicoNodename != name {
			n.rec.CalicoNodename = name
		}
	}
	return residence
}

// applyStatus stores the status of an agent. Of its ports it keeps only the number.
func (s *store) applyStatus(n *node, rec *pb.StatusRecord) {
	ports := len(rec.GetPorts())
	rec.Ports = nil
	if len(rec.GetProblems()) > maxProblems {
		rec.Problems = slices.Clone(rec.GetProblems()[:maxProblems]) // a slice of the original would keep all of them in memory
	}
	if !s.charge(n, &n.statusCost, statusCost*proto.Size(rec), true) {
		s.refuse(n, "status", false)
		return
	}
	blind := n.status.GetBlind() != rec.GetBlind()
	n.status, n.portCount = rec, ports
	s.coverageChanged()
	if blind { // whether an allocation is leaked is only known of a node that sees addresses
		s.touchNode(n)
	}
}

func (s *store) applyNamespace(n *node, rec *pb.NamespaceRecord) {
	old := n.namespaces.get(rec.GetId())
	if rec.GetGone() {
		if old != nil {
			s.endNamespace(n, old)
		}
		return
	}
	if rec.GetId() == 0 || old == nil && n.namespaces.len() >= maxNamespaces {
		s.metrics.dropped("namespace")
		return
	}
	var fresh int32
	has := &fresh
	if old != nil {
		has = &old.cost
	}
	cost := namespaceCostOf(rec)
	if !s.charge(n, has, cost, true) {
		s.refuse(n, "namespace", false)
		return
	}
	ns := verdict.Namespace{Node: n.rec, Record: rec.GetId(), Netns: rec.GetNetns(), Who: who(rec.GetWorkload()), Intended: intended(rec.GetIntended())}
	if ns.Record == verdict.OwnRecord && ns.Netns == "" {
		ns.Netns = n.id.netns
	}
	ns.ID = verdict.OwnerID(n.rec, ns.Record, ns.Netns)
	ns.Netns = ns.ID[len(ns.ID)-len(ns.Netns):] // one copy of both
	s.setNamespace(n, ns)
	if now := n.namespaces.get(rec.GetId()); now != old {
		now.cost = fresh
		s.charge(n, &now.cost, cost, true) // the replaced namespace has released its charge
	}
}

func who(w *pb.Workload) verdict.Who {
	kind := known(w.GetKind(), verdict.Unknown)
	if kind == 0 {
		kind = verdict.Unknown
	}
	return verdict.Workload{
		Kind: kind, Namespace: w.GetNamespace(), Name: w.GetName(), UID: w.GetUid(),
		ContainerID: w.GetContainerId(), Source: w.GetSource(), Process: w.GetProcess(), PID: w.GetProcessId(), Ended: w.GetProcessEnded(),
		VirtualMachine: w.GetVirtualMachine(), Sources: sources(w.GetSources()),
	}.Who()
}

func (s *store) applyLink(n *node, rec *pb.LinkRecord) {
	old := n.links.get(rec.GetName())
	if rec.GetGone() {
		if old != nil {
			s.endLink(n, old)
		}
		return
	}
	if old == nil && n.links.len() >= maxLinks {
		s.metrics.dropped("link")
		return
	}
	var cost int32
	if old != nil {
		cost = old.cost
	}
	if !s.charge(n, &cost, linkCost+textCost(rec.GetName()), true) {
		s.refuse(n, "link", false)
		return
	}
	s.setLink(n, verdict.Link{
		Node: n.rec, Name: rec.GetName(), Kind: known(rec.GetKind(), verdict.OVSPort), Routed: rec.GetRouted(),
	})
	n.links.get(rec.GetName()).cost = cost
}

func (s *store) applyInterface(n *node, rec *pb.InterfaceRecord) {
	old := n.interfaces.get(ifaceKey{rec.GetNamespace(), rec.GetIndex()})
	if rec.GetGone() {
		if old != nil {
			s.endInterface(n, old)
		}
		return
	}
	ns := n.namespaces.get(rec.GetNamespace())
	attachment := known(rec.GetAttachment(), verdict.Local)
	if ns == nil || attachment == 0 || old == nil && n.interfaces.len() >= maxInterfaces {
		s.metrics.dropped("interface")
		return
	}
	var cost int32
	if old != nil {
		cost = old.cost
	}
	if !s.charge(n, &cost, interfaceCostOf(rec), true) {
		s.refuse(n, "interface", false)
		return
	}
	// Both ends of a pod's veth and its link have one name, and one copy of it.
	name, host := rec.GetName(), rec.GetHostInterface()
	if l := n.links.get(rec.GetLink()); l != nil && name == l.rec.Name {
		name = l.rec.Name
	} else {
		if l != nil && host == l.rec.Name {
			host = l.rec.Name
		}
		name = s.intern(name)
	}
	s.setInterface(n, ns, verdict.Interface{
		Index: rec.GetIndex(), Name: name, MAC: verdict.MAC(rec.GetMac()),
		Attachment: attachment, HostInterface: host, VRF: s.intern(rec.GetVrf()),
		Uplink: rec.GetUplink(), Peer: rec.GetPeerNamespace(), Tap: rec.GetKind() == tap, Kind: s.intern(rec.GetKind()),
	}, rec.GetLink())
	n.interfaces.get(ifaceKey{rec.GetNamespace(), rec.GetIndex()}).cost = cost
}

// tap is the kind of the interfaces that virtual machines are behind.
const tap = "tun"

func (s *store) applyClaim(n *node, rec *pb.ClaimRecord, now verdict.Stamp, snapshot bool) {
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	addr = addr.Unmap()
	port := n.interfaces.get(ifaceKey{rec.GetNamespace(), rec.GetIndex()})
	kind := known(rec.GetKind(), verdict.Believed)
	if port == nil {
		if !rec.GetGone() { // it went with its interface
			s.metrics.dropped("claim")
		}
		return
	}
	kernel := fromKernel(rec)
	if kind == 0 || addr.IsUnspecified() || addr.IsMulticast() || !kernel && len(rec.GetMac()) == 0 {
		s.metrics.dropped("claim")
		return
	}
	if addr.IsLoopback() {
		return // one in every namespace, compared by nobody
	}
	key := claimKey{kind: kind}
	if !kernel {
		key = claimKey{kind, verdict.MAC(rec.GetMac()), uint16(rec.GetVlan()), uint16(rec.GetInnerVlan()), rec.GetNoOverride(), verdict.MAC(rec.GetSource())}
	}

	at := now
	if rec.GetAge() != nil {
		at = now.Add(-max(0, rec.GetAge().AsDuration()))
	}

	var h *holding
	e := s.table.get(addr)
	if e != nil {
		h = e.find(port, key)
	}
	switch {
	case rec.GetGone():
		if h != nil {
			s.late = max(0, rec.GetResidence().AsDuration())
			s.end(n, h)
			s.late = 0
		}
		return
	case h == nil && !kernel && s.isBuried(n, addr, key.mac, at):
		return // it was seen before its sender gave the address up
	case h == nil && !kernel && at.Add(2*s.policy.StaleAfter) <= now:
		return // it would be too old to be kept
	case h == nil && !kernel && !snapshot && n.wireClaims >= maxClaims:
		s.dropExcess(n, 1)
		return
	case h == nil:
		var cost int32
		if !s.charge(n, &cost, claimCost(n, e, port, key, rec), kernel) {
			s.refuse(n, "claim", !kernel)
			return
		}
		h = &holding{entry: s.table.enter(addr), port: port, cost: cost}
		h.Kind, h.MAC, h.VLAN, h.InnerVLAN, h.NoOverride, h.Source = key.kind, key.mac, key.vlan, key.innerVLAN, key.noOverride, key.source
		h.Interface = port.rec
		h.Begun, h.Read = now, now
		s.setClaimLink(n, h, rec)
		s.list(n, h)
		s.saw(h, rec, at)
	case snapshot && h.Last == stamp(rec.GetLastSeen()) && h.Count == rec.GetCount() && h.Network == rec.GetNetwork():
		// Known, and not seen since.
		s.moveClaimLink(n, h, rec)
	case !s.charge(n, &h.cost, changedCost(n, h, rec), kernel):
		s.refuse(n, "claim", !kernel)
		return
	default:
		s.moveClaimLink(n, h, rec)
		if h.Count != rec.GetCount() {
			h.Before = h.Seen
			if !snapshot {
				h.Read = now // the kernel said something just now
			}
		}
		s.saw(h, rec, at)
	}
	h.sweep = n.sweep
}

// fromKernel tells whether a record says what a kernel has, not what the wire shows.
func fromKernel(rec *pb.ClaimRecord) bool {
	return rec.GetKind() == pb.Evidence_ASSIGNED || rec.GetKind() == pb.Evidence_DAD_FAILED
}

// dropExcess counts claims of the wire that a node has no room for.
func (s *store) dropExcess(n *node, claims int) {
	n.excess += claims
	s.metrics.records.WithLabelValues("claim").Add(float64(claims))
}

// saw takes over what a record says of a claim. When it was seen is reckoned from
// how long ago that was by the agent's monotonic clock, and never by a wall clock.
func (s *store) saw(h *holding, rec *pb.ClaimRecord, at verdict.Stamp) {
	same := h.mac != nil && h.Count != 0 && h.Routed == rec.GetRouted() && h.entry.plain()
	h.Routed = rec.GetRouted()
	h.PrefixLength, h.Flags, h.Count = uint8(rec.GetPrefixLength()), rec.GetFlags(), rec.GetCount()
	h.First, h.Last = stamp(rec.GetFirstSeen()), stamp(rec.GetLastSeen())
	h.AssignedAt = stamp(rec.GetAssignedAt())
	if h.Network != rec.GetNetwork() {
		h.Network = s.intern(rec.GetNetwork())
		s.overlapped(s.nodeOf(h))
	}
	h.Seen = max(h.Seen, at)
	if h.mac != nil {
		h.Begun = min(h.Begun, h.Seen)
		if h.port.rec.Uplink {
			s.sightings = append(s.sightings, h)
		}
	}
	if !same {
		s.touch(h.entry)
	}
}

// setClaimLink names the link that a frame was seen on.
func (s *store) setClaimLink(n *node, h *holding, rec *pb.ClaimRecord) {
	if h.Kind == verdict.Assigned || h.Kind == verdict.DADFailed {
		return
	}
	h.link = h.port.link
	if rec.GetLink() != "" {
		h.link = n.link(rec.GetLink())
	}
	h.Link = nil
	if h.link != nil {
		h.Link = h.link.rec
	}
}

// moveClaimLink follows a port to another link.
func (s *store) moveClaimLink(n *node, h *holding, rec *pb.ClaimRecord) {
	if h.mac == nil || rec.GetLink() == "" || h.link != nil && h.link.rec.Name == rec.GetLink() {
		return
	}
	if old := h.link; old != nil {
		old.users--
		s.dropLink(n, old)
	}
	s.setClaimLink(n, h, rec)
	h.link.users++
	s.touch(h.entry)
}

// stamp is a time of an agent; 0 where it is none, or one that no clock shows.
func stamp(t *timestamppb.Timestamp) verdict.Stamp {
	if t.GetSeconds() < 0 || t.GetSeconds() >= maxSeconds || t.GetNanos() < 0 || t.GetNanos() >= 1e9 {
		return 0
	}
	return verdict.Stamp(t.GetSeconds()*1e9 + int64(t.GetNanos()))
}

// intern keeps one copy of a text that many records have.
func (s *store) intern(text string) string {
	if text == "" {
		return ""
	}
	if known, ok := s.texts[text]; ok {
		return known
	}
	if len(s.texts) >= maxTexts {
		clear(s.texts)
	}
	s.texts[text] = text
	return text
}
