package explain

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// AddressText is the explanation of an address as text.
type AddressText struct {
	Summary string
	Steps   []StepText
}

// StepText is a rule that was evaluated, and its result as text.
type StepText struct {
	Rule    string
	Scope   verdict.Scope
	Applied bool
	Reason  string
}

// Address returns the explanation of an address as text.
func Address(p *verdict.Policy, e *verdict.Explanation) AddressText {
	w := wording{policy: p, address: e.Address, owners: e.Owners}
	text := AddressText{Summary: w.answer(e) + after(" ", w.findings(e))}
	for i := range e.Steps {
		s := &e.Steps[i]
		text.Steps = append(text.Steps, StepText{s.Rule, s.Scope, s.Applied, w.step(e, s)})
	}
	return text
}

// findings says which findings there are about an address without a conflict; nothing if there is none.
func (w *wording) findings(e *verdict.Explanation) string {
	if len(e.Conflicts) > 0 || len(e.Findings) == 0 {
		return ""
	}
	return w.text("answer/findings", "kinds", e.Findings)
}

// answer returns a short form of the explanation.
func (w *wording) answer(e *verdict.Explanation) string {
	if len(e.Conflicts) > 0 {
		c := &e.Conflicts[0]
		verb := "Suspected conflict"
		if c.Phase == verdict.Confirmed {
			verb = "Conflict"
		}
		of := wording{policy: w.policy, address: c.Address, owners: c.Owners}
		return verb + ". " + of.summary(c) + after(" ", of.headline(c))
	}
	if e.Awaited && len(e.Owners) > 0 {
		now := *e
		now.Awaited = false
		return w.text("answer/not-yet", "now", w.answer(&now))
	}
	if e.Lasting {
		now := *e
		now.Lasting = false
		return w.text("answer/lasting", "now", w.answer(&now))
	}
	names := each(e.Compared, func(c *verdict.Compared) string { return w.placed(c.Owner) })
	switch {
	case len(e.Owners) == 0 && (e.Incomplete || e.Awaited):
		return w.text("answer/cannot-tell")
	case len(e.Owners) == 0:
		return w.text("answer/no-owner")
	case len(names) == 0:
		return w.text("answer/none-compared", "seen", each(e.Owners, placed), "reason", w.reason())
	case len(names) == 1:
		key := "answer/one"
		switch o := w.owner(e.Compared[0].Owner); {
		case o == nil:
		case o.Yielded():
			key = "answer/yielded"
		case o.DADFailed():
			key = "answer/refused"
		}
		return w.text(key, "owners", names, "others", after(" ", w.others()))
	case e.Contested:
		return w.text("answer/contested", "owners", names)
	}
	for i, c := range e.Compared {
		names[i] = w.name(c.Owner) + " " + scopesText(c.Scopes)
	}
	if e.Address.IsLinkLocalUnicast() {
		return w.text("answer/link-local", "owners", names)
	}
	return w.text("answer/apart", "owners", names)
}

// others says why the other owners seen with the address are not compared. If there are several,
// it only names them, because the steps give the reason for each.
func (w *wording) others() string {
	var names []string
	why := ""
	for i := range w.owners {
		if o := &w.owners[i]; o.Excluded != nil {
			names = append(names, OwnerName(o))
			why = w.exclusion(o.Excluded)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return w.text("others/one", "names", names[0], "why", why)
	}
	return w.text("others/several", "names", list(names))
}

// reason says why no owner is compared.
func (w *wording) reason() string {
	var reasons []string
	for i := range w.owners {
		reason := "it has not been seen for " + w.policy.StaleAfter.String()
		if e := w.owners[i].Excluded; e != nil {
			reason = w.exclusion(e)
		}
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) > 1 {
		return "the rules below give the reason for each"
	}
	return reasons[0]
}

var ruleWords = map[string]func(*wording, *verdict.Step) any{
	"owner":       func(w *wording, s *verdict.Step) any { return w.name(s.Owners[0].Owner) },
	"placed":      func(w *wording, s *verdict.Step) any { return w.placed(s.Owners[0].Owner) },
	"scopes":      func(_ *wording, s *verdict.Step) any { return scopesText(s.Owners[0].Scopes) },
	"otherplaced": func(w *wording, s *verdict.Step) any { return w.placed(s.Owners[1].Owner) },
	"otherscopes": func(_ *wording, s *verdict.Step) any { return scopesText(s.Owners[1].Scopes) },
	"owners": func(w *wording, s *verdict.Step) any {
		return each(s.Owners, func(c *verdict.Compared) string { return w.placed(c.Owner) })
	},
	"why":      func(w *wording, s *verdict.Step) any { return w.exclusion(w.owner(s.Owners[0].Owner).Excluded) },
	"scope":    func(_ *wording, s *verdict.Step) any { return scopeText(&s.Scope) },
	"vrf":      func(_ *wording, s *verdict.Step) any { return after(" in VRF ", s.Scope.Name) },
	"node":     func(_ *wording, s *verdict.Step) any { return s.Scope.Node },
	"nodename": func(_ *wording, s *verdict.Step) any { return s.Node },
	"n":        func(_ *wording, s *verdict.Step) any { return len(s.Seen) },
	"seen": func(_ *wording, s *verdict.Step) any {
		return each(s.Seen, func(p *verdict.Place) string { // where a claim was seen
			if p.Node != "" {
				return "frames on " + p.Node + "/" + p.Interface
			}
			return "its kernel on " + p.Interface
		})
	},
	"port":    func(_ *wording, s *verdict.Step) any { return s.Seen[0].Node + "/" + s.Seen[0].Interface },
	"mac":     func(_ *wording, s *verdict.Step) any { return s.MAC },
	"source":  func(_ *wording, s *verdict.Step) any { return s.Source },
	"network": func(_ *wording, s *verdict.Step) any { return s.Network },
	"prefix":  func(_ *wording, s *verdict.Step) any { return s.Prefix },
	"joints":  func(w *wording, s *verdict.Step) any { return each(s.Joints, w.joint) },
}

func (w *wording) step(e *verdict.Explanation, s *verdict.Step) string {
	if i := slices.IndexFunc(e.Conflicts, func(c verdict.Conflict) bool { return s.Conflict != "" && c.ID == s.Conflict }); i >= 0 {
		c := &e.Conflicts[i]
		return w.ofConflict("rule/", c) + " " + w.standing(c)
	}
	key := "rule/" + s.Rule
	switch {
	case s.Excludes:
		key = "rule/excluded"
	case s.Rule == verdict.RuleOnLink && s.Joints == nil:
		key += "/alone"
	case s.Rule == verdict.RuleWeakSource && s.MAC.Group():
		key += "/group"
	case s.Rule == verdict.RuleService && s.Service.Endpoints == ipam.NoEndpoints:
		key += "/none"
	case s.Rule != verdict.RuleInNetwork:
	case !s.Applied:
		key += "/none"
	case s.Prefix.IsValid():
		key += "/declared"
	case s.Network == "":
		key += "/cidr"
	case s.Annotated:
		key += "/annotated"
	case s.Overlay:
		key += "/overlay"
	case s.Network == verdict.NetworkOfAPI, s.Network == verdict.NetworkOfRuntime, s.Network == verdict.NetworkOfDevice:
		key += "/" + s.Network
	}
	if !has(key) {
		return ""
	}
	values := []any{source(func(name string) any {
		if word := ruleWords[name]; word != nil {
			return word(w, s)
		}
		return nil
	}), "within", verdict.AlternateWithin}
	if s.Service != nil {
		values = append(values, redirectWords(s.Service)...)
	}
	return w.text(key, values...)
}

// joint says why two links are considered one.
func (w *wording) joint(j *verdict.Joint) string {
	key := "joint"
	switch {
	case j.Back != "":
		key += "/both"
	case j.Proof == verdict.Proven:
		key += "/proven"
	}
	return w.text(key, "a", j.Entered.Node.Name+"/"+j.Entered.Name, "b", j.Home.Node.Name+"/"+j.Home.Name,
		"entered", j.Entered.Node.Name, "home", j.Home.Node.Name, "mac", j.MAC, "back", j.Back)
}

// Exclusion returns the reason, as a clause, why an owner is not compared with others. It is empty
// for an owner that is compared. The slice all contains the owners of the address.
func Exclusion(p *verdict.Policy, o *verdict.Owner, all []verdict.Owner) string {
	w := wording{policy: p, owners: all}
	return w.exclusion(o.Excluded)
}

// proxies are the names of the kinds of proxies in the keys of texts.
var proxies = [...]string{
	verdict.ByPlugin: "plugin", verdict.ByNoOverride: "no-override", verdict.ByManyAddresses: "many-addresses",
	verdict.ByOwnMAC: "own-mac", verdict.BySeveralOwners: "several-owners", verdict.ByKernel: "kernel",
}

// exclusion says why an owner is not compared.
func (w *wording) exclusion(e *verdict.Exclusion) string {
	if e == nil {
		return ""
	}
	key := "excluded/" + e.Rule
	if e.Rule == verdict.RuleReachableVia {
		key += "/" + proxies[e.Proxy]
	}
	return w.text(key, "reason", e.Reason, "mac", e.MAC, "responder", e.MAC.Responder(), "many", verdict.ManyAnswers,
		"port", e.Port, "victims", w.names(e.Victims))
}
