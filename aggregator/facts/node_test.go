package facts

import (
	"fmt"
	"slices"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

func TestRebootedMachineIsAnotherNode(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(s *scene, old *agent)
		mac    byte
		node   string
		want   []string
	}{
		{"with the MAC of its uplink", nil, 1, "n1", []string{"n1@b1 unheard timed-out rebooted claims=0", "n1 connected covers claims=0"}},
		{"with another MAC", nil, 2, "n1", []string{"n1@b1 unheard claims=1", "n1 connected covers claims=0"}},
		{"by another name", nil, 1, "n2", []string{"n1 unheard claims=1", "n2 connected covers claims=0"}},
		{"and both were there at once", func(_ *scene, old *agent) { old.n.Shared = true }, 1, "n1", []string{"n1@b1 unheard claims=1", "n1 connected covers claims=0"}},
		{"long after", func(s *scene, _ *agent) { s.after(time.Minute); s.Ring() }, 1, "n1", []string{"n1@b1 unheard timed-out claims=0", "n1 connected covers claims=0"}},
	} {
		s := newScene(t)
		old := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1"))
		old.leave()
		if test.change != nil {
			test.change(s, old)
		}
		s.joins(test.node, "b2", 1, lan(test.mac))
		s.wantNodes(test.name, test.want...)
	}
	// The replaced stream may end later.
	s := newScene(t)
	old := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1"))
	s.joins("n1", "b2", 1, lan(1))
	s.wantNodes("both streams are there", "n1 connected covers claims=1", "n1@b2 connected covers claims=0")
	old.leave()
	s.wantNodes("the old stream ends", "n1@b1 unheard timed-out rebooted claims=0", "n1 connected covers claims=0")
}

func TestNodesOfOneNameHaveLongerOnes(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "boot-id-of-b", 1)
	s.joins("n1", "boot-id-of-c", 1)
	s.wantNodes("two", "n1 connected covers claims=0", "n1@boot-id- connected covers claims=0")
	third, _ := s.hello(&pb.Hello{Node: "n1", BootId: "boot-id-of-a", Netns: "7"}, "")
	s.wantNodes("three", "n1@boot-id-.1 connected covers claims=0", "n1@boot-id- connected covers claims=0", "n1 connected unheard claims=0")
	s.notified.heard = nil
	other, _ := s.hello(&pb.Hello{Node: "n9", BootId: "boot-id-of-c", Netns: "1", Epoch: 1}, "")
	s.wantNodes("one is renamed", "n1@boot-id-.1 connected covers claims=0", "n9 connected covers claims=0", "n1 connected unheard claims=0")
	s.wantHeard("one is renamed", "changed n9", "names n9", "ranges n9")
	if got := s.Called("n1"); len(got) != 2 || len(s.Called("n9")) != 1 || s.Called("n9")[0] != other.n {
		t.Errorf("got %d nodes named n1", len(got))
	}
	third.leave()
	s.after(time.Minute)
	s.Ring()
	s.wantNodes("the first one times out", "n1 connected covers claims=0", "n9 connected covers claims=0", "n1@boot-id- unheard timed-out claims=0")
}

func TestLinksOfANodeThatIsGivenUpAreApart(t *testing.T) {
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1")), s.joins("n2", "b2", 1, lan(2), onLAN(3, "10.0.0.3"))
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	s.wantDomains("both are there", "10.0.0.3", "n2 n1/eth0 -")
	a.leave()
	s.after(time.Minute)
	s.Ring()
	s.wantDomains("one times out", "10.0.0.3", "n2 - -")
	s.check(t, "one times out")
	s.joins("n1", "b1", 2, lan(1), onLAN(2, "10.0.0.1"))
	b.report(seen("10.0.0.1", records.MAC(2), 2))
	s.wantDomains("it is there again", "10.0.0.1", "n1 n1/eth0 -", "n2 n1/eth0 -")
}

// joinsPlace connects an agent with a credential. All of these agents report the same boot ID and
// network namespace.
func (s *scene) joinsPlace(name, vouched string) *agent {
	s.Helper()
	a, err := s.hello(&pb.Hello{Node: name, BootId: "b1", Netns: "1", Epoch: 1}, vouched)
	if err != nil {
		s.Fatal(err)
	}
	a.snapshot()
	return a
}

// Two agents that report the same boot ID and network namespace are two nodes. Each is published
// again when the other one connects or disconnects.
func TestNodesInOnePlaceArePublishedTogether(t *testing.T) {
	s := newScene(t)
	s.joinsPlace("n1", "x")
	s.notified.heard = nil
	b := s.joinsPlace("n2", "y")
	if len(s.At(NodeID{Boot: "b1", Netns: "1"})) != 2 {
		t.Errorf("got %d nodes in one place, want 2", len(s.At(NodeID{Boot: "b1", Netns: "1"})))
	}
	s.wantHeard("another one comes", "changed n1", "changed n2", "lack n2#1", "names n2", "ranges n2")
	b.leave()
	s.wantHeard("it goes", "changed n1", "changed n2", "coverage", "names n2")
}

// A forgotten node leaves nothing behind, and its number is reused.
func TestANodeThatIsForgottenMakesRoom(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"), &pb.ReportRequest{
		Pools: []*pb.PoolRecord{hostLocal("p", "10.0.0.1", "10.0.0.9")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.1", "c")},
	})
	b := s.joins("n2", "b2", 1, pod(2, "10.0.0.2"))
	a.leave()
	s.after(time.Minute)
	s.notified.heard = nil
	s.Ring()
	s.wantHeard("it times out", "changed n1", "former n1#b1/4002", "lack n1#2", "pool p", "pool-ended p of n1", "ranges n1")
	if s.Allocations() != 0 || a.n.Given() != 0 || len(a.n.Pools) != 0 || a.n.Charged() != 0 {
		t.Errorf("got %d allocations, %d pools and %d bytes of a node that timed out", s.Allocations(), len(a.n.Pools), a.n.Charged())
	}
	s.after(ForgetNodeAfter)
	s.Ring()
	s.checkBudget("it is forgotten")
	if len(s.shown["n1"])+len(s.called["n1"])+len(s.places[a.n.ID.Place()]) != 0 || s.AddressesOn("n1") != nil {
		t.Error("got a forgotten node")
	}
	c := s.joins("n3", "b3", 1, pod(2, "10.0.0.3"))
	s.wantNodes("another node comes", "n3 connected covers claims=1", "n2 connected covers claims=1")
	if len(s.nodes) != 3 {
		t.Errorf("got room for %d nodes, want the place used again", len(s.nodes)-1)
	}
	for addr, n := range map[string]*Node{"10.0.0.2": b.n, "10.0.0.3": c.n} {
		if got := s.NodesOf(key(addr)); len(got) != 1 || got[0] != n {
			t.Errorf("%s: got %d nodes", addr, len(got))
		}
	}
	s.check(t, "another node comes")
	for n := range s.Nodes {
		if n == b.n {
			t.Error("got too many nodes")
		}
		break
	}
}

func TestPublishedNames(t *testing.T) {
	s := newScene(t)
	connect := func(node, boot string) *agent {
		a, err := s.hello(&pb.Hello{Node: node, BootId: boot, Netns: "1", Epoch: 1}, "")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	connect("n1", "b1")
	s.wantHeard("a node connects", "names n1", "ranges n1")
	one := connect("n1", "b1")
	s.wantHeard("it connects once more")
	two := connect("n1", "b2")
	s.wantHeard("another one with its name connects", "names n1@b2", "ranges n1@b2")
	one.snapshot()
	two.snapshot()
	s.wantNodes("both report", "n1 connected covers claims=0", "n1@b2 connected covers claims=0")
}

// The name of a removed node goes to a connected node only.
func TestTheNameOfARemovedNodeGoesToAConnectedNode(t *testing.T) {
	for _, test := range []struct {
		name  string
		leave []int
		want  []string
	}{
		{"the first one leaves", []int{0}, []string{"n1@b1 unheard timed-out claims=0", "n1 connected covers claims=0"}},
		{"the second one leaves", []int{1}, []string{"n1 connected covers claims=0", "n1@b2 unheard timed-out claims=0"}},
		{"both leave", []int{0, 1}, []string{"n1 unheard timed-out claims=0", "n1@b2 unheard timed-out claims=0"}},
	} {
		s := newScene(t)
		agents := []*agent{s.joins("n1", "b1", 1), s.joins("n1", "b2", 1)}
		for _, i := range test.leave {
			agents[i].leave()
		}
		s.after(time.Minute)
		s.notified.heard = nil
		s.Ring()
		s.wantNodes(test.name, test.want...)
		heard := map[int][]string{0: {"changed n1", "changed n1@b1", "names n1", "names n1@b1", "ranges n1", "ranges n1@b1"}, 1: {"changed n1@b2"}}[test.leave[0]]
		if len(test.leave) == 2 {
			heard = []string{"changed n1", "changed n1@b2"}
		}
		s.wantHeard(test.name, heard...)
	}
}

// Only the hardware addresses of uplinks identify a machine, except those that several machines
// share by design.
func TestUplinksIdentifyAMachine(t *testing.T) {
	for _, test := range []struct {
		name   string
		mac    []byte
		uplink bool
		want   string
	}{
		{"its MAC", []byte{2, 2, 0, 0, 0, 1}, true, "n1@b1 unheard timed-out rebooted claims=0"},
		{"the MAC of a port", []byte{2, 2, 0, 0, 0, 1}, false, "n1@b1 unheard claims=0"},
		{"no MAC", nil, true, "n1@b1 unheard claims=0"},
		{"the MAC of a router", []byte{0, 0, 0x5e, 0, 1, 7}, true, "n1@b1 unheard claims=0"},
	} {
		s := newScene(t)
		m := lan(1)
		m.Interfaces[0].Mac, m.Interfaces[0].Uplink = test.mac, test.uplink
		s.joins("n1", "b1", 1, m).leave()
		s.joins("n1", "b2", 1, m)
		s.wantNodes(test.name, test.want, "n1 connected covers claims=0")
	}
}

// A domain is named after its first node, also after nodes were renamed.
func TestDomainsFollowTheNamesOfNodes(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	b := s.joins("n2", "b2", 1, lan(2), onLAN(3, "10.0.0.3"))
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	s.wantDomains("before", "10.0.0.3", "n2 n1/eth0 -")
	s.judgeAll()
	if _, err := s.hello(&pb.Hello{Node: "n9", BootId: "b1", Netns: "1", Epoch: 1}, ""); err != nil {
		t.Fatal(err)
	}
	s.wantDomains("the first node is renamed", "10.0.0.3", "n2 n2/eth0 -")
	s.wantJudged("the first node is renamed", "10.0.0.1", "10.0.0.3")
	s.judgeAll()
	if _, err := s.hello(&pb.Hello{Node: "n8", BootId: "b1", Netns: "1", Epoch: 1}, ""); err != nil {
		t.Fatal(err)
	}
	s.wantDomains("the last node is renamed", "10.0.0.3", "n2 n2/eth0 -")
	s.wantJudged("the last node is renamed", "10.0.0.1", "10.0.0.3")
}

// Sightings of a machine's pods by other nodes end when it reboots. Sightings of the machine itself
// do not, and none end while it is only disconnected.
func TestSightingsOfAMachineByOtherNodes(t *testing.T) {
	for _, test := range []struct {
		name      string
		over      func(s *scene)
		pod, host bool
	}{
		{"it is rebooted", func(s *scene) { s.joins("n1", "b9", 1, lan(1)) }, false, true},
		{"it times out", func(s *scene) { s.after(time.Minute); s.Ring() }, true, true},
	} {
		s := newScene(t)
		home := s.joins("n1", "b1", 1, lan(1), onHost("10.0.0.200"), onLAN(2, "10.0.0.1"))
		s.joins("n2", "b2", 1, lan(2)).report(seen("10.0.0.1", records.MAC(2), 1), seen("10.0.0.200", []byte{2, 2, 0, 0, 0, 1}, 1))
		s.judgeAll()
		s.Settle(key("10.0.0.1"), false)
		s.Settle(key("10.0.0.200"), false)
		home.leave()
		s.judgeAll()
		test.over(s)
		if home.n.Claims() != 0 || s.WiredOrFailed(key("10.0.0.1")) != test.pod || s.WiredOrFailed(key("10.0.0.200")) != test.host {
			t.Errorf("%s: got %d claims, a frame of the pod %t, want %t, and of the machine %t, want %t",
				test.name, home.n.Claims(), s.WiredOrFailed(key("10.0.0.1")), test.pod, s.WiredOrFailed(key("10.0.0.200")), test.host)
		}
		s.wantJudged(test.name, "10.0.0.1", "10.0.0.200")
		s.check(t, test.name)
	}
}

// The result is cached for a moment.
func TestCoverageIsAskedOnceInAWhile(t *testing.T) {
	s := newScene(t)
	asked := 0
	s.follow(&api{covered: func(func(string) bool) bool { asked++; return true }})
	a := s.joins("n1", "b1", 1)
	covered := func() bool { return s.Builder().Case(key("10.0.0.2"), true).Covered }
	for range 3 {
		if !covered() {
			t.Error("got uncovered nodes")
		}
	}
	s.after(coverFor - 1)
	if covered(); asked != 1 {
		t.Errorf("got %d requests, want one", asked)
	}
	s.after(1)
	if covered(); asked != 2 {
		t.Errorf("got %d requests, want two", asked)
	}
	a.report(&pb.ReportRequest{Status: &pb.StatusRecord{Blind: true}})
	if covered() || asked != 3 {
		t.Errorf("got all nodes covered: %t, %d requests; want a blind node to count at once", covered(), asked)
	}
	a.report(&pb.ReportRequest{Status: &pb.StatusRecord{}})
	b := s.joins("n2", "b2", 1)
	b.leave()
	s.after(coverFor)
	if covered() {
		t.Error("got all nodes covered, but a node is silent")
	}
	s.after(time.Minute)
	s.Ring()
	if !covered() {
		t.Error("got uncovered nodes, but the silent node has timed out")
	}
}

// All addresses of a node are listed, however many there are.
func TestAddressesOnALargeNode(t *testing.T) {
	s := newScene(t)
	const count = claimsAtOnce + 100
	a := s.joins("n1", "b1", 1, many(2, count))
	s.joins("n2", "b2", 1, pod(3, "10.0.0.3"))
	if got := len(s.AddressesOn("n1")); got != count {
		t.Errorf("got %d addresses, want %d", got, count)
	}
	gone := many(2, 10)
	for _, c := range gone.Claims {
		c.Gone = true
	}
	a.report(records.Claims(gone.Claims...))
	if got := len(s.AddressesOn("n1")); got != count-10 {
		t.Errorf("got %d addresses, want %d", got, count-10)
	}
	if got := s.AddressesOn("n9"); len(got) != 0 {
		t.Errorf("got %v on a node that is not there", got)
	}
}

// An answer counts for the current stream of a node and not for one that was replaced.
func TestAgentsThatAnswer(t *testing.T) {
	s := newScene(t)
	old := s.joins("n1", "b1", 1)
	now := s.joins("n1", "b1", 1)
	s.notified.answers = 0
	s.Heard(old.p, old.n, &Skew{Ahead: time.Second})
	s.Heard(old.p, old.n, nil)
	if s.notified.answers != 0 || now.n.Rec.SkewKnown {
		t.Errorf("got %d answers of an old stream", s.notified.answers)
	}
	s.Heard(now.p, now.n, &Skew{Ahead: time.Second})
	s.Heard(now.p, now.n, nil)
	if s.notified.answers != 2 || !now.n.Rec.SkewKnown || now.n.Rec.Skew != time.Second {
		t.Errorf("got %d answers, skew %s", s.notified.answers, now.n.Rec.Skew)
	}
	s.Heard(now.p, now.n, &Skew{Ahead: 2 * time.Second})
	if now.n.Rec.ClockStep != 0 {
		t.Errorf("got a clock that was set by %s, want one that was measured less well", now.n.Rec.ClockStep)
	}
	s.Heard(now.p, now.n, &Skew{Ahead: -time.Hour})
	if r := now.n.Rec; r.ClockStep != -time.Hour-2*time.Second || r.ClockSet != s.now.Add(-time.Hour) {
		t.Errorf("got a clock that was set by %s at %v, want back by an hour and two seconds, now", r.ClockStep, r.ClockSet)
	}
	for _, skew := range []Skew{ // a process was stopped between question and answer
		{-time.Hour - 5*time.Second, 5 * time.Second}, {-time.Hour + 20*time.Second, 30 * time.Second}, {-time.Hour + 6*time.Second, 5500 * time.Millisecond},
	} {
		s.Heard(now.p, now.n, &skew)
		s.Heard(now.p, now.n, &Skew{Ahead: -time.Hour})
		if r := now.n.Rec; r.ClockStep != -time.Hour-2*time.Second || r.Skew != -time.Hour {
			t.Errorf("%v: got a clock that was set by %s and is %s ahead, want no change", skew, r.ClockStep, r.Skew)
		}
	}
	// The clock is set while answers take long: the next one that does not shows it.
	s.Heard(now.p, now.n, &Skew{Ahead: -time.Hour + 5*time.Second, Within: 4500 * time.Millisecond})
	s.Heard(now.p, now.n, &Skew{Ahead: -time.Hour + 5*time.Second})
	if r := now.n.Rec; r.ClockStep != -time.Hour+3*time.Second {
		t.Errorf("got a clock that was set by %s, want that it was set forward by 5 s", r.ClockStep)
	}
	s.Heard(now.p, now.n, &Skew{Ahead: 0, Within: time.Minute})
	if r := now.n.Rec; r.ClockStep != -2*time.Second {
		t.Errorf("got a clock that was set by %s, want it set back again", r.ClockStep)
	}
	s.Heard(now.p, now.n, &Skew{Ahead: 8 * time.Second, Within: 40 * time.Second})
	if r := now.n.Rec; r.Skew != 8*time.Second || r.SkewWithin != 40*time.Second || r.ClockStep != -2*time.Second {
		t.Errorf("got %+v, want what was measured better", r)
	}
}

func TestOtherNodesInOnePlace(t *testing.T) {
	s := newScene(t)
	one, two, three := s.joinsPlace("n1", "x"), s.joinsPlace("n3", "y"), s.joinsPlace("n2", "z")
	s.joins("n4", "b4", 1)
	if got := s.InOnePlace(one.n); !slices.Equal(got, []string{"n2", "n3"}) {
		t.Errorf("got %q, want both others in order", got)
	}
	two.leave()
	if got := s.InOnePlace(one.n); !slices.Equal(got, []string{"n2"}) || s.InOnePlace(two.n) != nil || len(s.InOnePlace(three.n)) != 1 {
		t.Errorf("got %q, want the connected one", got)
	}
}

// The numbers of several forgotten nodes are reused, each by one node.
func TestForgottenNodesMakeRoomForAsMany(t *testing.T) {
	s := newScene(t)
	gone := []*agent{s.joins("n1", "b1", 1, pod(2, "10.0.0.1")), s.joins("n2", "b2", 1, pod(2, "10.0.0.2"))}
	for _, a := range gone {
		a.leave()
	}
	s.after(time.Minute)
	s.Ring()
	s.after(ForgetNodeAfter)
	s.Ring()
	s.wantNodes("both are forgotten")
	for i := range 3 {
		s.joins(fmt.Sprint("m", i), fmt.Sprint("c", i), 1, pod(2, fmt.Sprint("10.1.0.", i)))
	}
	s.wantNodes("three others come", "m0 connected covers claims=1", "m1 connected covers claims=1", "m2 connected covers claims=1")
	s.check(t, "three others come")
}
