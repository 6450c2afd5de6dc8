package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// ConflictText is the text of a conflict.
type ConflictText struct {
	// Summary is a few sentences.
	Summary string
	// Because lists the facts that the cause follows from.
	Because []string
	// Excluded lists the causes that were considered and ruled out.
	Excluded []Excluded
	// Diagnosis lists the results of the steps of a manual diagnosis.
	Diagnosis []DiagnosisStep
	// Remedy lists the steps to take, in order.
	Remedy []advice.Action
}

// Excluded is a cause that was ruled out, and the reason.
type Excluded struct{ Cause, Reason string }

// DiagnosisStep is a step of a manual diagnosis, and its result.
type DiagnosisStep struct{ Step, Answer string }

// Remembered summarizes the stored memory of a conflict about an address.
func Remembered(a netip.Addr, m *verdict.Memory) string {
	key, held := "remembered", "held"
	if m.ResolvedAt != 0 {
		key += "/resolved"
	}
	if m.Rule == verdict.RuleDADFailed { // the kernel of one of them refused it
		held = "claimed"
	}
	return Text(key, "address", a, "held", held, "n", len(m.Owners), "since", m.DetectedAt, "until", m.ResolvedAt)
}

// Conflict returns the text of a conflict.
func Conflict(p *verdict.Policy, c *verdict.Conflict) ConflictText {
	w := wording{policy: p, address: c.Address, owners: c.Owners, named: c.Bystanders}
	text := ConflictText{Because: w.facts(c.Facts)}
	for _, r := range c.RuledOut {
		text.Excluded = append(text.Excluded, Excluded{r.Cause, w.factText("not", &r.Fact)})
	}
	for _, check := range c.Checks {
		text.Diagnosis = append(text.Diagnosis, DiagnosisStep{check.Step, strings.Join(w.facts(check.Facts), " ")})
	}
	if !c.Active() {
		text.Summary = w.ending(c)
		return text
	}
	text.Summary = w.summary(c) + after(" ", w.headline(c))
	if !c.SamePod() { // whose texts name sandboxes or namespaces
		w.alike = c.Owners
	}
	a := remedyBuilder{wording: w, c: c, parties: c.Parties()}
	text.Remedy = readable(a.remedy())
	return text
}

// Recalled summarizes a conflict from before the start of the aggregator that was not judged since.
func Recalled(p *verdict.Policy, c *verdict.Conflict) string {
	w := wording{policy: p, address: c.Address, owners: c.Owners}
	if !c.Active() {
		return w.ending(c)
	}
	sentences := append([]string{w.ofConflict("summary/", c)}, w.unheard(c)...)
	return strings.Join(append(sentences, w.text("standing/recalled")), " ")
}

// variant returns the key of a text about a conflict by its rule: the first of those that exist.
func variant(about string, c *verdict.Conflict) string {
	keys := []string{about + c.Rule, strings.TrimSuffix(about, "/")}
	switch {
	case c.Rule == verdict.RuleExternalsAlternate && !c.AllExternal():
		keys = slices.Insert(keys, 0, about+c.Rule+"/known")
	case c.Rule == verdict.RuleExternalsAlternate && !c.Unplaced():
		keys = slices.Insert(keys, 0, about+c.Rule+"/guests")
	case c.Rule == verdict.RuleDADFailed && c.Expected():
		keys = slices.Insert(keys, 0, about+c.Rule+"/expected")
	case anycast(c):
		keys = slices.Insert(keys, 0, about+c.Rule+"/anycast", about+c.Rule+"/one")
	case c.Rule == verdict.RuleDADFailed && len(c.Owners) == 1:
		keys = slices.Insert(keys, 0, about+c.Rule+"/one")
	case c.Rule == verdict.RuleDADFailed && slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return o.Yielded() }):
		keys = slices.Insert(keys, 0, about+c.Rule+"/yielded")
	case c.Rule == verdict.RuleDADFailed && !slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return o.Assigned || !o.DADFailed() }):
		keys = slices.Insert(keys, 0, about+c.Rule+"/all")
	case c.Rule == verdict.RuleSplitBrain && notOnlyNodes(c):
		keys = slices.Insert(keys, 0, about+c.Rule+"/namespace")
	case c.Rule == verdict.RuleSamePod && !c.OfPod():
		keys = slices.Insert(keys, 0, about+c.Rule+"/container")
	}
	if c.Moves && c.Rule != verdict.RuleDADFailed {
		keys = slices.Insert(keys, 0, about+"moves")
		if notOnlyNodes(c) {
			keys = slices.Insert(keys, 0, about+"moves/namespace")
		}
	}
	return keys[slices.IndexFunc(keys, has)]
}

// anycast reports whether the kernels of all owners refused an anycast address.
func anycast(c *verdict.Conflict) bool {
	return c.Headline != nil && c.Headline.Kind == verdict.HeadAnycast
}

// notOnlyNodes reports whether an owner is no node itself.
func notOnlyNodes(c *verdict.Conflict) bool {
	return slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return o.Kind() != verdict.Host })
}

func (w *wording) ofConflict(about string, c *verdict.Conflict) string {
	var namespaces []string
	if c.Rule == verdict.RuleSamePod {
		namespaces = each(c.Owners, placedNetns)
	}
	name := placed
	if c.Kind == verdict.NodeScope { // the text names the node
		name = onNode
	}
	owners := each(c.Owners, namesakes(c.Owners).naming(name))
	times := "twice"
	if n := len(c.Owners); n > 2 {
		times = fmt.Sprintf("%d times", n)
	}
	return w.text(variant(about, c), &c.Owners[0], "n", len(c.Owners), "times", times, "owners", owners, "namespaces", namespaces,
		"place", phrase(c.Kind, c.Scope), "within", verdict.AlternateWithin)
}

// summary describes a conflict in two sentences.
func (w *wording) summary(c *verdict.Conflict) string {
	what := w.ofConflict("summary/", c)
	if c.Rule == verdict.RuleDADFailed && len(c.Owners) == 1 && len(c.Bystanders) > 0 {
		// Senders that only answer for the address can be the reason why detection fails.
		key := "bystanders"
		switch {
		case anycast(c):
			key += "/anycast"
		case len(c.Bystanders) > 1:
			key += "/several"
		}
		what += " " + w.text(key, "bystanders", list(each(c.Bystanders, placed)))
	}
	return what + " " + w.standing(c)
}

// unheard says which owners are on disconnected nodes.
func (w *wording) unheard(c *verdict.Conflict) (sentences []string) {
	for i := range c.Owners {
		if o := &c.Owners[i]; o.State == verdict.Unheard {
			sentences = append(sentences, w.text("standing/unheard", o))
		}
	}
	return sentences
}

// standing says how certain a conflict is, and what would confirm it.
func (w *wording) standing(c *verdict.Conflict) string {
	if unheard := w.unheard(c); len(unheard) > 0 {
		return strings.Join(unheard, " ")
	}
	var failed, joined []string
	name := namesakes(c.Owners).naming(OwnerName)
	for i := range c.Owners {
		o := &c.Owners[i]
		if o.DADFailed() {
			failed = append(failed, name(o))
		}
		// The kernels of owners that appeared after the conflict was confirmed were not asked again. Which
		// owners appeared before a restart is not known: then, they have no claims.
		if len(o.Claims) > 0 && o.Begun() > max(c.ConfirmedAt, c.Resumed) {
			joined = append(joined, name(o))
		}
	}
	var key string
	switch {
	case c.Rule == verdict.RuleDADFailed:
		key = variant("standing/", c)
	case c.Phase == verdict.Confirmed:
		key = "standing/asked"
		if c.Rule == verdict.RuleAssignedAndWire || slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return !o.Assigned }) {
			key = "standing/seen"
		}
		confirmed := w.text(key, "waited", w.policy.Waited(c))
		if len(joined) > 0 {
			confirmed += " " + w.text("standing/joined", "joined", list(joined))
		}
		return confirmed
	case c.Expected() && disconnected(c) != nil:
		return w.text("standing/unasked", disconnected(c))
	case c.LinkProof == verdict.OneWay && !c.Unplaced():
		key = "standing/one-way"
		if slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return o.Namespace == nil }) {
			key += "/external"
		}
	default:
		key = variant("standing/", c)
	}
	return w.text(key, "failed", failed, "wait", w.policy.Wait(c))
}

// disconnected returns an owner on a disconnected node, whose kernel cannot be asked; nil if there is none. Frames may
// show that it lives.
func disconnected(c *verdict.Conflict) *verdict.Owner {
	if i := slices.IndexFunc(c.Owners, func(o verdict.Owner) bool { return o.Namespace != nil && o.Node.Unheard }); i >= 0 {
		return &c.Owners[i]
	}
	return nil
}

func (w *wording) ending(c *verdict.Conflict) string {
	end := c.Ending
	key, at, silent := "ending/"+string(end.Kind), verdict.Stamp(0), []string(nil)
	if c.Rule == verdict.RuleDADFailed && len(c.Owners) == 1 && has(key+"/one") {
		key += "/one"
	}
	for i := range c.Owners {
		if o := &c.Owners[i]; o.State == verdict.Stale {
			at, silent = max(at, o.LastOnWire()), append(silent, OwnerName(o))
		}
	}
	if at != 0 && has(key+"/silent") {
		key += "/silent"
	}
	return w.text(variant("resolved/", c), "place", phrase(c.Kind, c.Scope)) + " " +
		w.text(key, "node", w.node(end.Owner), "owner", w.name(end.Owner), "excluded", w.exclusion(end.Excluded), "silent", list(silent), "at", at)
}

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
