package aggregator

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestDiagnosis(t *testing.T) {
	known := []verdict.DiagnosisStep{{Step: verdict.StepPodCIDRs, Answer: "They overlap."}, {Step: verdict.StepPods, Answer: "Both run."}}
	event := &pb.Related{Kind: "Event", Namespace: "default", Name: "web", Reason: "FailedCreatePodSandBox", Message: "no free addresses", Count: 3}
	plugin := &pb.Related{Kind: "Pod", Namespace: "kube-system", Name: "calico-node-x", Reason: "Running", Message: "calico on n1 runs and is ready", Healthy: true}
	added := &pb.Related{Kind: "Node", Name: "n2", Reason: "Added", Message: "node n2 was added less than an hour ago: was it made from a template that had pods?"}
	service := &pb.Related{Kind: "Service", Name: "web", Reason: "Address", Message: "10.0.0.5 is a service's"}
	live := &pb.Kubernetes{State: pb.Kubernetes_LIVE}
	nothing := map[string]string{"events": "tells of no event", "cni-plugin": "No pod of a CNI plugin", "new-nodes": "None of the owners' nodes is new"}
	many := make([]*pb.Related, kube.MostRelated)
	for i := range many {
		many[i] = event
	}
	tests := []struct {
		name       string
		related    []*pb.Related
		kubernetes *pb.Kubernetes
		want       map[string]string
	}{
		{"without Kubernetes", nil, &pb.Kubernetes{State: pb.Kubernetes_OFF}, nil},
		{"an API that is not heard from", []*pb.Related{event}, &pb.Kubernetes{State: pb.Kubernetes_STALE}, map[string]string{"events": "FailedCreatePodSandBox of default/web, 3 times: no free addresses."}},
		{"nothing is to be said", []*pb.Related{service}, live, nothing},
		{"all is said", []*pb.Related{service, event, added, plugin}, live, map[string]string{
			"events": "FailedCreatePodSandBox", "cni-plugin": "Calico on n1 runs and is ready.", "new-nodes": "from a template that had pods?",
		}},
		{"what was left out is not nothing", many, live, map[string]string{"events": "FailedCreatePodSandBox"}},
		{
			"events are not heard of", nil, &pb.Kubernetes{State: pb.Kubernetes_LIVE, Problems: []string{"may not list events (warnings): conflicts are not explained by events"}},
			map[string]string{"cni-plugin": nothing["cni-plugin"], "new-nodes": nothing["new-nodes"]},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := map[string]string{"pods": "Both run.", "pod-cidrs": "They overlap."}
			maps.Copy(want, tt.want)
			got := diagnose(known, tt.related, tt.kubernetes)
			next := 0
			for _, s := range got {
				for next < len(diagnosisSteps) && diagnosisSteps[next] != s.GetStep() {
					next++
				}
				if part, ok := want[s.GetStep()]; !ok || !strings.Contains(s.GetAnswer(), part) {
					t.Errorf("got %s: %q, want %q", s.GetStep(), s.GetAnswer(), part)
				}
			}
			if len(got) != len(want) || next == len(diagnosisSteps) {
				t.Errorf("got %v, want %d answers in the order of the steps", got, len(want))
			}
		})
	}
}

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
