package explain

import (
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Kubernetes is what the Kubernetes API says beside a conflict, and how far that can be relied on.
type Kubernetes struct {
	// Related are the objects that may have to do with it.
	Related []Related
	// Live is set if the API is heard from, Events if events are, too.
	Live, Events bool
	// Whole is set if Related has all that there are.
	Whole bool
}

// Related is an object of Kubernetes that may have to do with a conflict.
type Related struct {
	Kind, Namespace, Name, Reason, Message string
	// Count is how often an event happened.
	Count uint32
}

// diagnosisSteps are the steps of a diagnosis by hand, in order.
var diagnosisSteps = []string{
	verdict.StepEvents, verdict.StepPods, verdict.StepCNIPlugin, verdict.StepIPAM, verdict.StepPodCIDRs, verdict.StepNewNodes,
}

// Diagnose adds what Kubernetes says to what a conflict tells. That it says nothing is an answer,
// too, if it is heard from.
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
	answer(verdict.StepEvents, events, "The Kubernetes API tells of no event of the owners or of their nodes that would explain it.", says.Events)
	answer(verdict.StepCNIPlugin, plugins, "No pod of a CNI plugin that is known as one is on the owners' nodes.", says.Whole)
	answer(verdict.StepNewNodes, added, "None of the owners' nodes is new: the Kubernetes API tells of none that was added in the last hour.", says.Whole)
	for _, step := range diagnosisSteps {
		if answers[step] != "" {
			out = append(out, DiagnosisStep{Step: step, Answer: answers[step]})
		}
	}
	return out
}

// eventText tells of an event.
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

// sentences puts texts one after the other.
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
