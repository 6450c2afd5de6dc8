package aggregator

import (
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestAllocationInTheContract(t *testing.T) {
	p := &verdict.Pool{IPAM: verdict.HostLocal, Name: "/var/lib/cni/networks/cbr0", Node: &verdict.Node{Name: "n1"}}
	al := &verdict.Allocation{Pool: p, Address: netip.MustParseAddr("10.0.0.5"), ContainerID: "c1", Interface: "eth0", Location: "/var/lib/cni/networks/cbr0/10.0.0.5", AllocatedAt: 1e9}
	want := &pb.Allocation{
		Ipam: "host-local", Pool: p.Name, Node: "n1", ContainerId: "c1", Interface: "eth0", Location: al.Location, AllocatedAt: timestamp(1e9),
	}
	if got := allocationProto(al); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A conflict says why, and where that is explained.
func TestConflictSaysWhy(t *testing.T) {
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
