package verdicttest

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/containers"
)

// dockerBridge and podmanLAN are networks of docker and podman.
const (
	dockerBridge = containers.DockerName + ":bridge"
	podmanLAN    = containers.PodmanName + ":lan"
)

// Contained returns the workload of a container of an engine.
func Contained(engine, name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Container, Name: name, ContainerID: "container-" + name, Source: engine}
}

// allocation is the workload of a container of a runtime that is no container engine and not the
// kubelet's, such as an allocation of Nomad. process runs in its network namespace.
func allocation(process string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Container, Name: "alloc", ContainerID: "alloc", Source: "cni-result", Process: process}
}

// ofEngines are the situations with containers of docker, podman and other runtimes.
var ofEngines = []Situation{
	{
		Name: "a container got a new network namespace, and a process remains in the old one", Cause: replaced,
		Build: func(w *World) {
			w.Within("n1", "", "", allocation("sleep (42)")).AssignedAt = Start
			w.Within("n1", "", "", allocation("")).AssignedAt = Start.Add(time.Minute)
		},
		Facts: []string{
			"namespace-replaced owners=alloc,alloc at=1m0s",
			"namespace-used owners=alloc text=sleep_(42)",
		},
	},
	{
		Name: "two network namespaces of a container got the address at the same time", Cause: unknown,
		Build: func(w *World) {
			w.Within("n1", "", "", allocation("sleep (42)"))
			w.Within("n1", "", "", allocation(""))
		},
	},
	{
		Name: "network namespaces of one container on two nodes", Cause: unknown,
		Build: func(w *World) {
			w.Policy.Networks = []verdict.Network{{Name: "all", Prefixes: Prefixes("10.244.0.0/16")}}
			w.Within("n1", "", "", allocation("")).AssignedAt = Start
			w.Within("n2", "", "", allocation("")).AssignedAt = Start.Add(time.Minute)
		},
	},
	{
		Name: "docker of two nodes has one range for a network on their LAN", Cause: overlap, Addr: "192.0.2.2",
		Build: func(w *World) {
			const network = containers.DockerName + ":net0"
			for _, uplink := range OnLAN(w, "n1", "n2") {
				n := uplink.Namespace.Node.Name
				ns := w.Namespace(n, 2, "10"+n[1:], Contained(containers.DockerName, "web"+n))
				w.Assigned(w.Interface(ns, verdict.Interface{MAC: verdict.MAC("chld" + n), Attachment: verdict.Lower, Link: uplink.Link, HostInterface: "eth0"})).Network = network
				w.Books(w.Pool(containers.DockerName, n, network, "192.0.2.1-192.0.2.254"), "web"+n)
			}
		},
		Facts: []string{
			"range-of-pool pool=docker|n1|docker:net0 ranges=192.0.2.1-192.0.2.254",
			"given-by-network owners=webn1 network=docker:net0",
			"range-of-pool pool=docker|n2|docker:net0 ranges=192.0.2.1-192.0.2.254",
			"given-by-network owners=webn2 network=docker:net0",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=docker:net0",
			"ipam-state-lost: given-once owners=webn1 pool=docker|n1|docker:net0",
			"static-address: given-to-all owners=webn1,webn2",
		},
	},
	{
		Name: "docker of two nodes started a container with one fixed address", Cause: static, Addr: "192.0.2.2",
		Build: func(w *World) {
			const network = containers.DockerName + ":net0"
			for _, uplink := range OnLAN(w, "n1", "n2") {
				n := uplink.Namespace.Node.Name
				who := Contained(containers.DockerName, "web")
				who.ContainerID = "container-web" + n
				ns := w.Namespace(n, 2, "10"+n[1:], who)
				w.Assigned(w.Interface(ns, verdict.Interface{MAC: verdict.MAC("chld" + n), Attachment: verdict.Lower, Link: uplink.Link, HostInterface: "eth0"})).Network = network
				w.Books(w.Pool(containers.DockerName, n, network, "192.0.2.1-192.0.2.254"), "web"+n).FixedIn = "/var/lib/docker/containers/" + n + "/config.v2.json"
			}
		},
		Facts: []string{
			"fixed owners=web text=/var/lib/docker/containers/n1/config.v2.json",
			"fixed owners=web text=/var/lib/docker/containers/n2/config.v2.json",
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=web pool=docker|n1|docker:net0",
		},
	},
	{
		Name: "a network of docker overlaps with one of CNI on a bridge", Cause: networks,
		Build: func(w *World) {
			w.Within("n1", "cni0", "kindnet", Who("web"))
			w.Bridge("n1", "cni0", "10.244.1.1/24")
			w.Within("n1", "br-0123456789ab", containers.DockerName+":net0", Contained(containers.DockerName, "db"))
			w.Bridge("n1", "br-0123456789ab", "10.244.1.1/24")
		},
		Facts: []string{
			"given-by-network owners=web network=kindnet",
			"range-of-network device=cni0 network=kindnet ranges=10.244.1.0/24",
			"given-by-network owners=db network=docker:net0",
			"range-of-network device=br-0123456789ab network=docker:net0 ranges=10.244.1.0/24",
			"networks-meet-on-node nodes=n1",
		},
		RuledOut: []string{"static-address: given-to-all owners=web,db"},
	},
	{
		Name: "docker lost the record of the first container", Cause: lost, Addr: "172.17.0.3",
		Build: func(w *World) {
			w.Within("n1", "docker0", dockerBridge, Contained(containers.DockerName, "db")).AssignedAt = Start
			w.Within("n1", "docker0", dockerBridge, Contained(containers.DockerName, "web")).AssignedAt = Start.Add(time.Minute)
			w.Books(w.Pool(containers.DockerName, "n1", dockerBridge, "172.17.0.1-172.17.255.254"), "web")
		},
		Facts: []string{
			"given-by-network owners=db network=docker:bridge",
			"given-by-network owners=web network=docker:bridge",
			"record pool=docker|n1|docker:bridge state=1 record=container-web->web",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=docker:bridge",
			"static-address: given-to-all owners=db,web",
		},
	},
	{
		Name: "a container with the address that docker has given another one", Cause: static, Addr: "172.17.0.3",
		Build: func(w *World) {
			w.Within("n1", "docker0", dockerBridge, Contained(containers.DockerName, "db")).AssignedAt = Start
			w.Within("n1", "docker0", "", Contained(containers.DockerName, "web")).AssignedAt = Start.Add(time.Minute)
			w.Books(w.Pool(containers.DockerName, "n1", dockerBridge, "172.17.0.1-172.17.255.254"), "db")
		},
		Facts: []string{
			"given-by-network owners=db network=docker:bridge",
			"allocated-to-other-owner owners=web,db",
			"range-of-pool pool=docker|n1|docker:bridge ranges=172.17.0.1-172.17.255.254",
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=db pool=docker|n1|docker:bridge",
		},
	},
	{
		Name: "an older container with the address that podman has given another one", Cause: unknown, Addr: "192.168.50.2",
		Build: func(w *World) {
			w.Within("n1", "podman1", "", Contained(containers.PodmanName, "old")).AssignedAt = Start
			w.Within("n1", "podman1", podmanLAN, Contained(containers.PodmanName, "new")).AssignedAt = Start.Add(time.Minute)
			w.Books(w.Pool(containers.PodmanName, "n1", podmanLAN, "192.168.50.1-192.168.50.254"), "new")
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=new pool=podman|n1|podman:lan",
			"static-address (open): giver-not-known owners=old",
		},
	},
}
