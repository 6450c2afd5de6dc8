package live

import (
	"cmp"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Owner returns an owner in the format of the API. all are the owners of the address.
func (s *Converter) Owner(a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	return s.ownerBy(new(maker), a, o, all)
}

func (s *Converter) ownerBy(m *maker, a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	out := m.owner(s.Facts.Policy, a, o, all)
	out.Intended = intendedProto(s.Findings.Lacking(o))
	return out
}

// Owner returns an owner in the format of the API, without its intended addresses. all are the
// owners of the address.
func Owner(p *verdict.Policy, a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	return new(maker).owner(p, a, o, all)
}

// A Lister creates the owners of one list. They share common values and are allocated several at a
// time, so that one owner can keep others in memory. A Lister is not safe for concurrent use.
type Lister struct {
	convert *Converter
	maker   maker
}

// listedAtOnce is the number of owners that a Lister allocates at a time.
const listedAtOnce = 16

// Lister returns a new Lister.
func (s *Converter) Lister() *Lister { return &Lister{s, maker{atOnce: listedAtOnce}} }

// Owner returns an owner in the format of the API. all are the owners of the address.
func (l *Lister) Owner(a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	return l.convert.ownerBy(&l.maker, a, o, all)
}

// maker creates owners.
type maker struct {
	// atOnce is the number of owners that are allocated at a time; 0 for one.
	atOnce int
	free   []parts
	times  timestamps
	// Values of the previous owner, which the next owner often has, too.
	scope   *pb.Scope
	packed  string
	sources map[string]string
}

// parts are the messages of an owner with one claim.
type parts struct {
	owner    pb.Owner
	workload pb.Workload
	evidence pb.Evidence
	list     [1]*pb.Evidence
}

func (m *maker) next() *parts {
	if len(m.free) == 0 {
		m.free = make([]parts, max(1, m.atOnce))
	}
	one := &m.free[0]
	m.free = m.free[1:]
	return one
}

func (m *maker) owner(p *verdict.Policy, a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	one := m.next()
	out := &one.owner
	name := o.Scope.Text()
	if m.scope == nil || m.scope.GetKind() != pb.Scope_Kind(o.Scope.Kind) || m.scope.GetName() != name {
		m.scope = Scope(o.Scope.Kind, name)
	}
	out.Address, out.Scope, out.Node = addressText(a), m.scope, o.Node.Name
	out.Mac, out.Netns = o.MAC.String(), netns(o)
	out.Workload = m.workload(&one.workload, o)
	out.State, out.Excluded = pb.Owner_State(o.State), explain.Exclusion(p, o, all)
	out.AssignedAt, out.Routed = m.times.of(o.AssignedAt()), o.Routed()
	if i := o.Interface; o.Namespace != nil && i.Namespace.ID == o.ID {
		out.Interface, out.HostInterface = i.Name, i.HostInterface
	} else {
		out.HostInterface = i.Name // the port by which its frames enter
	}
	out.Evidence = one.list[:0]
	if len(o.Claims) > 1 {
		out.Evidence = make([]*pb.Evidence, 0, len(o.Claims))
	}
	var first, last verdict.Stamp
	for k, c := range o.Claims {
		if c.First != 0 && (first == 0 || c.First < first) {
			first = c.First
		}
		last = max(last, c.Last)
		mac, macText := c.MAC, out.Mac
		mac = cmp.Or(mac, c.Interface.MAC)
		if mac != o.MAC {
			macText = mac.String()
		}
		e := &one.evidence
		if k > 0 {
			e = new(pb.Evidence)
		}
		e.Kind, e.Count, e.NoOverride = pb.Evidence_Kind(c.Kind), c.Count, c.NoOverride
		e.FirstSeen, e.LastSeen = m.times.of(c.First), m.times.of(c.Last)
		e.Witness, e.Mac = c.Node().Name+"/"+c.Interface.Name, macText
		out.Evidence = append(out.Evidence, e)
	}
	out.FirstSeen, out.LastSeen = m.times.of(first), m.times.of(last)
	return out
}

// timestamps caches the times that were converted last, so that owners share them.
type timestamps struct {
	at    [4]verdict.Stamp
	proto [4]*timestamppb.Timestamp
	count int
}

// of returns a time in the format of the API.
func (t *timestamps) of(s verdict.Stamp) *timestamppb.Timestamp {
	if s <= 0 {
		return nil
	}
	if i := slices.Index(t.at[:], s); i >= 0 {
		return t.proto[i]
	}
	made, place := timestamp(s), t.count%len(t.at)
	t.at[place], t.proto[place] = s, made
	t.count++
	return made
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
