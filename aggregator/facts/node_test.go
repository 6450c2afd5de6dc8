package facts

import (
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestAMachineThatIsRebootedIsAnotherNode(t *testing.T) {
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
	// The stream of before may end later.
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
	s.told.heard = nil
	other, _ := s.hello(&pb.Hello{Node: "n9", BootId: "boot-id-of-c", Netns: "1", Epoch: 1}, "")
	s.wantNodes("one is renamed", "n1@boot-id-.1 connected covers claims=0", "n9 connected covers claims=0", "n1 connected unheard claims=0")
	s.wantHeard("one is renamed", "changed n9", "names n9", "ranges n1@boot-id-")
	if got := s.Called("n1"); len(got) != 2 || len(s.Called("n9")) != 1 || s.Called("n9")[0] != other.n {
		t.Errorf("got %d nodes that call themselves n1", len(got))
	}
	third.leave()
	s.after(time.Minute)
	s.Ring()
	s.wantNodes("the first one is given up", "n1 connected covers claims=0", "n9 connected covers claims=0", "n1@boot-id- unheard timed-out claims=0")
}

func TestLinksOfANodeThatIsGivenUpAreApart(t *testing.T) {
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1")), s.joins("n2", "b2", 1, lan(2), onLAN(3, "10.0.0.3"))
	b.tell(seen("10.0.0.1", podMAC(2), 1))
	s.wantDomains("both are there", "10.0.0.3", "n2 n1/eth0 -")
	a.leave()
	s.after(time.Minute)
	s.Ring()
	s.wantDomains("one is given up", "10.0.0.3", "n2 - -")
	s.check(t, "one is given up")
}

// Two agents that say that they are in one place are two nodes; each is told when the other one comes
// and goes.
func TestNodesInOnePlaceAreToldOfEachOther(t *testing.T) {
	s := newScene(t)
	join := func(name, vouched string) *agent {
		a, err := s.hello(&pb.Hello{Node: name, BootId: "b1", Netns: "1", Epoch: 1}, vouched)
		if err != nil {
			t.Fatal(err)
		}
		a.snapshot()
		return a
	}
	join("n1", "x")
	s.told.heard = nil
	b := join("n2", "y")
	if len(s.At(NodeID{Boot: "b1", Netns: "1"})) != 2 {
		t.Errorf("got %d nodes in one place, want 2", len(s.At(NodeID{Boot: "b1", Netns: "1"})))
	}
	s.wantHeard("another one comes", "changed n1", "changed n2", "lack n2#1", "names n2", "ranges ")
	b.leave()
	s.wantHeard("it goes", "changed n1", "changed n2", "names n2")
}
