package agent

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	f.put(noNSID, hostVeth(10, 5))
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
			f.put(noNSID, hostVeth(10, 5))
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
		hops []hop
		want bool
	}{
		"out of its port":                   {"10.9.0.7", []hop{{index: 10}}, true},
		"by an address of it":               {"10.9.0.7", []hop{{index: 20, gateway: netip.MustParseAddr("10.244.0.2")}}, true},
		"by one of two ways":                {"10.9.0.7", []hop{{index: 11}, {index: 10}}, true},
		"out of another port":               {"10.9.0.7", []hop{{index: 11}}, false},
		"by somebody else":                  {"10.9.0.7", []hop{{index: 20, gateway: netip.MustParseAddr("10.244.0.3")}}, false},
		"to all on its bridge":              {"10.244.0.7", []hop{{index: 20}}, false},
		"by an address of it, by elsewhere": {"10.9.0.7", []hop{{index: 30, gateway: netip.MustParseAddr("10.244.0.2")}}, false},
		"nowhere":                           {"10.9.0.7", nil, false},
		"a link-local one":                  {"fe80::7", []hop{{index: 10}}, false},
		"its own":                           {"10.244.0.2", []hop{{index: 10}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakeKernel{}
			f.put(noNSID, linkMsg{index: 20, name: "cni0", kind: "bridge", mac: "bridge", arphrd: unix.ARPHRD_ETHER, lowerNSID: noNSID}, "10.244.0.1/24")
			f.put(noNSID, linkMsg{index: 30, name: "eth0", mac: "uplink", arphrd: unix.ARPHRD_ETHER, lowerNSID: noNSID}, "192.0.2.1/24")
			for nsid, addr := range map[int32]string{5: "10.244.0.2/24", 6: "10.244.0.3/24"} {
				host := hostVeth(nsid+5, nsid)
				host.master, host.slaveKind = 20, "bridge"
				f.put(noNSID, host)
				f.put(nsid, podVeth(nsid+5), addr)
			}
			addr := netip.MustParseAddr(test.addr)
			f[noNSID].routes = map[netip.Addr][]hop{addr: test.hops}
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

func TestRouteIsReadAsTheKernelWritesIt(t *testing.T) {
	attr := func(typ uint16, val ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(val)))
		b = append(binary.NativeEndian.AppendUint16(b, typ), val...)
		return append(b, make([]byte, align4(len(b))-len(b))...)
	}
	u32 := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	header := func(typ byte) []byte { return []byte{unix.AF_INET, 32, 0, 0, 0, 0, 0, typ, 0, 0, 0, 0} }
	nexthop := func(index uint32, attrs ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtNexthop+len(attrs)))
		return append(append(append(b, 0, 0), u32(index)...), attrs...)
	}
	one, two := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2")
	for name, test := range map[string]struct {
		msg  []byte
		want []hop
	}{
		"an interface":           {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_OIF, u32(7)...)), []hop{{index: 7}}},
		"a gateway":              {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_GATEWAY, one.AsSlice()...), attr(unix.RTA_OIF, u32(7)...)), []hop{{7, one}}},
		"one of the other kind":  {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_VIA, append([]byte{10, 0}, two.AsSlice()...)...), attr(unix.RTA_OIF, u32(7)...)), []hop{{7, two}}},
		"two ways":               {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_MULTIPATH, slices.Concat(nexthop(7, attr(unix.RTA_GATEWAY, one.AsSlice()...)...), nexthop(8))...)), []hop{{7, one}, {index: 8}}},
		"a way that is cut off":  {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_MULTIPATH, 200, 0, 0, 0, 7, 0, 0, 0)), nil},
		"an address of the node": {slices.Concat(header(unix.RTN_LOCAL), attr(unix.RTA_OIF, u32(1)...)), nil},
	} {
		got, err := parseRoute(test.msg)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
	if _, err := parseRoute(header(1)[:11]); err == nil {
		t.Error("cut off: got no error")
	}
}
