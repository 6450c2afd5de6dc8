package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// The steps that end or restart the owner of an address.

// deletePod returns the command that deletes a pod.
func deletePod(namespace, name string) string {
	return "kubectl delete pod -n " + quote(namespace) + " " + argument(name)
}

// deletion returns the steps that delete a pod. If no controller recreates the pod, its
// manifest is saved first.
func deletion(o *verdict.Owner) (steps []Action) {
	w := o.Workload()
	if p := o.Pod; p != nil && !p.Absent && p.Controller == "" {
		steps = append(steps, say("Save the manifest of pod %s/%s: the pod has no controller that would recreate it.", w.Namespace, w.Name).
			by("", "kubectl get pod -n "+quote(w.Namespace)+" -o yaml "+argument(w.Name)+" > "+quote(w.Name+".yaml")))
	}
	return append(steps, say("Delete pod %s/%s; %s.", w.Namespace, w.Name, successor(o)).by("", deletePod(w.Namespace, w.Name)))
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
func outOfRange(pools []*verdict.Pool, a netip.Addr) []Action {
	if len(pools) == 0 {
		return []Action{say("Exclude %s from the range that IPAM allocates from, and wait until IPAM has read the change.", a)}
	}
	var steps []Action
	for _, p := range pools {
		where := after(" in ", p.Config)
		switch {
		case p.IPAM == hostlocal.Name && p.Node != nil && strings.HasPrefix(p.Name, "/"):
			f := hostLocalFile{p.Name, a}
			steps = append(steps, say("On node %s, have host-local skip %s: it never frees an empty file of that name. To exclude the address permanently, set rangeStart and rangeEnd%s so that it is outside the range.", p.Node.Name, a, where).
				by(p.Node.Name, script("mkdir -p "+f.dir(), f.locked("", ": > "+f.path()))))
		case p.IPAM == whereabouts.Name:
			steps = append(steps, say("Exclude %s from what whereabouts allocates: add it to exclude%s.", a, where))
		case p.IPAM == calico.Name:
			steps = append(steps, say("Exclude %s from what Calico allocates: create an IPReservation that contains it (reservedCIDRs).", a))
		default:
			steps = append(steps, say("Exclude %s from the range of %s%s.", a, poolTitle(p.Label()), where))
		}
	}
	return steps
}

// restartCalicoNode returns the command that restarts calico-node on one node.
func restartCalicoNode(node string) string {
	return "kubectl delete pods -A -l k8s-app=calico-node --field-selector " + quote("spec.nodeName="+node)
}

// makePlan is the command that writes the script that repairs IPAM.
const makePlan = "ipwitness audit --fix-plan > plan.sh"

// mostKept limits the alternatives of a choice between owners.
const mostKept = 4

// plan returns the steps that write the script that repairs IPAM and run its part for a node.
// An empty node means the part for the cluster.
func plan(node string) []Action {
	run := "sh plan.sh cluster"
	if node != "" {
		run = "sh plan.sh node " + quote(node)
	}
	return []Action{
		say("Generate the repair plan.").by("", makePlan),
		say("Read plan.sh, and run its part for %s.", cmp.Or(after("node ", node), "the cluster")).by(node, run),
	}
}
