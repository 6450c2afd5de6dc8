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
