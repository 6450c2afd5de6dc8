package aggregator

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

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
	heard, silent []*node
	// absent are the Kubernetes nodes that should have an agent but that no agent has reported
	// for.
	absent []string
	// asked is set if Kubernetes says which nodes should have an agent.
	asked bool
}

// attend compares the nodes that agents report for with those that Kubernetes expects. The
// caller holds s.mu.
func (s *store) attend() attendance {
	var a attendance
	var members []string
	members, a.asked = s.kube.AgentNodes()
	member := make(map[string]bool, len(members))
	for _, name := range members {
		member[label(name)] = true
	}
	known := make(map[string][]*node) // by label
	for _, n := range s.nodes {
		at := label(n.name)
		known[at] = append(known[at], n)
		switch {
		case !n.rec.Unheard:
			a.heard = append(a.heard, n)
		case !s.replaced(n) && (!a.asked || member[at]):
			a.silent = append(a.silent, n)
		}
	}
	for _, name := range members {
		if !slices.ContainsFunc(known[label(name)], func(n *node) bool { return n.rec.Called(name) }) {
			a.absent = append(a.absent, name)
		}
	}
	return a
}

// replaced reports whether another node has taken the place of a silent one: its machine was
// rebooted, or it timed out and another node reports under its name.
func (s *store) replaced(n *node) bool {
	if n.rec.Rebooted {
		return true
	}
	for other := s.called.get(n.name); n.rec.TimedOut && other != nil; other = other.alsoCalled {
		if !other.rec.Unheard {
			return true
		}
	}
	return false
}

// seen caches the coverage.
type seen struct {
	at       verdict.Stamp
	coverage *pb.Coverage
}

// coverageChanged discards the cached coverage.
func (s *store) coverageChanged() { s.seen = seen{} }

// currentCoverage returns the coverage for an answer. Callers take it before they make the
// answer, because a node that returns meanwhile may be missing from the answer.
func (s *store) currentCoverage() *pb.Coverage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coverageNow()
}

// coverageNow is currentCoverage for callers that hold s.mu. The message is shared and
// must not be changed.
func (s *store) coverageNow() *pb.Coverage {
	now := s.clock()
	if s.seen.coverage == nil || now.Sub(s.seen.at) >= coverageFor {
		s.seen = seen{now, s.newCoverage(now)}
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
		out.SilentNodes = append(out.SilentNodes, n.rec.Name)
	}
	for _, n := range a.heard {
		if n.status.GetBlind() {
			out.NodesWithoutAddresses = append(out.NodesWithoutAddresses, n.rec.Name)
		}
		if wire := n.status.GetWire(); wire == "" || wire == wireOff || n.status.GetUnwatchedPorts() > 0 {
			out.NodesWithoutFrames = append(out.NodesWithoutFrames, n.rec.Name)
		}
	}
	for _, n := range s.nodes { // including silent nodes
		if n.incomplete() {
			out.NodesLeftOut = append(out.NodesLeftOut, n.rec.Name)
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
	out.Incomplete = out.Heard == 0 || out.Heard < out.Expected || out.WithoutAddresses > 0 || out.LeftOut > 0 || out.Unknown != pb.Coverage_UNSPECIFIED
	return out
}

// wireOff is the value by which an agent says that it does not observe frames.
const wireOff = "off"

// sameCoverage reports whether two coverages are equal.
func sameCoverage(a, b *pb.Coverage) bool { return a == b || proto.Equal(a, b) }
