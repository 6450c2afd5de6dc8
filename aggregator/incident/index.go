package incident

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// mostAddresses and mostNodes are the largest numbers of addresses and nodes in the message of an incident.
	mostAddresses = 16
	mostNodes     = 1000
)

// An Index has the incidents of the members that were put into it. A change of a member costs the same however many
// members there are. It keeps no messages.
type Index struct {
	mu        sync.Mutex
	members   map[string]*member // by ID
	incidents map[string]*group  // by ID
	version   uint64
}

// NewIndex returns an Index without members.
func NewIndex() *Index {
	return &Index{members: make(map[string]*member), incidents: make(map[string]*group)}
}

// A member is what an incident needs of a conflict or finding.
type member struct {
	id, incident, cause, summary, cluster string
	state                                 pb.Conflict_State // of a conflict; 0 for a finding
	acknowledged                          bool
	severity                              pb.Finding_Severity
	addresses                             []string
	nodes                                 []string
	pool                                  *pb.Pool
	at                                    *timestamppb.Timestamp
	about                                 *pb.Finding // what names the member, its owners and allocations
}

// A group is the members of one incident, and what they have in common.
type group struct {
	members                                      map[string]*member
	causes                                       map[string]int
	severities                                   map[pb.Finding_Severity]int
	addresses                                    map[string]int
	nodes                                        map[string]int
	confirmed, suspected, acknowledged, findings int
	pool                                         *pb.Pool
	since                                        *timestamppb.Timestamp
}

// OfMember returns the incident in the message of a conflict or finding; the member itself if the message is from a version without incidents.
func OfMember(m interface {
	GetIncident() string
	GetId() string
},
) string {
	return cmp.Or(m.GetIncident(), m.GetId())
}

// Of returns the incident of the conflict or finding of an event; empty if it is about neither.
func Of(e *pb.Event) string {
	return cmp.Or(OfMember(e.GetConflict()), OfMember(e.GetFinding()))
}

// Put adds, replaces or removes the conflict or finding of an event.
func (x *Index) Put(e *pb.Event) {
	switch {
	case e.GetConflict() != nil:
		x.PutConflict(e.GetConflict(), e.GetCluster())
	case e.GetFinding() != nil && e.GetType() == pb.Watch_REMOVED:
		x.End(e.GetFinding().GetId())
	case e.GetFinding() != nil:
		x.PutFinding(e.GetFinding(), e.GetCluster())
	}
}

// PutConflict adds or replaces a conflict, or removes one that is resolved. It returns the incident that the
// conflict belonged to before; empty for none.
func (x *Index) PutConflict(c *pb.Conflict, cluster string) (was string) {
	if c.GetState() == pb.Conflict_RESOLVED {
		return x.End(c.GetId())
	}
	m := &member{
		id: c.GetId(), incident: OfMember(c), cause: cmp.Or(c.GetCause(), verdict.CauseUnknown), summary: c.GetSummary(), cluster: cluster,
		state: c.GetState(), acknowledged: c.GetAcknowledgement() != nil, addresses: []string{c.GetAddress()}, at: c.GetDetectedAt(),
	}
	switch {
	case m.acknowledged:
		m.severity = pb.Finding_INFO
	case m.state == pb.Conflict_CONFIRMED:
		m.severity = pb.Finding_CRITICAL
	default:
		m.severity = pb.Finding_WARNING
	}
	for _, o := range c.GetOwners() {
		m.node(o.GetNode())
	}
	m.names(c.GetOwners(), nil)
	return x.put(m)
}

// PutFinding adds or replaces a finding, as PutConflict does with a conflict.
func (x *Index) PutFinding(f *pb.Finding, cluster string) (was string) {
	m := &member{
		id: f.GetId(), incident: OfMember(f), cause: f.GetKind(), summary: f.GetSummary(), cluster: cluster, severity: f.GetSeverity(),
		addresses: slices.Clone(f.GetAddresses()), at: f.GetDetectedAt(),
	}
	if _, err := netip.ParseAddr(f.GetAddress()); err == nil && !slices.Contains(m.addresses, f.GetAddress()) {
		m.addresses = append(m.addresses, f.GetAddress())
	}
	for _, n := range f.GetNodes() {
		m.node(n)
	}
	if p := f.GetPool(); p != nil {
		m.pool = &pb.Pool{Ipam: p.GetIpam(), Name: p.GetName(), Node: p.GetNode(), Network: p.GetNetwork()}
	}
	m.names(f.GetOwners(), f.GetAllocations())
	return x.put(m)
}

// names notes what names the member.
func (m *member) names(owners []*pb.Owner, allocations []*pb.Allocation) {
	m.about = &pb.Finding{Id: m.id, Incident: m.incident, Addresses: m.addresses, Nodes: m.nodes, Pool: m.pool}
	for _, o := range owners {
		w := o.GetWorkload()
		m.about.Owners = append(m.about.Owners, &pb.Owner{Node: o.GetNode(), Netns: o.GetNetns(), Mac: o.GetMac(), Workload: &pb.Workload{
			Kind: w.GetKind(), Namespace: w.GetNamespace(), Name: w.GetName(), Uid: w.GetUid(), ContainerId: w.GetContainerId(), Source: w.GetSource(), Process: w.GetProcess(),
		}})
	}
	for _, al := range allocations {
		m.about.Allocations = append(m.about.Allocations, &pb.Allocation{Namespace: al.GetNamespace(), Pod: al.GetPod()})
	}
}

// Any reports whether a member of an incident matches: what names it, as a finding.
func (x *Index) Any(id string, matches func(*pb.Finding) bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g := x.incidents[id]; g != nil {
		for _, m := range g.members {
			if matches(m.about) {
				return true
			}
		}
	}
	return false
}

func (m *member) node(name string) {
	if name != "" && !slices.Contains(m.nodes, name) {
		m.nodes = append(m.nodes, name)
	}
}

// End removes a member, and returns the incident that it belonged to; empty if there is no such member.
func (x *Index) End(id string) (was string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[id]
	if m == nil {
		return ""
	}
	x.version++
	g := x.incidents[m.incident]
	delete(x.members, id)
	delete(g.members, id)
	g.count(m, -1)
	if len(g.members) == 0 {
		delete(x.incidents, m.incident)
	}
	return m.incident
}

func (x *Index) put(m *member) (was string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.version++
	before := x.members[m.id]
	if before != nil {
		was = before.incident
		x.incidents[was].count(before, -1)
		delete(x.incidents[was].members, m.id)
	}
	g := x.incidents[m.incident]
	if g == nil {
		g = &group{
			members: make(map[string]*member), causes: make(map[string]int), severities: make(map[pb.Finding_Severity]int),
			addresses: make(map[string]int), nodes: make(map[string]int),
		}
		x.incidents[m.incident] = g
	}
	x.members[m.id], g.members[m.id] = m, m
	g.count(m, 1)
	g.pool = cmp.Or(m.pool, g.pool)
	if g.since == nil || m.at != nil && m.at.AsTime().Before(g.since.AsTime()) {
		g.since = m.at
	}
	if before != nil && len(x.incidents[was].members) == 0 {
		delete(x.incidents, was)
	}
	return was
}

// count adds a member (1) to the numbers of its incident, or removes it (-1).
func (g *group) count(m *member, by int) {
	switch {
	case m.acknowledged:
		g.acknowledged += by
	case m.state == pb.Conflict_CONFIRMED:
		g.confirmed += by
	case m.state == pb.Conflict_SUSPECTED:
		g.suspected += by
	default:
		g.findings += by
	}
	add(g.causes, m.cause, by)
	add(g.severities, m.severity, by)
	for _, a := range m.addresses {
		add(g.addresses, a, by)
	}
	for _, n := range m.nodes {
		add(g.nodes, n, by)
	}
}

func add[K comparable](counts map[K]int, key K, by int) {
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
}

// Version returns a number that differs after each change.
func (x *Index) Version() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.version
}

// Of returns the incident that a conflict or finding belongs to; empty if it is no member.
func (x *Index) Of(id string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if m := x.members[id]; m != nil {
		return m.incident
	}
	return ""
}

// Count returns the number of incidents of each severity.
func (x *Index) Count() map[pb.Finding_Severity]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make(map[pb.Finding_Severity]int)
	for _, g := range x.incidents {
		all[g.severity()]++
	}
	return all
}

// severity returns the highest severity of a member.
func (g *group) severity() (highest pb.Finding_Severity) {
	for s := range g.severities {
		highest = max(highest, s)
	}
	return highest
}

// After yields the IDs of the incidents after one, in order.
func (x *Index) After(id string) iter.Seq[string] {
	x.mu.Lock()
	all := slices.Sorted(maps.Keys(x.incidents))
	x.mu.Unlock()
	i, found := slices.BinarySearch(all, id)
	if found {
		i++
	}
	return slices.Values(all[i:])
}

// Members returns the IDs of the members of an incident, those about most addresses first: what is said of a pool goes for all of them.
func (x *Index) Members(id string) (all []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.incidents[id]
	if g == nil {
		return nil
	}
	members := slices.SortedFunc(maps.Values(g.members), func(a, b *member) int {
		return cmp.Or(len(b.addresses)-len(a.addresses), rank(a.cause)-rank(b.cause), cmp.Compare(b.severity, a.severity), addresses(a, b), cmp.Compare(a.id, b.id))
	})
	for _, m := range members {
		all = append(all, m.id)
	}
	return all
}

// addresses compares the first addresses of two members.
func addresses(a, b *member) int {
	if len(a.addresses) == 0 || len(b.addresses) == 0 {
		return len(a.addresses) - len(b.addresses)
	}
	x, _ := netip.ParseAddr(a.addresses[0])
	y, _ := netip.ParseAddr(b.addresses[0])
	return x.Compare(y)
}

// Get returns the message of an incident; nil if there is none.
func (x *Index) Get(id string) *pb.Incident {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.incidents[id]
	if g == nil {
		return nil
	}
	out := &pb.Incident{
		Id: id, Pool: g.pool, DetectedAt: g.since, Severity: g.severity(),
		Confirmed: uint32(g.confirmed), Suspected: uint32(g.suspected), Acknowledged: uint32(g.acknowledged), Findings: uint32(g.findings),
		AddressCount: uint32(len(g.addresses)), Addresses: first(g.addresses),
	}
	out.Cause = slices.MinFunc(slices.Sorted(maps.Keys(g.causes)), func(a, b string) int { return rank(a) - rank(b) })
	out.Runbook = explain.Runbook(out.Cause)
	nodes := slices.Sorted(maps.Keys(g.nodes))
	out.Nodes = nodes[:min(len(nodes), mostNodes)]
	for _, m := range g.members {
		if out.Cluster = m.cluster; len(g.members) > 1 {
			break
		}
		if out.Summary = m.summary; m.state != 0 {
			out.Conflict = m.id
		} else {
			out.Finding = m.id
		}
	}
	if len(g.members) > 1 {
		out.Summary = explain.Incident(out.Cause, out.Nodes, len(g.addresses), g.confirmed+g.acknowledged, g.suspected)
	}
	return out
}

// first returns the first addresses, in order.
func first(all map[string]int) (some []string) {
	var addresses []netip.Addr
	for text := range all {
		if a, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, a)
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, a := range addresses[:min(len(addresses), mostAddresses)] {
		some = append(some, a.String())
	}
	return some
}

// ranks is the order in which a cause or kind says what has happened: a known cause, then what the records of an IPAM
// say, then all others.
var ranks = func() map[string]int {
	ranks := map[string]int{}
	for _, of := range [][]string{{verdict.FindingIPAMStateLost}, verdict.Causes(), verdict.FindingKinds()} {
		for _, one := range of {
			if _, known := ranks[one]; !known && one != verdict.CauseUnknown {
				ranks[one] = len(ranks)
			}
		}
	}
	return ranks
}()

func rank(cause string) int {
	if r, known := ranks[cause]; known {
		return r
	}
	return len(ranks)
}
