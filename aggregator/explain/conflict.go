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
	text := fmt.Sprintf("%s was held by %d owners since %s", a, len(m.Owners), stampText(m.DetectedAt))
	if m.ResolvedAt != 0 {
		text += ", until " + stampText(m.ResolvedAt)
	}
	return text + "."
}

// Conflict returns the text of a conflict.
func Conflict(p *verdict.Policy, c *verdict.Conflict) ConflictText {
	w := wording{policy: p, address: c.Address, owners: c.Owners, named: c.Bystanders}
	text := ConflictText{Because: w.facts(c.Facts)}
	for _, r := range c.RuledOut {
		text.Excluded = append(text.Excluded, Excluded{r.Cause, w.against(r.Fact)})
	}
	for _, check := range c.Checks {
		text.Diagnosis = append(text.Diagnosis, DiagnosisStep{check.Step, strings.Join(w.facts(check.Facts), " ")})
	}
	if !c.Active() {
		text.Summary = w.ending(c)
		return text
	}
	text.Summary = w.summary(c) + after(" ", w.headline(c))
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
	return w.summary(c)
}

// summary describes a conflict in two sentences.
func (w *wording) summary(c *verdict.Conflict) string {
	place := phrase(c.Kind, c.Scope)
	names := list(each(c.Owners, placed))
	var what string
	switch {
	case c.Rule == verdict.RuleDADFailed && len(c.Owners) == 1:
		what = fmt.Sprintf("The kernel found %s in use by another host when it was configured in %s; the other host is unknown.%s",
			c.Address, names, bystanders(c))
	case c.Rule == verdict.RuleDADFailed:
		what = fmt.Sprintf("%s is used by %d owners %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == verdict.RuleSamePod && !c.OfPod():
		what = fmt.Sprintf("%s is held by %d network namespaces of %s %s: %s.", c.Address, len(c.Owners), OwnerName(&c.Owners[0]), place, list(each(c.Owners, placedNetns)))
	case c.Rule == verdict.RuleSamePod:
		what = fmt.Sprintf("%s is held by %d sandboxes of one pod %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == verdict.RuleSameVM:
		what = fmt.Sprintf("%s is held by %d pods of virtual machine %s %s: %s.", c.Address, len(c.Owners), c.Owners[0].VirtualMachine(), place, names)
	case c.Rule == verdict.RuleSplitBrain:
		what = fmt.Sprintf("%s is held by %d nodes %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == verdict.RuleExternalsAlternate:
		what = fmt.Sprintf("%s is claimed alternately by %d devices %s: %s.", c.Address, len(c.Owners), place, names)
	default:
		what = fmt.Sprintf("%s is held by %d owners %s: %s.", c.Address, len(c.Owners), place, names)
	}
	return what + " " + w.standing(c)
}

// standing says how certain a conflict is, and what would confirm it.
func (w *wording) standing(c *verdict.Conflict) string {
	p := w.policy
	var unheard []string
	for i := range c.Owners {
		if o := &c.Owners[i]; o.State == verdict.Unheard {
			unheard = append(unheard, fmt.Sprintf("%s was last seen on node %s, which is disconnected.", capital(OwnerName(o)), o.Node.Name))
		}
	}
	if len(unheard) > 0 {
		return strings.Join(unheard, " ")
	}
	switch {
	case c.Rule == verdict.RuleDADFailed:
		return fmt.Sprintf("Duplicate address detection failed in %s, so the kernel there does not use the address.", list(failed(c.Owners)))
	case c.Phase == verdict.Confirmed && (c.Rule == verdict.RuleAssignedAndWire || !configured(c.Owners)):
		return fmt.Sprintf("Confirmed: both sides were seen again %s later.%s", p.Waited(c), joined(c))
	case c.Phase == verdict.Confirmed:
		return fmt.Sprintf("Confirmed: the kernels were asked again %s later and still have the address.%s", p.Waited(c), joined(c))
	case c.LinkProof == verdict.OneWay && c.Rule != verdict.RuleExternalsAlternate:
		return fmt.Sprintf(
			"It is not proven that their links are one LAN: frames were seen in one direction only, and any host on either LAN could have forged them. "+
				"The conflict is confirmed when frames are seen in both directions, or in one direction for %s.", p.StaleAfter)
	case c.Rule == verdict.RuleSplitBrain:
		return fmt.Sprintf("This is expected while nodes hand an address over. The conflict is confirmed if it lasts %s.", p.HandoverGrace)
	case c.Rule == verdict.RuleSameVM:
		return fmt.Sprintf("This is expected while a virtual machine is migrated. The conflict is confirmed if it lasts %s.", p.MigrationGrace)
	case c.Rule == verdict.RuleSamePod && !c.OfPod():
		return fmt.Sprintf("This is expected while the network namespace of a container is replaced. The conflict is confirmed if it lasts %s.", p.HandoverGrace)
	case c.Rule == verdict.RuleSamePod:
		return fmt.Sprintf("This is expected while a sandbox is recreated. The conflict is confirmed if it lasts %s.", p.HandoverGrace)
	case c.Rule == verdict.RuleExternalsAlternate:
		return "No agent runs on these devices, so the conflict cannot be confirmed."
	case c.Rule == verdict.RuleAssignedAndWire:
		return fmt.Sprintf("The conflict is confirmed when both sides are seen again after %s.", p.Wait(c))
	}
	return fmt.Sprintf("The conflict is confirmed if the kernels still have the address when they are asked again after %s.", p.Wait(c))
}

// configured reports whether the kernels of all owners have the address.
func configured(owners []verdict.Owner) bool {
	return !slices.ContainsFunc(owners, func(o verdict.Owner) bool { return !o.Assigned })
}

// joined lists the owners that appeared after a conflict was confirmed. Their kernels were not
// asked again. It leaves out owners that appeared before a restart, because that is not known.
func joined(c *verdict.Conflict) string {
	var names []string
	for i := range c.Owners {
		if o := &c.Owners[i]; o.Begun() > max(c.ConfirmedAt, c.Resumed) {
			names = append(names, OwnerName(o))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" %s appeared after that.", capital(list(names)))
}

// bystanders lists the owners that only answer for the address. They can be the reason why
// duplicate address detection fails.
func bystanders(c *verdict.Conflict) string {
	if len(c.Bystanders) == 0 {
		return ""
	}
	return fmt.Sprintf(" %s only answers for the address, as a proxy does, and may be the reason.", capital(list(each(c.Bystanders, placed))))
}

// failed lists the owners whose kernels found another host with the address.
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
	start := fmt.Sprintf("Resolved: %s was held by %s %s.", c.Address, w.all(), phrase(c.Kind, c.Scope))
	switch end := c.Ending; end.Kind {
	case verdict.EndRebooted:
		return fmt.Sprintf("%s Node %s rebooted, so %s is gone.", start, w.node(end.Owner), w.name(end.Owner))
	case verdict.EndTimedOut:
		return fmt.Sprintf("%s Node %s was disconnected for %s, so %s counts as gone.", start, w.node(end.Owner), w.policy.NodeTimeout, w.name(end.Owner))
	case verdict.EndRivalKnown:
		return start + " The other owner is now known: this continues as a conflict between both."
	case verdict.EndNoOwner:
		return start + " None of them has the address now."
	case verdict.EndOneOwner:
		return start + " Now only " + w.name(end.Owner) + " has the address."
	case verdict.EndExcluded:
		return start + " One owner is no longer compared: " + w.exclusion(end.Excluded) + "."
	case verdict.EndWiderScope:
		return start + " This continues as a conflict in a wider scope."
	case verdict.EndLinksApart:
		return start + " They are on links of different nodes, and recent frames no longer show that these links are one LAN."
	}
	return start + " They are no longer in one scope."
}
