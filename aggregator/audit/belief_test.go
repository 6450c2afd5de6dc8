package audit_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// believing is pod c on a bridge with the address that pod b had, and pod a, which sends elsewhere.
type believing struct {
	*world
	owner  *verdict.Claim
	belief verdict.Belief
	before []verdict.Finding
}

func newBelieving() *believing {
	s := &believing{world: newWorld("10.244.0.7")}
	s.owner = s.Within("n1", "cni0", "kindnet", verdicttest.Pod("c"))
	holder := s.Namespace("n1", 50, "150", verdicttest.Pod("a"))
	inside, _ := s.Veth(holder, "\x02\x00\x00\x00\x02\x01", s.Link("n1", "cni0", verdict.Bridge, true))
	s.belief = verdict.Belief{
		Link: inside.Link, MAC: "\x02\x00\x00\x00\x02\x02", State: verdict.EntryInUse, Count: 1, Holders: []*verdict.Interface{inside}, Addresses: 1, Inside: true,
	}
	return s
}

func (s *believing) look() []verdict.Finding {
	out := s.Judge()
	in := s.Case()
	in.Beliefs, in.Before = []verdict.Belief{s.belief}, s.before
	s.before = audit.Address(&s.Policy, in, &out).Findings
	return s.before
}

// reported returns what is reported after a time.
func (s *believing) reported(after time.Duration) string {
	s.look()
	s.after(after)
	for _, f := range s.look() {
		if f.Kind == verdict.FindingStaleBelief && !f.Waiting {
			return fmt.Sprint(f.Severity, " ", f.Owners[0].Workload().Name, " ", len(f.Beliefs))
		}
	}
	return ""
}

func TestWhichBeliefsAreStale(t *testing.T) {
	const settle, grace = time.Second, 10 * time.Second
	own := func(s *believing) *verdict.Interface {
		return s.Interface(s.Host("n1"), verdict.Interface{Name: "cni0", MAC: s.belief.MAC, Attachment: verdict.Own, Link: s.belief.Link})
	}
	for _, test := range []struct {
		name   string
		change func(s *believing)
		after  time.Duration
		want   string
	}{
		{"nobody has the MAC", func(*believing) {}, settle, "3 c 1"},
		{"within the settle time", func(*believing) {}, settle - 1, ""},
		{"a permanent entry", func(s *believing) { s.belief.State = verdict.EntryPermanent }, settle, "2 c 1"},
		{"the MAC of another pod", func(s *believing) { s.belief.Inside, s.belief.Receivers = false, s.belief.Holders }, settle, "3 c 1"},
		{"an unknown MAC on a LAN", func(s *believing) { s.belief.Inside = false }, settle, ""},
		{"that of an owner that has left, on a LAN", func(s *believing) { s.belief.Inside, s.belief.Left = false, s.Now }, settle, "3 c 1"},
		{"the MAC of the owner", func(s *believing) { s.belief.MAC = s.owner.Interface.MAC }, settle, ""},
		{"that of another interface of the owner, as in a bond", func(s *believing) {
			s.belief.Receivers = []*verdict.Interface{{Namespace: s.owner.Interface.Namespace, Attachment: verdict.Peer}}
		}, settle, ""},
		{"a virtual router", func(s *believing) { s.belief.MAC = "\x00\x00\x5e\x00\x01\x07" }, settle, ""},
		{"a responder of a plugin", func(s *believing) { s.belief.MAC = "\xee\xee\xee\xee\xee\xee" }, settle, ""},
		{"a MAC for many addresses", func(s *believing) { s.belief.Addresses = 2 }, settle, ""},
		{"the node itself, which may be a proxy", func(s *believing) { s.belief.Receivers = []*verdict.Interface{own(s)} }, settle, ""},
		{"the node itself, which may route, by a permanent entry", func(s *believing) {
			s.belief.State, s.belief.Receivers = verdict.EntryPermanent, []*verdict.Interface{own(s)}
		}, settle, ""},
		{"the node itself, which has left the address and may forward", func(s *believing) {
			s.belief.Left, s.belief.Receivers = s.Now, []*verdict.Interface{own(s)}
		}, settle, "2 c 1"},
		{"a frame with that MAC claims it", func(s *believing) {
			s.Claim(verdict.Claim{Kind: verdict.Answered, Interface: own(s), Frame: verdict.Frame{Link: s.belief.Link, MAC: s.belief.MAC, NoOverride: true}})
		}, settle, ""},
		{"the owner is on another link", func(s *believing) { s.belief.Link = s.Link("n1", "cni1", verdict.Bridge, true) }, settle, ""},
		{"nobody has the address", func(s *believing) { s.Drop(s.owner) }, grace, ""},
		{"declared as shared", func(s *believing) {
			s.Policy.Shared = []verdict.Shared{{Prefix: verdicttest.Prefixes("10.244.0.0/16")[0], Reason: "anycast"}}
		}, settle, ""},
		{"the node of the holders is disconnected", func(s *believing) { s.belief.Link.Node.Unheard = true }, settle, ""},
		{"a program moves the address", func(s *believing) {
			s.owner.Interface.Namespace.Who = verdict.Workload{Kind: verdict.Pod, Namespace: "shop", Name: "c", VIPProgram: "keepalived"}.Who()
		}, grace - 1, ""},
	} {
		s := newBelieving()
		test.change(s)
		if got := s.reported(test.after); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// A node sends packets for the address of the VXLAN device of another node to a MAC that the device does not have, as after flannel
// has made it again. No frame shows that the links are one.
func TestWhichBeliefsAboutAnEndOfATunnelAreStale(t *testing.T) {
	const device = "flannel.1"
	for _, test := range []struct {
		name   string
		change func(w *world, b *verdict.Belief, owner *verdict.Interface)
		want   string
	}{
		{"the device has another MAC", func(*world, *verdict.Belief, *verdict.Interface) {}, "2 n2 1"},
		{"of another owner in another cluster, whose node has the address of the tunnel", func(w *world, b *verdict.Belief, _ *verdict.Interface) {
			b.Far = w.Node("n3")
		}, ""},
		{"the tunnel leads to no node, or to several", func(_ *world, b *verdict.Belief, _ *verdict.Interface) { b.Far = nil }, ""},
		{"the device has the MAC", func(_ *world, b *verdict.Belief, owner *verdict.Interface) { b.MAC = owner.MAC }, ""},
		{"a device of another network", func(_ *world, _ *verdict.Belief, owner *verdict.Interface) { owner.Link.Name = "vxlan.calico" }, ""},
		{"no tunnel", func(_ *world, _ *verdict.Belief, owner *verdict.Interface) { owner.Kind = "" }, ""},
		{"a node that passes it on", func(_ *world, b *verdict.Belief, _ *verdict.Interface) {
			b.Receivers = []*verdict.Interface{{Namespace: b.Holders[0].Namespace, Attachment: verdict.Own}}
		}, ""},
	} {
		w := newWorld("10.244.2.0")
		on := func(node string, mac verdict.MAC) *verdict.Interface {
			return w.Interface(w.Host(node), verdict.Interface{Name: device, Kind: "vxlan", MAC: mac, Attachment: verdict.Own, Link: w.Link(node, device, verdict.Uplink, false)})
		}
		holder, owner := on("n1", "\x02\xff\x00\x00\x00\x01"), on("n2", "\x02\xff\x00\x00\x00\x22")
		s := &believing{world: w, owner: w.Assigned(owner), belief: verdict.Belief{
			Link: holder.Link, MAC: "\x02\xff\x00\x00\x00\x02", State: verdict.EntryPermanent, Count: 1, Holders: []*verdict.Interface{holder}, Addresses: 1,
			Tunnel: netip.MustParseAddr("192.0.2.12"), Far: w.Node("n2"),
		}}
		test.change(w, &s.belief, owner)
		if got := s.reported(10*time.Second - 1); got != "" {
			t.Errorf("%s: got %q within the grace of a hand-over", test.name, got)
		}
		if got := s.reported(1); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// A belief that an owner bears out costs nothing until a claim changes.
func TestABeliefThatIsBorneOutIsNotJudgedAgain(t *testing.T) {
	s := newBelieving()
	for _, right := range []bool{false, true} {
		if right {
			s.belief.MAC = s.owner.Interface.MAC
		}
		out, in := s.Judge(), s.Case()
		in.Beliefs = []verdict.Belief{s.belief}
		if got := audit.Address(&s.Policy, in, &out).Again; (got == 0) != right {
			t.Errorf("right %t: got it again at %d", right, got)
		}
	}
}

// It ends with the entry, and not with the memory of who left.
func TestAStaleBeliefEndsWithTheEntry(t *testing.T) {
	s := newBelieving()
	s.belief.Inside, s.belief.Left, s.belief.Former = false, s.Now, &verdict.Namespace{Node: s.Node("n1"), Who: verdicttest.Pod("b").Who()}
	if got := s.reported(time.Second); got != "3 c 1" {
		t.Fatalf("got %q, want it reported", got)
	}
	s.belief.Left, s.belief.Former = 0, nil
	if got := s.look(); len(got) != 1 || got[0].Beliefs[0].Former.Who.Name() != "b" || !slices.Equal(audit.Nodes(&got[0]), []string{"n1"}) {
		t.Errorf("got %+v, want it with b, on n1", got)
	}
	s.belief.MAC = s.owner.Interface.MAC
	if got := s.look(); len(got) > 0 {
		t.Errorf("got %+v after the entry has changed, want nothing", got)
	}
}
