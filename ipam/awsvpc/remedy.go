package awsvpc

import (
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
	Cooldown: advice.Say("With the next upgrade of the AWS VPC CNI, set IP_COOLDOWN_PERIOD of aws-node to more seconds than the default of 30: Linux remembers half-open connections for 120 s. Each node then needs more free addresses. Do not change it in between: that restarts aws-node, which drops the records of addresses that the instance metadata does not list at that moment."),
	Loss: ipam.Loss{
		Empty: reboot,
		Search: func(p *ipam.Pool) string {
			return "Find out what deleted " + p.Name + ": ipamd never deletes it. Do not restart aws-node on the node until no address is at risk. If it has not been restarted since the loss, it still has all allocations in its memory, and writes the file again, complete, as soon as a pod of the node starts or ends."
		},
	},
}

// ipamdLog is ipamd's log on each node, unless AWS_VPC_K8S_CNI_LOG_FILE names another file.
const ipamdLog = "/var/log/aws-routed-eni/ipamd.log"

// remedies builds the remedies for addresses of the AWS VPC CNI.
type remedies ipam.Remedy

// Reserve advises to restart the holder on a node that starts no pods meanwhile. If several addresses
// have no record, the holder's successor may get another one of them, so that the node must be emptied.
func (t remedies) Reserve() {
	t.Cordon(t.Advisor)
	t.Advise("Do not edit or delete %s, which ipamd overwrites, and do not restart aws-node, which restores nothing: ipamd cannot record an address for a running pod.", t.Pool.Name)
	t.RestartAlone(t.Advisor, "its successor gets an address that ipamd has recorded for it", reboot(t.Node, t.KubernetesNode())...)
	t.Uncordon(t.Advisor)
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

// reboot returns the steps that end all pods of a node and remove its checkpoint, which is on a tmpfs.
// kubernetes is the name of the node in Kubernetes.
func reboot(node, kubernetes string) []advice.Action {
	return []advice.Action{
		advice.Drain(kubernetes),
		advice.Say("Reboot node %s, or replace its instance. The checkpoint is in /run, which is empty after the reboot, and the pods that stay on the node get new addresses.", node).By(node, "systemctl reboot"),
	}
}
