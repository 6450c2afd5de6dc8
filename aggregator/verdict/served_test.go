package verdict_test

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// gVisor takes the address that CNI gave to a pod from the interface, and uses it in a network stack of its own.
func TestAPodServesTheAddressThatItWasGiven(t *testing.T) {
	machine := verdicttest.Who("sandboxed")
	machine.VirtualMachine = "db"
	for _, test := range []struct {
		name   string
		change func(w *world, c *verdict.Claim)
		served bool
	}{
		{"it answers", nil, true},
		{"it announces the address", func(_ *world, c *verdict.Claim) { c.Kind = verdict.Announced }, true},
		{"it only uses the address, as a process with a raw socket may", func(_ *world, c *verdict.Claim) { c.Kind = verdict.Used }, false},
		{"it has been silent", func(w *world, c *verdict.Claim) { w.after(w.Policy.StaleAfter) }, false},
		{"nothing gave it the address", func(w *world, _ *verdict.Claim) { w.Namespaces[0].Intended = "10.244.1.6 cni-result eth0 kindnet" }, false},
		{"its kernel has the address again", func(w *world, _ *verdict.Claim) {
			w.Assigned(w.Interfaces[0])
		}, false},
		{"the guest of a virtual machine may have been migrated", func(w *world, _ *verdict.Claim) { w.Namespaces[0].Who = machine.Who() }, false},
		{"the frames left the pod through another port", func(_ *world, c *verdict.Claim) { other := *c.Interface; other.Peer = 0; c.Interface = &other }, false},
	} {
		w := newWorld(verdicttest.DefaultAddr)
		c := verdicttest.Sandbox(w.World, "n1", "cni0", "kindnet", verdicttest.Who("sandboxed"))
		if test.change != nil {
			test.change(w, c)
		}
		for _, o := range w.judge().Owners {
			if got := o.Served != nil; got != test.served {
				t.Errorf("%s: got %t (%+v), want %t", test.name, got, o.Served, test.served)
			}
		}
	}
}

// A pod has what CNI gave it in all places, whether its kernel has it or not.
func TestAServedAddressIsComparedInTheNetworkOfPods(t *testing.T) {
	for _, test := range []struct {
		name     string
		intended string
		kind     verdict.Evidence
		rivals   bool
	}{
		{"given by CNI", " cni-result eth0 kindnet", verdict.Answered, true},
		{"given by the runtime", " cri eth0 cri", verdict.Answered, true},
		{"given to another interface", " cni-result net1 storage", verdict.Answered, false},
		{"by an agent that does not report the network", " cni-result eth0", verdict.Answered, false},
		{"only used", " cni-result eth0 kindnet", verdict.Used, false},
	} {
		w := newWorld(verdicttest.DefaultAddr)
		c := verdicttest.Sandbox(w.World, "n1", "cni0", "kindnet", verdicttest.Who("sandboxed"))
		c.Kind, w.Namespaces[0].Intended = test.kind, verdicttest.DefaultAddr+test.intended
		w.Within("n2", "", "kindnet", verdicttest.Who("other"))
		if !test.rivals {
			if w.wantNone(t); t.Failed() {
				t.Fatal(test.name)
			}
			continue
		}
		w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.NetworkScope, "pods")
		w.after(time.Second)
		w.Seen(c)
		w.Read(w.Claims[1])
		w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.NetworkScope, "pods")
	}
}

func TestAnExplanationNamesTheNetworkThatGaveAServedAddress(t *testing.T) {
	w := newWorld(verdicttest.DefaultAddr)
	verdicttest.Sandbox(w.World, "n1", "cni0", "kindnet", verdicttest.Who("sandboxed"))
	if steps := w.wantRule(t, verdict.RuleInNetwork); len(steps) != 1 || !steps[0].Applied || steps[0].Network != "kindnet" || len(steps[0].Owners) != 1 {
		t.Errorf("got %+v, want that kindnet assigned it to the pod", steps)
	}
}

// A sandbox that nobody ended goes on to answer.
func TestASandboxThatServesTheAddressOfADeletedPodIsLeft(t *testing.T) {
	w := newWorld(verdicttest.DefaultAddr)
	c := verdicttest.Sandbox(w.World, "n1", "cni0", "kindnet", verdicttest.Who("sandboxed"))
	w.Says("uid-sandboxed", verdict.PodObject{Absent: true})
	if o := w.judge().Owners[0]; o.Orphaned {
		t.Error("got it orphaned at once, want to wait for the Kubernetes API")
	}
	w.after(time.Minute)
	w.Seen(c)
	if o := w.judge().Owners[0]; !o.Orphaned {
		t.Errorf("got %+v, want it orphaned", o)
	}
	c.Kind = verdict.Used
	if o := w.judge().Owners[0]; o.Orphaned {
		t.Error("got it orphaned, want that it only uses the address")
	}
}
