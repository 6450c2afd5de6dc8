package facts

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// Each change of an interface triggers a judgement of its addresses. A repetition does not.
func TestEachChangeOfAnInterfaceCounts(t *testing.T) {
	for name, change := range map[string]func(i *pb.InterfaceRecord){
		"nothing":        func(*pb.InterfaceRecord) {},
		"link":           func(i *pb.InterfaceRecord) { i.Link = "other" },
		"no link":        func(i *pb.InterfaceRecord) { i.Link = "" },
		"name":           func(i *pb.InterfaceRecord) { i.Name = "other" },
		"host interface": func(i *pb.InterfaceRecord) { i.HostInterface = "other" },
		"VRF":            func(i *pb.InterfaceRecord) { i.Vrf = "other" },
		"kind":           func(i *pb.InterfaceRecord) { i.Kind = "other" },
		"MAC":            func(i *pb.InterfaceRecord) { i.Mac = records.MAC(9) },
		"no MAC":         func(i *pb.InterfaceRecord) { i.Mac = nil },
		"peer":           func(i *pb.InterfaceRecord) { i.PeerNamespace = 9 },
		"attachment":     func(i *pb.InterfaceRecord) { i.Attachment = pb.InterfaceRecord_LOWER },
		"uplink":         func(i *pb.InterfaceRecord) { i.Uplink = true },
		"tap":            func(i *pb.InterfaceRecord) { i.Kind = "tun" },
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), pod(3, "10.0.0.3"))
		s.judgeAll()
		before := s.text("10.0.0.2")
		i := pod(2, "10.0.0.2").Interfaces[0]
		change(i)
		same := name == "nothing"
		s.notified.heard = nil
		a.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{proto.CloneOf(i)}})
		if got := s.text("10.0.0.2") == before; got != same {
			t.Errorf("%s: got an equal case %t, want %t", name, got, same)
		}
		if same {
			s.wantJudged(name)
			s.wantHeard(name)
		} else {
			s.wantJudged(name, "10.0.0.2")
			s.wantHeard(name, "lack n1#2", "ranges n1")
		}
		after := s.text("10.0.0.2")
		a.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{i}})
		s.wantJudged(name + " once more")
		s.wantHeard(name + " once more")
		a.report(&pb.ReportRequest{Interfaces: pod(2, "10.0.0.2").Interfaces[:1]})
		if got := s.text("10.0.0.2"); got != before || after == before != same {
			t.Errorf("%s: got\n%s\nafter the change was undone, want\n%s", name, got, before)
		}
		s.check(t, name)
	}
}

// The same applies to changes of a namespace. A listener is notified of both identities.
func TestEachChangeOfANamespaceCounts(t *testing.T) {
	first := func() *pb.NamespaceRecord {
		return &pb.NamespaceRecord{Id: 2, Workload: &pb.Workload{Kind: pb.Workload_POD, Name: "a"}, Intended: []*pb.Intended{{Address: "10.0.0.7", Source: "cri"}}}
	}
	for name, change := range map[string]func(ns *pb.NamespaceRecord){
		"nothing":     func(*pb.NamespaceRecord) {},
		"number":      func(ns *pb.NamespaceRecord) { ns.Netns = "4002" },
		"same number": func(ns *pb.NamespaceRecord) { ns.Netns = "1" }, // equal to the epoch
		"odd number":  func(ns *pb.NamespaceRecord) { ns.Netns = "odd" },
		"name":        func(ns *pb.NamespaceRecord) { ns.Workload.Name = "b" },
		"intended":    func(ns *pb.NamespaceRecord) { ns.Intended[0].Address = "10.0.0.8" },
		"no intended": func(ns *pb.NamespaceRecord) { ns.Intended = nil },
	} {
		s := newScene(t)
		ids := &identities{}
		s.Changed = ids.changed
		a := s.joins("n1", "b1", 1, &pb.ReportRequest{
			Namespaces: []*pb.NamespaceRecord{first()},
			Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Name: "eth0", Mac: records.MAC(2), Attachment: pb.InterfaceRecord_PEER}, {Namespace: 1, Index: 7, Name: "p", PeerNamespace: 2, Attachment: pb.InterfaceRecord_OWN}},
			Claims:     []*pb.ClaimRecord{assigned(2, "10.0.0.2"), {Address: []byte{10, 0, 0, 5}, Kind: pb.Evidence_USED, Namespace: 1, Index: 7, Mac: records.MAC(9), Count: 1}},
		})
		s.judgeAll()
		before := s.text("10.0.0.2")
		id := a.n.NamespaceOf(2).ID
		next := first()
		change(next)
		same := name == "nothing"
		ids.ids = nil
		a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{proto.CloneOf(next)}})
		if got := s.text("10.0.0.2") == before; got != same {
			t.Errorf("%s: got an equal case %t, want %t", name, got, same)
		}
		if same {
			s.wantJudged(name)
		} else {
			s.wantJudged(name, "10.0.0.2", "10.0.0.5")
		}
		want := []string{id, a.n.NamespaceOf(2).ID}
		if same {
			want = nil
		}
		if got := slices.Compact(ids.ids); !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("%s: got notifications %q, want %q", name, ids.ids, want)
		}
		ids.ids = nil
		a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{next}})
		s.wantJudged(name + " once more")
		s.check(t, name)
		if len(ids.ids) > 0 {
			t.Errorf("%s once more: got notifications %q", name, ids.ids)
		}
	}
}

// identities records the identities of the namespaces that may lack addresses.
type identities struct{ ids []string }

func (i *identities) changed(c *Changes) {
	for _, ns := range c.Former {
		i.ids = append(i.ids, ns.ID)
	}
	for ns := range c.Lacking {
		if ns.Record == 2 {
			i.ids = append(i.ids, ns.Node.NamespaceOf(2).ID)
		}
	}
}

// Claims in frames from the port of a namespace end with it, but not the claims of the port itself.
func TestFramesOfANamespaceEndWithIt(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"))
	host := assignedMessage(1, "10.0.0.20")
	host.Claims[0].Index = 102
	a.report(host, records.Claims(announced(2, "10.0.0.21", records.MAC(9)), announced(3, "10.0.0.22", records.MAC(9))), seen("10.0.0.23", records.MAC(9), 1))
	s.judgeAll()
	s.notified.heard = nil
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}})
	for addr, want := range map[string]bool{"10.0.0.2": false, "10.0.0.3": true, "10.0.0.20": true, "10.0.0.21": false, "10.0.0.22": true, "10.0.0.23": true} {
		if got := s.Claimed(key(addr)); got != want {
			t.Errorf("%s: got claimed %t, want %t", addr, got, want)
		}
	}
	if a.n.NamespaceOf(2) != nil || a.n.Namespaces() != 2 {
		t.Errorf("got %d namespaces, want 2", a.n.Namespaces())
	}
	s.check(t, "a namespace ends")
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 7, Netns: "7"}}})
	s.notified.heard = nil
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 7, Gone: true}}})
	s.wantHeard("a namespace without an interface ends", "former n1#b1/7")
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 7, Gone: true}}})
	s.wantHeard("it ends once more")
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Gone: true}}})
	if a.n.Claims() != 1 || !s.Claimed(key("10.0.0.3")) {
		t.Errorf("got %d claims when the node's own namespace is gone, want that of the pod", a.n.Claims())
	}
	s.check(t, "the node's own namespace ends")
}

// A link that is neither used nor reported leaves its domain.
func TestALinkThatEndsLeavesItsDomain(t *testing.T) {
	s := newScene(t)
	home := lan(1)
	home.Links = nil
	a, b := s.joins("n1", "b1", 1, home, onLAN(2, "10.0.0.1")), s.joins("n2", "b2", 1, lan(2))
	b.report(seen("10.0.0.9", records.MAC(2), 1))
	s.wantDomains("before", "10.0.0.9", "n2 n1/eth0 -")
	s.judgeAll()
	a.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Gone: true}, {Namespace: 1, Index: 9, Gone: true}}})
	s.wantDomains("nothing uses it", "10.0.0.9", "n2 - -")
	s.wantJudged("nothing uses it", "10.0.0.1", "10.0.0.9")
	s.check(t, "nothing uses it")
	a.report(home, onLAN(2, "10.0.0.1"))
	b.report(seen("10.0.0.9", records.MAC(2), 2))
	s.wantDomains("it is there again", "10.0.0.9", "n2 n1/eth0 -")
	s.wantDomains("it is there again", "10.0.0.1", "n1 n1/eth0 -")
}

// A link that is used but no longer reported has no kind.
func TestALinkThatIsNotReported(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, bridgeAndPods())
	s.judgeAll()
	link := func() *verdict.Link { return s.Builder().Case(key("10.0.0.2"), false).Claims[0].Interface.Link }
	if l := link(); l.Kind != verdict.Bridge || !l.Routed {
		t.Errorf("got %+v, want a bridge", l)
	}
	a.report(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "cni0", Kind: pb.LinkRecord_BRIDGE, Routed: true}}})
	s.wantJudged("it is reported once more")
	a.report(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "cni0", Kind: pb.LinkRecord_BRIDGE}}})
	if s.wantJudged("it is not routed any more", "10.0.0.1", "10.0.0.2", "10.0.0.3"); link().Routed {
		t.Error("got a routed link")
	}
	a.report(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "cni0", Gone: true}}})
	if s.wantJudged("it is not reported any more", "10.0.0.1", "10.0.0.2", "10.0.0.3"); link().Kind != 0 || link().Name != "cni0" {
		t.Errorf("got %+v, want a link of no kind", link())
	}
	s.check(t, "it is not reported")
}

// A frame that was on its way does not bring back an owner that gave its address up, unless the
// owner still has it with the same hardware address.
func TestWhenAnAddressIsGivenUp(t *testing.T) {
	const addr = "10.0.0.1"
	lower := func(record, index, mac uint32, link string) *pb.ReportRequest {
		m := onLAN(record, addr)
		m.Interfaces[0].Index, m.Interfaces[0].Mac, m.Interfaces[0].Link, m.Claims[0].Index = index, records.MAC(mac), link, index
		return m
	}
	apart := lower(2, 3, 2, "v")
	apart.Links = []*pb.LinkRecord{{Name: "v", Kind: pb.LinkRecord_POINT_TO_POINT}}
	for _, test := range []struct {
		name string
		m    []*pb.ReportRequest
		want bool // whether there is a tombstone for the address and MAC of the first message
	}{
		{"the only one", []*pb.ReportRequest{lower(2, 2, 2, "eth0")}, true},
		{"an owner with the address on another interface with the MAC", []*pb.ReportRequest{lower(2, 2, 2, "eth0"), lower(2, 3, 2, "eth0")}, false},
		{"an owner with the address on another interface with another MAC", []*pb.ReportRequest{lower(2, 2, 2, "eth0"), lower(2, 3, 4, "eth0")}, true},
		{"an owner with the address on another interface behind a veth", []*pb.ReportRequest{lower(2, 2, 2, "eth0"), apart}, true},
		{"one of two with the MAC", []*pb.ReportRequest{lower(2, 2, 2, "eth0"), lower(3, 2, 2, "eth0")}, true},
		{"one whose frames do not leave the node", []*pb.ReportRequest{pod(2, addr)}, false},
		{"one on no link", []*pb.ReportRequest{lower(2, 2, 2, "")}, false},
	} {
		s := newScene(t)
		home, by := s.joins("n1", "b1", 1, lan(1)), s.joins("n2", "b2", 1, lan(2))
		home.report(test.m...)
		s.judgeAll()
		end := proto.CloneOf(test.m[0].Claims[0])
		end.Gone = true
		home.report(records.Claims(end))
		s.after(time.Second)
		late := seen(addr, records.MAC(2), 1)
		late.Claims[0].Age = durationpb.New(2 * time.Second)
		if by.report(late); (by.n.Claims() == 0) != test.want {
			t.Errorf("%s: got %d claims of a late frame, want it left out %t", test.name, by.n.Claims(), test.want)
		}
	}
}

// A client that gives its address up to another host is kept as one that refuses it, but its frames were those of the
// holder that it was.
func TestFramesEndWhenAClientGivesItsAddressUpToAnotherHost(t *testing.T) {
	const addr = "10.0.0.1"
	s := newScene(t)
	home, by := s.joins("n1", "b1", 1, lan(1), onLAN(2, addr)), s.joins("n2", "b2", 1, lan(2), onLAN(3, addr))
	by.report(seen(addr, records.MAC(2), 1))
	s.judgeAll()
	s.Settle(key(addr), false)
	refused, end := assigned(2, addr), assigned(2, addr)
	refused.Kind, end.Gone = pb.Evidence_DAD_FAILED, true
	home.report(records.Claims(refused, end))
	if got := by.n.Claims(); got != 1 {
		t.Errorf("got %d claims on the other node, want only that of its own pod", got)
	}
	s.check(t, "given up")
	refused.Gone = true
	home.report(records.Claims(refused))
	s.check(t, "forgotten")
}

// Frames with the former MAC of an interface are those of its node, also if another agent reports
// them late. A frame that was sent later is that of another device.
func TestWhenAMACIsGivenUp(t *testing.T) {
	const addr = "10.0.0.1"
	iface := func(record, index, mac uint32) *pb.ReportRequest {
		return &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{
			Namespace: record, Index: index, Name: "net1", Mac: records.MAC(mac), Attachment: pb.InterfaceRecord_LOWER, Link: "eth0",
		}}}
	}
	changed, without := iface(2, 2, 8), iface(2, 2, 2)
	without.Interfaces[0].Mac = nil
	for _, test := range []struct {
		name   string
		before []*pb.ReportRequest // of the node with the address
		end    *pb.ReportRequest
		want   bool // whether the frame with MAC 2 is given up
	}{
		{"another MAC", nil, changed, true},
		{"no MAC", nil, without, true},
		{"another name", nil, iface(2, 2, 2), false},
		{"another interface of the owner has the MAC", []*pb.ReportRequest{iface(2, 3, 2)}, changed, false},
		{"another pod of the node has the MAC", []*pb.ReportRequest{onLAN(3, "10.0.0.3"), iface(3, 2, 2)}, changed, false},
		{"a card without the address, of the owner", []*pb.ReportRequest{changed, iface(2, 3, 2)}, iface(2, 3, 9), true},
		{"a card without the address is gone", []*pb.ReportRequest{changed, iface(2, 3, 2)}, &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 3, Gone: true}}}, true},
		{"the node no longer has the address", []*pb.ReportRequest{withdrawn(2, addr)}, changed, false},
	} {
		s := newScene(t)
		home, by := s.joins("n1", "b1", 1, lan(1), onLAN(2, addr)), s.joins("n2", "b2", 1, lan(2))
		home.report(test.before...)
		s.after(time.Second)
		by.report(seen(addr, records.MAC(2), 1), seen("10.0.0.7", records.MAC(2), 1))
		home.report(test.end)
		if got := by.n.Claims() == 1; got != test.want {
			t.Errorf("%s: got %d claims by frames, want the one for the address given up %t", test.name, by.n.Claims(), test.want)
		}
		s.check(t, test.name)
		if !test.want {
			continue
		}
		s.after(time.Second)
		late := seen(addr, records.MAC(2), 2)
		late.Claims[0].Age = durationpb.New(time.Second - lateWithin/2)
		if by.report(late); by.n.Claims() != 1 {
			t.Errorf("%s: got a frame from before", test.name)
		}
		if by.report(seen(addr, records.MAC(2), 3)); by.n.Claims() != 2 {
			t.Errorf("%s: got no frame of another device from a second later", test.name)
		}
	}
}

// A frame that a pod sends through its own port is not that of the owner whose MAC it has.
func TestFramesOfAPodRemainWhenItsVictimChangesItsMAC(t *testing.T) {
	s := newScene(t)
	inside := pod(3, "10.0.0.3") // on a bridge with the uplink as a port
	inside.Links, inside.Interfaces[0].Link, inside.Interfaces[1].Link = nil, "eth0", "eth0"
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"), inside)
	a.report(records.Claims(announced(3, "10.0.0.1", records.MAC(2))))
	was := a.n.Claims()
	victim := onLAN(2, "10.0.0.1").Interfaces
	victim[0].Mac = records.MAC(8)
	if a.report(&pb.ReportRequest{Interfaces: victim}); a.n.Claims() != was {
		t.Errorf("got %d claims, want %d", a.n.Claims(), was)
	}
}

// Wire claims of an owner end when it loses the address on its last interface, and not when another
// owner or only one of its interfaces loses it.
func TestFramesEndWithTheLastInterface(t *testing.T) {
	const addr = "10.0.0.1"
	for _, test := range []struct {
		name  string
		other *pb.ReportRequest
		want  bool // whether the frame is kept when the first interface loses the address
	}{
		{"it has the address once", nil, false},
		{"it has the address on another interface", secondInterface(2, 7, addr), true},
		{"another pod has the address", secondInterface(3, 7, addr), false},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), onLAN(2, addr), onLAN(3, "10.0.0.3"))
		if test.other != nil {
			a.report(test.other)
		}
		a.report(seen(addr, records.MAC(2), 1))
		s.judgeAll()
		s.Settle(key(addr), false)
		a.report(withdrawn(2, addr))
		if got := s.WiredOrFailed(key(addr)); got != test.want {
			t.Errorf("%s: got a frame %t, want %t", test.name, got, test.want)
		}
		s.check(t, test.name)
	}
}

// Addresses that other nodes of a domain claim with a hardware address are judged again when its
// holder changes, and the holder may then lack an address.
func TestNeighboursAreJudgedAgain(t *testing.T) {
	for _, mac := range [][]byte{records.MAC(2), {0, 0, 0x5e, 0, 1, 7}, []byte("twenty bytes of a MAC")} {
		holder := func() *pb.ReportRequest {
			m := onLAN(2, "10.0.0.1")
			m.Interfaces[0].Mac = mac
			return m
		}
		iface := func(change func(i *pb.InterfaceRecord)) *pb.ReportRequest {
			i := holder().Interfaces[0]
			change(i)
			return &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{i}}
		}
		for name, change := range map[string]*pb.ReportRequest{
			"its namespace is another pod's": {Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: "4002", Workload: &pb.Workload{Kind: pb.Workload_POD, Name: "other"}}}},
			"its interface is renamed":       iface(func(i *pb.InterfaceRecord) { i.Name = "other" }),
			"its interface has another MAC":  iface(func(i *pb.InterfaceRecord) { i.Mac = records.MAC(8) }),
			"its interface has no MAC":       iface(func(i *pb.InterfaceRecord) { i.Mac = nil }),
			"its interface is gone":          {Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Gone: true}}},
			"it is gone":                     {Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}},
			"its link is gone":               {Links: []*pb.LinkRecord{{Name: "eth0", Gone: true}}},
		} {
			name = fmt.Sprintf("%x: %s", mac, name)
			s := newScene(t)
			inside := pod(3, "10.0.0.3") // a pod on a bridge with the uplink as a port
			inside.Links, inside.Interfaces[0].Link, inside.Interfaces[1].Link = nil, "eth0", "eth0"
			a, b := s.joins("n1", "b1", 1, lan(1), holder(), onLAN(4, "10.0.0.4")), s.joins("n2", "b2", 1, lan(2), inside)
			b.report(seen("10.0.0.4", records.MAC(4), 1))
			frame := announced(3, "10.0.0.9", mac)
			frame.Link = "eth0"
			b.report(records.Claims(frame))
			s.wantDomains(name+": before", "10.0.0.9", "n2 n1/eth0 -")
			s.judgeAll()
			a.report(change)
			if judged := s.judgeAll(); !slices.Contains(judged, netip.MustParseAddr("10.0.0.9")) {
				t.Errorf("%s: got %v to be judged", name, judged)
			}
		}
	}
}

// The sender of a frame that another node saw may have gained or lost an intended address.
func TestSendersOnOtherNodesAreNotified(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	b := s.joins("n2", "b2", 1, lan(2), pod(3, "10.0.0.3"))
	s.notified.heard = nil
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	s.wantHeard("a frame by the uplink", "lack n1#2", "ranges n1", "ranges n2")
	b.report(records.Claims(announced(3, "10.0.0.8", records.MAC(3))))
	s.wantHeard("a frame by the port of a pod", "lack n2#3")
}

// Claims with the same hardware address may end in any order.
func TestClaimsOfOneMACEndInAnyOrder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1))
		frame := func(i int) *pb.ClaimRecord {
			c := seen(fmt.Sprint("10.0.0.", i), records.MAC(9), 1).Claims[0]
			c.Source = records.MAC(8)
			return c
		}
		a.report(records.Claims(frame(0), frame(1), frame(2)))
		for _, i := range order {
			gone := frame(i)
			gone.Gone = true
			a.report(records.Claims(gone))
			s.check(t, fmt.Sprint(order))
		}
		if a.n.Claims() != 0 {
			t.Errorf("%v: got %d claims", order, a.n.Claims())
		}
	}
}
