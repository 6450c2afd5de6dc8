package verdict_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// given has an address of the network of pods on a point-to-point veth.
func given(w *world, ns *verdict.Namespace) *verdict.Claim {
	inside, _ := w.veth(ns, "\x02\x00\x00\x00\x00"+ns.Netns[:1], w.link(ns.Node.Name, "veth"+ns.Netns, verdict.PointToPoint, false))
	c := w.assigned(inside)
	c.Network = "cni0"
	return c
}

// says has the Kubernetes API say something of a pod.
func (w *world) says(uid string, p verdict.PodObject) {
	if w.pods == nil {
		w.pods = map[string]*verdict.PodObject{}
	}
	p.UID = uid
	w.pods[uid] = &p
}

func TestT10SandboxWhosePodIsNoMore(t *testing.T) {
	tests := []struct {
		name string
		left verdict.PodObject
		want string
	}{
		{"deleted by force", verdict.PodObject{Absent: true}, "The Kubernetes API has no pod default/old with uid uid-old: its sandbox on node n1 was left behind."},
		{"ended", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Succeeded"}, "Pod default/old has ended (Succeeded), but its sandbox on node n1 was left behind."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("10.244.1.5")
			w.says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running"})
			w.says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running", ControllerKind: "Deployment", Controller: "web"})
			old := pod("old")
			old.ContainerID = "0123456789abcdef0123"
			a := given(w, w.namespace("n1", 2, "100", old))
			w.wantNone(t)
			w.says("uid-old", tt.left)
			w.after(time.Minute).wantNone(t)
			b := given(w, w.namespace("n2", 2, "200", pod("new")))
			c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
			if c.Cause != verdict.CauseOrphanedSandbox {
				t.Fatalf("got cause %s, want the sandbox that was left behind: %s", c.Cause, c.Summary)
			}
			w.after(time.Second).read(a, b)
			c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
			if !strings.Contains(c.Summary, tt.want) || !strings.Contains(c.Summary, "pod default/new of Deployment web (eth0, node n2)") {
				t.Errorf("got %q, want it to say %q, and what made the other pod", c.Summary, tt.want)
			}
			if !strings.Contains(flat(c.Remedy)[0], "crictl stopp 0123456789ab") || strings.Contains(strings.Join(flat(c.Remedy), " "), "kubectl delete pod") {
				t.Errorf("got advice %q, want the sandbox removed, and no pod deleted", c.Remedy)
			}
			if !c.Owners[0].Orphaned || c.Owners[1].Orphaned {
				t.Errorf("got orphaned %v and %v, want the old one only", c.Owners[0].Orphaned, c.Owners[1].Orphaned)
			}

			// The API server is away: what it said last is all that there is.
			w.pods = nil
			if c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); c.Cause != verdict.CauseOrphanedSandbox {
				t.Errorf("got cause %s with the API server away, want it as it was", c.Cause)
			}
			w.says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running"})
			if c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); c.Cause != verdict.CauseUnknown {
				t.Errorf("got cause %s of a pod that the API knows, want none", c.Cause)
			}
		})
	}
}

func TestANewPodIsNotOrphanedBeforeTheAPICanHaveToldOfIt(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.says("uid-a", verdict.PodObject{Absent: true})
	given(w, w.namespace("n1", 2, "100", pod("a")))
	out := w.wantNone(t)
	if out.Owners[0].Orphaned || out.Again != w.now.Add(5*time.Second) {
		t.Fatalf("got orphaned %v, again %s later, want no such word for 5s", out.Owners[0].Orphaned, out.Again.Sub(w.now))
	}
	w.known = w.now
	w.after(5 * time.Second)
	if out = w.wantNone(t); out.Owners[0].Orphaned || out.Again != w.now.Add(time.Second) {
		t.Fatalf("got orphaned %v, again %s later, though the API was not followed meanwhile", out.Owners[0].Orphaned, out.Again.Sub(w.now))
	}
	w.known = 0
	if out = w.wantNone(t); !out.Owners[0].Orphaned {
		t.Error("got a pod that the API does not have for one that it has")
	}
}

// The kubelet tells that a pod has ended, and removes its sandbox then.
func TestAPodThatHasJustEndedIsNotOrphaned(t *testing.T) {
	w := newWorld("10.244.1.5")
	given(w, w.namespace("n1", 2, "100", pod("job")))
	w.says("uid-job", verdict.PodObject{Namespace: "default", Name: "job", Phase: "Running"})
	w.wantNone(t)
	w.after(time.Hour)
	w.says("uid-job", verdict.PodObject{Namespace: "default", Name: "job", Phase: "Succeeded", Heard: w.now})
	if out := w.wantNone(t); out.Owners[0].Orphaned || out.Again != w.now.Add(5*time.Second) {
		t.Fatalf("got orphaned %v, again %s later, want no such word for 5s", out.Owners[0].Orphaned, out.Again.Sub(w.now))
	}
	w.after(5 * time.Second)
	if out := w.wantNone(t); !out.Owners[0].Orphaned {
		t.Error("got a sandbox that stays for one that is not left behind")
	}
}

func TestL4CompletedPodHoldsNothing(t *testing.T) {
	// That its object lists the address makes no owner: its namespace is gone.
	w := newWorld("10.244.1.5")
	w.says("uid-done", verdict.PodObject{Namespace: "default", Name: "done", Phase: "Succeeded", IPs: []netip.Addr{w.addr}})
	w.says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running", IPs: []netip.Addr{w.addr}})
	given(w, w.namespace("n1", 2, "100", pod("new")))
	if out := w.wantNone(t); len(out.Owners) != 1 {
		t.Errorf("got %d owners, want the one that runs", len(out.Owners))
	}
}

func TestL16TwinsOfOneVirtualMachine(t *testing.T) {
	tests := []struct {
		name string
		made func(w *world, name string) verdict.Workload
	}{
		{"as the runtime says", func(_ *world, name string) verdict.Workload {
			who := pod(name)
			who.VirtualMachine = "vm1"
			return who
		}},
		{"as the API says", func(w *world, name string) verdict.Workload {
			w.says("uid-"+name, verdict.PodObject{Namespace: "default", Name: name, Phase: "Running", VirtualMachine: "vm1"})
			return pod(name)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("10.244.1.5")
			a := given(w, w.namespace("n1", 2, "100", tt.made(w, "launcher-a")))
			b := given(w, w.namespace("n2", 2, "200", tt.made(w, "launcher-b")))
			c := w.want(t, verdict.Suspected, verdict.RuleSameVM, verdict.NetworkScope, "pods")
			if c.Cause != verdict.CauseUnknown || !strings.Contains(c.Summary, "2 pods of virtual machine default/vm1") || !strings.Contains(c.Summary, "migrated") {
				t.Errorf("got %q, want it to speak of a migration", c.Summary)
			}
			w.after(59*time.Second).read(a, b)
			w.want(t, verdict.Suspected, verdict.RuleSameVM, verdict.NetworkScope, "pods")
			w.wantRule(t, verdict.RuleSameVM)
			w.after(time.Second).read(a, b)
			c = w.want(t, verdict.Confirmed, verdict.RuleSameVM, verdict.NetworkScope, "pods")
			if c.Cause != verdict.CauseSplitBrain || !strings.Contains(flat(c.Remedy)[0], "migration is stuck") {
				t.Errorf("got cause %s, advice %q, want a split brain of a migration", c.Cause, c.Remedy)
			}
			w.after(time.Second).drop(a)
			w.want(t, verdict.Resolved, verdict.RuleSameVM, verdict.NetworkScope, "pods")
		})
	}
}

// A launcher that has ended, and whose sandbox stays, is no migration that is stuck.
func TestLauncherThatWasLeftBehind(t *testing.T) {
	w := newWorld("10.244.1.5")
	from, to := pod("from"), pod("to")
	from.VirtualMachine, to.VirtualMachine = "vm1", "vm1"
	a := given(w, w.namespace("n1", 2, "100", from))
	b := given(w, w.namespace("n2", 2, "200", to))
	w.want(t, verdict.Suspected, verdict.RuleSameVM, verdict.NetworkScope, "pods")
	w.says("uid-from", verdict.PodObject{Namespace: "default", Name: "from", Phase: "Succeeded"})
	w.after(time.Minute).read(a, b)
	c := w.want(t, verdict.Confirmed, verdict.RuleSameVM, verdict.NetworkScope, "pods")
	if c.Cause != verdict.CauseOrphanedSandbox || !strings.Contains(c.Summary, "has ended (Succeeded)") {
		t.Errorf("got cause %s, %q", c.Cause, c.Summary)
	}
}

func TestPodsOfDifferentVirtualMachinesAreNoTwins(t *testing.T) {
	for _, other := range []verdict.Workload{
		{Kind: verdict.Pod, Namespace: "default", Name: "b", UID: "b", VirtualMachine: "vm2"},
		{Kind: verdict.Pod, Namespace: "other", Name: "b", UID: "b", VirtualMachine: "vm1"},
		{Kind: verdict.Pod, Namespace: "default", Name: "b", UID: "b"},
	} {
		w := newWorld("10.244.1.5")
		one := pod("a")
		one.VirtualMachine = "vm1"
		a := given(w, w.namespace("n1", 2, "100", one))
		b := given(w, w.namespace("n2", 2, "200", other))
		w.judge()
		w.after(time.Second).read(a, b)
		w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
	}
}

func TestRangesOfPodsAreOneNetwork(t *testing.T) {
	onVeth := func(w *world, node string, who verdict.Workload) *verdict.Interface {
		inside, _ := w.veth(w.namespace(node, 2, "1"+node[1:]+"0", who), "\x02\x00\x00\x00\x00"+node[1:], w.link(node, "veth", verdict.PointToPoint, false))
		return inside
	}
	tests := []struct {
		name string
		put  func(w *world, node string) *verdict.Interface
		want bool
		of   string
	}{
		{"pods", func(w *world, node string) *verdict.Interface { return onVeth(w, node, pod("p"+node)) }, true, ""},
		{"bridges of the nodes", func(w *world, node string) *verdict.Interface {
			return w.iface(w.host(node), verdict.Interface{Name: "cni0", Attachment: verdict.Own, Link: w.link(node, "cni0", verdict.Bridge, true)})
		}, true, ""},
		{"bridges that are the same everywhere", func(w *world, node string) *verdict.Interface {
			return w.iface(w.host(node), verdict.Interface{Name: "docker0", Attachment: verdict.Own, Link: w.link(node, "docker0", verdict.Bridge, true)})
		}, false, "n1"},
		{"pods of a pool that no node's range matters to", func(w *world, node string) *verdict.Interface { return onVeth(w, node, pod("p"+node)) }, true, "n1"},
		{"uplinks", func(w *world, node string) *verdict.Interface { return uplink(w, node) }, false, ""},
		{"containers", func(w *world, node string) *verdict.Interface {
			return onVeth(w, node, verdict.Workload{Kind: verdict.Container, Name: "c" + node})
		}, false, ""},
		{"ports of Open vSwitch", func(w *world, node string) *verdict.Interface {
			inside, _ := w.veth(w.namespace(node, 2, "1"+node[1:]+"0", pod("p"+node)), "\x02\x00\x00\x00\x00"+node[1:], w.link(node, "ovs", verdict.OVSPort, false))
			return inside
		}, false, ""},
		{"private links", func(w *world, node string) *verdict.Interface {
			return w.iface(w.namespace(node, 2, "1"+node[1:]+"0", pod("p"+node)), verdict.Interface{Name: "k6t-eth0", Attachment: verdict.Private})
		}, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld("10.244.1.1")
			w.assigned(tt.put(w, "n1"))
			w.assigned(tt.put(w, "n2"))
			w.wantNone(t)
			w.podCIDR, w.podCIDROf = netip.MustParsePrefix("10.244.1.0/24"), tt.of
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

func TestTheAPINamesWhomTheNodeCannot(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.says("uid-a", verdict.PodObject{Namespace: "shop", Name: "cart", Phase: "Running"})
	c := given(w, w.namespace("n1", 2, "100", verdict.Workload{Kind: verdict.Pod, UID: "uid-a", Source: "cgroup"}))
	o := w.wantNone(t).Owners[0]
	if namespace, name := o.Named(); namespace != "shop" || name != "cart" || o.Workload().Name != "cart" {
		t.Errorf("got %s/%s, want the name that the API has for the uid", namespace, name)
	}
	w.drop(c)
}

// A static pod lives by a file: who deletes it in the API deletes a picture of it.
func TestAStaticPodIsNotDeleted(t *testing.T) {
	w := newWorld("10.244.0.5")
	one, _ := w.veth(w.namespace("n1", 2, "102", pod("a")), "baaaaa", w.link("n1", "v1", verdict.PointToPoint, false))
	two, _ := w.veth(w.namespace("n1", 3, "103", pod("b")), "bbbbbb", w.link("n1", "v2", verdict.PointToPoint, false))
	w.assigned(one)
	w.assigned(two).AssignedAt += 5e9
	w.pods = map[string]*verdict.PodObject{"uid-b": {Namespace: "default", Name: "b", Node: "n1", Phase: "Running", ControllerKind: "Node", Controller: "n1"}}
	if advice := strings.Join(flat(w.judge().Conflicts[0].Remedy), "\n"); !strings.Contains(advice, "On node n1, take its manifest out") || strings.Contains(advice, "kubectl delete pod") {
		t.Errorf("got advice\n%s", advice)
	}
}
