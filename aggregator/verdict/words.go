package verdict

import (
	"fmt"
	"slices"
	"strings"
)

// describe names who is in a namespace as a person would; c is a claim of it.
func describe(ns *Namespace, c *Claim) string {
	if ns == nil {
		return "the device with MAC " + c.MAC.String()
	}
	return ns.call(ns.Who.Workload())
}

// call names a workload that is in the namespace.
func (ns *Namespace) call(w Workload) string {
	if w.OnlyNetns() {
		return "network namespace " + w.Name
	}
	switch w.Kind {
	case Pod:
		if w.Name == "" {
			return "pod with uid " + w.UID
		}
		return "pod " + w.Namespace + "/" + w.Name
	case Container:
		if w.Name != "" {
			return "container " + w.Name
		}
		return "container " + shortID(w.ContainerID)
	case VM:
		return "virtual machine " + w.Name
	case Host:
		return "node " + ns.Node.Name + " itself"
	}
	switch {
	case w.Name != "":
		return "network namespace " + w.Name
	case w.ContainerID != "":
		return "container " + shortID(w.ContainerID)
	case w.Process != "":
		return "process " + w.Process
	case ns.Netns != "":
		return "network namespace " + ns.Netns
	}
	return fmt.Sprintf("network namespace #%d of node %s", ns.Record, ns.Node.Name)
}

// OnlyNetns tells whether all that is known is a name that `ip netns` gave.
func (w Workload) OnlyNetns() bool { return w.Source == "netns" && w.Name != "" && w.Kind != Host }

// shortID is as much of a container id as people read.
func shortID(id string) string { return id[:min(len(id), 12)] }

// name names an owner without its place.
func (o *Owner) name() string {
	if o.Namespace == nil {
		return describe(nil, o.Claims[0])
	}
	return o.Namespace.call(o.Workload())
}

// placed names an owner and where it is.
func (o *Owner) placed() string {
	switch {
	case o.Namespace == nil:
		return fmt.Sprintf("%s (seen on %s)", o.name(), witness(o.Claims[0]))
	case o.Interface.Namespace.ID != o.ID:
		return fmt.Sprintf("%s (behind %s of node %s)", o.name(), o.Interface.Name, o.Node.Name)
	}
	if o.Kind() == Host {
		return fmt.Sprintf("%s (%s)", o.name(), o.Interface.Name)
	}
	if p := o.Pod; p != nil && p.Controller != "" {
		return fmt.Sprintf("%s of %s %s (%s, node %s)", o.name(), p.ControllerKind, p.Controller, o.Interface.Name, o.Node.Name)
	}
	return fmt.Sprintf("%s (%s, node %s)", o.name(), o.Interface.Name, o.Node.Name)
}

// witness is the interface that a claim was seen on.
func witness(c *Claim) string { return c.Node().Name + "/" + c.Interface.Name }

// fewest is how many names are read; more are only counted.
const fewest = 6

// list joins names as in a sentence.
func list(names []string) string {
	switch n := len(names); n {
	case 0:
		return "nobody"
	case 1:
		return names[0]
	default:
		if n > fewest {
			return fmt.Sprintf("%s and %d more", strings.Join(names[:fewest-1], ", "), n-fewest+1)
		}
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
}

func each[T any](items []T, word func(*T) string) []string {
	words := make([]string, 0, len(items))
	for i := range items {
		words = append(words, word(&items[i]))
	}
	return words
}

// phrase names a scope in a sentence.
func phrase(kind ScopeKind, name string) string {
	switch kind {
	case LinkScope:
		return "on link " + name
	case NodeScope:
		return "on node " + name
	case NetworkScope:
		return "in network " + name
	}
	return "anywhere"
}

// summary says what a conflict is, in two sentences.
func (j *judging) summary(c *Conflict) string {
	place := phrase(c.Kind, c.Scope)
	names := list(each(c.Owners, (*Owner).placed))
	var what string
	switch {
	case c.Rule == RuleDADFailed && len(c.Owners) == 1:
		what = fmt.Sprintf("The kernel found %s in use by somebody else when %s was to get it; who else has it is not known.%s",
			c.Address, names, j.advertisers())
	case c.Rule == RuleDADFailed:
		what = fmt.Sprintf("%s is used by %d owners %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == RuleSamePod:
		what = fmt.Sprintf("%s is held by %d sandboxes of one pod %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == RuleSameVM:
		what = fmt.Sprintf("%s is held by %d pods of virtual machine %s %s: %s.", c.Address, len(c.Owners), c.Owners[0].virtualMachine(), place, names)
	case c.Rule == RuleSplitBrain:
		what = fmt.Sprintf("%s is held by %d nodes themselves %s: %s.", c.Address, len(c.Owners), place, names)
	case c.Rule == RuleExternalsAlternate:
		what = fmt.Sprintf("%s is claimed in turn by %d senders %s: %s.", c.Address, len(c.Owners), place, names)
	default:
		what = fmt.Sprintf("%s is held by %d owners %s: %s.", c.Address, len(c.Owners), place, names)
	}
	return what + " " + j.standing(c)
}

// standing says how sure the conflict is.
func (j *judging) standing(c *Conflict) string {
	var unheard []string
	for i := range c.Owners {
		if o := &c.Owners[i]; o.State == Unheard {
			unheard = append(unheard, fmt.Sprintf("%s was last seen on a node not heard from (%s).", o.name(), o.Node.Name))
		}
	}
	if len(unheard) > 0 {
		return strings.Join(unheard, " ")
	}
	switch {
	case c.Rule == RuleDADFailed:
		return fmt.Sprintf("Duplicate address detection failed in %s: the kernel there does not use the address.", list(failed(c.Owners)))
	case c.Phase == Confirmed && (c.Rule == RuleAssignedAndWire || !configured(c.Owners)):
		return fmt.Sprintf("Both sides were witnessed again %s later: it is real.%s", j.waited(c), c.joined())
	case c.Phase == Confirmed:
		return fmt.Sprintf("Their kernels were asked again %s later and still have it: it is real.%s", j.waited(c), c.joined())
	case c.LinkProof == OneWay && c.Rule != RuleExternalsAlternate:
		return fmt.Sprintf(
			"That their links are one LAN is not proven: frames were seen in one direction only, and anybody on one of two LANs can forge such a frame. "+
				"Confirmed when frames in both directions were seen, or in one for %s.", j.policy.StaleAfter)
	case c.Rule == RuleSplitBrain:
		return fmt.Sprintf("Expected while nodes hand an address over; confirmed if it lasts %s.", j.policy.HandoverGrace)
	case c.Rule == RuleSameVM:
		return fmt.Sprintf("Expected while a virtual machine is migrated; confirmed if it lasts %s.", j.policy.MigrationGrace)
	case c.Rule == RuleSamePod:
		return fmt.Sprintf("Expected while a sandbox is made anew; confirmed if it lasts %s.", j.policy.HandoverGrace)
	case c.Rule == RuleExternalsAlternate:
		return "No agent can look inside them, so this stays a suspicion."
	case c.Rule == RuleAssignedAndWire:
		return fmt.Sprintf("Confirmed when both sides are witnessed again after %s.", j.wait(c))
	}
	return fmt.Sprintf("Confirmed if their kernels still have it when they are asked again after %s.", j.wait(c))
}

// configured tells whether all owners have the address by their kernels.
func configured(owners []Owner) bool {
	return !slices.ContainsFunc(owners, func(o Owner) bool { return !o.Assigned })
}

// joined says who came after a conflict was confirmed: of them nothing was asked
// again.
func (c *Conflict) joined() string {
	var names []string
	for i := range c.Owners {
		if o := &c.Owners[i]; o.Begun() > c.ConfirmedAt {
			names = append(names, o.name())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" %s came after that.", capital(list(names)))
}

// advertisers names those who only answer for the address: where duplicate
// address detection fails, one of them may be why.
func (j *judging) advertisers() string {
	var names []string
	for i := range j.out.Owners {
		if o := &j.out.Owners[i]; o.Rule == RuleReachableVia {
			names = append(names, o.placed())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" %s only answers for it, as a proxy does, and may be why.", capital(list(names)))
}

// failed names the owners whose kernels found somebody else with the address.
func failed(owners []Owner) (names []string) {
	for i := range owners {
		if o := &owners[i]; o.dadFailed() {
			names = append(names, o.name())
		}
	}
	return names
}

// resolution says how a conflict ended.
func (j *judging) resolution(c *Conflict, left []*Owner, over coverage) string {
	start := fmt.Sprintf("Over: %s was held by %s %s.", c.Address, list(each(c.Owners, (*Owner).name)), phrase(c.Kind, c.Scope))
	for i := range c.Owners {
		if o := &c.Owners[i]; o.State == Gone && o.Node.Rebooted {
			return fmt.Sprintf("%s Node %s was booted anew, so %s is gone.", start, o.Node.Name, o.name())
		}
		if o := &c.Owners[i]; o.State == Gone && o.Node.TimedOut {
			return fmt.Sprintf("%s Node %s was not heard from for %s, so %s counts as gone.",
				start, o.Node.Name, j.policy.NodeTimeout, o.name())
		}
	}
	names := make([]string, 0, len(left))
	excluded := ""
	for _, o := range left {
		names = append(names, o.name())
		if o.Excluded != "" {
			excluded = o.Excluded
		}
	}
	switch {
	case c.Rule == RuleDADFailed && len(c.Owners) == 1 && len(over) > 0:
		return start + " Who else has it is known now: it goes on as a conflict of them both."
	case len(left) == 0:
		return start + " None of them has it now."
	case len(left) == 1:
		return start + " Now only " + names[0] + " has it."
	case excluded != "":
		return start + " It is no longer compared: " + excluded + "."
	case len(over) > 0:
		return start + " It goes on as a conflict of a wider scope."
	case c.LinkProof != 0:
		return start + " They are on links of different nodes, and no frame shows any more that these are one LAN."
	}
	return start + " They are no longer in one scope."
}
