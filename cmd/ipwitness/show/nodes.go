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
func nodeColumns() []Column[*pb.Node] {
	return []Column[*pb.Node]{
		{Header: "NAME", trait: trait{cut: 16}, room: 16, cell: func(n *pb.Node, _ time.Time) string { return n.GetName() }},
		{Header: "STATE", Tone: nodeTone, room: 7, cell: func(n *pb.Node, _ time.Time) string { return n.GetState().String() }},
		{Header: "VERSION", trait: trait{rank: 5}, room: 7, cell: func(n *pb.Node, _ time.Time) string { return n.GetVersion() }},
		{Header: "KERNEL", trait: trait{rank: 7}, room: 14, cell: func(n *pb.Node, _ time.Time) string { return n.GetKernel() }},
		{Header: "WIRE", trait: trait{rank: 3, cut: 6}, room: 6, cell: func(n *pb.Node, _ time.Time) string { return n.GetWire() }},
		{Header: "PORTS", Order: most((*pb.Node).GetPorts), trait: trait{rank: 8}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetPorts()) }},
		{Header: "CLAIMS", Order: most((*pb.Node).GetClaims), trait: trait{rank: 6}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetClaims()) }},
		{Header: "LAG", trait: trait{rank: 2}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return lag(n.GetLag()) }},
		{Header: "SKEW", trait: trait{rank: 9}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return skew(n.GetSkew()) }},
		{Header: "LOST", Order: most((*pb.Node).GetLostEvents), trait: trait{rank: 4}, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetLostEvents()) }},
		{Header: "LAST HEARD", trait: trait{rank: 1}, ages: true, at: (*pb.Node).GetLastHeard, cell: func(n *pb.Node, now time.Time) string { return ago(n.GetLastHeard(), now) }},
		{Header: "RUNTIME", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetRuntime() }},
		{Header: "NAMESPACES", wide: true, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetNamespaces()) }},
		{Header: "CONNECTED", wide: true, ages: true, cell: func(n *pb.Node, now time.Time) string { return ago(n.GetConnectedAt(), now) }},
		{Header: "NETNS", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetNetns() }},
		{Header: "BOOT ID", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetBootId() }},
	}
}

// NodeColumns returns the columns of nodes with their problems.
func NodeColumns() []Column[*pb.Node] { return append(nodeColumns(), nodeProblems) }

// nodeProblems is the column of the problems of a node. Lists have them below the table.
var nodeProblems = Column[*pb.Node]{
	Header: "PROBLEMS", trait: trait{rank: 2, folds: true, below: true, cut: 20}, cell: func(n *pb.Node, _ time.Time) string { return strings.Join(n.GetProblems(), "; ") },
	lines: (*pb.Node).GetProblems, Order: most(func(n *pb.Node) int { return len(n.GetProblems()) }),
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

// Nodes writes nodes as a table, followed by their problems, the state of the Kubernetes API if one is configured,
// and that of the aggregator.
func Nodes(w io.Writer, answer *pb.ListNodesResponse, layout Layout, now time.Time) error {
	nodes, k, e := answer.GetNodes(), answer.GetKubernetes(), answer.GetElection()
	p := &page{layout: layout, now: now}
	if len(nodes) > 0 {
		_ = list(p, layout, clustered(narrow(nodeColumns(), layout.Wide), nodes), nodes, now) // writing to a page cannot fail
	}
	var problems [][2]string
	for _, n := range nodes {
		for _, problem := range n.GetProblems() {
			problems = append(problems, [2]string{join("/", n.GetCluster(), n.GetName()) + ": ", problem})
		}
	}
	p.problems("Problems:", problems)
	if k.GetState() > pb.Kubernetes_OFF {
		p.line("")
		p.text("Kubernetes API: ", kubernetes(k, now))
		for _, problem := range k.GetProblems() {
			p.text("  ", problem)
		}
	}
	if e != nil {
		state := "; " + first(e.GetLeader(), "no replica") + " leads"
		if e.GetLeads() {
			state = ", which leads"
		}
		p.line("")
		p.line("Replica of the aggregator: %s%s", e.GetReplica(), state)
	}
	p.aggregator(answer.GetProblems())
	return p.write(w)
}

// problems adds problems, each after the name of what has it.
func (p *page) problems(title string, problems [][2]string) {
	for i, problem := range problems {
		if i == 0 {
			p.heading(title)
		}
		p.text("  "+problem[0], problem[1])
	}
}

// aggregator adds the problems of the aggregator itself.
func (p *page) aggregator(problems []string) {
	var named [][2]string
	for _, problem := range problems {
		named = append(named, [2]string{"", problem})
	}
	p.problems("Problems of the aggregator:", named)
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

// Node writes the details of one node as a page.
func Node(w io.Writer, n *pb.Node, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	switch n.GetState() {
	case pb.Node_LIVE:
		p.line("The agent of node %s is connected.", n.GetName())
	default:
		p.line("The agent of node %s is disconnected, so ipwitness does not see what happens there.", n.GetName())
	}
	p.line("")
	p.fields(
		"Version", n.GetVersion(),
		"Kernel", n.GetKernel(),
		"Wire", wire(n),
		"Runtime", n.GetRuntime(),
		"Claims", Count(int(n.GetClaims()), "claim", "claims")+" in "+Count(int(n.GetNamespaces()), "network namespace", "network namespaces"),
		"Lag", lag(n.GetLag()),
		"Skew", skew(n.GetSkew()),
		"Lost", Count(int(n.GetLostEvents()), "event", "events"),
		"Connected", ago(n.GetConnectedAt(), now),
		"Heard", ago(n.GetLastHeard(), now),
		"Netns", n.GetNetns(),
		"Boot ID", n.GetBootId(),
	)
	p.bullets("Problems:", n.GetProblems())
	var floods []string
	for _, f := range n.GetFlooding() {
		holder := Name(&pb.Owner{Node: n.GetName(), Workload: f.GetWorkload()})
		floods = append(floods, strings.TrimSpace(f.GetInterface()+" ("+holder+")"))
	}
	p.bullets("Floods of frames:", floods)
	return p.write(w)
}
