package verdict

import (
	"cmp"
	"fmt"
)

// Cilium's agent on each node gives the addresses of that node's range, and has them in
// memory: it restores them from its endpoints when it starts. A CiliumEndpoint in the
// API tells of an endpoint, and gives nothing.

// ciliumAgent is how to ask the agent of a node.
const ciliumAgent = "kubectl -n kube-system get pods -l k8s-app=cilium -o wide names its agent; kubectl -n kube-system exec POD -c cilium-agent -- cilium-dbg endpoint list"

// reserveCilium has the holder restarted.
func (t *telling) reserveCilium() {
	t.advise("See whether Cilium's agent on node %s knows an endpoint with %s: %s. If it does, only the CiliumEndpoint is missing, and the address is safe.",
		t.ownerNode(), t.f.Address, ciliumAgent)
	t.advise("If it does not, restart the holder before its address is given to another pod:")
	t.restart("its successor gets an address that Cilium's agent knows of")
}

// rebookCilium has the holder restarted, if its own endpoint is missing.
func (t *telling) rebookCilium() {
	t.advise("See which endpoint Cilium's agent on node %s has with %s: %s", t.ownerNode(), t.f.Address, ciliumAgent)
	if al := t.booked; al.Pod != "" {
		t.advise("If it is the holder's, the CiliumEndpoint of pod %s/%s is left over: see below. If it is not, restart the holder.", al.Namespace, al.Pod)
		t.endpoint()
	}
	t.restart("its successor gets an address that Cilium's agent knows of")
}

// releaseCilium has a left-over CiliumEndpoint deleted.
func (t *telling) releaseCilium() {
	t.advise("Cilium's operator deletes a CiliumEndpoint without a pod by itself, within minutes (--cilium-endpoint-gc-interval, 5m): if it does not, see whether it runs and what it logs.")
	t.advise("See whether the agent of node %s still has an endpoint with %s: %s. Restarting the agent makes it forget endpoints without a container.",
		cmp.Or(t.node(), t.bookedNode()), t.f.Address, ciliumAgent)
	t.endpoint()
}

// endpoint has the CiliumEndpoint of a pod that is gone deleted.
func (t *telling) endpoint() {
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
func (t *telling) ownerNode() string {
	if t.owner == nil {
		return cmp.Or(t.node(), "?")
	}
	return t.owner.Node.Name
}

// bookedNode is the node that the address is booked for.
func (t *telling) bookedNode() string {
	return cmp.Or(t.booked.Node, "?")
}
