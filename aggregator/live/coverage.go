package live

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/vip"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// startGrace is how long after the start agents may still be reconnecting. They try every few
	// seconds (agent.LastBackoff).
	startGrace = 10 * time.Second
	// coverageFor is how long a cached coverage is used if nothing is known to have changed.
	coverageFor = time.Second
	// awaitedFor is the same while something is awaited.
	awaitedFor = 100 * time.Millisecond
	// maxCoverageNames is the largest number of nodes, and of what is awaited, that a Coverage lists.
	maxCoverageNames = 100
)

// CoverageConfig is the configuration of Coverage.
type CoverageConfig struct {
	Facts    *facts.Facts
	Shards   *judge.Shards
	Findings *judge.Findings
	// Kubernetes is the Kubernetes API; nil if it is not used.
	Kubernetes *kube.Cluster
	// Alone is set if only the agent in this process is expected.
	Alone bool
	// Recorded is set if the state before the start is in a journal.
	Recorded bool
}

// Coverage determines the current coverage. Use New.
type Coverage struct {
	CoverageConfig
	start verdict.Stamp

	mu sync.Mutex
	// unread is set until the state before the start has been read, and missing are the nodes that were
	// connected then and have not reported since.
	unread  bool
	missing map[string]bool
	// The cached coverage, and all that it awaits.
	at       verdict.Stamp
	coverage *pb.Coverage
	awaited  []*pb.Awaited
}

// NewCoverage returns the coverage of an aggregator that starts now.
func NewCoverage(cfg CoverageConfig) *Coverage {
	return &Coverage{CoverageConfig: cfg, start: cfg.Facts.Clock(), unread: cfg.Recorded}
}

// Expect sets the nodes that were connected before the start and have not reported since. The map must not
// change afterwards.
func (s *Coverage) Expect(missing map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread, s.missing, s.coverage = false, missing, nil
}

// Awaits reports whether facts about the nodes of a finding are awaited, or records in the Kubernetes API without which
// it is not found; of a finding without nodes, anything. The caller holds the facts.
func (s *Coverage) Awaits(f *verdict.Finding) bool {
	nodes := audit.Nodes(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.now()
	return len(nodes) == 0 && c.GetUnknown() == pb.Coverage_STARTING || slices.ContainsFunc(s.awaited, func(a *pb.Awaited) bool {
		switch {
		case a.GetWhat() == pb.Awaited_JUDGEMENT:
			return false
		case len(nodes) > 0 && a.GetNode() != "":
			return slices.Contains(nodes, a.GetNode())
		case len(nodes) > 0 && a.GetWhat() == pb.Awaited_RECORDS:
			return needs(f, a.GetIpam())
		}
		return true
	})
}

// needs reports whether a finding is found only if the records of an IPAM in the Kubernetes API are known.
func needs(f *verdict.Finding, ipam string) bool {
	switch {
	case f.Kind == verdict.FindingPodCIDROverlap, f.Kind == verdict.FindingRangesOverlap: // of any pools and nodes
		return true
	case f.Kind == verdict.FindingEndpointOfFormerOwner:
		return ipam == podips.IPAM.Name || ipam == vip.KubeProxy.Name
	case ipam == podips.IPAM.Name && (f.Kind == verdict.FindingOrphanedSandbox || f.Kind == verdict.FindingIntendedNotObserved):
		return true
	}
	return f.Pool != nil && f.Pool.Node == nil && (ipam == f.Pool.IPAM || ipam == podips.IPAM.Name)
}

// Starting reports whether something is not known because of a start, so that it proves nothing yet that there is no
// conflict or finding.
func Starting(c *pb.Coverage) bool {
	return len(c.GetAwaited()) > 0 || c.GetUnknown() == pb.Coverage_STARTING
}

// settlesWithin is the time after the judgement of a node's first report, or after records of its IPAMs can be read
// again, in which a problem that may disappear by itself counts as not judged yet. It is longer than it takes until
// most are reported.
const settlesWithin = 6 * time.Second

// Attendance lists the nodes that are expected to report, and those that do.
type Attendance struct {
	// Heard are the nodes with a connected agent. Silent are the nodes whose agent is disconnected,
	// without those that were replaced or removed.
	Heard, Silent []*facts.Node
	// Absent are the Kubernetes nodes that should have an agent but have never reported.
	Absent []string
	// Asked is set if the Kubernetes API tells which nodes should have an agent.
	Asked bool
}

// Attend compares the nodes that report with the nodes that Kubernetes expects. The caller holds
// the facts.
func (s *Coverage) Attend() Attendance {
	var a Attendance
	var members []string
	members, a.Asked = s.Kubernetes.AgentNodes()
	member := make(map[string]bool, len(members))
	for _, name := range members {
		member[facts.Label(name)] = true
	}
	known := make(map[string][]*facts.Node) // by label
	a.Heard = make([]*facts.Node, 0, s.Facts.NodeCount())
	for n := range s.Facts.Nodes {
		expected := true
		if a.Asked {
			at := facts.Label(n.Name)
			known[at] = append(known[at], n)
			expected = member[at]
		}
		switch {
		case !n.Rec.Unheard:
			a.Heard = append(a.Heard, n)
		// A disconnected node may have been replaced by another one: its machine rebooted, or it timed out and another
		// node reports under its name.
		case expected && !n.Rec.Rebooted && (!n.Rec.TimedOut ||
			!slices.ContainsFunc(s.Facts.Called(n.Name), func(other *facts.Node) bool { return !other.Rec.Unheard })):
			a.Silent = append(a.Silent, n)
		}
	}
	for _, name := range members {
		if !slices.ContainsFunc(known[facts.Label(name)], func(n *facts.Node) bool { return n.Rec.Called(name) }) {
			a.Absent = append(a.Absent, name)
		}
	}
	return a
}

// Complete reports whether all nodes that should have an agent have sent all that they know, and it has been
// judged.
func (s *Coverage) Complete() bool {
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	c, a := s.Now(), s.Attend()
	return a.Asked && c.GetHeard() > 0 && c.GetHeard() == c.GetExpected() && len(c.GetAwaited()) == 0 && s.Shards.Waiting() == 0
}

// Changed discards the cached coverage.
func (s *Coverage) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coverage = nil
}

// Current returns the coverage for an answer. Callers must call it before they compute the answer:
// a node that reconnects in between may be missing from the answer.
func (s *Coverage) Current() *pb.Coverage {
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	return s.Now()
}

// Now is like Current for callers that hold the facts. The message is shared and must not be
// changed.
func (s *Coverage) Now() *pb.Coverage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Coverage) now() *pb.Coverage {
	now := s.Facts.Clock()
	if age := now.Sub(s.at); s.coverage == nil || age >= coverageFor || len(s.awaited) > 0 && age >= awaitedFor {
		s.at, s.coverage = now, s.make(now)
	}
	return s.coverage
}

func (s *Coverage) make(now verdict.Stamp) *pb.Coverage {
	a := s.Attend()
	out := &pb.Coverage{
		Expected: uint32(len(a.Heard) + len(a.Silent) + len(a.Absent)), Heard: uint32(len(a.Heard)),
		SilentNodes: slices.Clone(a.Absent),
	}
	for _, n := range a.Silent {
		out.SilentNodes = append(out.SilentNodes, n.Rec.Name)
	}
	s.awaited = nil
	if s.unread {
		s.awaited = append(s.awaited, &pb.Awaited{What: pb.Awaited_JOURNAL})
	}
	reports := make(map[string]bool)
	for name := range s.missing {
		reports[name] = true
	}
	for n := range s.Facts.Nodes { // includes disconnected nodes
		name := n.Rec.Name
		if n.Incomplete() {
			out.NodesLeftOut = append(out.NodesLeftOut, name)
		}
		if !n.Rec.Unheard && n.Status.GetBlind() {
			out.NodesWithoutAddresses = append(out.NodesWithoutAddresses, name)
		}
		if wire := n.Status.GetWire(); !n.Rec.Unheard && (wire == "" || wire == wireOff || n.Status.GetUnwatchedPorts() > 0) {
			out.NodesWithoutFrames = append(out.NodesWithoutFrames, name)
		}
		switch {
		case n.Peer == nil, n.Rec.TimedOut: // a node that has timed out counts as disconnected until it reports
			continue
		case n.Rec.Unheard, n.JudgedAt == 0:
			reports[name] = true
		case now < n.ReadableAt.Add(judge.FoundWithin),
			now < max(n.JudgedAt, n.ReadableAt).Add(settlesWithin) && (s.Findings.Waits(name) || s.Findings.Compares(n)):
			s.awaited = append(s.awaited, &pb.Awaited{What: pb.Awaited_JUDGEMENT, Node: name})
		}
		for _, ipam := range n.Status.GetUnreadIpams() {
			s.awaited = append(s.awaited, &pb.Awaited{What: pb.Awaited_RECORDS, Node: name, Ipam: ipam})
		}
	}
	for _, ipam := range s.Facts.Unread() {
		s.awaited = append(s.awaited, &pb.Awaited{What: pb.Awaited_RECORDS, Ipam: ipam})
	}
	out.WithoutFrames, out.WithoutAddresses = uint32(len(out.NodesWithoutFrames)), uint32(len(out.NodesWithoutAddresses))
	out.LeftOut = uint32(len(out.NodesLeftOut))
	for name := range reports {
		s.awaited = append(s.awaited, &pb.Awaited{What: pb.Awaited_REPORT, Node: name})
	}
	slices.SortFunc(s.awaited, func(a, b *pb.Awaited) int {
		return cmp.Or(cmp.Compare(a.GetWhat(), b.GetWhat()), cmp.Compare(a.GetNode(), b.GetNode()), cmp.Compare(a.GetIpam(), b.GetIpam()))
	})
	out.Awaited = s.awaited[:min(len(s.awaited), maxCoverageNames)]
	for _, names := range []*[]string{&out.SilentNodes, &out.NodesWithoutFrames, &out.NodesWithoutAddresses, &out.NodesLeftOut} {
		slices.Sort(*names)
		*names = (*names)[:min(len(*names), maxCoverageNames)]
	}
	switch {
	case a.Asked:
	case s.Kubernetes != nil:
		out.Unknown = pb.Coverage_KUBERNETES
	case !s.Alone && now.Sub(s.start) < startGrace:
		out.Unknown = pb.Coverage_STARTING
	}
	out.Incomplete = out.Heard == 0 || out.Heard < out.Expected || s.Shards.Unjudged() > 0 || out.WithoutAddresses > 0 || out.LeftOut > 0 || len(out.Awaited) > 0 || out.Unknown != pb.Coverage_UNSPECIFIED
	return out
}

// wireOff is the value that an agent reports if it does not observe frames.
const wireOff = "off"
