package kernel

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestClaimSaysWhetherTheNodeRoutesToItsSender(t *testing.T) {
	for name, test := range map[string]struct {
		addr string // the claimed address
		hops []rtnetlink.Hop
		want bool
	}{
		"out of its port":                   {"10.9.0.7", []rtnetlink.Hop{{Index: 10}}, true},
		"by an address of it":               {"10.9.0.7", []rtnetlink.Hop{{Index: 20, Gateway: netip.MustParseAddr("10.244.0.2")}}, true},
		"by one of two ways":                {"10.9.0.7", []rtnetlink.Hop{{Index: 11}, {Index: 10}}, true},
		"out of another port":               {"10.9.0.7", []rtnetlink.Hop{{Index: 11}}, false},
		"by somebody else":                  {"10.9.0.7", []rtnetlink.Hop{{Index: 20, Gateway: netip.MustParseAddr("10.244.0.3")}}, false},
		"to all on its bridge":              {"10.244.0.7", []rtnetlink.Hop{{Index: 20}}, false},
		"by an address of it, by elsewhere": {"10.9.0.7", []rtnetlink.Hop{{Index: 30, Gateway: netip.MustParseAddr("10.244.0.2")}}, false},
		"by an interface that is not known": {"10.9.0.7", []rtnetlink.Hop{{Index: 99, Gateway: netip.MustParseAddr("10.244.0.2")}}, false},
		"nowhere":                           {"10.9.0.7", nil, false},
		"a link-local one":                  {"fe80::7", []rtnetlink.Hop{{Index: 10}}, false},
		"its own":                           {"10.244.0.2", []rtnetlink.Hop{{Index: 10}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := agenttest.Fake{}
			f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 20, Name: "cni0", Kind: "bridge", MAC: "bridge", ARPHRD: unix.ARPHRD_ETHER, LowerNSID: rtnetlink.NoNSID}, "10.244.0.1/24")
			f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 30, Name: "eth0", MAC: "uplink", ARPHRD: unix.ARPHRD_ETHER, LowerNSID: rtnetlink.NoNSID}, "192.0.2.1/24")
			for nsid, addr := range map[int32]string{5: "10.244.0.2/24", 6: "10.244.0.3/24"} {
				host := agenttest.HostVeth(nsid+5, nsid)
				host.Master, host.SlaveKind = 20, "bridge"
				f.Put(rtnetlink.NoNSID, host)
				f.Put(nsid, agenttest.PodVeth(nsid+5), addr)
			}
			addr := netip.MustParseAddr(test.addr)
			f[rtnetlink.NoNSID].Routes = map[netip.Addr][]rtnetlink.Hop{addr: test.hops}
			k := newTestKernel(t, f)
			key := table.ClaimKey{Address: addr, Kind: ipwitnessv1.Evidence_ANSWERED, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: 10}, MAC: "pods10", Source: "others"}
			k.AddFrame(key, seenNow())
			c := maps.Collect(k.table.Claims())[key]
			if c == nil || c.Routed != test.want {
				t.Fatalf("got claim %+v, want one that is routed: %t", c, test.want)
			}
			sent := k.table.Attach().Take(time.Now()).GetClaims()
			i := slices.IndexFunc(sent, func(r *ipwitnessv1.ClaimRecord) bool { return string(r.GetSource()) == "others" })
			if i < 0 || sent[i].GetRouted() != test.want {
				t.Errorf("got records %v, want one that is routed: %t, with its source", sent, test.want)
			}
		})
	}
}
