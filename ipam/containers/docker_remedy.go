package containers

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// dockerd keeps its allocations in memory, and restores them from the database when it starts. It frees
// an address when the container stops, and a container that starts again gets the lowest free one. No
// command records an address for a running container.

var dockerRepair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies {
		return dockerRemedies{Remedies{Case: c, Advisor: a, Title: "docker", Empty: emptyDocker}}
	},
	Exclude: func(*ipam.Pool, string, netip.Addr) ipam.Exclusion {
		return ipam.Exclusion{How: "create the network again with --aux-address (docker network create), or, for network bridge, set fixed-cidr in /etc/docker/daemon.json to a range without it"}
	},
	Location: func(*ipam.Pool, netip.Addr) string { return defaultRoot + "/network/files/local-kv.db" },
	Enlarge: func(*ipam.Pool) string {
		return "Remove stopped services and unused containers, or create the network again with a larger subnet (docker network create --subnet; for network bridge, bip in /etc/docker/daemon.json)."
	},
	Access: func(*ipam.Pool) string {
		return "Check whether the agent may read it: the agent needs " + defaultRoot + "/network/files/local-kv.db of the node. In a container, mount /var/lib read-only with HostToContainer propagation."
	},
	RestartContainer: restartDocker,
	Effects: ipam.Effects{
		Free: "docker has no record of it. It will allocate the address to one of the next containers in the network.",
	},
	Loss: ipam.Loss{
		Empty: emptyDocker,
		Search: func(*ipam.Pool) string {
			return "Find out what removed or replaced " + defaultRoot + "/network/files/local-kv.db: a restored backup, or a clean-up script. Do not restart dockerd and start no containers until no address is at risk."
		},
	},
}

// dockerRemedies builds the remedies for addresses of docker.
type dockerRemedies struct{ Remedies }

// Release advises to disconnect the container of the record from the network.
func (t dockerRemedies) Release() {
	id := t.Allocation.ContainerID
	if id == "" {
		t.Advise("Leave the record as it is: it only makes one address unavailable. dockerd removes it when it is restarted and the containers of node %s do not outlive that (live-restore).", t.Node)
		return
	}
	t.Act(
		advice.Say("On node %s, check whether container %s, for which the address is recorded, is running.", t.Node, advice.ShortID(id)).
			By(t.Node, "docker ps --all --no-trunc --filter "+advice.Quote("id="+id)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it is running", advice.Say("Leave its record as it is: the container may have taken its interface down.")),
			advice.Either("it is not running", advice.Say("Disconnect it from the network, which frees the address.").
				By(t.Node, "docker network disconnect --force "+advice.Argument(NetworkName(t.Pool))+" "+advice.Argument(advice.ShortID(id)))),
		))
	t.ByHand(t.Node, "", "Free %s: docker records it for container %s, and no interface has the address.", t.Address, advice.ShortID(id))
}

// restartDocker returns the steps that restart a container of docker. A dockerd that has lost the record of
// its sandbox leaves the network namespace behind, with the address. The namespace of containers in the
// host's network is called default.
func restartDocker(node, id string) []advice.Action {
	id = advice.Argument(advice.ShortID(id))
	return []advice.Action{advice.Say("Stop container %s on node %s, remove its network namespace if docker leaves it behind, and start the container again.", id, node).By(node, advice.Script(
		"key=$(docker inspect --format '{{.NetworkSettings.SandboxKey}}' "+id+") && docker stop "+id+" && {",
		`  case "$key" in */default) ;; ?*) if [ -e "$key" ]; then umount "$key"; rm "$key"; fi ;; esac`,
		"  docker start "+id,
		"}",
	))}
}

// emptyDocker returns the steps after which no container has an address without a record.
func emptyDocker(node, _ string) []advice.Action {
	return []advice.Action{
		advice.Say("Reboot node %s: a container that is only restarted may get the address of another one without a record. The containers with a restart policy start again, and get new addresses.", node).By(node, "systemctl reboot"),
	}
}
