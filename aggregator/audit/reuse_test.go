package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

const within = 30 * time.Second

// succession is an address that pod a of node n1 had and pod b of node n2 gets.
type succession struct {
	*world
	former  []verdict.Former
	found   []verdict.Finding
	was, is *verdict.Claim
}

func newSuccession() *succession {
	s := &succession{world: newWorld("10.244.0.7")}
	s.Policy.ReusedWithin = within
	s.Policy.Networks = []verdict.Network{{Name: "lan", Prefixes: verdicttest.Prefixes("10.244.0.0/16")}}
	s.was = s.kindPod("n1", "a", "kind", 2)
	s.after(time.Hour)
	return s
}

// leave ends the first owner.
func (s *succession) leave() {
	before := slices.Clone(s.Judge().Owners)
	s.Drop(s.was)
	s.former = audit.Departed(s.former, before, s.Judge().Owners, s.Now)
}

// arrive adds the second owner.
func (s *succession) arrive() { s.is = s.kindPod("n2", "b", "kind", 3) }

// look audits the address again, as the shard does.
func (s *succession) look() audit.Result {
	out := s.Judge()
	in := s.Case()
	in.Before, in.Former = s.found, s.former
	r := audit.Address(&s.Policy, in, &out)
	s.former, s.found = r.Former, r.Findings
	return r
}

// reported audits the address now and after the settle time, and returns the finding that is reported.
func (s *succession) reported() *verdict.Finding {
	s.look()
	s.after(s.Policy.Settle)
	for i, f := range s.look().Findings {
		if f.Kind == verdict.FindingReusedTooSoon && !f.Waiting {
			return &s.found[i]
		}
	}
	return nil
}

func TestReuseIsReportedAfterTheSettleTime(t *testing.T) {
	s := newSuccession()
	s.leave()
	until := s.Now
	s.after(4 * time.Second)
	s.arrive()
	begun := s.Now
	if out := s.look(); len(out.Findings) != 1 || !out.Findings[0].Waiting || out.Again != s.Now.Add(s.Policy.Settle) || out.Former[0].Next != "" {
		t.Fatalf("got %+v, want a finding that waits", out)
	}
	s.after(s.Policy.Settle)
	out := s.look()
	if !slices.Equal(kinds(out.Findings), []string{verdict.FindingReusedTooSoon}) {
		t.Fatalf("got %v, want it reported", kinds(out.Findings))
	}
	f := out.Findings[0]
	want := verdict.Former{Until: until, Next: f.Owners[0].ID, Since: begun}
	if f.Former.Until != want.Until || f.Former.Next != want.Next || f.Former.Since != want.Since || f.Former.Gap() != 4*time.Second ||
		f.Former.Owner.Workload().Name != "a" || f.Owners[0].Workload().Name != "b" || f.Severity != verdict.Warning {
		t.Errorf("got %+v, want %+v of pod a", f, want)
	}
	if !slices.Equal(audit.Nodes(&f), []string{"n2", "n1"}) {
		t.Errorf("got nodes %v, want those of both owners", audit.Nodes(&f))
	}
	if end := begun.Add(verdict.ReusedFor); out.Again != end || len(out.Former) != 1 || out.Former[0].Next != want.Next {
		t.Errorf("got audited again at %d with %+v, want at %d", out.Again, out.Former, end)
	}
	if len(out.Past) > 0 {
		t.Errorf("got %v remembered as a past of IPAM, want nothing", out.Past)
	}
	s.Now = begun.Add(verdict.ReusedFor - 1)
	if out := s.look(); !slices.Equal(kinds(out.Findings), []string{verdict.FindingReusedTooSoon}) {
		t.Errorf("got %v just before its end, want it", kinds(out.Findings))
	}
	s.after(1)
	if out := s.look(); len(out.Findings)+len(out.Former) > 0 {
		t.Errorf("got %+v at its end, want nothing", out)
	}
}

func TestWhichReuseIsReported(t *testing.T) {
	host := func(s *succession, c *verdict.Claim, is bool) {
		if is {
			s.who(c, verdict.Workload{Kind: verdict.Host})
		}
	}
	for _, test := range []struct {
		why  string
		do   func(s *succession)
		want bool
	}{
		{"the reference", func(*succession) {}, true},
		{"another kind", func(s *succession) { s.who(s.is, verdict.Workload{Kind: verdict.Container, Name: "a"}) }, true},
		{"in another namespace", func(s *succession) {
			s.who(s.is, verdict.Workload{Kind: verdict.Pod, Namespace: "else", Name: "a"})
		}, true},
		{"the same pod", func(s *succession) { s.who(s.is, verdicttest.Pod("a")) }, false},
		{"pods of one virtual machine", func(s *succession) {
			for _, c := range []*verdict.Claim{s.was, s.is} {
				w := c.Interface.Namespace.Who.Workload()
				w.VirtualMachine = "vm"
				s.who(c, w)
			}
		}, false},
		{"pods of two virtual machines", func(s *succession) {
			for i, c := range []*verdict.Claim{s.was, s.is} {
				w := c.Interface.Namespace.Who.Workload()
				w.VirtualMachine = []string{"vm", "vm2"}[i]
				s.who(c, w)
			}
		}, true},
		{"a pod without a name", func(s *succession) { s.who(s.is, verdict.Workload{Kind: verdict.Pod, Namespace: "default"}) }, false},
		{"after a pod without a name", func(s *succession) { s.who(s.was, verdict.Workload{Kind: verdict.Pod, Namespace: "default"}) }, false},
		{"a node after a pod", func(s *succession) { host(s, s.is, true) }, true},
		{"a pod after a node", func(s *succession) { host(s, s.was, true) }, true},
		{"a node after a node", func(s *succession) { host(s, s.was, true); host(s, s.is, true) }, false},
		{"a virtual router", func(s *succession) { s.is.Interface.MAC = vrrp }, false},
		{"after a virtual router", func(s *succession) { s.was.Interface.MAC = vrrp }, false},
		{"a controller assigns it", func(s *succession) { s.assigned(vip.KubeVIP.Name, "n2", "leases kube-system/l") }, false},
		{"in another scope", func(s *succession) { s.is.Interface.VRF = "red" }, false},
		{"it was listed", func(s *succession) { s.is.Interface.Namespace.Node.Listed = s.Now }, false},
		{"it began after its node was listed", func(s *succession) { s.is.Interface.Namespace.Node.Listed = s.Now - 1 }, true},
	} {
		s := newSuccession()
		s.arrive() // both exist, so that a test can change them
		claim := *s.is
		s.Drop(s.is)
		s.is = s.Claim(claim)
		s.Drop(s.is)
		s.after(time.Hour)
		s.is.Begun, s.is.Seen, s.is.Read = s.Now, s.Now, s.Now
		test.do(s)
		s.leave()
		s.Claims = append(s.Claims, s.is)
		if got := s.reported() != nil; got != test.want {
			t.Errorf("%s: got reported %t, want %t", test.why, got, test.want)
		}
	}
}

// who changes the workload in the namespace of a claim.
func (s *succession) who(c *verdict.Claim, w verdict.Workload) {
	c.Interface.Namespace.Who = w.Who()
}

const vrrp = verdict.MAC("\x00\x00\x5e\x00\x01\x07")

func TestWhenReuseIsTooSoon(t *testing.T) {
	for _, test := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {within, true}, {within + 1, false}, {-time.Second + 1, true}, {-time.Second, false}} {
		s := newSuccession()
		if test.after < 0 {
			s.arrive()
			s.after(-test.after)
			s.leave()
		} else {
			s.leave()
			s.after(test.after)
			s.arrive()
		}
		if got := s.reported() != nil; got != test.want {
			t.Errorf("%s after the end: got reported %t, want %t", test.after, got, test.want)
		}
	}
}

func TestFormerOwnersAreKeptUntilTheirReuseIsKnown(t *testing.T) {
	s := newSuccession()
	s.leave()
	end := s.Now.Add(within + 5*time.Second + s.Policy.Settle)
	if out := s.look(); out.Again != end || len(out.Former) != 1 {
		t.Errorf("got %+v, want the owner remembered until %d", out, end)
	}
	s.Now = end - 1
	if out := s.look(); len(out.Former) != 1 {
		t.Error("got the owner forgotten before the end")
	}
	s.after(1)
	if out := s.look(); len(out.Former) != 0 || out.Again != 0 {
		t.Errorf("got %+v, want the owner forgotten", out)
	}

	s = newSuccession()
	s.leave()
	s.arrive()
	s.reported()
	s.Policy.ReusedWithin = 0
	if out := s.look(); len(out.Former)+len(out.Findings) != 0 {
		t.Errorf("got %+v, want nothing when it is off", out)
	}
}

func TestReuseEnds(t *testing.T) {
	for _, test := range []struct {
		why  string
		do   func(s *succession)
		want bool
	}{
		{"nothing changes", func(*succession) {}, true},
		{"its node is disconnected", func(s *succession) { s.is.Interface.Namespace.Node.Unheard = true }, true},
		{"its node was listed again", func(s *succession) { s.is.Interface.Namespace.Node.Listed = s.Now }, true},
		{"the new owner leaves", func(s *succession) { s.Drop(s.is) }, false},
		{"it is known to be the same pod", func(s *succession) { s.who(s.is, verdicttest.Pod("a")) }, false},
		{"the former owner has it again", func(s *succession) { s.Claims = append(s.Claims, s.was); s.Drop(s.is) }, false},
		{"a conflict replaces it", func(s *succession) { s.kindPod("n1", "c", "kind", 4) }, false},
	} {
		s := newSuccession()
		s.leave()
		s.arrive()
		if s.reported() == nil {
			t.Fatalf("%s: got no finding before", test.why)
		}
		s.after(time.Minute)
		test.do(s)
		got := slices.Equal(kinds(s.look().Findings), []string{verdict.FindingReusedTooSoon})
		if got != test.want {
			t.Errorf("%s: got reported %t, want %t", test.why, got, test.want)
		}
	}
}

// A namespace may lose its name before its addresses.
func TestAFormerOwnerThatLostItsName(t *testing.T) {
	for _, test := range []struct {
		why  string
		do   func(s *succession)
		want bool
	}{
		{"it leaves", func(*succession) {}, true},
		{"it is judged again", func(s *succession) { s.look() }, true},
		{"it has another name", func(s *succession) { s.rename(verdicttest.Pod("b")) }, false},
		{"its node is disconnected", func(s *succession) { s.was.Interface.Namespace.Node.Unheard = true }, false},
	} {
		s := newSuccession()
		s.rename(verdict.Workload{Kind: verdict.Pod})
		s.look()
		if len(s.former) != 1 || s.former[0].Until != 0 {
			t.Fatalf("got %+v remembered, want its name", s.former)
		}
		s.after(time.Minute)
		test.do(s)
		s.leave()
		s.arrive()
		f := s.reported()
		if (f != nil) != test.want || f != nil && (f.Former.Owner.Workload().Name != "a" || f.Former.Gap() != 0) {
			t.Errorf("%s: got %+v, want reported %t", test.why, f, test.want)
		}
	}
	s := newSuccession()
	s.rename(verdict.Workload{Kind: verdict.Pod})
	s.Drop(s.was) // a snapshot does not have it
	if s.look(); len(s.former) != 0 {
		t.Errorf("got %+v remembered, want nothing", s.former)
	}
}

// rename changes the workload of the first owner.
func (s *succession) rename(w verdict.Workload) {
	before := slices.Clone(s.Judge().Owners)
	ns := *s.was.Interface.Namespace
	ns.Who = w.Who()
	i := *s.was.Interface
	i.Namespace = &ns
	s.was.Interface = &i
	s.former = audit.Departed(s.former, before, s.Judge().Owners, s.Now)
}

// The latest former owner counts, and only few are remembered.
func TestSeveralFormerOwners(t *testing.T) {
	s := newSuccession()
	for _, name := range []string{"c", "d", "e", "f", "g"} {
		s.leave()
		s.after(time.Second)
		s.was = s.kindPod("n1", name, "kind", uint32(name[0]))
	}
	var names []string
	for _, f := range s.former {
		names = append(names, f.Owner.Workload().Name)
	}
	if !slices.Equal(names, []string{"f", "e", "d", "c"}) {
		t.Errorf("got former owners %v, want the latest ones first", names)
	}
	if f := s.reported(); f == nil || f.Former.Owner.Workload().Name != "f" || f.Owners[0].Workload().Name != "g" {
		t.Errorf("got %+v, want g after f", f)
	}
	if out := s.look(); len(out.Findings) != 1 {
		t.Errorf("got %v, want one finding", kinds(out.Findings))
	}
}

func TestWhoHasDeparted(t *testing.T) {
	old := verdict.Former{Owner: verdict.Owner{ID: "old"}, Until: 1}
	owner := func(change func(*verdict.Owner)) []verdict.Owner {
		o := verdict.Owner{ID: "o", Node: &verdict.Node{}, State: verdict.Live, Assigned: true, Namespace: &verdict.Namespace{Who: verdicttest.Pod("a").Who()}, Scope: verdict.Scope{Kind: verdict.NetworkScope}, Claims: []*verdict.Claim{{}}}
		change(&o)
		return []verdict.Owner{o}
	}
	for _, test := range []struct {
		why    string
		before func(*verdict.Owner)
		now    []verdict.Owner
		want   int
	}{
		{"the reference", func(*verdict.Owner) {}, nil, 2},
		{"it is still there", func(*verdict.Owner) {}, owner(func(*verdict.Owner) {}), 1},
		{"only its frames are", func(*verdict.Owner) {}, owner(func(o *verdict.Owner) { o.Assigned = false }), 2},
		{"it is gone", func(*verdict.Owner) {}, owner(func(o *verdict.Owner) { o.State = verdict.Gone }), 2},
		{"its node is disconnected", func(*verdict.Owner) {}, owner(func(o *verdict.Owner) { o.State = verdict.Unheard }), 1},
		{"its node was disconnected", func(o *verdict.Owner) { o.State = verdict.Unheard }, nil, 1},
		{"only its frames were seen", func(o *verdict.Owner) { o.Assigned = false }, nil, 1},
		{"it was not compared", func(o *verdict.Owner) { o.Excluded = &verdict.Exclusion{} }, nil, 1},
		{"it left before", func(o *verdict.Owner) { o.ID = "old" }, nil, 1},
	} {
		got := audit.Departed([]verdict.Former{old}, owner(test.before), test.now, 5)
		if len(got) != test.want || test.want == 2 && (got[0].Until != 5 || got[0].Owner.Claims != nil || got[1].Until != 1) {
			t.Errorf("%s: got %+v, want %d", test.why, got, test.want)
		}
	}
	if got := audit.Departed([]verdict.Former{old}, owner(func(o *verdict.Owner) { o.ID = "old" }), nil, 5); got[0].Until != 5 {
		t.Errorf("got %+v, want the later end", got)
	}
}

func TestThePoolOfAReusedAddress(t *testing.T) {
	for _, test := range []struct {
		why   string
		pools func(s *succession) *verdict.Pool
	}{
		{"without pools", func(*succession) *verdict.Pool { return nil }},
		{"the only one", func(s *succession) *verdict.Pool { return s.hostLocal("n2", "kind", "10.244.0.0/24") }},
		{"the one that has allocated it", func(s *succession) *verdict.Pool {
			s.hostLocal("n2", "kind", "10.244.0.0/24").Name = "another"
			p := s.hostLocal("n2", "kind", "10.244.0.0/24")
			s.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}})
			return p
		}},
		{"two that may have", func(s *succession) *verdict.Pool {
			s.hostLocal("n2", "kind", "10.244.0.0/24").Name = "another"
			s.hostLocal("n2", "kind", "10.244.0.0/24")
			return nil
		}},
	} {
		s := newSuccession()
		s.leave()
		s.arrive()
		want := test.pools(s)
		if f := s.reported(); f == nil || !f.Pool.Is(want) {
			t.Errorf("%s: got %+v, want pool %v", test.why, f, want)
		}
	}
}

func TestAPortThatReturnsSolicitationsHasOneID(t *testing.T) {
	id := func(address, pod string, record uint32, hairpin bool) string {
		w := newWorld(address)
		inside, port := w.Veth(w.Namespace("n1", record, "10"+pod, verdicttest.Pod(pod)), "baaaa"+pod, w.Link("n1", "br0", verdict.Bridge, false))
		inside.Hairpin, port.Hairpin = hairpin, hairpin
		w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed, Interface: inside, PrefixLength: 64})
		out := w.Judge()
		for _, f := range audit.Address(&w.Policy, w.Case(), &out).Findings {
			if f.Source == audit.SourceLooped {
				return f.ID
			}
		}
		return ""
	}
	a := id("fd00:7::a", "a", 2, true)
	if local := id("fe80::a", "a", 2, true); a == "" || local != a {
		t.Errorf("got %q and %q for two addresses of an interface, want one id", a, local)
	}
	if other := id("fd00:7::b", "b", 3, true); other == "" || other == a {
		t.Errorf("got %q for another interface and %q, want two ids", other, a)
	}
	if none := id("fd00:7::a", "a", 2, false); none != "" {
		t.Errorf("got %q without hairpin mode, want none", none)
	}
}
