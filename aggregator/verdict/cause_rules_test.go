package verdict_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/aggregator/verdict/verdicttest"
)

// wantCause judges the only conflict of the address, and checks its cause and the causes that it
// is said not to be.
func (w *world) wantCause(t *testing.T, why, cause string, excluded ...string) {
	t.Helper()
	out := w.judge()
	if len(out.Conflicts) != 1 {
		t.Errorf("%s: got %d conflicts, want one", why, len(out.Conflicts))
		return
	}
	c := out.Conflicts[0]
	var got []string
	for _, e := range c.RuledOut {
		got = append(got, e.Cause)
	}
	if c.Cause != cause || !slices.Equal(got, excluded) {
		t.Errorf("%s: got %s, not %q, want %s, not %q", why, c.Cause, got, cause, excluded)
	}
}

// running has the Kubernetes API say that pods run.
func (w *world) running(names ...string) {
	for _, name := range names {
		w.Says("uid-"+name, verdict.PodObject{Namespace: "default", Name: name, Phase: "Running"})
	}
}

func TestCausesOfPods(t *testing.T) {
	for _, test := range []struct {
		name     string
		build    func(w *world)
		cause    string
		excluded []string
	}{
		// Sandboxes that were left behind.
		{"both pods run", func(w *world) { verdicttest.Twins(w.World); w.running("old", "new") }, unknown, []string{orphan, networks, lost, static}},
		{"one pod runs, and of the other one the API says nothing", func(w *world) { verdicttest.Twins(w.World); w.running("old") }, unknown, []string{networks, lost, static}},
		{"one pod runs, and the API has the other one not yet", func(w *world) {
			verdicttest.Twins(w.World)
			w.running("old")
			w.Says("uid-new", verdict.PodObject{Absent: true})
		}, unknown, []string{networks, lost, static}},
		{"one pod runs, and the other one has ended just now", func(w *world) {
			verdicttest.Twins(w.World)
			w.running("old")
			w.Says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Failed", Heard: w.Now})
		}, unknown, []string{networks, lost, static}},
		{"one pod has ended", func(w *world) {
			verdicttest.Twins(w.World)
			w.running("old")
			w.Says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Failed", Heard: w.Now.Add(-time.Minute)})
		}, orphan, []string{networks, static}},
		{"a pod runs, and a namespace that nobody knows has its address", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Within("n1", "", "", blue("blue"))
			w.running("web")
		}, unknown, []string{orphan, static}},
		{"a pod that was left behind, and one that migrates", func(w *world) {
			vm := verdicttest.Who("l1")
			vm.VirtualMachine = "vm"
			w.Within("n1", "", "kindnet", vm)
			vm.Name, vm.UID, vm.ContainerID = "l2", "uid-l2", "c2"
			w.Within("n1", "", "kindnet", vm)
			w.Says("uid-l1", verdict.PodObject{Namespace: "default", Name: "l1", Phase: "Succeeded", Heard: w.Now.Add(-time.Minute)})
		}, orphan, nil},

		// Records of IPAM.
		{"one sandbox of a pod after the other", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			second := verdicttest.Who("a")
			second.ContainerID = "container-b"
			w.Within("n1", "", "kindnet", second)
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "b")
		}, unknown, nil},
		{"the record of one is gone, of a pool that is known by its record alone", func(w *world) {
			verdicttest.Twins(w.World)
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "new")
			w.Pools = nil
		}, lost, []string{networks, static}},
		{"the Kubernetes API has it for one of them", func(w *world) {
			w.Within("n1", "", "", blue("blue"))
			cri := verdicttest.Who("web")
			cri.Source = "cri"
			w.Within("n1", "", "", cri)
			p := &verdict.Pool{IPAM: verdict.KubernetesAPI, Name: "pods", State: verdict.PoolKnown}
			w.Pools = append(w.Pools, p)
			w.Books(p, "web")
		}, unknown, []string{static}},
		{"a pool of another node has a record", func(w *world) {
			verdicttest.Twins(w.World)
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "new").Pool.Node = w.Node("n9")
		}, unknown, []string{networks, static}},
		{"pods of three, of whom two were given it by one pool", func(w *world) {
			verdicttest.Twins(w.World)
			w.Within("n1", "", "other", verdicttest.Who("third"))
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "new")
		}, networks, []string{static}},
		{"the pool has it for both", func(w *world) {
			verdicttest.Twins(w.World)
			p := w.Pool(verdict.HostLocal, "n1", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new")
		}, unknown, []string{networks, lost, static}},
		{"two pods of two networks, and records of one that cannot be read", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n1", "", "lan", verdicttest.Who("b"))
			p := w.Pool(verdict.HostLocal, "n1", "")
			p.Networks, p.State = []string{"kindnet", "lan"}, verdict.PoolUnreadable
		}, unknown, []string{networks, lost, static}},
		{"two pods on two nodes, and no records", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n2", "", "kindnet", verdicttest.Who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"two pods on two nodes, and records of a pool of the cluster that is read", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n2", "", "kindnet", verdicttest.Who("b"))
			w.Pool(verdict.Whereabouts, "", "kindnet").State = verdict.PoolReading
		}, unknown, []string{overlap, lost, static}},
		{"it was booked for another node, which is not known any more", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			w.Was(a, verdict.FindingBookedElsewhere, nil)
		}, unknown, []string{overlap, lost, static}},
		{"it was booked for another pod of this node before the rival came", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.after(time.Minute).Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(verdict.Calico, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "x", Node: "n1"})
		}, elsewhere, []string{overlap, static}},
		{"it was booked for another pod of this node after the rival came", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(verdict.Calico, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "x", Node: "n1"})
		}, lost, []string{elsewhere, overlap, static}},
		{"it was booked for another node, and its own record vanished, too", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.after(time.Minute).Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(verdict.Calico, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n9"})
			w.Was(a, verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n1"})
		}, lost, []string{elsewhere, overlap, static}},
		{"it was booked for another node, and nobody else was given it", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.after(time.Minute).Within("n2", "", "", blue("db"))
			w.declare("pods 10.0.0.0/8")
			p := w.Pool(verdict.Calico, "", "")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n9"})
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"nodename is wrong, and IPAM has it for that pod", func(w *world) {
			w.Node("n1").CalicoNodename = "n9"
			w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.after(time.Minute).Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			w.Calico(w.Pool(verdict.Calico, "", ""), "web", "n1")
		}, lost, []string{elsewhere, overlap, static}},
		{"nodename is right, and no IPPool is known", func(w *world) {
			w.Node("n1").CalicoNodename = "n1"
			verdicttest.Twins(w.World)
		}, unknown, []string{networks, lost, static}},

		// Ranges.
		{"ranges of pods of both nodes", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "pods", verdicttest.Who("b"))
		}, overlap, []string{static}},
		{"ranges of pods of both nodes, and nobody is known to have given it to one", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "", verdicttest.Who("b"))
		}, static, []string{overlap}},
		{"ranges of pods of another node than these", func(w *world) {
			w.PodCIDR, w.PodCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n9"
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "pods", verdicttest.Who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"one pod on two nodes, in the ranges of pods of both", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			second := verdicttest.Who("a")
			second.ContainerID = "container-b"
			w.Within("n2", "", "pods", second)
		}, unknown, nil},
		{"one pod on two networks", func(w *world) {
			w.Within("n1", "cni0", "net0", verdicttest.Who("a"))
			second := verdicttest.Who("a")
			second.ContainerID = "container-b"
			w.Within("n1", "cni1", "net1", second)
		}, unknown, nil},
		{"the range of pods of the second node", func(w *world) {
			w.PodCIDR, w.PodCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n2"
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "pods", verdicttest.Who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"the bridges of both nodes, in the ranges of pods", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.1.1")
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Device("n1", "cni0", "bridge")
			w.Device("n2", "cni0", "bridge")
		}, overlap, []string{split}},
		{"bridges of docker, in the ranges of pods", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.1.1")
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Device("n1", "docker0", "bridge")
			w.Device("n2", "docker0", "bridge")
		}, unknown, []string{split, overlap, static}},
		{"ports of pods of both nodes, in the ranges of pods", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.1.1")
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, n := range []string{"n1", "n2"} {
				w.Assigned(w.Interface(w.Host(n), verdict.Interface{Name: "veth0", Kind: "veth", Attachment: verdict.Own, Link: w.Link(n, "veth0", verdict.PointToPoint, false), Peer: 7}))
			}
		}, overlap, []string{split}},
		{"uplinks of both nodes, in the ranges of pods", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Device("n1", "eth0", "")
			w.Device("n2", "eth0", "")
		}, static, []string{split, overlap}},
		{"pools of both nodes, of which the first gave it", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", verdicttest.Who("web"+n))
			}
			w.Books(w.Pool(verdict.HostLocal, "n1", "pods"), "webn1")
		}, unknown, []string{overlap, lost, static}},
		{"pools of both nodes, of which the second gave it", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", verdicttest.Who("web"+n))
			}
			w.Books(w.Pool(verdict.HostLocal, "n2", "pods"), "webn2")
		}, unknown, []string{overlap, lost, static}},
		{"a pool of the cluster gave it to one", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", verdicttest.Who("web"+n))
			}
			w.Books(w.Pool(verdict.Whereabouts, "", "lan"), "webn2")
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"bridges of both nodes with prefixes of single addresses", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "cni0", "pods", verdicttest.Who(n)).PrefixLength = 32
			}
		}, unknown, []string{overlap, lost, static}},
		{"bridges of both nodes with no known prefix", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "cni0", "pods", verdicttest.Who(n)).PrefixLength = 0
			}
		}, unknown, []string{overlap, lost, static}},
		{"bridges of both nodes that are not routed", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "cni0", "pods", verdicttest.Who(n))
				w.Link(n, "cni0", verdict.Bridge, true).Routed = false
			}
		}, unknown, []string{overlap, lost, static}},
		{"bridges of both nodes whose prefix does not have it", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "cni0", "pods", verdicttest.Who(n)).PrefixLength = 32
				w.Bridge(n, "cni0", "10.9.0.1/16")
			}
		}, unknown, []string{overlap, lost, static}},
		{"bridges of both nodes whose prefix has it", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "cni0", "pods", verdicttest.Who(n)).PrefixLength = 32
				w.Bridge(n, "cni0", "10.244.0.1/16")
			}
		}, overlap, []string{static}},

		// Networks.
		{"two networks on one bridge", func(w *world) {
			w.Within("n1", "cni0", "net0", verdicttest.Who("a"))
			w.Within("n1", "cni0", "net1", verdicttest.Who("b"))
		}, networks, []string{static}},
		{"one network", func(w *world) {
			w.Within("n1", "cni0", "net0", verdicttest.Who("a"))
			w.Within("n1", "cni1", "net0", verdicttest.Who("b"))
		}, unknown, []string{networks, lost, static}},
		{"two networks of two nodes", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n2", "", "net1", verdicttest.Who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"two networks of two nodes on one LAN", func(w *world) {
			_, pods := lanOfPods(w, true, "n1", "n2")
			pods[0].Network, pods[1].Network = "net0", "net1"
		}, networks, []string{static}},
		{"a network, and a container on its bridge", func(w *world) {
			w.Bridge("n1", "cni0", "10.244.0.1/16")
			w.Within("n1", "cni0", "net0", verdicttest.Who("a"))
			w.Within("n1", "cni0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
		}, unknown, []string{networks, static}},
		{"two containers on one bridge", func(w *world) {
			w.Bridge("n1", "br0", "10.244.0.1/16")
			for _, id := range []string{"c1", "c2"} {
				w.Within("n1", "br0", "", verdict.Workload{Kind: verdict.Container, ContainerID: id, Source: "cgroup"})
			}
		}, unknown, nil},
		{"containers on two bridges of one range", func(w *world) {
			for _, br := range []string{"br0", "br1"} {
				w.Bridge("n1", br, "10.244.0.1/16")
				w.Within("n1", br, "", verdict.Workload{Kind: verdict.Container, ContainerID: "c" + br, Source: "cgroup"})
			}
		}, networks, nil},
		{"two networks with one pool", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net1", verdicttest.Who("b"))
			w.Pool(verdict.HostLocal, "n1", "").Networks = []string{"net0", "net1"}
		}, lost, []string{networks, static}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}

func TestCausesOfDevices(t *testing.T) {
	// web is a pod that a CNI network gave the address.
	web := func(w *world) { w.Within("n1", "", "kindnet", verdicttest.Who("web")) }
	// gateway is a bridge of the node with the address, and a pod on it.
	gateway := func(w *world, change func(i *verdict.Interface)) {
		w.Addr = netip.MustParseAddr("10.244.0.1")
		w.Within("n1", "cni0", "", verdicttest.Who("web"))
		i := w.Device("n1", "cni0", "bridge")
		if change != nil {
			change(i)
		}
	}
	for _, test := range []struct {
		name     string
		build    func(w *world)
		cause    string
		excluded []string
	}{
		// Devices outside.
		{"two devices outside", func(w *world) {
			port := w.Uplink("n1")
			a := w.Wire(port, stranger)
			w.after(time.Millisecond).Wire(port, other)
			w.after(time.Millisecond).Seen(a)
		}, unknown, nil},
		{"a device outside", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Wire(port, stranger)
		}, outside, nil},
		{"a device outside with a MAC of Calico's", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Wire(port, calico)
		}, unknown, []string{outside}},
		{"a device behind a port that is no uplink", func(w *world) {
			port := w.Uplink("n1")
			port.Uplink = false
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Wire(port, stranger)
		}, unknown, nil},
		{"a device outside, and IPAM has it for a node with an agent", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, stranger)
			w.Calico(w.Pool(verdict.Whereabouts, "", "lan"), "x", "n1")
		}, outside, []string{elsewhere, lost}},
		{"a device outside, and IPAM has it for a node without an agent", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, stranger)
			w.Uncovered = []string{"n9"}
			w.Calico(w.Pool(verdict.Whereabouts, "", "lan"), "x", "n9")
		}, unknown, []string{outside, elsewhere, lost}},
		{"a device outside, and IPAM has it for no node", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, stranger)
			w.Uncovered = []string{"n9"}
			w.Calico(w.Pool(verdict.Whereabouts, "", "lan"), "x", "")
		}, outside, []string{elsewhere, lost}},
		{"a device outside, and IPAM has it for the pod, on a node without an agent", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, stranger)
			w.Uncovered = []string{"n1"}
			w.Calico(w.Pool(verdict.Whereabouts, "", "lan"), "a", "n1")
		}, outside, []string{elsewhere, lost}},

		// Tunnels.
		{"a tunnel", func(w *world) { web(w); w.Device("n1", "vxlan0", "vxlan") }, tunnel, nil},
		{"Cilium's own device", func(w *world) {
			web(w)
			w.Device("n1", "cilium_host", "").Link.Kind = verdict.PointToPoint
		}, tunnel, nil},
		{"two addresses of the node, of which the second is a tunnel's", func(w *world) {
			web(w)
			w.Device("n1", "dev0", "dummy")
			w.Device("n1", "vxlan0", "vxlan")
		}, tunnel, nil},
		{"a tunnel's name on a service address", func(w *world) {
			web(w)
			w.Device("n1", "eth0", "")
			w.Device("n1", "vxlan0", "vxlan").Attachment = verdict.Local
		}, static, []string{tunnel}},
		{"tunnels of two nodes", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Device("n1", "vxlan0", "vxlan")
			w.Device("n2", "vxlan0", "vxlan")
		}, unknown, []string{split}},
		{"a tunnel, and a device outside", func(w *world) {
			i := w.Device("n1", "vxlan0", "vxlan")
			i.Uplink = true
			w.Wire(i, stranger)
		}, outside, nil},

		// By hand.
		{"on a device of the node", func(w *world) { web(w); w.Device("n1", "eth0", "") }, static, []string{tunnel}},
		{"on a port of a pod", func(w *world) {
			web(w)
			i := w.Device("n1", "dev0", "veth")
			i.Peer = 7
		}, unknown, []string{tunnel}},
		{"on a bridge that pods are on", func(w *world) { gateway(w, nil) }, static, []string{tunnel}},
		{"on a bridge whose kind is not known", func(w *world) { gateway(w, func(i *verdict.Interface) { i.Kind = "" }) }, static, []string{tunnel}},
		{"on a device of another kind with the name of a bridge", func(w *world) { gateway(w, func(i *verdict.Interface) { i.Kind = "dummy" }) }, unknown, []string{tunnel}},
		{"on a port of the bridge, whose kind is not known", func(w *world) {
			gateway(w, func(i *verdict.Interface) { i.Kind, i.Name = "", "port" })
		}, unknown, []string{tunnel}},
		{"on an uplink with the name of a bridge, whose kind is not known", func(w *world) {
			gateway(w, func(i *verdict.Interface) { i.Kind, i.Uplink = "", true })
		}, unknown, []string{tunnel}},
		{"on a device without a link, whose kind is not known", func(w *world) {
			gateway(w, func(i *verdict.Interface) { i.Kind, i.Link = "", nil })
		}, unknown, []string{tunnel}},
		{"on a link of that name that is no bridge, of no known kind", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "", "", verdicttest.Who("web"))
			i := w.Device("n1", "cni0", "")
			i.Kind = ""
		}, unknown, []string{tunnel}},
		{"on the bridge, and the pod is on another one", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "cni1", "", verdicttest.Who("web"))
			w.Device("n1", "cni0", "bridge")
		}, unknown, []string{tunnel}},
		{"on the bridge, and the pod is on a bridge of that name of another node", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n2", "cni0", "", verdicttest.Who("web"))
			w.Device("n1", "cni0", "bridge")
		}, unknown, []string{tunnel, overlap}},
		{"on a bridge of a pool, and the pod is elsewhere", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "", "", verdicttest.Who("web"))
			w.Device("n1", "cni0", "bridge")
			w.Pool(verdict.HostLocal, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "cni0"
		}, static, []string{tunnel}},
		{"on a bridge of another pool, and the pod is elsewhere", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "", "", verdicttest.Who("web"))
			w.Device("n1", "cni0", "bridge")
			w.Pool(verdict.HostLocal, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "cni1"
		}, unknown, []string{tunnel}},
		{"on a device of a pool that is no bridge, and the pod is elsewhere", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "", "", verdicttest.Who("web"))
			w.Device("n1", "dev0", "dummy")
			w.Pool(verdict.HostLocal, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "dev0"
		}, unknown, []string{tunnel}},
		{"on a bridge of docker", func(w *world) { web(w); w.Device("n1", "docker0", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge of docker's with a name of digits", func(w *world) { web(w); w.Device("n1", "br-0123456789ab", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge with a shorter name", func(w *world) { web(w); w.Device("n1", "br-0123456789a", "bridge") }, static, []string{tunnel}},
		{"on a bridge with a name of other letters", func(w *world) { web(w); w.Device("n1", "br-0123456789xy", "bridge") }, static, []string{tunnel}},
		{"on a bridge with a name of digits alone", func(w *world) { web(w); w.Device("n1", "0123456789ab", "bridge") }, static, []string{tunnel}},
		{"on a bridge of libvirt", func(w *world) { web(w); w.Device("n1", "virbr7", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge of podman", func(w *world) { web(w); w.Device("n1", "podman1", "bridge") }, unknown, []string{tunnel, static}},
		{"in a container without a name", func(w *world) {
			web(w)
			w.Within("n1", "", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"in a namespace with a name in which a container is", func(w *world) {
			web(w)
			w.Within("n1", "", "", verdict.Workload{Kind: verdict.Container, Name: "blue", ContainerID: "c1", Source: "netns"})
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, static, []string{lost}},
		{"in a container on a bridge of docker's", func(w *world) {
			web(w)
			w.Within("n1", "docker0", "", blue("blue"))
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"in a namespace that IPAM may have it for", func(w *world) {
			web(w)
			w.Within("n1", "", "", blue("blue"))
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "x")
		}, unknown, []string{lost, static}},
		{"in a namespace, and IPAM has it for nobody", func(w *world) {
			web(w)
			w.Within("n1", "", "", blue("blue"))
			w.Pool(verdict.HostLocal, "n1", "kindnet")
		}, unknown, []string{lost, static}},
		{"in a pod of which the CNI result does not have it", func(w *world) { web(w); w.Within("n1", "", "", verdicttest.Who("mad")) }, static, nil},
		{"in a pod of which no CNI result is known", func(w *world) {
			web(w)
			mad := verdicttest.Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
		}, unknown, []string{static}},
		{"in a pod of which no CNI result is known, and the API has it for the pod", func(w *world) {
			web(w)
			mad := verdicttest.Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
			w.Says("uid-mad", verdict.PodObject{Namespace: "default", Name: "mad", Phase: "Running", IPs: []netip.Addr{w.Addr}})
		}, unknown, []string{static}},
		{"in a pod of which no CNI result is known, and the API has no address of the pod", func(w *world) {
			web(w)
			mad := verdicttest.Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
			w.running("mad")
		}, unknown, []string{static}},
		{"on a further interface of a pod", func(w *world) {
			web(w)
			w.Within("n1", "", "", verdicttest.Who("mad")).Interface.Name = "net1"
		}, unknown, []string{static}},
		{"in a pod, and the other one is a namespace that nobody knows", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
		}, unknown, []string{static}},
		{"in a pod, and the other one is a namespace that nobody knows, in a range of pods", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
			w.PodCIDR = netip.MustParsePrefix("10.244.0.0/16")
		}, static, nil},
		{"in a pod, and the other one is a namespace that nobody knows, in a range of IPAM", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
			w.Pool(verdict.HostLocal, "n1", "lab")
		}, static, nil},
		{"in a pod, and the other one is a namespace that nobody knows, in no range of IPAM", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
			w.Pool(verdict.HostLocal, "n1", "lab", "10.9.0.1-10.9.0.9")
		}, unknown, []string{static}},
		{"two namespaces that nobody knows, in a range of IPAM", func(w *world) {
			w.Within("n1", "", "", blue("red"))
			w.Within("n1", "", "", blue("blue"))
			w.Pool(verdict.HostLocal, "n1", "lab")
		}, unknown, nil},
		{"behind a pod that was given another address", func(w *world) {
			w.Within("n1", "br0", "kindnet", verdicttest.Who("web"))
			_, port := w.guestOf("n1", "vm")
			w.Wire(port, stranger)
		}, static, []string{outside}},
		{"behind a pod of which nothing is known that it was given", func(w *world) {
			w.Within("n1", "br0", "kindnet", verdicttest.Who("web"))
			inside, port := w.guestOf("n1", "vm")
			sourced(inside.Namespace, "cri", "")
			w.Wire(port, stranger)
		}, unknown, []string{outside, static}},
		{"behind a pod that the API has with another address", func(w *world) {
			w.Within("n1", "br0", "kindnet", verdicttest.Who("web"))
			inside, port := w.guestOf("n1", "vm")
			sourced(inside.Namespace, "cri", "")
			w.Says("uid-vm", verdict.PodObject{Namespace: "default", Name: "vm", Phase: "Running", IPs: []netip.Addr{netip.MustParseAddr("10.9.9.9")}})
			w.Wire(port, stranger)
		}, static, []string{outside}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}

func TestAllocationsAreInOneOrder(t *testing.T) {
	w := newWorld("10.244.1.5")
	verdicttest.Twins(w.World)
	whole := func(name, ipam string) *verdict.Pool {
		return &verdict.Pool{IPAM: ipam, Name: name, State: verdict.PoolKnown}
	}
	of := func(node, name, ipam string) *verdict.Pool {
		p := whole(name, ipam)
		p.Node = w.Node(node)
		return p
	}
	al := func(p *verdict.Pool, al verdict.Allocation) *verdict.Allocation {
		al.Pool, al.Address = p, w.Addr
		return &al
	}
	want := []*verdict.Allocation{
		al(whole("z", verdict.Calico), verdict.Allocation{}),
		al(whole("a", verdict.KubernetesAPI), verdict.Allocation{}),
		al(whole("b", verdict.KubernetesAPI), verdict.Allocation{}),
		al(of("n1", "z", verdict.Calico), verdict.Allocation{}),
		al(of("n1", "a", verdict.HostLocal), verdict.Allocation{Location: "1", Node: "z", Pod: "z"}),
		al(of("n1", "a", verdict.HostLocal), verdict.Allocation{Location: "2", Node: "a", Namespace: "z"}),
		al(of("n1", "a", verdict.HostLocal), verdict.Allocation{Location: "2", Node: "b", Namespace: "a", Pod: "z"}),
		al(of("n1", "a", verdict.HostLocal), verdict.Allocation{Location: "2", Node: "b", Namespace: "b", Pod: "a", ContainerID: "z"}),
		al(of("n1", "a", verdict.HostLocal), verdict.Allocation{Location: "2", Node: "b", Namespace: "b", Pod: "b", ContainerID: "a", Interface: "z"}),
		al(of("n1", "a", verdict.HostLocal), verdict.Allocation{Location: "2", Node: "b", Namespace: "b", Pod: "b", ContainerID: "b", Interface: "a"}),
		al(of("n1", "a", verdict.HostLocal), verdict.Allocation{Location: "2", Node: "b", Namespace: "b", Pod: "b", ContainerID: "b", Interface: "b"}),
		al(of("n2", "a", verdict.Calico), verdict.Allocation{}),
	}
	w.Allocations = slices.Clone(want)
	for range 3 { // also after what was remembered
		slices.Reverse(w.Allocations)
		if got := w.judge().Conflicts[0].Allocations; !slices.Equal(got, want) {
			t.Errorf("got allocations %+v, want %+v", got, want)
		}
	}
}

func TestAKeeperIsForgottenThatIsNotKnownAnyMore(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.Within("n1", "", "kindnet", verdicttest.Who("a"))
	w.Within("n1", "", "kindnet", verdicttest.Who("b"))
	w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "a")
	if c := w.judge().Conflicts[0]; keeper(&c) != "a" || c.Right != verdict.RightAllocation {
		t.Fatalf("got %q by %d, want a by its allocation", keeper(&c), c.Right)
	}
	w.Allocations = nil
	if c := w.judge().Conflicts[0]; c.Keeper != "" || c.Right != verdict.RightUndecided {
		t.Errorf("got %q by %d, want nobody", keeper(&c), c.Right)
	}
}

// A cause is looked for between each two of several owners.
func TestCausesOfSeveralOwners(t *testing.T) {
	// pool gives the address on a node, and has it for a pod there.
	pool := func(w *world, node string) {
		w.Within(node, "", "pods", verdicttest.Who("web"+node))
		w.Books(w.Pool(verdict.HostLocal, node, "pods"), "web"+node)
	}
	for _, test := range []struct {
		name     string
		build    func(w *world)
		cause    string
		excluded []string
	}{
		{"two of one node and one of another, in the ranges of pods of both", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, name := range []string{"a", "b"} {
				w.Within("n1", "", "pods", verdicttest.Who(name))
			}
			w.Within("n2", "", "pods", verdicttest.Who("c"))
		}, overlap, []string{networks, static}},
		{"one of a pool of the cluster, and two of ranges of pods", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2", "n3"} {
				w.Within(node, "", "pods", verdicttest.Who("web"+node))
			}
			w.Books(w.Pool(verdict.Whereabouts, "", "lan"), "webn1")
		}, overlap, []string{elsewhere, lost, static}},
		{"the first of two has it from a pool of the cluster, in the ranges of pods", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2"} {
				w.Within(node, "", "pods", verdicttest.Who("web"+node))
			}
			w.Books(w.Pool(verdict.Whereabouts, "", "lan"), "webn1")
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"the second of two has it from a pool of the cluster, in the ranges of pods", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2"} {
				w.Within(node, "", "pods", verdicttest.Who("web"+node))
			}
			w.Books(w.Pool(verdict.Whereabouts, "", "lan"), "webn2")
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"one of no known range, and two of pools", func(w *world) {
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			pool(w, "n2")
			pool(w, "n3")
		}, overlap, []string{lost, static}},
		{"one of no known range, and two of pools, in the range of pods of another node", func(w *world) {
			w.PodCIDR, w.PodCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n9"
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			pool(w, "n2")
			pool(w, "n3")
		}, overlap, []string{lost, static}},
		{"two of no known range, and two of pools", func(w *world) {
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "pods", verdicttest.Who("b"))
			pool(w, "n3")
			pool(w, "n4")
		}, overlap, []string{lost, static}},
		{"two that nobody gave it, and two of pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			w.Within("n1", "", "", verdicttest.Who("a"))
			w.Within("n2", "", "", verdicttest.Who("b"))
			pool(w, "n3")
			pool(w, "n4")
		}, overlap, []string{lost}},
		{"pools of two nodes that have it outside of their ranges", func(w *world) {
			for _, node := range []string{"n1", "n2"} {
				w.Within(node, "", "pods", verdicttest.Who("web"+node))
				w.Books(w.Pool(verdict.HostLocal, node, "lab", "10.9.0.1-10.9.0.9"), "web"+node)
			}
		}, overlap, []string{lost, static}},
		{"bridges of two nodes with an address of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.Device(node, "cni0", "bridge")
				w.Pool(verdict.HostLocal, node, "pods").Device = "cni0"
			}
		}, overlap, []string{split}},
		{"devices of two nodes that are no bridges, with an address of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.Device(node, "cni0", "dummy")
				w.Pool(verdict.HostLocal, node, "pods").Device = "cni0"
			}
		}, static, []string{split}},
		{"bridges of two nodes with an address of none of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.Device(node, "cni0", "bridge")
				w.Pool(verdict.HostLocal, node, "pods", "10.9.0.1-10.9.0.9").Device = "cni0"
			}
		}, unknown, []string{split}},

		{"one of another node, and two networks of one node", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n2", "", "net0", verdicttest.Who("b"))
			w.Within("n2", "", "net1", verdicttest.Who("c"))
		}, networks, []string{static}},
		{"one that nobody gave it, and two networks", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Within("n1", "", "", blue("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			w.Within("n1", "", "net1", verdicttest.Who("c"))
		}, networks, nil},
		{"two of one network, and one of another", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			w.Within("n1", "", "net1", verdicttest.Who("c"))
		}, networks, []string{static}},
		{"two containers of one bridge, and a network", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Bridge("n1", "br0", "10.244.0.1/16")
			for _, id := range []string{"c1", "c2"} {
				w.Within("n1", "br0", "", verdict.Workload{Kind: verdict.Container, ContainerID: id, Source: "cgroup"})
			}
			w.Within("n1", "", "net1", verdicttest.Who("c"))
		}, networks, nil},
		{"a network and a container of one bridge, and another network", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Bridge("n1", "cni0", "10.244.0.1/16")
			w.Within("n1", "cni0", "net0", verdicttest.Who("a"))
			w.Within("n1", "cni0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c2", Source: "cgroup"})
			w.Within("n1", "", "net1", verdicttest.Who("c"))
		}, networks, nil},
		{"two networks of one pool, and another network", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net1", verdicttest.Who("b"))
			w.Within("n1", "", "net2", verdicttest.Who("c"))
			w.Pool(verdict.HostLocal, "n1", "").Networks = []string{"net0", "net1"}
		}, networks, []string{static}},
		{"a network, and a bridge of the node with a prefix that has it", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Subnet(w.Device("n1", "br0", "bridge"), "10.244.0.1/16")
		}, static, []string{tunnel}},

		{"a node whose device is no tunnel, and one whose device is", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Device("n1", "eth0", "")
			w.Device("n2", "vxlan0", "vxlan")
			w.Within("n3", "", "net0", verdicttest.Who("a"))
		}, tunnel, nil},
		{"two pods and a tunnel", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			w.Device("n1", "vxlan0", "vxlan")
		}, tunnel, []string{networks}},

		{"it was booked for another node, and the rival came first", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(verdict.Calico, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n9"})
		}, elsewhere, []string{overlap, static}},
		{"nodename is wrong, and the pod's own record vanished", func(w *world) {
			w.Node("n1").CalicoNodename = "n9"
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(verdict.Calico, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n1"})
		}, lost, []string{elsewhere, overlap, static}},
		{"two sandboxes of one pod, of which one was booked elsewhere", func(w *world) {
			a := w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			second := verdicttest.Who("a")
			second.ContainerID = "container-b"
			w.Within("n1", "", "kindnet", second)
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: w.Pool(verdict.Calico, "", ""), Namespace: "default", Pod: "x", Node: "n9"})
		}, unknown, nil},
		{"two that cannot be told apart, and one record", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Pod("a"))
			w.Within("n1", "", "kindnet", verdicttest.Pod("b"))
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "x")
		}, lost, []string{networks, static}},
		{"two that cannot be told apart, and two records", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Pod("a"))
			w.Within("n1", "", "kindnet", verdicttest.Pod("b"))
			p := w.Pool(verdict.HostLocal, "n1", "kindnet")
			w.Books(p, "x")
			w.Books(p, "y")
		}, unknown, []string{networks, lost, static}},
		{"one that has a record, and one that cannot be identified", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n1", "", "kindnet", verdicttest.Pod("b"))
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "a")
		}, lost, []string{networks, static}},
		{"a pool without records that may have given it, and one of another IPAM that has it for both", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			p := w.Pool(verdict.Calico, "", "")
			w.Books(p, "a")
			w.Books(p, "b")
			w.Pool(verdict.HostLocal, "n1", "")
		}, unknown, []string{elsewhere, networks, lost, static}},
		{"a pool without records that may have given it, and one of another realm that has it for both", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			p, q := w.Pool(verdict.Whereabouts, "", "net0"), w.Pool(verdict.Whereabouts, "", "net0")
			p.Realm, q.Realm, q.Name = "red", "blue", "q"
			w.Books(p, "a")
			w.Books(p, "b")
		}, unknown, []string{elsewhere, networks, lost, static}},
		{"a pool without records whose range does not have it", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			w.Pool(verdict.HostLocal, "n1", "net0", "10.9.0.1-10.9.0.9")
		}, unknown, []string{networks, static}},
		{"IPAM has it for one, and another record is for nobody in particular", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Within("n1", "", "", blue("blue"))
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "web")
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "").ContainerID = ""
		}, unknown, []string{lost, static}},
		{"IPAM has it for one, and of the other one, a pod, no CNI result is known", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			mad := verdicttest.Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"a container of which a CNI result tells", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Within("n1", "", "", verdict.Workload{Kind: verdict.Container, Name: "c", Source: "cni-result"})
		}, unknown, []string{static}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}

// sourced has a namespace known from a source.
func sourced(ns *verdict.Namespace, source, sources string) {
	who := ns.Who.Workload()
	who.Source, who.Sources = source, sources
	ns.Who = who.Who()
}

// A cause is summed up, and names the owners that are to give the address up, if it tells.
func TestCausesAreSummedUp(t *testing.T) {
	for name, want := range map[string]struct{ headline, wrong string }{
		"T1 the record of the first pod is gone":                      {"record-lost-given-again owners=old pool=host-local|n1|kindnet", ""},
		"T1 all records are gone":                                     {"record-lost-given-again pool=host-local|n1|kindnet", ""},
		"T3 booked for another node":                                  {"freed-with-other-owner owners=web record=default|web||n9", "web"},
		"T3 nodename is another node's":                               {"freed-with-other-node owners=web text=n9", "web"},
		"T5 each node's own IPAM has it for its own pod":              {"nodes-with-one-range nodes=n1,n2 ranges=10.244.0.1-10.244.255.254", ""},
		"T5 the ranges of pods of both nodes have it":                 {"nodes-with-one-range nodes=n1,n2", ""},
		"T14 two CNI networks":                                        {"networks-overlap nodes=n1", ""},
		"T6 on the node":                                              {"not-given owners=n1", "n1"},
		"T6 in a pod whose CNI result does not have it":               {"not-given owners=mad", "mad"},
		"T7 a machine outside has the node's address":                 {"owners-outside owners=" + verdict.MAC(stranger).String(), verdict.MAC(stranger).String()},
		"T10 the pod is no more, and IPAM has given its address away": {"sandbox-left owners=old", "old"},
		"T11 a tunnel":                                                {"tunnel-has-address owners=n1,web device=vxlan.calico text=vxlan", "web"},
		"T11 the bridge that pods are on":                             {"not-given-gateway owners=web device=cni0", "web"},
	} {
		i := slices.IndexFunc(verdicttest.Situations, func(s verdicttest.Situation) bool { return s.Name == name })
		if i < 0 {
			t.Errorf("%s: got no such situation", name)
			continue
		}
		_, c := verdicttest.Situations[i].Judge()
		if c == nil || c.Headline == nil {
			t.Errorf("%s: got conflict %+v, want one that is summed up", name, c)
			continue
		}
		var wrong []string
		for _, id := range c.Wrong {
			wrong = append(wrong, verdicttest.Name(c, id))
		}
		if got := verdicttest.Words(c, *c.Headline)[0]; got != want.headline || strings.Join(wrong, " ") != want.wrong {
			t.Errorf("%s: got %s, wrong %q, want %s, wrong %q", name, got, wrong, want.headline, want.wrong)
		}
	}
}

// A cause names the owners that are wrong, the pools that it is about, and the networks or nodes whose
// ranges overlap.
func TestWhatCausesAreAbout(t *testing.T) {
	for _, test := range []struct {
		name     string
		build    func(w *world)
		wrong    []string
		from     []string
		networks []string
	}{
		{"a tunnel, and a pod that a pool gave it", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Device("n1", "vxlan0", "vxlan")
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "web")
			w.Pool(verdict.HostLocal, "n9", "kindnet")
		}, []string{"web"}, []string{"host-local kindnet n1"}, nil},
		{"a tunnel, and a pod for which Calico has it", func(w *world) {
			w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Device("n1", "vxlan.calico", "vxlan")
			w.Calico(w.Pool(verdict.Calico, "", ""), "web", "n1")
		}, []string{"n1"}, []string{"calico "}, nil},
		{"a tunnel that Calico has it for, and a pod", func(w *world) {
			w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Device("n1", "vxlan.calico", "vxlan")
			al := w.Calico(w.Pool(verdict.Calico, "", ""), "", "n1")
			al.Purpose, al.ContainerID, al.Namespace = "VXLAN tunnel", "", ""
		}, []string{"web"}, []string{"calico "}, nil},
		{"bridges of two nodes", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "cni0", "pods", verdicttest.Who(n)).PrefixLength = 32
				w.Bridge(n, "cni0", "10.244.0.1/16")
			}
		}, nil, nil, []string{"n1 n1  cni0 10.244.0.0/16", "n2 n2  cni0 10.244.0.0/16"}},
		{"ranges of pods, of which one node has a pool", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "pods", verdicttest.Who("b"))
			w.Books(w.Pool(verdict.HostLocal, "n2", "pods"), "b")
		}, nil, []string{"host-local pods n2"}, []string{"a n1  ", "b n2   10.244.0.1-10.244.255.254 host-local pods n2"}},
		{"pools of two nodes", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", verdicttest.Who("web"+n))
				w.Books(w.Pool(verdict.HostLocal, n, "pods"), "web"+n)
			}
		}, nil, []string{"host-local pods n1", "host-local pods n2"}, []string{"webn1 n1   10.244.0.1-10.244.255.254 host-local pods n1", "webn2 n2   10.244.0.1-10.244.255.254 host-local pods n2"}},
		{"two networks with pools", func(w *world) {
			w.Within("n1", "cni0", "net0", verdicttest.Who("a"))
			w.Within("n1", "cni1", "net1", verdicttest.Who("b"))
			w.Books(w.Pool(verdict.HostLocal, "n1", "net0", "10.244.1.1-10.244.1.9"), "a")
			w.Books(w.Pool(verdict.HostLocal, "n1", "net1", "10.244.1.2-10.244.1.8"), "b")
		}, nil, []string{"host-local net0 n1", "host-local net1 n1"}, []string{"a n1 net0 cni0 10.244.1.1-10.244.1.9 host-local net0 n1", "b n1 net1 cni1 10.244.1.2-10.244.1.8 host-local net1 n1"}},
		{"a network with a pool, and a bridge", func(w *world) {
			w.Bridge("n1", "br0", "10.244.0.1/16")
			w.Within("n1", "br0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c", Source: "cgroup"})
			w.Within("n1", "cni1", "net1", verdicttest.Who("b"))
			w.Pool(verdict.HostLocal, "n1", "net1", "10.244.1.2-10.244.1.8")
		}, nil, []string{"host-local net1 n1"}, []string{"c n1  br0 10.244.0.0/16", "b n1 net1 cni1 10.244.1.2-10.244.1.8 host-local net1 n1"}},
		{"a record that is lost", func(w *world) {
			verdicttest.Twins(w.World)
			w.Books(w.Pool(verdict.HostLocal, "n1", "kindnet"), "new")
			w.Pool(verdict.HostLocal, "n1", "other", "10.9.0.1-10.9.0.9")
		}, nil, []string{"host-local kindnet n1"}, nil},
		{"in a pod, and in a range of IPAM", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
			w.Pool(verdict.HostLocal, "n1", "lab")
			w.Pool(verdict.HostLocal, "n1", "far", "10.9.0.1-10.9.0.9")
		}, []string{"mad"}, []string{"host-local lab n1"}, nil},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		c := w.judge().Conflicts[0]
		var wrong, from, networks []string
		for _, id := range c.Wrong {
			wrong = append(wrong, verdicttest.Name(&c, id))
		}
		for _, p := range c.From {
			from = append(from, p.Subject())
		}
		for _, n := range c.Networks {
			text := strings.Join([]string{verdicttest.Name(&c, n.Owner), n.Node.Name, n.Network, n.Device}, " ")
			for _, r := range n.Ranges.List {
				text += " " + r.String()
			}
			if n.Pool != nil {
				text += " " + n.Pool.Subject()
			}
			networks = append(networks, text)
		}
		for _, all := range [][]string{from, networks} {
			for i := range all {
				all[i] = strings.ReplaceAll(all[i], "/var/lib/cni/networks/", "")
			}
		}
		if !slices.Equal(wrong, test.wrong) || !slices.Equal(from, test.from) || !slices.Equal(networks, test.networks) {
			t.Errorf("%s: got wrong %q, from %q, networks %q, want %q, %q, %q", test.name, wrong, from, networks, test.wrong, test.from, test.networks)
		}
	}
}
