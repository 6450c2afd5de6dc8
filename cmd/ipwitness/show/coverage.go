package show

import (
	"fmt"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

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
		add("No agent is connected, so nothing is seen.")
	case heard == 0:
		add("None of %s is connected (%s), so nothing is seen.", Count(expected, "node", "nodes"), counted(c.GetSilentNodes(), silent))
	case silent == 1:
		add("1 of %d nodes is disconnected (%s), so ipwitness does not see what happens there.", expected, counted(c.GetSilentNodes(), silent))
	case silent > 1:
		add("%d of %d nodes are disconnected (%s), so ipwitness does not see what happens there.", silent, expected, counted(c.GetSilentNodes(), silent))
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
