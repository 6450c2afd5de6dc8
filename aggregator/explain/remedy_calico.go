package explain

import (
	"fmt"
)

// Calico allocates an address under the node name that its CNI plugin uses: "nodename" in its
// network configuration or, without that, the content of /var/lib/calico/nodename. If that is not
// the node that the pod runs on, Calico's garbage collector frees the address after
// leakGracePeriod, 15 minutes by default (projectcalico/calico issue 12257).

// calicoNodename is the file on each node in which Calico keeps the name of the node.
const calicoNodename = "/var/lib/calico/nodename"

// calicoRemedies builds the remedies for addresses of Calico.
type calicoRemedies struct{ *telling }

// reserve advises to restart the holder, because Calico has no command that allocates an address to
// a running pod.
func (t calicoRemedies) reserve() {
	t.act(say("Check the record that Calico has of the address.").by("", "calicoctl ipam show --ip="+t.f.Address.String()))
	t.advise("Restart the holder before Calico allocates the address to another pod. calicoctl has no command that allocates an address to a running pod.")
	t.restartNow("its successor gets an address that Calico has allocated to it")
	t.advise("Find out what freed the address: if it was the garbage collector, the log of calico-kube-controllers has a line with the address (\"Garbage collecting leaked IP\").")
}

// reassign advises to correct the node's name and then to restart the holder.
func (t calicoRemedies) reassign() {
	al := t.allocation
	if al.Node == "" || t.owner == nil || t.owner.OnNode(al.Node) || al.Pod != "" && !al.Names(t.owner) {
		if al.Pod != "" {
			t.act(say("Check whether pod %s/%s, to which Calico has allocated the address, runs, and which addresses it has.", al.Namespace, al.Pod).by("", "kubectl get pod -n "+quote(al.Namespace)+" -o wide "+argument(al.Pod)))
		}
		t.restartNow("its successor gets an address that Calico has allocated to it")
		return
	}
	right := t.rightNode()
	t.collector()
	t.nodename(right)
	t.advise("Then restart the pods whose addresses are allocated under the wrong node name, one after the other: the address of each successor is allocated under node name %s.", right)
	t.restartNow("its successor's address is allocated under the right node name")
}

// rightNode returns the name that Calico should use for the holder's node.
func (t calicoRemedies) rightNode() string {
	switch {
	case t.owner == nil:
		return "?"
	case t.owner.Pod != nil && t.owner.Pod.Node != "":
		return t.owner.Pod.Node
	}
	return t.owner.Node.Name
}

// collector advises to stop the garbage collector as long as it would free addresses in use.
func (t calicoRemedies) collector() {
	const stop = `kubectl patch kubecontrollersconfigurations.crd.projectcalico.org default --type=merge -p '{"spec":{"controllers":{"node":{"leakGracePeriod":"0s"}}}}'`
	t.act(say("Stop the garbage collector until the pods are restarted, because it would free addresses in use. 0s turns it off; afterwards, restore the previous value of leakGracePeriod (default 15m).").by("", stop))
	t.byHand("", stop, "Stop Calico's garbage collector until the pods are restarted, because it would free addresses in use. Afterwards, restore leakGracePeriod (default 15m).")
}

// nodename advises to correct the node name that Calico uses.
func (t calicoRemedies) nodename(right string) {
	n := t.owner.Node
	const conflist = "grep -H '\"nodename\"' /etc/cni/net.d/*calico*"
	t.act(say("On node %s, check which node name Calico's CNI plugin uses. It must be %s; the network configuration takes precedence over the file.", n.Name, right).by(n.Name, conflist+"; cat "+calicoNodename))
	stale := n.CalicoNodename
	if stale == "" || stale == right || t.owner.OnNode(stale) {
		t.act(say("Restart calico-node on node %s: its init container rewrites the network configuration, which may contain a different name.", n.Name).by("", restartCalicoNode(right)))
		t.byHand("", restartCalicoNode(right), "Restart calico-node on node %s if its CNI configuration contains the wrong nodename: its init container rewrites it.", right)
		return
	}
	t.evidence("%s on node %s contains %s.", calicoNodename, n.Name, stale)
	put := say("On node %s, correct the name: it must be the name of that node in Kubernetes.", n.Name)
	if t.owner.Pod != nil && t.owner.Pod.Node != "" {
		put = put.by(n.Name, "printf %s "+quote(right)+" > "+calicoNodename)
	} else {
		put.Text += " Write it to " + calicoNodename + "."
	}
	t.act(put, say("Restart calico-node on node %s: its init container rewrites the network configuration, which may contain the wrong name, too.", n.Name).by("", restartCalicoNode(right)))
	if t.owner.Pod == nil || t.owner.Pod.Node == "" {
		t.byHand(n.Name, "", "Write the name of this node in Kubernetes to %s, which contains %s. Do this by hand, because ipwitness does not know that name.", calicoNodename, stale)
		t.byHand("", restartCalicoNode(right), "Restart calico-node on node %s: its init container rewrites the CNI configuration, which may contain the wrong name, too.", right)
		return
	}
	t.fix(Fix{
		Node: n.Name,
		What: fmt.Sprintf("Tell Calico's CNI plugin that this node is %s, not %s: otherwise it allocates the addresses of new pods under the wrong node name, too.", right, stale),
		Command: script(
			"if [ \"$(cat "+calicoNodename+" 2>/dev/null)\" = "+quote(stale)+" ]; then",
			"  printf '%s' "+quote(right)+" > "+calicoNodename,
			"else",
			"  echo "+quote(calicoNodename+" has different content now: nothing to do"),
			"fi"),
	})
	t.byHand("", restartCalicoNode(right), "Restart calico-node on node %s: its init container rewrites the CNI configuration, which may contain the wrong name, too.", right)
}

// release advises to free the address.
func (t calicoRemedies) release() {
	a := t.f.Address.String()
	t.advise("Calico's garbage collector frees the address by itself, 15 minutes after it detects the leak (leakGracePeriod). If it does not, check whether calico-kube-controllers runs and what it logs.")
	t.act(
		say("Check the record that Calico has of the address.").by("", "calicoctl ipam show --ip="+a),
		say("Free the address, unless it is already free. If there are many, the repair plan (ipwitness audit --fix-plan) frees each address that still has no holder.").by("", "calicoctl ipam release --ip="+a))
	if t.allocation.Pod == "" {
		t.byHand("", "calicoctl ipam release --ip="+a, "Free %s. Do this by hand, because it is not known which pod it is allocated to.", a)
		return
	}
	// A new pod of that name may exist, with the address as its second one, or still without a
	// status.
	namespace, name := t.allocation.Namespace, t.allocation.Pod
	t.fix(Fix{
		What: fmt.Sprintf("Free %s: pod %s/%s, to which Calico has allocated it, does not have it, and no other owner does.", a, namespace, name),
		Command: script(
			"if ! pods=$(kubectl get pods -A --field-selector "+quote("status.podIP="+a+",status.phase!=Succeeded,status.phase!=Failed")+" -o name) ||",
			"  ! own=$(kubectl get pod -n "+quote(namespace)+" "+quote(name)+" --ignore-not-found -o 'jsonpath={\" \"}{.status.podIPs[*].ip}{\" \"}'); then",
			"  echo "+quote(a+": the pods cannot be listed: left unchanged"),
			"elif [ -n \"$pods\" ]; then",
			"  echo "+quote(a+": in the status of a running pod: left unchanged:")+" \"$pods\"",
			"elif case \"$own\" in '  '|*' "+a+" '*) ;; *) false ;; esac; then",
			"  echo "+quote(fmt.Sprintf("%s: pod %s/%s exists, and has this address or none yet: left unchanged", a, namespace, name)),
			"elif shown=$(calicoctl ipam show --ip="+a+") && printf '%s\\n' \"$shown\" | grep -qxF -- "+quote("  namespace: "+namespace)+" &&",
			"  printf '%s\\n' \"$shown\" | grep -qxF -- "+quote("  pod: "+name)+"; then",
			"  calicoctl ipam release --ip="+a,
			"else",
			"  echo "+quote(a+": free, or allocated to another owner now: nothing to do"),
			"fi"),
	})
}
