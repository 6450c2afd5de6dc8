package explain

import (
	"fmt"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// stepWords formats each rule that neither makes a conflict nor excludes an owner.
var stepWords = map[string]func(*wording, *verdict.Step) string{
	verdict.RuleNodeDisconnected: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s was last seen on node %s, which is disconnected. It counts as alive until the node has been disconnected for %s.",
			capital(w.name(s.Owners[0].Owner)), s.Scope.Node, w.policy.NodeTimeout)
	},
	verdict.RuleStale: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s is known only from the wire and has not been seen there for %s.", capital(w.placed(s.Owners[0].Owner)), w.policy.StaleAfter)
	},
	verdict.RuleOneNamespace: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s is seen in %d ways (%s) and is one owner.", capital(w.name(s.Owners[0].Owner)), len(s.Seen), list(each(s.Seen, witnessText)))
	},
	verdict.RuleLinkLocal: func(*wording, *verdict.Step) string {
		return "A link-local address only has to be unique on its link: on another link, it is another address."
	},
	verdict.RuleInNetwork: (*wording).inNetwork,
	verdict.RuleOnNode: func(_ *wording, s *verdict.Step) string {
		return fmt.Sprintf("Node %s itself routes to the address%s, so it must be unique there.", s.Scope.Node, after(" in VRF ", s.Scope.Name))
	},
	verdict.RuleOnLink: func(w *wording, s *verdict.Step) string {
		if s.Joints == nil {
			return "The address must be unique on its link."
		}
		return fmt.Sprintf("The address must be unique on its link, which spans links of other nodes: %s.", list(each(s.Joints, w.joint)))
	},
	verdict.RuleOneOwner: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s is the only owner %s.", capital(w.placed(s.Owners[0].Owner)), scopeText(&s.Scope))
	},
	verdict.RuleDifferentLinks: func(w *wording, s *verdict.Step) string {
		a, b := s.Owners[0], s.Owners[1]
		return fmt.Sprintf("%s is compared %s, and %s is compared %s: no scope contains both.", capital(w.placed(a.Owner)), scopesText(a.Scopes), w.placed(b.Owner), scopesText(b.Scopes))
	},
	verdict.RuleWiderScope: func(*wording, *verdict.Step) string {
		return "The same owners also meet here. They are reported once, in the wider scope."
	},
	verdict.RuleMACChanged: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("The address is claimed on the wire by %s, one after the other, which may be a hand-over. It is a conflict if the first one claims it again within %s.",
			w.placesText(s.Owners), verdict.AlternateWithin)
	},
	verdict.RuleWeakSource: func(_ *wording, s *verdict.Step) string {
		if s.MAC.Group() {
			return fmt.Sprintf("A frame on %s claimed the address for %s, which cannot be the hardware address of a host. The claim is recorded but not compared.", portText(s.Seen[0]), s.MAC)
		}
		return fmt.Sprintf("A frame on %s claimed the address for %s but was sent by %s. The claim is recorded but not compared.", portText(s.Seen[0]), s.MAC, s.Source)
	},
	verdict.RuleNodeMAC: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s, seen on %s, is a hardware address of node %s, which hosts %s: the frame is evidence for that owner, not a rival.",
			s.MAC, portText(s.Seen[0]), s.Node, w.name(s.Owners[0].Owner))
	},
	verdict.RuleMACCloned: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s, seen on %s, is the hardware address of another owner on this link, but the frame entered through the port of %s: it is not evidence for the owner of the hardware address.",
			s.MAC, portText(s.Seen[0]), w.name(s.Owners[0].Owner))
	},
	verdict.RuleGuest: func(w *wording, s *verdict.Step) string {
		return fmt.Sprintf("%s, seen on %s, is unknown and enters through the port of %s: it is a guest behind that port (such as a virtual machine) and counts as that owner.",
			s.MAC, portText(s.Seen[0]), w.name(s.Owners[0].Owner))
	},
}

// conflictWords formats each rule that makes a conflict.
var conflictWords = map[string]func(*wording, *verdict.Conflict) string{
	verdict.RuleAssignedTwice: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("%d owners have the address configured: %s.", len(c.Owners), list(each(c.Owners, placed)))
	},
	verdict.RuleAssignedAndWire: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("One owner has the address configured and another claims it on the wire: %s.", list(each(c.Owners, placed)))
	},
	verdict.RuleExternalsAlternate: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("Devices without an agent claim the address alternately within %s: %s.", verdict.AlternateWithin, list(each(c.Owners, placed)))
	},
	verdict.RuleDADFailed: func(*wording, *verdict.Conflict) string {
		return "The kernel's duplicate address detection found that another host uses the address."
	},
	verdict.RuleSplitBrain: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("%d nodes hold the address: %s.", len(c.Owners), list(each(c.Owners, placed)))
	},
	verdict.RuleSameVM: func(_ *wording, c *verdict.Conflict) string {
		return fmt.Sprintf("All owners are pods of virtual machine %s. This is a migration unless it lasts.", c.Owners[0].VirtualMachine())
	},
	verdict.RuleSamePod: func(_ *wording, c *verdict.Conflict) string {
		if !c.OfPod() {
			return "All owners are network namespaces of one container. This is a hand-over unless it lasts."
		}
		return "All owners are sandboxes of one pod. This is a hand-over unless it lasts."
	},
}

// step returns the text of a rule and its result.
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

// inNetwork says why the address must be unique on all nodes, or why it need not be.
func (w *wording) inNetwork(s *verdict.Step) string {
	const pods = ". Pod addresses must be unique on all nodes."
	switch {
	case !s.Applied:
		return "The address is in no declared network (--network) and no pod CIDR, and neither a container runtime nor a CNI result reports that it was assigned to a pod. Owners on different nodes are compared only if they are on one link."
	case s.Prefix.IsValid():
		return fmt.Sprintf("The address is in %s, which is declared as network %s, so it must be unique on all nodes.", s.Prefix, s.Network)
	case s.Network == "":
		return "The address is in the pod CIDR of a node (Node.spec.podCIDRs)" + pods
	case s.Annotated:
		return fmt.Sprintf("According to the annotations of %s, the address belongs to network %s, in which it must be unique.", w.name(s.Owners[0].Owner), s.Network)
	case s.Network == verdict.NetworkOfAPI:
		return fmt.Sprintf("According to the Kubernetes API, the address is that of %s", w.name(s.Owners[0].Owner)) + pods
	case s.Network == verdict.NetworkOfRuntime:
		return fmt.Sprintf("The container runtime reports that it assigned the address to %s", w.name(s.Owners[0].Owner)) + pods
	}
	return fmt.Sprintf("According to a CNI result, network %s assigned the address to %s", s.Network, w.name(s.Owners[0].Owner)) + pods
}

// witnessText says where a claim was seen.
func witnessText(p *verdict.Place) string {
	if p.Node != "" {
		return "frames on " + portText(*p)
	}
	return "its kernel on " + p.Interface
}

// portText returns the interface that a frame was seen on, as NODE/INTERFACE.
func portText(p verdict.Place) string { return p.Node + "/" + p.Interface }

// joint says why two links are considered one.
func (w *wording) joint(j *verdict.Joint) string {
	a, b := j.Entered.Node.Name+"/"+j.Entered.Name, j.Home.Node.Name+"/"+j.Home.Name
	switch {
	case j.Back != "":
		return fmt.Sprintf("%s and %s are one link, because frames from each entered the other (%s of %s, %s of %s)", a, b, j.Back, j.Entered.Node.Name, j.MAC, j.Home.Node.Name)
	case j.Proof == verdict.Proven:
		return fmt.Sprintf("%s and %s are one link, because frames from %s of %s entered %s for %s or longer", a, b, j.MAC, j.Home.Node.Name, a, w.policy.StaleAfter)
	}
	return fmt.Sprintf("%s and %s may be one link: a frame from %s of %s entered %s, but no frame was seen in the other direction", a, b, j.MAC, j.Home.Node.Name, a)
}
