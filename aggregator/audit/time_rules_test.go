package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestPatienceWithFreeAddressesInUse(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, p *verdict.Pool, c *verdict.Claim)
		want  time.Duration
	}{
		{"a pool of its node", nil, 5 * time.Second},
		{"a pool of its node, and an owner of five seconds", func(_ *world, _ *verdict.Pool, c *verdict.Claim) {
			c.Begun = start.Add(-5 * time.Second)
		}, time.Second},
		{"its pod is deleted", func(w *world, _ *verdict.Pool, _ *verdict.Claim) {
			w.Pods = map[string]*verdict.PodObject{"uid-a": {Namespace: "default", Name: "a", Phase: "Running", DeletionTimestamp: start}}
		}, 30 * time.Second},
		{"Cilium", func(_ *world, p *verdict.Pool, _ *verdict.Claim) {
			p.IPAM, p.Traits = cilium.IPAM.Name, registry.Traits(cilium.IPAM.Name)
		}, 5 * time.Minute},
		{"the pool has no directory", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.State = ipam.Missing }, 5 * time.Second},
		{"the directory was removed before it began", func(_ *world, p *verdict.Pool, _ *verdict.Claim) {
			p.State, p.LostHeard = ipam.Missing, start-1
		}, 5 * time.Second},
		{"the directory was removed after it began", func(_ *world, p *verdict.Pool, _ *verdict.Claim) {
			p.State, p.LostHeard = ipam.Missing, start+1
		}, 0},
		{"the records were lost after it began", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.LostHeard = start + 1 }, 0},
		{"the records were lost when it began", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.LostHeard = start }, 5 * time.Second},
		{"the records were lost before it began", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.LostHeard = start - 1 }, 5 * time.Second},
		{"a pool of the cluster", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.Node = nil }, 5 * time.Second},
		{"a pool of the cluster, and an owner of five seconds", func(_ *world, p *verdict.Pool, c *verdict.Claim) {
			p.Node = nil
			c.Begun = start.Add(-5 * time.Second)
		}, time.Second},
		{"a pool of its node, while the API is disconnected", func(w *world, _ *verdict.Pool, _ *verdict.Claim) { w.Known = start - 1 }, 5 * time.Second},
		{"a cluster-wide pool, while the API has been disconnected since the owner settled", func(w *world, p *verdict.Pool, c *verdict.Claim) {
			p.Node = nil
			c.Begun = start.Add(-5 * time.Second)
			w.Known = c.Begun.Add(time.Second) - 1
		}, -1},
		{"a cluster-wide pool, while the API has been disconnected since long after", func(w *world, p *verdict.Pool, c *verdict.Claim) {
			p.Node = nil
			c.Begun = start.Add(-5 * time.Second)
			w.Known = c.Begun.Add(time.Second)
		}, time.Second},
	} {
		w := newWorld("10.244.0.7")
		c := w.kindPod("n1", "a", "kind", 2)
		p := w.pooled("p", hostlocal.Name, "n1")
		p.Network = "kind"
		if test.build != nil {
			test.build(w, p, c)
		}
		first := w.auditAll()
		if test.want == 0 {
			if got := reported(first.Findings); len(got) != 1 {
				t.Errorf("%s: got %+v, want it reported at once", test.name, first.Findings)
			}
			continue
		}
		if test.want < 0 { // while the API is not followed
			out := w.after(time.Hour).auditAll(first.Findings...)
			if len(reported(out.Findings)) != 0 || out.Again != w.Now.Add(time.Second) {
				t.Errorf("%s: got %+v, again %d, want to wait for a second each time", test.name, out.Findings, out.Again)
			}
			continue
		}
		if len(reported(first.Findings)) != 0 || first.Again != start.Add(test.want) {
			t.Errorf("%s: got %+v, again after %s, want after %s", test.name, first.Findings, first.Again.Sub(start), test.want)
		}
		if out := w.after(test.want - 1).auditAll(first.Findings...); len(reported(out.Findings)) != 0 {
			t.Errorf("%s: got %+v after less than %s", test.name, out.Findings, test.want)
		}
		out := w.after(1).auditAll(first.Findings...)
		if len(reported(out.Findings)) != 1 || out.Findings[0].Since != start {
			t.Errorf("%s: got %+v after %s, want it reported, since then", test.name, out.Findings, test.want)
		}
	}
}

// The directory of a pool is created with its first record. The agent may report the address of that
// pod before it has read the directory.
func TestFirstAllocationOfAPoolIsWaitedFor(t *testing.T) {
	w := newWorld("10.244.0.2")
	p := w.hostLocal("n1", "kind", "10.244.0.0/24")
	p.State, p.Problem = ipam.Missing, "the directory does not exist"
	w.kindPod("n1", "a", "kind", 2)
	first := w.audit()
	if len(first.Findings) != 1 || len(reported(first.Findings)) != 0 {
		t.Fatalf("before its directory was read: got %+v, want a waiting finding", first.Findings)
	}
	w.after(4 * time.Second)
	p.State, p.Problem = ipam.Known, ""
	al := w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
	if out := w.audit(first.Findings...); len(out.Findings) != 0 {
		t.Errorf("once its directory was read: got %+v, want no finding", out.Findings)
	}
	// If the directory never appears, the address is reported.
	w.Allocations = slices.DeleteFunc(w.Allocations, func(other *verdict.Allocation) bool { return other == al })
	p.State = ipam.Missing
	first = w.audit()
	if out := w.after(5 * time.Second).audit(first.Findings...); !slices.Equal(reported(out.Findings), []string{unallocated + " " + p.Name}) {
		t.Errorf("without a directory: got %+v, want it reported", out.Findings)
	}
}

// Plugins remove the record of an address, and then the address. On an overloaded node, that takes
// longer than the settle time.
func TestReleasedAddressIsWaitedFor(t *testing.T) {
	for _, test := range []struct {
		name   string
		settle time.Duration
		change func(w *world, p *verdict.Pool, gone *verdict.Allocation)
		want   time.Duration
	}{
		{"the owner's own record", time.Second, nil, 5 * time.Second},
		{"the owner's own record, with a long settle time", time.Minute, nil, time.Minute},
		{"the owner's own record, of a cluster-wide pool", time.Second, func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
		}, 5 * time.Second},
		{"the record of another pool", time.Second, func(w *world, p *verdict.Pool, gone *verdict.Allocation) {
			gone.Pool = w.hostLocal("n1", "other", "10.245.0.0/24")
		}, time.Second},
		{"another one's record", time.Second, func(w *world, _ *verdict.Pool, gone *verdict.Allocation) {
			gone.ContainerID = "sandbox-b"
		}, time.Second},
		{"all records", time.Second, func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.LostHeard = start
		}, 0},
	} {
		w := newWorld("10.244.0.7")
		w.Policy.Settle = test.settle
		p := w.hostLocal("n1", "kind", "10.244.0.0/24")
		w.kindPod("n1", "a", "kind", 2).Begun = start.Add(-time.Hour)
		gone := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, ContainerID: "sandbox-a"}, Heard: start.Add(-time.Hour)}
		if test.change != nil {
			test.change(w, p, gone)
		}
		out := w.Judge()
		in := w.Case()
		in.Pools, in.Vanished = []*verdict.Pool{p}, []*verdict.Allocation{gone}
		got := audit.Address(&w.Policy, in, &out)
		if len(got.Findings) != 1 || got.Findings[0].Kind != unallocated {
			t.Errorf("%s: got %+v, want %s", test.name, got.Findings, unallocated)
			continue
		}
		if waits := got.Findings[0].Waiting; waits != (test.want > 0) || waits && got.Again != start.Add(test.want) {
			t.Errorf("%s: got waiting %v, again after %s, want after %s", test.name, waits, got.Again.Sub(start), test.want)
		}
		// It is also waited for at the next audit, which only remembers that the record vanished.
		in.Vanished, in.Past, in.Before = nil, got.Past, got.Findings
		if again := audit.Address(&w.Policy, in, &out); test.want > 0 && again.Again != got.Again {
			t.Errorf("%s: got %+v, again after %s, want after %s", test.name, again.Findings, again.Again.Sub(start), test.want)
		}
	}
}

// A record for an owner may take five seconds to arrive, counted from when the owner was first
// reported.
func TestNewOwnersAreWaitedFor(t *testing.T) {
	w := newWorld("10.244.0.7")
	w.kindPod("n1", "a", "kind", 2).Begun = start.Add(1 - 5*time.Second)
	w.pooled("p", calico.IPAM.Name, "")
	if out := w.auditAll(); len(out.Findings) != 1 || !out.Findings[0].Waiting || out.Again != start.Add(1) {
		t.Errorf("got %+v, again after %s, want it waiting until the five seconds are over", out.Findings, out.Again.Sub(start))
	}
}

func TestAuditsAreRepeatedInTime(t *testing.T) {
	w := newWorld("10.244.0.7")
	w.Policy.LeakedAfter = 5 * time.Minute
	c := w.kindPod("n1", "a", "kind", 2)
	w.pooled("p", hostlocal.Name, "n1").Network = "kind"
	w.allocate(w.pooled("q", hostlocal.Name, "n2"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "x"}})
	if out := w.auditAll(); out.Again != start.Add(5*time.Second) || len(out.Findings) != 2 {
		t.Errorf("got again %d for %+v, want after 5 s", out.Again, out.Findings)
	}
	w.Drop(c)
	w.allocate(w.Pools[0], verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "y"}})
	w.Uncovered = []string{"n1"}
	if out := w.auditAll(); out.Again != start.Add(5*time.Minute) {
		t.Errorf("got again %d, want after five minutes", out.Again)
	}
}

func TestFindingsAreKeptWhileThePoolIsNotKnown(t *testing.T) {
	type step struct {
		name   string
		change func(w *world, p *verdict.Pool)
		want   []string
	}
	const inUse = unallocated + " p"
	for _, test := range []step{
		{"its node is silent", func(w *world, _ *verdict.Pool) { w.Node("n1").Unheard = true }, []string{inUse}},
		{"the pool is being read", func(_ *world, p *verdict.Pool) { p.State = ipam.Reading }, []string{inUse}},
		{"the pool cannot be read", func(_ *world, p *verdict.Pool) { p.State = ipam.Unreadable }, []string{inUse}},
		{"its records are gone", func(_ *world, p *verdict.Pool) { p.State = ipam.Missing }, []string{inUse}},
		{"it is another pool that is being read", func(w *world, p *verdict.Pool) {
			other := *p
			other.Name, other.State = "other", ipam.Reading
			w.Pools = []*verdict.Pool{&other}
		}, nil},
		{"there is a conflict, and the pool is being read", func(w *world, p *verdict.Pool) {
			p.State = ipam.Reading
			inside, _ := w.Veth(w.Namespace("n1", 9, "n19", verdicttest.Pod("b")), "bbbbbb", w.Link("n1", "v9", verdict.PointToPoint, false))
			w.Assigned(inside)
		}, nil},
	} {
		w := newWorld("10.244.0.7")
		w.kindPod("n1", "a", "kind", 2)
		p := w.pooled("p", hostlocal.Name, "n1")
		p.Network = "kind"
		waiting := w.auditAll().Findings
		if len(waiting) != 1 || !waiting[0].Waiting {
			t.Fatalf("got %+v at once, want a waiting finding", waiting)
		}
		before := w.after(5 * time.Second).auditAll(waiting...).Findings
		test.change(w, p)
		if got := reported(w.auditAll(before...).Findings); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		// Findings that were waiting are not kept.
		if p.State != ipam.Missing {
			if got := w.auditAll(waiting...).Findings; len(got) != 0 && test.want != nil {
				t.Errorf("%s: got %+v kept that was never reported", test.name, got)
			}
		}
		// Findings of another kind are not kept.
		other := before[0]
		other.Kind, other.ID = leaked, "other"
		if got := reported(w.auditAll(other).Findings); slices.Contains(got, leaked+" p") {
			t.Errorf("%s: got %q, which concerns no owner", test.name, got)
		}
	}

	// Leaks are kept as well, if their pool or its node is not known.
	for name, change := range map[string]func(w *world, p *verdict.Pool){
		"its node is silent": func(w *world, _ *verdict.Pool) { w.Node("n1").Unheard = true },
		"it is being read":   func(_ *world, p *verdict.Pool) { p.State = ipam.Reading },
	} {
		w := newWorld("10.244.0.7")
		p := w.pooled("p", hostlocal.Name, "n1")
		w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "x"}})
		first := w.auditAll().Findings
		before := w.after(5 * time.Minute).auditAll(first...).Findings
		change(w, p)
		out := w.auditAll(before...)
		if got := reported(out.Findings); !slices.Equal(got, []string{leaked + " p"}) || out.Again != w.Now.Add(5*time.Minute) {
			t.Errorf("%s: got %q, again %d, want it kept and checked again", name, got, out.Again)
		}
	}

	// A finding is kept once, even if two allocations keep it.
	w := newWorld("10.244.0.7")
	p := w.pooled("p", hostlocal.Name, "n1")
	w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "x", Location: "1"}})
	w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "x", Location: "2"}})
	first := w.auditAll().Findings
	before := w.after(5 * time.Minute).auditAll(first...).Findings
	p.State = ipam.Reading
	if got := reported(w.auditAll(before...).Findings); !slices.Equal(got, []string{leaked + " p"}) {
		t.Errorf("got %q, want it once", got)
	}
}
