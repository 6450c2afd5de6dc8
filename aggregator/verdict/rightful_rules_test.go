package verdict_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestWhichOwnersAreOneWorkload(t *testing.T) {
	p := verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: "a"}
	with := func(change func(*verdict.Workload)) verdict.Workload {
		w := p
		change(&w)
		return w
	}
	for _, test := range []struct {
		name     string
		one, two verdict.Workload
		rule     string
	}{
		{"one name", p, p, verdict.RuleSamePod},
		{"one uid", with(func(w *verdict.Workload) { w.UID = "1" }), with(func(w *verdict.Workload) { w.UID, w.Name = "1", "" }), verdict.RuleSamePod},
		{"two uids of one name", with(func(w *verdict.Workload) { w.UID = "1" }), with(func(w *verdict.Workload) { w.UID = "2" }), verdict.RuleAssignedTwice},
		{"a uid of one name", with(func(w *verdict.Workload) { w.UID = "1" }), p, verdict.RuleSamePod},
		{"two uids of one container", with(func(w *verdict.Workload) { w.UID, w.ContainerID = "1", "c" }), with(func(w *verdict.Workload) { w.UID, w.ContainerID = "2", "c" }), verdict.RuleAssignedTwice},
		{"one container", with(func(w *verdict.Workload) { w.Name, w.ContainerID = "", "c" }), with(func(w *verdict.Workload) { w.ContainerID = "c" }), verdict.RuleSamePod},
		{"two containers without a name", with(func(w *verdict.Workload) { w.Name, w.ContainerID = "", "c" }), with(func(w *verdict.Workload) { w.Name, w.ContainerID = "", "d" }), verdict.RuleAssignedTwice},
		{"no name", with(func(w *verdict.Workload) { w.Name = "" }), with(func(w *verdict.Workload) { w.Name = "" }), verdict.RuleAssignedTwice},
		{"two names", p, with(func(w *verdict.Workload) { w.Name = "b" }), verdict.RuleAssignedTwice},
		{"two namespaces", p, with(func(w *verdict.Workload) { w.Namespace = "other" }), verdict.RuleAssignedTwice},
		{"a pod and a container of one name", p, with(func(w *verdict.Workload) { w.Kind = verdict.Container }), verdict.RuleAssignedTwice},
		{"a container and a pod of one name", with(func(w *verdict.Workload) { w.Kind = verdict.Container }), p, verdict.RuleAssignedTwice},
		{"containers of one name", with(func(w *verdict.Workload) { w.Kind = verdict.Container }), with(func(w *verdict.Workload) { w.Kind = verdict.Container }), verdict.RuleAssignedTwice},
		{"one container in a namespace with a name of its own", with(func(w *verdict.Workload) { w.Source, w.ContainerID = "netns", "c" }), with(func(w *verdict.Workload) { w.ContainerID = "c" }), verdict.RuleAssignedTwice},
		{"one virtual machine", with(func(w *verdict.Workload) { w.Name, w.VirtualMachine = "l1", "vm" }), with(func(w *verdict.Workload) { w.Name, w.VirtualMachine = "l2", "vm" }), verdict.RuleSameVM},
		{"virtual machines of two namespaces", with(func(w *verdict.Workload) { w.Name, w.VirtualMachine = "l1", "vm" }), with(func(w *verdict.Workload) { w.Name, w.VirtualMachine, w.Namespace = "l2", "vm", "other" }), verdict.RuleAssignedTwice},
		{"pods without a virtual machine", with(func(w *verdict.Workload) { w.Name = "l1" }), with(func(w *verdict.Workload) { w.Name = "l2" }), verdict.RuleAssignedTwice},
		{"a pod of a virtual machine, and an ordinary one", with(func(w *verdict.Workload) { w.Name, w.VirtualMachine = "l1", "vm" }), with(func(w *verdict.Workload) { w.Name = "l2" }), verdict.RuleAssignedTwice},
		{"containers of one virtual machine", with(func(w *verdict.Workload) { w.Kind, w.Name, w.VirtualMachine = verdict.Container, "l1", "vm" }), with(func(w *verdict.Workload) { w.Kind, w.Name, w.VirtualMachine = verdict.Container, "l2", "vm" }), verdict.RuleAssignedTwice},
	} {
		for range 2 {
			w := newWorld("10.244.1.5")
			w.Within("n1", "", "", test.one)
			w.Within("n1", "", "", test.two)
			if out := w.judge(); len(out.Conflicts) != 1 || out.Conflicts[0].Rule != test.rule {
				t.Errorf("%s: got %+v, want rule %s", test.name, out.Conflicts, test.rule)
			}
			test.one, test.two = test.two, test.one
		}
	}
}

func TestPodStateIsRestoredForItsOwnerOnly(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.Says("uid-old", verdict.PodObject{Absent: true})
	w.Within("n1", "", "kind", verdicttest.Who("old"))
	w.Within("n1", "", "kind", verdicttest.Who("new"))
	w.after(time.Minute)
	if c := w.judge().Conflicts[0]; !c.Owners[0].Orphaned || c.Owners[1].Orphaned {
		t.Fatalf("got %+v, want the old one orphaned", c.Owners)
	}
	w.Pods = nil
	if c := w.judge().Conflicts[0]; !c.Owners[0].Orphaned || c.Owners[1].Orphaned || c.Owners[0].Pod == nil {
		t.Errorf("got %+v, want the old one still orphaned, and no other", c.Owners)
	}
}

// The Kubernetes API is consulted for pods only, even if another workload has the UID.
func TestOnlyPodsAreLookedUp(t *testing.T) {
	for kind, want := range map[verdict.WorkloadKind]bool{verdict.Pod: true, verdict.Container: false} {
		w := newWorld("10.244.1.5")
		w.Says("uid-a", verdict.PodObject{Absent: true})
		of := verdicttest.Who("a")
		of.Kind = kind
		w.Within("n1", "", "", of)
		w.after(time.Minute)
		if o := w.judge().Owners[0]; (o.Pod != nil) != want || o.Orphaned != want {
			t.Errorf("kind %d: got pod %+v, orphaned %t, want %t", kind, o.Pod, o.Orphaned, want)
		}
	}
}

func TestWhichOfSeveralKeepsTheAddress(t *testing.T) {
	twoNodes := func(w *world, apart, skew time.Duration) (a, b *verdict.Claim) {
		w.declare("pods 10.0.0.0/8")
		a = w.Within("n1", "", "", blue("a"))
		b = w.Within("n2", "", "", blue("b"))
		a.AssignedAt, b.AssignedAt = verdicttest.Start, verdicttest.Start.Add(apart)
		a.First, b.First = a.AssignedAt, b.AssignedAt
		w.Node("n1").SkewKnown, w.Node("n2").SkewKnown = true, true
		w.Node("n2").Skew = skew
		return a, b
	}
	onBridge := func(w *world) (gateway *verdict.Interface, p *verdict.Pool) {
		w.Addr = netip.MustParseAddr("10.244.0.1")
		w.Within("n1", "cni0", "", verdicttest.Who("web"))
		w.after(time.Minute)
		gateway = w.Device("n1", "cni0", "bridge")
		p = w.Pool(hostlocal.Name, "n1", "pods", "10.244.0.2-10.244.255.254")
		p.Device, p.Gateways = "cni0", []netip.Addr{w.Addr}
		return gateway, p
	}
	for _, test := range []struct {
		name  string
		build func(w *world)
		keep  string
		right verdict.Right
	}{
		{"by clocks that are far enough apart", func(w *world) { twoNodes(w, 200*time.Millisecond, 0) }, "a", verdict.RightOlderAssignment},
		{"by clocks that are too near each other", func(w *world) { twoNodes(w, 200*time.Millisecond-1, 0) }, "", verdict.RightUndecided},
		{"by clocks, with their skew", func(w *world) { twoNodes(w, 200*time.Millisecond, time.Second) }, "b", verdict.RightOlderAssignment},
		{"by clocks that agree with their skew", func(w *world) { twoNodes(w, time.Second, time.Second) }, "", verdict.RightUndecided},
		{"by a clock whose skew is not known", func(w *world) { twoNodes(w, time.Minute, 0); w.Node("n2").SkewKnown = false }, "", verdict.RightUndecided},
		{"by a clock whose skew may be as wrong", func(w *world) { twoNodes(w, time.Minute, 0); w.Node("n2").SkewWithin = time.Minute }, "", verdict.RightUndecided},
		{"by the other clock whose skew is not known", func(w *world) { twoNodes(w, time.Minute, 0); w.Node("n1").SkewKnown = false }, "", verdict.RightUndecided},
		{"by a clock that was set since, by more", func(w *world) {
			twoNodes(w, time.Minute, 0)
			w.Node("n1").ClockSet, w.Node("n1").ClockStep = w.Now.Add(time.Hour), time.Hour
		}, "", verdict.RightUndecided},
		{"by the other clock that was set since, by more", func(w *world) {
			twoNodes(w, time.Minute, 0)
			w.Node("n2").ClockSet, w.Node("n2").ClockStep = w.Now.Add(time.Hour), time.Hour
		}, "", verdict.RightUndecided},
		{"by a clock that was set since, by less", func(w *world) {
			twoNodes(w, time.Minute, 0)
			w.Node("n1").ClockSet, w.Node("n1").ClockStep = w.Now.Add(time.Hour), time.Second
		}, "a", verdict.RightOlderAssignment},
		{"by a clock that was set before", func(w *world) {
			twoNodes(w, time.Minute, 0)
			w.Node("n1").ClockSet, w.Node("n1").ClockStep = verdicttest.Start, time.Hour
		}, "a", verdict.RightOlderAssignment},
		{"of one that was restarted since", func(w *world) {
			a, _ := twoNodes(w, time.Minute, 0)
			a.AssignedAt = a.First.Add(20 * time.Second)
		}, "a", verdict.RightOlderAssignment},
		{"of one that was restarted after the other one had come", func(w *world) {
			a, b := twoNodes(w, time.Minute, 0)
			a.AssignedAt = b.AssignedAt.Add(time.Minute)
		}, "", verdict.RightUndecided},
		{"of one that has it again after a long time", func(w *world) {
			a, b := twoNodes(w, time.Minute, 0)
			a.AssignedAt = b.AssignedAt.Add(time.Minute)
			a.First = a.AssignedAt
		}, "b", verdict.RightOlderAssignment},
		{"by one clock of no known skew", func(w *world) {
			w.Within("n1", "", "", blue("a"))
			w.after(1).Within("n1", "", "", blue("b"))
		}, "a", verdict.RightOlderAssignment},
		{"at one time", func(w *world) {
			w.Within("n1", "", "", blue("a"))
			w.Within("n1", "", "", blue("b"))
		}, "", verdict.RightUndecided},
		{"of one it is not known since when it has it", func(w *world) {
			a := w.Within("n1", "", "", blue("a"))
			w.after(time.Minute).Within("n1", "", "", blue("b"))
			a.AssignedAt = 0
		}, "", verdict.RightUndecided},
		{"of the other one it is not known since when it has it", func(w *world) {
			w.Within("n1", "", "", blue("a"))
			w.after(time.Minute).Within("n1", "", "", blue("b")).AssignedAt = 0
		}, "", verdict.RightUndecided},
		{"the newer one's kernel found the duplicate", func(w *world) {
			w.Addr = netip.MustParseAddr("fd00::5")
			w.Within("n1", "br0", "", blue("a"))
			b := w.Within("n1", "br0", "", blue("b"))
			b.Kind, b.Flags, b.AssignedAt = verdict.DADFailed, verdict.FlagDADFailed, 0
			w.after(0)
		}, "a", verdict.RightOlderAssignment},
		{"the kernel of another node found the duplicate", func(w *world) {
			w.declare("pods fd00::/64")
			w.Addr = netip.MustParseAddr("fd00::5")
			a, b := w.Within("n1", "br0", "", blue("a")), w.Within("n2", "br0", "", blue("b"))
			b.Kind, b.Flags, b.AssignedAt, b.First = verdict.DADFailed, verdict.FlagDADFailed, 0, 0
			a.AssignedAt = verdicttest.Start.Add(-time.Minute)
		}, "", verdict.RightUndecided},
		{"one is a device outside", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.after(time.Minute).Wire(port, externalMAC)
		}, "", verdict.RightUndecided},
		{"frames of one began after the other's assignment", func(w *world) {
			_, port := w.guestOf("n1", "vm")
			w.Within("n1", "br0", "", blue("a"))
			c := w.after(time.Minute).Wire(port, externalMAC)
			w.Wire(port, externalMAC).VLAN = 7
			c.First = verdicttest.Start.Add(time.Second)
		}, "a", verdict.RightOlderAssignment},
		{"frames of one began before the other's assignment", func(w *world) {
			_, port := w.guestOf("n1", "vm")
			w.after(time.Minute).Within("n1", "br0", "", blue("a"))
			w.Wire(port, externalMAC).First = w.Now.Add(-time.Second)
			w.Wire(port, externalMAC).VLAN = 7
			w.Claims[2].First = w.Now.Add(time.Second)
		}, "", verdict.RightUndecided},
		{"of frames of one it is not known when they began", func(w *world) {
			_, port := w.guestOf("n1", "vm")
			w.Within("n1", "br0", "", blue("a"))
			w.after(time.Minute).Wire(port, externalMAC).First = 0
		}, "", verdict.RightUndecided},
		{"one orphan and another owner", func(w *world) {
			w.Says("uid-old", verdict.PodObject{Absent: true})
			a := w.Within("n1", "", "kind", verdicttest.Who("old"))
			w.after(time.Minute).Within("n1", "", "kind", verdicttest.Who("new"))
			a.Begun = verdicttest.Start
		}, "new", verdict.RightIntent},
		{"an allocation that may be for either", func(w *world) {
			w.Within("n1", "", "", blue("a"))
			w.after(time.Minute).Within("n1", "", "", blue("b"))
			w.Books(w.Pool(hostlocal.Name, "n1", "pods"), "x")
		}, "a", verdict.RightOlderAssignment},
		{"an allocation that may be for one of them", func(w *world) {
			w.Within("n1", "", "", blue("a"))
			w.after(time.Minute).Within("n1", "", "", verdicttest.Who("b"))
			w.Books(w.Pool(hostlocal.Name, "n1", "pods"), "x")
		}, "", verdict.RightUndecided},
		{"an allocation that may be for a device outside", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, externalMAC)
			al := w.Books(w.Pool(hostlocal.Name, "n1", "lan"), "x")
			al.Pod, al.Namespace = "x", "default"
		}, "", verdict.RightUndecided},
		{"an allocation, and a device outside, which may be the router", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, externalMAC)
			al := w.Books(w.Pool(hostlocal.Name, "n1", "lan"), "a")
			al.Pod, al.Namespace = "a", "default"
		}, "", verdict.RightUndecided},
		{"an allocation, and a virtual router outside", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, "\x00\x00\x5e\x00\x01\x07")
			al := w.Books(w.Pool(hostlocal.Name, "n1", "lan"), "a")
			al.Pod, al.Namespace = "a", "default"
		}, "", verdict.RightUndecided},
		{"a node's own address, and a device outside", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(port)
			w.Wire(port, externalMAC)
			w.Internal = "n1"
		}, "", verdict.RightUndecided},
		{"a lease for a pod, and a device outside", func(w *world) {
			port := w.Uplink("n1")
			a := w.Child("a", "baaaaa", port.Link)
			w.Assigned(a).Network = "lan"
			w.Wire(port, externalMAC)
			p := w.Pool(dhcp.DnsmasqName, "n1", "lan")
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: a.MAC.String()}})
		}, "a", verdict.RightAllocation},
		{"an allocation, and a guest behind a port of the node", func(w *world) {
			_, port := w.guestOf("n1", "vm")
			w.Within("n1", "br0", "lan", verdicttest.Who("a"))
			w.after(time.Minute).Wire(port, externalMAC)
			w.Wire(port, externalMAC).VLAN = 7
			w.Books(w.Pool(hostlocal.Name, "n1", "lan"), "a")
		}, "a", verdict.RightAllocation},
		{"two sandboxes of one pod", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("a"))
			w.after(time.Minute).Within("n1", "", "", verdicttest.Who("a"))
		}, "", verdict.RightUndecided},

		{"the gateway of a pool", func(w *world) { onBridge(w) }, "n1", verdict.RightAllocation},
		{"the gateway of a pool without a device", func(w *world) { _, p := onBridge(w); p.Device = "" }, "web", verdict.RightOlderAssignment},
		{"the gateway of a pool with another gateway", func(w *world) {
			_, p := onBridge(w)
			p.Gateways = []netip.Addr{netip.MustParseAddr("10.244.0.9")}
		}, "web", verdict.RightOlderAssignment},
		{"the gateway of a pool of another node", func(w *world) { _, p := onBridge(w); p.Node = w.Node("n2") }, "web", verdict.RightOlderAssignment},
		{"a pod with an interface of the name of the pool's bridge", func(w *world) {
			_, p := onBridge(w)
			p.Device = "eth0"
		}, "web", verdict.RightOlderAssignment},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		out := w.judge()
		if len(out.Conflicts) != 1 {
			t.Errorf("%s: got %+v, want one conflict", test.name, out.Conflicts)
			continue
		}
		if got := keeper(&out.Conflicts[0]); got != test.keep || out.Conflicts[0].Right != test.right {
			t.Errorf("%s: got %q by %d, want %q by %d", test.name, got, out.Conflicts[0].Right, test.keep, test.right)
		}
	}
}

// guestOf adds a pod on br0 with its port, behind which there may be a guest.
func (w *world) guestOf(node, name string) (inside, port *verdict.Interface) {
	return w.Veth(w.Namespace(node, 50, "150", verdicttest.Pod(name)), "blaunc", w.Link(node, "br0", verdict.Bridge, true))
}
