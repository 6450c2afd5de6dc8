package aggregator

import (
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// maxFlooding limits the flooding ports that are accepted of one node.
const maxFlooding = 256

// behind returns the namespace that has the other end of an interface of the node; nil if there
// is none or it is not known.
func (n *node) behind(index uint32) *namespace {
	port := n.interfaces.get(ifaceKey{verdict.OwnRecord, index})
	if port == nil || port.rec.Peer == 0 {
		return nil
	}
	return n.namespaces.get(port.rec.Peer)
}

// flooding lists the ports of a node that flood its agent, with the namespace behind each.
func (n *node) flooding() (out []*pb.Node_Flooding) {
	for _, f := range n.status.GetFlooding() {
		flooding := &pb.Node_Flooding{Interface: f.GetInterface(), LeftOut: f.GetLeftOut(), Rate: f.GetRate(), Since: f.GetSince()}
		if ns := n.behind(f.GetIndex()); ns != nil {
			flooding.Workload = workloadProto(&verdict.Owner{Namespace: ns.rec})
		}
		out = append(out, flooding)
	}
	return out
}

// floodProblems describes the flooding ports in words.
func (n *node) floodProblems() (out []string) {
	for _, f := range n.status.GetFlooding() {
		var behind *verdict.Namespace
		if ns := n.behind(f.GetIndex()); ns != nil {
			behind = ns.rec
		}
		out = append(out, explain.Flood(f.GetInterface(), behind, f.GetLeftOut(), stamp(f.GetSince()), f.GetRate()))
	}
	return out
}
