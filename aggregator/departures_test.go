package aggregator

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// Agents still have frames of owners that gave the address up before the aggregator was restarted. They show no second
// owner, unless they are later, or come from a sender whose kernel never had the address.
func TestFramesOfFormerOwnersShowNoConflictAfterARestart(t *testing.T) {
	pod := func(n int) *pb.ReportRequest { return macvlan(2, "pod", addr, []byte{2, 3, 0, 0, 0, byte(n)}) }
	podEnds := &pb.ReportRequest{
		Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Gone: true}}, Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}},
	}
	none := &pb.ReportRequest{}
	for _, test := range []struct {
		name string
		// first has the address on n2 with a MAC, and left is how it gives the address up. then has it on n1.
		first, left, then *pb.ReportRequest
		mac               []byte
		// The former owner goes on to claim the address (late), or leaves while the aggregator does not run (meanwhile).
		late, meanwhile, want bool
	}{
		{"a virtual address is handed over", ownAddress(addr), gone(assigned(1, addr)), ownAddress(addr), nodeMAC(2), false, false, false},
		{"the address of a pod is used again", pod(2), podEnds, pod(1), []byte{2, 3, 0, 0, 0, 2}, false, false, false},
		{"it is handed over meanwhile", ownAddress(addr), none, ownAddress(addr), nodeMAC(2), false, true, false},
		{"the former owner goes on", ownAddress(addr), gone(assigned(1, addr)), ownAddress(addr), nodeMAC(2), true, false, true},
		{"a program announces it", none, none, ownAddress(addr), nodeMAC(2), false, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{DataDir: t.TempDir(), StaleAfter: time.Minute, Settle: time.Millisecond}
			l := newLab(t, cfg)
			join := func(node string, n int, more *pb.ReportRequest) *agent {
				return l.dial().send(snapshot(hello(node, 1), uplink(nodeMAC(n)), proto.CloneOf(more))).sync()
			}
			frame := func() *pb.ClaimRecord { return entered(pb.Evidence_ANNOUNCED, addr, test.mac) }
			n2, n1 := join("n2", 2, test.first), join("n1", 1, none)
			n3 := join("n3", 3, records.Claims(frame(), entered(pb.Evidence_USED, "192.0.2.1", nodeMAC(1)), entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))))
			seen := time.Now()
			time.Sleep(300 * time.Millisecond)
			n2.send(proto.CloneOf(test.left)).sync()
			if time.Sleep(300 * time.Millisecond); test.late {
				seen = time.Now()
				n3.send(seenAgain(frame())).sync()
			}
			if !test.meanwhile {
				n1.send(proto.CloneOf(test.then)).sync()
			}
			conflicts := func() []*pb.Conflict { return l.list(&pb.ListConflictsRequest{State: pb.Conflict_SUSPECTED}) }
			check := func(when string) {
				t.Helper()
				if test.want {
					wait.Until(t, "the conflict "+when, func() bool { return len(conflicts()) == 1 })
					return
				}
				for range 50 {
					if got := conflicts(); len(got) > 0 {
						t.Fatalf("%s: got %s, want no conflict", when, got[0].GetSummary())
					}
					time.Sleep(10 * time.Millisecond)
				}
				l.await("the new owner", &pb.ListEventsRequest{Kind: pb.Event_OWNER, Address: addr}, func(e *pb.Event) bool {
					return e.GetOwner().GetNode() == "n1" && strings.HasSuffix(e.GetOwner().GetMac(), ":01")
				})
			}
			if !test.meanwhile {
				check("before")
			}
			l.settled()
			l.stop()

			l = newLab(t, cfg)
			<-l.core.recall.Known()
			join("n1", 1, test.then)
			old := frame()
			old.Age = durationpb.New(time.Since(seen))
			join("n3", 3, records.Claims(old, entered(pb.Evidence_USED, "192.0.2.1", nodeMAC(1)), entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))))
			join("n2", 2, none)
			check("after")
			l.core.facts.RLock()
			defer l.core.facts.RUnlock()
			if got := l.core.facts.WiredOrFailed(index.AddressOf(netip.MustParseAddr(addr))); got != test.want {
				t.Errorf("after: got the frame kept %t, want %t", got, test.want)
			}
		})
	}
}
