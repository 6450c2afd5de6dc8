package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// A container id on two machines shows a copy. On one machine, it is a container with a new network namespace.
func TestCopiesOfAContainer(t *testing.T) {
	const id = "4f2b7c3d9e8a4f2b7c3d9e8a4f2b7c3d9e8a4f2b7c3d9e8a4f2b7c3d9e8a1111"
	container := verdict.Workload{Kind: verdict.Container, Source: "cni-result", PID: 1}
	pod := verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: "db", Source: "cni-result", PID: 1}
	uid := pod
	uid.UID = "uid-db"
	for _, test := range []struct {
		name       string
		who        verdict.Workload
		one, other string
		change     func(w *world)
		rule       string
		copied     bool
	}{
		{"a container", container, id, id, nil, verdict.RuleAssignedTwice, true},
		{"a container with the name of a pod", pod, id, id, nil, verdict.RuleAssignedTwice, true},
		{"a copy with another MAC", container, id, id, func(w *world) { w.Claims[1].Interface.MAC = "copied" }, verdict.RuleAssignedTwice, true},
		{"a kernel that refused the address of a copy", container, id, id, func(w *world) {
			w.Addr = netip.MustParseAddr("2001:db8::50")
			w.Claims[1].Kind, w.Claims[1].Flags = verdict.DADFailed, verdict.FlagDADFailed
		}, verdict.RuleDADFailed, true},
		{"a pod with a UID", uid, id, id, nil, verdict.RuleSamePod, false},
		{"a pod that was started again", pod, id, id[4:] + "2222", nil, verdict.RuleSamePod, false},
		{"ids that are made from names", pod, "db", "db", nil, verdict.RuleSamePod, false},
		{"agents on one kernel", container, id, id, func(w *world) { w.Node("n2").Boot, w.Node("n2").Netns = w.Node("n1").Boot, "2" }, verdict.RuleSamePod, false},
	} {
		w := newWorld("192.0.2.50")
		verdicttest.OnNodes(w.World, test.who, test.one, test.other)
		if test.change != nil {
			test.change(w)
		}
		for _, phase := range []verdict.Phase{verdict.Suspected, verdict.Confirmed} {
			out := w.judge()
			if len(out.Conflicts) != 1 {
				t.Fatalf("%s: got %d conflicts, want one", test.name, len(out.Conflicts))
			}
			c := &out.Conflicts[0]
			if c.Rule != test.rule || c.Phase != phase || c.Copied() != test.copied || c.SamePod() == test.copied || w.Policy.Wait(c) != w.Policy.HandoverGrace {
				t.Errorf("%s: got rule %s in phase %d, copied %t, same pod %t, after %s, want %s, phase %d, copied %t, after the grace",
					test.name, c.Rule, c.Phase, c.Copied(), c.SamePod(), w.Policy.Wait(c), test.rule, phase, test.copied)
			}
			if cloned := c.Cause == verdict.CauseClonedMachine && c.Right == verdict.RightUndecided; !c.Expected() && cloned != test.copied {
				t.Errorf("%s: got cause %s, and a right %d, want copies: %t", test.name, c.Cause, c.Right, test.copied)
			}
			w.after(w.Policy.HandoverGrace).Read(w.Claims...)
		}
	}
}

func TestT10SandboxWhosePodWasDeleted(t *testing.T) {
	tests := []struct {
		name string
		left verdict.PodObject
		want string
	}{
		{"deleted by force", verdict.PodObject{Absent: true}, "sandbox-left owners=old"},
		{"ended", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Succeeded"}, "sandbox-left owners=old text=Succeeded"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("10.244.1.5")
			w.Says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running"})
			w.Says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running", ControllerKind: "Deployment", Controller: "web"})
			old := verdicttest.Pod("old")
			old.ContainerID = "0123456789abcdef0123"
			a := verdicttest.Given(w.World, w.Namespace("n1", 2, "100", old))
			w.wantNone(t)
			w.Says("uid-old", tt.left)
			w.after(time.Minute).wantNone(t)
			b := verdicttest.Given(w.World, w.Namespace("n2", 2, "200", verdicttest.Pod("new")))
			c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
			if c.Cause != verdict.CauseOrphanedSandbox {
				t.Fatalf("got cause %s, want the sandbox that was left behind: %v", c.Cause, c.Facts)
			}
			w.after(time.Second).Read(a, b)
			c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
			if got := verdicttest.Words(&c, c.Facts...); !slices.Equal(got, []string{tt.want}) || keeper(&c) != "new" || c.Right != verdict.RightIntent {
				t.Errorf("got facts %q, %s to keep it, want %q, and new", got, keeper(&c), tt.want)
			}
			if !c.Owners[0].Orphaned || c.Owners[1].Orphaned {
				t.Errorf("got orphaned %v and %v, want the old one only", c.Owners[0].Orphaned, c.Owners[1].Orphaned)
			}

			// While the API server is down, the last known state counts.
			w.Pods = nil
			if c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); c.Cause != verdict.CauseOrphanedSandbox {
				t.Errorf("got cause %s with the API server away, want it unchanged", c.Cause)
			}
			// It answers again, but is not known to be complete yet.
			listed := tt.left
			w.Known, listed.Heard = 1, w.Now
			w.Says("uid-old", listed)
			if c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); c.Cause != verdict.CauseOrphanedSandbox {
				t.Errorf("got cause %s while the API is listed again, want it unchanged", c.Cause)
			}
			w.Known = 0
			w.Says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running"})
			if c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); c.Cause != verdict.CauseUnknown {
				t.Errorf("got cause %s of a pod that is in the API, want none", c.Cause)
			}
		})
	}
}

func TestNewPodIsNotOrphanedBeforeTheAPIReportsIt(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.Says("uid-a", verdict.PodObject{Absent: true})
	verdicttest.Given(w.World, w.Namespace("n1", 2, "100", verdicttest.Pod("a")))
	out := w.wantNone(t)
	if out.Owners[0].Orphaned || out.Again != w.Now.Add(5*time.Second) {
		t.Fatalf("got orphaned %v, again %s later, want no orphan within 5s", out.Owners[0].Orphaned, out.Again.Sub(w.Now))
	}
	w.Known = w.Now
	w.after(5 * time.Second)
	if out = w.wantNone(t); out.Owners[0].Orphaned || out.Again != w.Now.Add(time.Second) {
		t.Fatalf("got orphaned %v, again %s later, though the API was not followed meanwhile", out.Owners[0].Orphaned, out.Again.Sub(w.Now))
	}
	w.Known = 0
	if out = w.wantNone(t); !out.Owners[0].Orphaned {
		t.Error("got a pod of the API reported as absent")
	}
}

// The kubelet reports the end of a pod before it removes the sandbox.
func TestAPodThatHasJustEndedIsNotOrphaned(t *testing.T) {
	w := newWorld("10.244.1.5")
	verdicttest.Given(w.World, w.Namespace("n1", 2, "100", verdicttest.Pod("job")))
	w.Says("uid-job", verdict.PodObject{Namespace: "default", Name: "job", Phase: "Running"})
	w.wantNone(t)
	w.after(time.Hour)
	w.Says("uid-job", verdict.PodObject{Namespace: "default", Name: "job", Phase: "Succeeded", Heard: w.Now})
	if out := w.wantNone(t); out.Owners[0].Orphaned || out.Again != w.Now.Add(5*time.Second) {
		t.Fatalf("got orphaned %v, again %s later, want no orphan within 5s", out.Owners[0].Orphaned, out.Again.Sub(w.Now))
	}
	w.after(5 * time.Second)
	if out := w.wantNone(t); !out.Owners[0].Orphaned {
		t.Error("got no orphaned sandbox for one that remains")
	}
}

func TestL4CompletedPodHoldsNothing(t *testing.T) {
	// The address in the pod's status does not make it an owner, because its namespace is gone.
	w := newWorld("10.244.1.5")
	w.Says("uid-done", verdict.PodObject{Namespace: "default", Name: "done", Phase: "Succeeded", IPs: []netip.Addr{w.Addr}})
	w.Says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running", IPs: []netip.Addr{w.Addr}})
	verdicttest.Given(w.World, w.Namespace("n1", 2, "100", verdicttest.Pod("new")))
	if out := w.wantNone(t); len(out.Owners) != 1 {
		t.Errorf("got %d owners, want the running one", len(out.Owners))
	}
}

func TestL16TwinsOfOneVirtualMachine(t *testing.T) {
	tests := []struct {
		name string
		made func(w *world, name string) verdict.Workload
	}{
		{"according to the runtime", func(_ *world, name string) verdict.Workload {
			who := verdicttest.Pod(name)
			who.VirtualMachine = "vm1"
			return who
		}},
		{"according to the API", func(w *world, name string) verdict.Workload {
			w.Says("uid-"+name, verdict.PodObject{Namespace: "default", Name: name, Phase: "Running", VirtualMachine: "vm1"})
			return verdicttest.Pod(name)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("10.244.1.5")
			a := verdicttest.Given(w.World, w.Namespace("n1", 2, "100", tt.made(w, "launcher-a")))
			b := verdicttest.Given(w.World, w.Namespace("n2", 2, "200", tt.made(w, "launcher-b")))
			c := w.want(t, verdict.Suspected, verdict.RuleSameVM, verdict.NetworkScope, "pods")
			if c.Cause != verdict.CauseUnknown || c.Owners[0].VirtualMachine() != "default/vm1" || w.Policy.Wait(&c) != time.Minute {
				t.Errorf("got cause %s of %q after %s, want a migration", c.Cause, c.Owners[0].VirtualMachine(), w.Policy.Wait(&c))
			}
			w.after(59*time.Second).Read(a, b)
			w.want(t, verdict.Suspected, verdict.RuleSameVM, verdict.NetworkScope, "pods")
			w.wantRule(t, verdict.RuleSameVM)
			w.after(time.Second).Read(a, b)
			c = w.want(t, verdict.Confirmed, verdict.RuleSameVM, verdict.NetworkScope, "pods")
			if c.Cause != verdict.CauseSplitBrain || !has(&c, verdict.FactOneMachine, "") {
				t.Errorf("got cause %s, %v, want a split brain of a migration", c.Cause, c.Facts)
			}
			w.after(time.Second).Drop(a)
			w.want(t, verdict.Resolved, verdict.RuleSameVM, verdict.NetworkScope, "pods")
		})
	}
}

// A virt-launcher pod that has ended while its sandbox remains is not a stuck migration.
func TestOrphanedLauncher(t *testing.T) {
	w := newWorld("10.244.1.5")
	from, to := verdicttest.Pod("from"), verdicttest.Pod("to")
	from.VirtualMachine, to.VirtualMachine = "vm1", "vm1"
	a := verdicttest.Given(w.World, w.Namespace("n1", 2, "100", from))
	b := verdicttest.Given(w.World, w.Namespace("n2", 2, "200", to))
	w.want(t, verdict.Suspected, verdict.RuleSameVM, verdict.NetworkScope, "pods")
	w.Says("uid-from", verdict.PodObject{Namespace: "default", Name: "from", Phase: "Succeeded"})
	w.after(time.Minute).Read(a, b)
	c := w.want(t, verdict.Confirmed, verdict.RuleSameVM, verdict.NetworkScope, "pods")
	if got := verdicttest.Words(&c, c.Facts...); c.Cause != verdict.CauseOrphanedSandbox || !slices.Equal(got, []string{"sandbox-left owners=from text=Succeeded"}) {
		t.Errorf("got cause %s, %q", c.Cause, got)
	}
}

// While KubeVirt migrates a virtual machine, and for the grace after that, its pods are no conflict.
func TestMigrationThatTakesLong(t *testing.T) {
	w := newWorld("10.244.1.5")
	migrated(w.World, "n1", true)
	says := func(node string, migrating bool) {
		for uid, p := range w.Pods {
			pod := *p
			pod.MachineNode, pod.Migrating, pod.MachineSince = node, migrating, w.Now
			w.Says(uid, pod)
		}
	}
	phase := func(what string, after time.Duration, want verdict.Phase) {
		t.Helper()
		w.After(after)
		w.Read(w.Claims...)
		out := w.judge()
		if len(out.Conflicts) != 1 || out.Conflicts[0].Rule != verdict.RuleSameVM || out.Conflicts[0].Phase != want {
			t.Errorf("%s: got %+v, want phase %d", what, out.Conflicts, want)
		}
	}
	phase("it begins", 0, verdict.Suspected)
	phase("it takes longer than the grace", time.Hour, verdict.Suspected)
	says("n2", false)
	phase("it is over", 0, verdict.Suspected)
	phase("the grace is not over", w.Policy.MigrationGrace-time.Second, verdict.Suspected)
	phase("the source is left behind", time.Second, verdict.Confirmed)
	c := w.judge().Conflicts[0]
	if got := keeper(&c); got != "to" || c.Cause != verdict.CauseSplitBrain {
		t.Errorf("got %q, cause %s, want the pod on the machine's node", got, c.Cause)
	}
}

func TestPodsOfDifferentVirtualMachinesAreNoTwins(t *testing.T) {
	for _, other := range []verdict.Workload{
		{Kind: verdict.Pod, Namespace: "default", Name: "b", UID: "b", VirtualMachine: "vm2"},
		{Kind: verdict.Pod, Namespace: "other", Name: "b", UID: "b", VirtualMachine: "vm1"},
		{Kind: verdict.Pod, Namespace: "default", Name: "b", UID: "b"},
	} {
		w := newWorld("10.244.1.5")
		one := verdicttest.Pod("a")
		one.VirtualMachine = "vm1"
		a := verdicttest.Given(w.World, w.Namespace("n1", 2, "100", one))
		b := verdicttest.Given(w.World, w.Namespace("n2", 2, "200", other))
		w.judge()
		w.after(time.Second).Read(a, b)
		w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
	}
}

func TestRangesOfPodsAreOneNetwork(t *testing.T) {
	onVeth := func(w *world, node string, who verdict.Workload) *verdict.Interface {
		inside, _ := w.Veth(w.Namespace(node, 2, "1"+node[1:]+"0", who), "\x02\x00\x00\x00\x00"+node[1:], w.Link(node, "veth", verdict.PointToPoint, false))
		return inside
	}
	tests := []struct {
		name string
		put  func(w *world, node string) *verdict.Interface
		want bool
		of   string
	}{
		{"pods", func(w *world, node string) *verdict.Interface { return onVeth(w, node, verdicttest.Pod("p"+node)) }, true, ""},
		{"bridges of the nodes", func(w *world, node string) *verdict.Interface {
			return w.Interface(w.Host(node), verdict.Interface{Name: "cni0", Attachment: verdict.Own, Link: w.Link(node, "cni0", verdict.Bridge, true)})
		}, true, ""},
		{"bridges that are the same everywhere", func(w *world, node string) *verdict.Interface {
			return w.Interface(w.Host(node), verdict.Interface{Name: "docker0", Attachment: verdict.Own, Link: w.Link(node, "docker0", verdict.Bridge, true)})
		}, false, "n1"},
		{"pods of a pool that no node's range matters to", func(w *world, node string) *verdict.Interface { return onVeth(w, node, verdicttest.Pod("p"+node)) }, true, "n1"},
		{"uplinks", func(w *world, node string) *verdict.Interface { return w.Uplink(node) }, false, ""},
		{"containers", func(w *world, node string) *verdict.Interface {
			return onVeth(w, node, verdict.Workload{Kind: verdict.Container, Name: "c" + node})
		}, false, ""},
		{"ports of Open vSwitch", func(w *world, node string) *verdict.Interface {
			inside, _ := w.Veth(w.Namespace(node, 2, "1"+node[1:]+"0", verdicttest.Pod("p"+node)), "\x02\x00\x00\x00\x00"+node[1:], w.Link(node, "ovs", verdict.OVSPort, false))
			return inside
		}, false, ""},
		{"private links", func(w *world, node string) *verdict.Interface {
			return w.Interface(w.Namespace(node, 2, "1"+node[1:]+"0", verdicttest.Pod("p"+node)), verdict.Interface{Name: "k6t-eth0", Attachment: verdict.Private})
		}, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("10.244.1.1")
			w.Assigned(tt.put(w, "n1"))
			w.Assigned(tt.put(w, "n2"))
			w.wantNone(t)
			w.PodCIDR, w.PodCIDROf = netip.MustParsePrefix("10.244.1.0/24"), tt.of
			if !tt.want {
				w.wantNone(t)
				return
			}
			out := w.judge()
			if len(out.Conflicts) != 1 || out.Conflicts[0].Scope != "pods" || out.Conflicts[0].Kind != verdict.NetworkScope {
				t.Fatalf("got %+v, want a conflict in network pods", out.Conflicts)
			}
			w.wantRule(t, verdict.RuleInNetwork)
		})
	}
}

func TestTheAPINamesPodsThatTheNodeCannot(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.Says("uid-a", verdict.PodObject{Namespace: "shop", Name: "cart", Phase: "Running"})
	c := verdicttest.Given(w.World, w.Namespace("n1", 2, "100", verdict.Workload{Kind: verdict.Pod, UID: "uid-a", Source: "cgroup"}))
	o := w.wantNone(t).Owners[0]
	if namespace, name := o.Named(); namespace != "shop" || name != "cart" || o.Workload().Name != "cart" {
		t.Errorf("got %s/%s, want the name that the API has for the uid", namespace, name)
	}
	w.Drop(c)
}
