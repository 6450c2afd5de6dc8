package audit_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/containers"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// An allocation is the owner's own or another owner's.
func TestAllocationsMatchOwners(t *testing.T) {
	podObject := func(node string) *verdict.PodObject {
		return &verdict.PodObject{Namespace: "default", Name: "a", Node: node, Phase: "Running"}
	}
	for _, test := range []struct {
		name  string
		al    verdict.Allocation
		build func(w *world, c *verdict.Claim)
		mine  bool
	}{
		{"for its container", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, nil, true},
		{"for another container", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}}, nil, false},
		{"for its container, in the name of another pod", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a", Namespace: "default", Pod: "b"}}, nil, true},
		{"for its name, and another container", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b", Namespace: "default", Pod: "a"}}, nil, true},
		{"for its name in another namespace", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "kube-system", Pod: "a"}}, nil, false},
		{"kept for the virtual machine that it runs", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "vm", Kept: true}}, func(w *world, _ *verdict.Claim) {
			p := podObject("n1")
			p.VirtualMachine = "vm"
			w.Pods = map[string]*verdict.PodObject{"uid-a": p}
		}, true},
		{"for a pod with the name of the virtual machine that it runs", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "vm"}}, func(w *world, _ *verdict.Claim) {
			p := podObject("n1")
			p.VirtualMachine = "vm"
			w.Pods = map[string]*verdict.PodObject{"uid-a": p}
		}, false},
		{"for another name", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b"}}, nil, false},
		{"for another container than the one from a cgroup", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}}, func(_ *world, c *verdict.Claim) {
			sourced(c.Interface.Namespace, "cgroup", "")
		}, true},
		{"for another container than the one from a process", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}}, func(_ *world, c *verdict.Claim) {
			sourced(c.Interface.Namespace, "process", "")
		}, true},
		{"for another container than the one from a cgroup alone", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}}, func(_ *world, c *verdict.Claim) {
			sourced(c.Interface.Namespace, "cri", "name=kubernetes,containerId=cgroup")
		}, true},
		{"for another container than the one from the runtime", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}}, func(_ *world, c *verdict.Claim) {
			sourced(c.Interface.Namespace, "cgroup", "name=kubernetes,containerId=cri")
		}, false},
		{"for its node", verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", ContainerID: "sandbox-a"}}, nil, true},
		{"for another node", verdict.Allocation{Allocation: ipam.Allocation{Node: "n2", ContainerID: "sandbox-a"}}, nil, false},
		{"for its node by a longer name", verdict.Allocation{Allocation: ipam.Allocation{Node: "N1.example.org", ContainerID: "sandbox-a"}}, nil, true},
		{"for a node whose name begins as its node's", verdict.Allocation{Allocation: ipam.Allocation{Node: "n10", ContainerID: "sandbox-a"}}, nil, false},
		{"for its node, by the name in Kubernetes", verdict.Allocation{Allocation: ipam.Allocation{Node: "ip-10-0-0-1", ContainerID: "sandbox-a"}}, func(w *world, _ *verdict.Claim) {
			w.Pods = map[string]*verdict.PodObject{"uid-a": podObject("ip-10-0-0-1")}
		}, true},
		{"for another node than Kubernetes has the pod on", verdict.Allocation{Allocation: ipam.Allocation{Node: "ip-10-0-0-2", ContainerID: "sandbox-a"}}, func(w *world, _ *verdict.Claim) {
			w.Pods = map[string]*verdict.PodObject{"uid-a": podObject("ip-10-0-0-1")}
		}, false},
		{"for a pod that Kubernetes has on no node yet", verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", ContainerID: "sandbox-a"}}, func(w *world, _ *verdict.Claim) {
			w.Pods = map[string]*verdict.PodObject{"uid-a": podObject("")}
		}, true},
		{"without a holder", verdict.Allocation{}, nil, true},
		{"for a tunnel", verdict.Allocation{Allocation: ipam.Allocation{Purpose: "VXLAN tunnel"}}, nil, false},
		{"for a container, and the owner is a namespace without one", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}}, func(_ *world, c *verdict.Claim) {
			c.Interface.Namespace.Who = blue("lab").Who()
		}, true},
		{"for a pod, and the owner is an unidentified namespace", verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b"}}, func(_ *world, c *verdict.Claim) {
			c.Interface.Namespace.Who = blue("b").Who()
		}, true},
		{"for a purpose of Calico, and the owner is an unidentified namespace", verdict.Allocation{Allocation: ipam.Allocation{Purpose: "health"}}, func(_ *world, c *verdict.Claim) {
			c.Interface.Namespace.Who = blue("health").Who()
		}, false},
	} {
		w := newWorld("10.244.0.7")
		c := w.kindPod("n1", "a", "kind", 2)
		if test.build != nil {
			test.build(w, c)
		}
		w.allocate(w.pooled("p", calico.IPAM.Name, ""), test.al)
		want := []string{bookedElse + " p"}
		if test.mine {
			want = nil
		}
		w.wantReported(t, test.name, want...)
	}
}

// sourced sets the source of the container ID of a namespace.
func sourced(ns *verdict.Namespace, source, sources string) {
	who := ns.Who.Workload()
	who.Source, who.Sources = source, sources
	ns.Who = who.Who()
}

func TestNodesWithOtherNames(t *testing.T) {
	for _, test := range []struct {
		node, name string
		want       bool
	}{
		{"n1", "n1", true},
		{"n1", "N1", true},
		{"n1.example.org", "n1", true},
		{"n1", "n1.example.org", true},
		{"n1", "n10", false},
		{"n10", "n1", false},
		{"n1", "", false},
		{"", "n1", false},
		{"n1@boot", "n1.example.org", true},
		{"n1", "n2", false},
		{"n1.example.org", "n1.example.com", false},
		{"n2", "n1", false},
	} {
		n := verdict.Node{Name: test.node}
		if got := n.Called(test.name); got != test.want {
			t.Errorf("%q for %q: got %t, want %t", test.name, test.node, got, test.want)
		}
	}
}

func TestDoubleAllocations(t *testing.T) {
	for _, test := range []struct {
		name     string
		one, two verdict.Allocation
		change   func(w *world, p, q *verdict.Pool)
		want     bool
	}{
		{name: "two pods", one: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b"}}, want: true},
		{name: "two pods of one name", one: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "other", Pod: "a"}}, want: true},
		{name: "one pod", one: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", ContainerID: "1"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", ContainerID: "2"}}},
		{name: "one container", one: verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1", Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1", Pod: "b"}}},
		{name: "two containers", one: verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1"}}, two: verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "2"}}, want: true},
		{name: "two containers of one node", one: verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1", Node: "n1"}}, two: verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "2", Node: "n1"}}, want: true},
		{name: "a container and a pod of one node", one: verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1", Node: "n1"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a", Node: "n1"}}},
		{name: "a container and a pod of two nodes", one: verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1", Node: "n1"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a", Node: "n2"}}, want: true},
		{name: "a pod and no holder", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{}},

		{name: "two pools of one IPAM", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(_ *world, _, q *verdict.Pool) { q.Name = "q" }, want: true},
		{name: "pools of two IPAMs", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(_ *world, _, q *verdict.Pool) { q.IPAM = cilium.IPAM.Name }},
		{name: "pools of two realms", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(_ *world, _, q *verdict.Pool) { q.Realm = "red" }},
		{name: "pools of two nodes", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(w *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, p.Node, q.Node = hostlocal.Name, hostlocal.Name, w.Node("n1"), w.Node("n2")
		}},
		{name: "two pools of one node and network", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network = "lan", "lan"
		}, want: true},
		{name: "two pools of one node of no known network", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: ofOneNode},
		{name: "two pools of one node and two networks", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network = "lan", "wan"
		}},
		{name: "two pools of one node and two networks, both routed", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network, p.Routed, q.Routed = "lan", "wan", true, true
		}, want: true},
		{name: "two pools of one node and two networks, the first routed", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network, p.Routed = "lan", "wan", true
		}},
		{name: "two pools of one node and two networks, the second routed", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network, q.Routed = "lan", "wan", true
		}},
		{name: "two pools of whereabouts of no known network", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, q.Name = whereabouts.Name, whereabouts.Name, "q"
		}, want: true},
		{name: "two pools of whereabouts, of which one's network is known", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, q.Name, p.Network = whereabouts.Name, whereabouts.Name, "q", "lan"
		}},
		{name: "two pools of whereabouts, of which the other one's network is known", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, q.Name, q.Network = whereabouts.Name, whereabouts.Name, "q", "lan"
		}},
		{name: "two pools of whereabouts of one network", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, q.Name, p.Network, q.Network = whereabouts.Name, whereabouts.Name, "q", "lan", "lan"
		}, want: true},
		{name: "one pool of whereabouts", one: verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, p.Network, q.Network = whereabouts.Name, whereabouts.Name, "lan", "wan"
		}, want: true},

		{name: "one of the pods was deleted from the API long enough ago", one: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b"}}, change: func(w *world, _, _ *verdict.Pool) {
			w.Listed = true
			w.Pods = map[string]*verdict.PodObject{"uid-a": {Namespace: "default", Name: "a", Phase: "Running"}}
			w.Known = start.Add(w.Policy.Settle) + 1
		}},
		{name: "the API may not have had one of the pods yet", one: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}}, two: verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b"}}, change: func(w *world, _, _ *verdict.Pool) {
			w.Listed = true
			w.Pods = map[string]*verdict.PodObject{"uid-a": {Namespace: "default", Name: "a", Phase: "Running"}}
			w.Known = start.Add(w.Policy.Settle)
		}, want: true},
	} {
		for range 2 {
			w := newWorld("10.244.0.7")
			p, q := w.pooled("p", calico.IPAM.Name, ""), w.pooled("p", calico.IPAM.Name, "")
			if test.change != nil {
				test.change(w, p, q)
				p.Traits, q.Traits = registry.Traits(p.IPAM), registry.Traits(q.IPAM)
			}
			w.allocate(p, test.one)
			w.allocate(q, test.two)
			before := w.auditAll()
			waiting := slices.ContainsFunc(before.Findings, func(f verdict.Finding) bool { return f.Kind == double && f.Waiting })
			out := w.after(time.Minute).auditAll(before.Findings...)
			if got := slices.ContainsFunc(out.Findings, func(f verdict.Finding) bool { return f.Kind == double && !f.Waiting }); got != test.want || waiting != got {
				t.Errorf("%s: got %+v, want a double allocation: %t", test.name, out.Findings, test.want)
			}
			if test.want && (out.Again == 0 || out.Again > w.Now.Add(30*time.Second)) {
				t.Errorf("%s: got again %d, want it in half a minute: nothing changes when one of the pods ends", test.name, out.Again)
			}
			if test.name == "one of the pods was deleted from the API long enough ago" || test.name == "the API may not have had one of the pods yet" {
				break // this case is not symmetric
			}
			test.one, test.two = test.two, test.one
		}
	}
}

// ofOneNode turns two pools into host-local pools on n1.
func ofOneNode(w *world, p, q *verdict.Pool) {
	p.IPAM, q.IPAM, p.Node, q.Node, q.Name = hostlocal.Name, hostlocal.Name, w.Node("n1"), w.Node("n1"), "q"
}

func TestADoubleAllocationNamesTwoAllocationsAndTheOwner(t *testing.T) {
	w := newWorld("10.244.0.7")
	p := w.pooled("p", calico.IPAM.Name, "")
	w.kindPod("n1", "c", "kind", 2)
	w.kindPod("n2", "gone", "kind", 3).Node().TimedOut = true
	for _, pod := range []string{"a", "a", "c", "d"} {
		w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: pod, Location: fmt.Sprint(len(w.Allocations))}})
	}
	var found []verdict.Finding
	for _, f := range w.auditAll().Findings {
		if f.Kind == double {
			found = append(found, f)
		}
	}
	if len(found) != 1 || !slices.Equal(found[0].Allocations, []*verdict.Allocation{w.Allocations[0], w.Allocations[2]}) {
		t.Fatalf("got %+v, want one about the first two that differ", found)
	}
	if o := found[0].Owners; len(o) != 1 || o[0].Workload().Name != "c" || found[0].Severity != verdict.Critical {
		t.Errorf("got owners %+v, severity %d, want c, the holder", o, found[0].Severity)
	}
}

func TestVanishedAllocationsAreRemembered(t *testing.T) {
	for _, test := range []struct {
		name   string
		al     verdict.Allocation
		change func(w *world, p *verdict.Pool, al *verdict.Allocation)
		want   string
	}{
		{"it was the owner's", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, nil, unallocated},
		{"it was the owner's, and all records are gone", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, func(_ *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.State = ipam.Missing
		}, unallocated},
		{"it was for another owner", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-x"}}, nil, bookedElse},
		{"it was for another owner, before this one", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-x"}}, func(w *world, _ *verdict.Pool, _ *verdict.Allocation) {
			w.Now--
		}, ""},
		{"it was for another owner, and was received late", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-x"}, Heard: start.Add(1)}, nil, ""},
		{"its pool is being read", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, func(_ *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.State = ipam.Reading
		}, ""},
		{"it is written elsewhere", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a", Location: "elsewhere"}})
		}, ""},
		{"another one is there", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-x"}})
		}, unallocated},
		{"it was another node's", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = w.Node("n2")
		}, ""},
		{"it was the cluster's", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, func(_ *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
		}, unallocated},
		{"the owner is gone", verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}}, func(w *world, _ *verdict.Pool, _ *verdict.Allocation) {
			w.Node("n1").TimedOut = true
		}, ""},
	} {
		w := newWorld("10.244.0.7")
		w.kindPod("n1", "a", "kind", 2)
		p := &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: "p", State: ipam.Known}, Node: w.Node("n1")}
		al := test.al
		al.Pool, al.Address = p, w.Addr
		w.after(w.Policy.Settle)
		if test.change != nil {
			test.change(w, p, &al)
		}
		out := w.Judge()
		in := w.Case()
		in.Vanished = []*verdict.Allocation{&al}
		past := audit.Address(&w.Policy, in, &out).Past
		if test.want == "" {
			if len(past) != 0 {
				t.Errorf("%s: got %+v, want nothing", test.name, past)
			}
			continue
		}
		if len(past) != 1 || past[0].Kind != test.want || past[0].Allocation != &al || past[0].Since != w.Now || past[0].Owner != "boot-n1/n1a" {
			t.Errorf("%s: got %+v, want %s", test.name, past, test.want)
		}
	}
}

func TestThePastIsLimited(t *testing.T) {
	w := newWorld("10.244.0.7")
	w.kindPod("n1", "a", "kind", 2)
	w.kindPod("n2", "b", "kind", 2).Node().TimedOut = true
	remember := func(owner, kind string, al *verdict.Allocation) {
		w.Past = append(w.Past, verdict.Past{Owner: owner, Kind: kind, Allocation: al})
	}
	remember("boot-n1/n1a", bookedElse, nil)
	remember("boot-n2/n2b", bookedElse, nil) // gone
	remember("boot-n3/n3c", bookedElse, nil) // never there
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: "p", State: ipam.Known}, Node: w.Node("n1")}
	first := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, ContainerID: "sandbox-x"}}
	second := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, ContainerID: "sandbox-y"}}
	mine := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, ContainerID: "sandbox-a"}}
	w.after(w.Policy.Settle)
	audit := func(vanished ...*verdict.Allocation) []verdict.Past {
		out := w.Judge()
		in := w.Case()
		in.Vanished = vanished
		return audit.Address(&w.Policy, in, &out).Past
	}
	past := audit(first, second, mine)
	if len(past) != 2 || past[0].Kind != bookedElse || past[0].Allocation != first || past[1].Kind != unallocated || past[1].Allocation != mine {
		t.Errorf("got %+v, want the first of each kind", past)
	}

	w.Past = nil
	for i := range 7 {
		remember("boot-n1/n1a", fmt.Sprint(i), nil)
	}
	if past := audit(first, mine); len(past) != 8 || past[7].Kind != bookedElse {
		t.Errorf("got %d remembered, want 8 at most, the first ones", len(past))
	}
}

// blue returns a network namespace that was created by hand.
func blue(name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Unknown, Name: name, Source: "netns"}
}

// Packets for an address that two owners have already reach one of them: the finding names both.
func TestTheOwnerOfTheAllocationHasTheAddressAsWell(t *testing.T) {
	for _, test := range []struct {
		name string
		want int // owners of the finding
	}{{"it has it", 2}, {"it has not", 1}} {
		w := newWorld("10.244.0.7")
		if test.want == 2 {
			w.kindPod("n1", "web", "kind", 2)
		}
		w.Device("n2", "eth0", "")
		p := w.pooled("p", calico.IPAM.Name, "")
		p.Routed, p.Ranges = true, []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.244.0.0/24"))}
		w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "web", Node: "n1"}})
		first := w.auditAll()
		got := -1
		for _, f := range w.after(time.Minute).auditAll(first.Findings...).Findings {
			if f.Kind == bookedElse && f.Owners[0].Kind() == verdict.Host {
				got = len(f.Owners)
			}
		}
		if got != test.want {
			t.Errorf("%s: got %d owners, want %d", test.name, got, test.want)
		}
	}
}

// A pool of addresses of a LAN may give away one that a machine without an agent uses there.
func TestAMachineUsesAnAddressFromARangeOnItsLAN(t *testing.T) {
	onDocker := func(p *verdict.Pool) {
		p.IPAM, p.Traits, p.Config = containers.DockerName, registry.Traits(containers.DockerName), ""
	}
	for _, test := range []struct {
		name   string
		kind   verdict.Evidence
		change func(p *verdict.Pool)
		want   bool
	}{
		{"a request", verdict.Used, func(*verdict.Pool) {}, true},
		{"a request, and the engine of containers", verdict.Used, onDocker, true},
		{"an answer, as of a proxy", verdict.Answered, func(*verdict.Pool) {}, false},
		{"an announcement, as of a host that takes over", verdict.Announced, func(*verdict.Pool) {}, false},
		{"a range without the address", verdict.Used, func(p *verdict.Pool) {
			p.Ranges = []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("192.0.2.0/25"))}
		}, false},
		{"a network on another card", verdict.Used, func(p *verdict.Pool) { p.Device = "eth1" }, false},
		{"a bridge with a range of its own", verdict.Used, func(p *verdict.Pool) { p.Plugin, p.Routed = "bridge", true }, false},
		{"a network that the engine has no more", verdict.Used, func(p *verdict.Pool) { onDocker(p); p.State = ipam.Missing }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld("192.0.2.205")
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			p := w.pooled("lan", hostlocal.Name, "n1")
			p.Ranges, p.Device, p.Plugin, p.Config = []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("192.0.2.0/24"))}, "eth0", "macvlan", "/etc/cni/net.d/10-lan.conf"
			test.change(p)
			w.after(time.Second)
			frame := w.Wire(lan[0], "\x52\x54\x00\x00\x00\x09")
			frame.Kind = test.kind
			waits := w.auditAll()
			w.after(12 * time.Second)
			w.Seen(frame)
			found := w.auditAll(waits.Findings...).Findings
			got := slices.ContainsFunc(found, func(f verdict.Finding) bool { return f.Kind == verdict.FindingInUseUnallocated && !f.Waiting })
			if got != test.want || got && found[0].Severity != verdict.Warning {
				t.Errorf("got %+v, want a warning %t", found, test.want)
			}
		})
	}
}
