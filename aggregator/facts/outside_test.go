package facts

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Node n1 has 10.0.0.1 and the MAC of a frame about 10.0.0.7 that enters it.
func TestFramesFromOutsideWithAMACOfTheNode(t *testing.T) {
	const addr, own = "10.0.0.7", "10.0.0.1"
	mac := []byte{2, 2, 0, 0, 0, 1}
	have := func(addr string, gone bool) *pb.ReportRequest {
		c := assigned(1, addr)
		c.Index, c.Gone = 9, gone
		return &pb.ReportRequest{Claims: []*pb.ClaimRecord{c}}
	}
	frame := func(a *agent) { a.report(used(addr, mac, 1)) }
	again := func(a *agent) { a.report(used(addr, mac, 2)) }
	for name, test := range map[string]struct {
		play func(s *scene, a *agent)
		want bool
	}{
		"nothing has come back": {func(_ *scene, a *agent) { frame(a) }, true},
		"an announcement":       {func(_ *scene, a *agent) { a.report(seen(addr, mac, 1)) }, false},
		"another MAC":           {func(_ *scene, a *agent) { a.report(used(addr, []byte{2, 2, 0, 0, 0, 9}, 1)) }, false},
		"a MAC of virtual routers": {func(_ *scene, a *agent) {
			m := lan(1)
			m.Interfaces[0].Index, m.Interfaces[0].Mac, m.Interfaces[0].Uplink = 10, []byte{0, 0, 0x5e, 0, 1, 5}, false
			a.report(m, used(addr, m.GetInterfaces()[0].GetMac(), 1))
		}, false},
		"the agent does not see all addresses":              {func(_ *scene, a *agent) { a.report(&pb.ReportRequest{Status: &pb.StatusRecord{Blind: true}}); frame(a) }, false},
		"a frame of the node has come back":                 {func(_ *scene, a *agent) { a.report(seen(own, mac, 1)); frame(a) }, false},
		"the node believes its own MAC to have its address": {func(_ *scene, a *agent) { a.report(of(pb.Evidence_BELIEVED, seen(own, mac, 1))); frame(a) }, true},
		"that was long ago": {func(s *scene, a *agent) {
			a.report(seen(own, mac, 1))
			frame(a)
			s.after(s.Policy.StaleAfter + 1)
			again(a)
		}, true},
		"that was long ago, and so was the frame": {func(s *scene, a *agent) {
			a.report(seen(own, mac, 1))
			frame(a)
			s.after(s.Policy.StaleAfter + 1)
		}, false},
		"a frame comes back later": {func(s *scene, a *agent) { frame(a); s.after(time.Minute); a.report(seen(own, mac, 1)) }, false},
		"the node is about to get an address, of which a frame comes back": {func(_ *scene, a *agent) {
			frame(a)
			a.report(used("10.0.0.2", mac, 1), have("10.0.0.2", false))
		}, false},
		"a frame for an address that the node has just lost": {func(s *scene, a *agent) {
			a.report(have(addr, false), have(addr, true))
			s.after(time.Second)
			frame(a)
		}, false},
		"the node lost the address before a hand-over would have ended": {func(s *scene, a *agent) {
			a.report(have(addr, false), have(addr, true))
			s.after(s.Policy.HandoverGrace + time.Second)
			frame(a)
		}, true},
		"such a frame is reported when the end of the address is forgotten": {func(s *scene, a *agent) {
			a.report(have(addr, false), have(addr, true))
			s.after(s.Policy.StaleAfter)
			m := used(addr, mac, 1)
			m.Claims[0].Age = durationpb.New(s.Policy.StaleAfter - time.Second)
			a.report(m)
		}, true},
		"the agent connects again": {func(s *scene, a *agent) {
			frame(a)
			a.leave()
			s.after(time.Second)
			s.joins("n1", "b1", 1, lan(1), have(own, false), used(addr, mac, 1))
		}, true},
		"the snapshot of a node has the frame": {func(s *scene, _ *agent) {
			s.joins("n2", "b2", 1, lan(2), used(addr, []byte{2, 2, 0, 0, 0, 2}, 1))
		}, false},
		"the agent connects after the node was given up": {func(s *scene, a *agent) {
			a.leave()
			s.after(s.Policy.NodeTimeout + time.Second)
			s.timeOut([]*Node{a.n})
			s.joins("n1", "b1", 1, lan(1), have(own, false), used(addr, mac, 1))
		}, false},
	} {
		s := newScene(t)
		policy := *s.Policy
		policy.HandoverGrace = 10 * time.Second
		s.Policy = &policy
		a := s.joins("n1", "b1", 1, lan(1), have(own, false))
		s.after(time.Minute)
		test.play(s, a)
		got := false
		for _, c := range s.Builder().Case(key(addr), false).Claims {
			got = got || c.FromOutside
		}
		if got != test.want {
			t.Errorf("%s: got a frame from outside %t, want %t", name, got, test.want)
		}
	}
}

// While the first snapshot of a node is applied, its addresses may not be known yet.
func TestFramesOfAFirstSnapshotAreNotFromOutside(t *testing.T) {
	s := newScene(t)
	a, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	frames := 0
	messages := once(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}}, lan(1), used("10.0.0.7", []byte{2, 2, 0, 0, 0, 1}, 1))
	if _, err := s.Snapshot(a.p, a.n, &Snapshot{Messages: messages}, func() {
		for _, c := range s.Builder().Case(key("10.0.0.7"), false).Claims {
			if frames++; c.FromOutside {
				t.Error("got a frame from outside, want none")
			}
		}
	}); err != nil || frames != 1 {
		t.Errorf("got %d frames, error %v", frames, err)
	}
}

// Frames from outside are judged when it is known that they are, and again when they may not be.
func TestFramesFromOutsideAreJudged(t *testing.T) {
	mac := []byte{2, 2, 0, 0, 0, 1}
	s := newScene(t)
	own := assigned(1, "10.0.0.1")
	own.Index = 9
	a := s.joins("n1", "b1", 1, lan(1), &pb.ReportRequest{Claims: []*pb.ClaimRecord{own}})
	s.after(time.Minute)
	a.report(seen("10.0.0.1", mac, 1), used("10.0.0.7", mac, 1))
	settle := func() {
		s.judgeAll()
		s.Settle(key("10.0.0.7"), true)
		s.Settle(key("10.0.0.1"), true)
	}
	settle()
	a.report(used("10.0.0.7", mac, 2))
	s.wantJudged("it may be a frame of the node")
	s.after(s.Policy.StaleAfter)
	a.report(used("10.0.0.7", mac, 3))
	s.wantJudged("the LAN might still return it")
	s.after(1)
	a.report(used("10.0.0.7", mac, 4))
	s.wantJudged("it has come from outside", "10.0.0.7")
	settle()
	s.after(time.Second)
	a.report(seen("10.0.0.1", mac, 2))
	s.wantJudged("the LAN returns frames", "10.0.0.1", "10.0.0.7")
	settle()
	s.after(time.Second)
	a.report(seen("10.0.0.1", mac, 3))
	s.wantJudged("it still does")
	if o := s.owners("10.0.0.7"); len(o) != 1 || o[0].Namespace == nil {
		t.Errorf("got owners %+v, want the node", o)
	}
}
