package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// What to do about a conflict whose cause is known, in an order in which nothing of it
// makes the next duplicate.

// remedies are the steps that a cause asks for; none where the cause does not tell.
func (j *judging) remedies(c *Conflict, why *reason) []string {
	switch why.cause {
	case CauseIPAMStateLost:
		return j.recordsFirst(c, why)
	case CauseIPAMBookedElsewhere:
		return j.rightNode(why)
	case CausePodCIDROverlap:
		return rangesApart(c, why)
	case CauseOverlappingNetworks:
		return j.renumber(c, why)
	case CauseStaticAddress:
		if why.gateway { // the node needs it
			return j.giveUp(why.wrong)
		}
		return append(j.giveUp(why.wrong), outOfRange(why))
	case CauseTunnelAddress:
		return j.leaveDevice(c, why)
	case CauseExternalDevice:
		return j.goOutside(why)
	}
	return nil
}

// giveUp is how each of some owners gives the address up.
func (j *judging) giveUp(owners []*Owner) []string {
	steps := make([]string, 0, len(owners)+1)
	for _, o := range owners {
		steps = append(steps, j.remedy(o))
	}
	return steps
}

// fixPlan is the command that tells how to put IPAM right.
const fixPlan = "`ipwitness audit --fix-plan`"

// recordsFirst puts records right before anything asks for an address.
func (j *judging) recordsFirst(c *Conflict, why *reason) []string {
	steps := []string{fmt.Sprintf(
		"Restart nothing yet: while the records of %s miss addresses in use, whatever is restarted gets the next duplicate. %s prints what puts them right: do that first.",
		callPool(why.pools[0]), fixPlan)}
	if wrong := why.wrong; len(wrong) > 0 {
		kept := "the other one"
		for i := range c.Owners {
			if o := &c.Owners[i]; !slices.Contains(wrong, o) {
				kept = o.name()
			}
		}
		steps = append(steps, fmt.Sprintf("Then %[1]s is to get another address, and %[2]s keeps this one: IPAM has it for %[2]s, and would free it if that were deleted, while %[1]s still has it.",
			list(names(wrong)), kept))
		return append(steps, j.giveUp(wrong)...)
	}
	if second := newcomer(c.Owners); second != nil {
		return append(steps, second.cameSecond(), j.remedy(second))
	}
	return append(steps, j.choose(c)...)
}

// cameSecond says why to begin with an owner.
func (o *Owner) cameSecond() string {
	return fmt.Sprintf("%s came second: it got the address at %s, by the clock of node %s. Start with it.", capital(o.placed()), when(o.AssignedAt()), o.Node.Name)
}

// choose is what to do where nothing tells who is to keep the address.
func (j *judging) choose(c *Conflict) []string {
	steps := []string{"Decide who is to keep the address; the other one must give it up:"}
	for i := range c.Owners {
		steps = append(steps, j.remedy(&c.Owners[i]))
	}
	return steps
}

// kubernetesName is what Kubernetes calls the node of an owner, as far as that is known.
func (o *Owner) kubernetesName() string {
	if o.Pod != nil && o.Pod.Node != "" {
		return o.Pod.Node
	}
	return o.Node.label()
}

// rightNode has Calico book for the node that pods are on.
func (j *judging) rightNode(why *reason) (steps []string) {
	var done []string
	for _, o := range why.wrong {
		node := o.kubernetesName()
		if slices.Contains(done, node) {
			continue
		}
		done = append(done, node)
		if name := o.Node.CalicoNodename; name != "" && !o.sameNode(name) {
			steps = append(steps,
				fmt.Sprintf("On node %s, put right for which node Calico books (%s now): printf %%s %s > /var/lib/calico/nodename", o.Node.Name, name, quote(node)),
				"Restart Calico there, which keeps the name: "+restartCalico(node))
		} else if len(why.pools) > 0 && why.pools[0].IPAM == Calico {
			steps = append(steps, fmt.Sprintf("On node %s, see for which node Calico books: cat /var/lib/calico/nodename. If that is not %s: printf %%s %s > /var/lib/calico/nodename, and restart Calico there: %s",
				o.Node.Name, node, quote(node), restartCalico(node)))
		}
	}
	for _, o := range why.wrong {
		steps = append(steps, fmt.Sprintf("IPAM has no right record of %s: it must ask for an address anew. %s", o.name(), j.remedy(o)))
	}
	return append(steps, fmt.Sprintf("See what else is booked elsewhere before it is freed, too: `ipwitness audit` names it, and %s what to do. Restart those pods next.", fixPlan))
}

// restartCalico restarts calico-node on a node, whichever way it was installed.
func restartCalico(node string) string {
	return "kubectl delete pod -A -l k8s-app=calico-node --field-selector " + quote("spec.nodeName="+node)
}

// rangesApart gives one of two nodes another range.
func rangesApart(c *Conflict, why *reason) []string {
	node, config, device, who := why.nodes[1], "", "", ""
	if second := newcomer(c.Owners); second != nil && slices.Contains(why.nodes, second.Node) {
		node, who = second.Node, ", where the address was given last"
	}
	for _, s := range why.networks {
		if s.node == node {
			device = s.device
			if s.pool != nil {
				config, device = s.pool.Config, cmp.Or(device, s.pool.Device)
			}
		}
	}
	name := node.label()
	steps := []string{fmt.Sprintf("One of nodes %s must get another range: %s%s. Move its pods away first: kubectl drain --ignore-daemonsets %s",
		list(nodeNames(why.nodes)), node.Name, who, argument(name))}
	if why.kubernetes {
		steps = append(steps,
			fmt.Sprintf("Node.spec.podCIDR cannot be changed, so the node is to be made anew: kubectl delete node %s", argument(name)),
			fmt.Sprintf("On node %s, have it register again; the controller manager gives it a range that is free: systemctl restart kubelet", node.Name))
		if device != "" {
			steps = append(steps, fmt.Sprintf("On node %s, take the bridge away that still has the old range, once no pod is on it: ip link del dev %s", node.Name, quote(device)))
		}
		return append(steps, "See that its range is another one now: kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDR:.spec.podCIDRs")
	}
	return append(steps,
		fmt.Sprintf("On node %s, write a range into %s that no other node has (subnet, in the section ipam).", node.Name, cmp.Or(config, "its configuration in /etc/cni/net.d")),
		fmt.Sprintf("Let pods come again: kubectl uncordon %s", argument(name)))
}

// nodeNames names nodes.
func nodeNames(nodes []*Node) []string {
	words := make([]string, 0, len(nodes))
	for _, n := range nodes {
		words = append(words, n.Name)
	}
	return words
}

// renumber gives one of two networks another range.
func (j *judging) renumber(c *Conflict, why *reason) []string {
	keep, change := why.networks[0], why.networks[1]
	second := newcomer(c.Owners)
	if second != nil && second.ID == why.at[0].ID {
		keep, change = change, keep
	}
	steps := []string{fmt.Sprintf("Give %s another range than %s: %s.", change, keep, change.configuration())}
	steps = append(steps, "Then have what is on it ask for new addresses, this one first:")
	for i, s := range why.networks {
		if s == change {
			steps = append(steps, j.remedy(why.at[i]))
		}
	}
	return steps
}

// configuration is where the range of a side is written.
func (s side) configuration() string {
	switch {
	case s.pool != nil && s.pool.Config != "":
		return "it is written in " + s.pool.Config + on(s.node)
	case s.network == "" && madeByDocker(s.device):
		return "of docker0 it is bip in /etc/docker/daemon.json; networks that docker, podman or libvirt made are made anew with another one (docker network create --subnet)"
	case s.network != "":
		return "the configuration in /etc/cni/net.d with the name " + s.network + " has it" + on(s.node) + ", or the NetworkAttachmentDefinition"
	}
	return "whatever made " + s.device + " has it"
}

func on(n *Node) string {
	if n == nil {
		return ""
	}
	return " on node " + n.Name
}

// outOfRange is what to do where an address that was set by hand is to stay.
func outOfRange(why *reason) string {
	how := "out of the range that IPAM gives addresses from"
	if len(why.pools) > 0 {
		p := why.pools[0]
		where := after(" in ", p.Config)
		switch p.IPAM {
		case HostLocal:
			how = "out of the ranges of host-local (rangeStart and rangeEnd" + where + ")"
		case Whereabouts:
			how = "into exclude of whereabouts" + where
		case Calico:
			how = "into an IPReservation of Calico"
		}
	}
	return fmt.Sprintf("If it is to have the address, take that %s, and restart the pod instead: it gets another one then.", how)
}

// leaveDevice has a pod leave the address to the node's device, or the other way round
// where IPAM has it for the pod.
func (j *judging) leaveDevice(c *Conflict, why *reason) []string {
	o := why.wrong[0]
	if o.kind() != Host {
		steps := []string{fmt.Sprintf("The node needs the address of its device, so %s must give it up.", o.name())}
		if len(c.Allocations) > 0 || len(why.pools) > 0 {
			steps = append(steps, fmt.Sprintf("If IPAM takes the address for free, it will give it out again: %s prints what puts that right.", fixPlan))
		}
		return append(steps, j.remedy(o))
	}
	return []string{
		fmt.Sprintf("IPAM has the address for a pod, and not for %s of node %s: the device must get another one.", o.Interface.Name, o.Node.Name),
		"Restart Calico there: it asks IPAM for an address for its tunnel that is free: " + restartCalico(o.Node.label()),
	}
}

// goOutside finds a device that is no node's.
func (j *judging) goOutside(why *reason) (steps []string) {
	for _, o := range why.wrong {
		if why.uncovered {
			steps = append(steps, fmt.Sprintf("First see whether the MAC is that of a node without an agent, or of what runs there (`ipwitness nodes` lists those that have one). There: ip -br link | grep -i %s", quote(o.MAC.String())))
		}
		steps = append(steps, j.remedy(o))
	}
	return append(steps, "Restarting a pod or a node of yours changes nothing while the device has the address.")
}

// label is the node's name without what tells it from a node of the same name.
func (n *Node) label() string {
	name, _, _ := strings.Cut(n.Name, "@")
	return name
}
