package explain

import (
	"fmt"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// stepWords has the words for each rule that is no conflict's and excludes no owner.
var stepWords = map[string]func(*wording, *verdict.Step) string{
	verdict.RuleNodeUnheard: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s was last seen on a node not heard from (%s). It counts as alive until the node has been silent for %s.",
			capital(w.name(s.Owners[0].Owner)), s.Scope.Node, w.policy.NodeTimeout)
	},
	verdict.RuleStale: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s is known only from the wire and was not seen there for %s.", capital(w.placed(s.Owners[0].Owner)), w.policy.StaleAfter)
	},
	verdict.RuleOneNamespace: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s is witnessed in %d ways (%s) and is one owner.", capital(w.name(s.Owners[0].Owner)), len(s.Seen), list(each(s.Seen, witnessText)))
	},
	verdict.RuleLinkLocal: func(*wording, *verdict.Step) string {
		return "A link-local address must be unique on its link only: what is configured on another link is another address."
	},
	verdict.RuleInNetwork: (*wording).inNetwork,
	verdict.RuleOnNode: func(_ *wording, s *verdict.Step) string {
		return fmt.Sprintf("Node %s itself routes to it%s: it must be unique there.", s.Scope.Node, after(" in VRF ", s.Scope.Name))
	},
	verdict.RuleOnLink: func(w *wording, s *verdict.Step) string {
		if s.Joints == nil {
			return "It must be unique on its link."
		}
		return fmt.Sprintf("It must be unique on its link, which is one with links of other nodes: %s.", list(each(s.Joints, w.joint)))
	},
	verdict.RuleOneOwner: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s is the only owner %s.", capital(w.placed(s.Owners[0].Owner)), scopeText(&s.Scope))
	},
	verdict.RuleDifferentLinks: func(w *wording, s *verdict.Step) string {
		a, b := s.Owners[0], s.Owners[1]
		return fmt.Sprintf("%s is compared %s, %s %s: no scope has both.", capital(w.placed(a.Owner)), scopesText(a.Scopes), w.placed(b.Owner), scopesText(b.Scopes))
	},
	verdict.RuleWiderScope: func(*wording, *verdict.Step) string {
		return "The same owners meet here, too; they are reported once, in the wider scope."
	},
	verdict.RuleMACChanged: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("Claimed on the wire by %s, one after the other: that may be a hand-over. It is a conflict if the first one comes back within %s.",
			w.placesText(s.Owners), verdict.AlternateWithin)
	},
	verdict.RuleWeakSource: func(_ *wording, s *verdict.Step) string {
		if s.MAC.Group() {
			return fmt.Sprintf("A frame on %s claimed the address for %s, which no host can have as its own hardware address: noted, never a rival.", portText(s.Seen[0]), s.MAC)
		}
		return fmt.Sprintf("A frame on %s said that %s has the address, but was sent by %s: noted, never a rival.", portText(s.Seen[0]), s.MAC, s.Source)
	},
	verdict.RuleNodeMAC: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s, seen on %s, is a hardware address of node %s, which hosts %s: it witnesses that owner and is no rival.",
			s.MAC, portText(s.Seen[0]), s.Node, w.name(s.Owners[0].Owner))
	},
	verdict.RuleMACCloned: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s, seen on %s, is the hardware address of another owner on this link, but entered through the port of %s: it is no evidence for that owner.",
			s.MAC, portText(s.Seen[0]), w.name(s.Owners[0].Owner))
	},
	verdict.RuleGuest: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s, seen on %s, is unknown and enters by the port of %s: a guest (such as a virtual machine) behind it, counted as that owner.",
			s.MAC, portText(s.Seen[0]), w.name(s.Owners[0].Owner))
	},
}

// conflictWords has the words for each rule that makes a conflict.
var conflictWords = map[string]func(*wording, *verdict.Conflict) string{
	verdict.RuleAssignedTwice: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("%d owners have it configured: %s.", len(c.Owners), list(each(c.Owners, placed)))
	},
	verdict.RuleAssignedAndWire: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("One owner has it configured and another claims it on the wire: %s.", list(each(c.Owners, placed)))
	},
	verdict.RuleExternalsAlternate: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("Senders that no agent can look into take turns with it within %s: %s.", verdict.AlternateWithin, list(each(c.Owners, placed)))
	},
	verdict.RuleDADFailed: func(*wording, *verdict.Conflict) string {
		return "The kernel's duplicate address detection found that somebody else has it."
	},
	verdict.RuleSplitBrain: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("%d nodes hold it themselves: %s.", len(c.Owners), list(each(c.Owners, placed)))
	},
	verdict.RuleSameVM: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("All owners are pods of virtual machine %s: a migration, unless it lasts.", c.Owners[0].VirtualMachine())
	},
	verdict.RuleSamePod: func(*wording, *verdict.Conflict) string {
		return "All owners are sandboxes of one pod: a hand-over, unless it lasts."
	},
}

// step puts a rule and its answer into words.
func (w *wording) step(e *verdict.Explanation, s *verdict.Step) string {
	if i := slices.IndexFunc(e.Conflicts, func(c verdict.Conflict) bool { return s.Conflict != "" && c.ID == s.Conflict }); i >= 0 {
		c := &e.Conflicts[i]
		return conflictWords[s.Rule](w, c) + " " + w.standing(c)
	}
	if s.Excludes {
		o := w.owner(s.Owners[0].Owner)
		return fmt.Sprintf("%s is not compared: %s.", capital(placed(o)), w.exclusion(o.Excluded))
	}
	if words := stepWords[s.Rule]; words != nil {
		return words(w, s)
	}
	return ""
}

// inNetwork says why the address must be unique on all nodes, or why not.
func (w *wording) inNetwork(s *verdict.Step) string {
	const pods = ": the addresses of pods must be unique on all nodes."
	switch {
	case !s.Applied:
		return "No declared network (--network) has it, nor the range of pods of a node, and neither a container runtime nor a CNI result says that a pod was given it: owners on several nodes are compared where they are on one link."
	case s.Prefix.IsValid():
		return fmt.Sprintf("It is in %s, which is declared as network %s: it must be unique on all nodes.", s.Prefix, s.Network)
	case s.Network == "":
		return "It is in the range of pods of a node (Node.spec.podCIDRs)" + pods
	case s.Network == verdict.NetworkOfRuntime:
		return fmt.Sprintf("The container runtime says that it gave it to %s", w.name(s.Owners[0].Owner)) + pods
	}
	return fmt.Sprintf("A CNI result says that network %s gave it to %s", s.Network, w.name(s.Owners[0].Owner)) + pods
}

// witnessText says where a claim was witnessed.
func witnessText(p *verdict.Place) string {
	if p.Node != "" {
		return "frames on " + portText(*p)
	}
	return "its kernel on " + p.Interface
}

// portText names the interface that a frame was seen on.
func portText(p verdict.Place) string { return p.Node + "/" + p.Interface }

// joint says why two links are one.
func (w *wording) joint(j *verdict.Joint) string {
	a, b := j.Entered.Node.Name+"/"+j.Entered.Name, j.Home.Node.Name+"/"+j.Home.Name
	switch {
	case j.Back != "":
		return fmt.Sprintf("%s with %s, as frames of each entered the other (%s of %s, %s of %s)", a, b, j.Back, j.Entered.Node.Name, j.MAC, j.Home.Node.Name)
	case j.Proof == verdict.Proven:
		return fmt.Sprintf("%s with %s, as frames from %s of %s entered %s for %s or longer", a, b, j.MAC, j.Home.Node.Name, a, w.policy.StaleAfter)
	}
	return fmt.Sprintf("%s with %s, which is not proven: a frame from %s of %s entered %s, but none the other way", a, b, j.MAC, j.Home.Node.Name, a)
}
