package verdict

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// The remedies of conflicts with a known cause. The steps are ordered so that none creates
// another duplicate and none takes the address from its rightful owner.

// makePlan is the command that writes a script which repairs IPAM.
const makePlan = "ipwitness audit --fix-plan > plan.sh"

// recordsFirst puts records right before anything asks for an address.
func (q *inquiry) recordsFirst(owners []*Owner, why *reason) []Action {
	p := why.pools[0]
	part := "sh plan.sh cluster"
	if p.Node != nil {
		part = "sh plan.sh node " + quote(p.Node.Name)
	}
	steps := []Action{
		say("Restart nothing yet: while the records of %s miss addresses in use, whatever is restarted gets the next duplicate. Make the plan that puts them right.", callPool(p)).by("", makePlan),
		say("Read plan.sh, and run it as it says before anything is restarted: `%s`, if it has that part.", part),
	}
	return append(steps, q.decide(owners)...)
}

// kubernetesName is what Kubernetes calls the node of an owner, as far as that is known.
func (o *Owner) kubernetesName() string {
	if o.Pod != nil && o.Pod.Node != "" {
		return o.Pod.Node
	}
	return o.Node.label()
}

// rightNode has Calico book for the node that pods are on.
func (q *inquiry) rightNode(owners []*Owner, why *reason) (steps []Action) {
	var done []string
	for _, o := range why.wrong {
		node := o.kubernetesName()
		if slices.Contains(done, node) {
			continue
		}
		done = append(done, node)
		put := "printf %s " + quote(node) + " > " + calicoNodename
		if name := o.Node.CalicoNodename; name != "" && !o.OnNode(name) {
			steps = append(steps,
				say("On node %s, put right for which node Calico books (%s now).", o.Node.Name, name).by(o.Node.Name, put),
				say("Restart Calico on node %s: it keeps the name.", o.Node.Name).by("", restartCalicoNode(node)))
		} else if len(why.pools) > 0 && why.pools[0].IPAM == Calico {
			steps = append(steps, say("On node %s, see for which node Calico books: cat %s", o.Node.Name, calicoNodename).or(
				either("it says "+node, say("Leave it as it is.")),
				either("it says something else",
					say("Put it right.").by(o.Node.Name, put),
					say("Restart Calico on node %s: it keeps the name.", o.Node.Name).by("", restartCalicoNode(node))),
			))
		}
	}
	keep, right := q.rightful(owners)
	rivals := those(owners, func(o *Owner) bool { return !slices.Contains(why.wrong, o) })
	if keep == nil && len(rivals) == 1 {
		keep, right = rivals[0], RightIntent // the cause says that it was given the address
	}
	if keep != nil {
		steps = append(steps, q.keep(keep, right, owners)...)
	} else {
		steps = append(steps, q.choice(owners))
	}
	return append(steps, say("See what else IPAM has for another node or pod, before it frees that, too, and restart those pods one after the other.").by("", "ipwitness audit"))
}

// rangesApart gives one of two nodes another range.
func (q *inquiry) rangesApart(owners []*Owner, why *reason) []Action {
	one, other := why.nodes[0], why.nodes[1]
	names := list(nodeNames(why.nodes))
	if keep, right := q.rightful(owners); keep != nil && (keep.Node.Is(one) || keep.Node.Is(other)) {
		if keep.Node.Is(other) {
			one, other = other, one
		}
		leave := say("Leave node %s as it is: %s on it keeps the address (%s). Node %s must get another range of addresses of pods.", one.Name, keep.name(), q.because(keep, right), other.Name)
		return append([]Action{leave}, q.anotherRange(other, why)...)
	}
	return []Action{say("Decide which of nodes %s gets another range of addresses of pods: nothing that is known decides it. All of its pods must move, so choose the one of which that is easier.", names).or(
		either("node "+one.Name+" keeps its range", q.anotherRange(other, why)...),
		either("node "+other.Name+" keeps its range", q.anotherRange(one, why)...),
	)}
}

// anotherRange returns the steps that give a node another range. Nothing runs on the node
// meanwhile.
func (q *inquiry) anotherRange(node *Node, why *reason) []Action {
	config, device := "", ""
	for _, s := range why.networks {
		if s.node.Is(node) {
			device = s.device
			if s.pool != nil {
				config, device = s.pool.Config, cmp.Or(device, s.pool.Device)
			}
		}
	}
	name := node.label()
	steps := []Action{say("Move the pods of node %s away.", node.Name).by("", "kubectl drain --ignore-daemonsets "+argument(name))}
	var bridge []Action
	if device != "" {
		bridge = []Action{say("On node %s, take the bridge away that still has the old range, once no pod is on it: the CNI plugin makes it anew.", node.Name).by(node.Name, "ip link del dev "+quote(device))}
	}
	if why.kubernetes {
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

// nodeNames names nodes.
func nodeNames(nodes []*Node) []string {
	words := make([]string, 0, len(nodes))
	for _, n := range nodes {
		words = append(words, n.Name)
	}
	return words
}

// renumber gives one of two networks another range.
func (q *inquiry) renumber(owners []*Owner, why *reason) []Action {
	a, b := why.networks[0], why.networks[1]
	one, other := why.at[0], why.at[1]
	switch keep, right := q.rightful(owners); {
	case keep == one && keep != nil:
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", one.placed(), q.because(one, right))}, q.another(b, a, other)...)
	case keep == other && keep != nil:
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", other.placed(), q.because(other, right))}, q.another(a, b, one)...)
	}
	return []Action{say("Decide which of the two networks gets another range: nothing that is known decides it. Whatever is on it must ask for a new address, so choose the one of which that is easier.").or(
		either(a.name+" keeps its range", q.another(b, a, other)...),
		either(b.name+" keeps its range", q.another(a, b, one)...),
	)}
}

// another returns the steps that give a network a range different from that of a second
// network. Its workloads then get new addresses, beginning with an owner of the conflict.
func (q *inquiry) another(change, keep side, first *Owner) []Action {
	steps := []Action{say("Give %s another range than %s: %s.", change, keep, change.configuration())}
	steps = append(steps, q.giveUp(first)...)
	rest := say("Restart what else is on %s, so that it asks for a new address.", change.name)
	if change.network == "" || change.device == "" {
		return append(steps, rest)
	}
	return append(steps, rest,
		say("Take the bridge away that still has the old range, once nothing is on it any more: the CNI plugin makes it anew. What is started meanwhile waits for that.").by(change.node.Name, "ip link del dev "+quote(change.device)))
}

// configuration is where the range of a side is written.
func (s side) configuration() string {
	switch {
	case s.pool != nil && s.pool.Config != "":
		return "it is written in " + s.pool.Config + on(s.node)
	case s.network == "" && MadeByEngine(s.device):
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

// setByHand returns the steps for an address that was set by hand: remove it, or, if it must
// stay, exclude it from the range of IPAM.
func (q *inquiry) setByHand(owners []*Owner, why *reason) []Action {
	byHand := func(o *Owner) bool { return slices.Contains(why.wrong, o) }
	given := those(owners, func(o *Owner) bool { return !byHand(o) })
	var gone []Action
	for _, o := range why.wrong {
		if o.Kind() == Pod && !o.shown() {
			gone = append(gone, say("Find what sets the address by hand in %s (a script, an init container), and have it stop: it would set it again.", o.name()))
		}
		gone = append(gone, q.giveUp(o)...)
	}
	if len(given) > 1 {
		gone = append(gone, q.decide(given)...)
	}
	if why.gateway {
		return append([]Action{say("Leave %s as it is: pods reach other networks through this address.", list(names(given)))}, gone...)
	}
	keep, right := q.rightful(owners)
	// Clients outside may use the address of a node or a machine, which ipwitness cannot see.
	firm := slices.ContainsFunc(why.wrong, func(o *Owner) bool { return o.Kind() == Host || o.Namespace == nil || o.guest() != "" })
	if keep != nil && !byHand(keep) && !firm {
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", keep.placed(), q.because(keep, right))}, gone...)
	}
	pods := either(list(names(given))+" keeps the address, as IPAM gives it to pods", gone...)
	hand := either(list(names(why.wrong))+" cannot do without this very address", q.insteadOf(given, why)...)
	s := say("Decide whether %s can have another address: whoever set it there by hand can tell, and whoever reaches it by the address.", list(names(why.wrong)))
	return []Action{s.or(pods, hand)}
}

// insteadOf returns the steps by which some owners give the address up to an owner without an
// allocation. IPAM must not allocate the address again.
func (q *inquiry) insteadOf(owners []*Owner, why *reason) []Action {
	steps := outOfRange(why.pools, q.c.Address)
	for _, o := range owners {
		steps = append(steps, q.giveUp(o)...)
	}
	return steps
}

// outOfRange returns the steps that exclude the address from the range of IPAM.
func outOfRange(pools []*Pool, a netip.Addr) []Action {
	if len(pools) == 0 {
		return []Action{say("Take %s out of the range that IPAM gives addresses from, and wait until it has read that.", a)}
	}
	var steps []Action
	for _, p := range pools {
		where := after(" in ", p.Config)
		switch {
		case p.IPAM == HostLocal && p.Node != nil && strings.HasPrefix(p.Name, "/"):
			t := &telling{f: &Finding{Address: a}, pool: p}
			steps = append(steps, say("On node %s, have host-local leave %s out: a file of that name that is empty is freed for nobody. For good, set rangeStart and rangeEnd%s so that it is outside.", p.Node.Name, a, where).
				by(p.Node.Name, script("mkdir -p "+t.dir(), t.locked("", ": > "+t.file()))))
		case p.IPAM == Whereabouts:
			steps = append(steps, say("Take %s out of what whereabouts gives: write it into exclude%s.", a, where))
		case p.IPAM == Calico:
			steps = append(steps, say("Take %s out of what Calico gives: make an IPReservation with it (reservedCIDRs).", a))
		default:
			steps = append(steps, say("Take %s out of the range of %s%s.", a, callPool(p), where))
		}
	}
	return steps
}

// leaveDevice has a pod leave the address to the node's device, or the other way round
// where IPAM has it for the pod.
func (q *inquiry) leaveDevice(owners []*Owner, why *reason) []Action {
	ofNode := func(o *Owner) bool { return o.Kind() == Host }
	devices, pods := those(owners, ofNode), those(owners, func(o *Owner) bool { return !ofNode(o) })
	keep, right := q.rightful(owners)
	if keep != nil && ofNode(keep) && q.allocated(keep) {
		return q.keep(keep, right, owners)
	}
	var another []Action
	for _, o := range devices {
		if o.Interface.Tunnel() != "" && q.ofCalico() {
			another = append(another, say("Restart Calico on node %s: it asks IPAM for another address for its %s, as this one is a pod's.", o.Node.Name, o.Interface.Name).by("", restartCalicoNode(o.Node.label())))
			continue
		}
		another = append(another, say("Give %s of node %s another address where that is configured.", o.Interface.Name, o.Node.Name))
		another = append(another, q.giveUp(o)...)
	}
	if len(pods) > 1 {
		another = append(another, q.decide(pods)...)
	}
	if keep != nil && right == RightAllocation && q.ofCalico() {
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", keep.placed(), q.because(keep, right))}, another...)
	}
	pod := either(list(names(pods))+" keeps the address, and the device gets another one", another...)
	device := either("the device cannot do without this very address", q.insteadOf(pods, why)...)
	s := say("Decide whether %s of node %s can have another address: whatever made it says so in its configuration, and what is reached by it (tunnels of other nodes, the gateway of pods) must learn of that.", devices[0].Interface.Name, devices[0].Node.Name)
	return []Action{s.or(pod, device)}
}

// goOutside finds a device that is no node's.
func (q *inquiry) goOutside(owners []*Owner, why *reason) (steps []Action) {
	ours := those(owners, func(o *Owner) bool { return !slices.Contains(why.wrong, o) })
	var find []Action
	for _, o := range why.wrong {
		if why.uncovered {
			find = append(find, say("First see whether the MAC is that of a node without an agent, or of what runs there: `ipwitness nodes` lists the nodes that have an agent; run this on the others.").by("", "ip -br link | grep -i "+quote(o.MAC.String())))
		}
		find = append(find, q.giveUp(o)...)
		find[len(find)-1].Text += " To restart a pod or a node of yours changes nothing while the device has the address."
	}
	if len(ours) > 1 {
		find = append(find, q.decide(ours)...)
	}
	if keep, right := q.rightful(owners); keep != nil && slices.Contains(ours, keep) {
		return append([]Action{say("Leave %s as it is. It keeps the address: %s.", keep.placed(), q.because(keep, right))}, find...)
	}
	outside := either(list(names(why.wrong)) + " keeps the address")
	for _, o := range ours {
		outside.Actions = append(outside.Actions, q.giveUp(o)...)
	}
	return []Action{say("Decide which one keeps the address: whoever manages the addresses of that LAN (its plan, its DHCP server) knows whose it is. ipwitness does not see who had it first.").or(
		either(list(names(ours))+" keeps the address", find...), outside,
	)}
}

// label is the node's name without what tells it from a node of the same name.
func (n *Node) label() string {
	name, _, _ := strings.Cut(n.Name, "@")
	return name
}
