package antrea

import (
	"fmt"
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Only Antrea writes the status of an IPPool: antrea-agent at the start and end of a pod, and
// antrea-controller for the pods of StatefulSets and for pods that are gone.

const logs = "kubectl -n kube-system logs deployment/antrea-controller"

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a} },
	Exclude: func(p *ipam.Pool, _ string, _ netip.Addr) ipam.Exclusion {
		return ipam.Exclusion{How: "create an IPPool without it and use that in the annotations in place of the old one; the ranges of an IPPool cannot be made smaller"}
	},
	Enlarge: func(p *ipam.Pool) string {
		return fmt.Sprintf("Add a range to spec.ipRanges of IPPool %s. It may not overlap those of other IPPools.", p.Name)
	},
	Access:  ipam.MayList("", Pools),
	Effects: ipam.Effects{Elsewhere: "Antrea frees the address when that owner ends, and allocates it to another pod while it is in use."},
	Loss: ipam.Loss{
		Search: func(p *ipam.Pool) string {
			return fmt.Sprintf("Find out what removed the addresses from the status of IPPool %s: the log of antrea-controller has a line for each that it considered stale (%s).", p.Name, logs)
		},
	},
}

// remedies builds the remedies for addresses of Antrea.
type remedies ipam.Remedy

// Reserve advises to restart the holder.
func (t remedies) Reserve() {
	t.RestartNow("antrea-agent allocates an address to its successor and records it in the IPPool")
	t.Act(advice.Say("Find out what removed the record.").By("", logs+" | grep -F -i stale"))
}

// Reassign advises to restart the holder.
func (t remedies) Reassign() {
	if al := t.Allocation; al.Pod != "" {
		t.Act(advice.Say("Check whether pod %s/%s, to which Antrea has allocated the address, runs, and which addresses it has.", al.Namespace, al.Pod).By("",
			"kubectl get pod -n "+advice.Quote(al.Namespace)+" --ignore-not-found -o wide "+advice.Argument(al.Pod)))
	}
	t.RestartNow("its successor gets an address that Antrea has allocated to it")
}

// Release advises to let antrea-controller free the address.
func (t remedies) Release() {
	t.Advise("antrea-controller frees the addresses of pods that do not exist by itself within 10 minutes, newer versions within a minute. If it does not, check whether it runs and what it logs.")
	t.Act(advice.Say("Check the log of antrea-controller.").By("", logs+" | grep -F "+advice.Quote(t.Pool.Name)))
	t.ByHand("", logs, "Free %s of IPPool %s: restart antrea-controller if it does not free the address by itself.", t.Address, t.Pool.Name)
}
