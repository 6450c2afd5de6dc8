package canary_test

import (
	"fmt"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/proto/form"
	"github.com/ipwitness/ipwitness/tests/canary"
)

// A silent canary proves something only if it sings for unquoted names.
func TestCanaryDetectsUnquotedNames(t *testing.T) {
	unquoted := []string{"kubectl delete pod -n default %s", "kubectl get pod '%s'", `kubectl get pod "%s"`}
	for _, payload := range canary.Payloads {
		t.Run(form.Visible(payload), func(t *testing.T) {
			cage := canary.New(t)
			for _, template := range unquoted {
				cage.Add(fmt.Sprintf(template, payload))
			}
			runs := canary.Runs(payload) || payload == "--evil=1"
			if (cage.Sings() != "") != runs {
				t.Errorf("got a canary of %q: %v, want %v", payload, !runs, runs)
			}
			for _, template := range unquoted {
				cage.Advice("Delete the pod of before; its controller makes another: " + fmt.Sprintf(template, payload) + ". Then look again.")
			}
			if (cage.Sings() != "") != runs {
				t.Errorf("got a canary of %q in a sentence: %v, want %v", payload, !runs, runs)
			}
			cage.Add("kubectl delete pod " + advice.Argument(payload))
			cage.Advice("Delete it (by hand): kubectl delete pod " + advice.Argument(payload) + ". Then look again.")
			if script := cage.Sings(); script != "" {
				t.Errorf("got a canary of %q, though it is quoted", script)
			}
		})
	}
}
