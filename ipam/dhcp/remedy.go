package dhcp

import (
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// traits are the traits of all kinds of servers.
var traits = ipam.Traits{
	Leases: true,
	// A client that releases its lease, or whose lease ends, removes the address a moment later.
	EndDelay: 10 * time.Second,
}

// repair returns the repair of a kind of servers. enlarge says how to enlarge a range. reading follows
// the path of the lease file in a sentence; it says what else the agent needs to read it.
func repair(title, enlarge, reading string, exclude func(*ipam.Pool, string, netip.Addr) ipam.Exclusion) ipam.Repair {
	return ipam.Repair{
		Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies {
			return remedies{c, a, exclude(c.Pool, c.Node, c.Address).Step}
		},
		Exclude:  exclude,
		Location: func(p *ipam.Pool, _ netip.Addr) string { return leasePath(p) },
		Enlarge: func(*ipam.Pool) string {
			return enlarge + ", so that leases of clients that are gone end sooner."
		},
		Access: func(p *ipam.Pool) string {
			return "Check whether the agent may read it: the agent needs " + leasePath(p) + " of the node" + reading + ". In a container, mount /var/lib read-only with HostToContainer propagation."
		},
		Effects: ipam.Effects{
			Free:      title + " has no lease and no reservation for it, and it is in a range that " + title + " leases to any client.",
			Elsewhere: "When that client renews its lease or starts, it takes the address, too.",
		},
	}
}

// remedies builds the remedies for an address of a server.
type remedies struct {
	ipam.Case
	ipam.Advisor
	// exclude is the step after which the server leases the address to no other client.
	exclude advice.Action
}

// Reserve advises to have the holder request a lease, or to keep the server from leasing the address.
func (t remedies) Reserve() { t.decide() }

// Reassign is Reserve if another client has the lease. It has it rightfully.
func (t remedies) Reassign() {
	t.decide(advice.Say("Have the client with MAC %s release its lease and request another one: restart its DHCP client, or reboot it.", t.Allocation.MAC))
}

// Release does nothing: a lease without a holder ends by itself.
func (t remedies) Release() {}

// decide adds the choice. after has the steps that follow if the holder keeps the address.
func (t remedies) decide(after ...advice.Action) {
	if t.Holder == nil {
		return
	}
	name := t.Holder.Name
	if t.Holder.IsPod {
		restart, fix := t.Restarting("the plugin requests a new lease for its successor")
		t.Act(advice.Say("Find out which IPAM the CNI network of %s uses.", name).Or(
			advice.Either("it is the plugin dhcp", append([]advice.Action{
				advice.Say("Check that its daemon runs on node %s (dhcp daemon). It keeps leases in memory only, and after a restart renews none of the pods that exist.", t.Holder.Node),
			}, restart...)...),
			advice.Either("it is another one", append([]advice.Action{t.exclude}, after...)...),
		))
		if fix.What != "" {
			t.Fix(fix)
		}
		return
	}
	t.Act(advice.Say("Find out how %s got its address, and whether it can have a different one. Ask the person who set it up.", name).Or(
		advice.Either("by DHCP", advice.Say("Have it release its lease and request one again: restart its DHCP client, or reboot it. The server has no lease for it.")),
		advice.Either("it was set by hand, and it can have a different one", advice.Say("Give %s an address outside of the server's ranges, or have it request one by DHCP.", name)),
		advice.Either("it was set by hand, and it must keep this one", append([]advice.Action{t.exclude}, after...)...),
	))
	t.ByHand(t.Node, "", "Give %s a different address than %s, or reserve that address: ipwitness audit %[2]s says how.", name, t.Address)
}
