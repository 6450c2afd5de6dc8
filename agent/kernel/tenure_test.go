package kernel

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// A namespace at a bridge got an address at the start. What happens in the minute after that decides since when it has
// held the address there.
func TestSinceWhenAnAddressIsHeld(t *testing.T) {
	const address = "10.0.0.2/24"
	host := func(master int32) rtnetlink.Link {
		l := agenttest.HostVeth(10, 5)
		if l.Master = master; master != 0 {
			l.SlaveKind = "bridge"
		}
		return l
	}
	bridge := func(index int32, name string) rtnetlink.Link {
		return rtnetlink.Link{Index: index, Name: name, Kind: "bridge", Flags: unix.IFF_UP, MAC: "bridge", ARPHRD: unix.ARPHRD_ETHER}
	}
	plugged := agenttest.PodVeth(10)
	plugged.Flags |= unix.IFF_LOWER_UP
	out := plugged
	out.Flags &^= unix.IFF_LOWER_UP
	unplug := func(link func(int32, rtnetlink.Link), d time.Duration) {
		link(5, out)
		time.Sleep(d)
		link(5, plugged)
	}
	for _, test := range []struct {
		name     string
		first    rtnetlink.Link // of the pod, if it is another one at the start
		during   func(k *Mirror, link func(nsid int32, l rtnetlink.Link), addr func(typ uint16))
		began    time.Duration
		assigned bool // again
	}{
		{name: "nothing", during: func(*Mirror, func(int32, rtnetlink.Link), func(uint16)) {}},
		{name: "it is set again after a moment", assigned: true, during: func(_ *Mirror, _ func(int32, rtnetlink.Link), addr func(uint16)) {
			addr(unix.RTM_DELADDR)
			time.Sleep(20 * time.Millisecond)
			addr(unix.RTM_NEWADDR)
		}},
		{name: "it is set again after a long time", began: time.Minute + restartsWithin + time.Second, assigned: true, during: func(_ *Mirror, _ func(int32, rtnetlink.Link), addr func(uint16)) {
			addr(unix.RTM_DELADDR)
			time.Sleep(restartsWithin + time.Second)
			addr(unix.RTM_NEWADDR)
		}},
		{name: "the link is down for a moment", assigned: true, during: func(_ *Mirror, link func(int32, rtnetlink.Link), _ func(uint16)) {
			down := plugged
			down.Flags &^= unix.IFF_UP | unix.IFF_LOWER_UP
			link(5, down)
			time.Sleep(2 * time.Second)
			link(5, plugged)
		}},
		{name: "the cable is out for a moment", during: func(_ *Mirror, link func(int32, rtnetlink.Link), _ func(uint16)) {
			unplug(link, restartsWithin-time.Second)
		}},
		{name: "the cable is out for long", assigned: true, during: func(_ *Mirror, link func(int32, rtnetlink.Link), _ func(uint16)) {
			unplug(link, restartsWithin+time.Second)
		}},
		{name: "the cable was out at the start", assigned: true, first: out, during: func(_ *Mirror, link func(int32, rtnetlink.Link), _ func(uint16)) {
			link(5, plugged)
		}},
		{name: "its port moves to another bridge", began: time.Minute, assigned: true, during: func(_ *Mirror, link func(int32, rtnetlink.Link), _ func(uint16)) {
			link(rtnetlink.NoNSID, host(21))
		}},
		{name: "the same while it is down", began: time.Minute + 2*time.Second, assigned: true, during: func(_ *Mirror, link func(int32, rtnetlink.Link), addr func(uint16)) {
			addr(unix.RTM_DELADDR)
			link(rtnetlink.NoNSID, host(21))
			time.Sleep(2 * time.Second)
			addr(unix.RTM_NEWADDR)
		}},
		{name: "its port leaves the bridge for a moment", assigned: true, during: func(_ *Mirror, link func(int32, rtnetlink.Link), _ func(uint16)) {
			link(rtnetlink.NoNSID, host(0))
			time.Sleep(time.Second)
			link(rtnetlink.NoNSID, host(20))
		}},
		{name: "the bridge gets another name", during: func(_ *Mirror, link func(int32, rtnetlink.Link), _ func(uint16)) {
			link(rtnetlink.NoNSID, bridge(20, "renamed"))
		}},
		{name: "the bridge gets another port", during: func(_ *Mirror, link func(int32, rtnetlink.Link), _ func(uint16)) {
			link(rtnetlink.NoNSID, rtnetlink.Link{Index: 2, Name: "eth0", Flags: unix.IFF_UP, MAC: "uplink", ARPHRD: unix.ARPHRD_ETHER, Master: 20, SlaveKind: "bridge"})
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			f := agenttest.Fake{}
			f.Put(rtnetlink.NoNSID, bridge(20, "brA"))
			f.Put(rtnetlink.NoNSID, bridge(21, "brB"))
			f.Put(rtnetlink.NoNSID, host(20))
			if test.first.Index == 0 {
				test.first = plugged
			}
			f.Put(5, test.first, address)
			k := newTestKernel(t, f)
			k.boot = start
			k.Adopt(5, 4000, true, false)
			time.Sleep(time.Minute)
			test.during(k, func(nsid int32, l rtnetlink.Link) {
				k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: nsid, Link: l})
			}, func(typ uint16) {
				a := agenttest.Address(2, address)
				a.Created = time.Since(start)
				k.Handle(&rtnetlink.Message{Type: typ, NSID: 5, Address: a})
			})
			claims := 0
			for key, c := range k.table.Claims() {
				if key.Kind != ipwitnessv1.Evidence_ASSIGNED {
					continue
				}
				claims++
				if got := c.First.Sub(start); got != test.began {
					t.Errorf("%s: held since %s, want %s", test.name, got, test.began)
				}
				if got := c.Assigned.Sub(start) >= time.Minute; got != test.assigned {
					t.Errorf("%s: assigned at %s, want again: %v", test.name, c.Assigned.Sub(start), test.assigned)
				}
			}
			if claims != 1 {
				t.Errorf("%s: got %d claims, want 1", test.name, claims)
			}
		})
	}
}

// An address whose card had no cable for long begins again on its LAN, unless the node answers for it by another card.
func TestAnAddressForWhichAnotherCardAnswersGoesOn(t *testing.T) {
	for name, second := range map[string]bool{"one card": false, "two cards on the LAN": true} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			f := answeringHost()
			addr := netip.MustParseAddr("192.0.2.11")
			if second {
				f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 3, Name: "eth1", MAC: "own003", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}, "192.0.2.12/24")
			}
			f[rtnetlink.NoNSID].Routes[addr] = []rtnetlink.Hop{{Index: 2, Local: true}}
			k := newTestKernel(t, f)
			k.boot = start
			card := f[rtnetlink.NoNSID].Links[2]
			card.Flags = unix.IFF_UP
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: card})
			time.Sleep(restartsWithin + time.Second)
			card.Flags |= unix.IFF_LOWER_UP
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: card})
			c := k.table.Claim(table.ClaimKey{Address: addr, Kind: ipwitnessv1.Evidence_ASSIGNED, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: 2}})
			if went := c.Assigned.Before(start.Add(restartsWithin)); c.Count == 0 || went != second {
				t.Errorf("%s: got the address at %s, want it to go on: %v", name, c.Assigned, second)
			}
		})
	}
}
