package explain

import (
	"cmp"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/calico"
)

// The remedies of conflicts with a known cause. The steps are ordered so that none creates
// another duplicate and none takes the address from its rightful owner.

// recordsFirst returns the steps that repair IPAM records before any workload requests an address.
func (a *advising) recordsFirst(owners []*verdict.Owner) []Action {
	p := a.c.From[0]
	part := "sh plan.sh cluster"
	if p.Node != nil {
		part = "sh plan.sh node " + quote(p.Node.Name)
	}
	steps := []Action{
		say("Restart nothing yet: as long as the records of %s lack addresses in use, a restarted workload gets another duplicate. Generate the repair plan.", poolTitle(p.Label())).by("", makePlan),
		say("Read plan.sh, and run it as it says before you restart anything: `%s`, if it has that part.", part),
	}
	return append(steps, a.decide(owners)...)
}

// rightNode returns the steps by which Calico allocates addresses for the node that pods run on.
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
				say("On node %s, correct the node name that Calico allocates for (currently %s).", o.Node.Name, name).by(o.Node.Name, put),
				say("Restart Calico on node %s: it reads the name only when it starts.", o.Node.Name).by("", restartCalicoNode(node)))
		} else if len(a.c.From) > 0 && a.c.From[0].IPAM == calico.Name {
			steps = append(steps, say("On node %s, check which node name Calico allocates for: cat %s", o.Node.Name, calicoNodename).or(
				either("the file contains "+node, say("Leave it as it is.")),
				either("the file contains another name",
					say("Correct the name.").by(o.Node.Name, put),
					say("Restart Calico on node %s: it reads the name only when it starts.", o.Node.Name).by("", restartCalicoNode(node))),
			))
		}
	}
	keep, right := a.c.Rightful(owners)
	rivals := those(owners, func(o *verdict.Owner) bool { return !slices.Contains(a.c.Wrong, o.ID) })
	if keep == nil && len(rivals) == 1 {
		keep, right = rivals[0], verdict.RightIntent // according to the cause, the address was assigned to it
	}
	if keep != nil {
		steps = append(steps, a.keep(keep, right, owners)...)
	} else {
		steps = append(steps, a.choice(owners))
	}
	return append(steps, say("Find the other addresses that IPAM has allocated to a wrong node or pod before it frees them, too, and restart those pods one after the other.").by("", "ipwitness audit"))
}

// rangesApart returns the steps that give one of two nodes a different range.
func (a *advising) rangesApart(owners []*verdict.Owner) []Action {
	one, other := a.c.Networks[0].Node, a.c.Networks[1].Node
	if keep, right := a.c.Rightful(owners); keep != nil && (keep.Node.Key() == one || keep.Node.Key() == other) {
		if keep.Node.Key() == other {
			one, other = other, one
		}
		leave := say("Leave node %s as it is: %s on it keeps the address (%s). Node %s must get a different pod CIDR.", one.Name, OwnerName(keep), a.because(keep, right), other.Name)
		return append([]Action{leave}, a.anotherRange(other)...)
	}
	return []Action{say("Decide which of nodes %s gets a different pod CIDR: ipwitness has no information that decides it. All pods of that node must move, so choose the node where that is easier.", list([]string{one.Name, other.Name})).or(
		either("node "+one.Name+" keeps its range", a.anotherRange(other)...),
		either("node "+other.Name+" keeps its range", a.anotherRange(one)...),
	)}
}

// anotherRange returns the steps that give a node a different range. They drain the node first.
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
	steps := []Action{say("Drain node %s.", node.Name).by("", "kubectl drain --ignore-daemonsets "+argument(name))}
	var bridge []Action
	if device != "" {
		bridge = []Action{say("On node %s, delete the bridge that still has the old range when no pod is attached to it: the CNI plugin creates it again.", node.Name).by(node.Name, "ip link del dev "+quote(device))}
	}
	if a.c.Kubernetes {
		steps = append(steps,
			say("Node.spec.podCIDR cannot be changed, so the node object must be recreated. Delete it.").by("", "kubectl delete node "+argument(name)),
			say("On node %s, restart the kubelet so that the node registers again; the controller manager assigns it a free range.", node.Name).by(node.Name, "systemctl restart kubelet"))
		steps = append(steps, bridge...)
		return append(steps, say("Check that the node has a different range now.").by("", "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDR:.spec.podCIDRs"))
	}
	steps = append(steps, say("On node %s, write a range that no other node has into %s (subnet, in the section ipam).", node.Name, cmp.Or(config, "its configuration in /etc/cni/net.d")))
	steps = append(steps, bridge...)
	return append(steps, say("Allow pods on node %s again.", node.Name).by("", "kubectl uncordon "+argument(name)))
}

// renumber returns the steps that give one of two networks a different range.
func (a *advising) renumber(owners []*verdict.Owner) []Action {
	x, y := a.c.Networks[0], a.c.Networks[1]
	one, other := a.c.Owner(x.Owner), a.c.Owner(y.Owner)
	switch keep, right := a.c.Rightful(owners); {
	case keep == one && keep != nil:
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(one), a.because(one, right))}, a.another(y, x, other)...)
	case keep == other && keep != nil:
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(other), a.because(other, right))}, a.another(x, y, one)...)
	}
	return []Action{say("Decide which of the two networks gets a different range: ipwitness has no information that decides it. Every workload on that network must request a new address, so choose the network where that is easier.").or(
		either(sideName(x)+" keeps its range", a.another(y, x, other)...),
		either(sideName(y)+" keeps its range", a.another(x, y, one)...),
	)}
}

// another returns the steps that give a network a different range than a second network. Its
// workloads then get new addresses, beginning with an owner of the conflict.
func (a *advising) another(change, keep verdict.Origin, first *verdict.Owner) []Action {
	steps := []Action{say("Give %s a different range than %s: %s.", sideText(change), sideText(keep), configuration(change))}
	steps = append(steps, giveUp(first, a.address)...)
	rest := say("Restart all other workloads on %s, so that they request new addresses.", sideName(change))
	if change.Network == "" || change.Device == "" {
		return append(steps, rest)
	}
	return append(steps, rest,
		say("Delete the bridge that still has the old range when nothing is attached to it: the CNI plugin creates it again. Workloads that start in the meantime wait for that.").by(change.Node.Name, "ip link del dev "+quote(change.Device)))
}

// configuration says where the range of a side is configured.
func configuration(s verdict.Origin) string {
	switch {
	case s.Pool != nil && s.Pool.Config != "":
		return "it is configured in " + s.Pool.Config + " on node " + s.Node.Name
	case s.Network == "" && verdict.MadeByEngine(s.Device):
		return "for docker0, change bip in /etc/docker/daemon.json; recreate a network that docker, podman or libvirt made with a different range (docker network create --subnet)"
	case s.Network != "":
		return "it is configured under the name " + s.Network + " in /etc/cni/net.d on node " + s.Node.Name + ", or in the NetworkAttachmentDefinition"
	}
	return "it is configured in the software that created " + s.Device
}

// sideText names the network or bridge that an owner has the address from, and its range.
func sideText(s verdict.Origin) string {
	if ranges := rangesText(s.Ranges); ranges != "" {
		return sideName(s) + " (" + ranges + ")"
	}
	return sideName(s)
}

// setByHand returns the steps for an address that was set by hand: remove it or, if it must stay,
// exclude it from the range of IPAM.
func (a *advising) setByHand(owners []*verdict.Owner) []Action {
	wrong := a.wrong()
	byHand := func(o *verdict.Owner) bool { return slices.Contains(wrong, o) }
	given := those(owners, func(o *verdict.Owner) bool { return !byHand(o) })
	var gone []Action
	for _, o := range wrong {
		if o.Kind() == verdict.Pod && !shown(o) {
			gone = append(gone, say("Find what sets the address in %s (a script, an init container), and stop it: otherwise it would set the address again.", OwnerName(o)))
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
	// External clients may use the address of a node or a machine, which ipwitness cannot see.
	firm := slices.ContainsFunc(wrong, func(o *verdict.Owner) bool {
		return o.Kind() == verdict.Host || o.Namespace == nil || o.Guest() != verdict.NoGuest
	})
	if keep != nil && !byHand(keep) && !firm {
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}, gone...)
	}
	pods := either(list(ownerNames(given))+" keeps the address, because IPAM allocates it to pods", gone...)
	hand := either(list(ownerNames(wrong))+" must keep this address", a.insteadOf(given)...)
	s := say("Decide whether %s can have a different address. Ask the person who set it there, and the users that connect to it.", list(ownerNames(wrong)))
	return []Action{s.or(pods, hand)}
}

// insteadOf returns the steps by which some owners give the address up to an owner without an
// allocation. They exclude the address first, so that IPAM does not allocate it again.
func (a *advising) insteadOf(owners []*verdict.Owner) []Action {
	steps := outOfRange(a.c.From, a.c.Address)
	for _, o := range owners {
		steps = append(steps, giveUp(o, a.address)...)
	}
	return steps
}

// leaveDevice returns the steps by which a pod gives the address up to the node's device, or the
// device gives it up if IPAM has allocated it to the pod.
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
			another = append(another, say("Restart Calico on node %s: it requests a different address for its %s from IPAM, because this one belongs to a pod.", o.Node.Name, o.Interface.Name).by("", restartCalicoNode(plainName(o.Node.Name))))
			continue
		}
		another = append(another, say("Give %s of node %s a different address where it is configured.", o.Interface.Name, o.Node.Name))
		another = append(another, giveUp(o, a.address)...)
	}
	if len(pods) > 1 {
		another = append(another, a.decide(pods)...)
	}
	if keep != nil && right == verdict.RightAllocation && a.ofCalico() {
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}, another...)
	}
	pod := either(list(ownerNames(pods))+" keeps the address, and the device gets a different one", another...)
	device := either("the device must keep this address", a.insteadOf(pods)...)
	s := say("Decide whether %s of node %s can have a different address. Check the configuration of the software that created the device, and consider what depends on the address (tunnels of other nodes, the gateway of pods).", devices[0].Interface.Name, devices[0].Node.Name)
	return []Action{s.or(pod, device)}
}

// goOutside returns the steps that find a device outside all nodes.
func (a *advising) goOutside(owners []*verdict.Owner) (steps []Action) {
	wrong := a.wrong()
	ours := those(owners, func(o *verdict.Owner) bool { return !slices.Contains(wrong, o) })
	var find []Action
	for _, o := range wrong {
		if a.c.Uncovered {
			find = append(find, say("First check whether the MAC belongs to a node without an agent or to a workload there: `ipwitness nodes` lists the nodes that have an agent; run this command on the other nodes.").by("", "ip -br link | grep -i "+quote(o.MAC.String())))
		}
		find = append(find, giveUp(o, a.address)...)
		find[len(find)-1].Text += " Restarting your pods or nodes changes nothing as long as the device has the address."
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
	return []Action{say("Decide which one keeps the address. Ask the administrator of that LAN (address plan, DHCP server) which one it belongs to: ipwitness cannot see which one had it first.").or(
		either(list(ownerNames(ours))+" keeps the address", find...), outside,
	)}
}
