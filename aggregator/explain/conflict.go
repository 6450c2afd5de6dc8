package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// ToldConflict is a conflict in words.
type ToldConflict struct {
	// Summary is a few sentences for a person.
	Summary string
	// Because lists the facts that the cause follows from.
	Because []string
	// Excluded lists the causes that were considered, and why each is not the one.
	Excluded []Excluded
	// Diagnosis is what is to be seen where one would look by hand.
	Diagnosis []DiagnosisStep
	// Remedy is the steps to take, in order.
	Remedy []Action
}

// Excluded is a cause that was considered, and why it is not the one.
type Excluded struct{ Cause, Reason string }

// DiagnosisStep is a step of a diagnosis by hand, and what is to be seen there.
type DiagnosisStep struct{ Step, Answer string }

// Remembered sums up what is remembered of a conflict about an address.
func Remembered(a netip.Addr, m *verdict.Memory) string {
	text := fmt.Sprintf("%s was held by %d owners since %s", a, len(m.Owners), stampText(m.DetectedAt))
	if m.ResolvedAt != 0 {
		text += ", until " + stampText(m.ResolvedAt)
	}
	return text + "."
}

// Conflict puts a conflict into words.
func Conflict(p *verdict.Policy, c *verdict.Conflict) ToldConflict {
	w := wording{policy: p, address: c.Address, owners: c.Owners, named: c.Bystanders}
	told := ToldConflict{Because: w.facts(c.Facts)}
	for _, r := range c.RuledOut {
		told.Excluded = append(told.Excluded, Excluded{r.Cause, w.against(r.Fact)})
	}
	for _, check := range c.Checks {
		told.Diagnosis = append(told.Diagnosis, DiagnosisStep{check.Step, strings.Join(w.facts(check.Facts), " ")})
	}
	if !c.Active() {
		told.Summary = w.ending(c)
		return told
	}
	told.Summary = w.summary(c) + after(" ", w.headline(c))
	a := advising{wording: w, c: c, parties: c.Parties()}
	told.Remedy = readable(a.remedy())
	return told
}

// summary says what a conflict is, in two sentences.
func (w *wording) summary(c *verdict.Conflict) string {
	place := phrase(c.Kind, c.Scope)
	names := list(each(c.Owners, placed))
	var what string
	switch {
	case c.Rule == verdict.RuleDADFailed && len(c.Owners) == 1:
		what = fmt.Sprintf("The kernel found %s in use by somebody else when %s was to get it; who else has it is not known.%s",
			c.Address, names, bystanders(c))
	case c.Rule == verdict.RuleDADFailed:
		what = fmt.Sprintf("%s is used by %d owners %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == verdict.RuleSamePod:
		what = fmt.Sprintf("%s is held by %d sandboxes of one pod %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == verdict.RuleSameVM:
		what = fmt.Sprintf("%s is held by %d pods of virtual machine %s %s: %s.", c.Address, len(c.Owners), c.Owners[0].VirtualMachine(), place, names)
	case c.Rule == verdict.RuleSplitBrain:
		what = fmt.Sprintf("%s is held by %d nodes themselves %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == verdict.RuleExternalsAlternate:
		what = fmt.Sprintf("%s is claimed in turn by %d senders %s: %s.", c.Address, len(c.Owners), place, names)
	default:
		what = fmt.Sprintf("%s is held by %d owners %s: %s.", c.Address, len(c.Owners), place, names)
	}
	return what + " " + w.standing(c)
}

// standing says how sure a conflict is.
func (w *wording) standing(c *verdict.Conflict) string {
	p := w.policy
	var unheard []string
	for i := range c.Owners {
		if o := &c.Owners[i]; o.State == verdict.Unheard {
			unheard = append(unheard, fmt.Sprintf("%s was last seen on a node not heard from (%s).", OwnerName(o), o.Node.Name))
		}
	}
	if len(unheard) > 0 {
		return strings.Join(unheard, " ")
	}
	switch {
	case c.Rule == verdict.RuleDADFailed:
		return fmt.Sprintf("Duplicate address detection failed in %s: the kernel there does not use the address.", list(failed(c.Owners)))
	case c.Phase == verdict.Confirmed && (c.Rule == verdict.RuleAssignedAndWire || !configured(c.Owners)):
		return fmt.Sprintf("Both sides were witnessed again %s later: it is real.%s", p.Waited(c), joined(c))
	case c.Phase == verdict.Confirmed:
		return fmt.Sprintf("Their kernels were asked again %s later and still have it: it is real.%s", p.Waited(c), joined(c))
	case c.LinkProof == verdict.OneWay && c.Rule != verdict.RuleExternalsAlternate:
		return fmt.Sprintf(
			"That their links are one LAN is not proven: frames were seen in one direction only, and anybody on one of two LANs can forge such a frame. "+
				"Confirmed when frames in both directions were seen, or in one for %s.", p.StaleAfter)
	case c.Rule == verdict.RuleSplitBrain:
		return fmt.Sprintf("Expected while nodes hand an address over; confirmed if it lasts %s.", p.HandoverGrace)
	case c.Rule == verdict.RuleSameVM:
		return fmt.Sprintf("Expected while a virtual machine is migrated; confirmed if it lasts %s.", p.MigrationGrace)
	case c.Rule == verdict.RuleSamePod:
		return fmt.Sprintf("Expected while a sandbox is made anew; confirmed if it lasts %s.", p.HandoverGrace)
	case c.Rule == verdict.RuleExternalsAlternate:
		return "No agent can look inside them, so this stays a suspicion."
	case c.Rule == verdict.RuleAssignedAndWire:
		return fmt.Sprintf("Confirmed when both sides are witnessed again after %s.", p.Wait(c))
	}
	return fmt.Sprintf("Confirmed if their kernels still have it when they are asked again after %s.", p.Wait(c))
}

// configured reports whether all owners have the address by their kernels.
func configured(owners []verdict.Owner) bool {
	return !slices.ContainsFunc(owners, func(o verdict.Owner) bool { return !o.Assigned })
}

// joined names the owners that came after a conflict was confirmed: of them nothing was asked
// again.
func joined(c *verdict.Conflict) string {
	var names []string
	for i := range c.Owners {
		if o := &c.Owners[i]; o.Begun() > c.ConfirmedAt {
			names = append(names, OwnerName(o))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" %s came after that.", capital(list(names)))
}

// bystanders names the owners that only answer for the address: where duplicate address
// detection fails, one of them may be why.
func bystanders(c *verdict.Conflict) string {
	if len(c.Bystanders) == 0 {
		return ""
	}
	return fmt.Sprintf(" %s only answers for it, as a proxy does, and may be why.", capital(list(each(c.Bystanders, placed))))
}

// failed names the owners whose kernels found somebody else with the address.
func failed(owners []verdict.Owner) (names []string) {
	for i := range owners {
		if o := &owners[i]; o.DADFailed() {
			names = append(names, OwnerName(o))
		}
	}
	return names
}

// ending says how a conflict ended.
func (w *wording) ending(c *verdict.Conflict) string {
	start := fmt.Sprintf("Over: %s was held by %s %s.", c.Address, w.all(), phrase(c.Kind, c.Scope))
	switch end := c.Ending; end.Kind {
	case verdict.EndRebooted:
		return fmt.Sprintf("%s Node %s was booted anew, so %s is gone.", start, w.node(end.Owner), w.name(end.Owner))
	case verdict.EndTimedOut:
		return fmt.Sprintf("%s Node %s was not heard from for %s, so %s counts as gone.", start, w.node(end.Owner), w.policy.NodeTimeout, w.name(end.Owner))
	case verdict.EndRivalKnown:
		return start + " Who else has it is known now: it goes on as a conflict of them both."
	case verdict.EndNoOwner:
		return start + " None of them has it now."
	case verdict.EndOneOwner:
		return start + " Now only " + w.name(end.Owner) + " has it."
	case verdict.EndExcluded:
		return start + " It is no longer compared: " + w.exclusion(end.Excluded) + "."
	case verdict.EndWiderScope:
		return start + " It goes on as a conflict of a wider scope."
	case verdict.EndLinksApart:
		return start + " They are on links of different nodes, and no frame shows any more that these are one LAN."
	}
	return start + " They are no longer in one scope."
}
