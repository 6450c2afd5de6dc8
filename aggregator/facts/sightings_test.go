package facts

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// onLAN returns a report of a pod with a macvlan device over the uplink of a node.
func onLAN(record uint32, addr string) *pb.ReportRequest {
	m := pod(record, addr)
	m.Links, m.Interfaces = nil, m.Interfaces[:1]
	m.Interfaces[0].Attachment, m.Interfaces[0].Link = pb.InterfaceRecord_LOWER, "eth0"
	return m
}

// domains returns the domains of the links of the claims of an address, by sight and by proof.
func (s *scene) domains(addr string) (all []string) {
	name := func(d *verdict.Domain) string {
		if d == nil {
			return "-"
		}
		return d.Node.Name + "/" + d.Name
	}
	for _, c := range s.Builder().Case(key(addr), false).Claims {
		for _, l := range []*verdict.Link{c.Link, c.Interface.Link} {
			if l != nil {
				all = append(all, l.Node.Name+" "+name(l.Domain)+" "+name(l.Proven))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *scene) wantDomains(why, addr string, want ...string) {
	s.Helper()
	if got := s.domains(addr); !slices.Equal(got, want) {
		s.Errorf("%s: got %q, want %q", why, got, want)
	}
}

func TestFramesShowThatLinksAreOne(t *testing.T) {
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1")), s.joins("n2", "b2", 1, lan(2), onLAN(3, "10.0.0.3"))
	b.report(seen("10.0.0.9", []byte{2, 0, 0, 0, 0, 99}, 1))
	s.wantDomains("an external device", "10.0.0.9", "n2 - -")
	s.judgeAll()
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	s.wantDomains("a frame of a pod entered another node", "10.0.0.1", "n1 n1/eth0 -", "n2 n1/eth0 -")
	s.wantDomains("all that is on the links", "10.0.0.9", "n2 n1/eth0 -")
	s.wantJudged("the links are one", "10.0.0.1", "10.0.0.3", "10.0.0.9")
	if c := s.Builder().Case(key("10.0.0.1"), false); len(c.Stations) != 1 || c.Stations[0].Namespace.Record != 2 {
		t.Errorf("got stations %+v, want the pod's interface", c.Stations)
	}
	a.report(seen("10.0.0.3", records.MAC(3), 1))
	s.wantDomains("a frame went the other way", "10.0.0.1", "n1 n1/eth0 n1/eth0", "n2 n1/eth0 n1/eth0")
	s.wantJudged("that is a proof", "10.0.0.1", "10.0.0.3", "10.0.0.9")
	if c := s.Builder().Explained(key("10.0.0.1")); len(c.Stitches) != 1 || c.Stitches[0].Proof != verdict.Proven || len(c.Stitches[0].Back) == 0 {
		t.Errorf("got stitches %+v, want one with a proof", c.Stitches)
	}
	macs, topology := s.SharedMACs()
	if macs != 7 || topology.Empty() {
		t.Errorf("got %d MACs that nodes share", macs)
	}
	s.judgeAll()
	a.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 9, Gone: true}, {Namespace: 2, Index: 2, Gone: true}}, Links: []*pb.LinkRecord{{Name: "eth0", Gone: true}}})
	s.wantDomains("one link is gone", "10.0.0.9", "n2 - -")
}

// A node with a VLAN has one MAC on two links. Its address moves by DHCP, and its frames enter another node before its
// kernel, or that of the other node, is known to have the new address.
func TestFramesFindTheirLinkWhenAnAddressIsKnownLater(t *testing.T) {
	const addr, elsewhere = "10.0.0.7", "10.0.1.7"
	vlan := lan(1)
	vlan.Links = append(vlan.Links, &pb.LinkRecord{Name: "eth0.5", Kind: pb.LinkRecord_UPLINK})
	vlan.Interfaces = append(vlan.Interfaces, &pb.InterfaceRecord{
		Namespace: 1, Index: 10, Name: "eth0.5", Kind: "vlan", Mac: []byte{2, 2, 0, 0, 0, 1}, Attachment: pb.InterfaceRecord_OWN, Link: "eth0.5", Uplink: true,
	})
	own := func(addr string, index uint32) *pb.ReportRequest {
		c := assigned(1, addr)
		c.Index = index
		return records.Claims(c)
	}
	used := seen(addr, []byte{2, 2, 0, 0, 0, 1}, 1)
	used.Claims[0].Kind = pb.Evidence_USED
	const joined = "n1 n1/eth0 -"
	for name, test := range map[string]struct {
		later func(home, by *agent)
		joins bool
	}{
		"the address of the sender": {func(home, _ *agent) { home.report(own(addr, 9)) }, true},
		"the subnet of the witness": {func(home, by *agent) { home.report(own(addr, 9)); by.report(own("10.0.0.8", 9)) }, true},
		"another address":           {func(home, _ *agent) { home.report(own(elsewhere, 9)) }, false},
		"another subnet":            {func(home, by *agent) { home.report(own(addr, 9)); by.report(own("10.0.1.8", 9)) }, false},
	} {
		s := newScene(t)
		home, by := s.joins("n1", "b1", 1, vlan), s.joins("n2", "b2", 1, lan(2))
		if name != "the subnet of the witness" && name != "another subnet" {
			by.report(own("10.0.0.8", 9))
		}
		by.report(used)
		s.wantDomains(name+", before", addr, "n2 - -")
		test.later(home, by)
		if got := slices.Contains(s.domains(addr), joined); got != test.joins {
			t.Errorf("%s: got domains %q, want them joined: %t", name, s.domains(addr), test.joins)
		}
		if external := slices.ContainsFunc(s.owners(addr), func(o verdict.Owner) bool { return o.Namespace == nil }); external == test.joins {
			t.Errorf("%s: got an external device %t, want the opposite", name, external)
		}
	}
}

func TestFramesThatProveNoLink(t *testing.T) {
	clone := func(record uint32, mac []byte) *pb.ReportRequest {
		m := onLAN(record, "10.7.0.1")
		m.Interfaces[0].Mac = mac
		return m
	}
	for _, test := range []struct {
		name   string
		change func(s *scene, home, by *agent, frame *pb.ClaimRecord)
		joins  bool
	}{
		{"a plain frame", func(*scene, *agent, *agent, *pb.ClaimRecord) {}, true},
		{"without the Override flag", func(_ *scene, _, _ *agent, c *pb.ClaimRecord) { c.NoOverride = true }, true},
		{"sent by another one", func(_ *scene, _, _ *agent, c *pb.ClaimRecord) { c.Source = records.MAC(77) }, false},
		{"with the MAC of a router", func(_ *scene, home, _ *agent, c *pb.ClaimRecord) {
			c.Mac = []byte{0, 0, 0x5e, 0, 1, 7}
			home.report(clone(4, c.Mac))
		}, false},
		{"with a MAC of its own node, too", func(_ *scene, _, by *agent, c *pb.ClaimRecord) { by.report(clone(4, c.Mac)) }, true},
		{"with a MAC and an address of its own node, too", func(_ *scene, _, by *agent, c *pb.ClaimRecord) {
			by.report(clone(4, c.Mac), records.Claims(assigned(4, "10.0.0.1")))
		}, false},
		{"with a MAC of its own node, too, whose kernel refused the address", func(_ *scene, _, by *agent, c *pb.ClaimRecord) {
			refused := assigned(4, "10.0.0.1")
			refused.Kind = pb.Evidence_DAD_FAILED
			by.report(clone(4, c.Mac), records.Claims(refused))
		}, true},
		{"with the MAC of the uplink itself, whose kernel refused the address", func(_ *scene, _, by *agent, c *pb.ClaimRecord) {
			m := lan(2)
			m.Interfaces[0].Mac = c.Mac
			refused := assigned(1, "10.0.0.1")
			refused.Kind, refused.Index = pb.Evidence_DAD_FAILED, m.Interfaces[0].Index
			by.report(m, records.Claims(refused))
		}, true},
		{"with a MAC of a third node, too", func(s *scene, _, _ *agent, c *pb.ClaimRecord) { s.joins("n3", "b3", 1, lan(3), clone(4, c.Mac)) }, true},
		{"with a MAC and an address of a third node, too", func(s *scene, _, _ *agent, c *pb.ClaimRecord) {
			s.joins("n3", "b3", 1, lan(3), clone(4, c.Mac), records.Claims(assigned(4, "10.0.0.1")))
		}, false},
		{"with a MAC of a third node, too, and an address that neither has", func(s *scene, _, _ *agent, c *pb.ClaimRecord) {
			c.Address = []byte{10, 0, 0, 55}
			s.joins("n3", "b3", 1, lan(3), clone(4, c.Mac))
		}, false},
		{"with a MAC of a second pod on its link, too", func(_ *scene, home, _ *agent, c *pb.ClaimRecord) { home.report(clone(4, c.Mac)) }, true},
		{"by a port that is no uplink", func(_ *scene, _, by *agent, c *pb.ClaimRecord) {
			m := lan(2)
			m.Interfaces[0].Uplink = false
			by.report(m)
		}, false},
		{"of a pod that is on no link", func(_ *scene, home, _ *agent, _ *pb.ClaimRecord) {
			m := onLAN(2, "10.0.0.1")
			m.Interfaces[0].Link = ""
			home.report(m)
		}, false},
		{"of a pod behind a veth", func(_ *scene, home, _ *agent, _ *pb.ClaimRecord) {
			m := onLAN(2, "10.0.0.1")
			m.Interfaces[0].Link, m.Links = "v", []*pb.LinkRecord{{Name: "v", Kind: pb.LinkRecord_POINT_TO_POINT}}
			home.report(m)
		}, false},
		{"of an address that it has on one of two links", func(_ *scene, home, _ *agent, c *pb.ClaimRecord) {
			m := clone(2, c.Mac)
			m.Interfaces[0].Index, m.Interfaces[0].Link, m.Claims = 3, "eth1", nil
			home.report(m)
		}, true},
		{"of an address that it has on neither of two links", func(s *scene, home, _ *agent, c *pb.ClaimRecord) {
			m := clone(2, c.Mac)
			m.Interfaces[0].Index, m.Interfaces[0].Link, m.Claims = 3, "eth1", nil
			home.report(m, withdrawn(2, "10.0.0.1"))
			s.after(time.Second) // the frame is not a late one
		}, false},
		{"of another address, which it does not have, of one link", func(_ *scene, _, _ *agent, c *pb.ClaimRecord) { c.Address = []byte{10, 0, 0, 55} }, true},
		{"an answer for an address that it has on one of two links", func(_ *scene, home, _ *agent, c *pb.ClaimRecord) {
			c.Kind = pb.Evidence_ANSWERED
			m := clone(2, c.Mac)
			m.Interfaces[0].Index, m.Interfaces[0].Link, m.Claims = 3, "eth1", nil
			home.report(m)
		}, false},
		{"an answer for an address of the subnet that the other node has there", func(_ *scene, home, by *agent, c *pb.ClaimRecord) {
			c.Kind = pb.Evidence_ANSWERED
			m := clone(2, c.Mac)
			m.Interfaces[0].Index, m.Interfaces[0].Link, m.Claims = 3, "eth1", nil
			home.report(m)
			by.report(&pb.ReportRequest{Claims: []*pb.ClaimRecord{{Address: []byte{10, 0, 0, 200}, Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 9, Count: 1, PrefixLength: 24}}})
		}, true},
		{"an answer of a pod that has its MAC behind a veth, too", func(_ *scene, home, _ *agent, c *pb.ClaimRecord) {
			c.Kind = pb.Evidence_ANSWERED
			m := clone(2, c.Mac)
			m.Interfaces[0].Index, m.Interfaces[0].Link, m.Links, m.Claims = 3, "v", []*pb.LinkRecord{{Name: "v", Kind: pb.LinkRecord_POINT_TO_POINT}}, nil
			home.report(m)
		}, true},
		{"an answer for an address of another subnet", func(_ *scene, home, by *agent, c *pb.ClaimRecord) {
			c.Kind = pb.Evidence_ANSWERED
			m := clone(2, c.Mac)
			m.Interfaces[0].Index, m.Interfaces[0].Link, m.Claims = 3, "eth1", nil
			home.report(m)
			by.report(&pb.ReportRequest{Claims: []*pb.ClaimRecord{{Address: []byte{10, 9, 0, 200}, Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 9, Count: 1, PrefixLength: 24}}})
		}, false},
	} {
		s := newScene(t)
		home, by := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1")), s.joins("n2", "b2", 1, lan(2))
		frame := seen("10.0.0.1", records.MAC(2), 1)
		test.change(s, home, by, frame.Claims[0])
		by.report(frame)
		_, t1 := s.SharedMACs()
		if joins := t1.Domains(BySight) > 0; joins != test.joins {
			t.Errorf("%s: got joined %t, want %t", test.name, joins, test.joins)
		} else if got := s.domains("10.0.0.1"); joins && !slices.Contains(got, "n1 n1/eth0 -") {
			t.Errorf("%s: got domains %q, want the link of the address joined", test.name, got)
		}
		s.check(t, test.name)
	}
}

// A domain gets the name of its first link. Ranges on a LAN are compared by that name.
func TestRangesFollowTheNameOfADomain(t *testing.T) {
	s := newScene(t)
	s.joins("n2", "b2", 1, lan(2), onLAN(3, "10.0.0.2"))
	c := s.joins("n3", "b3", 1, lan(4))
	c.report(seen("10.0.0.2", records.MAC(3), 1))
	s.wantDomains("two links", "10.0.0.2", "n2 n2/eth0 -", "n3 n2/eth0 -")
	s.joins("n1", "b1", 1, lan(5), onLAN(6, "10.0.0.1"))
	s.notified.heard = nil
	c.report(seen("10.0.0.1", records.MAC(6), 1))
	s.wantDomains("three links", "10.0.0.2", "n2 n1/eth0 -", "n3 n1/eth0 -")
	s.wantHeard("the domain is renamed", "lack n1#6", "ranges n1", "ranges n2", "ranges n3")
	s.notified.heard = nil
	c.report(seen("10.0.0.1", records.MAC(6), 1))
	s.wantHeard("it keeps its name")
}

// A frame may become evidence only once its sender is known.
func TestFramesAreEvaluatedAgain(t *testing.T) {
	for name, last := range map[string]func(home, by *agent){
		"its sender comes": func(home, _ *agent) { home.report(onLAN(2, "10.0.0.1")) },
		"its sender gets its MAC": func(home, _ *agent) {
			m := onLAN(2, "10.0.0.1")
			m.Interfaces[0].Mac = records.MAC(5)
			home.report(m, onLAN(2, "10.0.0.1"))
		},
		"its sender comes to a link": func(home, _ *agent) {
			m := onLAN(2, "10.0.0.1")
			m.Interfaces[0].Link = ""
			home.report(m, onLAN(2, "10.0.0.1"))
		},
		"the link of its sender is no veth": func(home, _ *agent) {
			m := onLAN(2, "10.0.0.1")
			m.Links = []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_POINT_TO_POINT}}
			home.report(m, lan(1))
		},
		"the link of its sender ends, and is still used": func(home, _ *agent) {
			gone := &pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "eth0", Gone: true}}}
			home.report(onLAN(2, "10.0.0.1"), gone, gone)
		},
		"its port is an uplink": func(home, by *agent) {
			m := lan(2)
			m.Interfaces[0].Uplink = false
			by.report(m)
			home.report(onLAN(2, "10.0.0.1"))
			by.report(lan(2))
		},
		"another one with its MAC is gone": func(home, by *agent) {
			m := onLAN(4, "10.7.0.1")
			m.Interfaces[0].Mac = records.MAC(2)
			by.report(m)
			home.report(onLAN(2, "10.0.0.1"))
			by.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 4, Index: 2, Gone: true}}})
		},
	} {
		s := newScene(t)
		home, by := s.joins("n1", "b1", 1, lan(1)), s.joins("n2", "b2", 1, lan(2))
		by.report(seen("10.0.0.1", records.MAC(2), 1))
		s.wantDomains(name+": before", "10.0.0.1", "n2 - -")
		s.judgeAll()
		last(home, by)
		s.wantDomains(name, "10.0.0.1", "n1 n1/eth0 -", "n2 n1/eth0 -")
		if judged := s.judgeAll(); !slices.Contains(judged, netip.MustParseAddr("10.0.0.1")) {
			t.Errorf("%s: got %v to be judged", name, judged)
		}
		s.check(t, name)
	}
}

// withdrawn returns a report that the interface of a pod no longer has an address.
func withdrawn(record uint32, addr string) *pb.ReportRequest {
	m := assignedMessage(record, addr)
	m.Claims[0].Gone = true
	return m
}

func TestLinksSeparateAfterAWhile(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	b := s.joins("n2", "b2", 1, lan(2))
	for range 3 { // generations
		select {
		case <-s.Woken():
		default:
		}
	}
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	select {
	case <-s.Woken():
	default:
		t.Error("got no wake-up for the links")
	}
	for range 3 {
		at := s.Ring()
		if at == 0 {
			break
		}
		s.now = at
		s.judgeAll()
	}
	s.Ring()
	s.wantJudged("the links are apart", "10.0.0.1")
	s.wantDomains("the links are apart", "10.0.0.1", "n1 - -", "n2 - -")
	s.after(time.Second)
	b.report(seen("10.0.0.1", records.MAC(2), 2))
	s.wantDomains("another frame", "10.0.0.1", "n1 n1/eth0 -", "n2 n1/eth0 -")
}

// A card at the mirror port of a switch receives frames of two VLANs, whose nodes receive frames of others only.
func TestFramesOfAMirrorPortProveNoLink(t *testing.T) {
	for _, mirrored := range []bool{true, false} {
		s := newScene(t)
		a, c := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1")), s.joins("n2", "b2", 1, lan(2), onLAN(3, "10.0.0.2"))
		monitor := s.joins("n3", "b3", 1, lan(4))
		for i := range uint32(4 * provenAfter) {
			monitor.report(seen("10.0.0.1", records.MAC(2), i+1))
			monitor.report(seen("10.0.0.2", records.MAC(3), i+1))
			if mirrored {
				a.report(seen("10.0.0.8", []byte{2, 0, 0, 0, 0, 98}, i+1))
				c.report(seen("10.0.0.9", []byte{2, 0, 0, 0, 0, 99}, i+1))
			}
			s.after(s.Policy.StaleAfter / 3)
			if at := s.Ring(); at != 0 && at <= s.now {
				s.Ring()
			}
		}
		want := []string{"n1 n1/eth0 n1/eth0", "n3 n1/eth0 n1/eth0"}
		if mirrored {
			want = []string{"n1 n1/eth0 -", "n3 n1/eth0 -"}
		}
		s.wantDomains(fmt.Sprint("mirrored ", mirrored), "10.0.0.1", want...)
	}
}

// A frame keeps links joined only for as long as it counts, regardless of other links in their
// domain.
func TestOtherLinksDoNotKeepLinksTogether(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	b := s.joins("n2", "b2", 1, lan(2))
	s.joins("n3", "b3", 1, lan(3), onLAN(4, "10.0.0.3"))
	c := s.joins("n4", "b4", 1, lan(4))
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	c.report(seen("10.0.0.3", records.MAC(4), 1))
	s.now = s.Ring().Add(-time.Second)
	b.report(seen("10.0.0.1", records.MAC(2), 2))
	s.after(time.Second)
	s.Ring()
	s.after(time.Second / 2)
	c.report(seen("10.0.0.1", records.MAC(2), 1))
	s.wantDomains("a frame joins both LANs", "10.0.0.1", "n1 n1/eth0 -", "n2 n1/eth0 -", "n4 n1/eth0 -")
	s.now = s.Ring()
	s.Ring()
	s.wantDomains("only that frame was seen lately", "10.0.0.1", "n1 n1/eth0 -", "n2 - -", "n4 n1/eth0 -")
}

// A sender that only answers, for many addresses or for addresses of several owners, is a proxy.
func TestAnswersOfASender(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"))
	answers := func(addrs ...string) {
		for _, addr := range addrs {
			m := seen(addr, records.MAC(99), 1)
			m.Claims[0].Kind = pb.Evidence_ANSWERED
			a.report(m)
		}
	}
	want := func(why string, addresses, owners int) {
		t.Helper()
		c := s.Builder().Case(key("10.0.0.1"), false)
		if len(c.Answers) != 1 || c.Answers[0].Addresses != addresses || c.Answers[0].Owners != owners || c.Answers[0].Link.Name != "eth0" || string(c.Answers[0].MAC) != string(records.MAC(99)) {
			t.Errorf("%s: got answers %+v, want %d addresses of %d owners", why, c.Answers, addresses, owners)
		}
	}
	answers("10.0.0.1")
	want("one", 1, 0)
	s.judgeAll()
	answers("10.0.0.2")
	want("that of a pod, too", 2, 1)
	s.wantJudged("it answers for one more", "10.0.0.1", "10.0.0.2")
	m := seen("10.0.0.4", records.MAC(99), 1)
	a.report(m)
	want("an address that it claims unsolicited", 2, 1)
	m.Claims[0].Kind, m.Claims[0].Gone = pb.Evidence_ANSWERED, false
	a.report(m)
	want("an address that it claims unsolicited and answers for", 2, 1)
	weak := seen("10.0.0.5", records.MAC(99), 1)
	weak.Claims[0].Kind, weak.Claims[0].Source = pb.Evidence_ANSWERED, records.MAC(98)
	a.report(weak)
	want("one for which another one speaks", 2, 1)
	group := seen("10.0.0.6", []byte{1, 0, 0x5e, 0, 0, 1}, 1)
	group.Claims[0].Kind = pb.Evidence_ANSWERED
	if a.report(group); len(s.Builder().Case(key("10.0.0.6"), false).Answers) != 0 {
		t.Error("got an answer of a multicast MAC")
	}
	answers("10.0.0.3")
	want("addresses of two pods", 2, 2)
	s.judgeAll()
	a.report(withdrawn(3, "10.0.0.3"))
	want("one pod's is gone", 3, 1)
	s.wantJudged("one pod's is gone", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
	a.report(withdrawn(2, "10.0.0.2"))
	for i := range 20 {
		answers(fmt.Sprint("10.1.0.", i))
	}
	want("very many", verdict.ManyAnswers, 0)
	if c := s.Builder().Case(key("10.0.0.4"), false); len(c.Answers) != 0 {
		t.Errorf("got answers %+v of a claim that is not only an answer", c.Answers)
	}
}

// A frame that joins no links is judged again when the link of its sender joins the domain.
func TestFramesAreJudgedWhenTheLinkOfTheirSenderJoins(t *testing.T) {
	for name, mac := range map[string][]byte{"a MAC of one interface": records.MAC(2), "a virtual MAC": {0, 0, 0x5e, 0, 1, 7}} {
		weak := seen("10.0.0.9", mac, 1)
		weak.Claims[0].Source = records.MAC(77)
		silent := onLAN(2, "10.0.0.2")
		silent.Interfaces[0].Mac, silent.Claims = mac, nil
		s := newScene(t)
		s.joins("n1", "b1", 1, lan(1), weak)
		s.joins("n2", "b2", 1, lan(2), silent, onLAN(4, "10.0.0.4"))
		a, c := s.joins("n1", "b1", 1, lan(1), weak, onLAN(6, "10.0.0.6")), s.joins("n3", "b3", 1, lan(3), onLAN(5, "10.0.0.5"))
		a.report(seen("10.0.0.5", records.MAC(5), 1))
		s.wantDomains(name+": the first two", "10.0.0.9", "n1 n1/eth0 -")
		if got := s.Builder().Case(key("10.0.0.9"), false).Stations; len(got) != 0 {
			t.Errorf("%s: got %d stations before the link of the sender joins, want none", name, len(got))
		}
		s.judgeAll()
		c.report(seen("10.0.0.4", records.MAC(4), 1))
		s.wantDomains(name+": the third", "10.0.0.4", "n2 n1/eth0 -", "n3 n1/eth0 -")
		if judged := s.judgeAll(); !slices.Contains(judged, netip.MustParseAddr("10.0.0.9")) {
			t.Errorf("%s: got %v to be judged", name, judged)
		}
		s.check(t, name)
	}
}

// A frame is judged again when the link of the station with its MAC separates from the domain.
func TestFramesAreJudgedWhenTheLinkOfTheirSenderSeparates(t *testing.T) {
	weak := seen("10.0.0.9", records.MAC(2), 1)
	weak.Claims[0].Source = records.MAC(77)
	s := newScene(t)
	s.joins("n4", "b4", 1, lan(1), onLAN(2, "10.0.0.2"), onLAN(6, "10.0.0.6"))
	s.joins("n2", "b2", 1, lan(2), onLAN(4, "10.0.0.4"))
	c := s.joins("n3", "b3", 1, lan(3))
	c.report(seen("10.0.0.6", records.MAC(6), 1), seen("10.0.0.4", records.MAC(4), 1), weak)
	stations := func(why string, want int) {
		t.Helper()
		if got := s.Builder().Case(key("10.0.0.9"), false).Stations; len(got) != want {
			t.Errorf("%s: got %d stations, want %d", why, len(got), want)
		}
	}
	s.wantDomains("all are on one LAN", "10.0.0.9", "n3 n2/eth0 -")
	stations("all are on one LAN", 1)
	s.now = s.Ring()
	next := s.Ring()
	c.report(seen("10.0.0.4", records.MAC(4), 2))
	s.wantDomains("one frame is older", "10.0.0.9", "n3 n2/eth0 -")
	s.judgeAll()
	s.now = next
	s.Ring()
	s.wantDomains("one link separates", "10.0.0.9", "n3 n2/eth0 -")
	stations("one link separates", 0)
	s.wantJudged("one link separates", "10.0.0.2", "10.0.0.6", "10.0.0.9")
}

// A link that is no longer reported leaves its domain, even if there are interfaces on it.
func TestALinkThatIsNoLongerReportedLeavesItsDomain(t *testing.T) {
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1")), s.joins("n2", "b2", 1, lan(2))
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	_, domains := s.SharedMACs()
	s.after(domains.Generation()) // the frame no longer joins the links, but they have not separated yet
	s.wantDomains("before", "10.0.0.1", "n1 n1/eth0 -", "n2 n1/eth0 -")
	s.judgeAll()
	a.report(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "eth0", Gone: true}}})
	s.wantDomains("it is gone", "10.0.0.1", "n1 - -", "n2 - -")
	s.wantJudged("it is gone", "10.0.0.1")
}

// When interfaces with the same MAC on one link stop reaching other nodes, no index entries remain.
func TestInterfacesOfOneMACLeaveOtherNodesTogether(t *testing.T) {
	s := newScene(t)
	clone := onLAN(3, "10.0.0.3")
	clone.Interfaces[0].Mac = records.MAC(2)
	a, b := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"), clone), s.joins("n2", "b2", 1, lan(2))
	stations := func() int { return len(s.Builder().Case(key("10.0.0.1"), false).Stations) }
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	if got := stations(); got != 2 {
		t.Errorf("got %d stations on the LAN, want both", got)
	}
	a.report(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_POINT_TO_POINT}}})
	if got := stations(); got != 0 {
		t.Errorf("got %d stations behind a veth, want none", got)
	}
	s.check(t, "their link is point-to-point")
	a.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Gone: true}, {Namespace: 3, Index: 2, Gone: true}}})
	b.report(onLAN(4, "10.0.0.4"), onLAN(2, "10.0.0.2"))
	s.check(t, "another node has the MAC")
	if macs := s.holders.all(podMACKey(2)); len(slices.Collect(macs)) != 1 {
		t.Errorf("got %d nodes with the MAC, want one", len(slices.Collect(macs)))
	}
}

func podMACKey(record uint32) [6]byte { return [6]byte(records.MAC(record)) }
