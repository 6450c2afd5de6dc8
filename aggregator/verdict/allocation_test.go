package verdict_test

import (
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// named returns an owner on node n1.
func named(who verdict.Workload) *verdict.Owner {
	n := &verdict.Node{Name: "n1", Boot: "b1", Netns: "1"}
	i := &verdict.Interface{Name: "eth0", Attachment: verdict.Peer, Link: &verdict.Link{Node: n, Name: "veth7", Kind: verdict.PointToPoint}}
	if who.Kind == verdict.External {
		return &verdict.Owner{Node: n, Interface: i}
	}
	return &verdict.Owner{Node: n, Namespace: &verdict.Namespace{Node: n, Who: who.Who()}, Interface: i}
}

func TestAllocationsMatchOwners(t *testing.T) {
	const (
		no, yes = false, true
		tunnels = "VXLAN tunnel"
	)
	pod := verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: "web", ContainerID: "c1", Source: "cni-result"}
	with := func(change func(*verdict.Workload)) verdict.Workload {
		w := pod
		change(&w)
		return w
	}
	calico, cilium := &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name)}}, &verdict.Pool{Pool: ipam.Pool{IPAM: cilium.IPAM.Name, Traits: registry.Traits(cilium.IPAM.Name)}}
	for _, test := range []struct {
		name     string
		al       verdict.Allocation
		who      verdict.Workload
		is, says bool // results of For and Names
	}{
		{"no holder, on no node", verdict.Allocation{}, pod, yes, no},
		{"no holder, on the node", verdict.Allocation{Allocation: ipam.Allocation{Node: "n1"}}, pod, yes, no},
		{"no holder, on the node with its domain", verdict.Allocation{Allocation: ipam.Allocation{Node: "N1.example.com"}}, pod, yes, no},
		{"no holder, on another node", verdict.Allocation{Allocation: ipam.Allocation{Node: "n2"}}, pod, no, no},
		{"no holder, and a node has it", verdict.Allocation{}, verdict.Workload{Kind: verdict.Host}, yes, no},
		{"the pod, on the node", verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "web"}}, pod, yes, yes},
		{"the pod, on another node", verdict.Allocation{Allocation: ipam.Allocation{Node: "n2", Namespace: "default", Pod: "web"}}, pod, no, yes},
		{"the pod, in another sandbox", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "web", ContainerID: "c2"}}, pod, yes, yes},
		{"another pod", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "db"}}, pod, no, no},
		{"a pod of another namespace", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "other", Pod: "web"}}, pod, no, no},
		{"another pod, in the sandbox", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "db", ContainerID: "c1"}}, pod, yes, no},
		{"a pod, and a container of that name has it", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "web"}}, with(func(w *verdict.Workload) { w.Kind = verdict.Container }), yes, no},
		{"a pod, and one without a name has it", verdict.Allocation{Allocation: ipam.Allocation{Pod: "web"}}, verdict.Workload{Kind: verdict.Pod}, yes, no},
		{"a pod, and a node has it", verdict.Allocation{Allocation: ipam.Allocation{Pod: "web"}}, verdict.Workload{Kind: verdict.Host, Name: "web"}, no, no},
		{"a pod, and a device outside has it", verdict.Allocation{Allocation: ipam.Allocation{Pod: "web"}}, verdict.Workload{Kind: verdict.External}, yes, no},
		{"the sandbox", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "c1"}}, pod, yes, no},
		{"another sandbox", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "c2"}}, pod, no, no},
		{"a sandbox, and a node has it", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "c1"}}, verdict.Workload{Kind: verdict.Host}, no, no},
		{"a sandbox, and the owner's is not known", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "c2"}}, with(func(w *verdict.Workload) { w.ContainerID = "" }), yes, no},
		{"a sandbox, and the owner's is that of a cgroup", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "c2"}}, with(func(w *verdict.Workload) { w.Source = "cgroup" }), yes, no},
		{"a tunnel, and a node has it", verdict.Allocation{Allocation: ipam.Allocation{Purpose: tunnels}}, verdict.Workload{Kind: verdict.Host}, yes, no},
		{"a tunnel of another node", verdict.Allocation{Allocation: ipam.Allocation{Purpose: tunnels, Node: "n2"}}, verdict.Workload{Kind: verdict.Host}, no, no},
		{"a tunnel, and a pod has it", verdict.Allocation{Allocation: ipam.Allocation{Purpose: tunnels}, Pool: calico}, pod, no, no},
		{"a tunnel, and an unidentified namespace has it", verdict.Allocation{Allocation: ipam.Allocation{Purpose: tunnels}, Pool: calico}, verdict.Workload{Kind: verdict.Unknown}, no, no},
		{"Cilium's endpoint, and an unidentified namespace has it", verdict.Allocation{Allocation: ipam.Allocation{Purpose: "health"}, Pool: cilium}, verdict.Workload{Kind: verdict.Unknown}, yes, no},
		{"Cilium's endpoint, and a pod has it", verdict.Allocation{Allocation: ipam.Allocation{Purpose: "health"}, Pool: cilium}, pod, no, no},
	} {
		if test.al.Pool == nil {
			test.al.Pool = calico
		}
		o := named(test.who)
		if is, says := test.al.For(o), test.al.Names(o); is != test.is || says != test.says {
			t.Errorf("%s: got for the owner %t, names the owner %t, want %t and %t", test.name, is, says, test.is, test.says)
		}
	}
}

func TestTheKubernetesAPINamesTheNodeOfAPod(t *testing.T) {
	for _, test := range []struct {
		name string
		pod  *verdict.PodObject
		want bool
	}{
		{"n1", nil, true},
		{"k1", nil, false},
		{"k1", &verdict.PodObject{Node: "k1"}, true},
		{"n1", &verdict.PodObject{Node: "k1"}, true},
		{"k2", &verdict.PodObject{Node: "k1"}, false},
		{"", &verdict.PodObject{}, false},
	} {
		o := named(verdict.Workload{Kind: verdict.Pod})
		if o.Pod = test.pod; o.OnNode(test.name) != test.want {
			t.Errorf("%q with pod %+v: got %t, want %t", test.name, test.pod, !test.want, test.want)
		}
	}
}

func TestNamesOfANode(t *testing.T) {
	for _, test := range []struct {
		label, name string
		want        bool
	}{
		{"n1", "n1", true},
		{"n1", "N1", true},
		{"N1", "n1", true},
		{"n1", "n2", false},
		{"n1", "n10", false},
		{"n1", "n1.example.com", true},
		{"n1.example.com", "n1", true},
		{"n1.example.com", "n1.example.org", false},
		{"n1.example.com", "N1.Example.com", true},
		{"n1@rack2", "n1", true},
		{"n1@rack2", "rack2", false},
		{"n1", "", false},
		{"n1", ".n1", false},
		{"", "", true},
		{"", ".n1", false},
	} {
		if n := (&verdict.Node{Name: test.label}); n.Called(test.name) != test.want {
			t.Errorf("node %q by %q: got %t, want %t", test.label, test.name, !test.want, test.want)
		}
	}
}

func TestSandboxes(t *testing.T) {
	for _, test := range []struct{ source, sources, want string }{
		{"cni-result", "", "c1"},
		{"cgroup", "", ""},
		{"process", "", ""},
		{"cgroup", "name=process,containerId=cri", "c1"},
		{"cri", "containerId=cgroup,name=cni-result", ""},
		{"cri", "containerId=process", ""},
		{"cri", "name=cgroup", "c1"},
	} {
		w := verdict.Workload{ContainerID: "c1", Source: test.source, Sources: test.sources}
		if got := w.Sandbox(); got != test.want {
			t.Errorf("from %s, %s: got %q, want %q", test.source, test.sources, got, test.want)
		}
	}
}

func TestNetworksOfAnOwner(t *testing.T) {
	o := &verdict.Owner{Claims: []*verdict.Claim{
		{Kind: verdict.Assigned, Network: "b"},
		{Kind: verdict.Assigned},
		{Kind: verdict.Assigned, Network: verdict.NetworkOfRuntime},
		{Kind: verdict.Announced, Network: "c"},
		{Kind: verdict.Assigned, Network: "a"},
		{Kind: verdict.Assigned, Network: "b"},
	}}
	if got, want := o.Networks(), []string{"b", "a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPoolsMeetOwners(t *testing.T) {
	n1 := &verdict.Node{Name: "n1"}
	onNode, inNetwork := verdict.Scope{Kind: verdict.NodeScope, Node: "n1"}, verdict.Scope{Kind: verdict.NetworkScope, Name: "pods"}
	onLink, inVRF := verdict.Scope{Kind: verdict.LinkScope, Node: "n1", Name: "br0"}, verdict.Scope{Kind: verdict.NodeScope, Node: "n1", Name: "red"}
	pod, host := verdict.Workload{Kind: verdict.Pod}, verdict.Workload{Kind: verdict.Host}
	cluster, asked := verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name)}}, verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Asked: true}}
	whereabouts := verdict.Pool{Pool: ipam.Pool{IPAM: whereabouts.Name, Traits: registry.Traits(whereabouts.Name)}}
	bridged, routed := verdict.Pool{Node: n1, Pool: ipam.Pool{Wiring: ipam.Wiring{Device: "br0"}}}, verdict.Pool{Node: n1, Pool: ipam.Pool{Wiring: ipam.Wiring{Device: "br0", Routed: true}}}
	ofEngine := verdict.Pool{Node: n1, Pool: ipam.Pool{Wiring: ipam.Wiring{Device: "cni-podman0", Routed: true}}}
	at := func(device string, attachment verdict.Attachment) verdict.Interface {
		return verdict.Interface{Name: "eth0", Attachment: attachment, Link: &verdict.Link{Node: n1, Name: device, Kind: verdict.Bridge}}
	}
	for _, test := range []struct {
		name  string
		pool  verdict.Pool
		who   verdict.Workload
		scope verdict.Scope
		i     verdict.Interface
		want  bool
	}{
		{"a cluster's, and a pod of the node", cluster, pod, onNode, at("cni0", verdict.Peer), true},
		{"a cluster's, and a pod of the network", cluster, pod, inNetwork, at("cni0", verdict.Peer), true},
		{"a cluster's, and a pod of a link alone", cluster, pod, onLink, at("cni0", verdict.Peer), false},
		{"a cluster's, and a pod in a VRF", cluster, pod, inVRF, at("cni0", verdict.Peer), false},
		{"a cluster's, and a node", cluster, host, onNode, at("cni0", verdict.Own), true},
		{"a cluster's that is asked for, and a node", asked, host, onNode, at("cni0", verdict.Own), false},
		{"a cluster's that is asked for, and a pod", asked, pod, onNode, at("cni0", verdict.Peer), true},
		{"a cluster's, and a pod on docker's bridge", cluster, pod, onNode, at("docker0", verdict.Peer), false},
		{"a cluster's, and docker's bridge", cluster, host, onNode, verdict.Interface{Name: "docker0"}, false},
		{"a cluster's, and a device without a link", cluster, host, onNode, verdict.Interface{Name: "eth0"}, true},
		{"whereabouts', and a pod over an uplink", whereabouts, pod, onLink, at("eth0", verdict.Lower), true},
		{"whereabouts', and a pod on a bridge", whereabouts, pod, onNode, at("cni0", verdict.Peer), false},
		{"whereabouts', and a node over an uplink", whereabouts, host, onLink, at("eth0", verdict.Lower), false},
		{"a bridge's, and a pod on it", bridged, pod, onLink, at("br0", verdict.Peer), true},
		{"a bridge's, and a pod on another one", bridged, pod, onNode, at("br1", verdict.Peer), false},
		{"a bridge's, and a pod over a device of that name", bridged, pod, onLink, verdict.Interface{Name: "eth0", HostInterface: "br0"}, true},
		{"a bridge's, and a pod over another device", bridged, pod, onLink, verdict.Interface{Name: "eth0", HostInterface: "br1"}, false},
		{"that of no known device, and an interface of no known one", verdict.Pool{Node: n1}, pod, onNode, verdict.Interface{Name: "eth0"}, false},
		{"that of no known device, and a link without a name", verdict.Pool{Node: n1}, pod, onNode, at("", verdict.Peer), false},
		{"a routed one's, and a pod of the node", routed, pod, onNode, at("br1", verdict.Peer), true},
		{"a routed one's, and a pod of the network", routed, pod, inNetwork, at("br1", verdict.Peer), true},
		{"a routed one's, and a pod of a link alone", routed, pod, onLink, at("br1", verdict.Peer), false},
		{"a routed one's, and a pod in a VRF", routed, pod, inVRF, at("br1", verdict.Peer), false},
		{"a routed one's of an engine, and a container on its bridge", ofEngine, pod, onNode, at("cni-podman0", verdict.Peer), true},
		{"a routed one's of an engine, and a container of another one", ofEngine, pod, onNode, at("docker0", verdict.Peer), false},
		{"a routed one's of an engine, and a pod", ofEngine, pod, onNode, at("br1", verdict.Peer), true},
		{"a routed one's of an engine, and a pod without a link", ofEngine, pod, onNode, verdict.Interface{Name: "eth0"}, true},
		{"a routed one's, and a container of an engine", routed, pod, onNode, at("docker0", verdict.Peer), true},
		{"a routed one's, and a link in a VRF's name", routed, pod, onLink, at("br0", verdict.Peer), true},
	} {
		o := named(test.who)
		o.Scope, o.Interface = test.scope, &test.i
		if got := test.pool.Meets(o); got != test.want {
			t.Errorf("%s: got %t, want %t", test.name, got, test.want)
		}
	}
}

func TestSubjectsOfPools(t *testing.T) {
	p := verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: "net0"}}
	if got := p.Subject(); got != "host-local net0" {
		t.Errorf("of the cluster: got %q", got)
	}
	p.Node = &verdict.Node{Name: "n1"}
	if got := p.Subject(); got != "host-local net0 n1" {
		t.Errorf("of a node: got %q", got)
	}
}
