package awsvpc

import (
	"cmp"
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// ipamd reads its checkpoint only when it starts. It then drops the allocations of pods whose veth
// it does not find, and those whose address is not among the ENI addresses that the instance
// metadata lists. From then on, its memory counts, and it overwrites the file with each allocation
// and each release. It has no command that records an address for a running pod. It releases an
// address only for the container that it is recorded for.

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a} },
	Exclude: func(_ *ipam.Pool, _ string, a netip.Addr) ipam.Exclusion {
		return ipam.Exclusion{
			How:  "create a subnet CIDR reservation of type explicit that contains it, so that EC2 does not assign it to a network interface of a node",
			Step: advice.Say("Exclude %s from the addresses that EC2 assigns to nodes: create a subnet CIDR reservation of type explicit that contains it (aws ec2 create-subnet-cidr-reservation). If a network interface of a node has it already, replace that node.", a),
		}
	},
	Location: func(p *ipam.Pool, _ netip.Addr) string { return p.Name },
	Enlarge: func(*ipam.Pool) string {
		return "ipamd requests addresses from EC2 as it needs them. If it gets none, give the subnet more free addresses or the node another subnet (ENIConfig), or enable prefixes (ENABLE_PREFIX_DELEGATION)."
	},
	Access: func(p *ipam.Pool) string {
		return "Check whether the agent may read it: the agent needs " + p.Name + " of the node. In a container, mount /run read-only with HostToContainer propagation."
	},
	Loss: ipam.Loss{Search: func(p *ipam.Pool) string {
		return "Find out what deleted " + p.Name + ". ipamd never deletes it. If aws-node has not been restarted since, ipamd still has all allocations in its memory, and writes them to the file again as soon as a pod of the node starts or ends; this finding then ends. Do not restart aws-node before that."
	}},
}

// ipamdLog is ipamd's log on each node, unless AWS_VPC_K8S_CNI_LOG_FILE names another file.
const ipamdLog = "/var/log/aws-routed-eni/ipamd.log"

// remedies builds the remedies for addresses of the AWS VPC CNI.
type remedies struct {
	ipam.Case
	ipam.Advisor
}

// Reserve advises to restart the holder on a node that starts no pods meanwhile.
func (t remedies) Reserve() {
	t.cordon()
	t.Advise("Restart the holder before ipamd gives the address to another pod. ipamd cannot record an address for a running pod: do not edit or delete %s, which ipamd overwrites and reads only when it starts, and do not restart aws-node, because that restores nothing.", t.Pool.Name)
	if t.Holder != nil && t.Holder.IsPod {
		t.Advise("If ipwitness audit reports several addresses of this node, restart all of their holders before new pods are allowed again, and the pods of DaemonSets last: these start on a cordoned node, too, and ipamd could give one of them the address of a holder that is still running.")
	}
	t.Restart("its successor gets an address that ipamd has recorded for it")
	t.uncordon()
	t.Act(advice.Say("Find out on node %s why ipamd dropped the record. After a restart, it drops addresses that the instance metadata does not list (\"presuming stale/dead\") and pods whose veth it does not find (\"stale IP allocation\"); later, it removes addresses that EC2 no longer lists for the node.", t.Node).
		By(t.Node, "grep -E "+advice.Literal("presuming stale/dead|stale IP allocation|"+t.Address.String())+" "+ipamdLog))
}

// Reassign advises to restart the holder, because ipamd releases the address only for the container
// that it is recorded for.
func (t remedies) Reassign() {
	if id := t.Allocation.ContainerID; id != "" {
		t.Act(advice.Say("On node %s, check whether container %s, for which ipamd has recorded the address, is running. If it is, it has the address rightfully, too.", t.Node, advice.ShortID(id)).By(t.Node, "crictl pods --no-trunc --id "+advice.Quote(id)))
	}
	t.Advise("Restart the holder in both cases. The record stays as it is: ipamd releases an address only for the container that it is recorded for. Do not edit %s.", t.Pool.Name)
	t.Restart("its successor gets an address that ipamd has recorded for it")
}

// Release advises to have the runtime release the address, or to leave the record to ipamd.
func (t remedies) Release() {
	leave := advice.Say("Leave the record as it is: it only makes one address unavailable. ipamd drops it when it is started the next time, because the pod's veth is gone. Do not edit %s: ipamd overwrites it with the record.", t.Pool.Name)
	id := t.Allocation.ContainerID
	if id == "" {
		t.Act(leave)
		return
	}
	t.Act(
		advice.Say("On node %s, check whether container %s, for which the address is recorded, exists.", t.Node, advice.ShortID(id)).By(t.Node, "crictl pods --no-trunc --id "+advice.Quote(id)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it does not exist", leave),
			advice.Either("it exists and is NotReady", advice.Say("Have the runtime remove it, which releases the address.").By(t.Node, "crictl rmp "+advice.Argument(advice.ShortID(id)))),
			advice.Either("it exists and is Ready", advice.Say("Leave it and its record as they are: the container is running.")),
		))
	t.Advise("Addresses leak if CNI DEL cannot reach ipamd: the plugin then reports success, so that the runtime does not try again. If this happens repeatedly, check why aws-node on that node restarts.")
}

// node returns the name of the node in Kubernetes; empty if it is not known.
func (t remedies) node() string {
	if t.Holder == nil || !t.Holder.IsPod {
		return ""
	}
	return cmp.Or(t.Holder.KubernetesNode, t.Node)
}

// cordon advises to start no pods on the node for now.
func (t remedies) cordon() {
	if node := t.node(); node != "" {
		t.Act(advice.Cordon(node))
		t.ByHand("", "kubectl cordon "+advice.Argument(node), "Start no pods on node %s until the holders of its addresses are restarted (afterwards: kubectl uncordon %s).", node, advice.Argument(node))
	}
}

// uncordon adds the action that reverts cordon.
func (t remedies) uncordon() {
	if node := t.node(); node != "" {
		t.Act(advice.Uncordon(node))
	}
}
