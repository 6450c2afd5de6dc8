package live

import (
	"encoding/hex"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// owner returns an owner of a recorded conflict. It counts as disconnected while the conflict is active.
// It has no claims.
func (r *Recall) owner(m *pb.Owner, active bool) verdict.Owner {
	boot := r.boots[m.GetNode()]
	w := m.GetWorkload()
	o := verdict.Owner{
		Node: &verdict.Node{Name: m.GetNode(), Boot: boot, Unheard: true}, MAC: parseMAC(m.GetMac()), State: verdict.Gone,
		Assigned: m.GetAssignedAt() != nil, Orphaned: w.GetOrphaned(),
		Interface: &verdict.Interface{Name: m.GetInterface(), HostInterface: m.GetHostInterface(), MAC: parseMAC(m.GetMac())},
	}
	o.Scope = scopeOf(m.GetScope())
	if active {
		o.State = verdict.Unheard
	}
	if m.GetInterface() == "" {
		o.Interface.Name = m.GetHostInterface()
	}
	if m.GetNetns() == "" { // a device outside of all nodes, which its MAC identifies
		o.ID = boot + "/" + m.GetMac()
		o.Interface.Namespace = &verdict.Namespace{Node: o.Node}
		return o
	}
	// As verdict.OwnerID makes it: of a namespace without an inode, the message has the rest of the ID.
	number, isRest := strings.CutPrefix(m.GetNetns(), "#")
	o.Namespace = &verdict.Namespace{Node: o.Node, ID: boot + "/" + number, Who: verdict.Workload{
		Kind: verdict.WorkloadKind(w.GetKind()), Namespace: w.GetNamespace(), Name: w.GetName(), UID: w.GetUid(), ContainerID: w.GetContainerId(),
		Source: w.GetSource(), Process: w.GetProcess(), VirtualMachine: w.GetVirtualMachine(), Ended: w.GetProcessEnded(),
	}.Who()}
	if !isRest {
		o.Namespace.Netns = number
	}
	o.ID, o.Interface.Namespace = o.Namespace.ID, o.Namespace
	return o
}

func scopeOf(m *pb.Scope) verdict.Scope {
	s := verdict.Scope{Kind: verdict.ScopeKind(m.GetKind()), Name: m.GetName()}
	if s.Kind != verdict.NetworkScope {
		s.Node, s.Name, _ = strings.Cut(m.GetName(), "/")
	}
	return s
}

func parseMAC(text string) verdict.MAC {
	raw, _ := hex.DecodeString(strings.ReplaceAll(text, ":", "")) // as MAC.String makes it
	return verdict.MAC(raw)
}

func stampOf(t *timestamppb.Timestamp) verdict.Stamp {
	if t == nil {
		return 0
	}
	return verdict.At(t.AsTime())
}
