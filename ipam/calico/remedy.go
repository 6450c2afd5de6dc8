package calico

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Calico allocates an address under the node name that its CNI plugin uses (nameReader). If that is not
// the node that the pod runs on, Calico's garbage collector frees the address after leakGracePeriod,
// 15 minutes by default (projectcalico/calico issue 12257). calico-node writes the right name to
// nodeNameFile when it starts, and its init container to the CNI configuration.

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a} },
	Exclude: func(_ *ipam.Pool, _ string, a netip.Addr) ipam.Exclusion {
		return ipam.Exclusion{
			How:  fmt.Sprintf("create an IPReservation that contains it (reservedCIDRs: [%s])", netip.PrefixFrom(a, a.BitLen())),
			Step: advice.Say("Exclude %s from what Calico allocates: create an IPReservation that contains it (reservedCIDRs).", a),
		}
	},
	Enlarge: func(*ipam.Pool) string {
		return "Add another IPPool (kubectl apply, or calicoctl create): pods get addresses from all pools. Check with calicoctl ipam show --show-blocks whether nodes have blocks that they hardly use."
	},
	Access:    ipam.MayList("", Blocks, Pools),
	Check:     advice.Say("Have Calico check its own records.").By("", "calicoctl ipam check --show-problem-ips"),
	Effects:   ipam.Effects{WrongNode: "Calico's garbage collector considers such an allocation leaked and frees the address after 15 minutes (leakGracePeriod); another pod then gets it."},
	Loss:      ipam.Loss{Backup: "Calico's IPAM objects (ipamblocks, ipamhandles, blockaffinities)"},
	Daemon:    daemon,
	RightName: rightName,
}

// daemon restores the node's network configuration and allocates the address of its tunnel when it
// starts.
var daemon = ipam.Daemon{Name: "calico-node", Label: "k8s-app=calico-node"}

// remedies builds the remedies for addresses of Calico.
type remedies ipam.Remedy

// Reserve advises to restart the holder, because Calico has no command that allocates an address to
// a running pod.
func (t remedies) Reserve() {
	t.Act(advice.Say("Check the record that Calico has of the address.").By("", "calicoctl ipam show --ip="+t.Address.String()))
	t.Advise("Restart the holder before Calico allocates the address to another pod. calicoctl has no command that allocates an address to a running pod.")
	t.RestartNow("its successor gets an address that Calico has allocated to it")
	t.Advise("Find out what freed the address: if it was the garbage collector, the log of calico-kube-controllers has a line with the address (\"Garbage collecting leaked IP\").")
}

// Reassign advises to correct the node's name and then to restart the holder.
func (t remedies) Reassign() {
	al, holder := t.Allocation, t.Holder
	if al.Node == "" || holder == nil || holder.OfAllocation || al.Pod != "" && (al.Pod != holder.Pod || al.Namespace != holder.Namespace) {
		if al.Pod != "" {
			t.Act(advice.Say("Check whether pod %s/%s, to which Calico has allocated the address, runs, and which addresses it has.", al.Namespace, al.Pod).By("", "kubectl get pod -n "+advice.Quote(al.Namespace)+" -o wide "+advice.Argument(al.Pod)))
		}
		t.RestartNow("its successor gets an address that Calico has allocated to it")
		return
	}
	right := cmp.Or(holder.KubernetesNode, holder.Node)
	t.collector()
	t.nodename(right)
	t.Advise("Then restart the pods whose addresses are allocated under the wrong node name, one after the other: the address of each successor is allocated under node name %s.", right)
	t.RestartNow("its successor's address is allocated under the right node name")
}

// collector advises to stop the garbage collector as long as it would free addresses in use.
func (t remedies) collector() {
	const stop = `kubectl patch kubecontrollersconfigurations.crd.projectcalico.org default --type=merge -p '{"spec":{"controllers":{"node":{"leakGracePeriod":"0s"}}}}'`
	t.Act(advice.Say("Stop the garbage collector until the pods are restarted, because it would free addresses in use. 0s turns it off; afterwards, restore the previous value of leakGracePeriod (default 15m).").By("", stop))
	t.ByHand("", stop, "Stop Calico's garbage collector until the pods are restarted, because it would free addresses in use. Afterwards, restore leakGracePeriod (default 15m).")
}

// nodename advises to correct the node name that Calico uses.
func (t remedies) nodename(right string) {
	node, wrong := t.Holder.Node, t.Holder.WrongName
	if wrong.Name != "" {
		t.State("%s.", wrong.On(node))
	}
	t.Act(rightName(t.Holder.Place)...)
	restart := func(then string) {
		t.ByHand("", daemon.Restart(right), "Restart calico-node on node %s%s", right, then)
	}
	switch {
	case wrong.Name == "":
		restart(" if its CNI configuration contains the wrong nodename: its init container rewrites it.")
	case wrong.Source == ipam.ConfName:
		restart(fmt.Sprintf(": its init container rewrites %s, which contains %s.", wrong.File, wrong.Name))
	case t.Holder.KubernetesNode == "":
		t.ByHand(node, "", "Write the name of this node in Kubernetes to %s, instead of %s. Do this by hand, because ipwitness does not know that name.", wrong.File, wrong.Name)
		restart(": its init container rewrites the CNI configuration, which may contain the wrong name, too.")
	default:
		t.Fix(advice.Fix{
			Node: node,
			What: fmt.Sprintf("Tell Calico's CNI plugin that this node is %s, not %s: otherwise it allocates the addresses of new pods under the wrong node name, too.", right, wrong.Name),
			Command: advice.Script(
				"if "+stillWrong(wrong)+"; then",
				"  printf '%s' "+advice.Quote(right)+" > "+advice.Quote(wrong.File),
				"else",
				"  echo "+advice.Quote(wrong.File+" has different content now: nothing to do"),
				"fi"),
		})
		restart(": its init container rewrites the CNI configuration, which may contain the wrong name, too.")
	}
}

// stillWrong returns the condition that the file with the node's name has not been written since.
func stillWrong(wrong ipam.NodeName) string {
	if wrong.Source == ipam.HostName {
		return "! [ -s " + advice.Quote(wrong.File) + " ]"
	}
	return "[ \"$(cat " + advice.Quote(wrong.File) + " 2>/dev/null)\" = " + advice.Quote(wrong.Name) + " ]"
}

// rightName returns the steps after which Calico's CNI plugin uses the right name for a node.
func rightName(at ipam.Place) []advice.Action {
	right, wrong := cmp.Or(at.KubernetesNode, at.Node), at.WrongName
	restart := advice.Say("Restart calico-node on node %s: its init container rewrites the network configuration, which may contain the wrong name.", at.Node).By("", daemon.Restart(right))
	put := func(file string) advice.Action {
		a := advice.Say("On node %s, write the name that the node has in Kubernetes to %s.", at.Node, file)
		if at.KubernetesNode != "" {
			a = a.By(at.Node, "printf %s "+advice.Quote(right)+" > "+advice.Quote(file))
		}
		return a
	}
	leave := advice.Say("Leave it as it is.")
	switch wrong.Source {
	case ipam.ConfName:
		return []advice.Action{restart, advice.Say("On node %s, check whether %s contains the name that the node has in Kubernetes now.", at.Node, wrong.File).By(at.Node, "grep name "+advice.Quote(wrong.File)).Or(
			advice.Either("it does", leave),
			advice.Either("it still contains "+wrong.Name, advice.Say("Correct the name there, and in the software that wrote the file: it takes precedence over %s.", nodeNameFile)),
		)}
	case ipam.FileName, ipam.HostName:
		return []advice.Action{put(wrong.File), restart}
	}
	return []advice.Action{advice.Say("On node %s, check which node name Calico's CNI plugin uses. The network configuration takes precedence over the file.", at.Node).By(at.Node, "grep -H '\"nodename\"' /etc/cni/net.d/*calico*; cat "+nodeNameFile).Or(
		advice.Either("it is the name that the node has in Kubernetes", leave),
		advice.Either("the network configuration contains another name", restart),
		advice.Either("only the file contains another name", put(nodeNameFile), restart),
	)}
}

// Release advises to free the address.
func (t remedies) Release() {
	a := t.Address.String()
	t.Advise("Calico's garbage collector frees the address by itself, 15 minutes after it detects the leak (leakGracePeriod). If it does not, check whether calico-kube-controllers runs and what it logs.")
	t.Act(
		advice.Say("Check the record that Calico has of the address.").By("", "calicoctl ipam show --ip="+a),
		advice.Say("Free the address, unless it is already free. If there are many, the repair plan (ipwitness audit --fix-plan) frees each address that still has no holder.").By("", "calicoctl ipam release --ip="+a))
	if t.Allocation.Pod == "" {
		t.ByHand("", "calicoctl ipam release --ip="+a, "Free %s. Do this by hand, because the pod that it is allocated to is unknown.", a)
		return
	}
	// A new pod of that name may exist, with the address as its second one, or still without a
	// status.
	namespace, name := t.Allocation.Namespace, t.Allocation.Pod
	t.Fix(advice.Fix{
		What: fmt.Sprintf("Free %s: pod %s/%s, to which Calico has allocated it, does not have it, and no other owner does.", a, namespace, name),
		Command: advice.Script(
			"if ! pods=$(kubectl get pods -A --field-selector "+advice.Quote("status.podIP="+a+",status.phase!=Succeeded,status.phase!=Failed")+" -o name) ||",
			"  ! own=$(kubectl get pod -n "+advice.Quote(namespace)+" "+advice.Quote(name)+" --ignore-not-found -o 'jsonpath={\" \"}{.status.podIPs[*].ip}{\" \"}'); then",
			"  echo "+advice.Quote(a+": the pods cannot be listed: left unchanged"),
			"elif [ -n \"$pods\" ]; then",
			"  echo "+advice.Quote(a+": in the status of a running pod: left unchanged:")+" \"$pods\"",
			"elif case \"$own\" in '  '|*' "+a+" '*) ;; *) false ;; esac; then",
			"  echo "+advice.Quote(fmt.Sprintf("%s: pod %s/%s exists, and has this address or none yet: left unchanged", a, namespace, name)),
			"elif shown=$(calicoctl ipam show --ip="+a+") && printf '%s\\n' \"$shown\" | grep -qxF -- "+advice.Quote("  namespace: "+namespace)+" &&",
			"  printf '%s\\n' \"$shown\" | grep -qxF -- "+advice.Quote("  pod: "+name)+"; then",
			"  calicoctl ipam release --ip="+a,
			"else",
			"  echo "+advice.Quote(a+": free, or allocated to another owner now: nothing to do"),
			"fi"),
	})
}
