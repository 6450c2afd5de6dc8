package explain_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestDiagnosis(t *testing.T) {
	steps := []string{verdict.StepEvents, verdict.StepPods, verdict.StepCNIPlugin, verdict.StepIPAM, verdict.StepPodCIDRs, verdict.StepNewNodes}
	known := []explain.DiagnosisStep{{Step: verdict.StepPodCIDRs, Answer: "They overlap."}, {Step: verdict.StepPods, Answer: "Both run."}}
	event := explain.Related{Kind: "Event", Namespace: "default", Name: "web", Reason: "FailedCreatePodSandBox", Message: "no free addresses", Count: 3}
	plugin := explain.Related{Kind: "Pod", Namespace: "kube-system", Name: "calico-node-x", Reason: "Running", Message: "calico on n1 runs and is ready"}
	added := explain.Related{Kind: "Node", Name: "n2", Reason: "Added", Message: "node n2 was added less than an hour ago: was it created from a template that contained pods?"}
	service := explain.Related{Kind: "Service", Name: "web", Reason: "Address", Message: "10.0.0.5 is a service's"}
	live := explain.Kubernetes{Live: true, Events: true, Whole: true}
	nothing := map[string]string{"events": "has no event", "cni-plugin": "No pod of a known CNI plugin", "new-nodes": "None of the owners' nodes is new"}
	tests := []struct {
		name    string
		related []explain.Related
		says    explain.Kubernetes
		want    map[string]string
	}{
		{"without Kubernetes", nil, explain.Kubernetes{}, nil},
		{"an API that does not respond", []explain.Related{event}, explain.Kubernetes{Events: true, Whole: true}, map[string]string{"events": "FailedCreatePodSandBox of default/web, 3 times: no free addresses."}},
		{"healthy objects only", []explain.Related{service}, live, nothing},
		{"objects for each step", []explain.Related{service, event, added, plugin}, live, map[string]string{
			"events": "FailedCreatePodSandBox", "cni-plugin": "Calico on n1 runs and is ready.", "new-nodes": "from a template that contained pods?",
		}},
		{"objects that were left out are not reported as missing", []explain.Related{event}, explain.Kubernetes{Live: true, Events: true}, map[string]string{"events": "FailedCreatePodSandBox"}},
		{
			"events are not followed", nil,
			explain.Kubernetes{Live: true, Whole: true},
			map[string]string{"cni-plugin": nothing["cni-plugin"], "new-nodes": nothing["new-nodes"]},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := map[string]string{"pods": "Both run.", "pod-cidrs": "They overlap."}
			maps.Copy(want, tt.want)
			tt.says.Related = tt.related
			got := explain.Diagnose(known, tt.says)
			next := 0
			for _, s := range got {
				for next < len(steps) && steps[next] != s.Step {
					next++
				}
				if part, ok := want[s.Step]; !ok || !strings.Contains(s.Answer, part) {
					t.Errorf("got %s: %q, want %q", s.Step, s.Answer, part)
				}
			}
			if len(got) != len(want) || next == len(steps) {
				t.Errorf("got %v, want %d answers in the order of the steps", got, len(want))
			}
		})
	}
}
