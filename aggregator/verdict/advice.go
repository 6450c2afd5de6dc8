package verdict

import (
	"fmt"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/form"
)

// The remedies in this file leave a conflict with one owner: the rightful one.

// remedy returns the steps to resolve the conflict, given its cause.
func (q *inquiry) remedy(why *reason) []Action {
	c := q.c
	switch {
	case c.Phase != Suspected:
	case c.Rule == RuleSamePod:
		return []Action{say("Wait %s: a sandbox that is made anew takes over its address. Act only if the conflict is confirmed.", q.policy.HandoverGrace)}
	case c.Rule == RuleSameVM:
		return []Action{say("Wait %s: while a virtual machine is migrated, the pods that it comes from and goes to may both have its address. Act only if the conflict is confirmed.", q.policy.MigrationGrace)}
	case c.Rule == RuleSplitBrain && len(orphans(c.Owners)) == 0:
		return []Action{say("Wait %s: nodes that hand an address over may both have it for a moment. Act only if the conflict is confirmed.", q.policy.HandoverGrace)}
	}
	var steps []Action
	left := q.owners
	if gone := those(left, func(o *Owner) bool { return o.Orphaned }); len(gone) > 0 {
		for _, o := range gone {
			steps = append(steps, o.removal()...)
		}
		left = those(left, func(o *Owner) bool { return !o.Orphaned })
	}
	if len(left) > 1 || len(q.owners) == 1 {
		steps = append(steps, q.settled(left, why)...)
	}
	return append(steps, c.closing())
}

// settled returns the steps after which one of the owners keeps the address, as the cause
// requires.
func (q *inquiry) settled(owners []*Owner, why *reason) []Action {
	switch c := q.c; {
	case c.Rule == RuleSamePod:
		return q.oneSandbox(owners)
	case c.Rule == RuleSameVM:
		return q.oneMachine(owners)
	case c.Rule == RuleDADFailed && len(owners) == 1:
		return q.somebodyElse(owners[0])
	}
	switch why.cause {
	case CauseIPAMStateLost:
		return q.recordsFirst(owners, why)
	case CauseIPAMBookedElsewhere:
		return q.rightNode(owners, why)
	case CausePodCIDROverlap:
		return q.rangesApart(owners, why)
	case CauseOverlappingNetworks:
		return q.renumber(owners, why)
	case CauseStaticAddress:
		return q.setByHand(owners, why)
	case CauseTunnelAddress:
		return q.leaveDevice(owners, why)
	case CauseExternalDevice:
		return q.goOutside(owners, why)
	}
	if q.c.Rule == RuleSplitBrain {
		return q.oneActive(owners)
	}
	var steps []Action
	if pooled(q.c.Owners) {
		steps = append(steps, say("Before anything is restarted, see what is wrong with the records of IPAM, and put that right first: while they miss addresses in use, whatever is restarted may get the next duplicate.").by("", "ipwitness audit"))
	}
	return append(steps, q.decide(owners)...)
}

// closing says how the conflict ends.
func (c *Conflict) closing() Action {
	return say("The conflict resolves by itself when one owner is left. See that it has, and how it was judged.").by("", "ipwitness explain "+c.Address.String())
}

// mostKept limits the owners for which a choice lists the steps to let them keep the address.
const mostKept = 4

// decide returns the steps by which the rightful owner keeps the address and the other owners
// give it up. If the rightful owner is undecided, it returns a choice.
func (q *inquiry) decide(owners []*Owner) []Action {
	if keep, right := q.rightful(owners); keep != nil {
		return q.keep(keep, right, owners)
	}
	return []Action{q.choice(owners)}
}

// choice returns an action that asks a person which owner keeps the address.
func (q *inquiry) choice(owners []*Owner) Action {
	s := say("Decide which one of them keeps the address. Nothing that is known decides it: no IPAM has it for one of them alone, and it is not known who had it first. Whoever runs them knows which of them clients mean by this address.")
	if len(owners) > mostKept {
		s.Text += fmt.Sprintf(" (The other %d may keep it in the same way.)", len(owners)-mostKept)
	}
	for _, o := range owners[:min(len(owners), mostKept)] {
		s.Choice = append(s.Choice, either(o.placed()+" keeps the address", q.giveUpAll(o, owners)...))
	}
	return s
}

// keep returns the steps by which one owner keeps the address and the others give it up.
func (q *inquiry) keep(keep *Owner, right Right, owners []*Owner) []Action {
	leave := say("Leave %s as it is. It keeps the address: %s.", keep.placed(), q.because(keep, right))
	return append([]Action{leave}, q.giveUpAll(keep, owners)...)
}

// giveUpAll returns the steps by which all owners but one give the address up. If that owner
// has no allocation, the first step writes it, because restarted workloads ask IPAM for an
// address.
func (q *inquiry) giveUpAll(keep *Owner, owners []*Owner) []Action {
	steps := q.reserve(keep)
	for _, o := range except(owners, keep) {
		steps = append(steps, q.giveUp(o)...)
	}
	return steps
}

// reserve returns the steps that write the missing allocation of the owner that keeps the
// address.
func (q *inquiry) reserve(keep *Owner) (steps []Action) {
	for _, p := range q.pools {
		if !q.gave(p, keep) || len(q.allocationsOf(p)) > 0 || p.State != PoolKnown && p.State != PoolMissing {
			continue
		}
		t := &telling{f: &Finding{Address: q.c.Address}, pool: p, owner: keep}
		if what, node, command := t.reserving(); command != "" && !form.Withheld(command) {
			steps = append(steps, say("%s", what).by(node, command))
		}
	}
	return steps
}

// oneSandbox returns the steps that leave one of several sandboxes of a pod. kubelet knows
// which one is current.
func (q *inquiry) oneSandbox(owners []*Owner) []Action {
	if keep, right := q.rightful(owners); keep != nil {
		steps := []Action{say("Leave sandbox %s of %s as it is. It keeps the address: %s. Deleting the pod would end all of its sandboxes.", keep.sandboxID(), keep.placed(), q.because(keep, right))}
		for _, o := range except(owners, keep) {
			steps = append(steps, o.removal()...)
		}
		return steps
	}
	s := say("See which sandbox kubelet goes by, and remove the other one. Deleting the pod would end both. On each of their nodes, `crictl pods --namespace %s --name %s` lists the sandboxes: the newest one that is Ready is kubelet's.",
		quote(owners[0].Workload().Namespace), quote(owners[0].Workload().Name))
	for _, o := range owners[:min(len(owners), mostKept)] {
		a := either(fmt.Sprintf("kubelet goes by sandbox %s of %s", o.sandboxID(), o.placed()))
		for _, other := range except(owners, o) {
			a.Actions = append(a.Actions, other.removal()...)
		}
		s.Choice = append(s.Choice, a)
	}
	return []Action{s}
}

// sandboxID returns the id that tools show for the owner's sandbox.
func (o *Owner) sandboxID() string {
	if id := o.Workload().ContainerID; id != "" {
		return shortID(id)
	}
	return "with network namespace " + o.Namespace.Netns
}

// oneMachine returns the steps that leave one of several pods of a virtual machine. KubeVirt
// knows where the machine runs.
func (q *inquiry) oneMachine(owners []*Owner) []Action {
	w := owners[0].Workload()
	s := say("See where virtual machine %s/%s runs, and delete the other pod. The column NODENAME of `kubectl get vmi -n %s %s` tells; `kubectl get vmim -n %[3]s` shows whether a migration is stuck.",
		w.Namespace, w.VirtualMachine, quote(w.Namespace), quote(w.VirtualMachine))
	for _, o := range owners[:min(len(owners), mostKept)] {
		a := either("it runs on node " + o.kubernetesName() + ", in " + o.name())
		for _, other := range except(owners, o) {
			a.Actions = append(a.Actions, q.giveUp(other)...)
		}
		s.Choice = append(s.Choice, a)
	}
	return []Action{s}
}

// oneActive returns the steps that leave an address on one of several nodes that have it
// themselves.
func (q *inquiry) oneActive(owners []*Owner) []Action {
	names := list(each(owners, func(o **Owner) string { return (*o).Node.Name }))
	byHand := q.decide(owners)
	return []Action{say("See whether some software moves the address between nodes: keepalived, kube-vip, MetalLB or the like has it in its configuration.").or(
		either("it is such a virtual address", say("Find out why each of nodes %s takes itself for the active one, and put that right: of keepalived, VRRP advertisements that do not get through; of kube-vip, its lease; of MetalLB, what its speakers know of each other. All but one give the address up by themselves then. Do not take it away by hand: the software would set it again.", names)),
		either("no software moves it", byHand...),
	)}
}

// somebodyElse returns the steps for an address that a kernel refused as in use by an unknown
// owner.
func (q *inquiry) somebodyElse(o *Owner) []Action {
	return []Action{
		say("Find out who else has the address: on the link of %s, ask for it, and look whose MAC answers (`ip -6 neigh`, the switch's table of MAC addresses).", o.placed()),
		say("Decide which of the two keeps the address: by who was given it, in the records of IPAM, DHCP or the plan of addresses.").or(
			either("the other one keeps it", q.giveUp(o)...),
			either(o.placed()+" keeps it",
				say("Give the other one another address."),
				say("Restart %s, or set its address again: the kernel does not use it until then.", o.name())),
		),
	}
}

// pooled tells whether an IPAM may have given out the address: to a pod or container.
func pooled(owners []Owner) bool {
	return slices.ContainsFunc(owners, func(o Owner) bool {
		w := o.Workload()
		return w.Kind == Pod || w.Kind == Container && !w.OnlyNetns()
	})
}

// listPods names pods with their UIDs; that of a static pod is the hash of its
// configuration.
const listPods = `kubectl get pods -A -o 'custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid,HASH:.metadata.annotations.kubernetes\.io/config\.hash'`

// giveUp returns the steps by which an owner gives the address up.
func (q *inquiry) giveUp(o *Owner) []Action {
	w := o.Workload()
	if o.Orphaned {
		return o.removal()
	}
	switch {
	case o.Namespace == nil && o.Claims[0].Interface.Tap:
		return []Action{say("Give what is behind %s of node %s another address, most likely a virtual machine (`virsh domiflist` names the interfaces of each).",
			o.Claims[0].Interface.Name, o.Node.Name)}
	case o.Namespace == nil:
		return []Action{say("Find the device with MAC %s, which is seen on %s, and give it another address: the switch's table of MAC addresses shows its port.",
			o.MAC, witness(o.Claims[0]))}
	case o.shown():
		if o.Kind() == Host {
			return []Action{say("Stop what answers for the address on node %s (MAC %s, seen on %s): its kernel does not have it.", o.Node.Name, o.MAC, witness(o.Claims[0]))}
		}
		return []Action{say("Find what uses the address behind %s, the port of %s on node %s (MAC %s), and give it another one: the kernel there does not have it.",
			o.Interface.Name, o.name(), o.Node.Name, o.MAC)}
	case w.Kind == Pod && w.Name == "":
		return []Action{
			say("Find out what %s on node %s is called.", o.name(), o.Node.Name).by("", listPods+" | grep "+argument(w.UID)),
			say("Delete that pod; its controller, if it has one, makes a new one, which asks for a new address."),
		}
	case w.Kind == Pod && o.static():
		return []Action{say("%s; it asks for a new address then.", o.again())}
	case w.Kind == Pod:
		return o.deletion()
	case w.Kind == Container && !w.OnlyNetns():
		return []Action{say("Stop %s on node %s and start it anew with its container runtime, so that it gets another address.", o.name(), o.Node.Name)}
	case w.Kind == VM:
		return []Action{say("Give %s another address, or stop it.", o.name())}
	}
	var steps []Action
	for _, c := range o.Claims {
		if c.Counts() || c.Kind == DADFailed {
			steps = append(steps, q.unassign(o, c))
		}
	}
	return steps
}

// shown reports whether only frames show that an owner has the address, and no kernel does.
func (o *Owner) shown() bool {
	return !slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Counts() || c.Kind == DADFailed })
}

// unassign returns the action that removes an address from one interface of an owner.
func (q *inquiry) unassign(o *Owner, c *Claim) Action {
	w, i := o.Workload(), c.Interface
	del := fmt.Sprintf("addr del %s/%d dev %s", q.in.Address, c.PrefixLength, quote(i.Name))
	switch {
	case w.Kind == Host:
		return say("Take the address away from %s of node %s itself, and out of the configuration that sets it there.", i.Name, o.Node.Name).by(o.Node.Name, "ip "+del)
	case w.OnlyNetns():
		return say("Take the address away from network namespace %s on node %s, and see that what set it does not set it again.", w.Name, o.Node.Name).
			by(o.Node.Name, "ip -n "+quote(w.Name)+" "+del)
	case w.Name == "" && w.Ended:
		// Its PID may be another process's by now.
		return say("Nothing runs any more in the network namespace of %s on node %s: find what keeps it (`findmnt -t nsfs` and `ls -l /proc/[0-9]*/fd | grep 'net:\\['` there), and have it let go.",
			o.name(), o.Node.Name)
	case w.Name == "" && w.PID != 0:
		return say("Take the address away from the network namespace of %s on node %s, and see that what set it does not set it again.", o.name(), o.Node.Name).
			by(o.Node.Name, fmt.Sprintf("nsenter --net=/proc/%d/ns/net ip %s", w.PID, del))
	}
	return say("Take the address off %s of %s on node %s: `lsns -t net` lists the processes in there.", i.Name, o.name(), o.Node.Name)
}

// deletion returns the steps that delete a pod. If no controller recreates the pod, its
// manifest is saved first.
func (o *Owner) deletion() (steps []Action) {
	w := o.Workload()
	if p := o.Pod; p != nil && !p.Absent && p.Controller == "" {
		steps = append(steps, say("Keep the manifest of pod %s/%s: it has no controller, and nobody makes a new one.", w.Namespace, w.Name).
			by("", "kubectl get pod -n "+quote(w.Namespace)+" -o yaml "+argument(w.Name)+" > "+quote(w.Name+".yaml")))
	}
	return append(steps, say("Delete pod %s/%s; %s.", w.Namespace, w.Name, o.successor()).by("", "kubectl delete pod -n "+quote(w.Namespace)+" "+argument(w.Name)))
}

func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
