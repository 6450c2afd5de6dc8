package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// What one would look at by hand, as the runbook of duplicate addresses has it.

// Expected tells whether a conflict is what a hand-over looks like, so that there is
// nothing to find out yet.
func (c *Conflict) Expected() bool {
	return c.Phase == Suspected && (c.Rule == RuleSamePod || c.Rule == RuleSameVM || c.Rule == RuleSplitBrain)
}

// diagnosis answers the steps that the verdict knows something of.
func (q *inquiry) diagnosis() (steps []DiagnosisStep) {
	if q.c.Expected() {
		return nil
	}
	add := func(step, answer string) {
		if answer != "" {
			steps = append(steps, DiagnosisStep{step, answer})
		}
	}
	add(StepPods, q.sayPods())
	if q.pods() || q.inPodRange() {
		add(StepIPAM, q.sayIPAM())
		add(StepPodCIDRs, q.sayPodCIDRs())
	}
	return steps
}

// sayPods says what the Kubernetes API has of the owners.
func (q *inquiry) sayPods() string {
	var words []string
	for _, o := range q.owners {
		switch p := o.Pod; {
		case p == nil:
		case p.Absent:
			words = append(words, fmt.Sprintf("The Kubernetes API has no %s.", o.exactly()))
		default:
			s := fmt.Sprintf("%s: %s", capital(o.name()), cmp.Or(p.Phase, "of no phase"))
			if p.DeletionTimestamp != 0 {
				s += " and being deleted"
			}
			s += after(", on node ", p.Node)
			if len(p.IPs) == 0 {
				s += ", without an address."
			} else {
				s += fmt.Sprintf(", with %s.", list(each(p.IPs, addrText)))
			}
			words = append(words, s)
		}
	}
	return strings.Join(words, " ")
}

// sayIPAM says what IPAMs have of the address.
func (q *inquiry) sayIPAM() string {
	var words []string
	for _, p := range q.pools {
		words = append(words, q.record(p))
	}
	if len(words) > 0 {
		return strings.Join(words, " ")
	}
	var holders []*Owner
	for _, o := range q.owners {
		if o.Namespace != nil {
			holders = append(holders, o)
		}
	}
	if len(holders) == 0 {
		return ""
	}
	return fmt.Sprintf("No IPAM records of %s are known that may have it.", nodesOf(holders))
}

// sayPodCIDRs says whose ranges of pods the address is in.
func (q *inquiry) sayPodCIDRs() string {
	if !q.in.InPodCIDR {
		return ""
	}
	var in, out []string
	var nodes []*Node
	for _, o := range q.owners {
		if o.Namespace == nil || slices.ContainsFunc(nodes, o.Node.Is) {
			continue
		}
		nodes = append(nodes, o.Node)
		if q.in.node(o.Node).InPodCIDR {
			in = append(in, o.Node.Name)
		} else {
			out = append(out, o.Node.Name)
		}
	}
	switch {
	case len(in) == 0:
		return "The address is in the range of pods (Node.spec.podCIDRs) of another node than its owners'."
	case len(in) > 1:
		return fmt.Sprintf("The ranges of pods (Node.spec.podCIDRs) of %s overlap: each has the address.", list(in))
	case len(out) == 0:
		return fmt.Sprintf("The address is in the range of pods (Node.spec.podCIDRs) of node %s.", in[0])
	}
	return fmt.Sprintf("The ranges of pods (Node.spec.podCIDRs) do not overlap here: the address is in that of node %s, and not in that of %s.", in[0], list(out))
}
