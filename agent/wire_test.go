package agent

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/agent/table/tabletest"
	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestTimeOfAFrameIsThatOfItsOwnClock(t *testing.T) {
	var c frameClock
	before := time.Now()
	at := monotonic(t)
	if got := c.at(at); got.Sub(before) < -time.Second || got.After(time.Now()) {
		t.Errorf("time of a frame that came now: got %v, want %v", got, before)
	}
	first := c.at(at)
	if got := c.at(at + 3*time.Millisecond).Sub(first); got != 3*time.Millisecond {
		t.Errorf("time between two frames: got %v, want 3ms", got)
	}
	// Long after the two clocks were compared, they are compared again.
	c.now = c.now.Add(-time.Hour)
	c.monotonic -= 2 * time.Second
	if got := c.at(at).Sub(first); got.Abs() > time.Minute {
		t.Errorf("time by a clock that was set: got %v off", got)
	}
}

func TestAgeOfAFrameIsFromWhenTheKernelSawIt(t *testing.T) {
	f := fakeKernel{}
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10))
	k := newTestKernel(t, f)
	const ago = 10 * time.Second
	begin := time.Now()
	ev := bpf.Event{Ktime: monotonic(t) - ago, Ifindex: 10, Kind: bpf.Used, Frames: 1, Addr: tabletest.Claim(1).Address}
	k.frame(&ev)
	c := k.table.Attach().Take(time.Now()).GetClaims()[0]
	// Twice: on a busy machine the two clocks may be read far apart.
	if got, most := c.GetAge().AsDuration(), ago+2*time.Since(begin)+time.Millisecond; got < ago-time.Millisecond || got > most {
		t.Errorf("age of a frame of %s ago: got %s, want %s at most", ago, got, most)
	}
}

// BenchmarkFrame is one frame that is told: of a binding that is new, of one
// that is known, and of one for which there is no room.
func BenchmarkFrame(b *testing.B) {
	const full = 65536 // claims, the most that one port may have
	for _, c := range []struct {
		name        string
		begin, most int // bindings before, and at most
	}{{"new", 0, full}, {"known", 1000, 1000}, {"no room", full, 1 << 24}} {
		b.Run(c.name, func(b *testing.B) {
			f := fakeKernel{}
			f.put(rtnetlink.NoNSID, hostVeth(10, 5))
			f.put(5, podVeth(10))
			k := newTestKernel(b, f)
			tabletest.Follow(k.table)
			ev := bpf.Event{Ktime: monotonic(b), Ifindex: 10, Kind: bpf.Used, Frames: 1}
			tell := func(i int) {
				ev.Addr = tabletest.Claim(i).Address
				ev.SHA = bpf.MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}
				ev.Source = ev.SHA
				ev.Ktime += time.Microsecond
				k.frame(&ev)
			}
			for i := range c.begin {
				tell(i)
			}
			b.ReportAllocs()
			i := c.begin
			for b.Loop() {
				if i == c.most {
					i = 0
					if c.name == "new" {
						b.StopTimer()
						k.expire(time.Now().Add(time.Hour))
						b.StartTimer()
					}
				}
				tell(i)
				i++
			}
		})
	}
}

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
		"nowhere":                           {"10.9.0.7", nil, false},
		"a link-local one":                  {"fe80::7", []rtnetlink.Hop{{Index: 10}}, false},
		"its own":                           {"10.244.0.2", []rtnetlink.Hop{{Index: 10}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakeKernel{}
			f.put(rtnetlink.NoNSID, rtnetlink.Link{Index: 20, Name: "cni0", Kind: "bridge", MAC: "bridge", ARPHRD: unix.ARPHRD_ETHER, LowerNSID: rtnetlink.NoNSID}, "10.244.0.1/24")
			f.put(rtnetlink.NoNSID, rtnetlink.Link{Index: 30, Name: "eth0", MAC: "uplink", ARPHRD: unix.ARPHRD_ETHER, LowerNSID: rtnetlink.NoNSID}, "192.0.2.1/24")
			for nsid, addr := range map[int32]string{5: "10.244.0.2/24", 6: "10.244.0.3/24"} {
				host := hostVeth(nsid+5, nsid)
				host.Master, host.SlaveKind = 20, "bridge"
				f.put(rtnetlink.NoNSID, host)
				f.put(nsid, podVeth(nsid+5), addr)
			}
			addr := netip.MustParseAddr(test.addr)
			f[rtnetlink.NoNSID].routes = map[netip.Addr][]rtnetlink.Hop{addr: test.hops}
			k := newTestKernel(t, f)
			k.frame(&bpf.Event{Ktime: monotonic(t), Ifindex: 10, Kind: bpf.Answered, Addr: addr, SHA: bpf.MAC([]byte("pods10")), Source: bpf.MAC([]byte("others")), Frames: 1})
			key := table.ClaimKey{Address: addr, Kind: ipwitnessv1.Evidence_ANSWERED, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: 10}, MAC: "pods10", Source: "others"}
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
