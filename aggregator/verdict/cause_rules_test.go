package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// wantCause judges the only conflict of the address, and checks its cause and the causes that are
// ruled out.
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

// running adds running pods to the Kubernetes API.
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
		// Orphaned sandboxes.
		{"both pods run", func(w *world) { verdicttest.Twins(w.World); w.running("old", "new") }, unknown, []string{orphan, networks, lost, static}},
		{"one pod runs, and the other one is not in the API", func(w *world) { verdicttest.Twins(w.World); w.running("old") }, unknown, []string{networks, lost, static}},
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
		{"a pod runs, and an unidentified namespace has its address", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Within("n1", "", "", blue("blue"))
			w.running("web")
		}, unknown, []string{orphan, static}},
		{"an orphaned pod, and one that migrates", func(w *world) {
			vm := verdicttest.Who("l1")
			vm.VirtualMachine = "vm"
			w.Within("n1", "", "kindnet", vm)
			vm.Name, vm.UID, vm.ContainerID = "l2", "uid-l2", "c2"
			w.Within("n1", "", "kindnet", vm)
			w.Says("uid-l1", verdict.PodObject{Namespace: "default", Name: "l1", Phase: "Succeeded", Heard: w.Now.Add(-time.Minute)})
		}, orphan, nil},

		// IPAM records.
		{"one sandbox of a pod after the other", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			second := verdicttest.Who("a")
			second.ContainerID = "container-b"
			w.Within("n1", "", "kindnet", second)
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "b")
		}, unknown, nil},
		{"the record of one is gone, of a pool that is known by its record alone", func(w *world) {
			verdicttest.Twins(w.World)
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
			w.Pools = nil
		}, lost, []string{networks, static}},
		{"the Kubernetes API has it for one of them", func(w *world) {
			w.Within("n1", "", "", blue("blue"))
			cri := verdicttest.Who("web")
			cri.Source = "cri"
			w.Within("n1", "", "", cri)
			p := &verdict.Pool{Pool: ipam.Pool{IPAM: podips.IPAM.Name, Traits: registry.Traits(podips.IPAM.Name), Name: "pods", State: ipam.Known}}
			w.Pools = append(w.Pools, p)
			w.Books(p, "web")
		}, unknown, []string{static}},
		{"a pool of another node has a record", func(w *world) {
			verdicttest.Twins(w.World)
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new").Pool.Node = w.Node("n9")
		}, unknown, []string{networks, static}},
		{"three pods, two of them with the address from one pool", func(w *world) {
			verdicttest.Twins(w.World)
			w.Within("n1", "", "other", verdicttest.Who("third"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		}, networks, []string{static}},
		{"the pool has it for both", func(w *world) {
			verdicttest.Twins(w.World)
			p := w.Pool(hostlocal.Name, "n1", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new")
		}, verdict.CauseIPAMAllocatedTwice, []string{networks, lost, static}},
		{"the pods' status has it for both", func(w *world) {
			verdicttest.Twins(w.World)
			p := w.Pool(podips.IPAM.Name, "", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new")
		}, unknown, []string{networks, lost, static}},
		{"objects that mirror an IPAM have it for both", func(w *world) {
			verdicttest.Twins(w.World)
			p := w.Pool(cilium.IPAM.Name, "", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new")
		}, unknown, []string{elsewhere, networks, lost, static}},
		{"a pool that is not followed any more has it for both", func(w *world) {
			verdicttest.Twins(w.World)
			p := w.Pool(calico.IPAM.Name, "", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new")
			p.State = ipam.Stale
		}, unknown, []string{networks, lost, static}},
		{"two pods of two networks, and unreadable records of one", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n1", "", "lan", verdicttest.Who("b"))
			p := w.Pool(hostlocal.Name, "n1", "")
			p.Networks, p.State = []string{"kindnet", "lan"}, ipam.Unreadable
		}, unknown, []string{networks, lost, static}},
		{"two pods on two nodes, and no records", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n2", "", "kindnet", verdicttest.Who("b"))
		}, unknown, []string{overlap, lost, static}},
		{"two pods on two nodes, and records of a pool of the cluster that is read", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n2", "", "kindnet", verdicttest.Who("b"))
			w.Pool(whereabouts.Name, "", "kindnet").State = ipam.Reading
		}, unknown, []string{overlap, lost, static}},
		{"it was allocated for another node, which is not known any longer", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			w.Was(a, verdict.FindingBookedElsewhere, nil)
		}, unknown, []string{overlap, lost, static}},
		{"it was allocated for another pod of this node before the rival came", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.after(time.Minute).Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "x", Node: "n1"}})
		}, elsewhere, []string{overlap, static}},
		{"it was allocated for another pod of this node after the rival came", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "x", Node: "n1"}})
		}, lost, []string{elsewhere, overlap, static}},
		{"it was allocated for another node, and its own record vanished, too", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.after(time.Minute).Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "web", Node: "n9"}})
			w.Was(a, verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "web", Node: "n1"}})
		}, lost, []string{elsewhere, overlap, static}},
		{"it was allocated for another node, and no rival was given it", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.after(time.Minute).Within("n2", "", "", blue("db"))
			w.declare("pods 10.0.0.0/8")
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "web", Node: "n9"}})
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"nodename is wrong, and IPAM has it for that pod", func(w *world) {
			w.Node("n1").IPAMName = ipam.NodeName{Name: "n9", Source: ipam.FileName, File: "/var/lib/calico/nodename"}
			w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.after(time.Minute).Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			w.Calico(w.Pool(calico.IPAM.Name, "", ""), "web", "n1")
		}, lost, []string{elsewhere, overlap, static}},
		{"nodename is right, and no IPPool is known", func(w *world) {
			w.Node("n1").IPAMName = ipam.NodeName{Name: "n1", Source: ipam.FileName, File: "/var/lib/calico/nodename"}
			verdicttest.Twins(w.World)
		}, unknown, []string{networks, lost, static}},

		// Ranges of nodes.
		{"ranges of pods of both nodes", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "pods", verdicttest.Who("b"))
		}, overlap, []string{static}},
		{"pod CIDRs of both nodes, and the source of one address is not known", func(w *world) {
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
		}, unknown, []string{overlap, static}},
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
		{"pools of both nodes, and it is from the first one", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", verdicttest.Who("web"+n))
			}
			w.Books(w.Pool(hostlocal.Name, "n1", "pods"), "webn1")
		}, unknown, []string{overlap, lost, static}},
		{"pools of both nodes, and it is from the second one", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", verdicttest.Who("web"+n))
			}
			w.Books(w.Pool(hostlocal.Name, "n2", "pods"), "webn2")
		}, unknown, []string{overlap, lost, static}},
		{"one has it from a cluster-wide pool", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", verdicttest.Who("web"+n))
			}
			w.Books(w.Pool(whereabouts.Name, "", "lan"), "webn2")
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

		// Ranges of networks.
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
			w.Pool(hostlocal.Name, "n1", "").Networks = []string{"net0", "net1"}
		}, lost, []string{networks, static}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}
