package show

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Status is what needs attention: active conflicts, sorted findings, and the nodes.
type Status struct {
	Conflicts []*pb.Conflict
	Findings  []*pb.Finding
	Nodes     *pb.ListNodesResponse
	Coverage  *pb.Coverage
	// ReachesBackTo is since when there is a history; nil if there is none.
	ReachesBackTo *timestamppb.Timestamp
}

// mostUrgent is the number of conflicts, and of findings, that a status lists.
const mostUrgent = 15

// Urgent reports whether somebody has to act.
func (s *Status) Urgent() bool { return len(s.urgentConflicts())+len(s.urgentFindings()) > 0 }

func (s *Status) urgentConflicts() []*pb.Conflict {
	urgent := slices.DeleteFunc(slices.Clone(s.Conflicts), func(c *pb.Conflict) bool { return !Active(c) || c.GetAcknowledgement() != nil })
	slices.SortStableFunc(urgent, func(a, b *pb.Conflict) int { // confirmed ones first
		return cmp.Or(cmp.Compare(b.GetState(), a.GetState()), CompareTimes(a.GetDetectedAt(), b.GetDetectedAt()))
	})
	return urgent
}

func (s *Status) urgentFindings() []*pb.Finding {
	return slices.DeleteFunc(slices.Clone(s.Findings), func(f *pb.Finding) bool { return f.GetSeverity() < pb.Finding_WARNING })
}

// verdict says in one sentence what the rest shows in detail.
func (s *Status) verdict() (Tone, string) {
	confirmed := 0
	conflicts, findings := s.urgentConflicts(), s.urgentFindings()
	for _, c := range conflicts {
		if c.GetState() == pb.Conflict_CONFIRMED {
			confirmed++
		}
	}
	switch {
	case confirmed > 0:
		return BadTone, Count(confirmed, "address has", "addresses have") + " more than one owner."
	case len(conflicts) > 0:
		return WarnTone, Count(len(conflicts), "address seems", "addresses seem") + " to have more than one owner."
	case len(findings) > 0:
		return WarnTone, "No address is known to have two owners, but " + Count(len(findings), "finding needs", "findings need") + " attention."
	case s.Coverage == nil || s.Coverage.GetIncomplete():
		return WarnTone, "Nothing is known to be wrong, but not everything is seen."
	}
	return GoodTone, "No address has two owners, and nothing needs attention."
}

// WriteStatus writes a status for people.
func WriteStatus(w io.Writer, s *Status, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	tone, verdict := s.verdict()
	p.toned(tone, verdict, "", verdict)
	p.line("")
	conflicts, findings := s.urgentConflicts(), s.urgentFindings()
	p.fields(
		"Conflicts", tally(s.Conflicts, ConflictState),
		"Findings", tally(s.Findings, func(f *pb.Finding) string { return f.GetSeverity().String() }),
		"Nodes", tally(s.Nodes.GetNodes(), func(n *pb.Node) string { return n.GetState().String() }),
		"Agents", tally(s.Nodes.GetNodes(), (*pb.Node).GetVersion),
		"Pools", s.nearlyFull(),
		"Kube API", kubernetesState(s.Nodes.GetKubernetes()),
		"History", cmp.Or(prefixed("since ", clockTo("15:04", s.ReachesBackTo, now)), "none is kept"),
		"Times", zone,
	)
	p.bullets("Not seen:", "  ", Unseen(s.Coverage)...)
	p.bullets("Problems of the aggregator:", "  ", s.Nodes.GetProblems()...)
	if n := len(conflicts); n > 0 {
		p.heading("Conflicts:")
		_, _ = Conflicts(p, conflicts[:min(n, mostUrgent)], layout, now) // writing to a page cannot fail
		p.more(n, layout, "conflicts")
	}
	if n := len(findings); n > 0 {
		p.heading("Findings:")
		_ = Findings(p, findings[:min(n, mostUrgent)], layout, now)
		p.more(n, layout, "audit")
	}
	return p.write(w)
}

// more says how to list what a status leaves out.
func (p *page) more(n int, layout Layout, command string) {
	if n > mostUrgent {
		p.text("", fmt.Sprintf("%d more: %s %s", n-mostUrgent, cmp.Or(layout.Program, "ipwitness"), command))
	}
}

// tally counts items by what is said of them, in the order of the texts; "none" if there are none.
func tally[T any](items []T, say func(T) string) string {
	counts := map[string]int{}
	for _, item := range items {
		counts[say(item)]++
	}
	var parts []string
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[text], text))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// nearlyFull names the pools that are nearly full.
func (s *Status) nearlyFull() string {
	var pools []string
	for _, f := range s.Findings {
		if f.GetKind() == verdict.FindingPoolExhaustion {
			pools = append(pools, PoolName(f.GetPool()))
		}
	}
	return prefixed("nearly full: ", few(pools))
}

func kubernetesState(k *pb.Kubernetes) string {
	if k.GetState() <= pb.Kubernetes_OFF {
		return ""
	}
	return join(", ", k.GetState().String(), k.GetServer())
}
