package aggregator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// duplicateNodeName is the kind of the finding that two nodes call themselves the
// same, and are both there.
const duplicateNodeName = verdict.FindingDuplicateNodeName

// namesakes are the nodes that are heard from, by what they call themselves. They are behind the
// lock of the facts.
type namesakes struct {
	byName map[string][]*facts.Node
	// called is by which name a node is there.
	called map[*facts.Node]string
	// found has the nodes that share their name and, as false, those that are asked
	// whether they are there: when a machine was booted, the stream of before may be
	// open for a while, and is none of a second node.
	found map[*facts.Node]bool
}

func newNamesakes() namesakes {
	return namesakes{byName: make(map[string][]*facts.Node), called: make(map[*facts.Node]string), found: make(map[*facts.Node]bool)}
}

// checkNames looks whether a node has its name for itself: after it came, left, or
// was called otherwise.
func (s *store) checkNames(n *facts.Node) {
	names := &s.names
	live := n.Peer != nil && !n.Rec.Unheard
	before, was := names.called[n]
	if was && (!live || before != n.Name) {
		delete(names.called, n)
		delete(names.found, n)
		names.byName[before] = slices.DeleteFunc(names.byName[before], func(other *facts.Node) bool { return other == n })
		s.checkName(before)
		was = false
	}
	if !live {
		return
	}
	if !was {
		names.called[n] = n.Name
		names.byName[n.Name] = append(names.byName[n.Name], n)
	}
	s.checkName(n.Name)
}

// answered tells that a node is there, just now.
func (s *store) answered(n *facts.Node) {
	n.LastHeard = s.clock()
	if found, ok := s.names.found[n]; ok && !found {
		s.checkNames(n)
	}
}

// checkName looks which nodes are there that have a name.
func (s *store) checkName(name string) {
	names := &s.names
	nodes := names.byName[name]
	if len(nodes) == 0 {
		delete(names.byName, name)
	}
	var newest verdict.Stamp
	for _, n := range nodes {
		newest = max(newest, n.ConnectedAt)
	}
	var sure []*facts.Node
	for _, n := range nodes {
		if names.found[n] || n.LastHeard >= newest {
			sure = append(sure, n)
		} else {
			names.found[n] = false
			n.Peer.(*session).ping(s.clock())
		}
	}
	id := verdict.FindingID(s.policy.Cluster, duplicateNodeName, name)
	if len(sure) < 2 {
		for _, n := range sure {
			delete(names.found, n)
		}
		s.findings.drop(id)
		return
	}
	for _, n := range sure {
		names.found[n] = true
	}
	slices.SortFunc(sure, func(a, b *facts.Node) int { return strings.Compare(a.Rec.Name, b.Rec.Name) })
	s.findings.put(namesakesProto(id, name, sure))
}

// namesakesProto is the finding that several nodes have one name.
func namesakesProto(id, name string, nodes []*facts.Node) *pb.Finding {
	f := &pb.Finding{Id: id, Kind: duplicateNodeName, Severity: pb.Finding_WARNING}
	var boots, machines []string
	for _, n := range nodes {
		f.Nodes = append(f.Nodes, n.Rec.Name)
		boots = append(boots, fmt.Sprintf("%s (boot id %s)", n.Rec.Name, n.ID.Boot))
		machines = append(machines, fmt.Sprintf("%s: boot id %s, network namespace %s, Linux %s, agent %s, reporting since %s",
			n.Rec.Name, n.ID.Boot, n.ID.Netns, n.Kernel, n.Version, n.ConnectedAt.Time().Format("2006-01-02 15:04:05")))
	}
	f.Summary = fmt.Sprintf("%d nodes that report now call themselves %s: they are shown as %s. "+
		"What they hold is kept apart, but the name alone does not say which of them is meant, "+
		"and Kubernetes knows one node of that name at most.",
		len(nodes), name, joined(boots))
	do := func(text string) *pb.Action { return &pb.Action{Text: text} }
	f.Remedy = []*pb.Action{do("Find out which they are: `cat /proc/sys/kernel/random/boot_id` on a machine gives its boot id. " + strings.Join(machines, "; ") + ".")}
	clone := do("Of machines cloned from one image, make sure that they share no more than the hostname: /etc/machine-id, from which DHCP identities and derived hardware addresses come, is to be removed on the clone and made anew with `systemd-machine-id-setup`.")
	machine := &pb.Alternative{When: "they are several machines", Actions: []*pb.Action{
		do("Give all but one of them a hostname of its own (`hostnamectl set-hostname NAME`), and restart its agent."), clone,
	}}
	agent := &pb.Alternative{When: "the hostname is to stay as it is, or they are agents in several network namespaces of one machine", Actions: []*pb.Action{
		do("Start the agent of all but one of them with a name of its own: --node NAME."),
	}}
	give := do("Have one of them alone go by that name.")
	give.Choice = []*pb.Alternative{machine, agent}
	if nodes[0].ID.Boot == nodes[len(nodes)-1].ID.Boot {
		give = do("Some run on one kernel, in several network namespaces, and have its hostname: start each agent with a --node of its own.")
	}
	f.Remedy = append(f.Remedy, give, do("The finding is over as soon as one of them has another name, or is not heard from."))
	return f
}

// nameProblem is what is said of a node that shares its name; empty for others.
func (s *store) nameProblem(n *facts.Node) []string {
	if !s.names.found[n] {
		return nil
	}
	var others []string
	id := verdict.FindingID(s.policy.Cluster, duplicateNodeName, n.Name)
	for _, name := range s.findings.said(id).GetNodes() {
		if name != n.Rec.Name {
			others = append(others, name)
		}
	}
	return []string{fmt.Sprintf("it calls itself %s, as does %s: give each a hostname of its own, or name it with --node (finding %s)",
		n.Name, joined(others), id)}
}

// placeProblem is what is said of a node that is not alone where it says that it is;
// empty for others.
func (s *store) placeProblem(n *facts.Node) []string {
	var others []string
	for _, other := range s.facts.At(n.ID.Place()) {
		if other != n && !other.Rec.Unheard && !n.Rec.Unheard {
			others = append(others, other.Rec.Name)
		}
	}
	if others == nil {
		return nil
	}
	slices.Sort(others)
	return []string{fmt.Sprintf("it says that it has the boot id and network namespace of %s: one of them is not what it says. "+
		"A virtual machine that was cloned with its memory must be booted, and of two agents on one host one must go; "+
		"where it is neither, an agent lies: find out who has its credential", joined(others))}
}

// warnOfPlace tells the log of a node that came and is not alone where it says that it is.
func (s *store) warnOfPlace(n *facts.Node) {
	s.facts.RLock()
	name, problems, now := n.Rec.Name, s.placeProblem(n), s.clock()
	s.facts.RUnlock()
	for _, problem := range problems {
		if s.complaints.first(name, problem, now) {
			s.log.Warn("two nodes say that they are in one place", "node", name, "problem", problem)
		}
	}
}

// joined lists words: a, b and c.
func joined(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
