package aggregator

import (
	"fmt"

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
		port := f.GetInterface()
		if ns := n.behind(f.GetIndex()); ns != nil {
			port += " (" + explain.NamespaceName(ns.rec) + ")"
		}
		out = append(out, fmt.Sprintf(
			"%s floods the agent with new bindings: %d frames and claims were left out since %s, %d a second now. "+
				"Claims to addresses that this node or its IPAM knows are still taken, others by this port may be missing: "+
				"look for a scanner, a loop or an attack behind it",
			port, f.GetLeftOut(), f.GetSince().AsTime().UTC().Format("2006-01-02 15:04:05 MST"), f.GetRate()))
	}
	return out
}
