package audit_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// node1 answers on the LAN for an address that node2 has.
func TestANodeAnswersForAnAddressOfAnother(t *testing.T) {
	type scene struct {
		*world
		lan         []*verdict.Interface
		answer, has *verdict.Claim
	}
	device := func(s *scene, attachment verdict.Attachment) {
		s.Assigned(s.Interface(s.Host("n1"), verdict.Interface{Name: "lo", Attachment: attachment}))
	}
	for _, test := range []struct {
		name   string
		change func(s *scene)
		want   []string // the owners of the finding
	}{
		{"it has the address on a loopback device", func(s *scene) { device(s, verdict.Local) }, []string{"n1", "n2"}},
		{"a packet filter may drop the answers", func(s *scene) { s.answer.Answer.Filter = verdict.FilterRules }, []string{"n1", "n2"}},
		{"its packet filters cannot be read", func(s *scene) { s.answer.Answer.Filter = verdict.FilterUnreadable }, []string{"n1", "n2"}},
		{"its kernel does not have it", nil, []string{"n1", "n2"}},
		{"its answer to an announcement was seen", func(s *scene) { s.Wire(s.lan[1], string(s.lan[0].MAC)) }, []string{"n1", "n2"}},
		{"a machine of the LAN has it", func(s *scene) {
			s.Drop(s.has)
			s.Wire(s.lan[1], "\x02\x00\x00\x00\x00\x99")
		}, []string{"n1", ""}},
		{"nobody has it", func(s *scene) { s.Drop(s.has) }, nil},
		{"only others that would answer have it", func(s *scene) { s.has.Interface.Attachment = verdict.Local }, nil},
		{"it is on another LAN", func(s *scene) { s.has.Interface.Link.Domain = nil }, nil},
		{"it is on another LAN, and frames with the MAC of the node are seen", func(s *scene) {
			s.has.Interface.Link.Domain = nil
			s.Wire(s.lan[0], string(s.lan[0].MAC))
		}, nil},
		{"the node has timed out", func(s *scene) { s.Node("n1").TimedOut = true }, nil},
		{"it is declared", func(s *scene) {
			s.Policy.Shared = []verdict.Shared{{Prefix: verdicttest.Prefixes("192.0.2.0/24")[0], Reason: "anycast"}}
		}, nil},
		{"by its table of neighbours", func(s *scene) { s.answer.Answer.By = verdict.ByNeighbour }, []string{"n1", "n2"}},
		{"by its table of neighbours, in a conflict of others", func(s *scene) {
			s.answer.Answer.By = verdict.ByNeighbour
			s.Wire(s.lan[1], "\x02\x00\x00\x00\x00\x99")
		}, nil},
		{"both are in a conflict", func(s *scene) { s.Assigned(s.lan[0]) }, nil},
	} {
		s := &scene{world: newWorld("192.0.2.12")}
		s.lan = verdicttest.OnLAN(s.World, "n1", "n2")
		s.has = s.Assigned(s.lan[1])
		s.answer = s.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: s.lan[0], Network: "lo", Answer: verdict.KernelAnswer{By: verdict.ByAddress}})
		if test.change != nil {
			test.change(s)
		}
		if test.name == "both are in a conflict" {
			s.Judge()
			s.after(20 * time.Second)
			s.Read(s.Claims...)
		}
		first := s.auditAll()
		out := s.after(s.Policy.Settle / 2).auditAll(first.Findings...)
		var got []string
		for _, f := range out.Findings {
			if f.Kind == verdict.FindingAnsweredByAnother && !f.Waiting {
				if filtered := s.answer.Answer.Filter != 0; (f.Severity == verdict.Warning) != filtered {
					t.Errorf("%s: got severity %v", test.name, f.Severity)
				}
				for _, o := range f.Owners {
					got = append(got, map[bool]string{true: o.Node.Name}[o.Namespace != nil])
				}
			}
		}
		if !slices.Equal(got, test.want) || len(reported(first.Findings)) != 0 {
			t.Errorf("%s: got owners %q of %+v, want %q", test.name, got, out.Findings, test.want)
		}
		if n := len(s.Judge().Conflicts); n != map[bool]int{true: 1}[strings.Contains(test.name, "in a conflict")] {
			t.Errorf("%s: got %d conflicts", test.name, n)
		}
	}
}

// node1 answers on the LAN with its own MAC for an address of node2, and its kernel would not. node3 sees it.
func TestAProgramAnswersForAnAddressOfAnother(t *testing.T) {
	type scene struct {
		*world
		lan              []*verdict.Interface
		answer, has, own *verdict.Claim
	}
	for _, test := range []struct {
		name   string
		change func(s *scene)
		want   []string // the owners of the finding
	}{
		{"arpspoof", nil, []string{"n1", "n2"}},
		{"a machine of the LAN has it", func(s *scene) {
			s.Drop(s.has, s.own)
			s.own = s.Wire(s.lan[2], "\x02\x00\x00\x00\x00\x99")
		}, []string{"n1", ""}},
		{"node2 sees it", func(s *scene) {
			s.Drop(s.own)
			s.answer.Interface, s.answer.Link = s.lan[1], s.lan[1].Link
		}, []string{"n1", "n2"}},
		{"its kernel would answer elsewhere", func(s *scene) {
			at := s.Interface(s.Host("n1"), verdict.Interface{Name: "eth1", Attachment: verdict.Own, Link: s.Link("n1", "eth1", verdict.Uplink, false)})
			s.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: at, Answer: verdict.KernelAnswer{By: verdict.ByProxyARP}})
		}, nil},
		{"only the answer is seen, as on isolated ports", func(s *scene) { s.Drop(s.own) }, nil},
		{"node2 is behind it", func(s *scene) {
			port := s.Interface(s.Host("n1"), verdict.Interface{Name: "tap7", Tap: true, Attachment: verdict.Own, Link: s.Link("n1", "tap7", verdict.PointToPoint, false)})
			s.Wire(port, string(s.lan[1].MAC))
		}, nil},
		{"nobody has it", func(s *scene) { s.Drop(s.has, s.own) }, nil},
		{"it is on another LAN", func(s *scene) {
			s.Drop(s.own)
			s.has.Interface.Link.Domain = nil
		}, nil},
		{"the answer may be overridden", func(s *scene) { s.answer.NoOverride = true }, nil},
		{"its node is disconnected", func(s *scene) { s.Node("n1").Unheard = true }, nil},
		{"a device outside answers for several owners", func(s *scene) {
			s.answer.MAC = "ttrang"
			s.Answers = map[verdict.MAC][2]int{"ttrang": {2, 2}}
		}, []string{"", "n2"}},
		{"a router outside answers for many", func(s *scene) {
			s.answer.MAC = "ttrang"
			s.Answers = map[verdict.MAC][2]int{"ttrang": {20, 1}}
		}, nil},
		{"a router outside answers for owners on isolated ports", func(s *scene) {
			s.Drop(s.own)
			s.answer.MAC = "ttrang"
			s.Answers = map[verdict.MAC][2]int{"ttrang": {2, 2}}
		}, nil},
	} {
		for _, again := range []bool{true, false} { // one answer may be older than the other owner
			s := &scene{world: newWorld("192.0.2.12")}
			s.lan = verdicttest.OnLAN(s.World, "n1", "n2", "n3")
			for _, n := range s.Nodes {
				n.Listed = s.Now
			}
			s.has, s.own = s.Assigned(s.lan[1]), s.Wire(s.lan[2], string(s.lan[1].MAC))
			s.answer = s.Wire(s.lan[2], string(s.lan[0].MAC))
			s.answer.Kind = verdict.Answered
			if test.change != nil {
				test.change(s)
			}
			s.after(s.Policy.Settle)
			if again {
				s.Seen(s.answer)
			}
			first := s.auditAll()
			out := s.after(s.Policy.Settle / 2).auditAll(first.Findings...)
			var got, want []string
			for _, f := range out.Findings {
				if f.Kind == verdict.FindingAnsweredByAnother && !f.Waiting {
					if f.Severity != verdict.Warning {
						t.Errorf("%s: got severity %v", test.name, f.Severity)
					}
					for _, o := range f.Owners {
						got = append(got, map[bool]string{true: o.Node.Name}[o.Namespace != nil])
					}
				}
			}
			if again {
				want = test.want
			}
			if !slices.Equal(got, want) || len(reported(first.Findings)) != 0 {
				t.Errorf("%s: got owners %q of %+v, want %q", test.name, got, out.Findings, want)
			}
			if judged := s.Judge(); len(judged.Conflicts) != 0 || test.want != nil && !judged.Contested {
				t.Errorf("%s: got %+v", test.name, judged)
			}
		}
	}
}

// node1 has an address of node2 on lo. Its kernel does not answer for it.
func TestARealServerUsesTheAddressOfItsLoadBalancer(t *testing.T) {
	type scene struct {
		*world
		lan     []*verdict.Interface
		lo, has *verdict.Claim
	}
	uses := func(s *scene, by, at int) *verdict.Claim {
		c := s.Wire(s.lan[at], string(s.lan[by].MAC))
		c.Kind = verdict.Used
		return c
	}
	for _, test := range []struct {
		name    string
		observe func(s *scene)
		want    bool
	}{
		{"no frames, as with arp_announce=2", func(*scene) {}, false},
		{"a request with the address as the sender", func(s *scene) { uses(s, 0, 1) }, true},
		{"a request of long ago", func(s *scene) {
			uses(s, 0, 1)
			s.after(s.Policy.StaleAfter)
		}, false},
		{"a request from before the other owner had the address", func(s *scene) {
			uses(s, 0, 1)
			s.has.AssignedAt = s.Now
		}, false},
		{"a request from before the address was on lo", func(s *scene) {
			uses(s, 0, 1)
			s.lo.AssignedAt = s.Now
		}, false},
		{"a request at a time that cannot be compared", func(s *scene) {
			uses(s, 0, 1)
			s.Node("n1").SkewKnown = false
		}, false},
		{"the other owner was assigned the address later by its clock only", func(s *scene) {
			uses(s, 0, 1)
			s.Node("n2").Skew = time.Hour
			s.has.AssignedAt, s.Claims[2].Last = s.has.AssignedAt.Add(time.Hour), s.Claims[2].Last.Add(time.Hour)
		}, true},
		{"an answer, perhaps of a program", func(s *scene) { s.Wire(s.lan[1], string(s.lan[0].MAC)) }, false},
		{"a request of the other owner", func(s *scene) { uses(s, 1, 0) }, false},
		{"it is declared", func(s *scene) {
			uses(s, 0, 1)
			s.Policy.Shared = []verdict.Shared{{Prefix: verdicttest.Prefixes("192.0.2.0/24")[0], Reason: "anycast"}}
		}, false},
		{"only others have it on lo", func(s *scene) {
			uses(s, 0, 1)
			s.has.Interface.Attachment = verdict.Local
		}, false},
	} {
		s := &scene{world: newWorld("192.0.2.100")}
		s.lan = verdicttest.OnLAN(s.World, "n1", "n2")
		s.Node("n1").SkewKnown, s.Node("n2").SkewKnown = true, true
		s.lo = s.Assigned(s.Interface(s.Host("n1"), verdict.Interface{Name: "lo", Attachment: verdict.Local}))
		s.has = s.Assigned(s.lan[1])
		s.after(time.Second)
		test.observe(s)
		first := s.auditAll()
		out := s.after(s.Policy.Settle / 2).auditAll(first.Findings...)
		var found []verdict.Severity
		for _, f := range out.Findings {
			if f.Kind == verdict.FindingAnsweredByAnother && !f.Waiting && f.Owners[0].Node.Name == "n1" {
				found = append(found, f.Severity)
			}
		}
		if want := map[bool][]verdict.Severity{true: {verdict.Critical}}[test.want]; !slices.Equal(found, want) {
			t.Errorf("%s: got %v of %+v, want %v", test.name, found, out.Findings, want)
		}
	}
}

// A container on node1 has the address of its load balancer, node2, on lo, and answers for it.
func TestARealServerInAContainerAnswersForItsLoadBalancer(t *testing.T) {
	for _, test := range []struct {
		name  string
		frame verdict.Evidence
		early bool // before node2 had the address
		want  bool
	}{
		{"no frames, as with arp_ignore=1", 0, false, false},
		{"an answer", verdict.Answered, false, true},
		{"an announcement", verdict.Announced, false, true},
		{"a request", verdict.Used, false, true},
		{"an answer from before the other owner had the address", verdict.Answered, true, false},
	} {
		w := newWorld("192.0.2.100")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		w.Node("n1").SkewKnown, w.Node("n2").SkewKnown = true, true
		real := w.Namespace("n1", 7, "77", verdicttest.Pod("real"))
		w.Assigned(w.Interface(real, verdict.Interface{Name: "lo", Attachment: verdict.Local}))
		inside := w.Interface(real, verdict.Interface{Name: "eth0", Kind: "macvlan", MAC: "\x02\x00\x00\x00\x77\x01", Attachment: verdict.Lower, Link: lan[0].Link, HostInterface: "eth0"})
		has := w.Assigned(lan[1])
		w.after(time.Second)
		if test.frame != 0 {
			w.Wire(lan[1], string(inside.MAC)).Kind = test.frame
		}
		if test.early {
			has.AssignedAt = w.Now
		}
		first := w.auditAll()
		out := w.after(w.Policy.Settle / 2).auditAll(first.Findings...)
		var found []verdict.Severity
		for _, f := range out.Findings {
			if f.Kind == verdict.FindingAnsweredByAnother && !f.Waiting && f.Owners[0].ID == real.ID {
				found = append(found, f.Severity)
			}
		}
		if want := map[bool][]verdict.Severity{true: {verdict.Critical}}[test.want]; !slices.Equal(found, want) {
			t.Errorf("%s: got %v of %+v, want %v", test.name, found, out.Findings, want)
		}
	}
}

// node1 and node2 answer on the LAN as proxies for an address behind them.
func TestAProxyAnswersForAnOwnerBehindAnotherNode(t *testing.T) {
	type scene struct {
		*world
		lan     []*verdict.Interface
		answers []*verdict.Claim
		has     *verdict.Claim
	}
	// behind adds a container behind a node, or a guest that only frames show.
	behind := func(s *scene, node string, guest bool) *verdict.Claim {
		link := s.Link(node, "veth7", verdict.PointToPoint, false)
		if guest {
			port := s.Interface(s.Host(node), verdict.Interface{Name: "tap7", Tap: true, Attachment: verdict.Own, Link: link})
			return s.Wire(port, "\x52\x54\x00\x00\x00\x07")
		}
		inside, _ := s.Veth(s.Namespace(node, 7, "7"+node, verdicttest.Pod("web")), "\x02\x00\x00\x00\x00\x07", link)
		return s.Assigned(inside)
	}
	for _, test := range []struct {
		name   string
		change func(s *scene)
		want   []string // the nodes of the owners of the finding
	}{
		{"the container is behind node2 only", nil, []string{"n1", "n2"}},
		{"the guest is behind node2 only", func(s *scene) {
			s.Drop(s.has)
			s.has = behind(s, "n2", true)
		}, []string{"n1", "n2"}},
		{"by an entry", func(s *scene) { s.answers[0].Answer.By = verdict.ByProxyEntry }, []string{"n1", "n2"}},
		{"the container is behind node1 as well", func(s *scene) { behind(s, "n1", false) }, nil},
		{"the guest is behind node1 as well", func(s *scene) { behind(s, "n1", true) }, nil},
		{"the container is behind node1 only", func(s *scene) {
			s.Drop(s.has)
			behind(s, "n1", false)
			s.Drop(s.answers[1])
		}, nil},
		{"nobody is behind the nodes", func(s *scene) { s.Drop(s.has) }, nil},
		{"the guest has not been seen for long", func(s *scene) {
			s.Drop(s.has)
			s.has = behind(s, "n2", true)
			s.after(s.Policy.StaleAfter)
		}, nil},
		{"the machine is on a second LAN of both nodes", func(s *scene) {
			s.Drop(s.has)
			d := &verdict.Domain{Node: s.Node("n1"), Name: "eth1"}
			for _, n := range []string{"n1", "n2"} {
				i := s.Interface(s.Host(n), verdict.Interface{Name: "eth1", Attachment: verdict.Own, Uplink: true, Link: s.Link(n, "eth1", verdict.Uplink, false)})
				i.Link.Domain, i.Link.Proven = d, d
				if n == "n2" {
					s.has = s.Wire(i, "\x52\x54\x00\x00\x00\x07")
				}
			}
		}, nil},
		{"the machine is on a second LAN of node2", func(s *scene) {
			s.Drop(s.has)
			i := s.Interface(s.Host("n2"), verdict.Interface{Name: "eth1", Attachment: verdict.Own, Uplink: true, Link: s.Link("n2", "eth1", verdict.Uplink, false)})
			s.has = s.Wire(i, "\x52\x54\x00\x00\x00\x07")
		}, nil},
		{"node2 does not answer", func(s *scene) { s.Drop(s.answers[1]) }, nil},
		{"node2 answers on another LAN", func(s *scene) { s.lan[1].Link.Domain = nil }, nil},
		{"node1 no longer has the route", func(s *scene) { s.Drop(s.answers[0]) }, nil},
	} {
		s := &scene{world: newWorld("192.0.2.50")}
		s.lan = verdicttest.OnLAN(s.World, "n1", "n2")
		s.has = behind(s, "n2", false)
		for _, at := range s.lan {
			s.answers = append(s.answers, s.Claim(verdict.Claim{
				Kind: verdict.WouldAnswer, Interface: at, Network: "veth7", PrefixLength: 32, Answer: verdict.KernelAnswer{By: verdict.ByProxyARP},
			}))
		}
		if test.change != nil {
			test.change(s)
		}
		first := s.auditAll()
		out := s.after(s.Policy.HandoverGrace).auditAll(first.Findings...)
		var got []string
		for _, f := range out.Findings {
			if f.Kind == verdict.FindingAnsweredByAnother && !f.Waiting {
				for _, o := range f.Owners {
					got = append(got, o.Node.Name)
				}
			}
		}
		if !slices.Equal(got, test.want) || len(reported(first.Findings)) != 0 {
			t.Errorf("%s: got owners %q of %+v, want %q", test.name, got, out.Findings, test.want)
		}
	}
}
