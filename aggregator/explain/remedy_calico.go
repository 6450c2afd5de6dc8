package explain

import (
	"fmt"
)

// Calico books an address for the node that its CNI plugin takes itself for: "nodename"
// in its network configuration or, without that, /var/lib/calico/nodename. What it has
// booked for a pod on another node than the pod's, its garbage collector frees after
// leakGracePeriod, 15 minutes by default (projectcalico/calico issue 12257).

// calicoNodename is where Calico keeps the name of a node on it.
const calicoNodename = "/var/lib/calico/nodename"

// calico words the remedies for addresses of Calico.
type calico struct{ *telling }

// reserve has the holder restarted: Calico has no command that books an address.
func (t calico) reserve() {
	t.act(say("See what Calico says.").by("", "calicoctl ipam show --ip="+t.f.Address.String()))
	t.advise("Restart the holder before Calico gives the address to another pod. calicoctl has no command that books an address for a pod that runs.")
	t.restartNow("its successor gets an address that Calico has booked for it")
	t.advise("Find out who freed it: the log of calico-kube-controllers has a line with the address (\"Garbage collecting leaked IP\"), if it was the garbage collector.")
}

// rebook has the node's name put right, and then the holder restarted.
func (t calico) rebook() {
	al := t.booked
	if al.Node == "" || t.owner == nil || t.owner.OnNode(al.Node) || al.Pod != "" && !al.Names(t.owner) {
		if al.Pod != "" {
			t.act(say("See whether pod %s/%s, for which Calico has it, runs, and which addresses it has.", al.Namespace, al.Pod).by("", "kubectl get pod -n "+quote(al.Namespace)+" -o wide "+argument(al.Pod)))
		}
		t.restartNow("its successor gets an address that Calico has booked for it")
		return
	}
	right := t.rightNode()
	t.collector()
	t.nodename(right)
	t.advise("Then restart the pods whose addresses are booked for the wrong node, one after the other: each successor's address is booked for node %s.", right)
	t.restartNow("its successor's address is booked for the right node")
}

// rightNode is what Calico should call the holder's node.
func (t calico) rightNode() string {
	switch {
	case t.owner == nil:
		return "?"
	case t.owner.Pod != nil && t.owner.Pod.Node != "":
		return t.owner.Pod.Node
	}
	return t.owner.Node.Name
}

// collector advises to stop the garbage collector, while it would free addresses in use.
func (t calico) collector() {
	const stop = `kubectl patch kubecontrollersconfigurations.crd.projectcalico.org default --type=merge -p '{"spec":{"controllers":{"node":{"leakGracePeriod":"0s"}}}}'`
	t.act(say("Stop the garbage collector until the pods are restarted: it would free addresses in use. 0 is off; put back what was there afterwards (15m by default).").by("", stop))
	t.byHand("", stop, "Stop Calico's garbage collector until the pods are restarted: it would free addresses in use. Put leakGracePeriod back afterwards (15m by default).")
}

// nodename has the name that the node goes by put right.
func (t calico) nodename(right string) {
	n := t.owner.Node
	const conflist = "grep -H '\"nodename\"' /etc/cni/net.d/*calico*"
	t.act(say("On node %s, see what Calico's CNI plugin takes the node for. It must be %s; what the network configuration says comes first.", n.Name, right).by(n.Name, conflist+"; cat "+calicoNodename))
	stale := n.CalicoNodename
	if stale == "" || stale == right || t.owner.OnNode(stale) {
		t.act(say("Restart calico-node on node %s: its init container writes the network configuration anew, which may have another name.", n.Name).by("", restartCalicoNode(right)))
		t.byHand("", restartCalicoNode(right), "Restart calico-node on node %s, if its CNI configuration has the wrong nodename: its init container writes it anew.", right)
		return
	}
	t.evidence("%s on node %s says %s.", calicoNodename, n.Name, stale)
	put := say("On node %s, put the name right, as Kubernetes has it for that node.", n.Name)
	if t.owner.Pod != nil && t.owner.Pod.Node != "" {
		put = put.by(n.Name, "printf %s "+quote(right)+" > "+calicoNodename)
	} else {
		put.Text += " It is written to " + calicoNodename + "."
	}
	t.act(put, say("Restart calico-node on node %s: its init container writes the network configuration anew, which may have the wrong name, too.", n.Name).by("", restartCalicoNode(right)))
	if t.owner.Pod == nil || t.owner.Pod.Node == "" {
		t.byHand(n.Name, "", "Put the name that Kubernetes has for this node into %s: it says %s. By hand, because that name is not known.", calicoNodename, stale)
		t.byHand("", restartCalicoNode(right), "Restart calico-node on node %s: its init container writes the CNI configuration anew, which may have the wrong name, too.", right)
		return
	}
	t.fix(Fix{
		Node: n.Name,
		What: fmt.Sprintf("Tell Calico's CNI plugin that this node is %s, not %s: else it books the addresses of new pods for the wrong node, too.", right, stale),
		Command: script(
			"if [ \"$(cat "+calicoNodename+" 2>/dev/null)\" = "+quote(stale)+" ]; then",
			"  printf '%s' "+quote(right)+" > "+calicoNodename,
			"else",
			"  echo "+quote(calicoNodename+" says something else now: nothing to do"),
			"fi"),
	})
	t.byHand("", restartCalicoNode(right), "Restart calico-node on node %s: its init container writes the CNI configuration anew, which may have the wrong name, too.", right)
}

// release has the address freed.
func (t calico) release() {
	a := t.f.Address.String()
	t.advise("Calico's garbage collector frees it by itself, 15 minutes after it finds it (leakGracePeriod): if it does not, see whether calico-kube-controllers runs and what it logs.")
	t.act(
		say("See what Calico thinks.").by("", "calicoctl ipam show --ip="+a),
		say("Free it, unless it is free by now. Of many, the plan (ipwitness audit --fix-plan) frees each that still is nobody's.").by("", "calicoctl ipam release --ip="+a))
	if t.booked.Pod == "" {
		t.byHand("", "calicoctl ipam release --ip="+a, "Free %s. By hand, because it is not known which pod it is booked for.", a)
		return
	}
	// A pod of that name may be there again, with the address as its second one, or
	// still without a status.
	namespace, name := t.booked.Namespace, t.booked.Pod
	t.fix(Fix{
		What: fmt.Sprintf("Free %s: pod %s/%s, for which Calico has it, does not have it, and nobody else has.", a, namespace, name),
		Command: script(
			"if ! pods=$(kubectl get pods -A --field-selector "+quote("status.podIP="+a+",status.phase!=Succeeded,status.phase!=Failed")+" -o name) ||",
			"  ! own=$(kubectl get pod -n "+quote(namespace)+" "+quote(name)+" --ignore-not-found -o 'jsonpath={\" \"}{.status.podIPs[*].ip}{\" \"}'); then",
			"  echo "+quote(a+": the pods cannot be listed: left as it is"),
			"elif [ -n \"$pods\" ]; then",
			"  echo "+quote(a+": in the status of a pod that runs: left as it is:")+" \"$pods\"",
			"elif case \"$own\" in '  '|*' "+a+" '*) ;; *) false ;; esac; then",
			"  echo "+quote(fmt.Sprintf("%s: pod %s/%s is there, and has it or no address yet: left as it is", a, namespace, name)),
			"elif shown=$(calicoctl ipam show --ip="+a+") && printf '%s\\n' \"$shown\" | grep -qxF -- "+quote("  namespace: "+namespace)+" &&",
			"  printf '%s\\n' \"$shown\" | grep -qxF -- "+quote("  pod: "+name)+"; then",
			"  calicoctl ipam release --ip="+a,
			"else",
			"  echo "+quote(a+": free, or booked for somebody else now: nothing to do"),
			"fi"),
	})
}
