package live

import (
	"cmp"
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Owner returns an owner in the format of the API. all are the owners of the address.
func (s *Converter) Owner(a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	out := Owner(s.Facts.Policy, a, o, all)
	out.Intended = intendedProto(s.Findings.Lacking(o))
	return out
}

// Owner returns an owner in the format of the API, without its intended addresses. all are the
// owners of the address.
func Owner(p *verdict.Policy, a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	out := &pb.Owner{
		Address: addressText(a), Scope: Scope(o.Scope.Kind, o.Scope.Text()), Node: o.Node.Name, Mac: o.MAC.String(), Netns: netns(o),
		Workload: workloadProto(o), State: pb.Owner_State(o.State), Excluded: explain.Exclusion(p, o, all),
		AssignedAt: timestamp(o.AssignedAt()), Routed: o.Routed(),
	}
	if i := o.Interface; o.Namespace != nil && i.Namespace.ID == o.ID {
		out.Interface, out.HostInterface = i.Name, i.HostInterface
	} else {
		out.HostInterface = i.Name // the port by which its frames enter
	}
	var first, last verdict.Stamp
	for _, c := range o.Claims {
		e := &pb.Evidence{
			Kind: pb.Evidence_Kind(c.Kind), Count: c.Count, NoOverride: c.NoOverride, FirstSeen: timestamp(c.First), LastSeen: timestamp(c.Last),
			Witness: c.Node().Name + "/" + c.Interface.Name, Mac: cmp.Or(c.MAC, c.Interface.MAC).String(),
		}
		if c.First != 0 && (first == 0 || c.First < first) {
			first, out.FirstSeen = c.First, e.FirstSeen
		}
		if c.Last > last {
			last, out.LastSeen = c.Last, e.LastSeen
		}
		out.Evidence = append(out.Evidence, e)
	}
	return out
}

// netns returns the inode of an owner's namespace, or the number that its agent gave it.
func netns(o *verdict.Owner) string {
	switch {
	case o.Namespace == nil:
		return ""
	case o.Namespace.Netns != "":
		return o.Namespace.Netns
	}
	return "#" + o.Namespace.ID[len(o.Namespace.Node.Boot)+1:]
}

// Owners returns the owners of an address in the format of the API.
func Owners(a netip.Addr, owners []verdict.Owner, proto func(netip.Addr, *verdict.Owner, []verdict.Owner) *pb.Owner) []*pb.Owner {
	out := make([]*pb.Owner, 0, len(owners))
	for i := range owners {
		out = append(out, proto(a, &owners[i], owners))
	}
	return out
}

// addressText returns an address in the format of the API, or an empty string for an invalid
// address.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// NamesOf returns what names an owner, on a node that had a name at some time.
func NamesOf(o *verdict.Owner, node string) *pb.Owner {
	return &pb.Owner{Node: node, Netns: netns(o), Workload: workloadProto(o)}
}
