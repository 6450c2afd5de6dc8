package explain

import (
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

// restart advises to restart the holder, and says what that is good for. The command
// is to be run by hand.
func (t *telling) restart(then string) {
	actions, fix := t.restarting(then)
	t.act(actions...)
	if fix.What != "" {
		t.fix(fix)
	}
}

// restarting returns the steps that restart the holder; none if the holder is not known.
func (t *telling) restarting(then string) ([]Action, Fix) {
	if t.owner == nil {
		return nil, Fix{}
	}
	w := t.owner.Workload()
	switch {
	case static(t.owner):
		s := say("%s, so that %s.", again(t.owner), then)
		return []Action{s}, Fix{Node: t.owner.Node.Name, What: s.Text, Manual: true}
	case w.OnlyNetns():
		del := fmt.Sprintf("ip -n %s addr del %s/%d dev %s", quote(w.Name), t.f.Address, prefixLength(t.owner), quote(t.owner.Interface.Name))
		have := say("See whether %s can have another address: whoever made it can tell.", placed(t.owner)).or(
			either("it can", say("Take the address away from it, and see that what set it does not set it again.").by(t.owner.Node.Name, del)),
			either("it cannot do without this very address", outOfRange([]*verdict.Pool{t.pool}, t.f.Address)...))
		return []Action{have}, Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Give %s another address than %s, or have %s leave that out: ipwitness audit %[2]s says how.", OwnerName(t.owner), t.f.Address, poolName(t.pool)), Manual: true}
	case w.Kind != verdict.Pod || w.Name == "" || w.Namespace == "":
		return []Action{say("Restart %s, so that %s.", placed(t.owner), then)}, Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Restart %s, so that %s.", OwnerName(t.owner), then), Manual: true}
	}
	return deletion(t.owner), Fix{Command: deletePod(w.Namespace, w.Name), What: fmt.Sprintf("Restart pod %s/%s: %s.", w.Namespace, w.Name, then), Manual: true}
}

// restartNow is restart with a command that may be run as it is, where something makes
// a new pod: it waits for that, so that of several not all are gone at once. A Job's pod,
// or that of a virtual machine, is for a person to end.
func (t *telling) restartNow(then string) {
	t.restart(then)
	if t.owner == nil || t.owner.Pod == nil || t.owner.Workload().UID == "" {
		return
	}
	w := t.owner.Workload()
	restart := "  " + deletePod(w.Namespace, w.Name)
	switch p := t.owner.Pod; p.ControllerKind {
	case "Deployment", "StatefulSet", "DaemonSet":
		restart = script(restart, "  kubectl rollout status -n "+quote(w.Namespace)+" "+quote(strings.ToLower(p.ControllerKind)+"/"+p.Controller)+" --timeout=5m")
	case "ReplicaSet":
	default:
		return
	}
	t.told.Fixes[len(t.told.Fixes)-1] = Fix{
		What: fmt.Sprintf("Restart pod %s/%s, which holds %s: %s.", w.Namespace, w.Name, t.f.Address, then),
		Command: script(
			"if uid=$(kubectl get pod -n "+quote(w.Namespace)+" "+quote(w.Name)+" --ignore-not-found -o 'jsonpath={.metadata.uid}') && [ \"$uid\" = "+quote(w.UID)+" ]; then",
			restart,
			"else",
			"  echo "+quote("pod "+w.Namespace+"/"+w.Name+" of then is gone: nothing to do"),
			"fi"),
	}
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
			t := &telling{f: &verdict.Finding{Address: a}, pool: p}
			steps = append(steps, say("On node %s, have host-local leave %s out: a file of that name that is empty is freed for nobody. For good, set rangeStart and rangeEnd%s so that it is outside.", p.Node.Name, a, where).
				by(p.Node.Name, script("mkdir -p "+t.dir(), t.locked("", ": > "+t.file()))))
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

// makePlan is the command that writes a script which repairs IPAM.
const makePlan = "ipwitness audit --fix-plan > plan.sh"

// mostKept limits the alternatives of a choice between owners.
const mostKept = 4
