package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/ipam/podips"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// NodeKind is how nodes are listed with their problems. Tables have the problems below them.
var NodeKind = Kind[*pb.Node]{
	Name: "node",
	// The part of the name after @ can change, and the rest of the key already contains the same information.
	Key: func(n *pb.Node) string {
		name, _, _ := strings.Cut(n.GetName(), "@")
		return n.GetCluster() + "/" + n.GetBootId() + "/" + n.GetNetns() + "/" + name
	},
	ID:     (*pb.Node).GetName,
	Orders: []string{"claims", "lag", "lost", "name", "state", "version"},
	columns: func() []Column[*pb.Node] {
		return append(nodeColumns(), Column[*pb.Node]{
			Header: "PROBLEMS", trait: trait{rank: 2, folds: true, below: true, cut: 20}, lines: (*pb.Node).GetProblems,
			cell:  func(n *pb.Node, _ time.Time) string { return strings.Join(n.GetProblems(), "; ") },
			Order: most(func(n *pb.Node) int { return len(n.GetProblems()) }),
		})
	},
}

func nodeColumns() []Column[*pb.Node] {
	return []Column[*pb.Node]{
		{Header: "NAME", trait: trait{cut: 16}, room: 16, cell: func(n *pb.Node, _ time.Time) string { return n.GetName() }},
		{Header: "STATE", Tone: nodeTone, room: 7, cell: func(n *pb.Node, _ time.Time) string { return n.GetState().String() }},
		{Header: "VERSION", trait: trait{rank: 5}, room: 7, cell: func(n *pb.Node, _ time.Time) string { return n.GetVersion() }},
		{Header: "KERNEL", trait: trait{rank: 7}, room: 14, cell: func(n *pb.Node, _ time.Time) string { return n.GetKernel() }},
		{Header: "WIRE", trait: trait{rank: 3, cut: 6}, room: 6, cell: func(n *pb.Node, _ time.Time) string { return n.GetWire() }},
		{Header: "PORTS", Order: most((*pb.Node).GetPorts), trait: trait{rank: 8}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetPorts()) }},
		{Header: "CLAIMS", Order: most((*pb.Node).GetClaims), trait: trait{rank: 6}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetClaims()) }},
		{Header: "LAG", Order: most(func(n *pb.Node) time.Duration { return n.GetLag().AsDuration() }), trait: trait{rank: 2}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return precise(n.GetLag(), "") }},
		{Header: "SKEW", trait: trait{rank: 9}, ages: true, cell: func(n *pb.Node, _ time.Time) string { return precise(n.GetSkew(), "+") }},
		{Header: "LOST", Order: most((*pb.Node).GetLostEvents), trait: trait{rank: 4}, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetLostEvents()) }},
		{Header: "LAST HEARD", trait: trait{rank: 1}, ages: true, at: (*pb.Node).GetLastHeard, cell: func(n *pb.Node, now time.Time) string { return ago(n.GetLastHeard(), now) }},
		{Header: "RUNTIME", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetRuntime() }},
		{Header: "NAMESPACES", wide: true, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetNamespaces()) }},
		{Header: "PRIVATE", wide: true, ages: true, cell: func(n *pb.Node, _ time.Time) string { return fmt.Sprint(n.GetPrivateInterfaces()) }},
		{Header: "CONNECTED", wide: true, ages: true, cell: func(n *pb.Node, now time.Time) string { return ago(n.GetConnectedAt(), now) }},
		{Header: "NETNS", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetNetns() }},
		{Header: "BOOT ID", wide: true, cell: func(n *pb.Node, _ time.Time) string { return n.GetBootId() }},
	}
}

// precise formats a duration that may be short: 0.3ms, 25ms, 2.1s, 3m5s. plus is the sign of those that are not
// negative. The text is empty if the duration is not known.
func precise(of *durationpb.Duration, plus string) string {
	if of == nil {
		return ""
	}
	d := of.AsDuration()
	if d < 0 {
		d, plus = -d, "-"
	}
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%s%.1fms", plus, float64(d.Truncate(100*time.Microsecond).Microseconds())/1000)
	case d < time.Second:
		return fmt.Sprintf("%s%dms", plus, d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%s%.1fs", plus, d.Truncate(100*time.Millisecond).Seconds())
	default:
		return plus + Duration(d)
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
	var problems []string
	for _, n := range nodes {
		for _, problem := range n.GetProblems() {
			problems = append(problems, join("/", n.GetCluster(), n.GetName())+": "+problem)
		}
	}
	p.bullets("Problems:", "  ", problems...)
	if k.GetState() > pb.Kubernetes_OFF {
		p.line("")
		known := Count(int(k.GetPods()), "pod", "pods") + " and " + Count(int(k.GetNodes()), "node", "nodes")
		text := join(", ", k.GetState().String(), k.GetServer())
		switch k.GetState() {
		case pb.Kubernetes_LIVE:
			text = join(", ", text, known, prefixed("last heard ", ago(k.GetLastHeard(), now)))
		case pb.Kubernetes_STALE:
			text = join(", ", text, prefixed("disconnected since ", clockTo("15:04:05.000 "+zone, k.GetLastHeard(), now)), ago(k.GetLastHeard(), now)) +
				": the data of " + known + " may be outdated"
		}
		p.text("Kubernetes API: ", text)
		for _, problem := range k.GetProblems() {
			p.text("  ", problem)
		}
	}
	if e != nil {
		state := "; " + cmp.Or(e.GetLeader(), "no replica") + " leads"
		if e.GetLeads() {
			state = ", which leads"
		}
		p.line("")
		p.line("Replica of the aggregator: %s%s", e.GetReplica(), state)
	}
	p.bullets("Problems of the aggregator:", "  ", answer.GetProblems()...)
	return p.write(w)
}

// Node writes the details of one node as a page.
func Node(w io.Writer, n *pb.Node, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	state := "connected"
	if n.GetState() != pb.Node_LIVE {
		state = "disconnected: what happens there is not observed"
	}
	p.line("The agent of node %s is %s.", n.GetName(), state)
	p.line("")
	p.fields(
		"Version", n.GetVersion(),
		"Kernel", n.GetKernel(),
		"Wire", wire(n),
		"Runtime", n.GetRuntime(),
		"Claims", Count(int(n.GetClaims()), "claim", "claims")+" in "+Count(int(n.GetNamespaces()), "network namespace", "network namespaces"),
		"Lag", precise(n.GetLag(), ""),
		"Skew", precise(n.GetSkew(), "+"),
		"Lost", Count(int(n.GetLostEvents()), "event", "events"),
		"Connected", ago(n.GetConnectedAt(), now),
		"Heard", ago(n.GetLastHeard(), now),
		"Netns", n.GetNetns(),
		"Boot ID", n.GetBootId(),
	)
	p.bullets("Problems:", "  - ", n.GetProblems()...)
	var floods []string
	for _, f := range n.GetFlooding() {
		holder := pb.OwnerName(&pb.Owner{Node: n.GetName(), Workload: f.GetWorkload()})
		floods = append(floods, strings.TrimSpace(f.GetInterface()+" ("+holder+")"))
	}
	p.bullets("Floods of frames:", "  - ", floods...)
	return p.write(w)
}

// clusterHeader is the header of the column that only answers of a fleet have.
const clusterHeader = "CLUSTER"

// clusterOf returns the cluster of an item, or the clusters of a conflict between clusters; empty if the
// answer is not that of a fleet.
func clusterOf(item any) string {
	switch one := item.(type) {
	case *record:
		return clusterOf(one.event)
	case *pb.Event:
		return cmp.Or(one.GetCluster(), strings.Join(one.GetConflict().GetClusters(), ", "))
	case interface{ GetClusters() []string }:
		return strings.Join(one.GetClusters(), ", ")
	case interface{ GetCluster() string }:
		return one.GetCluster()
	}
	return ""
}

// withClusters returns columns with that of the cluster in front of them.
func withClusters[T any](columns []Column[T]) []Column[T] {
	return append([]Column[T]{{Header: clusterHeader, room: 12, cell: func(item T, _ time.Time) string { return clusterOf(item) }}}, columns...)
}

// clustered returns columns with that of the cluster in front of them if an item has one.
func clustered[T any](columns []Column[T], items []T) []Column[T] {
	if !slices.ContainsFunc(items, func(item T) bool { return clusterOf(item) != "" }) {
		return columns
	}
	return withClusters(columns)
}

// clusterColumns are the columns of a table of clusters.
var clusterColumns = []Column[*pb.Cluster]{
	{Header: "NAME", cell: func(c *pb.Cluster, _ time.Time) string { return c.GetName() }},
	{Header: "STATE", Tone: func(c *pb.Cluster) Tone { return unless(c.GetState() == pb.Cluster_LIVE, BadTone) }, cell: func(c *pb.Cluster, _ time.Time) string { return c.GetState().String() }},
	{Header: "NODES", cell: func(c *pb.Cluster, _ time.Time) string {
		if c.GetCoverage() == nil {
			return ""
		}
		return fmt.Sprintf("%d of %d", c.GetCoverage().GetHeard(), c.GetCoverage().GetExpected())
	}},
	{Header: "LAST HEARD", trait: trait{rank: 1}, cell: func(c *pb.Cluster, now time.Time) string { return ago(c.GetLastHeard(), now) }},
	{Header: "LAST CHANGE", trait: trait{rank: 2}, cell: func(c *pb.Cluster, now time.Time) string { return ago(c.GetUntil(), now) }},
	{Header: "REACHES BACK", trait: trait{rank: 3}, cell: func(c *pb.Cluster, now time.Time) string { return ago(c.GetReachesBackTo(), now) }},
}

// Clusters writes clusters as a table, followed by their problems and those of the fleet.
func Clusters(w io.Writer, answer *pb.ListClustersResponse, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	var problems []string
	if clusters := answer.GetClusters(); len(clusters) > 0 {
		_ = list(p, layout, clusterColumns, clusters, now) // writing to a page cannot fail
		for _, c := range clusters {
			for _, problem := range c.GetProblems() {
				problems = append(problems, c.GetName()+": "+problem)
			}
		}
	}
	p.bullets("Problems:", "  ", problems...)
	p.bullets("Problems of the aggregator:", "  ", answer.GetProblems()...)
	return p.write(w)
}

// Unseen returns one sentence for each gap in the coverage of an answer. It returns none if all nodes
// are seen, or if the server sent no coverage.
func Unseen(c *pb.Coverage) (sentences []string) {
	if c == nil {
		return nil
	}
	add := func(format string, args ...any) {
		sentences = append(sentences, clean(fmt.Sprintf(format, args...)))
	}
	expected, heard := int(c.GetExpected()), int(c.GetHeard())
	switch silent := expected - heard; {
	case expected == 0 && c.GetClusters() > 0, c.GetUnknown() == pb.Coverage_HUB && expected == 0:
	case expected == 0:
		add("No agent is connected: nothing is being observed.")
	case heard == 0 && expected == 1:
		add("The only node (%s) is disconnected: nothing is being observed.", counted(c.GetSilentNodes(), silent))
	case heard == 0:
		add("None of %s is connected (%s): nothing is being observed.", Count(expected, "node", "nodes"), counted(c.GetSilentNodes(), silent))
	case silent == 1:
		add("1 of %d nodes is disconnected (%s): what happens there is not observed.", expected, counted(c.GetSilentNodes(), silent))
	case silent > 1:
		add("%d of %d nodes are disconnected (%s): what happens there is not observed.", silent, expected, counted(c.GetSilentNodes(), silent))
	}
	if all := c.GetAwaited(); len(all) > 0 {
		add("Cannot tell yet: waiting for %s.", awaited(all))
	}
	if n := int(c.GetWithoutAddresses()); n > 0 {
		add("On %d of %s (%s), addresses inside network namespaces are not seen.", n, Count(expected, "node", "nodes"), counted(c.GetNodesWithoutAddresses(), n))
	}
	if n := int(c.GetLeftOut()); n > 0 {
		add("For %d of %s (%s), the aggregator dropped some of the agent's reports because it lacks memory.",
			n, Count(expected, "node", "nodes"), counted(c.GetNodesLeftOut(), n))
	}
	switch c.GetUnknown() {
	case pb.Coverage_UNSPECIFIED:
	case pb.Coverage_STARTING:
		add("The server has just started: some agents may not have reconnected yet.")
	case pb.Coverage_KUBERNETES:
		add("The Kubernetes API is currently unreliable, so ipwitness does not know which nodes should have an agent.")
	case pb.Coverage_HUB:
		add("The fleet does not know which clusters there are, because the hub does not say it, or has none.")
	default:
		add("ipwitness does not know which nodes should have an agent.")
	}
	if silent := c.GetSilentClusters(); len(silent) > 0 {
		add("%d of %s (%s) cannot be seen now, so what is known of them may be outdated.", len(silent), Count(int(c.GetClusters()), "cluster", "clusters"), counted(silent, len(silent)))
	}
	if n := int(c.GetWithoutFrames()); n > 0 {
		add("On %d of %s (%s), not all frames are seen, so a duplicate that only frames show is not detected there.",
			n, Count(expected, "node", "nodes"), counted(c.GetNodesWithoutFrames(), n))
	}
	return sentences
}

// awaited says what is awaited.
func awaited(all []*pb.Awaited) string {
	var texts []string
	for _, kind := range []struct {
		what      pb.Awaited_What
		one, many string
	}{
		{pb.Awaited_JOURNAL, "the journal of cluster ", "the journals of clusters "},
		{pb.Awaited_REPORT, "the report of node ", "the reports of nodes "},
		{pb.Awaited_RECORDS, "the records of ", "the records of "},
		{pb.Awaited_JUDGEMENT, "whether possible problems last on node ", "whether possible problems last on nodes "},
	} {
		var names []string
		for _, a := range all {
			switch {
			case a.GetWhat() != kind.what:
			case kind.what == pb.Awaited_JOURNAL && a.GetNode() == "": // not of a fleet
				texts = append(texts, "the journal, which is being read")
			case a.GetIpam() == "":
				names = append(names, strings.TrimSuffix(a.GetNode(), "/"))
			case a.GetIpam() == podips.IPAM.Name:
				names = append(names, a.GetNode()+"pods and nodes in the Kubernetes API")
			case a.GetNode() == "", strings.HasSuffix(a.GetNode(), "/"): // the cluster of a fleet
				names = append(names, a.GetNode()+a.GetIpam()+" in the Kubernetes API")
			default:
				names = append(names, a.GetIpam()+" on node "+a.GetNode())
			}
		}
		switch len(names) {
		case 0:
		case 1:
			texts = append(texts, kind.one+names[0])
		default:
			texts = append(texts, kind.many+counted(names, len(names)))
		}
	}
	return join("; ", texts...)
}

// counted lists the first of n names, followed by the number of remaining names.
func counted(names []string, n int) string {
	const most = 5
	shown := names[:min(len(names), most)]
	text := join(", ", shown...)
	if more := n - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
