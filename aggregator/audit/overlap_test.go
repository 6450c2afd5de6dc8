package audit_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/containers"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

var policy = &verdict.Policy{Cluster: "test"}

func span(first, last string) ipam.Range {
	return ipam.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

func prefix(text string) ipam.Range { return ipam.RangeOf(netip.MustParsePrefix(text)) }

func agent(name, netns string) *verdict.Node {
	return &verdict.Node{Name: name, Boot: "boot-" + name, Netns: netns}
}

// ofKubernetes returns a pod range of a node; ofAgent returns the range of a node's own pool.
func ofKubernetes(node, text string) verdict.Side {
	return audit.NodeSpecSide(node, netip.MustParsePrefix(text))
}

func ofAgent(n *verdict.Node, text string) verdict.Side {
	return verdict.Side{Node: n.Name, Agent: n, Range: prefix(text), Source: verdict.SidePool, IPAM: hostlocal.Name}
}

func TestNodesThatAllocateOutsideOfTheirRanges(t *testing.T) {
	n1, n2, short := agent("n1", "1"), agent("n2", "2"), agent("n2.example", "2")
	in := func(s verdict.Side, network string) verdict.Side { s.Network = network; return s }
	specs := []verdict.Side{ofKubernetes("n1", "10.244.1.0/24"), ofKubernetes("n1", "fd00:1::/64"), ofKubernetes("n2", "10.244.2.0/24")}
	unused := in(ofAgent(n2, "10.244.7.0/24"), "pods")
	unused.Unused = true
	for _, test := range []struct {
		why   string
		sides []verdict.Side
		want  string
	}{
		{"another node uses its range", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), in(ofAgent(n2, "10.244.7.0/24"), "pods")}, "n2 10.244.7.0"},
		{"the same, with a domain", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), in(ofAgent(short, "10.244.7.0/24"), "pods")}, "n2.example 10.244.7.0"},
		{"both use theirs", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), in(ofAgent(n2, "10.244.2.0/24"), "pods")}, ""},
		{"a part of its range", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), in(ofAgent(n2, "10.244.2.128/25"), "pods")}, ""},
		{"no node uses its range: the plugin has ranges of its own", []verdict.Side{in(ofAgent(n1, "10.9.1.0/24"), "pods"), in(ofAgent(n2, "10.9.2.0/24"), "pods")}, ""},
		{"one node alone, with a range like its own", []verdict.Side{in(ofAgent(n1, "10.244.7.0/24"), "pods")}, "WARNING n1 10.244.7.0"},
		{"the same, by its first and last addresses", []verdict.Side{{Node: "n1", Agent: n1, Network: "pods", Range: span("10.244.7.2", "10.244.7.254"), Source: verdict.SidePool}}, "WARNING n1 10.244.7.2"},
		{"one node alone, with a range of another length", []verdict.Side{in(ofAgent(n1, "10.244.8.0/23"), "pods")}, ""},
		{"one node alone, with a smaller range", []verdict.Side{in(ofAgent(n1, "10.244.7.0/25"), "pods")}, ""},
		{"one node alone, with a range of its plugin", []verdict.Side{in(ofAgent(n1, "10.88.7.0/24"), "pods")}, ""},
		{"one node with pods, and another one that would use a range of the plugin, too", []verdict.Side{in(ofAgent(n1, "10.244.8.0/24"), "pods"), unused}, ""},
		{"one node alone, with a second range", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), in(ofAgent(n1, "10.244.7.0/24"), "pods")}, ""},
		{"a secondary network", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), in(ofAgent(n2, "192.0.2.0/24"), "lan")}, ""},
		{"no pod uses it", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), unused}, ""},
		{"Kubernetes has assigned no range of that family", []verdict.Side{in(ofAgent(n1, "fd00:1::/64"), "pods"), in(ofAgent(n2, "fd00:7::/64"), "pods")}, ""},
		{"a node object that may be left over has an address of it", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), in(ofAgent(n2, "10.244.7.0/24"), "pods"), audit.ListedSide("n9", netip.MustParseAddr("10.244.7.9"))}, "n2 10.244.7.0"},
		{"the range is that of another node already", []verdict.Side{in(ofAgent(n1, "10.244.1.0/24"), "pods"), in(ofAgent(n2, "10.244.1.0/24"), "pods")}, ""},
	} {
		got := ""
		for _, f := range audit.Outside(policy, append(slices.Clone(specs), test.sides...)) {
			if f.Severity == verdict.Warning {
				got += "WARNING "
			}
			got += f.Overlap.Sides[0].Node + " " + f.Overlap.Range.First.String()
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.why, got, test.want)
		}
	}
}

func TestRangesOfNodes(t *testing.T) {
	n1, renamed, other := agent("n1", "1"), agent("n1", "1"), agent("n1", "2")
	renamed.Name, other.Name = "before", "two"
	for _, test := range []struct {
		why   string
		sides []verdict.Side
		want  string // the first common range
		nodes []string
	}{
		{"one node", []verdict.Side{ofKubernetes("n1", "10.244.0.0/24"), ofKubernetes("n1", "10.244.0.0/24")}, "", nil},
		{"two nodes", []verdict.Side{ofKubernetes("n1", "10.244.0.0/24"), ofKubernetes("n2", "10.244.1.0/24")}, "", nil},
		{"two nodes of one range", []verdict.Side{ofKubernetes("n1", "10.244.0.0/24"), ofKubernetes("n2", "10.244.0.0/24")}, "10.244.0.0/24", []string{"n1", "n2"}},
		{"a range within another", []verdict.Side{ofKubernetes("n1", "10.244.0.0/16"), ofKubernetes("n2", "10.244.7.0/24")}, "10.244.7.0/24", []string{"n1", "n2"}},
		{"two within a third one's", []verdict.Side{ofKubernetes("n1", "10.244.1.0/24"), ofKubernetes("n2", "10.244.2.0/24"), ofKubernetes("n3", "10.244.0.0/16")}, "10.244.1.0/24", []string{"n1", "n2", "n3"}},
		{"one overlaps with the first of three only", []verdict.Side{ofKubernetes("n1", "10.244.0.0/16"), ofKubernetes("n1", "10.244.1.0/24"), ofKubernetes("n2", "10.244.200.0/24")}, "10.244.200.0/24", []string{"n1", "n2"}},
		{"a chain", []verdict.Side{
			{Node: "n1", Range: span("10.0.0.1", "10.0.0.9")}, {Node: "n1", Range: span("10.0.0.5", "10.0.0.20")}, {Node: "n2", Range: span("10.0.0.15", "10.0.0.30")},
		}, "10.0.0.15-10.0.0.20", []string{"n1", "n2"}},
		{"the last address of one", []verdict.Side{
			{Node: "n1", Range: span("10.0.0.1", "10.0.0.9")}, {Node: "n2", Range: span("10.0.0.9", "10.0.0.12")},
		}, "10.0.0.9/32", []string{"n1", "n2"}},
		{"the address after the last one", []verdict.Side{
			{Node: "n1", Range: span("10.0.0.1", "10.0.0.9")}, {Node: "n2", Range: span("10.0.0.10", "10.0.0.12")},
		}, "", nil},
		{"IPv4 and IPv6", []verdict.Side{ofKubernetes("n1", "0.0.0.0/0"), ofKubernetes("n2", "::/0")}, "", nil},
		{"a node with a domain in Kubernetes", []verdict.Side{ofKubernetes("n1.example.org", "10.244.0.0/24"), ofAgent(n1, "10.244.0.0/24")}, "", nil},
		{"a node in capitals in Kubernetes", []verdict.Side{ofKubernetes("N1", "10.244.0.0/24"), ofAgent(n1, "10.244.0.0/24")}, "", nil},
		{"a node that is nearly called so in Kubernetes", []verdict.Side{ofKubernetes("n10", "10.244.0.0/24"), ofAgent(n1, "10.244.0.0/24")}, "10.244.0.0/24", []string{"n1", "n10"}},
		{"a node that was renamed", []verdict.Side{ofAgent(renamed, "10.244.0.0/24"), ofAgent(n1, "10.244.0.0/24")}, "", nil},
		{"two nodes on one kernel", []verdict.Side{ofAgent(other, "10.244.0.0/24"), ofAgent(n1, "10.244.0.0/24")}, "10.244.0.0/24", []string{"n1", "two"}},
	} {
		for range 2 {
			found := audit.Ranges(policy, slices.Clone(test.sides))
			switch {
			case len(found) == 0 && test.want != "", len(found) > 1, len(found) == 1 && found[0].Overlap.Range.String() != test.want:
				t.Errorf("%s: got %+v, want %q", test.why, found, test.want)
			case len(found) == 1 && (found[0].Kind != verdict.FindingPodCIDROverlap || found[0].Severity != verdict.Critical || !slices.Equal(found[0].Overlap.Nodes, test.nodes)):
				t.Errorf("%s: got %+v, want nodes %v", test.why, found[0], test.nodes)
			}
			slices.Reverse(test.sides) // the order does not matter
		}
	}
}

func TestRangesDeclaredAsSharedAreNotReported(t *testing.T) {
	sides := []verdict.Side{ofKubernetes("n1", "10.244.0.0/24"), ofKubernetes("n2", "10.244.0.0/24")}
	for declared, want := range map[string]int{"10.244.0.0/16": 0, "10.244.0.0/25": 1} {
		p := &verdict.Policy{Shared: []verdict.Shared{{Prefix: netip.MustParsePrefix(declared)}}}
		if found := audit.Ranges(p, slices.Clone(sides)); len(found) != want {
			t.Errorf("%s is shared: got %+v, want %d findings", declared, found, want)
		}
	}
}

func TestGroupsOfRangesHaveAFindingEach(t *testing.T) {
	found := audit.Ranges(policy, []verdict.Side{
		ofKubernetes("n1", "10.244.0.0/24"), ofKubernetes("n2", "10.244.0.0/24"), ofKubernetes("n3", "10.244.9.0/24"), ofKubernetes("n4", "10.244.9.0/24"), ofKubernetes("n5", "10.244.5.0/24"),
	})
	if len(found) != 2 || found[0].ID == found[1].ID || !slices.Equal(found[1].Overlap.Nodes, []string{"n3", "n4"}) {
		t.Errorf("got %+v, want one of n1 and n2 and one of n3 and n4", found)
	}
}

func TestNetworksOfOneNode(t *testing.T) {
	n := agent("n1", "1")
	for why, test := range map[string]struct {
		change func(a, b *audit.NodePool)
		want   verdict.Severity // 0 for no finding
	}{
		"both give the range":              {func(*audit.NodePool, *audit.NodePool) {}, verdict.Warning},
		"one has no allocations yet":       {func(a, _ *audit.NodePool) { a.Used = false }, verdict.Info},
		"the other one has no allocations": {func(_, b *audit.NodePool) { b.Used = false }, verdict.Info},
		"they are in different VRFs":       {func(a, _ *audit.NodePool) { a.VRF = "red" }, 0},
		"they are of one network":          {func(a, b *audit.NodePool) { a.Pool.Network = b.Pool.Network }, 0},
		"one has another range":            {func(a, _ *audit.NodePool) { a.Pool.Ranges = []ipam.Range{prefix("10.9.0.0/24")} }, 0},
		"one is not routed":                {func(a, _ *audit.NodePool) { a.Pool.Routed = false }, 0},
		"neither is routed, one bridge": {func(a, b *audit.NodePool) {
			a.Pool.Routed, b.Pool.Routed, a.Pool.Device, b.Pool.Device = false, false, "cni0", "cni0"
		}, verdict.Warning},
	} {
		pool := func(network string) audit.NodePool {
			return audit.NodePool{Used: true, Pool: &verdict.Pool{
				Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Served: ipam.Served{Network: network}, Config: network + ".conflist", Wiring: ipam.Wiring{Routed: true}, Ranges: []ipam.Range{prefix("10.88.0.0/16")}},
			}}
		}
		b, a := pool("b"), pool("a")
		test.change(&a, &b)
		found := audit.Networks(policy, n, []audit.NodePool{b, a})
		if other := audit.Networks(policy, n, []audit.NodePool{a, b}); len(other) != len(found) || len(found) > 0 && other[0].ID != found[0].ID {
			t.Errorf("%s: got %+v and %+v, want one in any order", why, found, other)
		}
		if shared := audit.Networks(&verdict.Policy{Shared: []verdict.Shared{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}}, n, []audit.NodePool{a, b}); shared != nil {
			t.Errorf("%s: got %+v, want no declared range", why, shared)
		}
		switch {
		case len(found) == 0 && test.want == 0:
		case len(found) != 1 || found[0].Kind != verdict.FindingRangesOverlap || found[0].Severity != test.want:
			t.Errorf("%s: got %+v, want severity %d", why, found, test.want)
		case found[0].Overlap.Sides[0].Network != "a" || found[0].Overlap.Sides[1].Network != "b" || !slices.Equal(audit.Nodes(&found[0]), []string{"n1"}):
			t.Errorf("%s: got sides %+v, want a and then b of n1", why, found[0].Overlap.Sides)
		}
	}
}

func TestPoolsThatNodesGetRangesFrom(t *testing.T) {
	pool := func(name string, ranges ...ipam.Range) *verdict.Pool {
		return &verdict.Pool{Pool: ipam.Pool{IPAM: cilium.IPAM.Name, Traits: registry.Traits(cilium.IPAM.Name), Name: name, Config: "ciliumpodippools " + name, Divided: ranges}}
	}
	all := []*verdict.Pool{
		pool("blue", prefix("fd00::/64"), prefix("10.20.0.0/16"), prefix("10.9.0.0/24")), pool("green", prefix("10.20.128.0/17"), prefix("10.9.0.128/25")),
		pool("red", prefix("10.21.0.0/16"), prefix("fd01::/64")),
	}
	for range 2 {
		found := audit.Divided(policy, all)
		if len(found) != 1 {
			t.Fatalf("got %+v, want one of blue and green", found)
		}
		f, sides := found[0], found[0].Overlap.Sides
		if f.Kind != verdict.FindingRangesOverlap || f.Severity != verdict.Warning || f.Overlap.Range.String() != "10.9.0.128/25" || len(audit.Nodes(&f)) != 0 ||
			sides[0].Pool != "blue" || sides[1].Pool != "green" || sides[1].Source != verdict.SideDivided || sides[1].Config != "ciliumpodippools green" || len(sides[0].Ranges) != 3 {
			t.Errorf("got %+v, want a warning about 10.9.0.128/25 of blue and green", f)
		}
		slices.Reverse(all) // the order does not matter
	}
	if found := audit.Divided(&verdict.Policy{Shared: []verdict.Shared{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}}, all); found != nil {
		t.Errorf("got %+v of a declared range, want none", found)
	}
	other := pool("blue", prefix("10.21.0.0/16"))
	other.IPAM = "other"
	if found := audit.Divided(policy, []*verdict.Pool{other, pool("red", prefix("10.21.0.0/16"))}); found != nil {
		t.Errorf("got %+v of two IPAMs, want none", found)
	}
}

// Only a bridge that the plugin of a pool made can be made again after it was deleted.
func TestSidesOfBridgesOfPlugins(t *testing.T) {
	subnet := verdict.Subnet{Prefix: netip.MustParsePrefix("10.4.0.1/24"), Interface: &verdict.Interface{Name: "dev0", Kind: "bridge"}}
	for name, tt := range map[string]struct {
		wiring ipam.Wiring
		kind   string
		want   bool
	}{
		"its own bridge":                {ipam.Wiring{Plugin: "bridge", Device: "dev0"}, "bridge", true},
		"another bridge":                {ipam.Wiring{Plugin: "bridge", Device: "dev1"}, "bridge", false},
		"a bridge as master of macvlan": {ipam.Wiring{Plugin: "macvlan", Device: "dev0"}, "bridge", false},
		"a device of the node":          {ipam.Wiring{Plugin: "bridge", Device: "dev0"}, "", false},
	} {
		subnet.Interface.Kind = tt.kind
		sides := audit.Sides(agent("n1", "1"), []*verdict.Pool{{Pool: ipam.Pool{Wiring: tt.wiring}}}, nil, []audit.Subnet{{Subnet: subnet, Pods: true}})
		if len(sides) != 1 || sides[0].MadeByPlugin != tt.want {
			t.Errorf("%s: got %+v, want MadeByPlugin %v", name, sides, tt.want)
		}
	}
}

// The order in which a node's addresses were reported does not matter.
func TestSidesOfANodeAreTheWidest(t *testing.T) {
	n := agent("n1", "1")
	var subnets []audit.Subnet
	for _, text := range []string{"10.0.1.1/24", "10.0.0.9/16", "10.9.0.1/24", "10.0.1.2/32"} {
		subnets = append(subnets, audit.Subnet{Subnet: verdict.Subnet{Prefix: netip.MustParsePrefix(text), Interface: &verdict.Interface{Name: "br"}}, Pods: true})
	}
	for range 2 {
		var got []string
		for _, s := range audit.Sides(n, nil, nil, subnets) {
			got = append(got, s.Range.String())
		}
		if want := []string{"10.0.0.0/16", "10.9.0.0/24"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		slices.Reverse(subnets)
	}
}

func TestSidesOfANode(t *testing.T) {
	n := agent("n1", "1")
	pool := func(network, text string) *verdict.Pool {
		return &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Served: ipam.Served{Network: network}, Wiring: ipam.Wiring{Routed: true}, Ranges: []ipam.Range{prefix(text)}, Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}}
	}
	subnet := func(text string) audit.Subnet {
		return audit.Subnet{Subnet: verdict.Subnet{Prefix: netip.MustParsePrefix(text), Interface: &verdict.Interface{Name: "br"}}, Pods: true}
	}
	away := pool("pods", "10.3.0.0/24")
	away.Routed = false
	lan, empty := subnet("10.5.0.1/24"), subnet("10.6.0.1/24")
	lan.LAN, empty.Pods = true, false
	sides := audit.Sides(n, []*verdict.Pool{pool("pods", "10.1.0.0/24"), pool("unused", "10.2.0.0/24"), away}, map[string][]netip.Addr{"pods": {netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.4.0.2"), netip.MustParseAddr("10.7.0.2")}},
		[]audit.Subnet{subnet("10.4.0.1/24"), lan, empty, subnet("10.1.0.1/16"), subnet("10.1.0.9/24"), subnet("fe80::1/64")})
	var got []string
	for _, s := range sides {
		got = append(got, s.Range.String())
	}
	if want := []string{"10.1.0.0/24", "10.4.0.0/24", "10.7.0.2/32", "10.5.0.1/32"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v: the pool that pods use, the bridge of pods that no pool has, a pod outside of both, and the node on its LAN", got, want)
	}
	if sides[0].Source != verdict.SidePool || sides[1].Source != verdict.SideAddress || sides[1].Agent != n || sides[2].Source != verdict.SideHeld || sides[2].Network != "pods" || sides[3].Device != "br" {
		t.Errorf("got %+v, want a pool, the prefix of a bridge, a pod's address and an address of the node", sides)
	}
}

// A node without pods has one pool that its first pod will use.
func TestSidesOfANodeWithoutPods(t *testing.T) {
	pool := func(config, device, text string) *verdict.Pool {
		return &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Served: ipam.Served{Network: config}, Wiring: ipam.Wiring{Routed: true, Device: device}, Config: "/etc/cni/net.d/" + config, Ranges: []ipam.Range{prefix(text)}}}
	}
	pools := []*verdict.Pool{pool("87-podman.conflist", "cni0", "10.1.0.0/24"), pool("10-net.conflist", "cni0", "10.2.0.0/24"), pool("00-engine.conflist", "cni-podman0", "10.3.0.0/24")}
	sides := audit.Sides(agent("n1", "1"), pools, nil, nil)
	if len(sides) != 1 || sides[0].Range.String() != "10.2.0.0/24" || !sides[0].Unused {
		t.Errorf("got %+v, want the first one that is no engine's, unused", sides)
	}
	if sides := audit.Sides(agent("n1", "1"), pools, map[string][]netip.Addr{"other": nil}, nil); len(sides) != 0 {
		t.Errorf("got %+v of a node whose pods use another network, want none", sides)
	}
}

// Networks with devices on a LAN, and the node's own addresses there, meet those of other nodes on that LAN only.
func TestRangesOnLANs(t *testing.T) {
	n1, n2 := agent("n1", "1"), agent("n2", "2")
	lan, other := &verdict.Domain{Node: n1, Name: "eth0"}, &verdict.Domain{Node: n1, Name: "eth1"}
	on := func(of map[string]*verdict.Domain) func(string) *verdict.Domain {
		return func(device string) *verdict.Domain { return of[device] }
	}
	pool := func(device, text string) *verdict.Pool {
		return &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Served: ipam.Served{Network: "lan"}, Wiring: ipam.Wiring{Plugin: "macvlan", Device: device}, Config: "/etc/cni/net.d/10-lan.conf", Ranges: []ipam.Range{prefix(text)}}}
	}
	routed, leases, kept := pool("eth0", "192.0.2.0/24"), pool("eth0", "192.0.2.0/24"), pool("eth0", "192.0.2.0/24")
	kept.Gateways = []netip.Addr{netip.MustParseAddr("192.0.2.12")}
	routed.Routed, leases.Leases = true, true
	engine := func(plugin, text string, state ipam.State) *verdict.Pool {
		p := pool("eth0", text)
		p.Config, p.IPAM, p.Traits, p.Plugin, p.State = "", containers.DockerName, registry.Traits(containers.DockerName), plugin, state
		return p
	}
	has := func(device, text string) []audit.Subnet {
		return []audit.Subnet{{Subnet: verdict.Subnet{Prefix: netip.MustParsePrefix(text), Interface: &verdict.Interface{Name: device}}}}
	}
	for why, test := range map[string]struct {
		first    *verdict.Pool
		second   *verdict.Pool
		own      []audit.Subnet // of the second node
		domain   *verdict.Domain
		want     string
		declared string
	}{
		"one range on one LAN":                       {first: pool("eth0", "192.0.2.0/24"), second: pool("eth0", "192.0.2.0/24"), domain: lan, want: "192.0.2.0/24"},
		"devices with other names":                   {first: pool("eth0", "192.0.2.0/24"), second: pool("ens3", "192.0.2.64/26"), domain: lan, want: "192.0.2.64/26"},
		"networks of docker":                         {first: engine("macvlan", "192.0.2.0/24", ipam.Known), second: engine("ipvlan", "192.0.2.0/24", ipam.Known), domain: lan, want: "192.0.2.0/24"},
		"networks of docker that were lost":          {first: engine("macvlan", "192.0.2.0/24", ipam.Missing), second: engine("macvlan", "192.0.2.0/24", ipam.Missing), domain: lan},
		"internal networks of docker":                {first: engine("bridge", "192.0.2.0/24", ipam.Known), second: engine("bridge", "192.0.2.0/24", ipam.Known), domain: lan},
		"the address of another node in a /64":       {first: pool("eth0", "2001:db8::/64"), own: has("eth0", "2001:db8::12/64"), domain: lan},
		"the same /64":                               {first: pool("eth0", "2001:db8::/64"), second: pool("eth0", "2001:db8::/64"), domain: lan, want: "2001:db8::/64"},
		"one of two addresses is declared":           {first: pool("eth0", "192.0.2.0/24"), own: append(has("eth0", "192.0.2.12/24"), has("eth0", "192.0.2.13/24")...), domain: lan, declared: "192.0.2.12/32", want: "192.0.2.13/32"},
		"the part of each node":                      {first: pool("eth0", "192.0.2.0/25"), second: pool("eth0", "192.0.2.128/25"), domain: lan},
		"two LANs":                                   {first: pool("eth0", "192.0.2.0/24"), second: pool("eth0", "192.0.2.0/24"), domain: other},
		"LANs that are not known to be one":          {first: pool("eth0", "192.0.2.0/24"), second: pool("eth0", "192.0.2.0/24")},
		"a network that the node routes":             {first: pool("eth0", "192.0.2.0/24"), second: routed, domain: lan},
		"a DHCP server":                              {first: pool("eth0", "192.0.2.0/24"), second: leases, domain: lan},
		"declared as shared":                         {first: pool("eth0", "192.0.2.0/24"), second: pool("eth0", "192.0.2.0/24"), domain: lan, declared: "192.0.2.0/24"},
		"the address of another node":                {first: pool("eth0", "192.0.2.0/24"), own: has("eth0", "192.0.2.12/24"), domain: lan, want: "192.0.2.12/32"},
		"the address of another node, which is kept": {first: kept, own: has("eth0", "192.0.2.12/24"), domain: lan},
		"the address of another node outside of it":  {first: pool("eth0", "192.0.2.128/25"), own: has("eth0", "192.0.2.12/24"), domain: lan},
		"the address of another node on another LAN": {first: pool("eth0", "192.0.2.0/24"), own: has("eth0", "192.0.2.12/24"), domain: other},
	} {
		p := *policy
		if test.declared != "" {
			p.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix(test.declared)}}
		}
		var second []audit.NodePool
		if test.second != nil {
			second = []audit.NodePool{{Pool: test.second}}
		}
		sides := slices.Concat(
			audit.OnLANs(n1, []audit.NodePool{{Pool: test.first, Used: true}}, has("eth0", "192.0.2.11/24"), on(map[string]*verdict.Domain{"eth0": lan})),
			audit.OnLANs(n2, second, test.own, on(map[string]*verdict.Domain{"eth0": test.domain, "ens3": test.domain})))
		got := ""
		for _, f := range append(audit.Ranges(&p, slices.Clone(sides)), audit.Outside(&p, sides)...) {
			got += f.Overlap.Range.String()
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", why, got, test.want)
		}
	}
}

// Nobody has used two ranges of a LAN yet.
func TestUnusedRangesOnLANs(t *testing.T) {
	lan := &verdict.Domain{Node: agent("n1", "1"), Name: "eth0"}
	pool := func(text string) audit.NodePool {
		return audit.NodePool{Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, State: ipam.Missing, Wiring: ipam.Wiring{Plugin: "macvlan", Device: "eth0"}, Config: "/etc/cni/net.d/10-lan.conf", Ranges: []ipam.Range{prefix(text)}}}}
	}
	for why, test := range map[string]struct {
		change func(a, b *audit.NodePool)
		own    string // an address of a third node
		want   verdict.Severity
	}{
		"neither has an allocation":                     {nil, "", verdict.Warning},
		"both are empty":                                {func(a, b *audit.NodePool) { a.Pool.State, b.Pool.State = ipam.Known, ipam.Known }, "", verdict.Warning},
		"they are being read":                           {func(a, b *audit.NodePool) { a.Pool.State, b.Pool.State = ipam.Reading, ipam.Reading }, "", verdict.Warning},
		"one has an allocation":                         {func(_, b *audit.NodePool) { b.Used = true }, "", verdict.Critical},
		"one cannot be read":                            {func(a, _ *audit.NodePool) { a.Pool.State = ipam.Unreadable }, "", verdict.Critical},
		"one has lost its allocations":                  {func(a, _ *audit.NodePool) { a.Pool.Lost = 1 }, "", verdict.Critical},
		"one does not overlap, and has allocations":     {func(a, b *audit.NodePool) { a.Used, a.Pool.Ranges = true, b.Pool.Ranges[:0] }, "", 0},
		"a node has an address of the ranges":           {nil, "192.0.2.12/24", verdict.Critical},
		"a node has an address in one of the ranges":    {func(a, _ *audit.NodePool) { a.Pool.Ranges = []ipam.Range{prefix("192.0.2.0/25")} }, "192.0.2.200/24", verdict.Critical},
		"a node has an address outside of these ranges": {nil, "198.51.100.12/24", verdict.Warning},
	} {
		a, b := pool("192.0.2.0/24"), pool("192.0.2.0/24")
		if test.change != nil {
			test.change(&a, &b)
		}
		on := func(string) *verdict.Domain { return lan }
		sides := slices.Concat(audit.OnLANs(agent("n1", "1"), []audit.NodePool{a}, nil, on), audit.OnLANs(agent("n2", "2"), []audit.NodePool{b}, nil, on))
		if test.own != "" {
			sides = append(sides, audit.OnLANs(agent("n3", "3"), nil, []audit.Subnet{{Subnet: verdict.Subnet{Prefix: netip.MustParsePrefix(test.own), Interface: &verdict.Interface{Name: "eth0"}}}}, on)...)
		}
		got := verdict.Severity(0)
		for _, f := range audit.Ranges(policy, sides) {
			got = max(got, f.Severity)
		}
		if got != test.want {
			t.Errorf("%s: got severity %d, want %d", why, got, test.want)
		}
	}
}

// The pool that has allocations overlaps another pool of its own node, and one of another node.
func TestTheUsedOneOfSeveralRangesOnALANCounts(t *testing.T) {
	on := func(string) *verdict.Domain { return &verdict.Domain{Node: agent("n1", "1"), Name: "eth0"} }
	pool := func(text string, used bool) audit.NodePool {
		return audit.NodePool{Used: used, Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, State: ipam.Known, Wiring: ipam.Wiring{Plugin: "macvlan", Device: "eth0"}, Config: text, Ranges: []ipam.Range{prefix(text)}}}}
	}
	for part, want := range map[string]verdict.Severity{"192.0.2.128/25": verdict.Critical, "192.0.2.0/26": verdict.Warning} {
		found := audit.Ranges(policy, slices.Concat(
			audit.OnLANs(agent("n1", "1"), []audit.NodePool{pool("192.0.2.0/24", false), pool(part, true)}, nil, on),
			audit.OnLANs(agent("n2", "2"), []audit.NodePool{pool("192.0.2.64/26", false), pool("192.0.2.192/26", false)}, nil, on)))
		if len(found) != 1 || found[0].Severity != want {
			t.Errorf("%s: got %+v, want severity %d", part, found, want)
		}
	}
}

func TestRangesAgainstNodesWithoutAnAgent(t *testing.T) {
	address := netip.MustParseAddr("10.244.7.9")
	for why, test := range map[string]struct {
		sides []verdict.Side
		want  verdict.Severity // 0 for no finding
	}{
		"it is in the range of another node":    {[]verdict.Side{audit.ListedSide("n9", address), ofAgent(agent("n2", "1"), "10.244.7.0/24")}, verdict.Warning},
		"it is in the range of its own node":    {[]verdict.Side{audit.ListedSide("n2", address), ofAgent(agent("n2", "1"), "10.244.7.0/24")}, 0},
		"it is in a range of Kubernetes":        {[]verdict.Side{audit.ListedSide("n9", address), ofKubernetes("n2", "10.244.7.0/24")}, 0},
		"it is in the common range of two more": {[]verdict.Side{audit.ListedSide("n9", address), ofAgent(agent("n2", "1"), "10.244.7.0/24"), ofAgent(agent("n3", "1"), "10.244.7.0/24")}, verdict.Critical},
	} {
		found := audit.Ranges(policy, test.sides)
		if len(found) != min(1, int(test.want)) || len(found) == 1 && found[0].Severity != test.want {
			t.Errorf("%s: got %+v, want severity %v", why, found, test.want)
		}
	}
}

func TestRangesAgainstAddressesInUse(t *testing.T) {
	n1, n2, n3 := agent("n1", "1"), agent("n2", "1"), agent("n3", "1")
	held := func(n *verdict.Node, text string) verdict.Side {
		return verdict.Side{Node: n.Name, Agent: n, Range: prefix(text + "/32"), Device: "eth0", Source: verdict.SideHeld}
	}
	unused := func(n *verdict.Node, text string) verdict.Side {
		s := ofAgent(n, text)
		s.Unused = true
		return s
	}
	bridge := ofAgent(n1, "10.244.7.0/24")
	bridge.Source = verdict.SideAddress
	for why, test := range map[string]struct {
		sides []verdict.Side
		want  string
	}{
		"an address in the range of another node":         {[]verdict.Side{held(n1, "10.244.7.9"), ofAgent(n2, "10.244.7.0/24")}, "10.244.7.9/32"},
		"an address in the range of a node without pods":  {[]verdict.Side{held(n1, "10.244.7.9"), unused(n2, "10.244.7.0/24")}, "10.244.7.9/32"},
		"a bridge with pods in the range of such a node":  {[]verdict.Side{bridge, unused(n2, "10.244.7.0/24")}, "10.244.7.0/24"},
		"an address in the node's own range":              {[]verdict.Side{held(n1, "10.244.7.9"), ofAgent(n1, "10.244.7.0/24")}, ""},
		"an address in a range that Kubernetes reserves":  {[]verdict.Side{held(n1, "10.244.7.9"), ofKubernetes("n2", "10.244.7.0/24")}, ""},
		"an address that two nodes have":                  {[]verdict.Side{held(n1, "10.244.7.9"), held(n2, "10.244.7.9")}, ""},
		"two nodes without pods":                          {[]verdict.Side{unused(n1, "10.244.7.0/24"), unused(n2, "10.244.7.0/24")}, ""},
		"a node without pods and a range of Kubernetes":   {[]verdict.Side{unused(n1, "10.244.7.0/24"), ofKubernetes("n2", "10.244.7.0/24")}, ""},
		"two ranges, and an address in one of them first": {[]verdict.Side{held(n1, "10.244.7.9"), ofAgent(n2, "10.244.7.0/24"), ofAgent(n3, "10.244.7.128/25")}, "10.244.7.128/25"},
	} {
		for range 2 {
			found := audit.Ranges(policy, slices.Clone(test.sides))
			if len(found) == 0 && test.want != "" || len(found) > 1 || len(found) == 1 && found[0].Overlap.Range.String() != test.want {
				t.Errorf("%s: got %+v, want %q", why, found, test.want)
			}
			slices.Reverse(test.sides) // the order does not matter
		}
	}
}

func TestSidesOfACiliumNode(t *testing.T) {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: cilium.IPAM.Name, Traits: registry.Traits(cilium.IPAM.Name), Name: "n1", Config: "ciliumnodes n1", Ranges: []ipam.Range{prefix("10.0.1.0/24"), prefix("fd00::/64")}}}
	sides := audit.NodePoolSides(p)
	if len(sides) != 2 || sides[1].Range != p.Ranges[1] || sides[1].Node != "n1" || sides[1].Source != verdict.SideNodeObject || sides[1].IPAM != cilium.IPAM.Name || !slices.Equal(sides[1].Ranges, p.Ranges[1:]) {
		t.Errorf("got %+v, want one of each range", sides)
	}
}

func TestEqualSides(t *testing.T) {
	side := func() verdict.Side {
		return verdict.Side{
			Node: "n1", Agent: agent("n1", "1"), Range: prefix("10.0.0.0/24"), Network: "a", Config: "c", Device: "d",
			Ranges: []ipam.Range{prefix("10.0.0.0/24")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Source: verdict.SidePool, IPAM: "i",
		}
	}
	if !audit.SameSide(side(), side()) {
		t.Error("got a change, want none")
	}
	for what, change := range map[string]func(*verdict.Side){
		"node":     func(s *verdict.Side) { s.Node = "x" },
		"agent":    func(s *verdict.Side) { s.Agent = agent("n2", "1") },
		"range":    func(s *verdict.Side) { s.Range = prefix("10.0.0.0/25") },
		"network":  func(s *verdict.Side) { s.Network = "x" },
		"config":   func(s *verdict.Side) { s.Config = "x" },
		"device":   func(s *verdict.Side) { s.Device = "x" },
		"ranges":   func(s *verdict.Side) { s.Ranges = nil },
		"prefixes": func(s *verdict.Side) { s.Prefixes = nil },
		"source":   func(s *verdict.Side) { s.Source = verdict.SideAddress },
		"ipam":     func(s *verdict.Side) { s.IPAM = "x" },
		"pool":     func(s *verdict.Side) { s.Pool = "x" },
		"maker":    func(s *verdict.Side) { s.MadeByPlugin = true },
		"use":      func(s *verdict.Side) { s.Unused = true },
	} {
		s := side()
		if change(&s); audit.SameSide(side(), s) {
			t.Errorf("got no change of the %s, want one", what)
		}
	}
}

// node1 has subnets with the address on wlan0 and on cni0, and hosts have it on both.
func TestSubnetsOfANodeOverlap(t *testing.T) {
	type scene struct {
		*world
		out, in       *verdict.Interface
		client, inPod *verdict.Claim
	}
	const client = "\x02\x00\x00\x00\x00\x63"
	at := func(address, subnet string) func(s *scene) {
		return func(s *scene) {
			s.Addr = netip.MustParseAddr(address)
			for i := range s.Subnets {
				s.Subnets[i].Prefix = netip.MustParsePrefix(subnet)
			}
		}
	}
	for _, test := range []struct {
		name   string
		change func(s *scene)
		want   bool
	}{
		{"a client and a pod", nil, true},
		{"a client and a pod, by IPv6", at("fd00::3", "fd00::1/64"), true},
		{"a client and a pod, by an IPv4 link-local address", at("169.254.0.3", "169.254.0.1/16"), true},
		{"a gateway and a virtual router, both fe80::1", at("fe80::1", "fe80::3/64"), false},
		{"a client and a guest", func(s *scene) {
			s.Drop(s.inPod)
			s.Wire(s.Interface(s.Host("n1"), verdict.Interface{Name: "tap0", Tap: true, Attachment: verdict.Own, Link: s.in.Link}), "\x52\x54\x00\x00\x00\x01")
		}, true},
		{"the pod only", func(s *scene) { s.Drop(s.client) }, false},
		{"the client only", func(s *scene) { s.Drop(s.inPod) }, false},
		{"the client has not been seen for long", func(s *scene) { s.after(s.Policy.StaleAfter) }, false},
		{"the node itself has the address on one link", func(s *scene) {
			s.Drop(s.inPod)
			s.Assigned(s.in)
		}, false},
		{"no subnet of the node on wlan0 has the address", func(s *scene) { s.Subnets = s.Subnets[1:] }, false},
		{"the subnet on wlan0 is a single address", func(s *scene) { s.Subnets[0].Prefix = netip.MustParsePrefix("10.42.0.3/32") }, false},
		{"wlan0 is in a VRF", func(s *scene) { s.out.VRF = "red" }, false},
		{"the bridge leads to the LAN as well", func(s *scene) { s.Subnets[1].LAN = true }, false},
		{"the bridge is on a LAN with other nodes", func(s *scene) {
			s.in.Link.Domain = &verdict.Domain{Node: s.Node("n1"), Name: "cni0"}
		}, false},
		{"both are cards, perhaps on one LAN", func(s *scene) {
			other := s.Interface(s.Host("n1"), verdict.Interface{Name: "eth1", Attachment: verdict.Own, Uplink: true, Link: s.Link("n1", "eth1", verdict.Uplink, false)})
			s.Subnets[1].Interface = other
			s.Drop(s.inPod)
			s.Wire(other, "\x02\x00\x00\x00\x00\x64")
		}, false},
		{"the client answers on both links with one address", func(s *scene) {
			s.Drop(s.inPod)
			s.Wire(s.Interface(s.Host("n1"), verdict.Interface{Name: "tap0", Tap: true, Attachment: verdict.Own, Link: s.in.Link}), client)
		}, false},
		{"it is declared", func(s *scene) {
			s.Policy.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix("10.42.0.0/16"), Reason: "hotspots"}}
		}, false},
	} {
		s := &scene{world: newWorld("10.42.0.3")}
		s.out = s.Interface(s.Host("n1"), verdict.Interface{Name: "wlan0", MAC: "\x02\x00\x00\x00\x00\x01", Attachment: verdict.Own, Uplink: true, Link: s.Link("n1", "wlan0", verdict.Uplink, false)})
		s.Subnet(s.out, "10.42.0.1/24")
		s.in = s.Bridge("n1", "cni0", "10.42.0.1/24")
		inside, _ := s.Veth(s.Namespace("n1", 5, "55", verdicttest.Pod("web")), "\x02\x00\x00\x00\x00\x05", s.in.Link)
		s.client, s.inPod = s.Wire(s.out, client), s.Assigned(inside)
		if test.change != nil {
			test.change(s)
		}
		first := s.auditAll()
		out := s.after(s.Policy.Settle).auditAll(first.Findings...)
		var found []verdict.Finding
		for _, f := range out.Findings {
			if f.Kind == verdict.FindingRangesOverlap && !f.Waiting {
				found = append(found, f)
			}
		}
		if (len(found) == 1) != test.want || len(reported(first.Findings)) != 0 {
			t.Errorf("%s: got %+v, want a finding: %t", test.name, out.Findings, test.want)
		} else if test.want && (found[0].Overlap.Sides[0].Device != "cni0" || found[0].Overlap.Sides[1].Device != "wlan0" || len(found[0].Owners) != 2) {
			t.Errorf("%s: got %+v", test.name, found[0])
		}
		if n := len(s.Judge().Conflicts); n != 0 {
			t.Errorf("%s: got %d conflicts", test.name, n)
		}
	}
}
