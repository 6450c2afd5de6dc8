package facts

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// A node that timed out is listed for a day after its last connection, even if a stream without a
// snapshot was open when the day was over.
func TestANodeIsForgottenADayAfterItsLastConnection(t *testing.T) {
	s := newScene(t)
	a, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	a.leave()
	if a.n.Charged() != nodeCost {
		t.Errorf("got %d bytes for a node that may reconnect, want %d", a.n.Charged(), nodeCost)
	}
	s.after(time.Minute)
	s.Ring()
	s.wantNodes("it times out", "n1 unheard timed-out claims=0")
	if a, err = s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 2}, ""); err != nil {
		t.Fatal(err)
	}
	s.after(ForgetNodeAfter)
	if at := s.Ring(); at != 0 {
		t.Errorf("got due in %s, want nothing while it is connected", at.Sub(s.now))
	}
	a.leave()
	if at := s.Ring(); at != s.now.Add(ForgetNodeAfter) {
		t.Errorf("got due in %s, want in a day", at.Sub(s.now))
	}
	s.wantNodes("it disconnects", "n1 unheard timed-out claims=0")
	s.after(ForgetNodeAfter)
	s.Ring()
	s.wantNodes("a day later")
}

// Only disconnected nodes are given up. A stream that has not sent a snapshot keeps a node from
// being given up for a reboot, but not from timing out.
func TestWhichNodesAreGivenUp(t *testing.T) {
	for _, rebooted := range []bool{true, false} {
		s := newScene(t)
		first := s.joins("over", "b0", 1, pod(2, "10.0.0.10"))
		first.leave()
		s.after(time.Minute)
		s.Ring()
		agents := []*agent{
			first, s.joins("connected", "b1", 1, pod(2, "10.0.0.11")), s.joins("disconnected", "b2", 1, pod(2, "10.0.0.12")), s.joins("connecting", "b3", 1, pod(2, "10.0.0.13")),
		}
		agents[2].leave()
		agents[3].leave()
		if _, err := s.hello(&pb.Hello{Node: "connecting", BootId: "b3", Netns: "1", Epoch: 1}, ""); err != nil {
			t.Fatal(err)
		}
		var nodes []*Node
		for _, a := range agents {
			nodes = append(nodes, a.n)
		}
		s.judgeAll()
		b := newBatch()
		var got []string
		for _, n := range s.markOver(b, nodes, rebooted) {
			got = append(got, n.Name)
			if !n.Rec.TimedOut || n.Rec.Rebooted != rebooted {
				t.Errorf("%s: got timed out %t, rebooted %t", n.Name, n.Rec.TimedOut, n.Rec.Rebooted)
			}
		}
		want := []string{"disconnected", "connecting"}
		if rebooted {
			want = want[:1]
		}
		if !slices.Equal(got, want) {
			t.Errorf("rebooted %t: got %q given up, want %q", rebooted, got, want)
		}
		s.close(b)
		s.wantJudged("they are given up", "10.0.0.11", "10.0.0.12", "10.0.0.13")
	}
}

// The records from before a reboot are kept if the node reconnects before they are removed.
func TestANodeThatIsBackKeepsItsRecords(t *testing.T) {
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1, pod(2, "10.0.0.1")), s.joins("n2", "b2", 1, pod(2, "10.0.0.2"))
	b.leave()
	batch := newBatch()
	s.markOver(batch, []*Node{b.n}, true)
	s.close(batch)
	s.forgetRebooted(batch, []*Node{a.n, b.n})
	s.wantNodes("one reported again", "n1 connected covers claims=1", "n2 unheard timed-out rebooted claims=0")
}

// The listener is told of each message that shows that an agent is alive.
func TestMessagesShowThatAnAgentIsAlive(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	s.notified.answers = 0
	if a.report(assignedMessage(2, "10.0.0.1")); s.notified.answers != 1 {
		t.Errorf("got %d notifications of a change, want one", s.notified.answers)
	}
	if a.snapshot(); s.notified.answers != 2 {
		t.Errorf("got %d notifications after a snapshot, want one more", s.notified.answers)
	}
}

// The addresses of a node are judged again when its agent becomes blind or is no longer blind.
func TestAddressesOfABlindNodeAreJudgedAgain(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	s.judgeAll()
	for _, blind := range []bool{true, false} {
		for _, want := range [][]string{{"10.0.0.1"}, nil} {
			a.report(&pb.ReportRequest{Status: &pb.StatusRecord{Blind: blind}})
			s.wantJudged(fmt.Sprintf("blind %t", blind), want...)
		}
	}
}

// A small message is applied in one piece, however many kinds of records it has.
func TestSmallMessagesAreAppliedInOnePiece(t *testing.T) {
	links := func(count int) (all []*pb.LinkRecord) {
		for i := range count {
			all = append(all, &pb.LinkRecord{Name: fmt.Sprint("l", i), Kind: pb.LinkRecord_BRIDGE})
		}
		return all
	}
	frames := func(count int) []*pb.ClaimRecord { return flood(0, count).GetClaims() }
	pools := []*pb.PoolRecord{hostLocal("p", "", "")}
	for _, test := range []struct {
		name   string
		m      *pb.ReportRequest
		pieces int
	}{
		{"nothing", &pb.ReportRequest{}, 1},
		{"a small one", &pb.ReportRequest{Links: links(piece - 101), Claims: frames(100), Pools: pools}, 1},
		{"a large one", &pb.ReportRequest{Links: links(piece - 100), Claims: frames(100), Pools: pools}, 4},
		{"a very large one", &pb.ReportRequest{Links: links(2*piece + 1), Pools: pools}, 5},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1))
		pieces := -1 // the first piece notes the time of the message
		s.Changed = func(*Changes) {}
		clock := s.Clock
		s.Clock = func() verdict.Stamp {
			pieces++
			return clock()
		}
		test.m.Links = slices.DeleteFunc(test.m.Links, func(l *pb.LinkRecord) bool { return l.Name == "" })
		for _, c := range test.m.Claims {
			c.Namespace = 99 // an unknown one: claims of links would read the clock, too
		}
		if a.report(test.m); pieces != test.pieces {
			t.Errorf("%s: got %d pieces, want %d", test.name, pieces, test.pieces)
		}
	}
}

// An address that is touched again before its judgement waits for the end of that change, and is
// judged once.
func TestAnAddressWaitsForTheChangeThatTouchesIt(t *testing.T) {
	none := func(index.Address) ([]verdict.Owner, bool) { return nil, false }
	addr := key("10.0.0.1")
	for _, how := range []urgency{soon, later} {
		q, closed, open := newQueue(), newBatch(), newBatch()
		q.touch(addr, closed, none)
		q.touch(addr, closed, none)
		q.release(addr, how)
		q.touch(addr, open, none)
		for range 2 {
			if item := q.Next(); item != nil {
				t.Fatalf("got %s judged during a change", item.Address.Addr())
			}
		}
		q.release(addr, how)
		item := q.Next()
		if item == nil || item.Address != addr || q.Next() != nil {
			t.Fatalf("got %v, want the address once", item)
		}
		closed.less()
		open.less()
		select {
		case <-closed.Done():
			t.Error("got a change done that is not judged")
		default:
		}
		item.Finish()
		<-closed.Done()
		<-open.Done()
	}
}

// A link that ended and another one with its index are not mistaken for each other.
func TestALinkInThePlaceOfAnotherOne(t *testing.T) {
	home := func(link string) []*pb.ReportRequest {
		l, p := lan(1), onLAN(2, "10.0.0.1")
		l.Links = nil
		l.Interfaces[0].Link, p.Interfaces[0].Link = link, link
		return []*pb.ReportRequest{l, p}
	}
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1, home("eth0")...), s.joins("n2", "b2", 1, lan(2))
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	s.wantDomains("before", "10.0.0.1", "n1 n1/eth0 -", "n2 n1/eth0 -")
	a.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Gone: true}, {Namespace: 1, Index: 9, Gone: true}}})
	a.report(home("eth7")...)
	s.after(time.Second)
	b.report(seen("10.0.0.1", records.MAC(2), 2))
	s.wantDomains("another link", "10.0.0.1", "n1 n1/eth7 -", "n2 n1/eth7 -")
	s.check(t, "another link")
}
