package api

import (
	"net/netip"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// mostPrevious is the number of owners of one address whose previous owners are looked up.
const mostPrevious = 16

// addPrevious adds the previous owners to the owners of one address, as far as the journal has them.
// The caller does not hold the facts, because the journal may be slow.
func (s *Service) addPrevious(owners []*pb.Owner) {
	if s.Journal == nil {
		return
	}
	for _, o := range owners[:min(len(owners), mostPrevious)] {
		addr, err := netip.ParseAddr(o.GetAddress())
		if err != nil || o.GetState() != pb.Owner_LIVE || !hasAddress(o) {
			continue
		}
		was, err := s.Journal.Before(addr, func(other *pb.Owner) bool { return sameOwner(o, other) }, func(other *pb.Owner) bool {
			return hasAddress(other) && !sameOwner(o, other) && !sameWorkload(o, other)
		})
		if err != nil || was == nil {
			continue // ListNodes says what is wrong with the journal
		}
		p := &pb.PreviousOwner{
			Workload: was.Owner.GetWorkload(), Node: was.Owner.GetNode(), Interface: was.Owner.GetInterface(), Mac: was.Owner.GetMac(), Netns: was.Owner.GetNetns(),
			Until: timestamppb.New(was.Until),
		}
		switch {
		case !was.NotBefore.IsZero():
			p.NotBefore = timestamppb.New(was.NotBefore)
		case !was.Since.IsZero():
			p.Gap = durationpb.New(max(0, was.Since.Sub(was.Until)))
		}
		o.Previous = p
	}
}

// hasAddress reports whether the kernel of an owner has the address, and the owner is compared with
// others.
func hasAddress(o *pb.Owner) bool { return o.GetAssignedAt() != nil && o.GetExcluded() == "" }

// sameOwner reports whether two records are of one network namespace.
func sameOwner(o, other *pb.Owner) bool {
	return o.GetNode() == other.GetNode() && o.GetNetns() == other.GetNetns()
}

// sameWorkload reports whether two records are of one workload, such as two sandboxes of a pod.
func sameWorkload(o, other *pb.Owner) bool {
	a, b := o.GetWorkload(), other.GetWorkload()
	return a.GetName() != "" && a.GetKind() == b.GetKind() && a.GetNamespace() == b.GetNamespace() && a.GetName() == b.GetName() &&
		(a.GetKind() == pb.Workload_POD || o.GetNode() == other.GetNode())
}
