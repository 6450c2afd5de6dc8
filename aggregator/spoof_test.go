package aggregator

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// spoofed returns a node with a victim (10.244.0.2) and an attacker (10.244.0.3) on one bridge.
func spoofed() *pb.ReportRequest {
	m := snapshot(hello("n1", 1), podVeth(2, "victim", "10.244.0.2"), podVeth(3, "attacker", "10.244.0.3"),
		&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "br0", Kind: pb.LinkRecord_BRIDGE}}})
	for _, i := range m.Interfaces {
		i.Link = "br0"
	}
	return m
}

// byPort returns a frame that entered by the attacker's port.
func byPort(kind pb.Evidence_Kind, addr string, mac, source []byte) *pb.ClaimRecord {
	c := announced(3, addr, mac)
	c.Kind, c.Source, c.Link = kind, source, "br0"
	return c
}

func TestSpoofingFindingBeginsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attacker := records.MAC(3)
		ids := map[string]bool{}
		for range 2 { // the finding has the same ID after a restart of the aggregator
			forged := byPort(pb.Evidence_ANSWERED, "10.244.0.2", attacker, nil)
			l := newLab(t, Config{})
			a := l.dial().send(spoofed()).sync()
			a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{forged}}).sync()
			l.wantNoFinding("the address may be heard of later than the frame")
			time.Sleep(DefaultSettle)
			f := l.finding("n1")
			ids[f.GetId()] = true
			if f.GetKind() != "address-spoofed" || f.GetAddress() != "10.244.0.2" || f.GetSeverity() != pb.Finding_CRITICAL || len(f.GetOwners()) != 2 ||
				f.GetOwners()[0].GetWorkload().GetName() != "attacker" || f.GetOwners()[1].GetWorkload().GetName() != "victim" {
				t.Fatalf("got %v, want the attacker and the victim", f)
			}
			if got := l.metric("ipwitness_findings", "address-spoofed"); got != 1 {
				t.Errorf("got %v in ipwitness_findings, want 1", got)
			}
			// Frames of one sender that differ only in the Ethernet source are two claims.
			// Neither hides the other.
			other := byPort(pb.Evidence_ANSWERED, "10.244.0.2", attacker, []byte{2, 0, 0, 0, 0, 9})
			a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{other}}).sync()
			a.send(gone(forged)).sync()
			if again := l.finding("n1"); again.GetId() != f.GetId() {
				t.Errorf("got %v, want the finding while one of two claims remains", again)
			}
			routed := byPort(pb.Evidence_ANSWERED, "10.244.0.2", attacker, other.Source)
			routed.Routed, routed.Count = true, 2
			a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{routed}}).sync()
			l.wantNoFinding("the node routes to it now")
			a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{other}}).sync()
			time.Sleep(DefaultSettle)
			l.finding("n1")
			a.send(gone(other)).sync()
			l.wantNoFinding("no such frame is left")
		}
		if len(ids) != 1 {
			t.Errorf("got ids %v, want one", ids)
		}
	})
}

func TestOneClonedMACIsOneFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(spoofed()).sync()
		const many = 300
		var claims []*pb.ClaimRecord
		for n := range many {
			claims = append(claims, byPort(pb.Evidence_ANNOUNCED, fmt.Sprintf("10.9.%d.%d", n/250, n%250), records.MAC(2), nil))
		}
		// One frame uses the cloned address as its Ethernet source and claims the sender's own
		// address.
		own := byPort(pb.Evidence_USED, "10.244.0.3", records.MAC(3), records.MAC(2))
		a.send(&pb.ReportRequest{Claims: append(claims, own)}).sync()
		l.wantNoFinding("its kernel may tell of that hardware address later than the frame")
		time.Sleep(DefaultSettle)
		f := l.finding("n1")
		if f.GetKind() != "mac-cloned" || f.GetAddress() != "" || len(f.GetAddresses()) != 16 || len(f.GetOwners()) != 2 ||
			!strings.Contains(strings.Join(f.GetEvidence(), "\n"), "301 frames") {
			t.Fatalf("got %v, want one with 301 frames, a few addresses, and both owners", f)
		}
		if got := l.owners(&pb.ListOwnersRequest{Address: "10.244.0.2"}); len(got) != 1 || len(got[0].GetEvidence()) != 1 {
			t.Errorf("got owners %v, want the victim by its kernel only", got)
		}
		for _, c := range claims {
			a.send(gone(c))
		}
		a.sync()
		if again := l.finding("n1"); again.GetId() != f.GetId() || len(again.GetAddresses()) != 1 {
			t.Errorf("got %v, want the remaining claim", again)
		}
		a.send(gone(own)).sync()
		l.wantNoFinding("no such frame is left")
	})
}

func TestUnparsedFramesAreAProblemOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1))).sync()
		problems := func() []string {
			t.Helper()
			nodes, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return nodes.GetNodes()[0].GetProblems()
		}
		a.send(&pb.ReportRequest{Status: &pb.StatusRecord{Unparsed: &pb.Unparsed{}}}).sync()
		if got := problems(); len(got) != 0 {
			t.Errorf("got %q, want no problem", got)
		}
		a.send(&pb.ReportRequest{Status: &pb.StatusRecord{Unparsed: &pb.Unparsed{Extensions: 7}}}).sync()
		if got := problems(); len(got) != 1 || !strings.Contains(got[0], "7 with too many IPv6 extension headers") {
			t.Errorf("got %q, want one about 7 frames", got)
		}
	})
}
