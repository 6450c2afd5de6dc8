package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"

	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

const heldElsewhere = verdict.FindingVIPHeldElsewhere

// assigned assigns the address to a node now.
func (w *world) assigned(of, node, location string) *verdict.Allocation {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: "addresses", State: ipam.Known}}
	for _, have := range w.Pools {
		if have.IPAM == of {
			p = have
		}
	}
	if !slices.Contains(w.Pools, p) {
		w.Pools = append(w.Pools, p)
	}
	al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, Node: node, Purpose: "Service shop/web", Location: location}, Heard: w.Now}
	w.Allocations = append(w.Allocations, al)
	return al
}

// frame is a claim of a node as the other node sees it on the LAN.
func (w *world) frame(lan []*verdict.Interface, of, seenBy int, kind verdict.Evidence) *verdict.Claim {
	c := w.Wire(lan[seenBy], string(lan[of].MAC))
	c.Kind = kind
	return c
}

func TestVirtualAddressesHeldElsewhere(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, lan []*verdict.Interface)
		want  string // the owners of the finding; empty for none
	}{
		{"the kernel of the assigned node", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n1", "a")
			w.Assigned(lan[0])
		}, ""},
		{"the kernel of another node", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n2", "a")
			w.Assigned(lan[0])
		}, "n1"},
		{"the own address of another node, as k3s writes it into the status of a Service", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n2", "a")
			w.Assigned(lan[0])
			w.Internal = "n1"
		}, ""},
		{"the kernels of both", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n2", "a")
			w.Assigned(lan[0])
			w.Assigned(lan[1])
		}, "n1 n2"},
		{"frames from before the hand-over", func(w *world, lan []*verdict.Interface) {
			w.frame(lan, 0, 1, verdict.Announced)
			w.After(time.Second)
			w.assigned(vip.MetalLB.Name, "n2", "a")
		}, ""},
		{"frames within the grace", func(w *world, lan []*verdict.Interface) {
			c := w.frame(lan, 0, 1, verdict.Announced)
			w.assigned(vip.MetalLB.Name, "n2", "a")
			w.After(9 * time.Second)
			w.Seen(c)
		}, ""},
		{"frames after the grace", func(w *world, lan []*verdict.Interface) {
			c := w.frame(lan, 0, 1, verdict.Announced)
			w.assigned(vip.MetalLB.Name, "n2", "a")
			w.After(10 * time.Second)
			w.Seen(c)
		}, "n1"},
		{"a speaker that only answers", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.EgressIP.Name, "n2", "a")
			w.After(time.Minute)
			w.frame(lan, 0, 1, verdict.Answered)
		}, "n1"},
		{"the assigned speaker only answers", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.MetalLB.Name, "n1", "a")
			w.After(time.Minute)
			w.frame(lan, 0, 1, verdict.Answered)
		}, ""},
		{"two objects while another speaker takes over", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.MetalLB.Name, "n1", "a")
			w.assigned(vip.MetalLB.Name, "n2", "b")
			w.Assigned(lan[0])
		}, ""},
		{"two controllers, one of which has left its record behind", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.MetalLB.Name, "n1", "a")
			w.assigned(vip.KubeVIP.Name, "n2", "b")
			w.Assigned(lan[0])
		}, ""},
		{"two controllers for one node", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.MetalLB.Name, "n1", "a")
			w.assigned(vip.KubeVIP.Name, "n1", "b")
			w.Assigned(lan[0])
		}, ""},
		{"the assigned node has no agent, or another name in Kubernetes", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "control-1.example.org", "a")
			w.Uncovered = []string{"control-1.example.org"}
			w.Assigned(lan[0])
		}, ""},
		{"the long name of the assigned node", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n1.example.org", "a")
			w.Assigned(lan[0])
		}, ""},
		{"a node that has failed", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n2", "a")
			w.Assigned(lan[0])
			w.Assigned(lan[1])
			w.Node("n1").Unheard = true
		}, ""},
		{"a loopback device, as of kube-proxy", func(w *world, _ []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n2", "a")
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "kube-ipvs0", Attachment: verdict.Local}))
		}, ""},
		{"a device outside", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n2", "a")
			w.After(time.Minute)
			w.Wire(lan[1], "\x02\x00\x00\x00\x00\x99")
		}, ""},
		{"a pod", func(w *world, _ []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n2", "a")
			w.Within("n1", "", "", verdicttest.Who("web"))
		}, ""},
		{"an API that does not respond", func(w *world, lan []*verdict.Interface) {
			w.assigned(vip.KubeVIP.Name, "n2", "a").Pool.State = ipam.Stale
			w.Assigned(lan[0])
		}, ""},
	} {
		w := newWorld("192.0.2.50")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		test.build(w, lan)
		first := w.auditAll()
		w.after(w.Policy.HandoverGrace)
		got := ""
		for _, f := range w.auditAll(first.Findings...).Findings {
			if f.Kind != heldElsewhere {
				t.Errorf("%s: got %s, want nothing that concerns allocations", test.name, f.Kind)
				continue
			}
			for _, o := range f.Owners {
				got += " " + o.Node.Name
			}
			if f.Severity != verdict.Critical || f.Waiting || f.Pool == nil || len(f.Allocations) != 1 {
				t.Errorf("%s: got %+v, want a critical finding with its assignment", test.name, f)
			}
		}
		if got = trim(got); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func trim(s string) string {
	if s == "" {
		return ""
	}
	return s[1:]
}

// A hand-over is silent, and the finding stays while the state is not known and ends by itself.
func TestVirtualAddressFindingOverTime(t *testing.T) {
	w := newWorld("192.0.2.50")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	al := w.assigned(vip.KubeVIP.Name, "n1", "a")
	one := w.Assigned(lan[0])
	var before []verdict.Finding
	step := func(what string, want ...string) {
		t.Helper()
		out := w.auditAll(before...)
		if before = out.Findings; !slices.Equal(reported(before), want) {
			t.Errorf("%s: got %q, want %q", what, reported(before), want)
		}
	}
	step("it is where it is assigned")
	moved := *al
	moved.Node, moved.Heard = "n2", w.Now
	w.Allocations[0] = &moved
	step("the controller has elected another node")
	two := w.after(5 * time.Second).Assigned(lan[1])
	step("both have it")
	w.after(4 * time.Second).Drop(one)
	step("the first node gives it up within the grace")
	if len(before) != 0 {
		t.Errorf("got %+v, want nothing that waits", before)
	}
	// The next time, the node keeps it.
	back := moved
	back.Node, back.Heard = "n1", w.Now
	w.Allocations[0] = &back
	one = w.Assigned(lan[0])
	step("it moves back")
	w.after(9 * time.Second)
	step("the grace is not over")
	w.after(time.Second)
	step("the second node keeps it", heldElsewhere+" addresses")
	al.Pool.State = ipam.Stale
	step("the API does not respond", heldElsewhere+" addresses")
	al.Pool.State = ipam.Known
	w.Uncovered = []string{"n1"}
	step("the agent of the assigned node does not report", heldElsewhere+" addresses")
	w.Uncovered = nil
	w.Node("n2").Unheard = true
	step("the node that keeps it is disconnected", heldElsewhere+" addresses")
	w.Node("n2").Unheard = false
	w.Drop(two)
	step("it gives it up")
	w.Drop(one)
	step("no node has it")
}

// Both controllers are named, in one finding, whichever of them was read first.
func TestTwoControllersAssignTheAddress(t *testing.T) {
	for _, first := range []string{vip.KubeVIP.Name, vip.MetalLB.Name} {
		w := newWorld("192.0.2.50")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		w.Assigned(lan[0])
		frame := w.frame(lan, 1, 0, verdict.Answered)
		w.assigned(vip.KubeVIP.Name, "n1", "a")
		w.assigned(vip.MetalLB.Name, "n2", "b")
		if w.Allocations[0].Pool.IPAM != first {
			slices.Reverse(w.Allocations)
		}
		if got := w.auditAll(); len(got.Findings) != 0 {
			t.Errorf("got %+v at once, want nothing within the grace", got.Findings)
		}
		w.after(w.Policy.HandoverGrace)
		w.Seen(frame)
		waiting := w.auditAll()
		w.after(w.Policy.HandoverGrace)
		got := w.auditAll(waiting.Findings...).Findings
		if len(got) != 1 || got[0].Kind != heldElsewhere || got[0].Waiting || len(got[0].Owners) != 2 || len(got[0].Allocations) != 2 ||
			got[0].Allocations[0].Pool.IPAM != vip.KubeVIP.Name || got[0].Allocations[1].Pool.IPAM != vip.MetalLB.Name {
			t.Errorf("got %+v, want one finding with both controllers", got)
		}
		w.Drop(frame)
		if got := w.auditAll(got...).Findings; len(got) != 0 {
			t.Errorf("got %+v, want the finding to end with one of the holders", got)
		}
	}
}

// TestAssignmentByTurns: speakers that do not see each other assign the address to one node after the other
// while both hold it. A finding that names the node of the moment would give alternating advice.
func TestAssignmentByTurns(t *testing.T) {
	w := newWorld("192.0.2.50")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	w.Assigned(lan[0])
	w.Assigned(lan[1])
	var past []verdict.Past
	for turn, node := range []string{"n1", "n2", "n1"} {
		var former *verdict.Allocation
		if turn > 0 {
			former, w.Allocations = w.Allocations[0], nil
		}
		w.assigned(vip.MetalLB.Name, node, node)
		w.after(2 * w.Policy.HandoverGrace)
		out, in := w.Judge(), w.Case()
		in.Past = past
		if former != nil {
			in.Vanished = []*verdict.Allocation{former}
		}
		got := audit.Address(&w.Policy, in, &out)
		past = got.Past
		found := slices.ContainsFunc(got.Findings, func(f verdict.Finding) bool { return f.Kind == heldElsewhere })
		if want := turn < 2; found != want {
			t.Errorf("turn %d: got a finding %t, want %t", turn, found, want)
		}
	}
}
