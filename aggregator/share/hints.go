package share

import (
	"net/netip"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The forms in which replicas tell each other of nodes, links, interfaces and addresses.

func nodeRef(n facts.NodeID) *pb.NodeRef {
	return &pb.NodeRef{BootId: n.Boot, Netns: n.Netns, Vouched: n.Vouched}
}

func nodeID(n *pb.NodeRef) facts.NodeID {
	return facts.NodeID{Boot: n.GetBootId(), Netns: n.GetNetns(), Vouched: n.GetVouched()}
}

func linkRef(l facts.LinkID) *pb.LinkRef { return &pb.LinkRef{Node: nodeRef(l.Node), Name: l.Name} }

func linkID(l *pb.LinkRef) facts.LinkID {
	return facts.LinkID{Node: nodeID(l.GetNode()), Name: l.GetName()}
}

func interfaceRef(i facts.InterfaceID) *pb.InterfaceRef {
	return &pb.InterfaceRef{Node: nodeRef(i.Node), Namespace: i.Namespace, Index: i.Index}
}

func interfaceID(i *pb.InterfaceRef) facts.InterfaceID {
	return facts.InterfaceID{Node: nodeID(i.GetNode()), Namespace: i.GetNamespace(), Index: i.GetIndex()}
}

func timestamp(s verdict.Stamp) *timestamppb.Timestamp {
	if s == 0 {
		return nil
	}
	return timestamppb.New(s.Time())
}

func stamp(t *timestamppb.Timestamp) verdict.Stamp {
	if t == nil {
		return 0
	}
	return verdict.At(t.AsTime())
}

// hintOf returns the message about an address.
func hintOf(a index.Address, h *findings.Hint) *pb.AddressHint {
	m := &pb.AddressHint{Address: a.Addr().AsSlice()}
	for _, p := range h.Pools {
		out := &pb.PoolHint{Ipam: p.Pool.IPAM, Name: p.Pool.Name, Leaked: p.Leaked}
		if p.Pool.Node != (facts.NodeID{}) {
			out.Node = nodeRef(p.Pool.Node)
		}
		for _, o := range p.Holders {
			out.Holders = append(out.Holders, &pb.HolderHint{Interface: interfaceRef(o.Interface), AssignedAt: timestamp(o.AssignedAt)})
		}
		m.Pools = append(m.Pools, out)
	}
	for _, c := range h.Clones {
		m.Clones = append(m.Clones, &pb.CloneHint{
			Port: interfaceRef(c.Port), Sender: c.Sender, Victim: interfaceRef(c.Victim), Mac: []byte(c.MAC),
			FirstSeen: timestamp(c.First), LastSeen: timestamp(c.Last), Count: c.Count,
		})
	}
	return m
}

// hintsFrom returns the hints of a message.
func hintsFrom(all []*pb.AddressHint) map[index.Address]findings.Hint {
	out := make(map[index.Address]findings.Hint, len(all))
	for _, m := range all {
		addr, ok := netip.AddrFromSlice(m.GetAddress())
		if !ok {
			continue
		}
		var h findings.Hint
		for _, p := range m.GetPools() {
			one := findings.PoolHint{Pool: facts.PoolID{Node: nodeID(p.GetNode()), IPAM: p.GetIpam(), Name: p.GetName()}, Leaked: p.GetLeaked()}
			for _, o := range p.GetHolders() {
				one.Holders = append(one.Holders, findings.Holder{Interface: interfaceID(o.GetInterface()), AssignedAt: stamp(o.GetAssignedAt())})
			}
			h.Pools = append(h.Pools, one)
		}
		for _, c := range m.GetClones() {
			h.Clones = append(h.Clones, findings.CloneHint{
				Port: interfaceID(c.GetPort()), Victim: interfaceID(c.GetVictim()), Sender: c.GetSender(), MAC: verdict.MAC(c.GetMac()),
				First: stamp(c.GetFirstSeen()), Last: stamp(c.GetLastSeen()), Count: c.GetCount(),
			})
		}
		out[index.AddressOf(addr)] = h
	}
	return out
}
