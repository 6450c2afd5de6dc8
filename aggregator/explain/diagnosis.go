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

// diagnosisSteps lists the steps of a manual diagnosis, in order.
var diagnosisSteps = []string{
	verdict.StepEvents, verdict.StepPods, verdict.StepRoutes, verdict.StepCNIPlugin, verdict.StepIPAM, verdict.StepPodCIDRs, verdict.StepNewNodes,
}

// Diagnose adds the information from Kubernetes to the diagnosis of a conflict. If the API can be
// read, the absence of objects is an answer, too.
func Diagnose(steps []DiagnosisStep, says Kubernetes) (out []DiagnosisStep) {
	answers := make(map[string]string, len(diagnosisSteps))
	for _, s := range steps {
		answers[s.Step] = s.Answer
	}
	var events, plugins, added []string
	for _, r := range says.Related {
		switch {
		case r.Kind == "Event":
			events = append(events, eventText(r))
		case r.Kind == "Pod", r.Reason == "NoCNIPod":
			plugins = append(plugins, r.Message)
		case r.Kind == "Node" && r.Reason == "Added":
			added = append(added, r.Message)
		}
	}
	answer := func(step string, found []string, nothing string, known bool) {
		switch {
		case len(found) > 0:
			answers[step] = sentences(found)
		case says.Live && known:
			answers[step] = nothing
		}
	}
	answer(verdict.StepEvents, events, "The Kubernetes API has no event of the owners or their nodes that would explain it.", says.Events)
	answer(verdict.StepCNIPlugin, plugins, "No pod of a known CNI plugin runs on the owners' nodes.", says.Whole)
	answer(verdict.StepNewNodes, added, "None of the owners' nodes is new: according to the Kubernetes API, none was added in the last hour.", says.Whole)
	for _, step := range diagnosisSteps {
		if answers[step] != "" {
			out = append(out, DiagnosisStep{Step: step, Answer: answers[step]})
		}
	}
	return out
}

// eventText describes an event.
func eventText(r Related) string {
	about := r.Name
	if r.Namespace != "" {
		about = r.Namespace + "/" + about
	}
	times := ""
	if r.Count > 1 {
		times = fmt.Sprintf(", %d times", r.Count)
	}
	return fmt.Sprintf("%s of %s%s: %s", r.Reason, about, times, r.Message)
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
