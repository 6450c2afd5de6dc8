package spiderpool

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Only Spiderpool writes status.allocatedIPs, which is JSON in a string. So an address is repaired by
// a restart of its holder. The successor of a pod of a StatefulSet, or of a virtual machine, takes the
// address in its SpiderEndpoint again without looking into the pool (spidernet-io/spiderpool issue
// 2526), so that the endpoint is deleted first.

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a} },
	Exclude: func(_ *ipam.Pool, _ string, a netip.Addr) ipam.Exclusion {
		object := fmt.Sprintf(`{"apiVersion":"spiderpool.spidernet.io/v2beta1","kind":"SpiderReservedIP","metadata":{"name":%q},"spec":{"ips":[%q]}}`, "ip-"+strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded()), a)
		return ipam.Exclusion{
			How:  fmt.Sprintf("create a SpiderReservedIP that contains it (spec.ips: [%s])", a),
			Step: advice.Say("Exclude %s from what Spiderpool allocates: create a SpiderReservedIP that contains it.", a).By("", "printf '%s\\n' "+advice.Quote(object)+" | kubectl apply -f -"),
		}
	},
	Enlarge: func(p *ipam.Pool) string {
		return fmt.Sprintf("Add addresses to spec.ips of SpiderIPPool %s, or another SpiderIPPool of the same subnet.", p.Name)
	},
	Access:  ipam.MayList("", Pools, Endpoints),
	Forget:  forget,
	Effects: ipam.Effects{Elsewhere: "Spiderpool frees the address when that owner ends, and allocates it to another pod while it is in use."},
	Loss: ipam.Loss{
		Search: func(p *ipam.Pool) string {
			return fmt.Sprintf("Find out what freed the addresses of SpiderIPPool %s: the log of spiderpool-controller has a line with \"IP-GarbageCollection\" for each.", p.Name)
		},
	},
}

// remedies builds the remedies for addresses of Spiderpool.
type remedies ipam.Remedy

// Reserve advises to restart the holder.
func (t remedies) Reserve() {
	t.restart("Spiderpool allocates an address to its successor and records it")
	t.Advise("Find out what freed the address: if it was the garbage collector, the log of spiderpool-controller has a line with the address (\"IP-GarbageCollection\"). Use a release with pull request 3778 (August 2024): before, it freed addresses of restarted pods of a StatefulSet.")
}

// Reassign advises to restart the holder.
func (t remedies) Reassign() {
	if al := t.Allocation; al.Pod != "" {
		t.Act(advice.Say("Check whether %s/%s, to which Spiderpool has allocated the address, runs, and which addresses it has.", al.Namespace, al.Pod).By("",
			"kubectl get pods,"+Endpoints.String()+" -n "+advice.Quote(al.Namespace)+" --ignore-not-found -o wide "+advice.Argument(al.Pod)))
	}
	t.restart("its successor gets an address that Spiderpool has allocated to it")
}

// restart advises to restart the holder, and to delete its endpoint first if its successor would
// otherwise get the same address.
func (t remedies) restart(then string) {
	restart, fix := t.Restarting(then)
	h := t.Holder
	if h == nil || h.Pod == "" {
		t.Act(restart...)
	} else {
		again := append([]advice.Action{forget(h.Namespace, h.Pod)}, restart...)
		t.Act(
			advice.Say("Check what owns %s.", h.Name).By("", "kubectl get pod -n "+advice.Quote(h.Namespace)+" -o 'jsonpath={.metadata.ownerReferences[*].kind}' "+advice.Argument(h.Pod)),
			advice.Say("Continue according to the result.").Or(
				advice.Either("it is a StatefulSet or a VirtualMachineInstance", again...),
				advice.Either("it is anything else, or nothing", restart...),
			))
	}
	if fix.Manual = true; fix.What != "" {
		t.Fix(fix)
	}
}

// forget returns the step without which the successor of a pod gets the same address.
func forget(namespace, pod string) advice.Action {
	return advice.Say("Delete the SpiderEndpoint of pod %s/%s. Otherwise its successor gets the same address again, without a record.", namespace, pod).By("",
		"kubectl delete "+Endpoints.String()+" -n "+advice.Quote(namespace)+" --ignore-not-found --wait=false "+advice.Argument(pod))
}

// Release advises to let Spiderpool's garbage collector free the address.
func (t remedies) Release() {
	t.Advise("spiderpool-controller frees the addresses of pods that do not exist by itself, every 10 minutes (SPIDERPOOL_GC_IP_ENABLED, SPIDERPOOL_GC_DEFAULT_INTERVAL_DURATION). If it does not, check whether it runs and what it logs.")
	t.Act(advice.Say("Check what is recorded for the address.").By("", "kubectl get "+Pools.String()+" "+advice.Argument(t.Pool.Name)+" -o 'jsonpath={.status.allocatedIPs}'"))
	t.ByHand("", "", "Free %s of SpiderIPPool %s: restart spiderpool-controller if it does not free the address by itself.", t.Address, t.Pool.Name)
}
