package aggregator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// nodeMAC returns the MAC of the n-th node's uplink.
func nodeMAC(n int) []byte { return []byte{2, 2, 0, 0, byte(n >> 8), byte(n)} }

// uplink returns a node's eth0, the second interface of its own namespace.
func uplink(mac []byte) *pb.ReportRequest { return records.Uplink(2, mac) }

// macvlan returns a pod with an address on a node's eth0.
func macvlan(record uint32, name, addr string, mac []byte) *pb.ReportRequest {
	return &pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{podNamespace(record, name)},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: record, Index: 2, Name: "net1", Kind: "macvlan", Mac: mac,
			Attachment: pb.InterfaceRecord_LOWER, Link: "eth0", HostInterface: "eth0",
		}},
		Claims: []*pb.ClaimRecord{assigned(record, addr)},
	}
}

// entered returns a frame that entered by a node's eth0.
func entered(kind pb.Evidence_Kind, addr string, mac []byte) *pb.ClaimRecord {
	return &pb.ClaimRecord{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: kind, Namespace: 1, Index: 2, Mac: mac, Link: "eth0",
		FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), Count: 1,
	}
}

// ownAddress returns an address of the node itself, on its eth0.
func ownAddress(addr string) *pb.ReportRequest { return records.Claims(assigned(1, addr)) }

// onLAN connects nodes n1, n2, … whose uplinks have the MACs of nodeMAC.
func (l *lab) onLAN(n int, parts ...func(node int) *pb.ReportRequest) (agents []*agent) {
	l.Helper()
	for i := range n {
		m := []*pb.ReportRequest{uplink(nodeMAC(i + 1))}
		for _, part := range parts {
			m = append(m, part(i+1))
		}
		h := hello(fmt.Sprintf("n%d", i+1), 1)
		agents = append(agents, l.dial().send(snapshot(h, m...)).sync())
	}
	return agents
}

func samePods(node int) *pb.ReportRequest {
	return macvlan(2, fmt.Sprintf("pod%d", node), addr, []byte{2, 3, 0, 0, 0, byte(node)})
}

func TestFrameOfAnotherNodeJoinsTheirLinks(t *testing.T) {
	for name, c := range map[string]struct {
		frame *pb.ClaimRecord
		// more returns additional records of the nodes.
		more func(node int) *pb.ReportRequest
		one  bool
	}{
		"another node's MAC":          {frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)), one: true},
		"a MAC of another node's pod": {frame: entered(pb.Evidence_ANNOUNCED, "192.0.2.7", []byte{2, 3, 0, 0, 0, 2}), one: true},
		"an external device's MAC":    {frame: entered(pb.Evidence_USED, "192.0.2.2", []byte{6, 6, 6, 6, 6, 6})},
		"our own MAC":                 {frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(1))},
		"another sender": {frame: func() *pb.ClaimRecord {
			c := entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))
			c.Source = []byte{6, 6, 6, 6, 6, 6}
			return c
		}()},
		"a MAC that two nodes have": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", []byte{2, 9, 9, 9, 9, 9}),
			more: func(node int) *pb.ReportRequest {
				if node == 1 {
					return &pb.ReportRequest{}
				}
				return macvlan(9, "x", "192.0.2.99", []byte{2, 9, 9, 9, 9, 9})
			},
		},
		"a virtual router's MAC": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", []byte{0, 0, 0x5e, 0, 1, 7}),
			more:  onlyOn(2, macvlan(9, "x", "192.0.2.99", []byte{0, 0, 0x5e, 0, 1, 7})),
		},
		"a MAC that docker made of an address": {
			frame: entered(pb.Evidence_USED, "172.17.0.2", []byte{2, 0x42, 172, 17, 0, 2}),
			more:  onlyOn(2, macvlan(9, "x", "172.17.0.2", []byte{2, 0x42, 172, 17, 0, 2})),
		},
		"the MAC of a pod that is on a wire of its own": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", records.MAC(9)),
			more:  onlyOn(2, podVeth(9, "x", "10.244.0.99")),
		},
		"a MAC of two links of the other node": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)),
			more:  onlyOn(2, vlan10("")),
		},
		"a MAC of two links, of which one has the address": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)),
			more:  onlyOn(2, records.Merge(ownAddress("192.0.2.2"), vlan10(""))),
		},
		"a MAC of two links, of which one has the address, of our subnet": {
			frame: entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)),
			more: func(node int) *pb.ReportRequest {
				if node == 1 {
					return ownAddress("192.0.2.1")
				}
				return onlyOn(2, records.Merge(ownAddress("192.0.2.2"), vlan10("")))(node)
			}, one: true,
		},
		"a MAC of two links, of which one has the address, which it announced": {
			frame: entered(pb.Evidence_ANNOUNCED, "192.0.2.2", nodeMAC(2)),
			more:  onlyOn(2, records.Merge(ownAddress("192.0.2.2"), vlan10(""))), one: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{})
				if c.more == nil {
					c.more = func(int) *pb.ReportRequest { return &pb.ReportRequest{} }
				}
				agents := l.onLAN(3, samePods, c.more)
				if got := l.conflicts(); len(got) != 0 {
					t.Fatalf("got %v, want no conflict before a frame", got)
				}
				agents[0].send(records.Claims(c.frame)).sync()
				got := l.conflicts()
				if !c.one {
					if len(got) != 0 {
						t.Errorf("got %v, want no conflict", got)
					}
					// A frame that only n3 can have sent joins its link with that of n1.
					agents[0].send(records.Claims(entered(pb.Evidence_ANNOUNCED, "192.0.2.3", nodeMAC(3)))).sync()
					if c := l.conflict(pb.Conflict_SUSPECTED); len(c.GetOwners()) != 2 || c.GetOwners()[1].GetNode() != "n3" {
						t.Errorf("got %v, want a conflict of n1 and n3", c)
					}
					return
				}
				if len(got) != 1 || got[0].GetScope().GetName() != "n1/eth0" || len(got[0].GetOwners()) != 2 || got[0].GetRule() != "assigned-twice" {
					t.Errorf("got %v, want a conflict of n1 and n2 on link n1/eth0", got)
				}
			})
		})
	}
}

func onlyOn(node int, part *pb.ReportRequest) func(int) *pb.ReportRequest {
	return func(n int) *pb.ReportRequest {
		if n != node {
			return &pb.ReportRequest{}
		}
		return part
	}
}

// vlan10 returns eth0.10 of node n2, which has the MAC of eth0.
func vlan10(addr string) *pb.ReportRequest {
	m := &pb.ReportRequest{
		Links: []*pb.LinkRecord{{Name: "eth0.10", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: 3, Name: "eth0.10", Kind: "vlan", Mac: nodeMAC(2), Attachment: pb.InterfaceRecord_OWN, Link: "eth0.10",
		}},
	}
	if addr != "" {
		c := assigned(1, addr)
		c.Index = 3
		m.Claims = append(m.Claims, c)
	}
	return m
}

func TestTheFrameMayComeBeforeItsSendersNode(t *testing.T) {
	l := newLab(t, Config{})
	one := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), samePods(1))).sync()
	one.send(records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))).sync()
	l.dial().send(snapshot(hello("n2", 1), uplink(nodeMAC(2)), samePods(2))).sync()
	if c := l.conflict(pb.Conflict_SUSPECTED); len(c.GetOwners()) != 2 {
		t.Errorf("got %v, want two owners", c)
	}
}

// seenAgain returns the claim with one more frame.
func seenAgain(c *pb.ClaimRecord) *pb.ReportRequest {
	c.Count++
	return records.Claims(c)
}

// read answers the aggregator's requests to check claims for the duration d.
func (l *lab) read(agents []*agent, d time.Duration) {
	l.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Second)
		synctest.Wait()
		for _, a := range agents {
			a.sync()
			for len(a.responses) > 0 {
				a.take()
			}
			for len(a.checks) > 0 {
				a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
			}
		}
	}
}

// oneWayOrBoth returns n1 and n2, each with a pod that has the same address, and the frames by
// which each node may see the other.
func (l *lab) oneWayOrBoth() (agents []*agent, ofTwo, ofOne *pb.ClaimRecord) {
	l.Helper()
	agents = l.onLAN(2, samePods)
	return agents, entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)), entered(pb.Evidence_USED, "192.0.2.1", nodeMAC(1))
}

// wantJoined checks the only conflict and the proof that its links are one.
func (l *lab) wantJoined(state pb.Conflict_State, proof pb.LinkProof_Kind) *pb.Conflict {
	l.Helper()
	c := l.conflict(state)
	if c.GetLinkProof() != proof {
		l.Errorf("got link proof %s, want %s: %s", c.GetLinkProof(), proof, c.GetSummary())
	}
	return c
}

// An attacker on the LAN of n1 forges frames with the MAC of n2, which is on another LAN with the
// same addresses.
func TestForgedFramesMakeNoConflictOfTwoLANs(t *testing.T) {
	for name, forge := range map[string]func(l *lab, a *agent, frame *pb.ClaimRecord){
		"one frame": func(_ *lab, a *agent, frame *pb.ClaimRecord) { a.send(records.Claims(frame)).sync() },
		"a burst of frames": func(_ *lab, a *agent, frame *pb.ClaimRecord) {
			for range 200 {
				a.send(seenAgain(frame)).sync()
				time.Sleep(100 * time.Millisecond)
			}
		},
		"a burst of claims to the address of both": func(_ *lab, a *agent, frame *pb.ClaimRecord) {
			frame.Address = netip.MustParseAddr(addr).AsSlice()
			frame.Mac = []byte{2, 3, 0, 0, 0, 2} // the MAC of the other pod
			for range 200 {
				a.send(seenAgain(frame)).sync()
				time.Sleep(100 * time.Millisecond)
			}
		},
		"two bursts a minute apart": func(l *lab, a *agent, frame *pb.ClaimRecord) {
			for range 2 {
				for range 100 {
					a.send(seenAgain(frame)).sync()
				}
				time.Sleep(time.Minute)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{})
				agents, frame, _ := l.oneWayOrBoth()
				forge(l, agents[0], frame)
				c := l.wantJoined(pb.Conflict_SUSPECTED, pb.LinkProof_ONE_WAY)
				if !strings.Contains(c.GetSummary(), "not proven") {
					t.Errorf("got %q, want it to mention frames in one direction", c.GetSummary())
				}
				l.read(agents, 10*time.Minute)
				l.wantJoined(pb.Conflict_SUSPECTED, pb.LinkProof_ONE_WAY)
				l.read(agents, 2*3*DefaultStaleAfter)
				if c := l.conflict(pb.Conflict_RESOLVED); c.GetConfirmedAt() != nil || !strings.Contains(c.GetSummary(), "no recent frame shows that these links are one LAN") {
					t.Errorf("got %v, want it resolved without confirmation, because no frame shows it any longer", c)
				}
				if l.joined() {
					t.Error("got domains or frames, want none left")
				}
			})
		})
	}
}

func TestLinksAreProvenToBeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, show := range map[string]func(agents []*agent, ofTwo, ofOne *pb.ClaimRecord){
			"by frames in both directions": func(agents []*agent, ofTwo, ofOne *pb.ClaimRecord) {
				agents[0].send(records.Claims(ofTwo)).sync()
				agents[1].send(records.Claims(ofOne)).sync()
			},
			"by frames in both directions, of which each is of a pod": func(agents []*agent, ofTwo, ofOne *pb.ClaimRecord) {
				ofOne.Mac, ofTwo.Mac = []byte{2, 3, 0, 0, 0, 1}, []byte{2, 3, 0, 0, 0, 2}
				agents[1].send(records.Claims(ofOne)).sync()
				agents[0].send(records.Claims(ofTwo)).sync()
			},
			"by frames in one direction for long": func(agents []*agent, ofTwo, _ *pb.ClaimRecord) {
				for range 5 {
					agents[0].send(seenAgain(ofTwo)).sync()
					time.Sleep(DefaultStaleAfter / (5 - 1))
				}
			},
		} {
			l := newLab(t, Config{})
			agents, ofTwo, ofOne := l.oneWayOrBoth()
			show(agents, ofTwo, ofOne)
			l.read(agents, 3*time.Second)
			if c := l.wantJoined(pb.Conflict_CONFIRMED, pb.LinkProof_PROVEN); c.GetScope().GetName() != "n1/eth0" {
				t.Errorf("%s: got %v, want a conflict on link n1/eth0", name, c)
			}
			l.stop()
		}
	})
}

// Between nodes that see frames in one direction only, for example because of multicast
// snooping, a proof lasts as long as there are frames.
func TestFramesInOneDirectionKeepLinksOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		agents, frame, _ := l.oneWayOrBoth()
		for i := range 60 { // for two hours
			agents[0].send(seenAgain(frame)).sync()
			l.read(agents, 2*time.Minute)
			if c := l.conflicts()[0]; i > 5 && (c.GetState() != pb.Conflict_CONFIRMED || c.GetEpisode() != 1) {
				t.Fatalf("after %d frames: got %v, want it to stay confirmed", i+1, c)
			}
		}
	})
}

// A repeater between n1 and the LAN sends the frames of n1 with its own MAC. Frames of n2 enter n1 for hours,
// and none of n1's enters n2.
func TestARepeaterIsNoConfirmedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		agents := l.onLAN(2, onlyOn(1, samePods(1)))
		fromLAN, repeated := entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)), entered(pb.Evidence_USED, addr, []byte{2, 9, 0, 0, 0, 1})
		pass := func(times int) {
			for range times {
				agents[0].send(seenAgain(fromLAN)).sync()
				agents[1].send(seenAgain(repeated)).sync()
				l.read(agents, time.Minute)
			}
		}
		pass(60)
		l.wantJoined(pb.Conflict_SUSPECTED, pb.LinkProof_ONE_WAY)

		// A frame with the MAC of n1 shows that there is no repeater: the device is another owner.
		agents[1].send(records.Claims(entered(pb.Evidence_USED, "192.0.2.1", nodeMAC(1)))).sync()
		pass(1)
		l.wantJoined(pb.Conflict_CONFIRMED, pb.LinkProof_PROVEN)
	})
}

// A conflict in the pod network needs no common link. A forged frame that also creates a conflict
// on a link must not weaken it.
func TestAForgedFrameWeakensNoConflictOfTheNetworkOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		agents := l.onLAN(2)
		agents[0].send(records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))).sync()
		for i, a := range agents {
			m := samePods(i + 1)
			m.Interfaces[0].Name, m.Claims[0].Network = "eth0", "lan"
			a.send(m).sync()
		}
		l.read(agents, 3*time.Second)
		l.wantJoined(pb.Conflict_CONFIRMED, pb.LinkProof_UNSPECIFIED)
	})
}

func TestFrameThroughAPodsPortJoinsNoLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		// The ports of the pods are on the same link as the uplink, like ports of one bridge.
		agents := l.onLAN(2, samePods, func(node int) *pb.ReportRequest {
			m := podVeth(5, "attacker", fmt.Sprintf("192.0.2.10%d", node))
			for _, i := range m.Interfaces {
				i.Link = "eth0"
			}
			m.Links = nil
			return m
		})
		forged := []*pb.ClaimRecord{announced(5, "192.0.2.2", nodeMAC(2)), announced(5, "192.0.2.1", nodeMAC(1))}
		for i, a := range agents {
			forged[i].Link = "eth0"
			a.send(records.Claims(forged[i])).sync()
		}
		for _, c := range l.conflicts() {
			if c.GetAddress() == addr {
				t.Errorf("got %v, want none: the frames came from pods", c)
			}
		}
		agents[0].send(records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))).sync()
		if !slices.ContainsFunc(l.conflicts(), func(c *pb.Conflict) bool { return c.GetAddress() == addr }) {
			t.Error("got no conflict after a frame that entered by the uplink, want one")
		}
	})
}

func TestLinkProofExpiresDuringAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{StaleAfter: time.Minute})
		agents, ofTwo, ofOne := l.oneWayOrBoth()
		show := func() {
			agents[0].send(seenAgain(ofTwo)).sync()
			agents[1].send(seenAgain(ofOne)).sync()
		}
		show()
		l.read(agents, 3*time.Second)
		first := l.wantJoined(pb.Conflict_CONFIRMED, pb.LinkProof_PROVEN)
		for range 30 { // frames prove it repeatedly
			show()
			l.read(agents, time.Minute)
		}
		if c := l.wantJoined(pb.Conflict_CONFIRMED, pb.LinkProof_PROVEN); c.GetId() != first.GetId() || c.GetEpisode() != 1 {
			t.Errorf("got %v, want the conflict to remain", c)
		}

		// One node stops sending, and frames of the other one are too rare to prove anything.
		l.read(agents, 2*time.Minute)
		agents[0].send(seenAgain(ofTwo)).sync()
		l.read(agents, 2*time.Minute+30*time.Second)
		l.wantJoined(pb.Conflict_SUSPECTED, pb.LinkProof_ONE_WAY)

		l.read(agents, 8*time.Minute) // more than two generations without a frame
		l.conflict(pb.Conflict_RESOLVED)
		if l.joined() {
			t.Error("got domains or frames, want none left")
		}

		show()
		l.read(agents, 3*time.Second)
		if c := l.wantJoined(pb.Conflict_CONFIRMED, pb.LinkProof_PROVEN); c.GetId() != first.GetId() || c.GetEpisode() != 2 {
			t.Errorf("got %v, want the second episode of %s", c, first.GetId())
		}
	})
}

func TestRebootedMachineHasNoOldRecords(t *testing.T) {
	for _, order := range []string{"the old one is silent first", "the new one comes first"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{})
				old := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), podVeth(2, "a", addr))).sync()
				h := hello("n1", 2)
				h.BootId = "another-boot"
				if strings.HasPrefix(order, "the old") {
					old.cancel()
					synctest.Wait()
				}
				old.mute.Store(true) // the agent has died
				time.Sleep(time.Second)
				l.dial().send(snapshot(h, uplink(nodeMAC(1)), podVeth(5, "b", addr))).sync()
				if strings.HasPrefix(order, "the new") {
					if err := old.ended(); !strings.Contains(err.Error(), "has not responded") {
						t.Errorf("got %v, want that the agent is silent", err)
					}
					synctest.Wait()
				}
				got := l.owners(&pb.ListOwnersRequest{})
				if len(got) != 1 || got[0].GetWorkload().GetName() != "b" || got[0].GetNode() != "n1" {
					t.Errorf("got %v, want the pod of the new boot only", got)
				}
			})
		})
	}
}

func TestLagAndSkewAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial()
		a.mute.Store(true)
		a.send(snapshot(hello("n1", 1))).sync()
		node := func() *pb.Node {
			out, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return out.GetNodes()[0]
		}
		if n := node(); n.GetSkew() != nil || n.GetLag() != nil {
			t.Errorf("got %v, want lag and skew unknown", n)
		}
		time.Sleep(5 * time.Second)
		if n := node(); n.GetLag().AsDuration() != 5*time.Second {
			t.Errorf("got lag %v, want the 5s since a ping that was not answered", n.GetLag())
		}
		a.send(&pb.ReportRequest{Pong: &pb.Pong{Id: 1, SentAt: timestamppb.New(time.Now().Add(time.Hour))}}).sync()
		synctest.Wait()
		// The answer took five seconds, so it may be from any time within them.
		if n := node(); n.GetSkew().AsDuration() != time.Hour+2500*time.Millisecond || n.GetLag().AsDuration() != 2500*time.Millisecond {
			t.Errorf("got %v, want the clock an hour and 2.5s ahead", n)
		}
	})
}

// joined reports whether links are joined, or a frame could still join them.
func (l *lab) joined() bool {
	l.core.facts.RLock()
	defer l.core.facts.RUnlock()
	_, links := l.core.facts.SharedMACs()
	return !links.Empty()
}

// Two machines with one MAC and different addresses are on one LAN, which the frames of a third node prove.
func TestOneMACOnTwoNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		cloned := []byte{0x52, 0x54, 0, 0xaa, 0xbb, 0xcc}
		var agents []*agent
		for i, mac := range [][]byte{cloned, cloned, nodeMAC(3)} {
			agents = append(agents, l.dial().send(snapshot(hello(fmt.Sprintf("n%d", i+1), 1), uplink(mac), ownAddress(fmt.Sprintf("192.0.2.%d", 11+i)))).sync())
		}
		time.Sleep(time.Minute)
		l.wantFindings("nothing shows that they are on one LAN")
		for _, a := range agents[:2] {
			a.send(records.Claims(entered(pb.Evidence_ANNOUNCED, "192.0.2.13", nodeMAC(3)))).sync()
		}
		agents[2].send(records.Claims(entered(pb.Evidence_ANNOUNCED, "192.0.2.11", cloned), entered(pb.Evidence_ANNOUNCED, "192.0.2.12", cloned))).sync()
		time.Sleep(2 * time.Second)
		f := l.wantFindings("they are on one LAN", "mac-cloned ")[0]
		if f.GetSeverity() != pb.Finding_CRITICAL || !slices.Equal(f.GetNodes(), []string{"n1", "n2"}) || !strings.Contains(f.GetSummary(), "52:54:00:aa:bb:cc") {
			t.Errorf("got %v, want a critical one about both and their MAC", f)
		}
		for i, node := range []string{"n1", "n2"} {
			if o := l.owners(&pb.ListOwnersRequest{Address: fmt.Sprintf("192.0.2.%d", 11+i)}); len(o) != 1 || o[0].GetNode() != node {
				t.Errorf("got owners %v, want only %s", o, node)
			}
		}
		agents[1].send(uplink(nodeMAC(2))).sync()
		time.Sleep(2 * time.Second)
		l.wantFindings("one of them has another MAC")
	})
}

// An interface may change its MAC to and fro, as that of a bond with fail_over_mac does. The frames
// with each of its MACs are its own, but those of a device that takes its former MAC are not.
func TestAnInterfaceThatChangesItsMAC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		agents := l.onLAN(3, onlyOn(1, ownAddress(addr)))
		agents[0].send(records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)), entered(pb.Evidence_USED, "192.0.2.3", nodeMAC(3)))).sync()
		macs := [][]byte{nodeMAC(1), nodeMAC(9)}
		frame := func(i int) *pb.ClaimRecord {
			c := entered(pb.Evidence_ANNOUNCED, addr, macs[i%2])
			c.Count = uint32(i + 1)
			return c
		}
		for i := range 9 {
			agents[0].send(&pb.ReportRequest{Interfaces: uplink(macs[i%2]).Interfaces}).sync()
			if i > 0 { // the last frame before the change is late
				last := frame(i - 1)
				last.Count++
				last.Age = durationpb.New(10 * time.Millisecond)
				agents[1].send(records.Claims(last)).sync()
			}
			for _, a := range agents[1:] {
				a.send(records.Claims(frame(i))).sync()
			}
			l.read(agents, 3*time.Second)
			if got := l.conflicts(); len(got) != 0 {
				t.Fatalf("after %d changes: got %v, want no conflict", i, got)
			}
		}
		if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 1 || got[0].GetNode() != "n1" {
			t.Errorf("got owners %v, want n1", got)
		}
		other := frame(9)
		for _, a := range agents { // also n1: it is not the sender
			a.send(records.Claims(other)).sync()
		}
		l.conflict(pb.Conflict_SUSPECTED)
		l.read(agents, 2*time.Second)
		other.Count++
		agents[1].send(records.Claims(other)).sync()
		l.read(agents, 2*time.Second)
		if c := l.conflict(pb.Conflict_CONFIRMED); c.GetCause() != verdict.CauseExternalDevice {
			t.Errorf("got cause %s", c.GetCause())
		}
	})
}

// A program on n1 has read the MAC of eth0 before eth0 got another one, and announces an address of n1 with it. The
// announcement of a machine that has this MAC now enters n1, too, and so does that of a node that the card was moved to.
func TestAnnouncementsWithAMACThatTheNodeHadBefore(t *testing.T) {
	for _, test := range []struct {
		name     string
		seenBy   []int
		kind     pb.Evidence_Kind
		node     int // has the MAC now
		held     bool
		want     string
		conflict bool
	}{
		{"of n1", []int{1, 2}, pb.Evidence_ANNOUNCED, 0, true, "stale-belief " + addr, false},
		{"of a machine outside", []int{0, 1, 2}, pb.Evidence_ANNOUNCED, 0, true, "", true},
		{"the answer of a machine outside", []int{1}, pb.Evidence_ANSWERED, 0, true, "", true},
		{"of another node", []int{1}, pb.Evidence_ANNOUNCED, 3, true, "", true},
		{"n1 does not have the address", []int{1, 2}, pb.Evidence_ANNOUNCED, 0, false, "", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, Config{})
			agents := l.onLAN(3, onlyOn(1, ownAddress("192.0.2.1")))
			former := []byte{2, 0, 0, 0, 7, 7}
			for _, mac := range [][]byte{former, nodeMAC(1)} {
				agents[0].send(&pb.ReportRequest{Interfaces: uplink(mac).Interfaces}).send(records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)), entered(pb.Evidence_USED, "192.0.2.3", nodeMAC(3)))).sync()
				for _, a := range agents[1:] {
					a.send(records.Claims(entered(pb.Evidence_USED, "192.0.2.1", mac))).sync()
				}
			}
			time.Sleep(time.Minute)
			if test.held {
				agents[0].send(ownAddress(addr)).sync()
			}
			if test.node != 0 {
				agents[test.node-1].send(&pb.ReportRequest{Interfaces: uplink(former).Interfaces}).sync()
			}
			time.Sleep(time.Second)
			frame := entered(test.kind, addr, former)
			for range 15 {
				for _, i := range test.seenBy {
					agents[i].send(records.Claims(frame)).sync()
				}
				frame.Count++
				l.read(agents, time.Second)
			}
			if got := len(l.conflicts()) > 0; got != test.conflict {
				t.Errorf("%s: got conflicts %v, want some %t", test.name, l.conflicts(), test.conflict)
			}
			if test.want == "" {
				l.wantFindings(test.name)
				return
			}
			if f := l.wantFindings(test.name, test.want)[0]; f.GetSeverity() != pb.Finding_CRITICAL || f.GetOwners()[0].GetNode() != "n1" || !strings.Contains(f.GetSummary(), "02:00:00:00:07:07") {
				t.Errorf("got %v, want n1 and the former MAC", f)
			}
			for _, a := range agents[1:] { // rightly
				a.send(records.Claims(entered(pb.Evidence_ANNOUNCED, addr, nodeMAC(1)))).sync()
			}
			time.Sleep(time.Second)
			l.wantFindings("announced with the MAC of eth0")
		})
	}
}

// Both copies of a virtual machine run, on two nodes. That is not known: while a machine is migrated, there and back, frames
// enter through the taps of both nodes as well, and reports of them may be late.
func TestTwoCopiesOfAVirtualMachineAreOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		mac := []byte{0x52, 0x54, 0, 0x12, 0x34, 0x56}
		agents := l.onLAN(2, func(node int) *pb.ReportRequest { // its tap is a port of a bridge with eth0
			return &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{
				Namespace: 1, Index: 7, Name: "tap0", Kind: "tun", Mac: []byte{0xfe, 0x54, 0, 0, 0, byte(node)}, Attachment: pb.InterfaceRecord_OWN, Link: "eth0",
			}}}
		})
		for i, a := range agents {
			a.send(records.Claims(entered(pb.Evidence_USED, fmt.Sprint("192.0.2.", 2-i), nodeMAC(2-i)))).sync()
		}
		var count uint32
		speaks := func(node int, mac []byte) {
			count++
			frame, elsewhere := entered(pb.Evidence_ANNOUNCED, addr, mac), entered(pb.Evidence_ANNOUNCED, addr, mac)
			frame.Index, frame.Count, elsewhere.Count = 7, count, count
			agents[node-1].send(records.Claims(frame)).sync()
			agents[2-node].send(records.Claims(elsewhere)).sync()
			time.Sleep(10 * time.Millisecond)
		}
		for _, node := range []int{1, 2, 1, 2, 1, 2} {
			speaks(node, mac)
			time.Sleep(700 * time.Millisecond)
		}
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v of two copies with one MAC, want no conflict", got)
		}
		if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 1 {
			t.Errorf("got owners %v, want one", got)
		}
		for range 3 { // a machine with another MAC is seen
			speaks(1, mac)
			speaks(2, []byte{0x52, 0x54, 0, 0x12, 0x34, 0x57})
		}
		l.conflict(pb.Conflict_SUSPECTED)
	})
}
