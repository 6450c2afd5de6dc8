package cilium

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Cilium's agent on each node allocates addresses from that node's range and keeps the allocations
// in memory: when it starts, it restores them from its endpoints. A CiliumEndpoint in the API
// describes an endpoint and allocates nothing.

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a} },
	Enlarge: func(*ipam.Pool) string {
		return "Add another range to clusterPoolIPv4PodCIDRList (ipam.mode cluster-pool). Leave the existing ranges unchanged."
	},
	Access: ipam.MayList(" -A", Endpoints, Nodes),
	NodeRanges: ipam.NodeRanges{
		Field:   "spec.ipam.podCIDRs of its CiliumNode",
		Check:   advice.Say("Check which range Cilium's operator has assigned to each node; its log says when.").By("", "kubectl get "+Nodes.String()+" -o custom-columns=NAME:.metadata.name,CIDRS:.spec.ipam.podCIDRs"),
		Renewed: "Its CiliumNode is deleted with it, and the new one gets a free range.",
	},
	GrowingRanges: ipam.NodeRanges{
		Field: "spec.ipam.pools.allocated of its CiliumNode",
		Check: advice.Say("Check which ranges Cilium's operator has assigned to each node.").By("", listPools),
		Reassign: []advice.Action{
			advice.Say("Restart Cilium's operator. When it starts, it reads the ranges of all nodes. If a range is assigned to several nodes, it leaves the range to one of them and assigns others to the rest.").By("", restartOperator),
			advice.Say("Check which of the two nodes has another range now. If both still have the same one, the pool may have no range left: add a CIDR to the CiliumPodIPPool, and restart the operator again.").By("", listPools),
		},
	},
	DivideOthers: func(config, common string) []advice.Action {
		return []advice.Action{
			advice.Say("Check which nodes have ranges within %s, and from which pool. If two nodes have the same range, that is a finding of its own (pod-cidr-overlap): resolve it first.", common).By("", listPools),
			advice.Say("Continue according to the result.").Or(
				advice.Either("no node has a range within "+common+" from the pool in "+config,
					advice.Say("Replace the CIDR in %s by one that no other pool has.", config).By("", "kubectl get "+Pools.String()+" -o yaml")),
				advice.Either("nodes have ranges within "+common+" from the pool in "+config,
					advice.Say("Do not remove the CIDR while a node uses it. Add a CIDR to %s that no other pool has.", config),
					advice.Say("Move the pods of that pool to the new CIDR as Cilium's documentation of multi-pool IPAM describes for CIDRs in use. Then remove the CIDR.")),
			),
		}
	},
	Effects: ipam.Effects{
		Free:      "no CiliumEndpoint has it. If Cilium's agent does not know the allocation either, it will allocate the address to one of the next pods on that node.",
		Elsewhere: "If Cilium's agent has the same allocation, the address is freed when that owner ends, and allocated to another pod while it is in use.",
	},
}

// listPools lists the ranges that nodes have under multi-pool IPAM.
var listPools = "kubectl get " + Nodes.String() + " -o 'custom-columns=NAME:.metadata.name,POOLS:.spec.ipam.pools.allocated[*].pool,CIDRS:.spec.ipam.pools.allocated[*].cidrs'"

// restartOperator restarts Cilium's operator, which assigns ranges to nodes.
const restartOperator = "kubectl -n kube-system rollout restart deployment cilium-operator && kubectl -n kube-system rollout status deployment cilium-operator --timeout=5m"

// agentEndpoints returns the command that lists the endpoints of a node's agent.
func agentEndpoints(node string) string {
	return "kubectl -n kube-system exec -c cilium-agent \"$(kubectl -n kube-system get pods -l k8s-app=cilium --field-selector " + advice.Quote("spec.nodeName="+node) + " -o name)\" -- cilium-dbg endpoint list"
}

// remedies builds the remedies for addresses of Cilium.
type remedies ipam.Remedy

// Reserve advises to restart the holder unless Cilium's agent knows its endpoint.
func (t remedies) Reserve() {
	t.eitherEndpoint("the holder's", advice.Say("Leave the holder as it is: only the CiliumEndpoint is missing, and the address is safe."))
}

// Reassign advises to restart the holder if Cilium's agent does not know its endpoint.
func (t remedies) Reassign() {
	leave := []advice.Action{advice.Say("Leave the holder as it is.")}
	if al := t.Allocation; al.Pod != "" {
		if t.copied() {
			leave = append(leave, advice.Say("If pod %s/%s does not exist, its endpoint in the CiliumEndpointSlice is left over. Cilium's operator removes it.", al.Namespace, al.Pod))
		} else {
			leave = append(leave, advice.Say("If pod %s/%s does not exist, its CiliumEndpoint is left over.", al.Namespace, al.Pod))
			leave = append(leave, advice.Plan("")...)
		}
		t.endpoint()
	}
	t.eitherEndpoint("the holder's", leave...)
}

// Release advises to delete a left-over CiliumEndpoint.
func (t remedies) Release() {
	if t.copied() {
		t.Advise("Cilium's operator removes an endpoint without a pod from the CiliumEndpointSlice by itself. If it does not, check whether the operator runs and what it logs (%s).", t.Allocation.Location)
		return
	}
	t.Advise("Cilium's operator deletes a CiliumEndpoint without a pod by itself within minutes (--cilium-endpoint-gc-interval, 5m). If it does not, check whether the operator runs and what it logs.")
	node := cmp.Or(t.Node, t.Allocation.Node, "?")
	t.Act(advice.Say("Check whether Cilium's agent on node %s still has an endpoint with %s: restarting that agent removes endpoints without a container.", node, t.Address).By("", agentEndpoints(node)))
	if t.endpoint(); t.Allocation.Pod != "" {
		t.Act(advice.Plan("")...)
	}
}

// copied reports whether the allocation is recorded in a CiliumEndpointSlice only.
func (t remedies) copied() bool {
	return strings.HasPrefix(t.Allocation.Location, Slices.Resource+" ")
}

// eitherEndpoint adds a choice: leave the holder if Cilium's agent knows the endpoint of the
// address, otherwise restart the holder so that it gets another address.
func (t remedies) eitherEndpoint(whose string, leave ...advice.Action) {
	restart, fix := t.Restarting("its successor gets an address that Cilium's agent has allocated")
	if len(restart) == 0 {
		restart = []advice.Action{advice.Say("Find out which pod has the address, and delete it: its successor gets an address that Cilium's agent has allocated.").
			By("", "ipwitness owners "+t.Address.String())}
	}
	t.Act(
		advice.Say("Check which endpoint Cilium's agent on node %s has for %s.", t.holderNode(), t.Address).By("", agentEndpoints(t.holderNode())),
		advice.Say("Continue according to the result.").Or(
			advice.Either("the agent has an endpoint with the address, and it is "+whose, leave...),
			advice.Either("the agent has no endpoint with that address, or it belongs to another pod", restart...),
		))
	if fix.What != "" {
		t.Fix(fix)
	}
}

// endpoint adds the fix that deletes the CiliumEndpoint of a pod that is gone.
func (t remedies) endpoint() {
	al := t.Allocation
	if al.Pod == "" || t.copied() {
		return
	}
	namespace, name := advice.Quote(al.Namespace), advice.Quote(al.Pod)
	t.Fix(advice.Fix{
		What: fmt.Sprintf("Delete the CiliumEndpoint of pod %s/%s, which contains %s, if that pod does not exist.", al.Namespace, al.Pod, t.Address),
		Command: advice.Script(
			"if pod=$(kubectl get pod -n "+namespace+" "+name+" --ignore-not-found -o name) && [ -z \"$pod\" ]; then",
			"  kubectl delete "+Endpoints.String()+" -n "+namespace+" "+name+" --ignore-not-found",
			"else",
			"  echo "+advice.Quote("pod "+al.Namespace+"/"+al.Pod+" exists: left unchanged"),
			"fi"),
	})
}

// holderNode returns the name of the holder's node, as in Kubernetes if it is known.
func (t remedies) holderNode() string {
	if t.Holder == nil {
		return cmp.Or(t.Node, "?")
	}
	return cmp.Or(t.Holder.KubernetesNode, t.Holder.Node)
}
