package model_test

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// anyText replaces texts, which are not compared.
const anyText = "…"

func timestamp(s verdict.Stamp) *timestamppb.Timestamp {
	if s <= 0 {
		return nil
	}
	return timestamppb.New(s.Time())
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func scopeProto(kind verdict.ScopeKind, name string) *pb.Scope {
	if kind == 0 {
		return nil
	}
	return &pb.Scope{Kind: pb.Scope_Kind(kind), Name: name}
}

// listOwners lists the owners of all addresses as the API does.
func (r *reference) listOwners() (list []*pb.Owner) {
	for _, a := range r.addresses() {
		list = append(list, r.ownersProto(a, r.of(a).owners)...)
	}
	return list
}

func (r *reference) ownersProto(a netip.Addr, owners []verdict.Owner) (list []*pb.Owner) {
	for i := range owners {
		list = append(list, r.ownerProto(a, &owners[i]))
	}
	return list
}

func (r *reference) ownerProto(a netip.Addr, o *verdict.Owner) *pb.Owner {
	out := &pb.Owner{
		Address: addressText(a), Scope: scopeProto(o.Scope.Kind, o.Scope.Text()), Node: o.Node.Name, Mac: o.MAC.String(),
		Workload: workloadProto(o.Namespace), Intended: r.lacking(o), State: pb.Owner_State(o.State), AssignedAt: timestamp(o.AssignedAt()),
	}
	if o.Excluded != nil {
		out.Excluded = anyText
	}
	if ns := o.Namespace; ns != nil {
		if out.Netns = ns.Netns; out.Netns == "" {
			out.Netns = "#" + strings.TrimPrefix(ns.ID, ns.Node.Boot+"/")
		}
	}
	if i := o.Interface; o.Namespace != nil && i.Namespace.ID == o.ID {
		out.Interface, out.HostInterface = i.Name, i.HostInterface
	} else {
		out.HostInterface = i.Name
	}
	var first, last verdict.Stamp
	for _, c := range o.Claims {
		if c.First != 0 && (first == 0 || c.First < first) {
			first = c.First
		}
		last = max(last, c.Last)
		mac := c.MAC
		if mac == "" {
			mac = c.Interface.MAC
		}
		out.Evidence = append(out.Evidence, &pb.Evidence{
			Kind: pb.Evidence_Kind(c.Kind), FirstSeen: timestamp(c.First), LastSeen: timestamp(c.Last), Count: c.Count,
			Witness: c.Node().Name + "/" + c.Interface.Name, Mac: mac.String(), NoOverride: c.NoOverride,
		})
	}
	out.FirstSeen, out.LastSeen = timestamp(first), timestamp(last)
	return out
}

func workloadProto(ns *verdict.Namespace) *pb.Workload {
	if ns == nil {
		return &pb.Workload{Kind: pb.Workload_EXTERNAL}
	}
	w := ns.Who.Workload()
	return &pb.Workload{
		Kind: pb.Workload_Kind(w.Kind), Namespace: w.Namespace, Name: w.Name, Uid: w.UID, ContainerId: w.ContainerID, Source: w.Source,
		VirtualMachine: w.VirtualMachine,
	}
}

// lacking returns the intended addresses of an owner that neither its kernel nor the wire shows, and that it was not refused.
func (r *reference) lacking(o *verdict.Owner) (list []*pb.Intended) {
	if o.Namespace == nil {
		return nil
	}
	for line := range strings.Lines(o.Namespace.Intended) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if a, err := netip.ParseAddr(words[0]); err != nil || !r.speaks(o.ID, a) {
			list = append(list, &pb.Intended{Address: words[0], Source: words[1], Interface: words[2]})
		}
	}
	return list
}

// speaks reports whether an owner was seen on the wire with an address, or detection of duplicates failed in its kernel.
func (r *reference) speaks(id string, a netip.Addr) bool {
	for _, o := range r.of(a).owners {
		if o.ID == id {
			return o.DADFailed() && !o.Yielded() || slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Wire() && !c.Weak() })
		}
	}
	return false
}

// An ended is a resolved conflict.
type ended struct {
	id      string
	episode uint32
	at      verdict.Stamp
}

// resolved returns the resolved conflicts.
func (r *reference) resolved() (list []ended) {
	for _, a := range r.addresses() {
		for i := range r.of(a).conflicts {
			if c := &r.of(a).conflicts[i]; !c.Active() {
				list = append(list, ended{c.ID, c.Episode, c.ResolvedAt})
			}
		}
	}
	return list
}

// listConflicts lists the conflicts of all addresses as the API does, including resolved ones if
// all is set.
func (r *reference) listConflicts(all bool) (list []*pb.Conflict) {
	for _, a := range r.addresses() {
		conflicts := slices.Clone(r.of(a).conflicts)
		slices.SortFunc(conflicts, func(a, b verdict.Conflict) int { return strings.Compare(a.ID, b.ID) })
		for i := range conflicts {
			c := &conflicts[i]
			if !all && !c.Active() {
				continue
			}
			out := &pb.Conflict{
				Id: c.ID, Episode: c.Episode, Address: c.Address.String(), Scope: scopeProto(c.Kind, c.Scope), State: pb.Conflict_State(c.Phase),
				Cause: c.Cause, Rule: c.Rule, Owners: r.ownersProto(a, c.Owners), Order: c.Order, LinkProof: pb.LinkProof_Kind(c.LinkProof),
				DetectedAt: timestamp(c.DetectedAt), ConfirmedAt: timestamp(c.ConfirmedAt), ResolvedAt: timestamp(c.ResolvedAt),
				Allocations: allocationsProto(c.Allocations),
			}
			for _, e := range c.RuledOut {
				out.Excluded = append(out.Excluded, &pb.Exclusion{Cause: e.Cause})
			}
			list = append(list, out)
		}
	}
	return list
}

func allocationsProto(all []*verdict.Allocation) (list []*pb.Allocation) {
	for _, al := range all {
		list = append(list, &pb.Allocation{
			Ipam: al.Pool.IPAM, Pool: al.Pool.Name, Node: al.Pool.Node.Name, ContainerId: al.ContainerID, Interface: al.Interface,
			Namespace: al.Namespace, Pod: al.Pod, AllocatedAt: timestamp(al.AllocatedAt),
		})
	}
	return list
}

// listFindings lists the findings as the API does. It includes the late ones only if nothing has
// changed recently.
func (r *reference) listFindings() []*pb.Finding {
	list := r.findings()
	for _, f := range list {
		f.DetectedAt = timestamp(r.since[f.GetId()])
	}
	if r.quiet() {
		list = append(list, r.late()...)
	}
	slices.SortFunc(list, func(a, b *pb.Finding) int {
		return cmp.Or(strings.Compare(a.GetKind(), b.GetKind()), strings.Compare(a.GetAddress(), b.GetAddress()), strings.Compare(a.GetId(), b.GetId()))
	})
	return list
}

// findingProto returns a finding about an address.
func (r *reference) findingProto(f *verdict.Finding) *pb.Finding {
	out := &pb.Finding{
		Kind: f.Kind, Address: addressText(f.Address), Id: f.ID, Severity: pb.Finding_Severity(f.Severity),
		Owners: r.ownersProto(f.Address, f.Owners), Allocations: allocationsProto(f.Allocations),
	}
	for _, o := range f.Owners {
		if !slices.Contains(out.GetNodes(), o.Node.Name) {
			out.Nodes = append(out.Nodes, o.Node.Name)
		}
	}
	for _, b := range f.Beliefs {
		out.Beliefs = append(out.Beliefs, &pb.Belief{Mac: b.MAC.String(), Node: b.Link.Node.Name, Link: b.Link.Name, State: pb.Belief_State(b.State), Count: b.Count})
		if name := b.Link.Node.Name; b.Count > 0 && !slices.Contains(out.GetNodes(), name) {
			out.Nodes = append(out.Nodes, name)
		}
	}
	if f.Overlap != nil {
		out.Nodes = f.Overlap.Nodes // that whose subnets overlap; an owner may be on another one
	}
	if f.Pool != nil {
		if name := f.Pool.Node.Name; !slices.Contains(out.GetNodes(), name) {
			out.Nodes = append(out.Nodes, name)
		}
		out.Pool = r.poolProto(f.Pool)
	}
	return out
}

// poolProto returns a pool with its usage.
func (r *reference) poolProto(p *verdict.Pool) *pb.Pool {
	out := &pb.Pool{Ipam: p.IPAM, Name: p.Name, Node: p.Node.Name, Network: p.Network, State: pb.Pool_State(p.State), Size: p.Size()}
	for _, g := range p.Ranges {
		out.Ranges = append(out.Ranges, g.String())
	}
	for a, m := range r.memory {
		if !a.Is4() {
			continue // the generator has only IPv4 pools
		}
		if slices.ContainsFunc(m.allocations, func(al *allocation) bool { return al.pool.rec == p }) {
			out.Allocated++
		}
		if slices.ContainsFunc(m.found, func(f verdict.Finding) bool { return f.Kind == verdict.FindingLeaked && f.Pool == p && !f.Waiting }) {
			out.Leaked++
		}
	}
	return out
}
