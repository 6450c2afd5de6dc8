package show

import (
	"io"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

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
