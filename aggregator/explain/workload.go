package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// The steps that end or renew what has an address.

// deletePod returns the command that deletes a pod.
func deletePod(namespace, name string) string {
	return "kubectl delete pod -n " + quote(namespace) + " " + argument(name)
}

// deletion returns the steps that delete a pod. If no controller recreates the pod, its
// manifest is saved first.
func deletion(o *verdict.Owner) (steps []Action) {
	w := o.Workload()
	if p := o.Pod; p != nil && !p.Absent && p.Controller == "" {
		steps = append(steps, say("Keep the manifest of pod %s/%s: it has no controller, and nobody makes a new one.", w.Namespace, w.Name).
			by("", "kubectl get pod -n "+quote(w.Namespace)+" -o yaml "+argument(w.Name)+" > "+quote(w.Name+".yaml")))
	}
	return append(steps, say("Delete pod %s/%s; %s.", w.Namespace, w.Name, successor(o)).by("", deletePod(w.Namespace, w.Name)))
}

// successor says what comes after a pod that is deleted.
func successor(o *verdict.Owner) string {
	const asks = "makes a new one, which asks for a new address"
	switch p := o.Pod; {
	case p == nil || p.Absent:
		return "its controller, if it has one, " + asks
	case p.Controller == "":
		return "it has no controller: create it again from its manifest"
	case p.ControllerKind == "VirtualMachineInstance":
		return "that stops virtual machine " + p.Controller + ", which its VirtualMachine starts anew, if it has one"
	default:
		return p.ControllerKind + " " + p.Controller + " " + asks
	}
}

// static reports whether an owner is a static pod. The kubelet goes by a file, whatever becomes
// of the pod in the API.
func static(o *verdict.Owner) bool { return o.Pod != nil && o.Pod.ControllerKind == "Node" }

// again says how to renew a static pod.
func again(o *verdict.Owner) string {
	return fmt.Sprintf("%s is a static pod: to delete it in the API changes nothing. On node %s, take its manifest out of the directory of static pods (/etc/kubernetes/manifests, as a rule), and put it back when its containers are gone",
		capital(OwnerName(o)), o.Node.Name)
}

// kubernetesName returns the name that Kubernetes has for the node of an owner, as far as that
// is known.
func kubernetesName(o *verdict.Owner) string {
	if o.Pod != nil && o.Pod.Node != "" {
		return o.Pod.Node
	}
	return plainName(o.Node.Name)
}

// plainName returns the name of a node without what tells it from a node of the same name.
func plainName(node string) string {
	name, _, _ := strings.Cut(node, "@")
	return name
}

// prefixLength returns the prefix length in bits with which the owner's kernel has the address.
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
		return []Action{say("Take %s out of the range that IPAM gives addresses from, and wait until it has read that.", a)}
	}
	var steps []Action
	for _, p := range pools {
		where := after(" in ", p.Config)
		switch {
		case p.IPAM == verdict.HostLocal && p.Node != nil && strings.HasPrefix(p.Name, "/"):
			f := hostLocalFile{p.Name, a}
			steps = append(steps, say("On node %s, have host-local leave %s out: a file of that name that is empty is freed for nobody. For good, set rangeStart and rangeEnd%s so that it is outside.", p.Node.Name, a, where).
				by(p.Node.Name, script("mkdir -p "+f.dir(), f.locked("", ": > "+f.path()))))
		case p.IPAM == verdict.Whereabouts:
			steps = append(steps, say("Take %s out of what whereabouts gives: write it into exclude%s.", a, where))
		case p.IPAM == verdict.Calico:
			steps = append(steps, say("Take %s out of what Calico gives: make an IPReservation with it (reservedCIDRs).", a))
		default:
			steps = append(steps, say("Take %s out of the range of %s%s.", a, poolTitle(p.Label()), where))
		}
	}
	return steps
}

// restartCalicoNode is the command that restarts calico-node on one node.
func restartCalicoNode(node string) string {
	return "kubectl delete pods -A -l k8s-app=calico-node --field-selector " + quote("spec.nodeName="+node)
}

// makePlan is the command that writes a script which repairs IPAM.
const makePlan = "ipwitness audit --fix-plan > plan.sh"

// mostKept limits the alternatives of a choice between owners.
const mostKept = 4

// plan returns the steps that write the script which repairs IPAM and run its part for a node.
// An empty node means the part for the cluster.
func plan(node string) []Action {
	run := "sh plan.sh cluster"
	if node != "" {
		run = "sh plan.sh node " + quote(node)
	}
	return []Action{
		say("Make the plan that puts it right.").by("", makePlan),
		say("Read plan.sh, and run its part for %s.", cmp.Or(after("node ", node), "the cluster")).by(node, run),
	}
}
