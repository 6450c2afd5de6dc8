package explain

import (
	"fmt"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
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
	text := AddressText{Summary: w.answer(e)}
	for i := range e.Steps {
		s := &e.Steps[i]
		text.Steps = append(text.Steps, StepText{s.Rule, s.Scope, s.Applied, w.step(e, s)})
	}
	return text
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
	a := e.Address
	names := make([]string, 0, len(e.Compared))
	for _, c := range e.Compared {
		names = append(names, w.placed(c.Owner))
	}
	switch {
	case len(e.Owners) == 0 && e.Incomplete:
		return fmt.Sprintf("Cannot tell: no owner of %s is known, but ipwitness does not see all nodes.", a)
	case len(e.Owners) == 0:
		return fmt.Sprintf("No conflict: no owner of %s is known.", a)
	case len(names) == 0:
		return fmt.Sprintf("No conflict: %s is seen with %s, which does not count as a conflict: %s.", a, list(each(e.Owners, placed)), w.reason())
	case len(names) == 1:
		return fmt.Sprintf("No conflict: %s is held by one owner, %s.%s", a, names[0], w.others())
	}
	if e.Contested {
		return fmt.Sprintf("No conflict so far: %s is claimed on the wire by %s, but at different times.", a, list(names))
	}
	for i, c := range e.Compared {
		names[i] += " " + scopesText(c.Scopes)
	}
	if a.IsLinkLocalUnicast() {
		return fmt.Sprintf("No conflict: %s is held by %s. It is a link-local address, which only has to be unique on each link.", a, list(names))
	}
	return fmt.Sprintf("No conflict: %s is held by %s. No scope in which it must be unique contains more than one of them.", a, list(names))
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
		return fmt.Sprintf(" %s is also seen with it but is not compared: %s.", capital(names[0]), why)
	}
	return fmt.Sprintf(" %s are also seen with it but are not compared.", capital(list(names)))
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
