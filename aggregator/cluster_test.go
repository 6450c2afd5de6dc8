package aggregator

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// eth1 returns a second uplink of a node, on the same LAN as the first.
func eth1(mac []byte) *pb.ReportRequest {
	return &pb.ReportRequest{
		Links: []*pb.LinkRecord{{Name: "eth1", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: 3, Name: "eth1", Mac: mac, Attachment: pb.InterfaceRecord_OWN, Link: "eth1", Uplink: true,
		}},
	}
}

func TestANodeWithTwoUplinksOnOneLANTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		agents := l.onLAN(2, onlyOn(1, eth1([]byte{2, 2, 9, 0, 0, 1})))
		second := entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))
		second.Index, second.Link = 3, "eth1"
		agents[0].send(records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)), second)).sync()
		known := func() (macs, domains int) {
			l.core.facts.RLock()
			defer l.core.facts.RUnlock()
			macs, links := l.core.facts.SharedMACs()
			return macs, links.Domains(facts.BySight)
		}
		if macs, domains := known(); macs < 3 || domains != 1 {
			t.Errorf("got %d MACs and %d domains before the nodes time out, want those of 3 uplinks on 1 LAN", macs, domains)
		}
		agents[1].cancel()
		synctest.Wait()
		time.Sleep(time.Second)
		agents[0].cancel()
		synctest.Wait()
		time.Sleep(6 * time.Minute)
		if macs, domains := known(); macs != 0 || domains != 0 {
			t.Errorf("got %d MACs and %d domains, want none", macs, domains)
		}
	})
}

func TestAMACThatOnlyOneNodeHasLeftMakesLinksOne(t *testing.T) {
	l := newLab(t, Config{})
	mac := []byte{2, 9, 9, 9, 9, 9}
	agents := l.onLAN(3, func(node int) *pb.ReportRequest {
		if node == 2 {
			return &pb.ReportRequest{}
		}
		return samePods(node)
	})
	moving := macvlan(9, "x", "192.0.2.99", mac)
	agents[1].send(moving).sync()
	agents[2].send(macvlan(9, "x", "192.0.2.99", mac)).sync()
	agents[0].send(records.Claims(entered(pb.Evidence_ANNOUNCED, "192.0.2.99", mac))).sync()
	agents[1].send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 9, Gone: true}}}).sync()
	for _, c := range l.conflicts() {
		if c.GetAddress() == addr {
			return
		}
	}
	t.Error("want n1 and n3 to be on one LAN: their pods have one address")
}

func TestANodeThatNeverCompletesASnapshotTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		// Another node connects and disconnects as often, but completes its snapshots.
		complete := snapshot(hello("n2", 1), podVeth(2, "b", "10.244.0.6"))
		l.dial().send(complete).sync().cancel()
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync().cancel()
		synctest.Wait()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 2 {
			t.Errorf("got %v, want the pods of both nodes", got)
		}
		for range 20 {
			time.Sleep(time.Minute)
			l.dial().send(&pb.ReportRequest{Hello: hello("n1", 1), SnapshotBegin: true}).sync().cancel()
			l.dial().send(complete).sync().cancel()
			synctest.Wait()
		}
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || got[0].GetNode() != "n2" {
			t.Errorf("got %v, 20 minutes after the last complete snapshot of n1, want only the pod of n2", got)
		}
	})
}

func TestANegativeResidenceSetsNoTombstoneAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		mac := []byte{2, 3, 0, 0, 0, 2}
		agents := l.onLAN(2, onlyOn(2, macvlan(2, "web", addr, mac)))
		over := assigned(2, addr)
		over.Residence = durationpb.New(-time.Hour)
		agents[1].send(gone(over)).sync()
		time.Sleep(time.Minute)
		agents[0].send(records.Claims(entered(pb.Evidence_ANNOUNCED, addr, mac))).sync()
		if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 1 {
			t.Errorf("got %v, want the owner that claimed it a minute later", got)
		}
	})
}

func TestLinkThatReturnsIsJoinedAgain(t *testing.T) {
	l := newLab(t, Config{})
	agents := l.onLAN(2, samePods)
	frame := entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))
	agents[0].send(records.Claims(frame)).sync()
	l.conflict(pb.Conflict_SUSPECTED)
	agents[0].send(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "eth0", Gone: true}}}).sync()
	agents[0].send(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}}}).sync()
	frame.Count = 2
	agents[0].send(records.Claims(frame)).sync()
	l.conflict(pb.Conflict_SUSPECTED)
}

func TestSightingsOfAMachineEndWhenItReboots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		mac := []byte{2, 3, 0, 0, 0, 2}
		agents := l.onLAN(3, onlyOn(2, macvlan(2, "web", addr, mac)))
		agents[0].send(records.Claims(entered(pb.Evidence_ANNOUNCED, addr, mac), entered(pb.Evidence_USED, "192.0.2.3", nodeMAC(3)))).sync()
		agents[1].cancel()
		synctest.Wait()
		time.Sleep(30 * time.Second)
		h := hello("n2", 2)
		h.BootId = "another-boot"
		l.dial().send(snapshot(h, uplink(nodeMAC(2)))).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 0 && got[0].GetWorkload().GetKind() == pb.Workload_EXTERNAL {
			t.Errorf("got %v, want no owner: its pod is gone", got)
		}
		// The address is given to another pod.
		agents[2].send(macvlan(2, "web", addr, []byte{2, 3, 0, 0, 0, 3})).sync()
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v, want none", got)
		}
		// Frames that n1 sees later count.
		time.Sleep(time.Second)
		later := entered(pb.Evidence_ANNOUNCED, addr, mac)
		later.Count = 2
		agents[0].send(records.Claims(later)).sync()
		if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 2 || got[0].GetWorkload().GetKind() != pb.Workload_EXTERNAL {
			t.Errorf("got %v, want the new pod and an external device with the old hardware address", got)
		}
	})
}

func TestAnAddressOfAVLANThatLeaksMakesNoLinksOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		// n2 and n3 have the VLAN on their eth0, with the same MAC, and send requests on eth0 with
		// the VLAN's address as the source (arp_announce=0). n3 also has a pod on eth0.
		agents := l.onLAN(3, func(node int) *pb.ReportRequest {
			if node == 1 {
				return samePods(1)
			}
			inVLAN := macvlan(2, "tenant", addr, []byte{2, 3, 0, 0, 0, byte(node)})
			inVLAN.Interfaces[0].Link, inVLAN.Interfaces[0].HostInterface = "eth0.10", "eth0.10"
			vlan := vlan10(fmt.Sprint("198.51.100.", node))
			vlan.Interfaces[0].Mac = nodeMAC(node)
			m := records.Merge(ownAddress(fmt.Sprint("192.0.2.", node)), vlan, inVLAN)
			if node == 3 {
				records.Merge(m, macvlan(4, "untagged", addr, []byte{2, 3, 0, 0, 0, 4}))
			}
			return m
		})
		for node := 2; node <= 3; node++ {
			agents[0].send(records.Claims(entered(pb.Evidence_USED, fmt.Sprint("198.51.100.", node), nodeMAC(node)))).sync()
		}
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v, want none: eth0 and VLAN 10 are different links", got)
		}
		for node := 2; node <= 3; node++ {
			agents[0].send(records.Claims(entered(pb.Evidence_ANNOUNCED, fmt.Sprint("192.0.2.", node), nodeMAC(node)))).sync()
		}
		// Frames with the addresses of eth0 itself join the links, and the pods on them are then in
		// conflict.
		if c := l.conflict(pb.Conflict_SUSPECTED); len(c.GetOwners()) != 2 || c.GetOwners()[0].GetNode() != "n1" || c.GetOwners()[1].GetWorkload().GetName() != "untagged" {
			t.Errorf("got %v, want the pods on eth0 of n1 and n3", c)
		}
	})
}

func BenchmarkLAN(b *testing.B) {
	for _, n := range []int{500, 1000, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newTestCore(b)
			var last *source
			began := time.Now()
			for i := range n {
				last = s.source()
				m := snapshot(hello(fmt.Sprintf("n%d", i), 1), uplink(nodeMAC(i+1)), ownAddress(fmt.Sprintf("10.9.%d.%d", i/250, i%250+1)),
					records.Claims(entered(pb.Evidence_ANSWERED, "10.9.200.1", []byte{6, 6, 6, 6, 6, 6})),
					records.Claims(entered(pb.Evidence_USED, "10.9.0.1", nodeMAC(1))))
				if i == 0 {
					m.Claims = m.Claims[:len(m.Claims)-1]
				}
				last.must(b, m)
			}
			b.ReportMetric(time.Since(began).Seconds(), "s/fill")
			c := entered(pb.Evidence_ANSWERED, "10.9.200.1", []byte{6, 6, 6, 6, 6, 6})
			m := &pb.ReportRequest{Claims: []*pb.ClaimRecord{c}}
			b.ResetTimer()
			for b.Loop() {
				c.Count++
				if err := last.send(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestAVirtualMachineThatIsANodeIsOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Networks: []verdict.Network{{Name: "nodes", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}})
		vm := []byte{0x52, 0x54, 0, 0, 0, 1}
		host := l.dial().send(snapshot(hello("host", 1), &pb.ReportRequest{
			Links: []*pb.LinkRecord{{Name: "br0", Kind: pb.LinkRecord_BRIDGE}},
			Interfaces: []*pb.InterfaceRecord{
				{Namespace: 1, Index: 7, Name: "tap0", Kind: "tun", Mac: []byte{0xfe, 0x54, 0, 0, 0, 1}, Attachment: pb.InterfaceRecord_OWN, Link: "br0"},
			},
		})).sync()
		l.dial().send(snapshot(hello("vm", 1), uplink(vm), ownAddress("192.0.2.9"))).sync()
		c := entered(pb.Evidence_USED, "192.0.2.9", vm)
		c.Index, c.Link = 7, "br0"
		host.send(records.Claims(c)).sync()
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v, want none: the machine is that node", got)
		}
		another := entered(pb.Evidence_USED, "192.0.2.9", []byte{0x52, 0x54, 0, 0, 0, 2})
		another.Index, another.Link = 7, "br0"
		host.send(records.Claims(another)).sync()
		if c := l.conflict(pb.Conflict_SUSPECTED); c.GetScope().GetName() != "nodes" || len(c.GetOwners()) != 2 {
			t.Errorf("got %v, want one of the node and a machine with another hardware address", c)
		}
	})
}

func TestAConfirmedConflictConfirmsNoneOfOtherOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), podVeth(2, "p", addr), podVeth(3, "q", addr))).sync()
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
		l.conflict(pb.Conflict_CONFIRMED)
		a.cancel()
		synctest.Wait()
		// Another machine now has the name, and two pods on it overlap for a moment.
		h := hello("n1", 1)
		h.BootId = "another-boot"
		l.dial().send(snapshot(h, uplink(nodeMAC(2)), podVeth(2, "r", addr), podVeth(3, "s", addr))).sync()
		i := slices.IndexFunc(l.conflicts(), func(c *pb.Conflict) bool { return c.GetOwners()[0].GetWorkload().GetName() == "r" })
		if i < 0 || l.conflicts()[i].GetState() != pb.Conflict_SUSPECTED {
			t.Errorf("got %v, want a SUSPECTED conflict of r and s: no agent has read them again", l.conflicts())
		}
	})
}

func TestFrameOfALaggingStreamIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		mac := []byte{2, 3, 0, 0, 0, 2}
		agents := l.onLAN(2, onlyOn(2, macvlan(2, "web", addr, mac)))
		time.Sleep(time.Second)
		agents[0].mute.Store(true)
		time.Sleep(7 * time.Second) // a ping has been unanswered since second 5
		agents[1].send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}}).sync()
		time.Sleep(time.Second)
		agents[0].send(records.Claims(entered(pb.Evidence_ANNOUNCED, addr, mac))).sync()
		if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 0 {
			t.Errorf("got %v, want no owner: the late frame was seen before the end", got)
		}
		again := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)))).sync() // a stream that answers pings
		time.Sleep(10 * time.Second)
		again.send(records.Claims(entered(pb.Evidence_ANNOUNCED, addr, mac))).sync()
		if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 1 || got[0].GetWorkload().GetKind() != pb.Workload_EXTERNAL {
			t.Errorf("got %v, want an external device: the frame was seen after the end", got)
		}
	})
}

func TestCloneIsNotTheRebootedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		one := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), podVeth(2, "a", addr))).sync()
		h := hello("n1", 1)
		h.BootId = "clone"
		two := l.dial().send(snapshot(h, uplink(nodeMAC(1)))).sync()
		time.Sleep(10 * time.Second) // both answer pings
		synctest.Wait()
		one.cancel()
		synctest.Wait()
		if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 1 || got[0].GetState() != pb.Owner_DISCONNECTED {
			t.Errorf("got %v, want the pod of a disconnected node", got)
		}
		two.cancel()
		synctest.Wait()
		l.dial().send(snapshot(h, uplink(nodeMAC(1)))).sync()
		if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 1 {
			t.Errorf("got %v, want the finding to remain: the clone's agent was restarted", got)
		}
	})
}
