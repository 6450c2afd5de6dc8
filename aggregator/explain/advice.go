package explain

import (
	"fmt"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// The remedies in this file leave the address with one owner, the rightful one.

// remedy returns the steps to resolve the conflict, given its cause.
func (a *remedyBuilder) remedy() []advice.Action {
	c := a.c
	switch {
	case c.Phase != verdict.Suspected:
	case c.Rule == verdict.RuleSamePod && !c.OfPod():
		return []advice.Action{advice.Say("Wait %s: the new network namespace of a restarted container takes over the address of its predecessor. Act only if the conflict is confirmed.", a.policy.HandoverGrace)}
	case c.Rule == verdict.RuleSamePod:
		return []advice.Action{advice.Say("Wait %s: a recreated sandbox takes over the address of its predecessor. Act only if the conflict is confirmed.", a.policy.HandoverGrace)}
	case c.Rule == verdict.RuleSameVM:
		return []advice.Action{advice.Say("Wait %s: while a virtual machine is migrated, its source and target pods may both have its address. Act only if the conflict is confirmed.", a.policy.MigrationGrace)}
	case c.Rule == verdict.RuleSplitBrain && !slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return o.Orphaned }):
		return []advice.Action{advice.Say("Wait %s: while nodes hand an address over, both may have it for a moment. Act only if the conflict is confirmed.", a.policy.HandoverGrace)}
	}
	var steps []advice.Action
	left := a.parties
	if gone := those(left, func(o *verdict.Owner) bool { return o.Orphaned }); len(gone) > 0 {
		for _, o := range gone {
			steps = append(steps, removal(o)...)
		}
		left = those(left, func(o *verdict.Owner) bool { return !o.Orphaned })
	}
	if len(left) > 1 || len(a.parties) == 1 {
		steps = append(steps, a.settled(left)...)
	}
	return append(steps, closing(c))
}

// settled returns the steps after which one of the owners keeps the address, as the cause
// requires.
func (a *remedyBuilder) settled(owners []*verdict.Owner) []advice.Action {
	switch c := a.c; {
	case c.Rule == verdict.RuleSamePod && !c.OfPod():
		return a.oneNamespace(owners)
	case c.Rule == verdict.RuleSamePod:
		return a.oneSandbox(owners)
	case c.Rule == verdict.RuleSameVM:
		return a.oneMachine(owners)
	case c.Rule == verdict.RuleDADFailed && len(owners) == 1:
		return a.somebodyElse(owners[0])
	}
	switch a.c.Cause {
	case verdict.CauseIPAMStateLost:
		return a.recordsFirst(owners)
	case verdict.CauseIPAMAllocatedTwice:
		check := advice.Say("Check that IPAM still has the address for the owner that keeps it, because it may have freed it together with the other record.").By("", "ipwitness audit "+a.address.String())
		return append(a.decide(owners), check)
	case verdict.CauseIPAMBookedElsewhere:
		return a.rightNode(owners)
	case verdict.CausePodCIDROverlap:
		return a.rangesApart(owners)
	case verdict.CauseOverlappingNetworks:
		return a.renumber(owners)
	case verdict.CauseStaticAddress:
		return a.setByHand(owners)
	case verdict.CauseTunnelAddress:
		return a.leaveDevice(owners)
	case verdict.CauseExternalDevice:
		return a.goOutside(owners)
	}
	if a.c.Rule == verdict.RuleSplitBrain {
		return a.oneActive(owners)
	}
	var steps []advice.Action
	if pooled(a.c.Owners) {
		steps = append(steps, advice.Say("Before you restart anything, check the IPAM records and repair them: as long as they lack addresses in use, a restarted workload may get another duplicate.").By("", "ipwitness audit"))
	}
	return append(steps, a.decide(owners)...)
}

// closing returns the step that verifies that a conflict has ended.
func closing(c *verdict.Conflict) advice.Action {
	return advice.Say("The conflict resolves by itself when only one owner is left. Check that it is resolved, and how it was judged.").By("", "ipwitness explain "+c.Address.String())
}

// oneSandbox returns the steps that leave one of several sandboxes of a pod. The kubelet knows
// which one is current.
func (a *remedyBuilder) oneSandbox(owners []*verdict.Owner) []advice.Action {
	if keep, right := a.c.Rightful(owners); keep != nil {
		steps := []advice.Action{advice.Say("Leave sandbox %s of %s as it is. It keeps the address: %s. Do not delete the pod, because that ends all of its sandboxes.", sandboxID(keep), placed(keep), a.because(keep, right))}
		for _, o := range except(owners, keep) {
			steps = append(steps, removal(o)...)
		}
		return steps
	}
	s := advice.Say("Find out which sandbox the kubelet uses, and remove the other one. Do not delete the pod, because that ends both. On each of their nodes, `crictl pods --namespace %s --name %s` lists the sandboxes: the kubelet uses the newest one that is Ready.",
		advice.Quote(owners[0].Workload().Namespace), advice.Quote(owners[0].Workload().Name))
	for _, o := range owners[:min(len(owners), mostKept)] {
		kept := advice.Either(fmt.Sprintf("the kubelet uses sandbox %s of %s", sandboxID(o), placed(o)))
		for _, other := range except(owners, o) {
			kept.Actions = append(kept.Actions, removal(other)...)
		}
		s.Choice = append(s.Choice, kept)
	}
	return []advice.Action{s}
}

// sandboxID returns the id that tools show for an owner's sandbox.
func sandboxID(o *verdict.Owner) string {
	if id := o.Workload().ContainerID; id != "" {
		return advice.ShortID(id)
	}
	return "with network namespace " + o.Namespace.Netns
}

// oneMachine returns the steps that leave one of several pods of a virtual machine. KubeVirt
// knows on which node the machine runs.
func (a *remedyBuilder) oneMachine(owners []*verdict.Owner) []advice.Action {
	w := owners[0].Workload()
	if keep, right := a.c.Rightful(owners); right == verdict.RightMachine {
		return append([]advice.Action{advice.Say("Check that virtual machine %s/%s runs on node %s, as KubeVirt says.", w.Namespace, w.VirtualMachine, kubernetesName(keep)).
			By("", "kubectl get vmi -n "+advice.Quote(w.Namespace)+" "+advice.Argument(w.VirtualMachine))}, a.keep(keep, right, owners)...)
	}
	s := advice.Say("Find out where virtual machine %s/%s runs, and delete the other pod. The column NODENAME of `kubectl get vmi -n %s %s` shows the node; `kubectl get vmim -n %[3]s` shows whether a migration is stuck.",
		w.Namespace, w.VirtualMachine, advice.Quote(w.Namespace), advice.Quote(w.VirtualMachine))
	for _, o := range owners[:min(len(owners), mostKept)] {
		kept := advice.Either("it runs on node " + kubernetesName(o) + ", in " + OwnerName(o))
		for _, other := range except(owners, o) {
			kept.Actions = append(kept.Actions, release(other, a.address)...)
		}
		s.Choice = append(s.Choice, kept)
	}
	return []advice.Action{s}
}

// oneActive returns the steps that leave an address on one of several nodes that have it
// themselves.
func (a *remedyBuilder) oneActive(owners []*verdict.Owner) []advice.Action {
	if keep, right := a.c.Rightful(owners); right == verdict.RightAssignment || right == verdict.RightProgram {
		return a.movedTo(keep, right, owners)
	}
	names := list(each(owners, func(o **verdict.Owner) string { return (*o).Node.Name }))
	byHand := a.decide(owners)
	return []advice.Action{advice.Say("Check whether software such as keepalived, kube-vip or MetalLB moves the address between nodes: its configuration then contains the address.").Or(
		advice.Either("it is such a virtual address", advice.Say("Find out why each of nodes %s considers itself active, and correct it: with keepalived, check that VRRP advertisements get through; with kube-vip, check its lease; with MetalLB, check that its speakers see each other. All nodes but one then give the address up by themselves. Do not remove the address by hand: the software would set it again.", names)),
		advice.Either("no software moves the address", byHand...),
	)}
}

// somebodyElse returns the steps for an address that a kernel refused as in use by an unknown
// owner.
func (a *remedyBuilder) somebodyElse(o *verdict.Owner) []advice.Action {
	return []advice.Action{
		advice.Say("Find the other device that has the address: on the link of %s, resolve the address, and find out which device has the MAC that answers (`ip -6 neigh`, the MAC address table of the switch).", placed(o)),
		advice.Say("Decide which of the two keeps the address: check which one it was assigned to in the records of IPAM, DHCP or your address plan.").Or(
			advice.Either("the other device keeps the address", release(o, a.address)...),
			advice.Either(placed(o)+" keeps the address",
				advice.Say("Give the other device a different address."),
				advice.Say("Restart %s, or set its address again: its kernel does not use the address until then.", OwnerName(o))),
		),
	}
}

// pooled reports whether an IPAM may have allocated the address, because an owner is a pod or a
// container.
func pooled(owners []verdict.Owner) bool {
	return slices.ContainsFunc(owners, func(o verdict.Owner) bool {
		w := o.Workload()
		return w.Kind == verdict.Pod || w.Kind == verdict.Container && !w.OnlyNetns()
	})
}
