package explain

import (
	"cmp"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// The remedies of conflicts with a known cause. The steps are ordered so that none creates
// another duplicate and none takes the address from its rightful owner.

// recordsFirst returns the steps that repair IPAM records before any workload requests an address.
func (a *remedyBuilder) recordsFirst(owners []*verdict.Owner) []advice.Action {
	p := a.c.From[0]
	if ipamOf(p).Leases {
		return a.decide(owners)
	}
	steps := []advice.Action{
		advice.Say("Restart nothing yet: as long as the records of %s lack addresses in use, a restarted workload gets another duplicate. Generate the repair plan.", poolTitle(p.Label())).By("", advice.MakePlan),
		advice.Say("Read plan.sh, and follow its instructions before you restart anything: `%s`, if it has that part.", advice.RunPlan(nodeOf(p))),
	}
	return append(steps, a.decide(owners)...)
}

// rightNode returns the steps by which an IPAM with its own name for each node allocates addresses
// for the node that pods run on.
func (a *remedyBuilder) rightNode(owners []*verdict.Owner) (steps []advice.Action) {
	m := registry.NodeNamed()
	var done []string
	for _, o := range a.wrong() {
		node := kubernetesName(o)
		if slices.Contains(done, node) {
			continue
		}
		done = append(done, node)
		at := ipam.Place{Node: o.Node.Name, KubernetesNode: node}
		if name := o.Node.IPAMName; !o.OnNode(name.Name) {
			at.WrongName = name
		}
		if at.WrongName.Name != "" || len(a.c.From) > 0 && a.c.From[0].IPAM == m.Name {
			steps = append(steps, m.RightName(at)...)
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
	return append(steps, advice.Say("Find the other addresses that IPAM has allocated to a wrong node or pod, and restart their pods one after the other before IPAM frees those addresses, too.").By("", "ipwitness audit"))
}

// rangesApart returns the steps that give one of two nodes a different range.
func (a *remedyBuilder) rangesApart(owners []*verdict.Owner) []advice.Action {
	if _, name := a.c.Definition(); name != "" {
		return a.anotherIPAM(owners)
	}
	if x, y := objectSide(a.c.Networks[0]), objectSide(a.c.Networks[1]); x != nil && y != nil && len(x.nodeRanges().Reassign) > 0 {
		return x.reassigned(*y)
	}
	one, other := a.c.Networks[0].Node, a.c.Networks[1].Node
	if keep, right := a.c.Rightful(owners); keep != nil && (keep.Node.Key() == one || keep.Node.Key() == other) {
		if keep.Node.Key() == other {
			one, other = other, one
		}
		leave := advice.Say("Leave node %s as it is: %s on it keeps the address (%s). Node %s must get a different pod CIDR.", one.Name, OwnerName(keep), a.because(keep, right), other.Name)
		return append([]advice.Action{leave}, a.anotherRange(other)...)
	}
	return []advice.Action{advice.Say("Decide which of nodes %s gets a different pod CIDR: ipwitness has no information that decides it. All pods of that node must move, so choose the node where that is easier.", list([]string{one.Name, other.Name})).Or(
		advice.Either("node "+one.Name+" keeps its range", a.anotherRange(other)...),
		advice.Either("node "+other.Name+" keeps its range", a.anotherRange(one)...),
	)}
}

// anotherIPAM returns the steps that give a NetworkAttachmentDefinition an IPAM of the whole cluster.
func (a *remedyBuilder) anotherIPAM(owners []*verdict.Owner) []advice.Action {
	namespace, name := a.c.Definition()
	steps := []advice.Action{
		advice.Say("Give NetworkAttachmentDefinition %s/%s an IPAM that allocates for the whole cluster, such as whereabouts: now each node allocates from the same range by itself, "+
			"and the nodes share a LAN. Configure a range without addresses in use, because the new IPAM does not know which addresses running pods have.", namespace, name).
			By("", "kubectl edit network-attachment-definitions.k8s.cni.cncf.io -n "+advice.Argument(namespace)+" "+advice.Argument(name)),
	}
	steps = append(steps, a.decide(owners)...)
	return append(steps, advice.Say("Restart the other pods of this network, one after the other: until then they have addresses that pods on other nodes may get."))
}

// anotherRange returns the steps that give a node a different range. They drain the node first.
func (a *remedyBuilder) anotherRange(node verdict.NodeKey) []advice.Action {
	config, device := "", ""
	for _, s := range a.c.Networks {
		if s.Node == node {
			if object := objectSide(s); object != nil {
				return append([]advice.Action{object.nodeRanges().Check}, object.reregistered(object.nodeRanges().Renewed)...)
			}
			device = s.Device
			if s.Pool != nil {
				config, device = s.Pool.Config, cmp.Or(device, s.Pool.Device)
			}
		}
	}
	name := plainName(node.Name)
	steps := []advice.Action{advice.Say("Drain node %s.", node.Name).By("", "kubectl drain --ignore-daemonsets "+advice.Argument(name))}
	var bridge []advice.Action
	if device != "" {
		bridge = []advice.Action{advice.Say("On node %s, delete the bridge that still has the old range when no pod is attached to it: the CNI plugin creates it again.", node.Name).By(node.Name, "ip link del dev "+advice.Quote(device))}
	}
	if a.c.Kubernetes {
		steps = append(steps,
			advice.Say("Node.spec.podCIDR cannot be changed, so the node object must be recreated. Delete it.").By("", "kubectl delete node "+advice.Argument(name)),
			advice.Say("On node %s, restart the kubelet so that the node registers again; the controller manager assigns it a free range.", node.Name).By(node.Name, "systemctl restart kubelet"))
		steps = append(steps, bridge...)
		return append(steps, advice.Say("Check that the node has a different range now.").By("", "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDR:.spec.podCIDRs"))
	}
	steps = append(steps, advice.Say("On node %s, write a range that no other node has into %s (subnet, in the section ipam).", node.Name, cmp.Or(config, "its configuration in /etc/cni/net.d")))
	steps = append(steps, bridge...)
	return append(steps, advice.Say("Allow pods on node %s again.", node.Name).By("", "kubectl uncordon "+advice.Argument(name)))
}

// objectSide returns the range of a node if an IPAM assigns it in an object of the cluster; nil
// otherwise.
func objectSide(s verdict.Origin) *side {
	if p := s.Pool; p != nil && p.OfNode() {
		return &side{Node: s.Node.Name, Ranges: p.Ranges, Source: verdict.SideNodeObject, IPAM: p.IPAM, Grows: p.Grows}
	}
	return nil
}

// renumber returns the steps that give one of two networks a different range.
func (a *remedyBuilder) renumber(owners []*verdict.Owner) []advice.Action {
	x, y := a.c.Networks[0], a.c.Networks[1]
	one, other := a.c.Owner(x.Owner), a.c.Owner(y.Owner)
	switch keep, right := a.c.Rightful(owners); {
	case keep == one && keep != nil:
		return append([]advice.Action{advice.Say("Leave %s as it is. It keeps the address: %s.", placed(one), a.because(one, right))}, a.another(y, x, other)...)
	case keep == other && keep != nil:
		return append([]advice.Action{advice.Say("Leave %s as it is. It keeps the address: %s.", placed(other), a.because(other, right))}, a.another(x, y, one)...)
	}
	return []advice.Action{advice.Say("Decide which of the two networks gets a different range: ipwitness has no information that decides it. Every workload on that network must request a new address, so choose the network where that is easier.").Or(
		advice.Either(sideName(x)+" keeps its range", a.another(y, x, other)...),
		advice.Either(sideName(y)+" keeps its range", a.another(x, y, one)...),
	)}
}

// another returns the steps that give a network a different range than a second network. Its
// workloads then get new addresses, beginning with an owner of the conflict.
func (a *remedyBuilder) another(change, keep verdict.Origin, first *verdict.Owner) []advice.Action {
	steps := []advice.Action{advice.Say("Give %s a different range than %s: %s.", sideText(change), sideText(keep), configuration(change))}
	steps = append(steps, release(first, a.address)...)
	rest := advice.Say("Restart all other workloads on %s, so that they request new addresses.", sideName(change))
	if change.Network == "" || change.Device == "" {
		return append(steps, rest)
	}
	return append(steps, rest,
		advice.Say("Delete the bridge that still has the old range when nothing is attached to it: the CNI plugin creates it again. Workloads that start in the meantime wait for that.").By(change.Node.Name, "ip link del dev "+advice.Quote(change.Device)))
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
func (a *remedyBuilder) setByHand(owners []*verdict.Owner) []advice.Action {
	wrong := a.wrong()
	byHand := func(o *verdict.Owner) bool { return slices.Contains(wrong, o) }
	given := those(owners, func(o *verdict.Owner) bool { return !byHand(o) })
	var gone []advice.Action
	for _, o := range wrong {
		if o.Kind() == verdict.Pod && !shown(o) {
			gone = append(gone, advice.Say("Find what sets the address in %s (a script, an init container), and stop it: otherwise it would set the address again.", OwnerName(o)))
		}
		gone = append(gone, release(o, a.address)...)
	}
	if len(given) > 1 {
		gone = append(gone, a.decide(given)...)
	}
	if a.c.Gateway {
		return append([]advice.Action{advice.Say("Leave %s as it is: pods reach other networks through this address.", list(ownerNames(given)))}, gone...)
	}
	keep, right := a.c.Rightful(owners)
	// External clients may use the address of a node or a machine, which ipwitness cannot see.
	firm := slices.ContainsFunc(wrong, func(o *verdict.Owner) bool {
		return o.Kind() == verdict.Host || o.Namespace == nil || o.Guest() != verdict.NoGuest
	})
	byDHCP := slices.ContainsFunc(given, a.leased)
	if keep != nil && !byHand(keep) && !firm && !byDHCP {
		return append([]advice.Action{advice.Say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}, gone...)
	}
	because := "because IPAM allocates it to pods"
	if byDHCP {
		because = "because DHCP has leased it"
	}
	pods := advice.Either(list(ownerNames(given))+" keeps the address, "+because, gone...)
	hand := advice.Either(list(ownerNames(wrong))+" must keep this address", a.insteadOf(given)...)
	s := advice.Say("Decide whether %s can have a different address. Ask the person who set it there, and the users that connect to it.", list(ownerNames(wrong)))
	return []advice.Action{s.Or(pods, hand)}
}

// insteadOf returns the steps by which some owners give the address up to an owner without an
// allocation. They exclude the address first, so that IPAM does not allocate it again.
func (a *remedyBuilder) insteadOf(owners []*verdict.Owner) []advice.Action {
	steps := outOfRange(a.c.From, a.c.Address)
	for _, o := range owners {
		steps = append(steps, a.giveUp(o)...)
	}
	return steps
}

// leaveDevice returns the steps by which a pod gives the address up to the node's device, or the
// device gives it up if IPAM has allocated it to the pod.
func (a *remedyBuilder) leaveDevice(owners []*verdict.Owner) []advice.Action {
	ofNode := func(o *verdict.Owner) bool { return o.Kind() == verdict.Host }
	devices, pods := those(owners, ofNode), those(owners, func(o *verdict.Owner) bool { return !ofNode(o) })
	keep, right := a.c.Rightful(owners)
	if keep != nil && ofNode(keep) && a.c.Title(keep).Allocated() {
		return a.keep(keep, right, owners)
	}
	m := a.withDaemon()
	var another []advice.Action
	for _, o := range devices {
		if o.Interface.Tunnel() != "" && m != nil {
			another = append(another, advice.Say("Restart %s on node %s: it requests a different address for its %s from IPAM, because this one belongs to a pod.", m.Title, o.Node.Name, o.Interface.Name).By("", m.Daemon.Restart(plainName(o.Node.Name))))
			continue
		}
		another = append(another, advice.Say("Give %s of node %s a different address where it is configured.", o.Interface.Name, o.Node.Name))
		another = append(another, release(o, a.address)...)
	}
	if len(pods) > 1 {
		another = append(another, a.decide(pods)...)
	}
	if keep != nil && right == verdict.RightAllocation && m != nil {
		return append([]advice.Action{advice.Say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}, another...)
	}
	pod := advice.Either(list(ownerNames(pods))+" keeps the address, and the device gets a different one", another...)
	device := advice.Either("the device must keep this address", a.insteadOf(pods)...)
	s := advice.Say("Decide whether %s of node %s can have a different address. Check the configuration of the software that created the device, and consider what depends on the address (tunnels of other nodes, the gateway of pods).", devices[0].Interface.Name, devices[0].Node.Name)
	return []advice.Action{s.Or(pod, device)}
}

// goOutside returns the steps that find a device outside all nodes.
func (a *remedyBuilder) goOutside(owners []*verdict.Owner) (steps []advice.Action) {
	wrong := a.wrong()
	ours := those(owners, func(o *verdict.Owner) bool { return !slices.Contains(wrong, o) })
	var find []advice.Action
	for _, o := range wrong {
		if a.c.Uncovered {
			find = append(find, advice.Say("First check whether the MAC belongs to a node without an agent or to a workload there: `ipwitness nodes` lists the nodes that have an agent; run this command on the other nodes.").By("", "ip -br link | grep -i "+advice.Quote(o.MAC.String())))
		}
		find = append(find, release(o, a.address)...)
		find[len(find)-1].Text += " Restarting your pods or nodes changes nothing as long as the device has the address."
	}
	if len(ours) > 1 {
		find = append(find, a.decide(ours)...)
	}
	if keep, right := a.c.Rightful(owners); keep != nil && slices.Contains(ours, keep) {
		return append([]advice.Action{advice.Say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}, find...)
	}
	outside := advice.Either(list(ownerNames(wrong)) + " keeps the address")
	for _, o := range ours {
		outside.Actions = append(outside.Actions, a.giveUp(o)...)
	}
	return []advice.Action{advice.Say("Decide which one keeps the address. Ask the administrator of that LAN (address plan, DHCP server) which one it belongs to: ipwitness cannot see which one had it first.").Or(
		advice.Either(list(ownerNames(ours))+" keeps the address", find...), outside,
	)}
}
