package aggregator

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// startGrace is the time after the start in which agents may still be reconnecting: they
	// try every few seconds (agent.LastBackoff).
	startGrace = 10 * time.Second
	// coverageFor is the time for which a cached coverage is used if no change is known.
	coverageFor = time.Second
	// maxCoverageNames limits the nodes that a Coverage names.
	maxCoverageNames = 100
)

// attendance lists the nodes that should report and those that do.
type attendance struct {
	// heard and silent are the nodes that an agent has reported for. Silent nodes that were
	// replaced or removed are left out.
	heard, silent []*facts.Node
	// absent are the Kubernetes nodes that should have an agent but that no agent has reported
	// for.
	absent []string
	// asked is set if Kubernetes says which nodes should have an agent.
	asked bool
}

// attend compares the nodes that agents report for with those that Kubernetes expects. The
// facts are held.
func (s *store) attend() attendance {
	var a attendance
	var members []string
	members, a.asked = s.kube.AgentNodes()
	member := make(map[string]bool, len(members))
	for _, name := range members {
		member[facts.Label(name)] = true
	}
	known := make(map[string][]*facts.Node) // by label
	for n := range s.facts.Nodes {
		at := facts.Label(n.Name)
		known[at] = append(known[at], n)
		switch {
		case !n.Rec.Unheard:
			a.heard = append(a.heard, n)
		case !s.replaced(n) && (!a.asked || member[at]):
			a.silent = append(a.silent, n)
		}
	}
	for _, name := range members {
		if !slices.ContainsFunc(known[facts.Label(name)], func(n *facts.Node) bool { return n.Rec.Called(name) }) {
			a.absent = append(a.absent, name)
		}
	}
	return a
}

// replaced reports whether another node has taken the place of a silent one: its machine was
// rebooted, or it timed out and another node reports under its name.
func (s *store) replaced(n *facts.Node) bool {
	if n.Rec.Rebooted {
		return true
	}
	return n.Rec.TimedOut && slices.ContainsFunc(s.facts.Called(n.Name), func(other *facts.Node) bool { return !other.Rec.Unheard })
}

// seen caches the coverage.
type seen struct {
	mu       sync.Mutex
	at       verdict.Stamp
	coverage *pb.Coverage
}

// coverageChanged discards the cached coverage.
func (s *store) coverageChanged() {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	s.seen.coverage = nil
}

// currentCoverage returns the coverage for an answer. Callers take it before they make the
// answer, because a node that returns meanwhile may be missing from the answer.
func (s *store) currentCoverage() *pb.Coverage {
	s.facts.RLock()
	defer s.facts.RUnlock()
	return s.coverageNow()
}

// coverageNow is currentCoverage for callers that hold the facts. The message is shared and
// must not be changed.
func (s *store) coverageNow() *pb.Coverage {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	now := s.clock()
	if s.seen.coverage == nil || now.Sub(s.seen.at) >= coverageFor {
		s.seen.at, s.seen.coverage = now, s.newCoverage(now)
	}
	return s.seen.coverage
}

func (s *store) newCoverage(now verdict.Stamp) *pb.Coverage {
	a := s.attend()
	out := &pb.Coverage{
		Expected: uint32(len(a.heard) + len(a.silent) + len(a.absent)), Heard: uint32(len(a.heard)),
		SilentNodes: slices.Clone(a.absent),
	}
	for _, n := range a.silent {
		out.SilentNodes = append(out.SilentNodes, n.Rec.Name)
	}
	for _, n := range a.heard {
		if n.Status.GetBlind() {
			out.NodesWithoutAddresses = append(out.NodesWithoutAddresses, n.Rec.Name)
		}
		if wire := n.Status.GetWire(); wire == "" || wire == wireOff || n.Status.GetUnwatchedPorts() > 0 {
			out.NodesWithoutFrames = append(out.NodesWithoutFrames, n.Rec.Name)
		}
	}
	for n := range s.facts.Nodes { // including silent nodes
		if n.Incomplete() {
			out.NodesLeftOut = append(out.NodesLeftOut, n.Rec.Name)
		}
	}
	out.WithoutFrames, out.WithoutAddresses = uint32(len(out.NodesWithoutFrames)), uint32(len(out.NodesWithoutAddresses))
	out.LeftOut = uint32(len(out.NodesLeftOut))
	for _, names := range []*[]string{&out.SilentNodes, &out.NodesWithoutFrames, &out.NodesWithoutAddresses, &out.NodesLeftOut} {
		slices.Sort(*names)
		*names = (*names)[:min(len(*names), maxCoverageNames)]
	}
	switch {
	case a.asked:
	case s.kube != nil:
		out.Unknown = pb.Coverage_KUBERNETES
	case !s.alone && now.Sub(verdict.At(s.base)) < startGrace:
		out.Unknown = pb.Coverage_STARTING
	}
	out.Incomplete = out.Heard == 0 || out.Heard < out.Expected || s.shards.Unjudged() > 0 || out.WithoutAddresses > 0 || out.LeftOut > 0 || out.Unknown != pb.Coverage_UNSPECIFIED
	return out
}

// wireOff is the value by which an agent says that it does not observe frames.
const wireOff = "off"

// sameCoverage reports whether two coverages are equal.
func sameCoverage(a, b *pb.Coverage) bool { return a == b || proto.Equal(a, b) }
