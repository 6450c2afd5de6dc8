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

// Status is what needs attention: incidents, the most urgent first, and the nodes.
type Status struct {
	Incidents []*pb.Incident
	Nodes     *pb.ListNodesResponse
	Coverage  *pb.Coverage
	// ReachesBackTo is since when there is a history; nil if there is none.
	ReachesBackTo *timestamppb.Timestamp
}

// Urgent returns the incidents on which somebody has to act.
func (s *Status) Urgent() []*pb.Incident {
	return slices.DeleteFunc(slices.Clone(s.Incidents), func(i *pb.Incident) bool { return i.GetSeverity() < pb.Finding_WARNING })
}

// verdict says in one sentence what the rest shows in detail.
func (s *Status) verdict() (Tone, string) {
	var confirmed, suspected, urgent int
	for _, i := range s.Urgent() {
		urgent++
		confirmed += int(i.GetConfirmed())
		suspected += int(i.GetSuspected())
	}
	switch {
	case confirmed > 0:
		return BadTone, Count(confirmed, "address has", "addresses have") + " more than one owner."
	case suspected > 0:
		return WarnTone, Count(suspected, "address seems", "addresses seem") + " to have more than one owner."
	case urgent > 0:
		return WarnTone, "No address is known to have two owners, but " + Count(urgent, "incident needs", "incidents need") + " attention."
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
	findings := 0
	for _, i := range s.Incidents {
		findings += int(i.GetFindings())
	}
	p.fields(
		"Incidents", tally(s.Incidents, func(i *pb.Incident) string { return i.GetSeverity().String() }),
		"Conflicts", heldTwice(s.Incidents...),
		"Findings", fmt.Sprint(findings),
		"Nodes", tally(s.Nodes.GetNodes(), func(n *pb.Node) string { return n.GetState().String() }),
		"Agents", tally(s.Nodes.GetNodes(), (*pb.Node).GetVersion),
		"Pools", s.nearlyFull(),
		"Kube API", kubernetesState(s.Nodes.GetKubernetes()),
		"History", cmp.Or(prefixed("since ", clockTo("15:04", s.ReachesBackTo, now)), "none is kept"),
		"Times", zone,
	)
	p.bullets("Not seen:", "  ", Unseen(s.Coverage)...)
	p.bullets("Problems of the aggregator:", "  ", s.Nodes.GetProblems()...)
	if urgent := s.Urgent(); len(urgent) > 0 {
		p.heading("Incidents:")
		_ = Incidents(p, urgent, layout, now) // writing to a page cannot fail
		p.line("")
		p.text("", fmt.Sprintf("%s incidents ID shows the steps to take.", cmp.Or(layout.Program, "ipwitness")))
	}
	return p.write(w)
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
	for _, i := range s.Incidents {
		if i.GetCause() == verdict.FindingPoolExhaustion {
			pools = append(pools, PoolName(i.GetPool()))
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
