package live

import (
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// flooding lists the ports of a node that flood its agent, with the namespace behind each.
func flooding(n *facts.Node) (out []*pb.Node_Flooding) {
	for _, f := range n.Status.GetFlooding() {
		flooding := &pb.Node_Flooding{Interface: f.GetInterface(), LeftOut: f.GetLeftOut(), Rate: f.GetRate(), Since: f.GetSince()}
		if ns := n.Behind(f.GetIndex()); ns != nil {
			flooding.Workload = workloadProto(&verdict.Owner{Namespace: ns})
		}
		out = append(out, flooding)
	}
	return out
}

// floodProblems returns a description of each flooding port.
func floodProblems(n *facts.Node) (out []string) {
	for _, f := range n.Status.GetFlooding() {
		out = append(out, explain.Flood(f.GetInterface(), n.Behind(f.GetIndex()), f.GetLeftOut(), facts.Stamp(f.GetSince()), f.GetRate()))
	}
	return out
}
