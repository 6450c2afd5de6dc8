package explain

import (
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// guest builds the remedies for an address that the guest of a virtual machine has, and not the kernel of
// the machine's pod. A record of the address for that pod would not last: IPAM has another address for the
// pod, and frees those that the pod does not have.
type guest struct{ *findingBuilder }

// Reserve advises to restart the virtual machine, or to exclude the address.
func (t guest) Reserve() {
	t.explain()
	t.Act(t.restartOrExclude())
	t.byHand()
}

// Reassign advises the same unless the other pod of the record runs, which then has the address rightly.
func (t guest) Reassign() {
	al := t.allocation
	if al.Pod == "" {
		t.Reserve()
		return
	}
	t.explain()
	t.Act(
		advice.Say("Check whether pod %s/%s exists, and whether it runs.", al.Namespace, al.Pod).
			By("", "kubectl get pod -n "+advice.Quote(al.Namespace)+" --ignore-not-found "+advice.Argument(al.Pod)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it runs", append([]advice.Action{advice.Say("Leave its allocation as it is.")}, t.restart()...)...),
			advice.Either("it has ended, or does not exist", t.restartOrExclude()),
		))
	t.byHand()
}

// Release is never for an address that a guest has.
func (t guest) Release() {}

// machine names the virtual machine.
func (t guest) machine() string { return "virtual machine " + t.owner.VirtualMachine() }

// explain adds how a guest comes to have an address that IPAM has not allocated to its pod.
func (t guest) explain() {
	t.State("%s runs %s. The guest has the address, and the kernel of the pod does not: a guest keeps its address when it is migrated, and IPAM allocates another one to its new pod.", capital(OwnerName(t.owner)), t.machine())
}

// restart returns the steps that restart the virtual machine.
func (t guest) restart() []advice.Action {
	dhcp := advice.Say("Check that the guest requests its address by DHCP: one that is configured inside of the guest stays after a restart, and must be changed there first.")
	return append([]advice.Action{dhcp}, deletion(t.owner)...)
}

// restartOrExclude returns the choice between a restart of the virtual machine and an exclusion of its
// address.
func (t guest) restartOrExclude() advice.Action {
	keep := []advice.Action{
		exclusion(t.pool, t.f.Address).Step,
		advice.Say("Leave it excluded until %s has another address. Each migration changes the address of its pod again, and not that of the guest.", t.machine()),
	}
	return advice.Say("Decide whether %s may be restarted now: after that, the guest has the address of its pod. Do not write an allocation of %s for its pod, because IPAM frees addresses that a pod does not have.", t.machine(), t.f.Address).Or(
		advice.Either("it may", t.restart()...),
		advice.Either("it must go on running", keep...),
	)
}

// byHand adds the step for the repair plan.
func (t guest) byHand() {
	t.ByHand("", "", "Restart %s, or exclude %s from %s: ipwitness audit %[2]s says how.", t.machine(), t.f.Address, poolName(t.pool))
}
