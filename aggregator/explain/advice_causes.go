package explain

import (
	"cmp"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// The remedies of conflicts with a known cause. The steps are ordered so that none creates
// another duplicate and none takes the address from its rightful owner.

// recordsFirst puts records right before anything asks for an address.
func (a *advising) recordsFirst(owners []*verdict.Owner) []Action {
	p := a.c.From[0]
	part := "sh plan.sh cluster"
	if p.Node != nil {
		part = "sh plan.sh node " + quote(p.Node.Name)
	}
	steps := []Action{
		say("Restart nothing yet: while the records of %s miss addresses in use, whatever is restarted gets the next duplicate. Make the plan that puts them right.", poolTitle(p.Label())).by("", makePlan),
		say("Read plan.sh, and run it as it says before anything is restarted: `%s`, if it has that part.", part),
	}
	return append(steps, a.decide(owners)...)
}

// rightNode has Calico book for the node that pods are on.
func (a *advising) rightNode(owners []*verdict.Owner) (steps []Action) {
	var done []string
	for _, o := range a.wrong() {
		node := kubernetesName(o)
		if slices.Contains(done, node) {
			continue
		}
		done = append(done, node)
		put := "printf %s " + quote(node) + " > " + calicoNodename
		if name := o.Node.CalicoNodename; name != "" && !o.OnNode(name) {
			steps = append(steps,
				say("On node %s, put right for which node Calico books (%s now).", o.Node.Name, name).by(o.Node.Name, put),
				say("Restart Calico on node %s: it keeps the name.", o.Node.Name).by("", restartCalicoNode(node)))
		} else if len(a.c.From) > 0 && a.c.From[0].IPAM == verdict.Calico {
			steps = append(steps, say("On node %s, see for which node Calico books: cat %s", o.Node.Name, calicoNodename).or(
				either("it says "+node, say("Leave it as it is.")),
				either("it says something else",
					say("Put it right.").by(o.Node.Name, put),
					say("Restart Calico on node %s: it keeps the name.", o.Node.Name).by("", restartCalicoNode(node))),
			))
		}
	}
	keep, right := a.c.Rightful(owners)
	rivals := those(owners, func(o *verdict.Owner) bool { return !slices.Contains(a.c.Wrong, o.ID) })
	if keep == nil && len(rivals) == 1 {
		keep, right = rivals[0], verdict.RightIntent // the cause says that it was given the address
	}
	if keep != nil {
		steps = append(steps, a.keep(keep, right, owners)...)
	} else {
		steps = append(steps, a.choice(owners))
	}
	return append(steps, say("See what else IPAM has for another node or pod, before it frees that, too, and restart those pods one after the other.").by("", "ipwitness audit"))
}

// rangesApart gives one of two nodes another range.
func (a *advising) rangesApart(owners []*verdict.Owner) []Action {
	one, other := a.c.Networks[0].Node, a.c.Networks[1].Node
	if keep, right := a.c.Rightful(owners); keep != nil && (keep.Node.Key() == one || keep.Node.Key() == other) {
		if keep.Node.Key() == other {
			one, other = other, one
		}
		leave := say("Leave node %s as it is: %s on it keeps the address (%s). Node %s must get another range of addresses of pods.", one.Name, OwnerName(keep), a.because(keep, right), other.Name)
		return append([]Action{leave}, a.anotherRange(other)...)
	}
	return []Action{say("Decide which of nodes %s gets another range of addresses of pods: nothing that is known decides it. All of its pods must move, so choose the one of which that is easier.", list([]string{one.Name, other.Name})).or(
		either("node "+one.Name+" keeps its range", a.anotherRange(other)...),
		either("node "+other.Name+" keeps its range", a.anotherRange(one)...),
	)}
}

// anotherRange returns the steps that give a node another range. Nothing runs on the node
// meanwhile.
func (a *advising) anotherRange(node verdict.NodeKey) []Action {
	config, device := "", ""
	for _, s := range a.c.Networks {
		if s.Node == node {
			device = s.Device
			if s.Pool != nil {
				config, device = s.Pool.Config, cmp.Or(device, s.Pool.Device)
			}
		}
	}
	name := plainName(node.Name)
	steps := []Action{say("Move the pods of node %s away.", node.Name).by("", "kubectl drain --ignore-daemonsets "+argument(name))}
	var bridge []Action
	if device != "" {
		bridge = []Action{say("On node %s, take the bridge away that still has the old range, once no pod is on it: the CNI plugin makes it anew.", node.Name).by(node.Name, "ip link del dev "+quote(device))}
	}
	if a.c.Kubernetes {
		steps = append(steps,
			say("Node.spec.podCIDR cannot be changed, so the node is to be made anew.").by("", "kubectl delete node "+argument(name)),
			say("On node %s, have it register again; the controller manager gives it a range that is free.", node.Name).by(node.Name, "systemctl restart kubelet"))
		steps = append(steps, bridge...)
		return append(steps, say("See that its range is another one now.").by("", "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDR:.spec.podCIDRs"))
	}
	steps = append(steps, say("On node %s, write a range into %s that no other node has (subnet, in the section ipam).", node.Name, cmp.Or(config, "its configuration in /etc/cni/net.d")))
	steps = append(steps, bridge...)
	return append(steps, say("Let pods come again to node %s.", node.Name).by("", "kubectl uncordon "+argument(name)))
}

// renumber gives one of two networks another range.
func (a *advising) renumber(owners []*verdict.Owner) []Action {
	x, y := a.c.Networks[0], a.c.Networks[1]
	one, other := a.c.Owner(x.Owner), a.c.Owner(y.Owner)
	switch keep, right := a.c.Rightful(owners); {
	case keep == one && keep != nil:
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(one), a.because(one, right))}, a.another(y, x, other)...)
	case keep == other && keep != nil:
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(other), a.because(other, right))}, a.another(x, y, one)...)
	}
	return []Action{say("Decide which of the two networks gets another range: nothing that is known decides it. Whatever is on it must ask for a new address, so choose the one of which that is easier.").or(
		either(sideName(x)+" keeps its range", a.another(y, x, other)...),
		either(sideName(y)+" keeps its range", a.another(x, y, one)...),
	)}
}

// another returns the steps that give a network a range different from that of a second
// network. Its workloads then get new addresses, beginning with an owner of the conflict.
func (a *advising) another(change, keep verdict.Origin, first *verdict.Owner) []Action {
	steps := []Action{say("Give %s another range than %s: %s.", sideText(change), sideText(keep), configuration(change))}
	steps = append(steps, giveUp(first, a.address)...)
	rest := say("Restart what else is on %s, so that it asks for a new address.", sideName(change))
	if change.Network == "" || change.Device == "" {
		return append(steps, rest)
	}
	return append(steps, rest,
		say("Take the bridge away that still has the old range, once nothing is on it any more: the CNI plugin makes it anew. What is started meanwhile waits for that.").by(change.Node.Name, "ip link del dev "+quote(change.Device)))
}

// configuration says where the range of a side is written.
func configuration(s verdict.Origin) string {
	switch {
	case s.Pool != nil && s.Pool.Config != "":
		return "it is written in " + s.Pool.Config + " on node " + s.Node.Name
	case s.Network == "" && verdict.MadeByEngine(s.Device):
		return "of docker0 it is bip in /etc/docker/daemon.json; networks that docker, podman or libvirt made are made anew with another one (docker network create --subnet)"
	case s.Network != "":
		return "the configuration in /etc/cni/net.d with the name " + s.Network + " has it on node " + s.Node.Name + ", or the NetworkAttachmentDefinition"
	}
	return "whatever made " + s.Device + " has it"
}

// sideText names what an owner has the address from, and its range.
func sideText(s verdict.Origin) string {
	if ranges := rangesText(s.Ranges); ranges != "" {
		return sideName(s) + " (" + ranges + ")"
	}
	return sideName(s)
}

// setByHand returns the steps for an address that was set by hand: remove it, or, if it must
// stay, exclude it from the range of IPAM.
func (a *advising) setByHand(owners []*verdict.Owner) []Action {
	wrong := a.wrong()
	byHand := func(o *verdict.Owner) bool { return slices.Contains(wrong, o) }
	given := those(owners, func(o *verdict.Owner) bool { return !byHand(o) })
	var gone []Action
	for _, o := range wrong {
		if o.Kind() == verdict.Pod && !shown(o) {
			gone = append(gone, say("Find what sets the address by hand in %s (a script, an init container), and have it stop: it would set it again.", OwnerName(o)))
		}
		gone = append(gone, giveUp(o, a.address)...)
	}
	if len(given) > 1 {
		gone = append(gone, a.decide(given)...)
	}
	if a.c.Gateway {
		return append([]Action{say("Leave %s as it is: pods reach other networks through this address.", list(ownerNames(given)))}, gone...)
	}
	keep, right := a.c.Rightful(owners)
	// Clients outside may use the address of a node or a machine, which ipwitness cannot see.
	firm := slices.ContainsFunc(wrong, func(o *verdict.Owner) bool {
		return o.Kind() == verdict.Host || o.Namespace == nil || o.Guest() != verdict.NoGuest
	})
	if keep != nil && !byHand(keep) && !firm {
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}, gone...)
	}
	pods := either(list(ownerNames(given))+" keeps the address, as IPAM gives it to pods", gone...)
	hand := either(list(ownerNames(wrong))+" cannot do without this very address", a.insteadOf(given)...)
	s := say("Decide whether %s can have another address: whoever set it there by hand can tell, and whoever reaches it by the address.", list(ownerNames(wrong)))
	return []Action{s.or(pods, hand)}
}

// insteadOf returns the steps by which some owners give the address up to an owner without an
// allocation. IPAM must not allocate the address again.
func (a *advising) insteadOf(owners []*verdict.Owner) []Action {
	steps := outOfRange(a.c.From, a.c.Address)
	for _, o := range owners {
		steps = append(steps, giveUp(o, a.address)...)
	}
	return steps
}

// leaveDevice has a pod leave the address to the node's device, or the other way round
// where IPAM has it for the pod.
func (a *advising) leaveDevice(owners []*verdict.Owner) []Action {
	ofNode := func(o *verdict.Owner) bool { return o.Kind() == verdict.Host }
	devices, pods := those(owners, ofNode), those(owners, func(o *verdict.Owner) bool { return !ofNode(o) })
	keep, right := a.c.Rightful(owners)
	if keep != nil && ofNode(keep) && a.c.Title(keep).Allocated() {
		return a.keep(keep, right, owners)
	}
	var another []Action
	for _, o := range devices {
		if o.Interface.Tunnel() != "" && a.ofCalico() {
			another = append(another, say("Restart Calico on node %s: it asks IPAM for another address for its %s, as this one is a pod's.", o.Node.Name, o.Interface.Name).by("", restartCalicoNode(plainName(o.Node.Name))))
			continue
		}
		another = append(another, say("Give %s of node %s another address where that is configured.", o.Interface.Name, o.Node.Name))
		another = append(another, giveUp(o, a.address)...)
	}
	if len(pods) > 1 {
		another = append(another, a.decide(pods)...)
	}
	if keep != nil && right == verdict.RightAllocation && a.ofCalico() {
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}, another...)
	}
	pod := either(list(ownerNames(pods))+" keeps the address, and the device gets another one", another...)
	device := either("the device cannot do without this very address", a.insteadOf(pods)...)
	s := say("Decide whether %s of node %s can have another address: whatever made it says so in its configuration, and what is reached by it (tunnels of other nodes, the gateway of pods) must learn of that.", devices[0].Interface.Name, devices[0].Node.Name)
	return []Action{s.or(pod, device)}
}

// goOutside finds a device that is no node's.
func (a *advising) goOutside(owners []*verdict.Owner) (steps []Action) {
	wrong := a.wrong()
	ours := those(owners, func(o *verdict.Owner) bool { return !slices.Contains(wrong, o) })
	var find []Action
	for _, o := range wrong {
		if a.c.Uncovered {
			find = append(find, say("First see whether the MAC is that of a node without an agent, or of what runs there: `ipwitness nodes` lists the nodes that have an agent; run this on the others.").by("", "ip -br link | grep -i "+quote(o.MAC.String())))
		}
		find = append(find, giveUp(o, a.address)...)
		find[len(find)-1].Text += " To restart a pod or a node of yours changes nothing while the device has the address."
	}
	if len(ours) > 1 {
		find = append(find, a.decide(ours)...)
	}
	if keep, right := a.c.Rightful(owners); keep != nil && slices.Contains(ours, keep) {
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}, find...)
	}
	outside := either(list(ownerNames(wrong)) + " keeps the address")
	for _, o := range ours {
		outside.Actions = append(outside.Actions, giveUp(o, a.address)...)
	}
	return []Action{say("Decide which one keeps the address: whoever manages the addresses of that LAN (its plan, its DHCP server) knows whose it is. ipwitness does not see who had it first.").or(
		either(list(ownerNames(ours))+" keeps the address", find...), outside,
	)}
}
