package azure

import (
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Nothing but the programs of Azure CNI may write their records: azure-cns keeps its own in memory,
// and all of them write whole files. So an address is only repaired by a restart of its holder. A
// restart of azure-cns repairs nothing: it reads the same files again, and then gives out every
// address that they do not have.

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a} },
	Exclude: func(*ipam.Pool, string, netip.Addr) ipam.Exclusion {
		return ipam.Exclusion{How: "remove it from the addresses that Azure assigns to pods of the node (the IP configurations of its network interface, or the pod subnet)"}
	},
	Location: func(p *ipam.Pool, _ netip.Addr) string { return strings.TrimSuffix(p.Name, second) },
	Enlarge: func(*ipam.Pool) string {
		return "Azure assigns a fixed number of addresses to each node: add nodes, or add a node pool whose nodes have more (az aks nodepool add --max-pods)."
	},
	Access: func(p *ipam.Pool) string {
		return "Check whether the agent may read it: the agent needs " + strings.TrimSuffix(p.Name, second) + " of the node. In a container, mount /run and /var/lib read-only with HostToContainer propagation."
	},
	LeftOver: func(c ipam.Case) []advice.Action {
		start := advice.Say("No command of Azure CNI removes a single record, and azure-cns does not start with two records of one address: do not restart it on node %s meanwhile.", c.Node)
		return append(append([]advice.Action{start}, reboot(c.Node, c.KubernetesNode())...), advice.Uncordon(c.KubernetesNode()))
	},
	Effects: ipam.Effects{
		Free: "Azure CNI has no record of it. It will allocate the address to one of the next pods on the node, azure-cns at the latest after it has restarted.",
	},
	Loss: ipam.Loss{
		Empty: reboot,
		Search: func(p *ipam.Pool) string {
			return "Find out what deleted the records in " + p.Name + ": a clean-up script, or a container that was restarted with another /run. The file must exist as long as the pods of the node do. Do not restart azure-cns on the node until no address is at risk: it then allocates these addresses again."
		},
	},
}

// remedies builds the remedies for addresses of Azure CNI.
type remedies ipam.Remedy

// Reserve advises to restart the holder. Its successor may get another address that is in use if
// several have no record; then the node must be emptied first.
func (t remedies) Reserve() {
	t.Cordon(t.Advisor)
	t.Advise("Do not restart azure-cns on node %s meanwhile: when it starts, it considers every address without a record free.", t.Node)
	t.RestartAlone(t.Advisor, "it requests a free address", reboot(t.Node, t.KubernetesNode())...)
	t.Uncordon(t.Advisor)
}

// Reassign advises to restart the holder, whether or not the other container runs: its record is
// right if it does, and cannot be changed if it does not.
func (t remedies) Reassign() {
	t.Cordon(t.Advisor)
	t.Advise("Leave the record as it is: only Azure CNI can change it, and it frees the address when it removes that container.")
	t.Restart("its successor gets an address of its own")
	t.Uncordon(t.Advisor)
}

// Release advises to have the runtime remove the container of the record.
func (t remedies) Release() {
	id := t.Allocation.ContainerID
	left := append([]advice.Action{advice.Say("No command of Azure CNI frees a single address. Take the following steps once the node runs out of addresses.")}, reboot(t.Node, t.KubernetesNode())...)
	left = append(left, advice.Uncordon(t.KubernetesNode()))
	if id == "" {
		t.Act(left...)
	} else {
		t.Act(
			advice.Say("On node %s, check whether container %s, for which the address is recorded, exists.", t.Node, advice.ShortID(id)).By(t.Node, "crictl pods --no-trunc --id "+advice.Quote(id)),
			advice.Say("Continue according to the result.").Or(
				advice.Either("it exists and is NotReady", advice.Say("Have the runtime remove it, which frees the address.").By(t.Node, "crictl rmp "+advice.Argument(advice.ShortID(id)))),
				advice.Either("it exists and is Ready", advice.Say("Leave its record as it is: the container is running.")),
				advice.Either("it does not exist", left...),
			))
	}
	t.Advise("Addresses leak if a DEL is handled before the ADD that it follows, or if a node or its runtime fails before CNI DEL has run.")
	t.ByHand(t.Node, "", "Free %s: Azure CNI records it for a container that is gone, and no interface has the address. Drain and reboot the node: it then has no records.", t.Address)
}

// reboot returns the steps that end all pods of a node and remove its records, which are on a tmpfs.
// kubernetes is the name of the node in Kubernetes.
func reboot(node, kubernetes string) []advice.Action {
	return []advice.Action{
		advice.Drain(kubernetes),
		advice.Say("Reboot node %s. Its records are in /run, which is empty after the reboot, and the pods that stay on the node get new addresses.", node).By(node, "systemctl reboot"),
	}
}
