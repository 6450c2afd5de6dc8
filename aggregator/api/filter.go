package api

import (
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// filter selects owners. A field that is not set matches everything.
type filter struct {
	addr                 netip.Addr
	prefix               netip.Prefix
	node, namespace, pod string
	mac                  verdict.MAC
	state                verdict.State
	scope                scopes
	// word is the ID of an item, a node, or a part of the name of an owner.
	word string
}

// scopes selects scopes by their kind and name. The zero value selects all owners and conflicts, also
// those without a scope.
type scopes struct {
	kind verdict.ScopeKind
	name string
}

// parseScopes parses KIND or KIND/NAME.
func parseScopes(text string) (scopes, error) {
	if text == "" {
		return scopes{}, nil
	}
	kind, name, named := strings.Cut(text, "/")
	for k := verdict.LinkScope; k <= verdict.NetworkScope; k++ {
		if strings.EqualFold(kind, k.String()) && named == (name != "") {
			return scopes{k, name}, nil
		}
	}
	return scopes{}, status.Errorf(codes.InvalidArgument, "%q is not a scope: use link, node or network, or one scope like network/pods", text)
}

// has reports whether a scope is selected.
func (s scopes) has(kind verdict.ScopeKind, name string) bool {
	return s.kind == 0 || s.kind == kind && (s.name == "" || s.name == name)
}

// filtering is a request with the fields of a filter.
type filtering interface {
	GetAddress() string
	GetCidr() string
	GetNode() string
	GetNamespace() string
	GetPod() string
	GetMac() string
	GetAbout() string
}

func newFilter(q filtering) (f filter, err error) {
	f.node, f.namespace, f.pod = q.GetNode(), q.GetNamespace(), q.GetPod()
	if text := q.GetAddress(); text != "" {
		if f.addr, err = ParseAddress(text); err != nil {
			return f, err
		}
	}
	if text := q.GetCidr(); text != "" {
		if f.prefix, err = parsePrefix(text); err != nil {
			return f, err
		}
	}
	if text := q.GetMac(); text != "" {
		if f.mac, err = parseMAC(text); err != nil {
			return f, err
		}
	}
	return f, f.about(q.GetAbout())
}

// newOwnerFilter returns the filter of a request for owners.
func newOwnerFilter(q OwnersRequest) (f filter, err error) {
	if f, err = newFilter(q); err != nil {
		return f, err
	}
	if f.state = facts.Known(q.GetState(), verdict.Unheard); f.state == 0 && q.GetState() != 0 {
		return f, errOwnerState
	}
	f.scope, err = parseScopes(q.GetScope())
	return f, err
}

var errOwnerState = status.Error(codes.InvalidArgument, "state must be LIVE, STALE or DISCONNECTED: omit it for all owners")

// conflictFilter selects conflicts by their address, and by a single owner that meets all other
// conditions.
type conflictFilter struct {
	filter
	phase verdict.Phase
	cause string
	// within selects the scope of the conflict, which may be narrower than those of its owners.
	within scopes
	// active leaves out resolved conflicts.
	active bool
	// incident is the ID of the incident of the conflicts; empty for all.
	incident string
}

// newConflictFilter returns the filter of a request for conflicts.
func newConflictFilter(q ConflictsRequest) (f conflictFilter, err error) {
	if f.filter, err = newFilter(q); err != nil {
		return f, err
	}
	if f.phase = facts.Known(q.GetState(), verdict.Resolved); f.phase == 0 && q.GetState() != 0 {
		return f, errState
	}
	if f.cause = q.GetCause(); f.cause != "" && !slices.Contains(verdict.Causes(), f.cause) {
		return f, status.Errorf(codes.InvalidArgument, "unknown cause %q: use one of %s", f.cause, strings.Join(verdict.Causes(), ", "))
	}
	f.incident = q.GetIncident()
	f.within, err = parseScopes(q.GetScope())
	return f, err
}

var errState = status.Error(codes.InvalidArgument, "state must be SUSPECTED, CONFIRMED or RESOLVED: omit it for active conflicts")

// anyOwner reports whether the filter has a condition for owners.
func (f *filter) anyOwner() bool { return f.node+f.namespace+f.pod+string(f.mac)+f.word != "" }

// conflict reports whether a conflict with an address in span matches.
func (f *conflictFilter) conflict(c *verdict.Conflict, incident string) bool {
	owners := f.meaning(c.ID, incident)
	return f.kind(c.Phase, c.Cause) && f.within.has(c.Kind, c.Scope) && (!f.active || c.Active()) && (f.incident == "" || f.incident == incident) &&
		(!owners.anyOwner() || slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return owners.owner(&o, o.Node.Name) }))
}

func (f *conflictFilter) kind(phase verdict.Phase, cause string) bool {
	return (f.phase == 0 || f.phase == phase) && (f.cause == "" || f.cause == cause)
}

func (f *conflictFilter) contest(c *live.Contest) bool {
	owners := f.meaning(c.ID, c.Incident)
	return f.kind(c.Phase, c.Cause) && f.within.has(c.Kind, c.Scope) && (f.incident == "" || f.incident == c.Incident) &&
		(!owners.anyOwner() || slices.ContainsFunc(c.Holders, func(h live.Holder) bool { return owners.owner(&h.Owner, h.Node) }))
}

// change returns the type of an event as a subscriber sees it, and whether the subscriber gets it.
// was and is say whether the item matched before and matches now: an item that no longer matches is
// gone for the subscriber, and one that begins to match is new.
func change(typ pb.Watch_Type, was, is bool) (pb.Watch_Type, bool) {
	switch {
	case typ == pb.Watch_UPDATED && is && !was:
		return pb.Watch_ADDED, true
	case typ == pb.Watch_UPDATED && was && !is:
		return pb.Watch_REMOVED, true
	case typ == pb.Watch_REMOVED:
		return typ, was
	}
	return typ, is
}

// span returns the range of the addresses that can match. It is empty if its end is before its
// start.
func (f *filter) span() ipam.Range {
	r := allAddresses
	if f.prefix.IsValid() {
		r = ipam.RangeOf(f.prefix)
	}
	if f.addr.IsValid() {
		if !f.address(f.addr) {
			return ipam.Range{First: allAddresses.Last, Last: allAddresses.First}
		}
		r = ipam.Range{First: f.addr, Last: f.addr}
	}
	return r
}

// ParseAddress parses an IP address in any notation and drops its zone. An IPv4-mapped IPv6 address (RFC 4291, section
// 2.5.5.2) is an error: it is not the IPv4 address, and its owners are not compared.
func ParseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, status.Errorf(codes.InvalidArgument, "%q is not an address: give one like 10.244.1.5 or fd00::5", text)
	case a.Is4In6():
		return a, status.Errorf(codes.InvalidArgument, "%s is an IPv6 address of its own, whose owners are not compared: ask for %s", a, a.Unmap())
	}
	return a.WithZone(""), nil
}

// Unmap returns the IPv4 prefix of an IPv4-mapped IPv6 prefix, and any other prefix unchanged.
func Unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// address reports whether an address matches.
func (f *filter) address(a netip.Addr) bool {
	return (!f.addr.IsValid() || f.addr == a) && (!f.prefix.IsValid() || f.prefix.Contains(a))
}

// owner reports whether an owner of a matching address matches. The name of its node is passed
// separately, because it may change.
func (f *filter) owner(o *verdict.Owner, node string) bool {
	if f.node != "" && f.node != node || f.state != 0 && f.state != o.State {
		return false
	}
	if f.scope.kind != 0 && !f.scope.has(o.Scope.Kind, o.Scope.Text()) {
		return false
	}
	if f.namespace+f.pod != "" && !f.named(o.Named()) || !f.means(o, node) {
		return false
	}
	if f.mac == "" || f.mac == o.MAC {
		return true
	}
	for _, c := range o.Claims {
		if f.mac == c.MAC {
			return true
		}
	}
	return false
}

// findingFilter selects findings. A finding that names several addresses is about each of them.
type findingFilter struct {
	filter
	kind string
	// incident is the ID of the incident of the findings; empty for all.
	incident string
}

// newFindingFilter returns the filter of a request for findings.
func newFindingFilter(q FindingsRequest) (f findingFilter, err error) {
	if f.filter, err = newFilter(q); err != nil {
		return f, err
	}
	f.kind, f.incident = q.GetKind(), q.GetIncident()
	if kinds := verdict.FindingKinds(); f.kind != "" && !slices.Contains(kinds, f.kind) {
		return f, status.Errorf(codes.InvalidArgument, "unknown kind of finding %q: use one of %s", f.kind, strings.Join(kinds, ", "))
	}
	return f, nil
}

// finding reports whether a finding matches.
func (f *findingFilter) finding(one live.Matter) bool {
	owned := func(by *filter) bool {
		return slices.ContainsFunc(one.Owners, func(o verdict.Owner) bool { return by.owner(&o, "") })
	}
	switch {
	case f.kind != "" && f.kind != one.Kind, f.incident != "" && f.incident != one.Incident,
		f.somewhere() && !f.address(one.Address) && !slices.ContainsFunc(audit.Addresses(one.Finding), f.address),
		f.node != "" && !slices.Contains(one.Nodes, f.node),
		f.mac != "" && (one.Spoof == nil || !slices.Contains(one.Spoof.MACs, f.mac)) && !owned(&filter{mac: f.mac}):
		return false
	}
	workload := filter{namespace: f.namespace, pod: f.pod, word: f.meaning(one.ID, one.Incident).word}
	if slices.Contains(one.Nodes, workload.word) || one.PoolName != "" && workload.partOf(one.PoolName) {
		workload.word = ""
	}
	return !workload.anyOwner() || owned(&workload) ||
		slices.ContainsFunc(one.Allocations, func(al *verdict.Allocation) bool { return workload.allocated(al.Namespace, al.Pod) })
}

// allocated reports whether an allocation to a pod matches.
func (f *filter) allocated(namespace, pod string) bool {
	return f.named(namespace, pod) && (f.word == "" || f.partOf(namespace+"/"+pod))
}

// somewhere reports whether the filter has a condition for addresses.
func (f *filter) somewhere() bool { return f.addr.IsValid() || f.prefix.IsValid() }

// named reports whether a workload with these names matches.
func (f *filter) named(namespace, name string) bool {
	return (f.namespace == "" || f.namespace == namespace) && (f.pod == "" || f.pod == name)
}
