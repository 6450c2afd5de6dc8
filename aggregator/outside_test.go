package aggregator

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// The only interface of a container on n1 is a card of the node, on the LAN of eth0: its frames enter n1 and n2. The address is
// that of a container on n2 as well, or not.
func TestACardOfANodeInAContainer(t *testing.T) {
	for _, twice := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, Config{})
			mac := func(n int) []byte { return []byte{2, 3, 0, 0, 0, byte(n)} }
			address := func(n int) string {
				if twice {
					n = 1
				}
				return fmt.Sprintf("192.0.2.%d", 19+n)
			}
			card := func(n int) *pb.ReportRequest {
				m := macvlan(2, fmt.Sprint("c", n), address(n), mac(n))
				m.Interfaces[0].Kind, m.Interfaces[0].HostInterface = "", ""
				return m
			}
			agents := l.onLAN(2, func(n int) *pb.ReportRequest { return ownAddress(fmt.Sprintf("192.0.2.%d", 10+n)) }, card)
			for range 15 {
				for _, a := range agents {
					for n := 1; n <= 2; n++ {
						a.send(records.Claims(entered(pb.Evidence_USED, address(n), mac(n)))).sync()
					}
				}
				for i, a := range agents {
					a.send(records.Claims(entered(pb.Evidence_USED, fmt.Sprintf("192.0.2.%d", 12-i), nodeMAC(2-i)))).sync()
				}
				l.read(agents, time.Second)
			}
			l.wantFindings("frames of cards of the node")
			if !twice {
				if got := l.conflicts(); len(got) > 0 {
					t.Errorf("got %v, want no conflict of a container with itself", got)
				}
				return
			}
			if c := l.conflict(pb.Conflict_CONFIRMED); c.GetRule() != verdict.RuleAssignedTwice || len(c.GetOwners()) != 2 {
				t.Errorf("got %v, want both containers by their kernels", c)
			}
		})
	}
}

// A machine outside has the MAC of node n1, or of a pod on it, and uses an address that n3 has, or nobody.
func TestAMachineOutsideHasTheMACOfANode(t *testing.T) {
	const addr = "192.0.2.77"
	podMAC := []byte{2, 3, 0, 0, 0, 9}
	for _, test := range []struct {
		name     string
		mac      []byte
		held     bool
		returned bool // the LAN returns the frames of n1
		conflict string
		victim   string
	}{
		{"the MAC of the node", nodeMAC(1), false, false, "", "host"},
		{"the MAC of the node, and n3 has the address", nodeMAC(1), true, false, "CONFIRMED assigned-and-wire LINK n3/eth0", "host"},
		{"the MAC of a pod", podMAC, false, false, "", "web"},
		{"the MAC of a pod, and n3 has the address", podMAC, true, false, "CONFIRMED assigned-and-wire LINK n3/eth0", "web"},
		{"a bridge in hairpin mode", nodeMAC(1), false, true, "", ""},
		{"a bridge in hairpin mode, and n3 has the address", nodeMAC(1), true, true, "CONFIRMED assigned-and-wire LINK n3/eth0", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, Config{})
			agents := l.onLAN(3, func(n int) *pb.ReportRequest { return ownAddress(fmt.Sprintf("192.0.2.%d", 10+n)) }, func(n int) *pb.ReportRequest {
				if n != 1 {
					return &pb.ReportRequest{}
				}
				return macvlan(2, "web", "192.0.2.60", podMAC)
			})
			for i, a := range agents {
				for k := range agents {
					if k != i || test.returned {
						a.send(records.Claims(entered(pb.Evidence_USED, fmt.Sprintf("192.0.2.%d", 11+k), nodeMAC(k+1)))).sync()
					}
				}
			}
			if test.held {
				agents[2].send(ownAddress(addr)).sync()
			}
			frames := make([]*pb.ClaimRecord, len(agents))
			for i, a := range agents {
				frames[i] = entered(pb.Evidence_USED, addr, test.mac)
				a.send(records.Claims(frames[i])).sync()
			}
			for range 15 {
				l.read(agents, time.Second)
				for i, a := range agents {
					a.send(seenAgain(frames[i])).sync()
				}
			}
			switch conflicts := l.conflicts(); {
			case test.conflict == "" && len(conflicts) == 0:
			case len(conflicts) != 1 || fmt.Sprintf("%s %s %s %s", conflicts[0].GetState(), conflicts[0].GetRule(), conflicts[0].GetScope().GetKind(), conflicts[0].GetScope().GetName()) != test.conflict:
				t.Errorf("%s: got conflicts %v, want %q", test.name, conflicts, test.conflict)
			}
			for _, o := range l.owners(&pb.ListOwnersRequest{Address: addr}) {
				if o.GetMac() == net.HardwareAddr(test.mac).String() && (o.GetWorkload().GetKind() == pb.Workload_EXTERNAL) != (test.victim != "") {
					t.Errorf("%s: got owner %v, want a machine outside: %t", test.name, o, test.victim != "")
				}
			}
			if test.victim == "" {
				l.wantFindings(test.name)
				return
			}
			f := l.wantFindings(test.name, "mac-cloned ")[0]
			if f.GetSeverity() != pb.Finding_WARNING || len(f.GetOwners()) != 2 || f.GetOwners()[0].GetWorkload().GetKind() != pb.Workload_EXTERNAL || f.GetOwners()[1].GetWorkload().GetName() != test.victim {
				t.Errorf("%s: got %v, want a warning about a machine outside and %s", test.name, f, test.victim)
			}
		})
	}
}
