package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// nodeColumns returns the columns of a table of nodes.
func nodeColumns() []column[*pb.Node] {
	return []column[*pb.Node]{
		{header: "NAME", room: 16, cell: func(n *pb.Node, _ time.Time) string { return n.GetName() }},
		{header: "STATE", tone: nodeTone, room: 7, cell: func(n *pb.Node, _ time.Time) string { return n.GetState().String() }},
		{header: "VERSION", trait: trait{rank: 5}, room: 7, cell: func(n *pb.Node, _ time.Time) string { return n.GetVersion() }},
		{header: "KERNEL", trait: trait{rank: 7}, room: 14, cell: func(n *pb.Node, _ time.Time) string { return n.GetKernel() }},
		{header: "WIRE", trait: trait{rank: 3}, room: 6, cell: func(n *pb.Node, _ time.Time) string { return n.GetWire() }},
		{header: "PORTS", trait: trait{rank: 8}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetPorts()) }},
		{header: "CLAIMS", trait: trait{rank: 6}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetClaims()) }},
		{header: "LAG", trait: trait{rank: 2}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return lag(n.GetLag()) }},
		{header: "SKEW", trait: trait{rank: 9}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return skew(n.GetSkew()) }},
		{header: "LOST", trait: trait{rank: 4}, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetLostEvents()) }},
		{header: "LAST HEARD", trait: trait{rank: 1}, ages: true, at: (*pb.Node).GetLastHeard, cell: func(n *pb.Node, now time.Time) string { return ago(n.GetLastHeard(), now) }},
		{header: "RUNTIME", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetRuntime() }},
		{header: "NAMESPACES", wide: true, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetNamespaces()) }},
		{header: "CONNECTED", wide: true, ages: true, cell: func(n *pb.Node, now time.Time) string { return ago(n.GetConnectedAt(), now) }},
		{header: "NETNS", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetNetns() }},
		{header: "BOOT ID", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetBootId() }},
	}
}

// nodeProblems is the column of the problems of a node. Lists have them below the table.
var nodeProblems = column[*pb.Node]{
	header: "PROBLEMS", trait: trait{folds: true, below: true}, cell: func(n *pb.Node, _ time.Time) string { return strings.Join(n.GetProblems(), "; ") },
	lines: (*pb.Node).GetProblems,
}

// lag formats the delay between an agent and the aggregator. It is empty if the delay is not known.
func lag(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return precise(d.AsDuration())
}

// skew formats how far a clock is ahead. It is empty if that is not known.
func skew(d *durationpb.Duration) string {
	switch ahead := d.AsDuration(); {
	case d == nil:
		return ""
	case ahead < 0:
		return "-" + precise(-ahead)
	default:
		return "+" + precise(ahead)
	}
}

// precise formats a duration that may be short: 0.3ms, 25ms, 2.1s, 3m5s.
func precise(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d.Truncate(100*time.Microsecond).Microseconds())/1000)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	default:
		return Duration(d)
	}
}

// KnownNodes returns a sentence with the names of the known nodes.
func KnownNodes(names []string) string {
	if len(names) == 0 {
		return "no agent has connected yet"
	}
	return "the known nodes are " + counted(names, len(names))
}

// Nodes writes nodes as a table, followed by their problems and the state of the Kubernetes API.
func Nodes(w io.Writer, nodes []*pb.Node, k *pb.Kubernetes, layout Layout, now time.Time) error {
	if err := list(w, layout, clustered(narrow(nodeColumns(), layout.Wide), nodes), nodes, now); err != nil {
		return err
	}
	p := &page{layout: layout, now: now}
	for _, n := range nodes {
		for _, problem := range n.GetProblems() {
			if p.out.Len() == 0 {
				p.line("")
				p.line("Problems:")
			}
			p.text("  "+join("/", n.GetCluster(), n.GetName())+": ", problem)
		}
	}
	if err := p.write(w); err != nil {
		return err
	}
	return Kubernetes(w, k, layout, now)
}

// Kubernetes writes the state and the problems of the Kubernetes API. It writes nothing if no API is
// configured.
func Kubernetes(w io.Writer, k *pb.Kubernetes, layout Layout, now time.Time) error {
	if k.GetState() <= pb.Kubernetes_OFF {
		return nil
	}
	p := &page{layout: layout, now: now}
	p.line("")
	p.text("Kubernetes API: ", kubernetes(k, now))
	for _, problem := range k.GetProblems() {
		p.text("  ", problem)
	}
	return p.write(w)
}

// Election writes which replica of the aggregator answers, and which one leads, if there are several.
func Election(w io.Writer, e *pb.Election) error {
	if e == nil {
		return nil
	}
	p := &page{}
	p.line("")
	switch {
	case e.GetLeads():
		p.line("Replica of the aggregator: %s, which leads", e.GetReplica())
	case e.GetLeader() == "":
		p.line("Replica of the aggregator: %s; no replica leads", e.GetReplica())
	default:
		p.line("Replica of the aggregator: %s; %s leads", e.GetReplica(), e.GetLeader())
	}
	return p.write(w)
}

// Aggregator writes the problems of the aggregator itself, if there are any.
func Aggregator(w io.Writer, problems []string, layout Layout) error {
	p := &page{layout: layout}
	for i, problem := range problems {
		if i == 0 {
			p.line("")
			p.line("Problems of the aggregator:")
		}
		p.text("  ", problem)
	}
	return p.write(w)
}

// kubernetes describes the state of the Kubernetes API.
func kubernetes(k *pb.Kubernetes, now time.Time) string {
	known := Count(int(k.GetPods()), "pod", "pods") + " and " + Count(int(k.GetNodes()), "node", "nodes")
	switch k.GetState() {
	case pb.Kubernetes_LIVE:
		return join(", ", "LIVE", k.GetServer(), known, prefixed("last heard ", ago(k.GetLastHeard(), now)))
	case pb.Kubernetes_STALE:
		return join(", ", "STALE", k.GetServer(), prefixed("disconnected since ", clockTo("15:04:05.000 "+zone, k.GetLastHeard(), now)),
			prefixed("", ago(k.GetLastHeard(), now))) + ": the data of " + known + " may be outdated"
	default:
		return join(", ", k.GetState().String(), k.GetServer())
	}
}
