package explain

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Remedies of virtual addresses, which move between nodes.

// buildHeldElsewhere builds the text of the finding that a node holds a virtual address that its
// controller assigns to another node.
func buildHeldElsewhere(t *findingBuilder) {
	al, title := t.allocation, ipamOf(t.pool).Title
	var wrong []*verdict.Owner
	var right *verdict.Owner
	for i := range t.f.Owners {
		if o := &t.f.Owners[i]; o.OnNode(al.Node) {
			right = o
		} else {
			wrong = append(wrong, o)
		}
	}
	names := list(each(wrong, func(o **verdict.Owner) string { return placed(*o) }))
	t.Summary = title + " assigns " + t.f.Address.String() + " (" + al.Purpose + ") to node " + al.Node + ", but " + names + " " + hold(len(wrong)) + " it."
	t.State("According to %s, %s assigns the address to node %s.", allocationPlace(al), title, al.Node)
	for i := range t.f.Owners {
		t.State("%s", holdsBy(&t.f.Owners[i], t.f.Address))
	}
	var steps []advice.Action
	for _, o := range wrong {
		steps = append(steps, giveUp(o, t.f.Address, t.pool)...)
	}
	if right != nil {
		t.Act(advice.Say("Leave %s as it is: it is to keep the address.", placed(right)))
		t.Act(steps...)
	} else {
		t.Act(advice.Say("Find out whether node %s answers for the address, or will as soon as no other node has it: neither its kernel nor a frame shows that, and no other node is to answer. The log of %s there says it.", al.Node, title).Or(
			advice.Either("node "+al.Node+" answers for it, or will", steps...),
			advice.Either("it will not", advice.Say("Leave %s as it is for now: it is the only one that has the address. Repair %s on node %s first.", names, title, al.Node)),
		))
	}
	t.Act(advice.Say("The finding ends by itself when no node but %s holds the address. Check that it has ended.", al.Node).By("", "ipwitness audit "+t.f.Address.String()))
}

// hold returns the verb of one or several holders.
func hold(n int) string {
	if n == 1 {
		return "holds"
	}
	return "hold"
}

// holdsBy says how an owner is known to hold an address.
func holdsBy(o *verdict.Owner, a netip.Addr) string {
	if o.Assigned {
		return "The kernel of node " + o.Node.Name + " has " + a.String() + " on " + o.Interface.Name + "."
	}
	var last *verdict.Claim
	for _, c := range o.Claims {
		if c.Wire() && !c.Weak() && (last == nil || c.Seen > last.Seen) {
			last = c
		}
	}
	return "Node " + o.Node.Name + " claimed " + a.String() + " on the wire, as seen on " + witness(last) + " most recently at " + stampText(last.Last) + " by the clock of that node."
}

// giveUp returns the steps by which a node gives a virtual address up. p is the pool of the controller
// that assigns the address to another node; nil if there is none.
func giveUp(o *verdict.Owner, a netip.Addr, p *verdict.Pool) (steps []advice.Action) {
	if p != nil {
		if of := ipamOf(p).GiveUp; of != nil {
			steps = of(kubernetesName(o))
		}
	}
	if shown(o) && len(steps) > 0 {
		return steps
	}
	for _, c := range o.Claims {
		if c.Counts() {
			steps = append(steps, removeVIP(o, c, a))
		}
	}
	if len(steps) == 0 {
		return release(o, a)
	}
	return steps
}

// removeVIP returns the action that removes a virtual address from an interface of a node.
func removeVIP(o *verdict.Owner, c *verdict.Claim, a netip.Addr) advice.Action {
	del := unassign(o, c, a)
	return advice.Say("If node %s still has the address on %s, remove it.", o.Node.Name, c.Interface.Name).By(del.Node, del.Command)
}

// movedTo returns the steps by which the node that is to have a virtual address keeps it and the others
// give it up.
func (a *remedyBuilder) movedTo(keep *verdict.Owner, right verdict.Right, owners []*verdict.Owner) []advice.Action {
	p := a.c.Title(keep).Controller
	steps := []advice.Action{advice.Say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))}
	var restart []advice.Action
	for _, o := range except(owners, keep) {
		router := ""
		if right == verdict.RightProgram {
			router = routerOfFRR(o)
		}
		switch {
		case router != "":
			steps = append(steps, advice.Say("Find out why vrrpd has ended on node %s, and start it again. While another router is master, it takes the carrier of %s away. "+
				"Leave the address on that interface: FRR expects it there, and would otherwise become master without it.", o.Node.Name, router))
			continue
		case right == verdict.RightProgram:
			restart = append(restart, advice.Say("Find out why %s has ended on node %s without removing the address, and start it again.", o.Node.VIPProgram, o.Node.Name))
		}
		steps = append(steps, giveUp(o, a.address, p)...)
	}
	return append(steps, restart...)
}

// routerOfFRR returns the name of the interface on which a node has a virtual address for the vrrpd of
// FRR; empty if there is none. FRR moves the address by the carrier of this interface.
func routerOfFRR(o *verdict.Owner) string {
	for _, c := range o.Claims {
		if i := c.Interface; c.Counts() && o.Node.VIPProgram == "vrrpd" && i.Kind == "macvlan" && i.MAC.Virtual() {
			return i.Name
		}
	}
	return ""
}
