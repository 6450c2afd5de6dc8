package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// double builds the text of the finding that an IPAM has allocated an address twice.
type double struct{ *findingBuilder }

// build builds the text of the finding.
func (t double) build() {
	names := each(t.f.Allocations, func(al **verdict.Allocation) string { return allocationName(*al) })
	t.Summary = fmt.Sprintf("%s has allocated %s twice: to %s. As soon as both are up, the address is a duplicate.",
		poolBegin(t.pool), t.f.Address, list(names))
	switch m := ipamOf(t.pool); {
	case m.Mirrored:
		t.Summary = fmt.Sprintf("%s lists %s twice: for %s. One of these records may be left over; if both owners are up, the address is a duplicate.",
			poolBegin(t.pool), t.f.Address, list(names))
	case m.Status:
		t.Summary = fmt.Sprintf("%s is in the status of several running pods: %s. Either one status is wrong, or the pods share the address.",
			t.f.Address, list(names))
	}
	t.allocations()
	t.holding()
	t.fullness()
	t.Act(advice.Say("Check which owner really has the address.").By("", "ipwitness owners "+t.f.Address.String()))
	t.keepOne()
	t.Advise("Find out how this happened: records restored from a copy, two IPAM daemons, a manual edit.")
	t.closing()
}

// keepOne adds the steps that keep one of several allocations and release the others. It keeps
// the allocation that a restart does not change, otherwise that of the holder that a kernel reports,
// otherwise the oldest one.
func (t double) keepOne() {
	kept, why := t.only(func(al *verdict.Allocation) bool { return al.Kept }), "gets the same address after a restart, and the other does not"
	if kept < 0 {
		kept, why = t.only(func(al *verdict.Allocation) bool { return t.owner != nil && al.For(t.owner) }), "has the address, according to its kernel"
	}
	if kept < 0 && t.owner == nil {
		if kept = t.oldest(); kept >= 0 {
			why = "was the first to get the address"
		}
	}
	if kept >= 0 {
		t.Advise("Leave %s as it is: it %s.", allocationName(t.f.Allocations[kept]), why)
		for i, al := range t.f.Allocations {
			if i != kept {
				t.Act(t.undo(al)...)
				end := t.end(al)
				t.ByHand(t.undoneOn(al), end.Command, "%s", end.Text)
			}
		}
		return
	}
	choice := advice.Say("Decide which one keeps the address: ipwitness has no information that decides it. Ask their operators which of them clients expect at this address.")
	for i, keep := range t.f.Allocations {
		a := advice.Either(allocationName(keep) + " keeps the address")
		for k, al := range t.f.Allocations {
			if k != i {
				a.Actions = append(a.Actions, t.undo(al)...)
			}
		}
		choice.Choice = append(choice.Choice, a)
	}
	t.Act(choice)
	t.ByHand("", "", "Decide which one keeps %s, %s, and stop the other one: ipwitness audit %[1]s says how.", t.f.Address,
		strings.Join(each(t.f.Allocations, func(al **verdict.Allocation) string { return allocationName(*al) }), " or "))
}

// only returns the index of the only allocation that is matched, or -1.
func (t double) only(match func(*verdict.Allocation) bool) int {
	first := slices.IndexFunc(t.f.Allocations, match)
	if first >= 0 && slices.ContainsFunc(t.f.Allocations[first+1:], match) {
		return -1
	}
	return first
}

// oldest returns the index of the allocation that was made first, or -1 if that is not known.
func (t double) oldest() int {
	first := -1
	for i, al := range t.f.Allocations {
		switch {
		case al.AllocatedAt == 0:
			return -1
		case first < 0 || al.AllocatedAt < t.f.Allocations[first].AllocatedAt:
			first = i
		}
	}
	for i, al := range t.f.Allocations {
		if i != first && al.AllocatedAt == t.f.Allocations[first].AllocatedAt {
			return -1
		}
	}
	return first
}

// undo returns the steps that end an allocation, together with its workload if that exists.
func (t double) undo(al *verdict.Allocation) []advice.Action {
	if al.Kept || al.Pod == "" || ipamOf(t.pool).Status { // a status is that of a pod that exists
		return []advice.Action{t.end(al)}
	}
	left := []advice.Action{advice.Say("Remove the record of that pod, which is left over (%s).", allocationPlace(al))}
	if of := ipamOf(t.pool).LeftOver; of != nil {
		left = of(t.remedyCase())
	}
	return []advice.Action{
		advice.Say("Check whether pod %s/%s exists.", al.Namespace, al.Pod).By("", "kubectl get pod -n "+advice.Quote(al.Namespace)+" --ignore-not-found "+advice.Argument(al.Pod)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it exists", t.end(al)),
			advice.Either("it does not exist", left...),
		),
	}
}

// end returns the action that ends an allocation together with its workload.
func (t double) end(al *verdict.Allocation) advice.Action {
	if al.Kept {
		return advice.Say("Give %s another address. A restart does not change it, because %s keeps the address for it.", allocationName(al), ipamOf(t.pool).Title)
	}
	if al.Pod != "" {
		return advice.Say("Delete pod %s/%s to release the address: its controller, if it has one, creates a new pod, which gets a different address.", al.Namespace, al.Pod).By("", deletePod(al.Namespace, al.Pod))
	}
	if al.MAC != "" {
		return advice.Say("In the configuration of %s, give %s a different address, or remove its reservation.", poolName(t.pool), allocationName(al))
	}
	return advice.Say("Stop %s and start it again, so that it gets a different address; if it no longer exists, remove its record (%s).", allocationName(al), allocationPlace(al))
}

// undoneOn returns the node on which an allocation is ended; empty for any host with kubectl.
func (t double) undoneOn(al *verdict.Allocation) string {
	if al.Pod != "" || al.Kept {
		return ""
	}
	return nodeOf(t.pool)
}
