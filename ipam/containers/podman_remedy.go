package containers

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// podman reads and writes its database with each start and each end of a container. It frees an address
// when the container stops, and a container that starts again gets the next free one. No command records
// an address for a running container.

const database = databaseDir + "/ipam.db"

var podmanRepair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies {
		return podmanRemedies{Remedies{Case: c, Advisor: a, Title: "podman", Empty: emptyPodman}}
	},
	Exclude: func(*ipam.Pool, string, netip.Addr) ipam.Exclusion {
		return ipam.Exclusion{How: "create the network again with --ip-range, a range without it (podman network create)"}
	},
	Location: func(*ipam.Pool, netip.Addr) string { return database },
	Enlarge: func(*ipam.Pool) string {
		return "Remove unused containers, or create the network again with a larger subnet (podman network create --subnet)."
	},
	Access: func(*ipam.Pool) string {
		return "Check whether the agent may read it: the agent needs " + database + " of the node. In a container, mount /run read-only with HostToContainer propagation."
	},
	RestartContainer: restartPodman,
	Effects: ipam.Effects{
		Free: "podman has no record of it. It will allocate the address to one of the next containers in the network.",
	},
	Loss: ipam.Loss{
		Empty: emptyPodman,
		Search: func(*ipam.Pool) string {
			return "Find out what removed " + database + ": a clean-up of /run, or podman system migrate or reset. Start no containers until no address is at risk."
		},
	},
}

// podmanRemedies builds the remedies for addresses of podman.
type podmanRemedies struct{ Remedies }

// Release advises to have podman clean up after the container of the record.
func (t podmanRemedies) Release() {
	id := t.Allocation.ContainerID
	if id == "" {
		t.Advise("Leave the record as it is: it only makes one address unavailable until node %s is rebooted.", t.Node)
		return
	}
	t.Act(
		advice.Say("On node %s, check whether container %s, for which the address is recorded, is running.", t.Node, advice.ShortID(id)).
			By(t.Node, "podman ps --all --no-trunc --filter "+advice.Quote("id="+id)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it is running", advice.Say("Leave its record as it is: the container may have taken its interface down.")),
			advice.Either("it is there but not running", advice.Say("Have podman clean up after it, which frees the address.").By(t.Node, "podman container cleanup "+advice.Argument(advice.ShortID(id)))),
			advice.Either("it is not there", advice.Say("Leave the record as it is: it only makes one address unavailable until node %s is rebooted.", t.Node)),
		))
	t.ByHand(t.Node, "", "Free %s: podman records it for container %s, and no interface has the address.", t.Address, advice.ShortID(id))
}

// restartPodman returns the steps that restart a container of podman. They stop and start it, because podman
// restart may keep the network of the container.
func restartPodman(node, id string) []advice.Action {
	id = advice.Argument(advice.ShortID(id))
	return []advice.Action{advice.Say("Stop container %s on node %s, and start it again. podman logs an error when it stops a container whose record it has lost, and removes its network nevertheless.", id, node).
		By(node, "podman stop "+id+" && podman start "+id)}
}

// emptyPodman returns the steps after which no container has an address without a record.
func emptyPodman(node, _ string) []advice.Action {
	return []advice.Action{
		advice.Say("Stop all running containers of node %s before the first of them is started again: it may get the address of another one without a record.", node).
			By(node, "ids=$(podman ps -q) && podman stop $ids; podman start $ids"),
	}
}
