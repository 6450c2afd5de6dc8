package facts

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// onHost returns a report of an address of a node itself on its uplink.
func onHost(addr string) *pb.ReportRequest {
	m := assignedMessage(1, addr)
	m.Claims[0].Index = 9
	return m
}

// of changes the only claim of a message to another kind.
func of(kind pb.Evidence_Kind, m *pb.ReportRequest) *pb.ReportRequest {
	m.Claims[0].Kind = kind
	return m
}

// A case has the facts that only a dispute needs if the claims may have several owners.
func TestWhenAnAddressMayHaveSeveralOwners(t *testing.T) {
	const addr = "10.0.0.9"
	kernel := func(record uint32) *pb.ReportRequest { return assignedMessage(record, addr) }
	uplink := func(mac uint32) *pb.ReportRequest { return seen(addr, records.MAC(mac), 1) }
	port := func(record, mac uint32) *pb.ReportRequest {
		return records.Claims(announced(record, addr, records.MAC(mac)))
	}
	for _, test := range []struct {
		name string
		m    []*pb.ReportRequest
		want bool
	}{
		{"nobody", nil, false},
		{"a kernel", []*pb.ReportRequest{kernel(2)}, false},
		{"a kernel that found a duplicate", []*pb.ReportRequest{of(pb.Evidence_DAD_FAILED, kernel(2))}, true},
		{"kernels of two pods", []*pb.ReportRequest{kernel(2), kernel(3)}, true},
		{"kernels of two pods with one MAC", []*pb.ReportRequest{kernel(2), secondInterface(3, 2, addr)}, true},
		{"one kernel with one MAC on two interfaces", []*pb.ReportRequest{kernel(2), secondInterface(2, 2, addr)}, false},
		{"a frame", []*pb.ReportRequest{uplink(9)}, false},
		{"frames of two senders", []*pb.ReportRequest{uplink(9), uplink(8)}, true},
		{"two frames of one sender", []*pb.ReportRequest{uplink(9), of(pb.Evidence_USED, uplink(9))}, false},
		{"a frame of a MAC that two interfaces have", []*pb.ReportRequest{secondInterface(3, 2, "10.0.0.77"), uplink(2)}, true},
		{"a kernel and its frame", []*pb.ReportRequest{kernel(2), uplink(2)}, false},
		{"a frame and then its kernel", []*pb.ReportRequest{uplink(2), kernel(2)}, false},
		{"a kernel and a frame of another sender", []*pb.ReportRequest{kernel(2), uplink(9)}, true},
		{"a kernel and a frame by its port", []*pb.ReportRequest{kernel(2), port(2, 2)}, false},
		{"a kernel and a frame by another port", []*pb.ReportRequest{kernel(2), port(3, 2)}, true},
		{"a frame by a port", []*pb.ReportRequest{port(2, 2)}, false},
		{"two frames by a port", []*pb.ReportRequest{port(2, 2), of(pb.Evidence_USED, port(2, 2))}, false},
		{"frames by two ports", []*pb.ReportRequest{port(2, 2), port(3, 2)}, true},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), onHost("10.0.0.200"), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"))
		a.report(test.m...)
		c := s.Builder().Case(key(addr), false)
		subnets := 0
		for _, n := range c.Nodes {
			subnets += len(n.Subnets)
		}
		if c.Covered != test.want || (subnets > 0) != test.want {
			t.Errorf("%s: got covered %t and %d subnets, want both present: %t", test.name, c.Covered, subnets, test.want)
		}
		c = s.Builder().Case(key(addr), true)
		if !c.Covered {
			t.Errorf("%s: node in a dispute: got not covered", test.name)
		}
		c = s.Builder().Explained(key(addr))
		if !c.Covered {
			t.Errorf("%s: node in an explanation: got not covered", test.name)
		}
	}
}

// A builder makes each record of a case only once, and does not reuse it for the next case.
func TestABuilderMakesOneCaseAfterTheOther(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"))
	a.report(of(pb.Evidence_DAD_FAILED, assignedMessage(2, "10.0.0.2")), records.Claims(announced(2, "10.0.0.2", records.MAC(2))), of(pb.Evidence_USED, records.Claims(announced(2, "10.0.0.2", records.MAC(2)))), seen("10.0.0.3", records.MAC(3), 1))
	b := s.Builder()
	var first string
	for range 2 {
		c := b.Case(key("10.0.0.2"), false)
		if len(c.Claims) != 4 {
			t.Fatalf("got %d claims, want 4", len(c.Claims))
		}
		for _, one := range c.Claims {
			for _, other := range c.Claims {
				if wired(one) == wired(other) && (one.Interface != other.Interface || one.Link != other.Link) || one.Interface.Link != other.Interface.Link {
					t.Errorf("got two records of an interface or a link")
				}
			}
		}
		if len(c.Stations) != 1 {
			t.Errorf("got %d stations for two frames of one sender, want one", len(c.Stations))
		}
		for _, i := range c.Stations {
			if at := slices.IndexFunc(c.Claims, func(c *verdict.Claim) bool { return !wired(c) }); i != c.Claims[at].Interface {
				t.Errorf("got a station %s with a different record from the claim's", i.Name)
			}
		}
		if got := caseText(c); first != "" && got != first {
			t.Errorf("got\n%s\nthe second time, want\n%s", got, first)
		} else {
			first = got
		}
		refs := b.Refs(c.Claims)
		c = b.Case(key("10.0.0.3"), false)
		if got, want := caseText(c), caseText(s.Builder().Case(key("10.0.0.3"), false)); got != want {
			t.Errorf("got\n%s\nafter another case, want\n%s", got, want)
		}
		more := b.Refs(c.Claims)
		if len(refs) != 4 || len(more) != 2 || slices.ContainsFunc(more, func(r Ref) bool { return slices.Contains(refs, r) }) {
			t.Errorf("got refs %v and %v", refs, more)
		}
		if got := b.Refs(c.Claims[1:]); !slices.Equal(got, more[1:]) {
			t.Errorf("got refs %v of the second claim, want %v", got, more[1:])
		}
	}
	b.Case(key("10.0.0.3"), false)
	a.report(&pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{{Id: 3, Netns: "4003", Workload: &pb.Workload{Kind: pb.Workload_CONTAINER, Name: "other"}}},
		Links:      []*pb.LinkRecord{{Name: "veth3", Kind: pb.LinkRecord_BRIDGE}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: 3, Index: 2, Name: "renamed", Mac: records.MAC(3), Attachment: pb.InterfaceRecord_PEER, Link: "veth3"}},
	})
	if got, want := caseText(b.Case(key("10.0.0.3"), false)), caseText(s.Builder().Case(key("10.0.0.3"), false)); got != want {
		t.Errorf("got\n%s\nafter a change, want\n%s", got, want)
	}
}

// A kept case does not change while its builder makes others.
func TestAKeptCaseStays(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"), records.Claims(announced(2, "10.0.0.2", records.MAC(3)), announced(3, "10.0.0.3", records.MAC(2))))
	for _, addrs := range [][]string{{"10.0.0.2", "10.0.0.3"}, {"10.0.0.3", "10.0.0.2"}} {
		b := s.Builder()
		c := *b.Case(key(addrs[0]), false)
		for range 2 {
			b.Keep()
		}
		c.Claims, c.Stations, c.Namespaces = slices.Clone(c.Claims), slices.Clone(c.Stations), slices.Clone(c.Namespaces)
		c.Nodes, c.Answers = slices.Clone(c.Nodes), slices.Clone(c.Answers)
		want := caseText(&c)
		for range 3 {
			b.Case(key(addrs[1]), false)
		}
		if got := caseText(&c); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", addrs[0], got, want)
		}
		next := *b.Case(key(addrs[1]), false)
		b.Keep()
		next.Claims = slices.Clone(next.Claims)
		b.Case(key(addrs[0]), false)
		if got := next.Claims[0].Interface.Namespace.Node; got == nil || next.Address != netip.MustParseAddr(addrs[1]) {
			t.Errorf("%s: got %+v of a second case that was kept", addrs[1], next.Claims[0])
		}
	}
}

// An agent may report from inside a pod.
func TestANamespaceMayHaveAnAgentInside(t *testing.T) {
	s := newScene(t)
	frames := records.Claims(announced(2, "10.0.0.9", records.MAC(9)), announced(3, "10.0.0.9", records.MAC(8)))
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), pod(3, "10.0.0.3"), frames)
	want := func(why string, want ...string) {
		t.Helper()
		var got []string
		for _, ns := range s.Builder().Case(key("10.0.0.9"), false).Namespaces {
			got = append(got, fmt.Sprintf("%d nested=%t", ns.Record, ns.Nested))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: got namespaces %q, want %q", why, got, want)
		}
	}
	want("no agent", "2 nested=false", "3 nested=false")
	for _, h := range []*pb.Hello{{Node: "inner", BootId: "b1", Netns: "4002"}, {Node: "other", BootId: "b2", Netns: "4003"}} {
		if _, err := s.hello(h, ""); err != nil {
			t.Fatal(err)
		}
	}
	want("an agent in one of them", "2 nested=true", "3 nested=false")
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 3, Gone: true}}})
	want("one is gone", "2 nested=true")
	// The case has the Kubernetes object of the pod with the sender's hardware address.
	s = newScene(t)
	k := &api{pods: map[string]*verdict.PodObject{"uidveth3": {Name: "three"}}}
	s.follow(k)
	a = s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"), seen("10.0.0.9", records.MAC(3), 1))
	want("its sender is a pod", "3 nested=false")
	a.report(seen("10.0.0.9", records.MAC(2), 1))
	want("another sender is a pod that is not in the API", "3 nested=false")
}

// A sender that answers for an address without claiming it is listed once for each link.
func TestSendersOfAnswersInACase(t *testing.T) {
	answer := func(c *pb.ClaimRecord) *pb.ClaimRecord {
		c.Kind = pb.Evidence_ANSWERED
		return c
	}
	on := func(link string, c *pb.ClaimRecord) *pb.ClaimRecord {
		c.Link = link
		return c
	}
	uplink := func(mac uint32) *pb.ClaimRecord { return seen("10.0.0.9", records.MAC(mac), 1).Claims[0] }
	port := func(record, mac uint32) *pb.ClaimRecord { return announced(record, "10.0.0.9", records.MAC(mac)) }
	weak := func(c *pb.ClaimRecord) *pb.ClaimRecord {
		c.NoOverride = true
		return c
	}
	for _, test := range []struct {
		name   string
		claims []*pb.ClaimRecord
		want   []string
	}{
		{"an answer", []*pb.ClaimRecord{answer(uplink(8))}, []string{"eth0 8"}},
		{"a claim", []*pb.ClaimRecord{uplink(8)}, nil},
		{"a weak answer", []*pb.ClaimRecord{weak(answer(uplink(8)))}, nil},
		{"answers by two ports of one link", []*pb.ClaimRecord{answer(uplink(8)), answer(on("eth0", port(2, 8)))}, []string{"eth0 8"}},
		{"answers on two links", []*pb.ClaimRecord{answer(uplink(8)), answer(port(2, 8))}, []string{"eth0 8", "veth2 8"}},
		{"answers of two senders", []*pb.ClaimRecord{answer(uplink(8)), answer(uplink(7))}, []string{"eth0 7", "eth0 8"}},
		{"an answer and a claim", []*pb.ClaimRecord{answer(uplink(8)), uplink(8)}, nil},
		{"an answer and a weak claim", []*pb.ClaimRecord{answer(uplink(8)), weak(uplink(8))}, []string{"eth0 8"}},
		{"an answer and a claim of another sender", []*pb.ClaimRecord{answer(uplink(8)), uplink(7)}, []string{"eth0 8"}},
		{"an answer and a claim on another link", []*pb.ClaimRecord{answer(uplink(8)), port(2, 8)}, []string{"eth0 8"}},
		{"an answer and a sighting that is no claim", []*pb.ClaimRecord{answer(uplink(8)), func() *pb.ClaimRecord { c := uplink(8); c.Kind = pb.Evidence_BELIEVED; return c }()}, []string{"eth0 8"}},
		{"an answer on no link", []*pb.ClaimRecord{{Address: []byte{10, 0, 0, 9}, Kind: pb.Evidence_ANSWERED, Namespace: 1, Index: 8, Mac: records.MAC(8), Count: 1}}, nil},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 8, Name: "tun0", Attachment: pb.InterfaceRecord_OWN}}})
		a.report(records.Claims(test.claims...))
		var got []string
		for _, one := range s.Builder().Case(key("10.0.0.9"), false).Answers {
			got = append(got, fmt.Sprint(one.Link.Name, " ", one.MAC[5]))
		}
		if slices.Sort(got); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// A case has the facts about all nodes that matter.
func TestNodesOfACase(t *testing.T) {
	pool := &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "10.0.0.1", "10.0.0.99")}}
	allocated := &pb.ReportRequest{Allocations: []*pb.AllocationRecord{given("p", "10.0.0.2", "c")}}
	blind := &pb.ReportRequest{Status: &pb.StatusRecord{Blind: true}}
	for _, test := range []struct {
		name string
		m    []*pb.ReportRequest
		want []string
	}{
		{"a pod", nil, nil},
		{"a pool", []*pb.ReportRequest{pool}, nil},
		{"an allocation", []*pb.ReportRequest{pool, allocated}, []string{"n1 covered=true"}},
		{"an allocation of a blind node", []*pb.ReportRequest{pool, allocated, blind}, nil},
	} {
		s := newScene(t)
		s.joins("n1", "b1", 1, pod(2, "10.0.0.2")).report(test.m...)
		var got []string
		for _, n := range s.Builder().Case(key("10.0.0.2"), false).Nodes {
			got = append(got, fmt.Sprintf("%s covered=%t", n.Node.Name, n.Covered))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got nodes %q, want %q", test.name, got, test.want)
		}
	}
	// A sender on another node of the same domain is a station, only once, and its node is known.
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), onHost("10.0.0.200"), onLAN(2, "10.0.0.1"))
	by := s.joins("n2", "b2", 1, lan(2))
	by.report(seen("10.0.0.1", records.MAC(2), 1), seen("10.0.0.9", records.MAC(2), 1), of(pb.Evidence_USED, seen("10.0.0.9", records.MAC(2), 1)))
	c := s.Builder().Case(key("10.0.0.9"), true)
	if len(c.Stations) != 1 || c.Stations[0].Namespace.Record != 2 || len(c.Nodes) != 1 || c.Nodes[0].Node.Name != "n1" {
		t.Errorf("got %d stations and nodes %+v, want the sender's", len(c.Stations), c.Nodes)
	}
	by.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 10, Name: "eth1", Attachment: pb.InterfaceRecord_OWN, Link: "eth1", Uplink: false}}}, records.Claims(&pb.ClaimRecord{
		Address: []byte{10, 0, 0, 77}, Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 10, Mac: records.MAC(2), Link: "eth1", Count: 1,
	}))
	if c := s.Builder().Case(key("10.0.0.77"), true); len(c.Stations) != 0 {
		t.Errorf("got %d stations on another domain, want none", len(c.Stations))
	}
	if got := s.AddressesOn("n1"); !slices.Contains(got, key("10.0.0.9")) || !slices.Contains(got, key("10.0.0.200")) || !slices.IsSortedFunc(got, index.Address.Compare) {
		t.Errorf("got addresses %v on n1", got)
	}
}

func TestInterfacesOfOneNamespaceShareIt(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), secondInterface(2, 7, "10.0.0.2"))
	c := s.Builder().Case(key("10.0.0.2"), false)
	if len(c.Claims) != 2 || c.Claims[0].Interface == c.Claims[1].Interface || c.Claims[0].Interface.Namespace != c.Claims[1].Interface.Namespace {
		t.Errorf("got %d claims, want two on interfaces of one record of a namespace", len(c.Claims))
	}
}

// Interfaces without a hardware address do not end the list.
func TestAddressesThatOthersSee(t *testing.T) {
	s := newScene(t)
	none := &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 30, Name: "x", Attachment: pb.InterfaceRecord_OWN}, {Namespace: 1, Index: 31, Name: "y", Attachment: pb.InterfaceRecord_OWN}}}
	a := s.joins("n1", "b1", 1, none, lan(1), onLAN(2, "10.0.0.1"))
	s.joins("n2", "b2", 1, lan(2), seen("10.0.0.9", records.MAC(2), 1))
	for range 2 {
		if got := s.AddressesOn("n1"); !slices.Equal(got, []index.Address{key("10.0.0.1"), key("10.0.0.9")}) {
			t.Errorf("got %v", got)
		}
		a.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 30, Gone: true}}})
	}
	a.report(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Gone: true}}})
	if got := s.AddressesOn("n1"); len(got) > 0 {
		t.Errorf("got %v of an interface that ended", got)
	}
}

// A kept case does not retain the texts of its nodes, not even those of unusual hardware addresses.
func TestAKeptCaseHasTextsOfItsOwn(t *testing.T) {
	unusual, other := []byte("twenty bytes of a MAC"), []byte("twenty bytes of them")
	s := newScene(t)
	m := pod(2, "10.0.0.2")
	inside := m.Interfaces[0]
	inside.Mac, inside.PeerNamespace, inside.HostInterface, inside.Vrf, inside.Kind = unusual, 3, "veth-host", "red", "veth"
	m.Namespaces[1].Intended = []*pb.Intended{{Address: "10.0.0.7", Source: "cri", Interface: "eth0"}}
	m.Claims[0].Network = "net0"
	frame := announced(2, "10.0.0.2", unusual)
	frame.Source, frame.Network = other, "net1"
	a := s.joins("n1", "b1", 1, m, records.Claims(frame))
	texts := func(c *verdict.Case) map[string]string {
		all := map[string]string{}
		for _, c := range c.Claims {
			for name, text := range map[string]string{
				"network": c.Network, "MAC": string(c.MAC), "source": string(c.Source), "link": c.Interface.Link.Name, "name": c.Interface.Name, "kind": c.Interface.Kind,
				"VRF": c.Interface.VRF, "host interface": c.Interface.HostInterface, "hardware address": string(c.Interface.MAC),
				"workload": string(c.Interface.Namespace.Who), "intended": c.Interface.Namespace.Intended,
			} {
				all[fmt.Sprint(c.Kind, name)] = text
			}
		}
		return all
	}
	// shared counts the texts that share memory with the arena of the node.
	shared := func(all map[string]string) (names []string) {
		arena := a.n.texts.arena.String()
		begin := uintptr(unsafe.Pointer(unsafe.StringData(arena)))
		for name, text := range all {
			if at := uintptr(unsafe.Pointer(unsafe.StringData(text))); text != "" && at >= begin && at < begin+uintptr(len(arena)) {
				names = append(names, name)
			}
		}
		return names
	}
	b := s.Builder()
	c := b.Case(key("10.0.0.2"), false)
	before := texts(c)
	if got := shared(before); len(got) < 10 {
		t.Fatalf("got only %q in the arena", got)
	}
	b.Keep()
	after := texts(c)
	if got := shared(after); len(got) > 0 {
		t.Errorf("got %q in the arena after Keep", got)
	}
	if !maps.Equal(before, after) {
		t.Errorf("got %q after Keep, want %q", after, before)
	}
}
