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
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// kinds returns the kinds of findings. Those of waiting findings are in parentheses.
func kinds(findings []verdict.Finding) (list []string) {
	for _, f := range findings {
		if f.Waiting {
			list = append(list, "("+f.Kind+")")
		} else {
			list = append(list, f.Kind)
		}
	}
	return list
}

// Findings are kept while the state of the pool or node is not known.
func TestFindingsAreKeptWhileTheStateIsUnknown(t *testing.T) {
	for _, test := range []struct {
		why    string
		change func(w *world, p *verdict.Pool)
		want   []string // findings about an address in use that is not allocated
		leaked []string // findings about an allocation without an owner
	}{
		{"nothing changes", func(*world, *verdict.Pool) {}, []string{verdict.FindingInUseUnallocated}, []string{verdict.FindingLeaked}},
		{"its node is disconnected", func(w *world, _ *verdict.Pool) { w.Node("n1").Unheard = true }, []string{verdict.FindingInUseUnallocated}, []string{verdict.FindingLeaked}},
		{"its records are being read", func(_ *world, p *verdict.Pool) { p.State = ipam.Reading }, []string{verdict.FindingInUseUnallocated}, []string{verdict.FindingLeaked}},
		{"it is another pool", func(_ *world, p *verdict.Pool) { p.State, p.Name = ipam.Reading, "/another" }, nil, nil},
	} {
		for _, leaked := range []bool{false, true} {
			w := newWorld("10.244.0.7")
			p := w.hostLocal("n1", "kind", "10.244.0.0/24")
			want := test.want
			if leaked {
				w.Node("n1")
				w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
				want = test.leaked
			} else {
				w.kindPod("n1", "a", "kind", 2)
			}
			before := w.audit().Findings
			before = w.after(10 * time.Minute).audit(before...).Findings
			if len(before) != 1 || before[0].Waiting {
				t.Fatalf("got %v, want one finding", kinds(before))
			}
			was := *p
			before[0].Pool = &was
			test.change(w, p)
			out := w.after(time.Second).audit(before...)
			if !slices.Equal(kinds(out.Findings), want) {
				t.Errorf("%s, leaked %t: got %v, want %v", test.why, leaked, kinds(out.Findings), want)
			}
			if leaked && p.State == ipam.Reading && out.Again != w.Now.Add(w.Policy.LeakedAfter) {
				t.Errorf("%s: got audited again after %s", test.why, out.Again.Sub(w.Now))
			}
			waiting := slices.Clone(before)
			if len(waiting) > 0 && p.State == ipam.Reading {
				waiting[0].Waiting = true
				if out := w.audit(waiting...).Findings; len(out) != 0 {
					t.Errorf("%s: got %v for a waiting finding, want none", test.why, kinds(out))
				}
				waiting[0].Waiting, waiting[0].Kind = false, verdict.FindingDoubleAllocated
				if out := w.audit(waiting...).Findings; len(out) != 0 {
					t.Errorf("%s: got %v for another kind, want none", test.why, kinds(out))
				}
			}
		}
	}
}

// A critical finding that replaces another one is reported at once.
func TestACriticalFindingThatReplacesAnotherIsReportedAtOnce(t *testing.T) {
	for _, test := range []struct {
		why    string
		change func(b *verdict.Finding)
		want   string
	}{
		{"of this pool and owner", func(*verdict.Finding) {}, verdict.FindingBookedElsewhere},
		{"one that waits", func(b *verdict.Finding) { b.Waiting = true }, "(" + verdict.FindingBookedElsewhere + ")"},
		{"of another owner", func(b *verdict.Finding) { b.Owners = []verdict.Owner{{ID: "other"}} }, "(" + verdict.FindingBookedElsewhere + ")"},
		{"without owners", func(b *verdict.Finding) { b.Owners = nil }, verdict.FindingBookedElsewhere},
		{"of another pool", func(b *verdict.Finding) {
			b.Pool = &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "x"}}
		}, "(" + verdict.FindingBookedElsewhere + ")"},
		{"a warning", func(b *verdict.Finding) { b.Severity = verdict.Warning }, "(" + verdict.FindingBookedElsewhere + ")"},
	} {
		w := newWorld("10.244.0.7")
		p := w.hostLocal("n1", "kind", "10.244.0.0/24")
		w.kindPod("n1", "a", "kind", 2)
		before := w.audit().Findings
		before = w.after(10 * time.Second).audit(before...).Findings
		if !slices.Equal(kinds(before), []string{verdict.FindingInUseUnallocated}) || before[0].Since != start {
			t.Fatalf("got %v since %d, want one since the start", kinds(before), before[0].Since)
		}
		test.change(&before[0])
		w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}})
		if got := w.audit(before...).Findings; !slices.Equal(kinds(got), []string{test.want}) || got[0].Since != w.Now {
			t.Errorf("%s: got %v, want %s", test.why, kinds(got), test.want)
		}
	}
}

func TestAllocationsThatVanishAreRemembered(t *testing.T) {
	record := func(p *verdict.Pool, id string) *verdict.Allocation {
		return &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr("10.244.0.7"), ContainerID: id}, Heard: start}
	}
	for _, test := range []struct {
		why    string
		id     string
		after  time.Duration
		change func(w *world, p *verdict.Pool)
		want   string
	}{
		{"the owner's own", "sandbox-a", 0, func(*world, *verdict.Pool) {}, verdict.FindingInUseUnallocated},
		{"the owner's own, and all others", "sandbox-a", 0, func(_ *world, p *verdict.Pool) { p.State = ipam.Missing }, verdict.FindingInUseUnallocated},
		{"another one's", "sandbox-b", time.Second, func(*world, *verdict.Pool) {}, verdict.FindingBookedElsewhere},
		{"another one's, at once", "sandbox-b", 0, func(*world, *verdict.Pool) {}, ""},
		{"the owner's own, of a pool that is being read", "sandbox-a", 0, func(_ *world, p *verdict.Pool) { p.State = ipam.Reading }, ""},
		{"the owner's own, which is written elsewhere", "sandbox-a", 0, func(w *world, p *verdict.Pool) {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
		}, ""},
		{"of another node's pool", "sandbox-a", 0, func(w *world, p *verdict.Pool) { p.Node = w.Node("n2") }, ""},
		{"the owner is only seen on the wire", "sandbox-a", 0, func(w *world, _ *verdict.Pool) { w.Claims[0].Kind = verdict.Believed }, ""},
	} {
		w := newWorld("10.244.0.7")
		p := w.hostLocal("n1", "kind", "10.244.0.0/24")
		w.kindPod("n1", "a", "kind", 2)
		test.change(w, p)
		w.after(test.after)
		gone := record(p, test.id)
		out := w.Judge()
		in := w.Case()
		in.Vanished = []*verdict.Allocation{gone}
		past := audit.Address(&w.Policy, in, &out).Past
		past = slices.DeleteFunc(past, func(p verdict.Past) bool { return p.Allocation != gone })
		if got := len(past) == 1 && past[0].Kind == test.want; got != (test.want != "") {
			t.Errorf("%s: got past %+v, want %q", test.why, past, test.want)
		}
		// The past has one state, with the first allocation, while the owner is live.
		if test.want == "" {
			continue
		}
		in.Past, in.Vanished = past, []*verdict.Allocation{record(p, test.id)}
		again := audit.Address(&w.Policy, in, &out).Past
		if again[0].Allocation != gone || again[0].Since != past[0].Since || slices.ContainsFunc(again[1:], func(p verdict.Past) bool { return p.Kind == test.want }) {
			t.Errorf("%s: got past %+v, want one of the kind", test.why, again)
		}
		in.Past[0].Allocation = nil
		if again := audit.Address(&w.Policy, in, &out).Past; again[0].Allocation == nil {
			t.Errorf("%s: got no allocation, want that it is learnt", test.why)
		}
		in.Past[0].Owner = "other"
		if again := audit.Address(&w.Policy, in, &out).Past; slices.ContainsFunc(again, func(p verdict.Past) bool { return p.Owner == "other" }) {
			t.Errorf("%s: got past %+v of an owner that is gone", test.why, again)
		}
	}
}

func TestRememberedAllocationsAreLimited(t *testing.T) {
	w := newWorld("10.244.0.7")
	p := w.hostLocal("n1", "kind", "10.244.0.0/24")
	for n := range 9 {
		w.kindPod("n1", fmt.Sprint(n), "kind", uint32(n+2))
	}
	out := w.Judge()
	in := w.Case()
	for n := range 9 {
		in.Vanished = append(in.Vanished, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, ContainerID: fmt.Sprint("sandbox-", n)}})
	}
	if past := audit.Address(&w.Policy, in, &out).Past; len(past) != 8 {
		t.Errorf("got %d remembered, want 8", len(past))
	}
}

func TestAnAddressThatIsAllocatedTwice(t *testing.T) {
	for _, test := range []struct {
		why      string
		ipam     string
		a, b     verdict.Allocation
		change   func(w *world, one, two *verdict.Pool)
		patience time.Duration
		severity verdict.Severity // 0 for no finding
	}{
		{"pools that are routed everywhere", calico.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, nil, time.Second, verdict.Critical},
		{"pods of one name in two namespaces", calico.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a", Namespace: "x"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a", Namespace: "y"}}, nil, time.Second, verdict.Critical},
		{"one pod", calico.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a", ContainerID: "1"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a", ContainerID: "2"}}, nil, 0, 0},
		{"one container", calico.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a", ContainerID: "1"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b", ContainerID: "1"}}, nil, 0, 0},
		{"two containers", calico.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1"}}, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "2"}}, nil, time.Second, verdict.Critical},
		{"a container and a pod of one node", calico.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1", Node: "n1"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b", Node: "n1"}}, nil, 0, 0},
		{"a container and a pod of two nodes", calico.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1", Node: "n1"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b", Node: "n2"}}, nil, time.Second, verdict.Critical},
		{"pods in the status of the API", podips.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, nil, 30 * time.Second, verdict.Critical},
		{"endpoints of Cilium", cilium.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, nil, 30 * time.Second, verdict.Warning},
		{"of two IPAMs", calico.IPAM.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, func(_ *world, _, two *verdict.Pool) { two.IPAM = cilium.IPAM.Name }, 0, 0},
		{"networks of one name", whereabouts.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, func(_ *world, one, two *verdict.Pool) { one.Network, two.Network = "lan", "lan" }, time.Second, verdict.Critical},
		{"networks of two names", whereabouts.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, func(_ *world, one, two *verdict.Pool) { one.Network, two.Network = "lan", "dmz" }, 0, 0},
		{"a network that is not known", whereabouts.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, func(_ *world, one, _ *verdict.Pool) { one.Network = "lan" }, 0, 0},
		{"networks that are not known", whereabouts.Name, verdict.Allocation{Allocation: ipam.Allocation{Pod: "a"}}, verdict.Allocation{Allocation: ipam.Allocation{Pod: "b"}}, nil, time.Second, verdict.Critical},
		{"pools of two nodes", hostlocal.Name, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1"}}, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "2"}}, func(w *world, one, two *verdict.Pool) { one.Node, two.Node = w.Node("n1"), w.Node("n2") }, 0, 0},
		{"networks of a node that routes both", hostlocal.Name, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1"}}, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "2"}}, func(w *world, one, two *verdict.Pool) {
			one.Node, two.Node, one.Network, two.Network, one.Routed, two.Routed = w.Node("n1"), w.Node("n1"), "a", "b", true, true
		}, time.Second, verdict.Critical},
		{"networks of a node that routes one", hostlocal.Name, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1"}}, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "2"}}, func(w *world, one, two *verdict.Pool) {
			one.Node, two.Node, one.Network, two.Network, one.Routed = w.Node("n1"), w.Node("n1"), "a", "b", true
		}, 0, 0},
		{"networks of a node that routes the other", hostlocal.Name, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "1"}}, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "2"}}, func(w *world, one, two *verdict.Pool) {
			one.Node, two.Node, one.Network, two.Network, two.Routed = w.Node("n1"), w.Node("n1"), "a", "b", true
		}, 0, 0},
	} {
		w := newWorld("10.244.0.7")
		w.Policy.LeakedAfter = time.Hour
		one, two := w.ofCluster(test.ipam, "10.244.0.0/24"), w.ofCluster(test.ipam, "10.244.0.0/24")
		two.Name = "other"
		if test.change != nil {
			test.change(w, one, two)
		}
		w.allocate(one, test.a)
		w.allocate(two, test.b)
		twice := func(before ...verdict.Finding) []verdict.Finding {
			return slices.DeleteFunc(w.audit(before...).Findings, func(f verdict.Finding) bool { return f.Kind != verdict.FindingDoubleAllocated })
		}
		before := twice()
		if test.severity == 0 {
			if len(before) > 0 {
				t.Errorf("%s: got %+v, want none", test.why, before)
			}
			continue
		}
		if out := w.audit(); len(before) != 1 || !before[0].Waiting || out.Again > w.Now.Add(30*time.Second) || before[0].Severity != test.severity {
			t.Errorf("%s: got %+v, again at %d, want a waiting finding", test.why, before, out.Again)
			continue
		}
		if got := twice(append(before, w.after(test.patience-1).audit().Findings...)...); !got[0].Waiting {
			t.Errorf("%s: reported too early", test.why)
		}
		if got := w.after(1); !slices.Equal(kinds(twice(before...)), []string{verdict.FindingDoubleAllocated}) {
			t.Errorf("%s: got %v after %s, want it", test.why, kinds(twice(before...)), got.Now.Sub(start))
		}
	}
}

// An allocation for a pod that no longer exists in the API is not a second one, once the API is up
// to date.
func TestAnAllocationOfADeletedPodIsNotADoubleAllocation(t *testing.T) {
	for why, test := range map[string]struct {
		change func(w *world)
		want   bool
	}{
		"its pod is gone":                         {func(*world) {}, false},
		"its pod is there":                        {func(w *world) { w.Pods = map[string]*verdict.PodObject{"x": {Namespace: "default", Name: "old"}} }, true},
		"the API was not synchronised since":      {func(w *world) { w.Known = start.Add(time.Second) }, true},
		"the API was synchronised right after it": {func(w *world) { w.Known = start.Add(time.Second + 1) }, false},
	} {
		w := newWorld("10.244.0.7")
		w.Listed = true
		p := w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
		w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "old", Location: "1"}})
		w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b", Node: "n1", Location: "2"}})
		test.change(w)
		out := w.after(time.Minute).audit().Findings
		if got := slices.ContainsFunc(out, func(f verdict.Finding) bool { return f.Kind == verdict.FindingDoubleAllocated }); got != test.want {
			t.Errorf("%s: got findings %v, want two: %t", why, kinds(out), test.want)
		}
	}
}

// Spoofs through two ports are two findings, and a conflict does not hide them.
func TestSpoofsOfAnAddress(t *testing.T) {
	n := agent("n1", "1")
	spoof := func(port string) verdict.Spoof {
		return verdict.Spoof{
			Port: &verdict.Interface{Name: port, Namespace: &verdict.Namespace{Node: n}}, MACs: []verdict.MAC{"lacmac"},
			Owner: verdict.Owner{ID: "evil", Node: n}, Victims: []verdict.Owner{{ID: "a", Node: n}},
		}
	}
	judged := &verdict.Judgement{Spoofs: []verdict.Spoof{spoof("veth1"), spoof("veth2")}, Conflicts: []verdict.Conflict{{Course: verdict.Course{Phase: verdict.Confirmed}}}}
	out := audit.Address(&verdict.Policy{}, &verdict.Case{Address: netip.MustParseAddr("10.0.0.5"), Now: start}, judged)
	if len(out.Findings) != 2 || out.Findings[0].ID == out.Findings[1].ID || out.Findings[1].Spoof.Port.Name != "veth2" || len(out.Findings[0].Owners) != 2 {
		t.Errorf("got %+v, want one of each port", out.Findings)
	}
}

// The sandbox of an allocation is looked up on the node of its pool only, if the pool has one.
func TestLeakedAddressesOfOneNode(t *testing.T) {
	for why, test := range map[string]struct {
		change func(w *world)
		want   []string
	}{
		"another node has the address":    {func(w *world) { w.kindPod("n2", "b", "lan", 3) }, []string{"(" + verdict.FindingLeaked + ")"}},
		"the node has the address":        {func(w *world) { w.kindPod("n1", "a", "lan", 3) }, nil},
		"another node is not covered":     {func(w *world) { w.Node("n2"); w.Uncovered = []string{"n2"} }, []string{"(" + verdict.FindingLeaked + ")"}},
		"the node itself is not covered":  {func(w *world) { w.Uncovered = []string{"n1"} }, nil},
		"the node itself is disconnected": {func(w *world) { w.Node("n1").Unheard = true }, nil},
	} {
		w := newWorld("10.244.0.7")
		w.Policy.LeakedAfter = time.Minute
		w.Node("n1")
		w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
		test.change(w)
		out := slices.DeleteFunc(w.audit().Findings, func(f verdict.Finding) bool { return f.Kind != verdict.FindingLeaked })
		if !slices.Equal(kinds(out), test.want) {
			t.Errorf("%s: got %v, want %v", why, kinds(out), test.want)
		}
	}
}
