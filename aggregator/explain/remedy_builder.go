package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// remedyBuilder builds the remedy of a conflict.
type remedyBuilder struct {
	wording
	c       *verdict.Conflict
	parties []*verdict.Owner
}

// wrong returns the owners that must give the address up according to the cause.
func (a *remedyBuilder) wrong() []*verdict.Owner {
	var found []*verdict.Owner
	for _, id := range a.c.Wrong {
		if o := a.c.Owner(id); o != nil {
			found = append(found, o)
		}
	}
	return found
}

// withDaemon returns the IPAM of the address that allocates addresses for devices of nodes, too; nil
// if there is none.
func (a *remedyBuilder) withDaemon() *ipam.IPAM {
	for _, p := range a.c.Pools {
		if m := ipamOf(p); m.Daemon.Name != "" {
			return m
		}
	}
	return nil
}

// decide returns the steps by which the rightful owner keeps the address and the other owners
// give it up. If the rightful owner is not known, it returns a choice.
func (a *remedyBuilder) decide(owners []*verdict.Owner) []advice.Action {
	if keep, right := a.c.Rightful(owners); keep != nil {
		return a.keep(keep, right, owners)
	}
	return []advice.Action{a.choice(owners)}
}

// choice returns an action that asks a person which owner keeps the address.
func (a *remedyBuilder) choice(owners []*verdict.Owner) advice.Action {
	s := advice.Say("Decide which one of them keeps the address. ipwitness has no information that decides it: no IPAM has allocated it to only one of them, and ipwitness does not know which one had it first. Ask their operators which of them clients expect at this address.")
	if len(owners) > mostKept {
		s.Text += fmt.Sprintf(" (Each of the other %d can keep it in the same way.)", len(owners)-mostKept)
	}
	for _, o := range owners[:min(len(owners), mostKept)] {
		s.Choice = append(s.Choice, advice.Either(placed(o)+" keeps the address", a.releaseAllBut(o, owners)...))
	}
	return s
}

// keep returns the steps by which one owner keeps the address and the others give it up.
func (a *remedyBuilder) keep(keep *verdict.Owner, right verdict.Right, owners []*verdict.Owner) []advice.Action {
	leave := advice.Say("Leave %s as it is. It keeps the address: %s.", placed(keep), a.because(keep, right))
	return append([]advice.Action{leave}, a.releaseAllBut(keep, owners)...)
}

// releaseAllBut returns the steps by which all owners but one give the address up. If that owner
// has no allocation, the first step writes it, because restarted workloads ask IPAM for an
// address.
func (a *remedyBuilder) releaseAllBut(keep *verdict.Owner, owners []*verdict.Owner) []advice.Action {
	steps := a.reserve(keep)
	for _, o := range except(owners, keep) {
		steps = append(append(steps, a.forget(o)...), a.giveUp(o)...)
	}
	return append(steps, a.reroute(keep, owners)...)
}

// forget returns the step without which the successor of a pod gets the same address, if an IPAM
// keeps it.
func (a *remedyBuilder) forget(o *verdict.Owner) (steps []advice.Action) {
	w := o.Workload()
	if p := a.c.Title(o).Kept; p != nil && w.Kind == verdict.Pod && w.Name != "" && !o.Orphaned {
		if m := ipamOf(p); m.Forget != nil {
			steps = append(steps, m.Forget(w.Namespace, cmp.Or(w.VirtualMachine, w.Name)))
		}
	}
	return steps
}

// reroute returns the step that checks the node's route if it leads to another owner than the one
// that keeps the address. Plugins set the route of a pod when the pod starts, and fail to do so while
// another pod has one for the same address.
func (a *remedyBuilder) reroute(keep *verdict.Owner, owners []*verdict.Owner) []advice.Action {
	i := keep.Interface
	elsewhere := slices.ContainsFunc(except(owners, keep), func(o *verdict.Owner) bool { return o.Node.Is(keep.Node) && o.Routed() })
	if keep.Kind() == verdict.Host || keep.Routed() || !elsewhere || i == nil || i.HostInterface == "" {
		return nil
	}
	return []advice.Action{advice.Say("On node %s, check that its route for the address leads to %s now, the port of %s: before, it led to another owner, and no program may have set a new one.", keep.Node.Name, i.HostInterface, OwnerName(keep)).
		By(keep.Node.Name, "ip route get "+a.address.String()).Or(
		advice.Either("it does", advice.Say("Leave it as it is.")),
		advice.Either("it does not, and the network plugin does not correct it within a minute", advice.Say("Set the route, as the plugins that give each pod a route do.").
			By(keep.Node.Name, fmt.Sprintf("ip route replace %s dev %s scope link", netip.PrefixFrom(a.c.Address, a.c.Address.BitLen()), advice.Quote(i.HostInterface)))),
	)}
}

// giveUp returns the steps by which an owner gives the address up. A DHCP client must request another
// one, because it would otherwise use the lease that it has.
func (a *remedyBuilder) giveUp(o *verdict.Owner) []advice.Action {
	if !a.leased(o) || o.Kind() == verdict.Pod {
		return release(o, a.address)
	}
	return []advice.Action{advice.Say("Have %s release its lease and request another one: restart its DHCP client, or reboot it.", placed(o))}
}

// leased reports whether an owner has the address from DHCP.
func (a *remedyBuilder) leased(o *verdict.Owner) bool {
	p := a.c.Title(o).Pool
	if p == nil && a.c.Cause == verdict.CauseIPAMStateLost {
		p = a.c.From[0] // it had a lease
	}
	return p != nil && ipamOf(p).Leases
}

// reserve returns the steps that write the missing allocation of the owner that keeps the
// address.
func (a *remedyBuilder) reserve(keep *verdict.Owner) (steps []advice.Action) {
	for _, p := range a.c.Title(keep).Missing {
		text := Finding(&verdict.Finding{
			Kind: verdict.FindingInUseUnallocated, Severity: verdict.Critical, Address: a.c.Address, Owners: []verdict.Owner{*keep}, Pool: p,
		}, verdict.PoolUse{})
		for _, f := range text.Fixes {
			if !f.Manual {
				steps = append(steps, advice.Say("%s", f.What).By(f.Node, f.Command))
			}
		}
	}
	return steps
}

// because says why an owner keeps the address.
func (a *remedyBuilder) because(keep *verdict.Owner, right verdict.Right) string {
	switch right {
	case verdict.RightAllocation:
		if p := a.c.Title(keep).Pool; p != nil {
			return poolTitle(p.Label()) + " has allocated it to this owner"
		}
		return "it is the gateway address of the network on that bridge"
	case verdict.RightKept:
		return poolTitle(a.c.Title(keep).Pool.Label()) + " keeps it for this owner, also after a restart"
	case verdict.RightAssignment:
		return ipamOf(a.c.Title(keep).Controller).Title + " assigns it to this node"
	case verdict.RightCurrent:
		return fmt.Sprintf("it is the current one of the container (since %s by the clock of node %s)", stampExact(keep.AssignedAt()), keep.Node.Name)
	case verdict.RightMachine:
		return "KubeVirt runs the virtual machine on this node"
	case verdict.RightProgram:
		return keep.Node.VIPProgram + " runs on this node, and has ended on the others"
	case verdict.RightOlderAssignment:
		return fmt.Sprintf("it had the address first (since %s by the clock of node %s)", stampExact(keep.AssignedAt()), keep.Node.Name)
	case verdict.RightIntent:
		if slices.ContainsFunc(a.parties, func(o *verdict.Owner) bool { return o.Orphaned }) {
			return "the pods of the others are gone"
		}
		return "only this owner was intended to have it"
	}
	return ""
}

// those returns the owners for which holds returns true.
func those(owners []*verdict.Owner, holds func(*verdict.Owner) bool) (found []*verdict.Owner) {
	for _, o := range owners {
		if holds(o) {
			found = append(found, o)
		}
	}
	return found
}

// except returns all owners but one.
func except(owners []*verdict.Owner, one *verdict.Owner) []*verdict.Owner {
	return those(owners, func(o *verdict.Owner) bool { return o != one })
}

// ownerNames returns the names of owners.
func ownerNames(owners []*verdict.Owner) []string {
	names := make([]string, 0, len(owners))
	for _, o := range owners {
		names = append(names, OwnerName(o))
	}
	return names
}
