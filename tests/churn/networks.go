package churn

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/antrea"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// Objects are the custom resources of a cluster.
type Objects interface {
	// Apply creates or changes an object, given as YAML, and Remove deletes one.
	Apply(k ipam.Kind, text string)
	Remove(k ipam.Kind, at ipam.Key)
}

// A Pod has an address of a Network. The namespace of all pods is default, and their node is node1 with
// address 172.18.0.1.
type Pod struct{ Name, Container string }

// A Network gets the addresses of its pods from an IPAM with custom resources.
type Network struct {
	IPAM  *ipam.IPAM
	Kinds []ipam.Kind
	// Name is the name of the CNI network. Underlay is set if pods have macvlan interfaces.
	Name     string
	Underlay bool
	// Prefix is the beginning of the addresses: the n-th one ends with n.
	Prefix string
	// Begin creates the objects that do not depend on pods.
	Begin func(o Objects)
	// Write writes the records after the n-th address was allocated to a pod, or freed by it. live has the
	// pods of all addresses.
	Write func(o Objects, live map[int]Pod, n int, pod Pod, freed bool)
}

// Address returns the n-th address of the network.
func (k *Network) Address(n int) string { return fmt.Sprint(k.Prefix, n) }

// Networks are networks of all IPAMs that record the addresses of pods in custom resources.
var Networks = []Network{
	{
		IPAM: &calico.IPAM, Kinds: []ipam.Kind{calico.Pools, calico.Blocks, calico.Affinities}, Name: "k8s-pod-network", Prefix: "192.168.7.",
		Begin: func(o Objects) {
			o.Apply(calico.Pools, ipamtest.CalicoPool)
			o.Apply(calico.Affinities, "metadata: {name: node1-192-168-7-0-26}\nspec: {cidr: 192.168.7.0/26, node: node1, state: confirmed, deleted: 'false'}")
		},
		Write: func(o Objects, live map[int]Pod, _ int, _ Pod, _ bool) {
			given := make([]string, 64)
			for n, p := range live {
				given[n] = ipamtest.CalicoPod(p.Name, "node1", p.Container)
			}
			o.Apply(calico.Blocks, ipamtest.CalicoBlock("192-168-7-0-26", "192.168.7.0/26", given...))
		},
	},
	{
		IPAM: &cilium.IPAM, Kinds: []ipam.Kind{cilium.Nodes, cilium.Endpoints, cilium.Slices}, Name: "cilium", Prefix: "10.244.1.",
		Begin: func(o Objects) {
			o.Apply(cilium.Nodes, ipamtest.CiliumNode("node1", "172.18.0.1", "10.244.1.0/24", "10.244.1.250", ""))
		},
		// Some pods have a CiliumEndpoint only, some are in a CiliumEndpointSlice, and some have both.
		Write: func(o Objects, live map[int]Pod, n int, pod Pod, freed bool) {
			if n%3 != 0 && freed {
				o.Remove(cilium.Endpoints, ipam.Key{Namespace: "default", Name: pod.Name})
			} else if n%3 != 0 {
				o.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("default", pod.Name, pod.Container, fmt.Sprint("10.244.1.", n), "172.18.0.1"))
			}
			var in []string
			for n, p := range live {
				if n%3 != 1 {
					in = append(in, fmt.Sprintf("%s 10.244.1.%d 172.18.0.1", p.Name, n))
				}
			}
			o.Apply(cilium.Slices, ipamtest.CiliumEndpointSlice("ces-1", "default", in...))
		},
	},
	{
		IPAM: &ovn.KubeOVN, Kinds: []ipam.Kind{ovn.Subnets, ovn.IPs}, Name: "kube-ovn", Prefix: "10.16.0.",
		Begin: func(o Objects) { o.Apply(ovn.Subnets, ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/24")) },
		Write: func(o Objects, _ map[int]Pod, n int, pod Pod, freed bool) {
			if freed {
				o.Remove(ovn.IPs, ipam.Key{Name: pod.Name + ".default"})
			} else {
				o.Apply(ovn.IPs, ipamtest.KubeOVNIP(pod.Name, "default", fmt.Sprint("10.16.0.", n), "node1", ""))
			}
		},
	},
	{
		IPAM: &spiderpool.IPAM, Kinds: []ipam.Kind{spiderpool.Pools, spiderpool.Endpoints}, Name: "macvlan-conf", Underlay: true, Prefix: "10.6.168.",
		Begin: func(Objects) {},
		// The endpoint of a pod follows its pool.
		Write: func(o Objects, live map[int]Pod, n int, pod Pod, freed bool) {
			o.Apply(spiderpool.Pools, "metadata: {name: v4pool}\nspec: {ips: [10.6.168.1-10.6.168.200], subnet: 10.6.0.0/16, gateway: 10.6.0.1}\nstatus: {allocatedIPs: '{"+
				list(live, `"10.6.168.$n":{"interface":"eth0","pod":"default/$pod","podUid":"uid-$pod"}`)+"}'}")
			if freed {
				o.Remove(spiderpool.Endpoints, ipam.Key{Namespace: "default", Name: pod.Name})
			} else {
				o.Apply(spiderpool.Endpoints, ipamtest.SpiderEndpoint("default", pod.Name, "node1", fmt.Sprint("10.6.168.", n), "ReplicaSet"))
			}
		},
	},
	{
		IPAM: &antrea.IPAM, Kinds: []ipam.Kind{antrea.Pools}, Name: "antrea", Prefix: "192.168.240.",
		Begin: func(Objects) {},
		Write: func(o Objects, live map[int]Pod, _ int, _ Pod, _ bool) {
			o.Apply(antrea.Pools, "metadata: {name: pool1}\nspec: {ipRanges: [{start: 192.168.240.1, end: 192.168.240.200}], subnetInfo: {gateway: 192.168.240.254, prefixLength: 24}}\nstatus: {ipAddresses: ["+
				list(live, "{ipAddress: 192.168.240.$n, phase: Allocated, owner: {pod: {name: $pod, namespace: default, containerID: '$container'}}}")+"]}")
		},
	},
	{
		IPAM: &whereabouts.IPAM, Kinds: []ipam.Kind{whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks}, Name: "macvlan-conf", Underlay: true, Prefix: "192.168.2.",
		Begin: func(o Objects) {
			o.Apply(whereabouts.Networks, `metadata: {name: macvlan-conf, namespace: default}`+"\n"+
				`spec: {config: '{"cniVersion": "0.3.0", "name": "macvlan-conf", "type": "macvlan", "master": "eth0", "ipam": {"type": "whereabouts", "range": "192.168.2.0/24"}}'}`)
		},
		// The reservation of an address follows its pool.
		Write: func(o Objects, live map[int]Pod, n int, pod Pod, freed bool) {
			o.Apply(whereabouts.Pools, "metadata: {name: 192.168.2.0-24, namespace: kube-system}\nspec: {range: 192.168.2.0/24, allocations: {"+
				list(live, `"$n": {podref: default/$pod, id: '$container', ifname: eth0}`)+"}}")
			address := fmt.Sprint("192.168.2.", n)
			if freed {
				o.Remove(whereabouts.Reservations, ipam.Key{Namespace: "kube-system", Name: address})
			} else {
				o.Apply(whereabouts.Reservations, ipamtest.WhereaboutsReservation(address, "default/"+pod.Name))
			}
		},
	},
}

// list returns the records of all pods in a format, separated by commas.
func list(live map[int]Pod, format string) string {
	var all []string
	for n, p := range live {
		all = append(all, strings.NewReplacer("$n", strconv.Itoa(n), "$pod", p.Name, "$container", p.Container).Replace(format))
	}
	return strings.Join(all, ", ")
}
