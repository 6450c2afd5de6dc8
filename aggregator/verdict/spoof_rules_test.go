package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// wantSpoofs judges the claims in their order and in reverse, and checks the spoofs. Each is SENDER
// for VICTIM….
func (s *spoofWorld) wantSpoofs(t *testing.T, why string, want ...string) {
	t.Helper()
	for range 2 {
		slices.Reverse(s.Claims)
		out := s.Policy.Judge(s.Case())
		var got []string
		for _, sp := range out.Spoofs {
			text := sp.Sender.Who.Name() + " for"
			for i := range sp.Victims {
				text += " " + sp.Victims[i].Workload().Name
			}
			got = append(got, text)
			if sp.Owner.ID != sp.Sender.ID || !sp.Owner.ExcludedBy(verdict.RuleAddressSpoofed) {
				t.Errorf("%s: got owner %+v, want the sender, which is not compared because it spoofs", why, sp.Owner)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", why, got, want)
		}
	}
}

func TestSpoofs(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(s *spoofWorld)
		want   []string
	}{
		{"one frame", nil, []string{"evil for a"}},
		{"two frames by one port", func(s *spoofWorld) { s.Wire(s.port, "dddddd").NoOverride = true }, []string{"evil for a"}},
		{"frames by two ports", func(s *spoofWorld) {
			second, port := s.Veth(s.Namespace("n1", 4, "104", verdicttest.Pod("mad")), "bmadma", s.bridge)
			s.Wire(port, string(second.MAC)).Kind = verdict.Answered
		}, []string{"evil for a", "mad for a"}},
		{"two owners", func(s *spoofWorld) {
			second, _ := s.Veth(s.Namespace("n1", 4, "104", verdicttest.Pod("b")), "bsecon", s.bridge)
			s.Assigned(second)
		}, []string{"evil for a b"}},
		{"two owners, and two frames", func(s *spoofWorld) {
			second, _ := s.Veth(s.Namespace("n1", 4, "104", verdicttest.Pod("b")), "bsecon", s.bridge)
			s.Assigned(second)
			s.Wire(s.port, "dddddd").NoOverride = true
		}, []string{"evil for a b"}},
		{"the sender comes first", func(s *spoofWorld) {
			s.other.Netns, s.other.ID = "1", "boot-n1/1"
			s.Node("n1").Netns = "2"
		}, []string{"evil for a"}},
		{"the sender's kernel found a duplicate", func(s *spoofWorld) { s.kernel(verdict.DADFailed, s.inside) }, nil},
		{"the sender's kernel found a duplicate on its loopback", func(s *spoofWorld) {
			s.kernel(verdict.DADFailed, s.Interface(s.other, verdict.Interface{Name: "lo", Attachment: verdict.Local}))
		}, []string{"evil for a"}},
		{"the sender has it on a private link, and speaks for others", func(s *spoofWorld) {
			s.claim.NoOverride = true
			s.Assigned(s.Interface(s.other, verdict.Interface{Name: "k6t", Attachment: verdict.Private}))
		}, []string{"evil for a"}},
		{"the sender believes it", func(s *spoofWorld) { s.kernel(verdict.Believed, s.inside) }, []string{"evil for a"}},
		{"the owner's node has timed out", func(s *spoofWorld) {
			s.Node("n2").TimedOut = true
			s.victim = s.Namespace("n2", 2, "202", verdicttest.Pod("a"))
			s.own.Interface = s.Interface(s.victim, verdict.Interface{MAC: "fmacvl", Attachment: verdict.Lower, Link: s.bridge})
		}, nil},
		{"the owner has it on its loopback", func(s *spoofWorld) { s.owner.Attachment = verdict.Local }, nil},
		{"the owner's kernel found a duplicate", func(s *spoofWorld) { s.own.Kind = verdict.DADFailed }, nil},
		{"the owner is a device that announces it", func(s *spoofWorld) {
			s.Drop(s.own)
			s.Wire(s.Uplink("n1"), externalMAC).Link = s.bridge
		}, nil},
		{"the node has it on the sender's own port", func(s *spoofWorld) {
			s.Drop(s.claim)
			s.Assigned(s.port)
		}, nil},
		{"the port leads to a namespace that is not known", func(s *spoofWorld) { s.port.Peer = 99 }, nil},
		{"one virtual machine, of which this is the pod before it moved", func(s *spoofWorld) {
			for _, ns := range []*verdict.Namespace{s.victim, s.other} {
				who := ns.Who.Workload()
				who.VirtualMachine = "vm"
				ns.Who = who.Who()
			}
		}, nil},
		{"it names a node that does not host the owner", func(s *spoofWorld) {
			s.Interface(s.Host("n2"), verdict.Interface{MAC: "bbbbbb", Attachment: verdict.Own})
		}, []string{"evil for a"}},
	} {
		s := newSpoofing("bbbbbb")
		if test.change != nil {
			test.change(s)
		}
		s.wantSpoofs(t, test.name, test.want...)
	}
}

// A sender that only sends frames with addresses of others is not an owner.
func TestASpoofInTheNameOfAnotherNamespace(t *testing.T) {
	s := newSpoofing("dthird")
	s.claim.NoOverride = true
	s.Interface(s.Namespace("n1", 5, "105", verdicttest.Pod("third")), verdict.Interface{MAC: "dthird", Attachment: verdict.Peer})
	out := s.judge()
	if len(out.Spoofs) != 1 {
		t.Fatalf("got %+v, want one", out.Spoofs)
	}
	if o := out.Spoofs[0].Owner; o.ID != s.other.ID || o.Interface != s.port || o.MAC != "dthird" || o.State != verdict.Live || len(o.Claims) != 0 {
		t.Errorf("got owner %+v, want the namespace behind the port", o)
	}
}

// kernel adds a claim of a kernel.
func (s *spoofWorld) kernel(kind verdict.Evidence, i *verdict.Interface) {
	s.Claim(verdict.Claim{Kind: kind, Interface: i})
}

func TestASpoofSumsUpItsFrames(t *testing.T) {
	s := newSpoofing("bbbbbb")
	s.claim.First, s.claim.Last, s.claim.Count = 0, 500, 3
	second, third := s.Wire(s.port, "bbbbbb"), s.Wire(s.port, "baddad")
	second.VLAN, second.Kind = 7, verdict.Answered
	third.NoOverride = true
	second.First, second.Last, second.Count = 200, 900, 4
	third.First, third.Last, third.Count = 100, 300, 5
	for range 2 {
		slices.Reverse(s.Claims)
		out := s.Policy.Judge(s.Case())
		if len(out.Spoofs) != 1 {
			t.Fatalf("got %+v, want one", out.Spoofs)
		}
		sp := out.Spoofs[0]
		if sp.First != 100 || sp.Last != 900 || sp.Count != 12 || !slices.Equal(sp.MACs, []verdict.MAC{"baddad", "bbbbbb"}) {
			t.Errorf("got first %d, last %d, %d frames of %v, want 100, 900, 12, of both in order", sp.First, sp.Last, sp.Count, sp.MACs)
		}
		if sp.Owner.ID != s.other.ID || !sp.Owner.ExcludedBy(verdict.RuleAddressSpoofed) || len(sp.Owner.Claims) != 3 || sp.Link != s.bridge {
			t.Errorf("got owner %+v, want evil with its claims, excluded", sp.Owner)
		}
		if i := slices.IndexFunc(out.Owners, func(o verdict.Owner) bool { return o.ID == s.other.ID }); !out.Owners[i].ExcludedBy(verdict.RuleAddressSpoofed) {
			t.Errorf("got exclusion %+v of the sender, want that it spoofs", out.Owners[i].Excluded)
		}
	}
}

func TestMerge(t *testing.T) {
	at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	s := verdict.Spoof{First: 100, Last: 200, Count: 1, Addresses: []netip.Addr{at(100)}}
	s.Merge(&verdict.Spoof{First: 0, Last: 150, Count: 2, Addresses: []netip.Addr{at(100)}})
	s.Merge(&verdict.Spoof{First: 50, Last: 300, Count: 3, Addresses: []netip.Addr{at(7), at(200)}})
	if s.First != 50 || s.Last != 300 || s.Count != 6 || !slices.Equal(s.Addresses, []netip.Addr{at(7), at(100), at(200)}) {
		t.Errorf("got %+v, want 6 frames from 50 to 300 for three addresses in order", s)
	}
	for n := range byte(20) {
		s.Merge(&verdict.Spoof{Addresses: []netip.Addr{at(n)}})
	}
	if len(s.Addresses) != 16 || s.Addresses[0] != at(0) || s.Addresses[15] != at(15) {
		t.Errorf("got %d addresses to %s, want the first 16", len(s.Addresses), s.Addresses[len(s.Addresses)-1])
	}
	unknown := verdict.Spoof{}
	unknown.Merge(&verdict.Spoof{First: 70, Last: 80})
	if unknown.First != 70 || unknown.Last != 80 {
		t.Errorf("got first %d, want 70, the first known time", unknown.First)
	}
}

// wantClones judges after the settle time and checks the clones. Each is SENDER MAC VICTIM.
func (s *spoofWorld) wantClones(t *testing.T, why string, want ...string) {
	t.Helper()
	s.after(s.Policy.Settle)
	for range 2 {
		slices.Reverse(s.Claims)
		slices.Reverse(s.Interfaces)
		var got []string
		for _, c := range s.Policy.Judge(s.Case()).Clones {
			got = append(got, c.Sender.Who.Name()+" "+string(c.MACs[0])+" "+c.Victims[0].Workload().Name)
			if len(c.MACs) != 1 || len(c.Victims) != 1 || c.Owner.ID != c.Sender.ID || !slices.Equal(c.Addresses, []netip.Addr{s.Addr}) || c.Count == 0 {
				t.Errorf("%s: got %+v, want one MAC, one victim, the address and the sender", why, c)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", why, got, want)
		}
	}
}

func TestClones(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(s *spoofWorld)
		want   []string
	}{
		{"one frame", nil, []string{"evil baaaaa a"}},
		{"two frames", func(s *spoofWorld) { s.Wire(s.port, "baaaaa").VLAN = 7 }, []string{"evil baaaaa a"}},
		{"it has the address itself", func(s *spoofWorld) { s.Assigned(s.inside) }, []string{"evil baaaaa a"}},
		{"it has the address itself, and claims it in a frame from that MAC", func(s *spoofWorld) {
			s.Assigned(s.inside)
			s.claim.MAC, s.claim.Source = "bbbbbb", "baaaaa"
		}, []string{"evil baaaaa a"}},
		{"it claims its own address with its own MAC", func(s *spoofWorld) {
			s.Assigned(s.inside)
			s.claim.MAC = "bbbbbb"
		}, nil},
		{"two MACs", func(s *spoofWorld) {
			s.Veth(s.Namespace("n1", 4, "104", verdicttest.Pod("b")), "bsecon", s.bridge)
			s.Wire(s.port, "bsecon")
		}, []string{"evil baaaaa a", "evil bsecon b"}},
		{"a MAC in a frame from another one", func(s *spoofWorld) {
			s.Veth(s.Namespace("n1", 4, "104", verdicttest.Pod("b")), "bsecon", s.bridge)
			s.claim.Source = "bsecon"
		}, []string{"evil baaaaa a", "evil bsecon b"}},
		{"two senders", func(s *spoofWorld) {
			_, port := s.Veth(s.Namespace("n1", 4, "104", verdicttest.Pod("mad")), "bmadma", s.bridge)
			s.Wire(port, "baaaaa")
		}, []string{"evil baaaaa a", "mad baaaaa a"}},
		{"two have the MAC", func(s *spoofWorld) {
			s.Veth(s.Namespace("n1", 5, "105", verdicttest.Pod("z")), "baaaaa", s.bridge)
			s.Veth(s.Namespace("n1", 4, "104", verdicttest.Pod("y")), "baaaaa", s.bridge)
		}, []string{"evil baaaaa a"}},
		{"the first that has it is the sender's other sandbox", func(s *spoofWorld) {
			s.victim.Who = verdicttest.Pod("evil").Who()
			s.Veth(s.Namespace("n1", 4, "104", verdicttest.Pod("y")), "baaaaa", s.bridge)
		}, []string{"evil baaaaa y"}},
		{"the port leads to a namespace that is not known", func(s *spoofWorld) { s.port.Peer = 99 }, nil},
		{"a port without a link", func(s *spoofWorld) { s.claim.Link = nil }, nil},
		{"a frame of another node's port", func(s *spoofWorld) {
			s.claim.Interface = s.Interface(s.Host("n2"), verdict.Interface{Name: "v", Attachment: verdict.Own, Link: s.bridge, Peer: 3})
			s.Namespace("n2", 3, "203", verdicttest.Pod("far"))
		}, nil},
	} {
		s := newSpoofing("baaaaa")
		if test.change != nil {
			test.change(s)
		}
		s.wantClones(t, test.name, test.want...)
	}
}

func TestACloneIsReportedAfterTheSettleTime(t *testing.T) {
	s := newSpoofing("baaaaa")
	s.Drop(s.own)
	out := s.judge()
	if len(out.Clones) != 0 || out.Again != verdicttest.Start.Add(s.Policy.Settle) {
		t.Errorf("got %+v, again %d, want it after the settle time", out.Clones, out.Again)
	}
	if out = s.after(s.Policy.Settle - 1).judge(); len(out.Clones) != 0 {
		t.Errorf("got %+v before the settle time is over", out.Clones)
	}
	if out = s.after(1).judge(); len(out.Clones) != 1 || out.Clones[0].Owner.State != verdict.Live {
		t.Errorf("got %+v, want one when the settle time is over", out.Clones)
	}
	if at := verdicttest.Start.Add(time.Second); s.Now != at {
		t.Errorf("got %d, want %d", s.Now, at)
	}
}
