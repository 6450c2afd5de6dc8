package explain

import (
	"cmp"
	"fmt"
)

// Cilium's agent on each node gives the addresses of that node's range, and has them in
// memory: it restores them from its endpoints when it starts. A CiliumEndpoint in the
// API tells of an endpoint, and gives nothing.

// ciliumAgent is how to ask the agent of a node.
func ciliumAgent(node string) string {
	return "kubectl -n kube-system exec -c cilium-agent \"$(kubectl -n kube-system get pods -l k8s-app=cilium --field-selector " + quote("spec.nodeName="+node) + " -o name)\" -- cilium-dbg endpoint list"
}

// cilium words the remedies for addresses of Cilium.
type cilium struct{ *telling }

// reserve has the holder restarted.
func (t cilium) reserve() {
	t.eitherEndpoint("the holder's", say("Leave the holder as it is: only the CiliumEndpoint is missing, and the address is safe."))
}

// rebook has the holder restarted, if its own endpoint is missing.
func (t cilium) rebook() {
	leave := []Action{say("Leave the holder as it is.")}
	if al := t.booked; al.Pod != "" {
		leave = append(leave, say("The CiliumEndpoint of pod %s/%s is left over, if there is no such pod.", al.Namespace, al.Pod))
		leave = append(leave, plan("")...)
		t.endpoint()
	}
	t.eitherEndpoint("the holder's", leave...)
}

// release has a left-over CiliumEndpoint deleted.
func (t cilium) release() {
	t.advise("Cilium's operator deletes a CiliumEndpoint without a pod by itself, within minutes (--cilium-endpoint-gc-interval, 5m): if it does not, see whether it runs and what it logs.")
	node := cmp.Or(t.node(), t.bookedNode())
	t.act(say("See whether the agent of node %s still has an endpoint with %s: restarting the agent makes it forget endpoints without a container.", node, t.f.Address).by("", ciliumAgent(node)))
	if t.endpoint(); t.booked.Pod != "" {
		t.act(plan("")...)
	}
}

// eitherEndpoint adds a choice: leave the holder if Cilium's agent knows the endpoint of the
// address, otherwise restart the holder so that it gets another address.
func (t cilium) eitherEndpoint(whose string, leave ...Action) {
	restart, fix := t.restarting("its successor gets an address that Cilium's agent knows of")
	t.act(
		say("See which endpoint Cilium's agent on node %s has with %s.", t.ownerNode(), t.f.Address).by("", ciliumAgent(t.ownerNode())),
		say("What comes next depends on that.").or(
			either("it has that one, and it is "+whose, leave...),
			either("it has none with that address, or another one's", restart...),
		))
	if fix.What != "" {
		t.fix(fix)
	}
}

// endpoint has the CiliumEndpoint of a pod that is gone deleted.
func (t cilium) endpoint() {
	al := t.booked
	if al.Pod == "" {
		return
	}
	namespace, name := quote(al.Namespace), quote(al.Pod)
	t.fix(Fix{
		What: fmt.Sprintf("Delete the CiliumEndpoint of pod %s/%s, which says that it has %s, if there is no such pod.", al.Namespace, al.Pod, t.f.Address),
		Command: script(
			"if pod=$(kubectl get pod -n "+namespace+" "+name+" --ignore-not-found -o name) && [ -z \"$pod\" ]; then",
			"  kubectl delete ciliumendpoints.cilium.io -n "+namespace+" "+name+" --ignore-not-found",
			"else",
			"  echo "+quote("pod "+al.Namespace+"/"+al.Pod+" is there: left as it is"),
			"fi"),
	})
}

// ownerNode is the holder's node.
func (t cilium) ownerNode() string {
	if t.owner == nil {
		return cmp.Or(t.node(), "?")
	}
	return t.owner.Node.Name
}

// bookedNode is the node that the address is booked for.
func (t cilium) bookedNode() string {
	return cmp.Or(t.booked.Node, "?")
}
