package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
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
	for _, e := range c.Excluded {
		got = append(got, e.Cause)
	}
	if c.Cause != cause || !slices.Equal(got, excluded) {
		t.Errorf("%s: got %s, not %q, want %s, not %q", why, c.Cause, got, cause, excluded)
	}
}

// running has the Kubernetes API say that pods run.
func (w *world) running(names ...string) {
	for _, name := range names {
		w.says("uid-"+name, verdict.PodObject{Namespace: "default", Name: name, Phase: "Running"})
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
		{"both pods run", func(w *world) { twins(w); w.running("old", "new") }, unknown, []string{orphan, networks, lost, static}},
		{"one pod runs, and of the other one the API says nothing", func(w *world) { twins(w); w.running("old") }, unknown, []string{networks, lost, static}},
		{"one pod runs, and the API has the other one not yet", func(w *world) {
			twins(w)
			w.running("old")
			w.says("uid-new", verdict.PodObject{Absent: true})
		}, unknown, []string{networks, lost, static}},
		{"one pod runs, and the other one has ended just now", func(w *world) {
			twins(w)
			w.running("old")
			w.says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Failed", Heard: w.now})
		}, unknown, []string{networks, lost, static}},
		{"one pod has ended", func(w *world) {
			twins(w)
			w.running("old")
			w.says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Failed", Heard: w.now.Add(-time.Minute)})
		}, orphan, []string{networks, static}},
		{"a pod runs, and a namespace that nobody knows has its address", func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.within("n1", "", "", blue("blue"))
			w.running("web")
		}, unknown, []string{orphan, static}},
		{"a pod that was left behind, and one that migrates", func(w *world) {
			vm := who("l1")
			vm.VirtualMachine = "vm"
			w.within("n1", "", "kindnet", vm)
			vm.Name, vm.UID, vm.ContainerID = "l2", "uid-l2", "c2"
			w.within("n1", "", "kindnet", vm)
			w.says("uid-l1", verdict.PodObject{Namespace: "default", Name: "l1", Phase: "Succeeded", Heard: w.now.Add(-time.Minute)})
		}, orphan, nil},

		// Records of IPAM.
		{"one sandbox of a pod after the other", func(w *world) {
			w.within("n1", "", "kindnet", who("a"))
			second := who("a")
			second.ContainerID = "container-b"
			w.within("n1", "", "kindnet", second)
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "b")
		}, unknown, nil},
		{"the record of one is gone, of a pool that is known by its record alone", func(w *world) {
			twins(w)
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
			w.pools = nil
		}, lost, []string{networks, static}},
		{"the Kubernetes API has it for one of them", func(w *world) {
			w.within("n1", "", "", blue("blue"))
			cri := who("web")
			cri.Source = "cri"
			w.within("n1", "", "", cri)
			p := &verdict.Pool{IPAM: verdict.KubernetesAPI, Name: "pods", State: verdict.PoolKnown}
			w.pools = append(w.pools, p)
			w.books(p, "web")
		}, unknown, []string{static}},
		{"a pool of another node has a record", func(w *world) {
			twins(w)
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new").Pool.Node = w.node("n9")
		}, unknown, []string{networks, static}},
		{"pods of three, of whom two were given it by one pool", func(w *world) {
			twins(w)
			w.within("n1", "", "other", who("third"))
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
		}, networks, []string{static}},
		{"the pool has it for both", func(w *world) {
			twins(w)
			p := w.pool(verdict.HostLocal, "n1", "kindnet")
			w.books(p, "old")
			w.books(p, "new")
		}, unknown, []string{networks, lost, static}},
		{"two pods of two networks, and records of one that cannot be read", func(w *world) {
			w.within("n1", "", "kindnet", who("a"))
			w.within("n1", "", "lan", who("b"))
			p := w.pool(verdict.HostLocal, "n1", "")
			p.Networks, p.State = []string{"kindnet", "lan"}, verdict.PoolUnreadable
		}, unknown, []string{networks, lost, static}},
		{"two pods on two nodes, and no records", func(w *world) {
			w.within("n1", "", "kindnet", who("a"))
			w.within("n2", "", "kindnet", who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"two pods on two nodes, and records of a pool of the cluster that is read", func(w *world) {
			w.within("n1", "", "kindnet", who("a"))
			w.within("n2", "", "kindnet", who("b"))
			w.pool(verdict.Whereabouts, "", "kindnet").State = verdict.PoolReading
		}, unknown, []string{overlap, lost, static}},
		{"it was booked for another node, which is not known any more", func(w *world) {
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.within("n2", "", "k8s-pod-network", who("db"))
			w.was(a, verdict.FindingBookedElsewhere, nil)
		}, unknown, []string{overlap, lost, static}},
		{"it was booked for another pod of this node before the rival came", func(w *world) {
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.after(time.Minute).within("n2", "", "k8s-pod-network", who("db"))
			p := w.pool(verdict.Calico, "", "")
			w.calico(p, "db", "n2")
			w.was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "x", Node: "n1"})
		}, elsewhere, []string{overlap, static}},
		{"it was booked for another pod of this node after the rival came", func(w *world) {
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.within("n2", "", "k8s-pod-network", who("db"))
			p := w.pool(verdict.Calico, "", "")
			w.calico(p, "db", "n2")
			w.was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "x", Node: "n1"})
		}, lost, []string{elsewhere, overlap, static}},
		{"it was booked for another node, and its own record vanished, too", func(w *world) {
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.after(time.Minute).within("n2", "", "k8s-pod-network", who("db"))
			p := w.pool(verdict.Calico, "", "")
			w.calico(p, "db", "n2")
			w.was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n9"})
			w.was(a, verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n1"})
		}, lost, []string{elsewhere, overlap, static}},
		{"it was booked for another node, and nobody else was given it", func(w *world) {
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.after(time.Minute).within("n2", "", "", blue("db"))
			w.declare("pods 10.0.0.0/8")
			p := w.pool(verdict.Calico, "", "")
			w.was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n9"})
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"nodename is wrong, and IPAM has it for that pod", func(w *world) {
			w.node("n1").CalicoNodename = "n9"
			w.within("n1", "", "k8s-pod-network", who("web"))
			w.after(time.Minute).within("n2", "", "k8s-pod-network", who("db"))
			w.calico(w.pool(verdict.Calico, "", ""), "web", "n1")
		}, lost, []string{elsewhere, overlap, static}},
		{"nodename is right, and no IPPool is known", func(w *world) {
			w.node("n1").CalicoNodename = "n1"
			twins(w)
		}, unknown, []string{networks, lost, static}},

		// Ranges.
		{"ranges of pods of both nodes", func(w *world) {
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.within("n1", "", "pods", who("a"))
			w.within("n2", "", "pods", who("b"))
		}, overlap, []string{static}},
		{"ranges of pods of both nodes, and nobody is known to have given it to one", func(w *world) {
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.within("n1", "", "pods", who("a"))
			w.within("n2", "", "", who("b"))
		}, static, []string{overlap}},
		{"ranges of pods of another node than these", func(w *world) {
			w.podCIDR, w.podCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n9"
			w.within("n1", "", "pods", who("a"))
			w.within("n2", "", "pods", who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"the range of pods of the second node", func(w *world) {
			w.podCIDR, w.podCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n2"
			w.within("n1", "", "pods", who("a"))
			w.within("n2", "", "pods", who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"the bridges of both nodes, in the ranges of pods", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.1.1")
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.device("n1", "cni0", "bridge")
			w.device("n2", "cni0", "bridge")
		}, overlap, []string{split}},
		{"bridges of docker, in the ranges of pods", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.1.1")
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.device("n1", "docker0", "bridge")
			w.device("n2", "docker0", "bridge")
		}, unknown, []string{split, overlap, static}},
		{"ports of pods of both nodes, in the ranges of pods", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.1.1")
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, n := range []string{"n1", "n2"} {
				w.assigned(w.iface(w.host(n), verdict.Interface{Name: "veth0", Kind: "veth", Attachment: verdict.Own, Link: w.link(n, "veth0", verdict.PointToPoint, false), Peer: 7}))
			}
		}, overlap, []string{split}},
		{"uplinks of both nodes, in the ranges of pods", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.device("n1", "eth0", "")
			w.device("n2", "eth0", "")
		}, static, []string{split, overlap}},
		{"pools of both nodes, of which the first gave it", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "", "pods", who("web"+n))
			}
			w.books(w.pool(verdict.HostLocal, "n1", "pods"), "webn1")
		}, unknown, []string{overlap, lost, static}},
		{"pools of both nodes, of which the second gave it", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "", "pods", who("web"+n))
			}
			w.books(w.pool(verdict.HostLocal, "n2", "pods"), "webn2")
		}, unknown, []string{overlap, lost, static}},
		{"a pool of the cluster gave it to one", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "", "pods", who("web"+n))
			}
			w.books(w.pool(verdict.Whereabouts, "", "lan"), "webn2")
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"bridges of both nodes with prefixes of single addresses", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "cni0", "pods", who(n)).PrefixLength = 32
			}
		}, unknown, []string{overlap, lost, static}},
		{"bridges of both nodes with no known prefix", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "cni0", "pods", who(n)).PrefixLength = 0
			}
		}, unknown, []string{overlap, lost, static}},
		{"bridges of both nodes that are not routed", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "cni0", "pods", who(n))
				w.link(n, "cni0", verdict.Bridge, true).Routed = false
			}
		}, unknown, []string{overlap, lost, static}},
		{"bridges of both nodes whose prefix does not have it", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "cni0", "pods", who(n)).PrefixLength = 32
				w.bridge(n, "cni0", "10.9.0.1/16")
			}
		}, unknown, []string{overlap, lost, static}},
		{"bridges of both nodes whose prefix has it", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "cni0", "pods", who(n)).PrefixLength = 32
				w.bridge(n, "cni0", "10.244.0.1/16")
			}
		}, overlap, []string{static}},

		// Networks.
		{"two networks on one bridge", func(w *world) {
			w.within("n1", "cni0", "net0", who("a"))
			w.within("n1", "cni0", "net1", who("b"))
		}, networks, []string{static}},
		{"one network", func(w *world) {
			w.within("n1", "cni0", "net0", who("a"))
			w.within("n1", "cni1", "net0", who("b"))
		}, unknown, []string{networks, lost, static}},
		{"two networks of two nodes", func(w *world) {
			w.within("n1", "", "net0", who("a"))
			w.within("n2", "", "net1", who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"two networks of two nodes on one LAN", func(w *world) {
			_, pods := lanOfPods(w, true, "n1", "n2")
			pods[0].Network, pods[1].Network = "net0", "net1"
		}, networks, []string{static}},
		{"a network, and a container on its bridge", func(w *world) {
			w.bridge("n1", "cni0", "10.244.0.1/16")
			w.within("n1", "cni0", "net0", who("a"))
			w.within("n1", "cni0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
		}, unknown, []string{networks, static}},
		{"two containers on one bridge", func(w *world) {
			w.bridge("n1", "br0", "10.244.0.1/16")
			for _, id := range []string{"c1", "c2"} {
				w.within("n1", "br0", "", verdict.Workload{Kind: verdict.Container, ContainerID: id, Source: "cgroup"})
			}
		}, unknown, nil},
		{"containers on two bridges of one range", func(w *world) {
			for _, br := range []string{"br0", "br1"} {
				w.bridge("n1", br, "10.244.0.1/16")
				w.within("n1", br, "", verdict.Workload{Kind: verdict.Container, ContainerID: "c" + br, Source: "cgroup"})
			}
		}, networks, nil},
		{"two networks with one pool", func(w *world) {
			w.within("n1", "", "net0", who("a"))
			w.within("n1", "", "net1", who("b"))
			w.pool(verdict.HostLocal, "n1", "").Networks = []string{"net0", "net1"}
		}, lost, []string{networks, static}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}

func TestCausesOfDevices(t *testing.T) {
	// web is a pod that a CNI network gave the address.
	web := func(w *world) { w.within("n1", "", "kindnet", who("web")) }
	// gateway is a bridge of the node with the address, and a pod on it.
	gateway := func(w *world, change func(i *verdict.Interface)) {
		w.addr = netip.MustParseAddr("10.244.0.1")
		w.within("n1", "cni0", "", who("web"))
		i := w.device("n1", "cni0", "bridge")
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
			port := uplink(w, "n1")
			a := w.wire(port, stranger)
			w.after(time.Millisecond).wire(port, other)
			w.after(time.Millisecond).seen(a)
		}, unknown, nil},
		{"a device outside", func(w *world) {
			port := uplink(w, "n1")
			w.assigned(w.child("a", "baaaaa", port.Link))
			w.wire(port, stranger)
		}, outside, nil},
		{"a device outside with a MAC of Calico's", func(w *world) {
			port := uplink(w, "n1")
			w.assigned(w.child("a", "baaaaa", port.Link))
			w.wire(port, calico)
		}, unknown, []string{outside}},
		{"a device behind a port that is no uplink", func(w *world) {
			port := uplink(w, "n1")
			port.Uplink = false
			w.assigned(w.child("a", "baaaaa", port.Link))
			w.wire(port, stranger)
		}, unknown, nil},
		{"a device outside, and IPAM has it for a node with an agent", func(w *world) {
			port := uplink(w, "n1")
			w.assigned(w.child("a", "baaaaa", port.Link)).Network = "lan"
			w.wire(port, stranger)
			w.calico(w.pool(verdict.Whereabouts, "", "lan"), "x", "n1")
		}, outside, []string{elsewhere, lost}},
		{"a device outside, and IPAM has it for a node without an agent", func(w *world) {
			port := uplink(w, "n1")
			w.assigned(w.child("a", "baaaaa", port.Link)).Network = "lan"
			w.wire(port, stranger)
			w.uncovered = []string{"n9"}
			w.calico(w.pool(verdict.Whereabouts, "", "lan"), "x", "n9")
		}, unknown, []string{outside, elsewhere, lost}},
		{"a device outside, and IPAM has it for no node", func(w *world) {
			port := uplink(w, "n1")
			w.assigned(w.child("a", "baaaaa", port.Link)).Network = "lan"
			w.wire(port, stranger)
			w.uncovered = []string{"n9"}
			w.calico(w.pool(verdict.Whereabouts, "", "lan"), "x", "")
		}, outside, []string{elsewhere, lost}},
		{"a device outside, and IPAM has it for the pod, on a node without an agent", func(w *world) {
			port := uplink(w, "n1")
			w.assigned(w.child("a", "baaaaa", port.Link)).Network = "lan"
			w.wire(port, stranger)
			w.uncovered = []string{"n1"}
			w.calico(w.pool(verdict.Whereabouts, "", "lan"), "a", "n1")
		}, outside, []string{elsewhere, lost}},

		// Tunnels.
		{"a tunnel", func(w *world) { web(w); w.device("n1", "vxlan0", "vxlan") }, tunnel, nil},
		{"Cilium's own device", func(w *world) {
			web(w)
			w.device("n1", "cilium_host", "").Link.Kind = verdict.PointToPoint
		}, tunnel, nil},
		{"two addresses of the node, of which the second is a tunnel's", func(w *world) {
			web(w)
			w.device("n1", "dev0", "dummy")
			w.device("n1", "vxlan0", "vxlan")
		}, tunnel, nil},
		{"a tunnel's name on a service address", func(w *world) {
			web(w)
			w.device("n1", "eth0", "")
			w.device("n1", "vxlan0", "vxlan").Attachment = verdict.Local
		}, static, []string{tunnel}},
		{"tunnels of two nodes", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.device("n1", "vxlan0", "vxlan")
			w.device("n2", "vxlan0", "vxlan")
		}, unknown, []string{split}},
		{"a tunnel, and a device outside", func(w *world) {
			i := w.device("n1", "vxlan0", "vxlan")
			i.Uplink = true
			w.wire(i, stranger)
		}, outside, nil},

		// By hand.
		{"on a device of the node", func(w *world) { web(w); w.device("n1", "eth0", "") }, static, []string{tunnel}},
		{"on a port of a pod", func(w *world) {
			web(w)
			i := w.device("n1", "dev0", "veth")
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
			w.addr = netip.MustParseAddr("10.244.0.1")
			w.within("n1", "", "", who("web"))
			i := w.device("n1", "cni0", "")
			i.Kind = ""
		}, unknown, []string{tunnel}},
		{"on the bridge, and the pod is on another one", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.0.1")
			w.within("n1", "cni1", "", who("web"))
			w.device("n1", "cni0", "bridge")
		}, unknown, []string{tunnel}},
		{"on the bridge, and the pod is on a bridge of that name of another node", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.addr = netip.MustParseAddr("10.244.0.1")
			w.within("n2", "cni0", "", who("web"))
			w.device("n1", "cni0", "bridge")
		}, unknown, []string{tunnel, overlap}},
		{"on a bridge of a pool, and the pod is elsewhere", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.0.1")
			w.within("n1", "", "", who("web"))
			w.device("n1", "cni0", "bridge")
			w.pool(verdict.HostLocal, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "cni0"
		}, static, []string{tunnel}},
		{"on a bridge of another pool, and the pod is elsewhere", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.0.1")
			w.within("n1", "", "", who("web"))
			w.device("n1", "cni0", "bridge")
			w.pool(verdict.HostLocal, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "cni1"
		}, unknown, []string{tunnel}},
		{"on a device of a pool that is no bridge, and the pod is elsewhere", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.0.1")
			w.within("n1", "", "", who("web"))
			w.device("n1", "dev0", "dummy")
			w.pool(verdict.HostLocal, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "dev0"
		}, unknown, []string{tunnel}},
		{"on a bridge of docker", func(w *world) { web(w); w.device("n1", "docker0", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge of docker's with a name of digits", func(w *world) { web(w); w.device("n1", "br-0123456789ab", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge with a shorter name", func(w *world) { web(w); w.device("n1", "br-0123456789a", "bridge") }, static, []string{tunnel}},
		{"on a bridge with a name of other letters", func(w *world) { web(w); w.device("n1", "br-0123456789xy", "bridge") }, static, []string{tunnel}},
		{"on a bridge with a name of digits alone", func(w *world) { web(w); w.device("n1", "0123456789ab", "bridge") }, static, []string{tunnel}},
		{"on a bridge of libvirt", func(w *world) { web(w); w.device("n1", "virbr7", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge of podman", func(w *world) { web(w); w.device("n1", "podman1", "bridge") }, unknown, []string{tunnel, static}},
		{"in a container without a name", func(w *world) {
			web(w)
			w.within("n1", "", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"in a namespace with a name in which a container is", func(w *world) {
			web(w)
			w.within("n1", "", "", verdict.Workload{Kind: verdict.Container, Name: "blue", ContainerID: "c1", Source: "netns"})
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, static, []string{lost}},
		{"in a container on a bridge of docker's", func(w *world) {
			web(w)
			w.within("n1", "docker0", "", blue("blue"))
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"in a namespace that IPAM may have it for", func(w *world) {
			web(w)
			w.within("n1", "", "", blue("blue"))
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "x")
		}, unknown, []string{lost, static}},
		{"in a namespace, and IPAM has it for nobody", func(w *world) {
			web(w)
			w.within("n1", "", "", blue("blue"))
			w.pool(verdict.HostLocal, "n1", "kindnet")
		}, unknown, []string{lost, static}},
		{"in a pod of which the CNI result does not have it", func(w *world) { web(w); w.within("n1", "", "", who("mad")) }, static, nil},
		{"in a pod of which no CNI result is known", func(w *world) {
			web(w)
			mad := who("mad")
			mad.Source = "cri"
			w.within("n1", "", "", mad)
		}, unknown, []string{static}},
		{"in a pod of which no CNI result is known, and the API has it for the pod", func(w *world) {
			web(w)
			mad := who("mad")
			mad.Source = "cri"
			w.within("n1", "", "", mad)
			w.says("uid-mad", verdict.PodObject{Namespace: "default", Name: "mad", Phase: "Running", IPs: []netip.Addr{w.addr}})
		}, unknown, []string{static}},
		{"in a pod of which no CNI result is known, and the API has no address of the pod", func(w *world) {
			web(w)
			mad := who("mad")
			mad.Source = "cri"
			w.within("n1", "", "", mad)
			w.running("mad")
		}, unknown, []string{static}},
		{"on a further interface of a pod", func(w *world) {
			web(w)
			w.within("n1", "", "", who("mad")).Interface.Name = "net1"
		}, unknown, []string{static}},
		{"in a pod, and the other one is a namespace that nobody knows", func(w *world) {
			w.within("n1", "", "", who("mad"))
			w.within("n1", "", "", blue("blue"))
		}, unknown, []string{static}},
		{"in a pod, and the other one is a namespace that nobody knows, in a range of pods", func(w *world) {
			w.within("n1", "", "", who("mad"))
			w.within("n1", "", "", blue("blue"))
			w.podCIDR = netip.MustParsePrefix("10.244.0.0/16")
		}, static, nil},
		{"in a pod, and the other one is a namespace that nobody knows, in a range of IPAM", func(w *world) {
			w.within("n1", "", "", who("mad"))
			w.within("n1", "", "", blue("blue"))
			w.pool(verdict.HostLocal, "n1", "lab")
		}, static, nil},
		{"in a pod, and the other one is a namespace that nobody knows, in no range of IPAM", func(w *world) {
			w.within("n1", "", "", who("mad"))
			w.within("n1", "", "", blue("blue"))
			w.pool(verdict.HostLocal, "n1", "lab", "10.9.0.1-10.9.0.9")
		}, unknown, []string{static}},
		{"two namespaces that nobody knows, in a range of IPAM", func(w *world) {
			w.within("n1", "", "", blue("red"))
			w.within("n1", "", "", blue("blue"))
			w.pool(verdict.HostLocal, "n1", "lab")
		}, unknown, nil},
		{"behind a pod that was given another address", func(w *world) {
			w.within("n1", "br0", "kindnet", who("web"))
			_, port := w.guestOf("n1", "vm")
			w.wire(port, stranger)
		}, static, []string{outside}},
		{"behind a pod of which nothing is known that it was given", func(w *world) {
			w.within("n1", "br0", "kindnet", who("web"))
			inside, port := w.guestOf("n1", "vm")
			sourced(inside.Namespace, "cri", "")
			w.wire(port, stranger)
		}, unknown, []string{outside, static}},
		{"behind a pod that the API has with another address", func(w *world) {
			w.within("n1", "br0", "kindnet", who("web"))
			inside, port := w.guestOf("n1", "vm")
			sourced(inside.Namespace, "cri", "")
			w.says("uid-vm", verdict.PodObject{Namespace: "default", Name: "vm", Phase: "Running", IPs: []netip.Addr{netip.MustParseAddr("10.9.9.9")}})
			w.wire(port, stranger)
		}, static, []string{outside}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}

func TestAllocationsAreInOneOrder(t *testing.T) {
	w := newWorld("10.244.1.5")
	twins(w)
	whole := func(name, ipam string) *verdict.Pool {
		return &verdict.Pool{IPAM: ipam, Name: name, State: verdict.PoolKnown}
	}
	of := func(node, name, ipam string) *verdict.Pool {
		p := whole(name, ipam)
		p.Node = w.node(node)
		return p
	}
	al := func(p *verdict.Pool, al verdict.Allocation) *verdict.Allocation {
		al.Pool, al.Address = p, w.addr
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
	w.allocations = slices.Clone(want)
	for range 3 { // also after what was remembered
		slices.Reverse(w.allocations)
		if got := w.judge().Conflicts[0].Allocations; !slices.Equal(got, want) {
			t.Errorf("got allocations %+v, want %+v", got, want)
		}
	}
}

func TestAKeeperIsForgottenThatIsNotKnownAnyMore(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.within("n1", "", "kindnet", who("a"))
	w.within("n1", "", "kindnet", who("b"))
	w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "a")
	if c := w.judge().Conflicts[0]; keeper(&c) != "a" || c.Right != verdict.RightAllocation {
		t.Fatalf("got %q by %d, want a by its allocation", keeper(&c), c.Right)
	}
	w.allocations = nil
	if c := w.judge().Conflicts[0]; c.Keeper != "" || c.Right != verdict.RightUndecided {
		t.Errorf("got %q by %d, want nobody", keeper(&c), c.Right)
	}
}

// A cause is looked for between each two of several owners.
func TestCausesOfSeveralOwners(t *testing.T) {
	// pool gives the address on a node, and has it for a pod there.
	pool := func(w *world, node string) {
		w.within(node, "", "pods", who("web"+node))
		w.books(w.pool(verdict.HostLocal, node, "pods"), "web"+node)
	}
	for _, test := range []struct {
		name     string
		build    func(w *world)
		cause    string
		excluded []string
	}{
		{"two of one node and one of another, in the ranges of pods of both", func(w *world) {
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, name := range []string{"a", "b"} {
				w.within("n1", "", "pods", who(name))
			}
			w.within("n2", "", "pods", who("c"))
		}, overlap, []string{networks, static}},
		{"one of a pool of the cluster, and two of ranges of pods", func(w *world) {
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2", "n3"} {
				w.within(node, "", "pods", who("web"+node))
			}
			w.books(w.pool(verdict.Whereabouts, "", "lan"), "webn1")
		}, overlap, []string{elsewhere, lost, static}},
		{"the first of two has it from a pool of the cluster, in the ranges of pods", func(w *world) {
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2"} {
				w.within(node, "", "pods", who("web"+node))
			}
			w.books(w.pool(verdict.Whereabouts, "", "lan"), "webn1")
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"the second of two has it from a pool of the cluster, in the ranges of pods", func(w *world) {
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2"} {
				w.within(node, "", "pods", who("web"+node))
			}
			w.books(w.pool(verdict.Whereabouts, "", "lan"), "webn2")
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"one of no known range, and two of pools", func(w *world) {
			w.within("n1", "", "pods", who("a"))
			pool(w, "n2")
			pool(w, "n3")
		}, overlap, []string{lost, static}},
		{"one of no known range, and two of pools, in the range of pods of another node", func(w *world) {
			w.podCIDR, w.podCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n9"
			w.within("n1", "", "pods", who("a"))
			pool(w, "n2")
			pool(w, "n3")
		}, overlap, []string{lost, static}},
		{"two of no known range, and two of pools", func(w *world) {
			w.within("n1", "", "pods", who("a"))
			w.within("n2", "", "pods", who("b"))
			pool(w, "n3")
			pool(w, "n4")
		}, overlap, []string{lost, static}},
		{"two that nobody gave it, and two of pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			w.within("n1", "", "", who("a"))
			w.within("n2", "", "", who("b"))
			pool(w, "n3")
			pool(w, "n4")
		}, overlap, []string{lost}},
		{"pools of two nodes that have it outside of their ranges", func(w *world) {
			for _, node := range []string{"n1", "n2"} {
				w.within(node, "", "pods", who("web"+node))
				w.books(w.pool(verdict.HostLocal, node, "lab", "10.9.0.1-10.9.0.9"), "web"+node)
			}
		}, overlap, []string{lost, static}},
		{"bridges of two nodes with an address of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.device(node, "cni0", "bridge")
				w.pool(verdict.HostLocal, node, "pods").Device = "cni0"
			}
		}, overlap, []string{split}},
		{"devices of two nodes that are no bridges, with an address of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.device(node, "cni0", "dummy")
				w.pool(verdict.HostLocal, node, "pods").Device = "cni0"
			}
		}, static, []string{split}},
		{"bridges of two nodes with an address of none of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.device(node, "cni0", "bridge")
				w.pool(verdict.HostLocal, node, "pods", "10.9.0.1-10.9.0.9").Device = "cni0"
			}
		}, unknown, []string{split}},

		{"one of another node, and two networks of one node", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.within("n1", "", "net0", who("a"))
			w.within("n2", "", "net0", who("b"))
			w.within("n2", "", "net1", who("c"))
		}, networks, []string{static}},
		{"one that nobody gave it, and two networks", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.within("n1", "", "", blue("a"))
			w.within("n1", "", "net0", who("b"))
			w.within("n1", "", "net1", who("c"))
		}, networks, nil},
		{"two of one network, and one of another", func(w *world) {
			w.within("n1", "", "net0", who("a"))
			w.within("n1", "", "net0", who("b"))
			w.within("n1", "", "net1", who("c"))
		}, networks, []string{static}},
		{"two containers of one bridge, and a network", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.bridge("n1", "br0", "10.244.0.1/16")
			for _, id := range []string{"c1", "c2"} {
				w.within("n1", "br0", "", verdict.Workload{Kind: verdict.Container, ContainerID: id, Source: "cgroup"})
			}
			w.within("n1", "", "net1", who("c"))
		}, networks, nil},
		{"a network and a container of one bridge, and another network", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.bridge("n1", "cni0", "10.244.0.1/16")
			w.within("n1", "cni0", "net0", who("a"))
			w.within("n1", "cni0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c2", Source: "cgroup"})
			w.within("n1", "", "net1", who("c"))
		}, networks, nil},
		{"two networks of one pool, and another network", func(w *world) {
			w.within("n1", "", "net0", who("a"))
			w.within("n1", "", "net1", who("b"))
			w.within("n1", "", "net2", who("c"))
			w.pool(verdict.HostLocal, "n1", "").Networks = []string{"net0", "net1"}
		}, networks, []string{static}},
		{"a network, and a bridge of the node with a prefix that has it", func(w *world) {
			w.within("n1", "", "net0", who("a"))
			w.subnet(w.device("n1", "br0", "bridge"), "10.244.0.1/16")
		}, static, []string{tunnel}},

		{"a node whose device is no tunnel, and one whose device is", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.device("n1", "eth0", "")
			w.device("n2", "vxlan0", "vxlan")
			w.within("n3", "", "net0", who("a"))
		}, tunnel, nil},
		{"two pods and a tunnel", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.within("n1", "", "net0", who("a"))
			w.within("n1", "", "net0", who("b"))
			w.device("n1", "vxlan0", "vxlan")
		}, tunnel, []string{networks}},

		{"it was booked for another node, and the rival came first", func(w *world) {
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.within("n2", "", "k8s-pod-network", who("db"))
			p := w.pool(verdict.Calico, "", "")
			w.calico(p, "db", "n2")
			w.was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n9"})
		}, elsewhere, []string{overlap, static}},
		{"nodename is wrong, and the pod's own record vanished", func(w *world) {
			w.node("n1").CalicoNodename = "n9"
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.within("n2", "", "k8s-pod-network", who("db"))
			p := w.pool(verdict.Calico, "", "")
			w.calico(p, "db", "n2")
			w.was(a, verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n1"})
		}, lost, []string{elsewhere, overlap, static}},
		{"two sandboxes of one pod, of which one was booked elsewhere", func(w *world) {
			a := w.within("n1", "", "kindnet", who("a"))
			second := who("a")
			second.ContainerID = "container-b"
			w.within("n1", "", "kindnet", second)
			w.was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: w.pool(verdict.Calico, "", ""), Namespace: "default", Pod: "x", Node: "n9"})
		}, unknown, nil},
		{"two that cannot be told apart, and one record", func(w *world) {
			w.within("n1", "", "kindnet", pod("a"))
			w.within("n1", "", "kindnet", pod("b"))
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "x")
		}, lost, []string{networks, static}},
		{"two that cannot be told apart, and two records", func(w *world) {
			w.within("n1", "", "kindnet", pod("a"))
			w.within("n1", "", "kindnet", pod("b"))
			p := w.pool(verdict.HostLocal, "n1", "kindnet")
			w.books(p, "x")
			w.books(p, "y")
		}, unknown, []string{networks, lost, static}},
		{"one that has a record, and one that cannot be identified", func(w *world) {
			w.within("n1", "", "kindnet", who("a"))
			w.within("n1", "", "kindnet", pod("b"))
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "a")
		}, lost, []string{networks, static}},
		{"a pool without records that may have given it, and one of another IPAM that has it for both", func(w *world) {
			w.within("n1", "", "net0", who("a"))
			w.within("n1", "", "net0", who("b"))
			p := w.pool(verdict.Calico, "", "")
			w.books(p, "a")
			w.books(p, "b")
			w.pool(verdict.HostLocal, "n1", "")
		}, unknown, []string{elsewhere, networks, lost, static}},
		{"a pool without records that may have given it, and one of another realm that has it for both", func(w *world) {
			w.within("n1", "", "net0", who("a"))
			w.within("n1", "", "net0", who("b"))
			p, q := w.pool(verdict.Whereabouts, "", "net0"), w.pool(verdict.Whereabouts, "", "net0")
			p.Realm, q.Realm, q.Name = "red", "blue", "q"
			w.books(p, "a")
			w.books(p, "b")
		}, unknown, []string{elsewhere, networks, lost, static}},
		{"a pool without records whose range does not have it", func(w *world) {
			w.within("n1", "", "net0", who("a"))
			w.within("n1", "", "net0", who("b"))
			w.pool(verdict.HostLocal, "n1", "net0", "10.9.0.1-10.9.0.9")
		}, unknown, []string{networks, static}},
		{"IPAM has it for one, and another record is for nobody in particular", func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.within("n1", "", "", blue("blue"))
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "web")
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "").ContainerID = ""
		}, unknown, []string{lost, static}},
		{"IPAM has it for one, and of the other one, a pod, no CNI result is known", func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			mad := who("mad")
			mad.Source = "cri"
			w.within("n1", "", "", mad)
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"a container of which a CNI result tells", func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.within("n1", "", "", verdict.Workload{Kind: verdict.Container, Name: "c", Source: "cni-result"})
		}, unknown, []string{static}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}
