package facts

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	ipams "github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// bridgeAndPods returns a report of a node with two pods on a bridge, and one pod on a veth of its
// own. A VLAN device connects the bridge to a LAN.
func bridgeAndPods() *pb.ReportRequest {
	pod := func(record uint32, name string) *pb.NamespaceRecord {
		return &pb.NamespaceRecord{Id: record, Netns: "400" + string('0'+rune(record)), Workload: &pb.Workload{
			Kind: pb.Workload_POD, Namespace: "default", Name: name, Uid: "u-" + name, ContainerId: "c-" + name, Source: "cni-result",
			Sources: map[string]string{"name": "cri"}, ProcessId: 7,
		}}
	}
	iface := func(record, index uint32, name, link, kind string, attachment pb.InterfaceRecord_Attachment, peer uint32) *pb.InterfaceRecord {
		return &pb.InterfaceRecord{
			Namespace: record, Index: index, Name: name, Link: link, Kind: kind, Attachment: attachment, PeerNamespace: peer, Mac: []byte{2, 0, 0, 0, byte(record), byte(index)},
		}
	}
	const own, inside = pb.InterfaceRecord_OWN, pb.InterfaceRecord_PEER
	address := func(record, index uint32, addr, network string) *pb.ClaimRecord {
		return &pb.ClaimRecord{
			Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: record, Index: index, Count: 1, PrefixLength: 24, Network: network,
			AssignedAt: &timestamppb.Timestamp{Seconds: 3, Nanos: 5},
		}
	}
	m := &pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{pod(2, "a"), pod(3, "b"), pod(4, "c"), {Id: 5, Netns: "abc", Workload: &pb.Workload{Kind: pb.Workload_CONTAINER}}},
		Links: []*pb.LinkRecord{
			{Name: "cni0", Kind: pb.LinkRecord_BRIDGE, Routed: true}, {Name: "veth4", Kind: pb.LinkRecord_POINT_TO_POINT}, {Name: "br1", Kind: pb.LinkRecord_BRIDGE},
		},
		Interfaces: []*pb.InterfaceRecord{
			iface(1, 2, "cni0", "cni0", "bridge", own, 0), iface(1, 12, "veth2", "cni0", "veth", own, 2), iface(1, 13, "veth3", "cni0", "veth", own, 3),
			iface(1, 14, "veth4", "veth4", "veth", own, 4), iface(1, 3, "br1", "br1", "bridge", own, 0), iface(1, 4, "eth0.5", "br1", "vlan", own, 0),
			iface(1, 5, "dummy0", "", "dummy", pb.InterfaceRecord_LOCAL, 0), iface(1, 6, "red0", "", "", own, 0), iface(1, 15, "veth5", "br1", "veth", own, 5),
			iface(2, 2, "eth0", "cni0", "veth", inside, 0), iface(3, 2, "eth0", "cni0", "veth", inside, 0), iface(4, 2, "eth0", "veth4", "veth", inside, 0),
			iface(4, 3, "net1", "br1", "veth", inside, 0),
		},
		Claims: []*pb.ClaimRecord{
			address(1, 2, "10.0.0.1", ""), address(1, 3, "10.1.0.1", ""), address(1, 5, "10.2.0.1", ""), address(2, 2, "10.0.0.2", "net0"), address(3, 2, "10.0.0.3", ""),
			address(4, 2, "10.0.0.4", "net1"), address(4, 3, "10.1.0.4", "net2"),
		},
	}
	m.Interfaces[7].Vrf = "red"
	m.Interfaces[9].HostInterface = "veth2"
	return m
}

func TestRecordsOfANode(t *testing.T) {
	s := newScene(t)
	began := s.now
	a := s.joins("n1", "b1", 1)
	s.after(time.Second)
	a.report(bridgeAndPods())
	n := a.n
	if n.SinceOf(1) != began || n.SinceOf(2) != s.now || n.SinceOf(9) != 0 {
		t.Errorf("got since %d and %d", n.SinceOf(1), n.SinceOf(2))
	}
	if got := n.NamespaceOf(2); got == nil || got.ID != "b1/4002" || got.Netns != "4002" || got.Record != 2 || got.Node != n.Rec || n.NamespaceOf(9) != nil {
		t.Errorf("got %+v", got)
	}
	want := verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: "a", UID: "u-a", ContainerID: "c-a", Source: "cni-result", Sources: "name=cri", PID: 7}
	if got := n.NamespaceOf(2).Who.Workload(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := n.NamespaceOf(5); got.Netns != "abc" || got.ID != "b1/abc" {
		t.Errorf("got %+v, want an unusual inode kept", got)
	}
	names := func(all []*verdict.Interface) (names []string) {
		for _, i := range all {
			names = append(names, i.Name)
		}
		slices.Sort(names)
		return names
	}
	if got := names(n.InterfacesOf(4)); !slices.Equal(got, []string{"eth0", "net1"}) || n.InterfacesOf(9) != nil || n.InterfacesOf(5) != nil {
		t.Errorf("got interfaces %q", got)
	}
	if !n.HasInterfaces(2) || n.HasInterfaces(5) || n.HasInterfaces(9) {
		t.Error("got wrong namespaces with interfaces")
	}
	if n.RecordOf("b1/4003") != 3 || n.RecordOf("b1/4009") != 0 {
		t.Error("got no namespace by its id")
	}
	if got := n.Behind(12); got == nil || got.Record != 2 || n.Behind(2) != nil || n.Behind(99) != nil {
		t.Errorf("got %+v behind a port", got)
	}
	if n.Namespaces() != 5 || n.Claims() != 7 || n.Excess != 0 || n.Applying || n.Given() != 0 {
		t.Errorf("got %d namespaces and %d claims", n.Namespaces(), n.Claims())
	}
	var subnets []string
	for _, one := range n.Subnets() {
		subnets = append(subnets, one.Prefix.String()+" "+one.Interface.Name+map[bool]string{true: " lan"}[one.LAN])
	}
	if slices.Sort(subnets); !slices.Equal(subnets, []string{"10.0.0.1/24 cni0", "10.1.0.1/24 br1 lan"}) {
		t.Errorf("got subnets %q", subnets)
	}
	lacks := &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 5, Netns: "abc", Intended: []*pb.Intended{{Address: "::ffff:10.0.0.9", Source: "cri", Interface: "eth0"}, {Address: "none"}}}}}
	if n.Intends(5) || n.Intends(9) {
		t.Error("got unexpected intended addresses")
	}
	if a.report(lacks); !n.Intends(5) || n.NamespaceOf(5).Intended != "10.0.0.9 cri eth0" {
		t.Errorf("got %q meant", n.NamespaceOf(5).Intended)
	}
}

func TestRangesOfANode(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, bridgeAndPods())
	r := a.n
	got := r.PodNetworks()
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"net0", "net1"}) || len(got["net0"]) != 1 {
		t.Errorf("got networks %v", got)
	}
	device := map[string]*verdict.Interface{}
	for _, i := range a.n.InterfacesOf(1) {
		device[i.Name] = i
	}
	for name, want := range map[string]bool{"cni0": true, "br1": false, "veth2": true, "veth3": false, "veth4": true, "veth5": false, "dummy0": false, "red0": false} {
		if got := r.PodsBehind(device[name]); got != want {
			t.Errorf("%s: got pods behind it %t, want %t", name, got, want)
		}
	}
	if r.PodsBehind(&verdict.Interface{Kind: "bridge", Link: &verdict.Link{Name: "other"}}) || r.PodsBehind(&verdict.Interface{Kind: "bridge"}) || r.PodsBehind(&verdict.Interface{Peer: 99}) {
		t.Error("got pods behind a missing interface")
	}
	for name, want := range map[string]string{"red0": "red", "cni0": "", "": "", "eth9": ""} {
		if got := r.VRF(name); got != want {
			t.Errorf("%s: got VRF %q, want %q", name, got, want)
		}
	}
}

func TestNamespacesOnALink(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, bridgeAndPods())
	on := func(link *verdict.Link, except uint32) (records []uint32) {
		for _, ns := range s.OnLink(link, a.n.NamespaceOf(except)) {
			records = append(records, ns.Record)
		}
		return records
	}
	link := func(name string, kind verdict.LinkKind) *verdict.Link {
		return &verdict.Link{Node: a.n.Rec, Name: name, Kind: kind}
	}
	for _, test := range []struct {
		link   *verdict.Link
		except uint32
		want   []uint32
	}{
		{link("cni0", verdict.Bridge), 3, []uint32{1, 2}},
		{link("cni0", verdict.Bridge), 5, []uint32{1, 2, 3}},
		{link("br1", verdict.Bridge), 5, []uint32{1, 4}},
		{link("veth4", verdict.PointToPoint), 4, []uint32{1}},
		{link("veth4", verdict.Bridge), 4, nil},
		{link("other", verdict.Bridge), 3, nil},
		{&verdict.Link{Node: &verdict.Node{Boot: "b9"}, Name: "cni0"}, 3, nil},
		{nil, 3, nil},
	} {
		if got := on(test.link, test.except); !slices.Equal(got, test.want) {
			t.Errorf("%+v without %d: got %d, want %d", test.link, test.except, got, test.want)
		}
	}
}

func TestHoldersOfAnAddress(t *testing.T) {
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1, lan(1), bridgeAndPods()), s.joins("n2", "b2", 1, lan(2))
	b.report(seen("10.0.0.2", []byte{2, 0, 0, 0, 0, 7}, 1), seen("10.0.0.8", []byte{2, 0, 0, 0, 0, 7}, 1))
	for _, test := range []struct {
		addr                  string
		holds, wired, claimed bool
		nodes                 []*Node
	}{
		{"10.0.0.2", true, true, true, []*Node{a.n, b.n}},
		{"10.0.0.3", false, false, true, []*Node{a.n}},
		{"10.0.0.8", false, true, true, []*Node{b.n}},
		{"10.0.0.9", false, false, false, nil},
	} {
		key := index.AddressOf(netip.MustParseAddr(test.addr))
		nodes := s.NodesOf(key)
		slices.SortFunc(nodes, func(a, b *Node) int { return a.ID.Compare(b.ID) })
		if s.Holds("b1/4002", key) != test.holds || s.WiredOrFailed(key) != test.wired || s.Claimed(key) != test.claimed || !slices.Equal(nodes, test.nodes) {
			t.Errorf("%s: got held %t, wired %t, claimed %t, on %d nodes", test.addr, s.Holds("b1/4002", key), s.WiredOrFailed(key), s.Claimed(key), len(nodes))
		}
	}
}

// A case contains everything that was reported.
func TestACaseHasAllThatIsKnown(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, bridgeAndPods())
	a.report(&pb.ReportRequest{
		Claims: []*pb.ClaimRecord{{
			Address: []byte{10, 0, 0, 2}, Kind: pb.Evidence_ANSWERED, Namespace: 1, Index: 13, Mac: []byte{2, 0, 0, 0, 3, 2}, Link: "cni0", Count: 3, Vlan: 4, InnerVlan: 5,
			Routed: true, NoOverride: true, Source: []byte{2, 0, 0, 0, 4, 2}, Flags: 9,
		}},
		Pools: []*pb.PoolRecord{{
			Ipam: hostlocal.Name, Name: "net0", Network: "net0", State: pb.Pool_MISSING, Problem: "problem", LostAt: &timestamppb.Timestamp{Seconds: 8}, Lost: 2, Plugin: "bridge",
			Device: "cni0", Routed: true, Config: "file", Ranges: []*pb.AddressRange{{First: []byte{10, 0, 0, 0}, Last: []byte{10, 0, 0, 255}}}, Gateways: [][]byte{{10, 0, 0, 1}},
		}},
		Allocations: []*pb.AllocationRecord{{
			Ipam: hostlocal.Name, Pool: "net0", Address: []byte{10, 0, 0, 2}, ContainerId: "c-a", Interface: "eth0", AllocatedAt: &timestamppb.Timestamp{Seconds: 4},
		}},
	})
	const who = "who={Kind:1 Namespace:default Name:%s UID:u-%s ContainerID:c-%s Source:cni-result Process: PID:7 Ended:false Idle:false MayForward:false VIPProgram: VIPProgramEnded:false VirtualMachine: Sources:name=cri} intended=\"\"]"
	of := func(record, name string) string {
		return "[n1#" + record + " netns=400" + record + " id=b1/400" + record + " " + strings.ReplaceAll(who, "%s", name)
	}
	const host = `[n1#1 netns=1 id=b1/1 who={Kind:6 Namespace: Name: UID: ContainerID: Source: Process: PID:0 Ended:false Idle:false MayForward:false VIPProgram: VIPProgramEnded:false VirtualMachine: Sources:} intended=""]`
	const cni0 = "link=[n1/cni0 kind=1 routed=true domain=- proven=-]"
	want := strings.Join([]string{
		`allocation net0/c-a eth0 of / on ,  at 4000000000, object=<nil> sandbox=true covered=false`,
		`claim 1 of ` + of("2", "a") + ` 2 eth0 mac=02:00:00:00:02:02 host=veth2 vrf= peer=0 at=2 uplink=false tap=false kind=veth ` + cni0 +
			` mac= link=[-] source= vlan=0,0 no-override=false routed=false prefix=24 network=net0 flags=0 count=1 first=0 last=0 assigned=3000000005`,
		`claim 3 of ` + host + ` 13 veth3 mac=02:00:00:00:01:0d host= vrf= peer=3 at=1 uplink=false tap=false kind=veth ` + cni0 +
			` mac=02:00:00:00:03:02 ` + cni0 + ` source=02:00:00:00:04:02 vlan=4,5 no-override=true routed=true prefix=0 network= flags=9 count=3 first=0 last=0 assigned=0`,
		`namespace n1#3 ` + strings.TrimSuffix(strings.TrimPrefix(of("3", "b"), "[n1#3 "), "]") + ` nested=false pod=<nil>`,
		`node n1 covered=true in-cidr=false pools=["net0"] subnets=["10.0.0.1/24 cni0 false false"]`,
		`pool n1 {Pool:{IPAM:host-local Name:net0 Traits:{Mirrored:false StartDelay:0s EndDelay:0s Secondary:false Status:false Assigns:false Leases:false Client:false OwnNamespaces:false Engine:false NamesNodes:false NodePools:false} Served:{Network:net0 Networks:[] Realm:} Ranges:[10.0.0.0/24] Divided:[] Services: Gateways:[10.0.0.1] Server:invalid IP ClientID: State:3 Problem:problem ` +
			`Wiring:{Plugin:bridge Device:cni0 Routed:true} Asked:false Grows:false Single:false Unread: Partial:false Config:file Base:invalid IP} Node:<nil> Loss:{LostAt:8000000000 Lost:2 LostHeard:0}}`,
		`station ` + of("3", "b") + ` 2 eth0 mac=02:00:00:00:03:02 host= vrf= peer=0 at=2 uplink=false tap=false kind=veth ` + cni0,
		`station ` + of("4", "c") + ` 2 eth0 mac=02:00:00:00:04:02 host= vrf= peer=0 at=2 uplink=false tap=false kind=veth link=[n1/veth4 kind=2 routed=false domain=- proven=-]`,
		`covered=true in-cidr=false`,
	}, "\n")
	if got := s.text("10.0.0.2"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// A kept case does not change when another one is made.
	b := s.Builder()
	kept := b.Case(index.AddressOf(netip.MustParseAddr("10.0.0.2")), false)
	b.Keep()
	claims := slices.Clone(kept.Claims)
	b.Case(index.AddressOf(netip.MustParseAddr("10.0.0.4")), false)
	own := slices.IndexFunc(claims, func(c *verdict.Claim) bool { return c.Kind == verdict.Assigned })
	if got := claims[own]; got.Interface.Namespace.Who.Name() != "a" || got.Interface.Link.Name != "cni0" || got.Network != "net0" {
		t.Errorf("got %+v of a case that was kept", got)
	}
}

// api is a Kubernetes API with a few pods, nodes and ranges.
type api struct {
	pods    map[string]*verdict.PodObject // by UID, and by NAMESPACE/NAME
	cidrs   map[string]netip.Prefix       // by node
	covered func(reports func(string) bool) bool
	until   verdict.Stamp
}

func (k *api) Pod(namespace, name, uid, node string) *verdict.PodObject {
	if p := k.pods[uid]; p != nil {
		return p
	}
	return k.PodNamed(namespace, name)
}

func (k *api) PodNamed(namespace, name string) *verdict.PodObject { return k.pods[namespace+"/"+name] }
func (k *api) KnownUntil() verdict.Stamp                          { return k.until }

func (k *api) OneTenant() bool { return true }

func (k *api) FormerEndpoints(netip.Addr) ([]ipam.Endpoint, bool) { return nil, true }

func (k *api) InPodCIDR(a netip.Addr) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(k.cidrs)), func(p netip.Prefix) bool { return p.Contains(a) })
}

func (k *api) Internal(string, netip.Addr) bool           { return false }
func (k *api) InPodCIDROf(node string, a netip.Addr) bool { return k.cidrs[node].Contains(a) }

func (k *api) NodesCovered(reports func(name string) bool) (all, asked bool) {
	if k.covered == nil {
		return false, false
	}
	return k.covered(reports), true
}

// follow starts to use a Kubernetes API.
func (s *scene) follow(k *api) { s.Kubernetes, s.Followed = k, true }

func TestKubernetesObjectsAreInTheCase(t *testing.T) {
	s := newScene(t)
	byUID, byName := &verdict.PodObject{Name: "by uid"}, &verdict.PodObject{Name: "by name"}
	s.follow(&api{
		pods: map[string]*verdict.PodObject{"u-a": byUID, "default/b": byName, "default/x": byName}, until: 77,
		cidrs: map[string]netip.Prefix{"n1": netip.MustParsePrefix("10.0.0.0/24"), "n2": netip.MustParsePrefix("10.2.0.0/24")},
	})
	a := s.joins("n1", "b1", 1, bridgeAndPods())
	s.judgeAll()
	caseOf := func(addr string) *verdict.Case {
		return s.Builder().Case(index.AddressOf(netip.MustParseAddr(addr)), false)
	}
	podOf := func(c *verdict.Case) *verdict.PodObject {
		for _, n := range c.Namespaces {
			if n.Pod != nil {
				return n.Pod
			}
		}
		return nil
	}
	one, two, host := caseOf("10.0.0.2"), caseOf("10.0.0.3"), caseOf("10.0.0.1")
	if podOf(one) != byUID || podOf(two) != byName || podOf(host) != nil {
		t.Errorf("got pods %v, %v and %v", podOf(one), podOf(two), podOf(host))
	}
	if !one.InPodCIDR || !one.OneTenant || one.PodsKnownUntil != 77 || len(one.Nodes) != 1 || !one.Nodes[0].InPodCIDR {
		t.Errorf("got in the range %t, known until %d, nodes %+v", one.InPodCIDR, one.PodsKnownUntil, one.Nodes)
	}
	if c := caseOf("10.2.0.1"); !c.InPodCIDR || len(c.Nodes) != 0 {
		t.Errorf("got in the range %t, nodes %+v, want that of another node", c.InPodCIDR, c.Nodes)
	}
	if c := caseOf("10.1.0.4"); c.InPodCIDR || len(c.Nodes) != 0 {
		t.Errorf("got in the range %t, nodes %+v, want none", c.InPodCIDR, c.Nodes)
	}
	if s.PodObject(nil) != nil || s.PodObject(a.n.NamespaceOf(1)) != nil || s.PodObject(a.n.NamespaceOf(5)) != nil || s.PodObject(a.n.NamespaceOf(2)) != byUID {
		t.Error("got pods of namespaces without one")
	}
	s.notified.heard = nil
	s.PodsChanged([]string{"u-a", "default/b", "none"})
	s.wantJudged("a pod changes that is found by its uid", "10.0.0.2")
	s.wantHeard("a pod changes", "lack n1#2")
	unnamed := &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 3, Netns: "4003", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: "b"}}}}
	a.report(unnamed)
	s.judgeAll()
	s.PodsChanged([]string{"default/b"})
	s.wantJudged("a pod changes that is found by its name", "10.0.0.3")
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 3, Gone: true}}})
	s.judgeAll()
	s.PodsChanged([]string{"default/b"})
	s.wantJudged("a pod changes that is gone")
	s.PodsOnChanged(func(name string) bool { return name == "n1" })
	s.wantJudged("pods of a node change", "10.0.0.2", "10.0.0.4", "10.1.0.4")
	s.PodsOnChanged(func(name string) bool { return name == "n2" })
	s.wantJudged("pods of another node change")

	s.IPAMChanged([]kube.IPAMChange{
		{Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: ipams.Traits(calico.IPAM.Name), Name: "p", State: ipam.Known}}},
		{Allocation: &verdict.Allocation{Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: ipams.Traits(calico.IPAM.Name), Name: "p"}}, Allocation: ipam.Allocation{Address: netip.MustParseAddr("10.0.0.2"), Namespace: "default", Pod: "x", Node: "n1"}}},
	})
	if c := caseOf("10.0.0.2"); len(c.Allocations) != 1 || c.Allocations[0].Object != byName || c.Allocations[0].Covered {
		t.Errorf("got allocations %+v, want one with the object of its pod", c.Allocations)
	}
	if c := s.Builder().Case(index.AddressOf(netip.MustParseAddr("10.0.0.2")), true); !c.Allocations[0].Covered {
		t.Error("the allocation's node in a dispute: got not covered, want covered")
	}
}

func TestWhetherNodesAreCovered(t *testing.T) {
	s := newScene(t)
	k := &api{}
	s.follow(k)
	covered := func() bool {
		s.after(coverFor)
		s.RLock()
		defer s.RUnlock()
		return s.Builder().Case(index.AddressOf(netip.MustParseAddr("10.0.0.2")), true).Covered
	}
	if covered() {
		t.Error("got all nodes covered, but there is no node")
	}
	a := s.joins("N1.example.com", "b1", 1, bridgeAndPods())
	if !covered() {
		t.Error("got uncovered nodes, want the only node covered")
	}
	for name, want := range map[string]bool{"N1.example.com": true, "n1": true, "n1.example.com": true, "n1.example.org": false, "n2": false, "n": false} {
		if s.Covered(name) != want || s.Reporting()(name) != want {
			t.Errorf("%s: got covered %t and reporting %t, want %t", name, s.Covered(name), s.Reporting()(name), want)
		}
	}
	k.covered = func(reports func(string) bool) bool { return reports("n1") && reports("n2") }
	if covered() {
		t.Error("got all nodes covered, but the API has another node")
	}
	b := s.joins("n2", "b2", 1)
	if !covered() {
		t.Error("got uncovered nodes, want both nodes covered")
	}
	s.notified.heard = nil
	b.report(&pb.ReportRequest{Status: &pb.StatusRecord{Blind: true}})
	if covered() || s.Covered("n2") || b.n.Covers() {
		t.Error("got all nodes covered, but one node is blind")
	}
	s.wantHeard("a status", "coverage")
	b.report(&pb.ReportRequest{Status: &pb.StatusRecord{NodeName: &pb.NodeName{Name: "n7", Source: pb.NodeName_FILE, File: "/f"}, Ports: make([]*pb.Node_Port, 3), Problems: make([]string, MaxProblems+1)}})
	if !covered() || b.n.Ports != 3 || b.n.Rec.IPAMName != (ipam.NodeName{Name: "n7", Source: ipam.FileName, File: "/f"}) || len(b.n.Status.GetProblems()) != MaxProblems || b.n.Status.GetPorts() != nil {
		t.Errorf("got %d ports, %d problems", b.n.Ports, len(b.n.Status.GetProblems()))
	}
	a.leave()
	if covered() || s.Covered("n1") {
		t.Error("got all nodes covered, but one node is silent")
	}
}

func TestNumbersAndTimesOfOtherAgents(t *testing.T) {
	for number, want := range map[pb.LinkRecord_Kind]verdict.LinkKind{-1: 0, 0: 0, pb.LinkRecord_BRIDGE: verdict.Bridge, pb.LinkRecord_OVS_PORT: verdict.OVSPort, 99: 0} {
		if got := Known(number, verdict.OVSPort); got != want {
			t.Errorf("%d: got %d, want %d", number, got, want)
		}
	}
	for _, test := range []struct {
		seconds int64
		nanos   int32
		want    verdict.Stamp
	}{{0, 0, 0}, {1, 2, 1_000_000_002}, {0, 5, 5}, {-1, 0, 0}, {1, -1, 0}, {1, 1e9, 0}, {1, 1e9 - 1, 1_999_999_999}, {maxSeconds, 0, 0}, {maxSeconds - 1, 0, (maxSeconds - 1) * 1e9}} {
		if got := Stamp(&timestamppb.Timestamp{Seconds: test.seconds, Nanos: test.nanos}); got != test.want {
			t.Errorf("%d.%d: got %d, want %d", test.seconds, test.nanos, got, test.want)
		}
	}
}

func TestInvalidRecordsAreDropped(t *testing.T) {
	claim := func(change func(c *pb.ClaimRecord)) *pb.ReportRequest {
		m := assignedMessage(2, "10.0.0.7")
		change(m.Claims[0])
		return m
	}
	for _, test := range []struct {
		name    string
		m       *pb.ReportRequest
		dropped string
	}{
		{"a namespace without a number", &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{}}}, "namespace"},
		{"an interface in no namespace", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 9, Index: 1, Attachment: pb.InterfaceRecord_OWN}}}, "interface"},
		{"an interface of an unknown sort", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 7}}}, "interface"},
		{"a claim on no interface", claim(func(c *pb.ClaimRecord) { c.Index = 99 }), "claim"},
		{"the end of a claim on no interface", claim(func(c *pb.ClaimRecord) { c.Index, c.Gone = 99, true }), ""},
		{"the end of a claim that is not there", claim(func(c *pb.ClaimRecord) { c.Gone = true }), ""},
		{"a claim of an unknown sort", claim(func(c *pb.ClaimRecord) { c.Kind = 99 }), "claim"},
		{"a claim of no address", claim(func(c *pb.ClaimRecord) { c.Address = make([]byte, 16) }), "claim"},
		{"a claim of a group", claim(func(c *pb.ClaimRecord) { c.Address = []byte{224, 0, 0, 1} }), "claim"},
		{"a frame without a MAC", claim(func(c *pb.ClaimRecord) { c.Kind = pb.Evidence_ANNOUNCED }), "claim"},
		{"a claim of a loopback", claim(func(c *pb.ClaimRecord) { c.Address = []byte{127, 0, 0, 1} }), ""},
		{"a pool of the cluster", &pb.ReportRequest{Pools: []*pb.PoolRecord{{Ipam: calico.IPAM.Name, Name: "p", State: pb.Pool_KNOWN}}}, "pool"},
		{"a pool without a name", &pb.ReportRequest{Pools: []*pb.PoolRecord{{Ipam: hostlocal.Name, State: pb.Pool_KNOWN}}}, "pool"},
		{"a pool without a state", &pb.ReportRequest{Pools: []*pb.PoolRecord{{Ipam: hostlocal.Name, Name: "p"}}}, "pool"},
		{"the end of a pool that is not there", &pb.ReportRequest{Pools: []*pb.PoolRecord{{Ipam: hostlocal.Name, Name: "p", Gone: true}}}, ""},
		{"an allocation of no pool", &pb.ReportRequest{Allocations: []*pb.AllocationRecord{{Ipam: hostlocal.Name, Pool: "p", Address: []byte{10, 0, 0, 7}}}}, "allocation"},
		{"the end of an allocation of no pool", &pb.ReportRequest{Allocations: []*pb.AllocationRecord{{Ipam: hostlocal.Name, Pool: "p", Address: []byte{10, 0, 0, 7}, Gone: true}}}, ""},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, bridgeAndPods())
		s.judgeAll()
		a.report(test.m)
		want := map[string]int{}
		if test.dropped != "" {
			want[test.dropped] = 1
		}
		got := maps.Clone(s.notified.dropped)
		maps.DeleteFunc(got, func(_ string, n int) bool { return n == 0 })
		if !maps.Equal(got, want) || a.n.Claims() != 7 || s.Allocations() != 0 {
			t.Errorf("%s: got %v dropped and %d claims, want %v and 7", test.name, got, a.n.Claims(), want)
		}
		s.wantJudged(test.name)
	}
}

// Pods are behind a port only if their first interface has an address from CNI.
func TestWhichPodsAreBehindAPort(t *testing.T) {
	for _, test := range []struct {
		name       string
		iface      string
		attachment pb.InterfaceRecord_Attachment
		want       bool
	}{{"the first interface", "eth0", pb.InterfaceRecord_PEER, true}, {"another interface", "net1", pb.InterfaceRecord_PEER, false}, {"a device over another one", "eth0", pb.InterfaceRecord_LOWER, false}} {
		s := newScene(t)
		m := pod(2, "10.0.0.2")
		m.Interfaces[0].Name, m.Interfaces[0].Attachment, m.Claims[0].Network = test.iface, test.attachment, "net0"
		a := s.joins("n1", "b1", 1, m)
		if got := a.n.PodsBehind(&verdict.Interface{Peer: 2}); got != test.want {
			t.Errorf("%s: got pods behind it %t, want %t", test.name, got, test.want)
		}
	}
}

// The networks of a node are those of its pods, without those of other containers and of the
// agent's own pod.
func TestNetworksOfPodsOnly(t *testing.T) {
	for _, test := range []struct {
		name   string
		record uint32
		kind   pb.Workload_Kind
		want   bool
	}{{"a pod", 3, pb.Workload_POD, true}, {"another container", 3, pb.Workload_CONTAINER, false}, {"the agent's own pod", 1, pb.Workload_POD, false}} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1)
		m := pod(3, "10.0.0.3")
		m.Namespaces = []*pb.NamespaceRecord{{Id: test.record, Netns: "4003", Workload: &pb.Workload{Kind: test.kind, Name: "x"}}}
		m.Interfaces, m.Links = []*pb.InterfaceRecord{{Namespace: test.record, Index: 2, Name: "eth0", Attachment: pb.InterfaceRecord_PEER}}, nil
		m.Claims[0].Namespace, m.Claims[0].Network = test.record, "net0"
		a.report(m)
		if got := a.n.PodNetworks()["net0"] != nil; got != test.want {
			t.Errorf("%s: got its network used %t, want %t", test.name, got, test.want)
		}
	}
}

func TestNamespacesOnALinkAreInOrder(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1))
	for _, record := range []uint32{7, 3, 5, 4, 6} {
		a.report(onLAN(record, "10.0.0.1"))
	}
	var got []uint32
	for _, ns := range s.OnLink(&verdict.Link{Node: a.n.Rec, Name: "eth0", Kind: verdict.Uplink}, a.n.NamespaceOf(5)) {
		got = append(got, ns.Record)
	}
	if want := []uint32{1, 3, 4, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("got namespaces %d, want %d", got, want)
	}
}

// A node that has only connected has no records.
func TestANodeThatHasNotReported(t *testing.T) {
	s := newScene(t)
	a, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	if n := a.n; n.Subnets() != nil || n.InterfacesOf(1) != nil || n.HasInterfaces(1) || n.Behind(2) != nil || n.NamespaceOf(1) != nil || n.VRF("eth0") != "" ||
		n.PodsBehind(&verdict.Interface{Kind: "bridge", Link: &verdict.Link{Name: "cni0"}}) || len(s.AddressesOn("n1")) != 0 {
		t.Error("got records of a node that has not reported")
	}
}

// The pods of a removed node are no longer found.
func TestPodsOfANodeThatIsGivenUp(t *testing.T) {
	s := newScene(t)
	s.follow(&api{})
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"))
	s.judgeAll()
	s.PodsChanged([]string{"uidveth2"})
	s.wantJudged("the pod changes", "10.0.0.2")
	a.leave()
	s.after(time.Minute)
	s.Ring()
	s.judgeAll()
	s.notified.heard = nil
	s.PodsChanged([]string{"uidveth2"})
	s.wantJudged("it changes when its node times out")
	s.wantHeard("it changes when its node times out")
}
