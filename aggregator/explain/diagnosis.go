package explain

import (
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Kubernetes is the information from the Kubernetes API about a conflict, and how complete it is.
type Kubernetes struct {
	// Related lists the objects that may be related to the conflict.
	Related []Related
	// Live is set if the API can be read, Events if its events can be read, too.
	Live, Events bool
	// Whole is set if Related is complete.
	Whole bool
}

// Related is a Kubernetes object that may be related to a conflict.
type Related struct {
	Kind, Namespace, Name, Reason, Message string
	// Count is the number of times that an event occurred.
	Count uint32
}

// Diagnose adds the information from Kubernetes to the diagnosis of a conflict. If the API can be
// read, the absence of objects is an answer, too.
func Diagnose(steps []DiagnosisStep, says Kubernetes) (out []DiagnosisStep) {
	answers := map[string]string{}
	for _, s := range steps {
		answers[s.Step] = s.Answer
	}
	found := map[string][]string{}
	for _, r := range says.Related {
		switch {
		case r.Kind == "Event":
			about, times := r.Name, ""
			if r.Namespace != "" {
				about = r.Namespace + "/" + about
			}
			if r.Count > 1 {
				times = fmt.Sprintf(", %d times", r.Count)
			}
			found[verdict.StepEvents] = append(found[verdict.StepEvents], fmt.Sprintf("%s of %s%s: %s", r.Reason, about, times, r.Message))
		case r.Kind == "Pod", r.Reason == "NoCNIPod":
			found[verdict.StepCNIPlugin] = append(found[verdict.StepCNIPlugin], r.Message)
		case r.Kind == "Node" && r.Reason == "Added":
			found[verdict.StepNewNodes] = append(found[verdict.StepNewNodes], r.Message)
		}
	}
	for _, step := range []string{
		verdict.StepEvents, verdict.StepPods, verdict.StepRoutes, verdict.StepCNIPlugin, verdict.StepIPAM, verdict.StepPodCIDRs, verdict.StepNewNodes,
	} {
		answer := answers[step]
		known := says.Whole
		if step == verdict.StepEvents {
			known = says.Events
		}
		switch {
		case len(found[step]) > 0:
			answer = sentences(found[step])
		case says.Live && known && has("diagnosis/"+step):
			answer = Text("diagnosis/" + step)
		}
		if answer != "" {
			out = append(out, DiagnosisStep{step, answer})
		}
	}
	return out
}

// sentences joins texts as sentences.
func sentences(texts []string) string {
	out := make([]string, 0, len(texts))
	for _, t := range texts {
		t = strings.TrimSpace(t)
		if t == "" {
			continue
		}
		t = strings.ToUpper(t[:1]) + t[1:]
		if !strings.ContainsAny(t[len(t)-1:], ".?!") {
			t += "."
		}
		out = append(out, t)
	}
	return strings.Join(out, " ")
}
