package aggregator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// duplicateNodeName is the kind of the finding that two nodes call themselves the
// same, and are both there.
const duplicateNodeName = "duplicate-node-name"

// namesakes are the nodes that share their name, by that name, and with an empty
// one those that are asked whether they are there: when a machine was booted, the
// stream of before may be open for a while, and is none of a second node.
type namesakes map[*node]string

// checkNames looks whether a node has its name for itself: after it came, left, or
// was called otherwise.
func (s *store) checkNames(n *node) {
	if before := s.findings.namesakes[n]; before != "" && before != n.name {
		s.checkName(before)
	}
	s.checkName(n.name)
}

// answered tells that a node is there, just now.
func (s *store) answered(n *node) {
	n.lastHeard = s.clock()
	if name, ok := s.findings.namesakes[n]; ok && name == "" {
		delete(s.findings.namesakes, n)
		s.checkName(n.name)
	}
}

// checkName looks which nodes are there that have a name.
func (s *store) checkName(name string) {
	var live, found []*node
	var newest verdict.Stamp
	for _, n := range s.nodes {
		if n.name == name && n.session != nil && !n.rec.Unheard {
			live = append(live, n)
			newest = max(newest, n.connectedAt)
		}
	}
	now := s.clock()
	for _, n := range live {
		switch {
		case s.findings.namesakes[n] == name || n.lastHeard >= newest:
			found = append(found, n)
		case len(live) > 1:
			s.findings.namesakes[n] = ""
			n.session.ping(now)
		}
	}
	if len(found) < 2 {
		found = nil
	}
	for n, as := range s.findings.namesakes {
		if as == name && !slices.Contains(found, n) {
			delete(s.findings.namesakes, n)
		}
	}
	id := verdict.FindingID(s.policy.Cluster, duplicateNodeName, name)
	if found == nil {
		s.findings.drop(id)
		return
	}
	for _, n := range found {
		s.findings.namesakes[n] = name
	}
	slices.SortFunc(found, func(a, b *node) int { return strings.Compare(a.rec.Name, b.rec.Name) })
	s.findings.put(namesakesProto(id, name, found))
}

// namesakesProto is the finding that several nodes have one name.
func namesakesProto(id, name string, nodes []*node) *pb.Finding {
	f := &pb.Finding{Id: id, Kind: duplicateNodeName}
	var boots, machines []string
	for _, n := range nodes {
		f.Nodes = append(f.Nodes, n.rec.Name)
		boots = append(boots, fmt.Sprintf("%s (boot id %s)", n.rec.Name, n.id.boot))
		machines = append(machines, fmt.Sprintf("%s: boot id %s, network namespace %s, Linux %s, agent %s, reporting since %s",
			n.rec.Name, n.id.boot, n.id.netns, n.kernel, n.version, n.connectedAt.Time().UTC().Format("2006-01-02 15:04:05 MST")))
	}
	f.Summary = fmt.Sprintf("%d nodes that report now call themselves %s: they are shown as %s. "+
		"What they hold is kept apart, but the name alone does not say which of them is meant, "+
		"and Kubernetes knows one node of that name at most.",
		len(nodes), name, joined(boots))
	f.Advice = []string{"Find out which they are: `cat /proc/sys/kernel/random/boot_id` on a machine gives its boot id. " + strings.Join(machines, "; ") + "."}
	if nodes[0].id.boot == nodes[len(nodes)-1].id.boot {
		f.Advice = append(f.Advice,
			"Some run on one kernel, in several network namespaces, and have its hostname: start each agent with a --node of its own.")
	}
	f.Advice = append(f.Advice,
		"Give each machine a hostname of its own (`hostnamectl set-hostname`), or its agent another name (--node), and restart its agent.",
		"Machines cloned from one image share more than the hostname: /etc/machine-id, from which DHCP identities and derived hardware addresses come. "+
			"On the clone, remove it and run `systemd-machine-id-setup`.",
		"The finding is over as soon as one of them has another name, or is not heard from.")
	return f
}

// nameProblem is what is said of a node that shares its name; empty for others.
func (s *store) nameProblem(n *node) []string {
	if s.findings.namesakes[n] == "" {
		return nil
	}
	var others []string
	id := verdict.FindingID(s.policy.Cluster, duplicateNodeName, n.name)
	for _, name := range s.findings.byID[id].GetNodes() {
		if name != n.rec.Name {
			others = append(others, name)
		}
	}
	return []string{fmt.Sprintf("it calls itself %s, as does %s: give each a hostname of its own, or name it with --node (finding %s)",
		n.name, joined(others), id)}
}

// joined lists words: a, b and c.
func joined(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
