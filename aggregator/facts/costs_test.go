package facts

import (
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// secondInterface returns a report of a second interface of a pod, with the MAC of another one.
func secondInterface(record, mac uint32, addr string) *pb.ReportRequest {
	m := assignedMessage(record, addr)
	m.Interfaces = []*pb.InterfaceRecord{{Namespace: record, Index: 3, Name: "net1", Mac: records.MAC(mac), Attachment: pb.InterfaceRecord_PEER}}
	m.Claims[0].Index = 3
	return m
}

// An address is disputed if several hardware addresses or several namespaces claim it. The claim
// that makes it disputed has a higher charge.
func TestWhichAddressesAreDisputed(t *testing.T) {
	const addr = "10.0.0.9"
	clone := pod(2, "10.0.0.77") // on another node
	clone.Claims = append(clone.Claims, assigned(2, addr))
	for _, test := range []struct {
		name        string
		first, last *pb.ReportRequest
		other       bool // whether the last one is on another node
		want        bool
	}{
		{"a kernel", nil, assignedMessage(2, addr), false, false},
		{"a frame", nil, seen(addr, records.MAC(9), 1), false, false},
		{"a kernel and its frame", assignedMessage(2, addr), seen(addr, records.MAC(2), 1), false, false},
		{"a kernel and a frame of another sender", assignedMessage(2, addr), seen(addr, records.MAC(3), 1), false, true},
		{"frames of two senders", seen(addr, records.MAC(2), 1), seen(addr, records.MAC(3), 1), false, true},
		{"two kernels", assignedMessage(2, addr), assignedMessage(3, addr), false, true},
		{"two kernels with one MAC", assignedMessage(2, addr), secondInterface(3, 2, addr), false, true},
		{"two interfaces of one namespace with one MAC", assignedMessage(2, addr), secondInterface(2, 2, addr), false, false},
		{"two interfaces of one namespace with different MACs", assignedMessage(2, addr), secondInterface(2, 7, addr), false, true},
		{"kernels of two nodes with one MAC", assignedMessage(2, addr), clone, true, true},
		{"a frame on another node", assignedMessage(2, addr), seen(addr, records.MAC(2), 1), true, false},
		{"a frame of another sender on another node", assignedMessage(2, addr), seen(addr, records.MAC(3), 1), true, true},
	} {
		s := newScene(t)
		a, b := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3")), s.joins("n2", "b2", 1, lan(2))
		if test.first != nil {
			a.report(test.first)
		}
		if s.rivals(key(addr)) {
			t.Errorf("%s: got it disputed after the first claim", test.name)
		}
		by := a
		if test.other {
			by = b
		}
		claim := test.last.Claims[len(test.last.Claims)-1]
		test.last.Claims = test.last.Claims[:len(test.last.Claims)-1]
		by.report(test.last)
		before := by.n.Charged()
		by.report(&pb.ReportRequest{Claims: []*pb.ClaimRecord{claim}})
		if got := s.rivals(key(addr)); got != test.want {
			t.Errorf("%s: got disputed %t, want %t", test.name, got, test.want)
		}
		if got := by.n.Charged()-before >= rivalCost; got != test.want {
			t.Errorf("%s: got charge for a dispute %t, want %t", test.name, got, test.want)
		}
	}
}

// A link that only a frame names is included in the charge of the frame.
func TestALinkThatAFrameMovesToIsCharged(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), seen("10.0.0.9", records.MAC(9), 1))
	before := a.n.Charged()
	count := uint32(1)
	want := func(why, link string, want int) {
		t.Helper()
		count++
		m := seen("10.0.0.9", records.MAC(9), count)
		m.Claims[0].Link = link
		a.report(m)
		if got := int(a.n.Charged() - before); got != want {
			t.Errorf("%s: got %d bytes more, want %d", why, got, want)
		}
		s.checkBudget(why)
	}
	want("the same link", "eth0", 0)
	want("no link is named", "", 0)
	want("another link that is known", "veth2", 0)
	want("an unknown one", "new", linkCost+textCost("new"))
	want("the same again", "new", linkCost+textCost("new"))
	kernel := assignedMessage(2, "10.0.0.2")
	kernel.Claims[0].Link, kernel.Claims[0].Count = "another", 2
	a.report(kernel)
	want("a kernel's", "new", linkCost+textCost("new"))
}
