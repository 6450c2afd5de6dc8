package verdict

import (
	"net/netip"
	"slices"
	"testing"
)

func TestARouteLeadsToTheOwnersOnItsLink(t *testing.T) {
	addr := netip.MustParseAddr("10.244.0.7")
	n1, n2 := &Node{Name: "n1", Boot: "1", Netns: "1"}, &Node{Name: "n2", Boot: "2", Netns: "2"}
	bridge, uplink := &Link{Node: n1, Name: "cni0", Kind: Bridge}, &Link{Node: n2, Name: "eth0", Kind: Uplink}
	owner := func(l *Link, record uint32, attachment Attachment) *Owner {
		ns := &Namespace{Node: l.Node, ID: l.Name, Record: record}
		return &Owner{
			ID: ns.ID, Node: l.Node, Namespace: ns, Assigned: true, MAC: "m",
			Claims: []*Claim{{Kind: Assigned, Interface: &Interface{Namespace: ns, Link: l, Attachment: attachment}}},
		}
	}
	owners := []*Owner{owner(bridge, 2, Peer), owner(uplink, OwnRecord, Own)}
	gateway := netip.MustParseAddr("192.0.2.1")
	through := func(n *Node, hops ...Hop) *Route { return &Route{Node: n, Kind: RoutePaths, Hops: hops} }
	direct := through(n1, Hop{Link: bridge, Inside: true})
	tests := map[string]struct {
		route  *Route
		others []*Route
		want   []int
		sure   bool
	}{
		"the bridge":                 {direct, nil, []int{0}, true},
		"another bridge":             {through(n1, Hop{Link: &Link{Node: n1, Name: "docker0", Kind: Bridge}, Inside: true}), nil, nil, true},
		"a LAN":                      {through(n2, Hop{Link: uplink}), nil, []int{1}, false},
		"an interface without link":  {through(n1, Hop{}), nil, nil, false},
		"itself, without an owner":   {&Route{Node: n1, Kind: RouteLocal}, nil, nil, true},
		"itself":                     {&Route{Node: n2, Kind: RouteLocal}, nil, []int{1}, true},
		"no route":                   {&Route{Node: n1, Kind: RouteNone}, nil, nil, true},
		"by way of n1":               {through(n2, Hop{Link: uplink, Gateway: gateway, Via: n1}), []*Route{direct}, []int{0}, true},
		"by way of n1, not asked":    {through(n2, Hop{Link: uplink, Gateway: gateway, Via: n1}), nil, nil, false},
		"by way of a router":         {through(n2, Hop{Link: uplink, Gateway: gateway}), []*Route{direct}, nil, false},
		"two paths, one to a router": {through(n1, Hop{Link: bridge, Inside: true}, Hop{Gateway: gateway}), nil, []int{0}, false},
	}
	for name, test := range tests {
		if got, sure := test.route.LeadsTo(owners, addr, test.others); !slices.Equal(got, test.want) || sure != test.sure {
			t.Errorf("%s: got %v, %t, want %v, %t", name, got, sure, test.want, test.sure)
		}
	}
	// In a loop packets reach nobody. However many paths it has, each route is followed once.
	var hops []Hop
	for range 16 {
		hops = append(hops, Hop{Gateway: gateway, Via: n1}, Hop{Gateway: gateway, Via: n2})
	}
	loop := []*Route{through(n1, hops...), through(n2, hops...)}
	if got, sure := loop[0].LeadsTo(owners, addr, loop); got != nil || !sure {
		t.Errorf("a loop: got %v, %t, want nothing", got, sure)
	}
}
