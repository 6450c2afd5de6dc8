package kernel

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestRoutesOfContestedAddressesAreLookedUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addr := netip.MustParseAddr("10.244.0.2")
		f := agenttest.Fake{}
		f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
		f.Put(5, agenttest.PodVeth(10), "10.244.0.2/32")
		k := newTestKernel(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.FollowRoutes(ctx) }()
		k.Contest(addr, true)
		synctest.Wait()
		k.mu.Lock() // the lookups read it meanwhile
		f[rtnetlink.NoNSID].Routes = map[netip.Addr][]rtnetlink.Hop{addr: {{Index: 10}}}
		k.mu.Unlock()
		time.Sleep(routesEvery + time.Millisecond)
		synctest.Wait()
		routed := 0
		for _, c := range k.table.Claims() {
			if c.Routed {
				routed++
			}
		}
		if routed != 1 {
			t.Errorf("got %d routed claims after %s, want 1", routed, routesEvery)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("got %v after cancel, want nil", err)
		}
	})
}

func TestClaimsToAContestedAddressSayWhereItsRouteLeads(t *testing.T) {
	addr, other := netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("10.244.0.9")
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 30, Name: "tunl0", Kind: "ipip", Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}, "10.244.0.2/32")
	for _, nsid := range []int32{5, 6} {
		f.Put(rtnetlink.NoNSID, agenttest.HostVeth(nsid+5, nsid))
		f.Put(nsid, agenttest.PodVeth(nsid+5), "10.244.0.2/32")
	}
	routes := map[netip.Addr][]rtnetlink.Hop{}
	f[rtnetlink.NoNSID].Routes = routes
	k := newTestKernel(t, f)
	routed := func() (names []string) {
		interfaces := maps.Collect(k.table.Interfaces.All())
		for key, c := range k.table.Claims() {
			if i := interfaces[key.At]; c.Routed && key.Address == addr {
				names = append(names, i.GetName()+i.GetHostInterface())
			}
		}
		slices.Sort(names)
		return names
	}
	want := func(what string, want ...string) {
		t.Helper()
		if got := routed(); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	routes[addr] = []rtnetlink.Hop{{Index: 10}}
	k.refreshRoutes()
	want("it is not contested")
	k.Contest(other, true)
	want("another address is")
	k.Contest(addr, true)
	want("the route leads to one pod", "eth0veth10")
	if !k.Reread([]netip.Addr{addr}) {
		t.Error("the address cannot be read again")
	}
	want("the address was read again", "eth0veth10")
	for what, c := range map[string]struct {
		hops []rtnetlink.Hop
		want []string
	}{
		"to the other pod":           {[]rtnetlink.Hop{{Index: 11}}, []string{"eth0veth11"}},
		"to the node itself":         {[]rtnetlink.Hop{{Index: 30, Local: true}}, []string{"tunl0"}},
		"to an end of a pair":        {[]rtnetlink.Hop{{Index: 10, Local: true}}, nil},
		"through the tunnel":         {[]rtnetlink.Hop{{Index: 30}}, nil},
		"to a next hop behind a pod": {[]rtnetlink.Hop{{Index: 10, Gateway: other}}, nil},
		"to both pods":               {[]rtnetlink.Hop{{Index: 10}, {Index: 11}}, []string{"eth0veth10", "eth0veth11"}},
		"nowhere":                    {nil, nil},
	} {
		routes[addr] = c.hops
		k.refreshRoutes()
		want(what, c.want...)
	}
	routes[addr] = []rtnetlink.Hop{{Index: 10}}
	k.refreshRoutes()
	want("to one pod again", "eth0veth10")
	k.Contest(addr, false)
	want("the contest is over")
}
