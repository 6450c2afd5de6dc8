package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// The steps that end or restart the owner of an address.

// deletePod returns the command that deletes a pod.
func deletePod(namespace, name string) string {
	return "kubectl delete pod -n " + advice.Quote(namespace) + " " + advice.Argument(name)
}

// deletion returns the steps that delete a pod. If no controller recreates the pod, its
// manifest is saved first.
func deletion(o *verdict.Owner) (steps []advice.Action) {
	w := o.Workload()
	if p := o.Pod; p != nil && !p.Absent && p.Controller == "" {
		steps = append(steps, advice.Say("Save the manifest of pod %s/%s: the pod has no controller that would recreate it.", w.Namespace, w.Name).
			By("", "kubectl get pod -n "+advice.Quote(w.Namespace)+" -o yaml "+advice.Argument(w.Name)+" > "+advice.Quote(w.Name+".yaml")))
	}
	return append(steps, advice.Say("Delete pod %s/%s; %s.", w.Namespace, w.Name, successor(o)).By("", deletePod(w.Namespace, w.Name)))
}

// successor describes what replaces a pod that is deleted.
func successor(o *verdict.Owner) string {
	const recreates = "creates a new one, which requests a new address"
	switch p := o.Pod; {
	case p == nil || p.Absent:
		return "its controller, if it has one, " + recreates
	case p.Controller == "":
		return "it has no controller: create it again from its manifest"
	case p.ControllerKind == "VirtualMachineInstance":
		return "this stops virtual machine " + p.Controller + "; its VirtualMachine, if it has one, starts it again"
	default:
		return p.ControllerKind + " " + p.Controller + " " + recreates
	}
}

// static reports whether an owner is a static pod. The kubelet runs static pods from files,
// whatever happens to the pod object in the API.
func static(o *verdict.Owner) bool { return o.Pod != nil && o.Pod.ControllerKind == "Node" }

// again says how to restart a static pod.
func again(o *verdict.Owner) string {
	return fmt.Sprintf("%s is a static pod: deleting it in the API changes nothing. On node %s, move its manifest out of the static pod directory (usually /etc/kubernetes/manifests), and move it back when its containers are gone",
		capital(OwnerName(o)), o.Node.Name)
}

// kubernetesName returns the name of an owner's node in Kubernetes, as far as it is known.
func kubernetesName(o *verdict.Owner) string {
	if o.Pod != nil && o.Pod.Node != "" {
		return o.Pod.Node
	}
	return plainName(o.Node.Name)
}

// plainName returns the name of a node without the suffix that distinguishes it from other nodes
// of the same name.
func plainName(node string) string {
	name, _, _ := strings.Cut(node, "@")
	return name
}

// prefixLength returns the prefix length, in bits, of the address in the owner's kernel.
func prefixLength(o *verdict.Owner) uint8 {
	for _, c := range o.Claims {
		if c.Counts() && c.Interface.Is(o.Interface) {
			return c.PrefixLength
		}
	}
	return o.Claims[0].PrefixLength
}

// outOfRange returns the steps that exclude an address from the ranges of pools.
func outOfRange(pools []*verdict.Pool, a netip.Addr) []advice.Action {
	if len(pools) == 0 {
		return []advice.Action{advice.Say("Exclude %s from the range that IPAM allocates from, and wait until IPAM has read the change.", a)}
	}
	var steps []advice.Action
	for _, p := range pools {
		steps = append(steps, exclusion(p, a).Step)
	}
	return steps
}

// exclusion returns how to exclude an address from a pool.
func exclusion(p *verdict.Pool, a netip.Addr) (e ipam.Exclusion) {
	if of := ipamOf(p).Exclude; of != nil {
		e = of(&p.Pool, nodeOf(p), a)
	}
	if e.How == "" {
		e.How = "configure a range without addresses of nodes"
	}
	if e.Step.Text == "" {
		e.Step = advice.Say("Exclude %s from the range of %s%s.", a, poolTitle(p.Label()), after(" in ", p.Config))
	}
	return e
}

// mostKept limits the alternatives of a choice between owners.
const mostKept = 4
