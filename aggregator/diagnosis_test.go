package aggregator

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A conflict contains its cause and a link to its documentation.
func TestConflictHasItsCause(t *testing.T) {
	l := newLab(t, Config{Kubeconfig: "off", Settle: 1})
	report := podVeth(2, "web", "10.0.0.5")
	report.Claims[0].Network = "kindnet"
	other := podVeth(3, "db", "10.0.0.5")
	other.Claims[0].Network = "docker"
	l.dial().send(snapshot(hello("n1", 1), report, other)).sync()
	c := l.conflict(pb.Conflict_SUSPECTED)
	if c.GetCause() != verdict.CauseOverlappingNetworks || len(c.GetBecause()) == 0 || len(c.GetExcluded()) == 0 ||
		!strings.HasSuffix(c.GetRunbook(), "/docs/runbooks/overlapping-networks.md") {
		t.Errorf("got cause %s because of %q, not %v, runbook %s", c.GetCause(), c.GetBecause(), c.GetExcluded(), c.GetRunbook())
	}
	if len(c.GetDiagnosis()) != 1 || c.GetDiagnosis()[0].GetStep() != verdict.StepIPAM {
		t.Errorf("got diagnosis %v, want what is known of IPAM", c.GetDiagnosis())
	}
}
