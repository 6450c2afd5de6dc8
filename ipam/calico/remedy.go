package calico

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Calico allocates an address under the node name that its CNI plugin uses: "nodename" in its
// network configuration or, without that, the content of /var/lib/calico/nodename. If that is not
// the node that the pod runs on, Calico's garbage collector frees the address after
// leakGracePeriod, 15 minutes by default (projectcalico/calico issue 12257).

// nodeNameFile is the file on each node in which Calico keeps the name of the node.
const nodeNameFile = "/var/lib/calico/nodename"

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
	Access: func(*ipam.Pool) string {
		return "Check whether the aggregator may read it: kubectl auth can-i list " + Blocks.String() + " --as=system:serviceaccount:NAMESPACE:NAME; the same for " + Pools.String() + "."
	},
	Check:   advice.Say("Have Calico check its own records.").By("", "calicoctl ipam check --show-problem-ips"),
	Effects: ipam.Effects{WrongNode: "Calico's garbage collector considers such an allocation leaked and frees the address after 15 minutes (leakGracePeriod); another pod then gets it."},
	Loss:    ipam.Loss{Backup: "Calico's IPAM objects (ipamblocks, ipamhandles, blockaffinities)"},
	Daemon:  daemon,
}

// daemon restores the node's network configuration and allocates the address of its tunnel when it
// starts.
var daemon = ipam.Daemon{Name: "calico-node", Label: "k8s-app=calico-node"}

// remedies builds the remedies for addresses of Calico.
type remedies struct {
	ipam.Case
	ipam.Advisor
}

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
	const conflist = "grep -H '\"nodename\"' /etc/cni/net.d/*calico*"
	t.Act(advice.Say("On node %s, check which node name Calico's CNI plugin uses. It must be %s; the network configuration takes precedence over the file.", node, right).By(node, conflist+"; cat "+nodeNameFile))
	if wrong == "" {
		t.Act(advice.Say("Restart calico-node on node %s: its init container rewrites the network configuration, which may contain a different name.", node).By("", daemon.Restart(right)))
		t.ByHand("", daemon.Restart(right), "Restart calico-node on node %s if its CNI configuration contains the wrong nodename: its init container rewrites it.", right)
		return
	}
	t.State("%s on node %s contains %s.", nodeNameFile, node, wrong)
	put := advice.Say("On node %s, correct the name: it must be the name of that node in Kubernetes.", node)
	if t.Holder.KubernetesNode != "" {
		put = put.By(node, "printf %s "+advice.Quote(right)+" > "+nodeNameFile)
	} else {
		put.Text += " Write it to " + nodeNameFile + "."
	}
	t.Act(put, advice.Say("Restart calico-node on node %s: its init container rewrites the network configuration, which may contain the wrong name, too.", node).By("", daemon.Restart(right)))
	if t.Holder.KubernetesNode == "" {
		t.ByHand(node, "", "Write the name of this node in Kubernetes to %s, which contains %s. Do this by hand, because ipwitness does not know that name.", nodeNameFile, wrong)
		t.ByHand("", daemon.Restart(right), "Restart calico-node on node %s: its init container rewrites the CNI configuration, which may contain the wrong name, too.", right)
		return
	}
	t.Fix(advice.Fix{
		Node: node,
		What: fmt.Sprintf("Tell Calico's CNI plugin that this node is %s, not %s: otherwise it allocates the addresses of new pods under the wrong node name, too.", right, wrong),
		Command: advice.Script(
			"if [ \"$(cat "+nodeNameFile+" 2>/dev/null)\" = "+advice.Quote(wrong)+" ]; then",
			"  printf '%s' "+advice.Quote(right)+" > "+nodeNameFile,
			"else",
			"  echo "+advice.Quote(nodeNameFile+" has different content now: nothing to do"),
			"fi"),
	})
	t.ByHand("", daemon.Restart(right), "Restart calico-node on node %s: its init container rewrites the CNI configuration, which may contain the wrong name, too.", right)
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
