package explain

import (
	"cmp"
	"fmt"
)

// Cilium's agent on each node allocates addresses from that node's range and keeps the allocations
// in memory: when it starts, it restores them from its endpoints. A CiliumEndpoint in the API
// describes an endpoint and allocates nothing.

// ciliumAgent returns the command that lists the endpoints of a node's agent.
func ciliumAgent(node string) string {
	return "kubectl -n kube-system exec -c cilium-agent \"$(kubectl -n kube-system get pods -l k8s-app=cilium --field-selector " + quote("spec.nodeName="+node) + " -o name)\" -- cilium-dbg endpoint list"
}

// ciliumRemedies builds the remedies for addresses of Cilium.
type ciliumRemedies struct{ *telling }

// reserve advises to restart the holder unless Cilium's agent knows its endpoint.
func (t ciliumRemedies) reserve() {
	t.eitherEndpoint("the holder's", say("Leave the holder as it is: only the CiliumEndpoint is missing, and the address is safe."))
}

// reassign advises to restart the holder if Cilium's agent does not know its endpoint.
func (t ciliumRemedies) reassign() {
	leave := []Action{say("Leave the holder as it is.")}
	if al := t.allocation; al.Pod != "" {
		leave = append(leave, say("If pod %s/%s does not exist, its CiliumEndpoint is left over.", al.Namespace, al.Pod))
		leave = append(leave, plan("")...)
		t.endpoint()
	}
	t.eitherEndpoint("the holder's", leave...)
}

// release advises to delete a left-over CiliumEndpoint.
func (t ciliumRemedies) release() {
	t.advise("Cilium's operator deletes a CiliumEndpoint without a pod by itself within minutes (--cilium-endpoint-gc-interval, 5m). If it does not, check whether the operator runs and what it logs.")
	node := cmp.Or(t.node(), t.allocatedNode())
	t.act(say("Check whether Cilium's agent on node %s still has an endpoint with %s: restarting that agent removes endpoints without a container.", node, t.f.Address).by("", ciliumAgent(node)))
	if t.endpoint(); t.allocation.Pod != "" {
		t.act(plan("")...)
	}
}

// eitherEndpoint adds a choice: leave the holder if Cilium's agent knows the endpoint of the
// address, otherwise restart the holder so that it gets another address.
func (t ciliumRemedies) eitherEndpoint(whose string, leave ...Action) {
	restart, fix := t.restarting("its successor gets an address that Cilium's agent has allocated")
	t.act(
		say("Check which endpoint Cilium's agent on node %s has for %s.", t.ownerNode(), t.f.Address).by("", ciliumAgent(t.ownerNode())),
		say("Continue according to the result.").or(
			either("the agent has an endpoint with the address, and it is "+whose, leave...),
			either("the agent has no endpoint with that address, or it belongs to another pod", restart...),
		))
	if fix.What != "" {
		t.fix(fix)
	}
}

// endpoint adds the fix that deletes the CiliumEndpoint of a pod that is gone.
func (t ciliumRemedies) endpoint() {
	al := t.allocation
	if al.Pod == "" {
		return
	}
	namespace, name := quote(al.Namespace), quote(al.Pod)
	t.fix(Fix{
		What: fmt.Sprintf("Delete the CiliumEndpoint of pod %s/%s, which contains %s, if that pod does not exist.", al.Namespace, al.Pod, t.f.Address),
		Command: script(
			"if pod=$(kubectl get pod -n "+namespace+" "+name+" --ignore-not-found -o name) && [ -z \"$pod\" ]; then",
			"  kubectl delete ciliumendpoints.cilium.io -n "+namespace+" "+name+" --ignore-not-found",
			"else",
			"  echo "+quote("pod "+al.Namespace+"/"+al.Pod+" exists: left unchanged"),
			"fi"),
	})
}

// ownerNode returns the holder's node.
func (t ciliumRemedies) ownerNode() string {
	if t.owner == nil {
		return cmp.Or(t.node(), "?")
	}
	return t.owner.Node.Name
}

// allocatedNode returns the node that the address is allocated on.
func (t ciliumRemedies) allocatedNode() string {
	return cmp.Or(t.allocation.Node, "?")
}
