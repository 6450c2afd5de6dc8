package ovn

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Kube-OVN has no command that allocates an address to a running pod. Deleting the IP object of a
// running pod cuts the pod off, because its logical port is deleted with it. So the holder is
// restarted, and only IP objects of pods that are gone are deleted.

const (
	logs    = "kubectl -n kube-system logs -l app=kube-ovn-controller --tail=-1"
	objects = "kubectl get ips.kubeovn.io -o custom-columns=NAME:.metadata.name,ADDRESS:.spec.ipAddress,NAMESPACE:.spec.namespace,POD:.spec.podName,TYPE:.spec.podType,SUBNET:.spec.subnet"
)

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a} },
	Exclude: func(p *ipam.Pool, _ string, a netip.Addr) ipam.Exclusion {
		return ipam.Exclusion{
			How: "add it to spec.excludeIps of the Subnet",
			Step: advice.Say("Exclude %s from what Kube-OVN allocates: add it to spec.excludeIps of Subnet %s.", a, p.Name).By("",
				"kubectl patch "+Subnets.String()+" "+advice.Argument(p.Name)+" --type=json -p "+advice.Quote(`[{"op":"add","path":"/spec/excludeIps/-","value":"`+a.String()+`"}]`)),
		}
	},
	Enlarge: func(p *ipam.Pool) string {
		return fmt.Sprintf("Create another Subnet in the same VPC, and move some of the namespaces of Subnet %s to it (spec.namespaces): new pods get addresses from there. The cidrBlock of a Subnet cannot be changed.", p.Name)
	},
	Access: ipam.MayList("", IPs, Subnets, VIPs),
	Forget: func(namespace, pod string) advice.Action {
		return advice.Say("Delete the IP object of %s/%s, which keeps the address for it. The pod has no network from then on, so delete it right after that.", namespace, pod).By("",
			"kubectl delete "+IPs.String()+" --ignore-not-found --timeout=1m "+advice.Argument(pod+"."+namespace))
	},
	Effects: ipam.Effects{
		Free:      "no IP object has it. Kube-OVN frees an address when its IP object is deleted, and may then allocate it to any of the next pods of the Subnet.",
		Elsewhere: "Kube-OVN frees the address when that owner ends, and allocates it to another pod while it is in use.",
	},
	Loss: ipam.Loss{
		Search: func(p *ipam.Pool) string {
			return fmt.Sprintf("Find out what deleted the IP objects of Subnet %s: the log of kube-ovn-controller has a line with each of their names (%s).", p.Name, logs)
		},
	},
}

// remedies builds the remedies for addresses of Kube-OVN.
type remedies ipam.Remedy

// Reserve advises to restart the holder.
func (t remedies) Reserve() {
	t.list()
	t.RestartNow("Kube-OVN allocates an address to its successor and creates its IP object")
	t.Act(advice.Say("Find out what deleted the IP object.").By("", logs+" | grep -F -w "+advice.Quote(t.Address.String())))
}

// Reassign advises to restart the holder. The other pod keeps the address if it exists; if not, its
// IP object is deleted.
func (t remedies) Reassign() {
	t.list()
	al := t.Allocation
	if al.Pod != "" {
		t.Act(advice.Say("Check whether pod %s/%s, for which Kube-OVN has the address, exists. The name may be that of a virtual machine.", al.Namespace, al.Pod).By("", "kubectl get pods -n "+advice.Quote(al.Namespace)+" -o wide | grep -F -w -e "+advice.Quote(al.Pod)))
	}
	t.RestartNow("its successor gets an address of its own")
	if name, ok := t.object(); ok {
		t.Advise("If the pod of IP object %s does not exist, the repair plan deletes that object.", name)
		t.Act(advice.Plan("")...)
		t.Fix(t.remove(name))
	}
}

// Release advises to delete the IP object of a pod that is gone.
func (t remedies) Release() {
	t.Advise("kube-ovn-controller deletes the IP object of a pod that does not exist by itself (--gc-interval, 6 minutes). If it does not, check whether it runs and what it logs.")
	name, ok := t.object()
	if !ok {
		t.ByHand("", objects, "Delete the IP object with %s. Do this by hand, because the pod that it is for is unknown.", t.Address)
		return
	}
	t.Advise("The repair plan deletes IP object %s, unless its pod exists.", name)
	t.Act(advice.Plan("")...)
	t.Fix(t.remove(name))
}

// list advises to look at the IP objects with the address.
func (t remedies) list() {
	t.Act(advice.Say("Check which IP objects have the address.").By("", objects+" | grep -F -w "+advice.Quote(t.Address.String())))
}

// object returns the name of the IP object that may be deleted once its pod is gone.
func (t remedies) object() (name string, ok bool) {
	name, ok = strings.CutPrefix(t.Allocation.Location, IPs.Resource+" ")
	return name, ok && t.Allocation.Pod != "" && !t.Allocation.Kept
}

// remove returns the command that deletes an IP object if its pod is gone.
func (t remedies) remove(name string) advice.Fix {
	namespace, pod := t.Allocation.Namespace, t.Allocation.Pod
	return advice.Fix{
		What: fmt.Sprintf("Delete IP object %s of Kube-OVN, which has %s, if pod %s/%s does not exist.", name, t.Address, namespace, pod),
		Command: advice.Script(
			"if at=$(kubectl get "+IPs.String()+" "+advice.Quote(name)+" --ignore-not-found -o 'jsonpath={.spec.namespace}/{.spec.podName}/{.spec.podType}') && [ \"$at\" = "+advice.Quote(namespace+"/"+pod+"/")+" ] &&",
			"  pod=$(kubectl get pod -n "+advice.Quote(namespace)+" "+advice.Quote(pod)+" --ignore-not-found -o name) && [ -z \"$pod\" ]; then",
			"  kubectl delete "+IPs.String()+" "+advice.Quote(name)+" --ignore-not-found --timeout=1m",
			"else",
			"  echo "+advice.Quote(fmt.Sprintf("pod %s/%s exists, or IP object %s is gone or for another pod: left unchanged", namespace, pod, name)),
			"fi"),
	}
}
