package show

import (
	"fmt"
	"io"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// nodeColumns is how a table shows nodes.
func nodeColumns() []column[*pb.Node] {
	return []column[*pb.Node]{
		{header: "NAME", cell: func(n *pb.Node, _ time.Time) string { return n.GetName() }},
		{header: "STATE", cell: func(n *pb.Node, _ time.Time) string { return n.GetState().String() }},
		{header: "VERSION", cell: func(n *pb.Node, _ time.Time) string { return n.GetVersion() }},
		{header: "KERNEL", cell: func(n *pb.Node, _ time.Time) string { return n.GetKernel() }},
		{header: "WIRE", cell: func(n *pb.Node, _ time.Time) string { return n.GetWire() }},
		{header: "PORTS", cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetPorts()) }},
		{header: "NAMESPACES", cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetNamespaces()) }},
		{header: "CLAIMS", cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetClaims()) }},
		{header: "LOST", cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetLostEvents()) }},
		{header: "LAST HEARD", cell: func(n *pb.Node, now time.Time) string { return ago(n.GetLastHeard(), now) }},
		{header: "CONNECTED", wide: true, cell: func(n *pb.Node, now time.Time) string { return ago(n.GetConnectedAt(), now) }},
		{header: "NETNS", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetNetns() }},
		{header: "BOOT ID", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetBootId() }},
	}
}

// Nodes writes nodes as a table, and below it what does not work on them.
func Nodes(w io.Writer, nodes []*pb.Node, wide bool, now time.Time) error {
	if err := list(w, narrow(nodeColumns(), wide), nodes, now); err != nil {
		return err
	}
	p := &page{now: now}
	for _, n := range nodes {
		for _, problem := range n.GetProblems() {
			if p.text.Len() == 0 {
				p.line("")
				p.line("Problems:")
			}
			p.line("  %s: %s", n.GetName(), problem)
		}
	}
	return p.write(w)
}
