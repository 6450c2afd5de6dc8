package rtnetlink

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel lists the connections whose destination is translated to an address, and that may go on.
func TestTranslatedConnectionsAreRead(t *testing.T) {
	inNamespace(t, func() error {
		const established = 3
		add := func(protocol uint8, state uint8, from, to, receiver, replyTo string, seconds uint32) error {
			tuple := func(from, to string) netlink.IPTuple {
				a, b := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
				return netlink.IPTuple{Protocol: protocol, SrcIP: net.IP(a.Addr().AsSlice()), SrcPort: a.Port(), DstIP: net.IP(b.Addr().AsSlice()), DstPort: b.Port()}
			}
			f := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, Forward: tuple(from, to), Reverse: tuple(receiver, replyTo), TimeOut: seconds}
			if netip.MustParseAddrPort(from).Addr().Is6() {
				f.FamilyType = unix.AF_INET6
			}
			if protocol == unix.IPPROTO_TCP {
				f.ProtoInfo = &netlink.ProtoInfoTCP{State: state}
			}
			return netlink.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(f.FamilyType), f)
		}
		for _, err := range []error{
			add(unix.IPPROTO_TCP, 1, "10.0.0.9:4000", "10.96.0.10:80", "10.0.0.2:8080", "10.0.0.9:4000", 100),                // half open
			add(unix.IPPROTO_TCP, established, "10.0.0.9:4001", "10.96.0.10:80", "10.0.0.2:8080", "10.0.0.9:4001", 200),      // perhaps not acknowledged
			add(unix.IPPROTO_UDP, 0, "10.0.0.9:4002", "10.96.0.10:53", "10.0.0.2:53", "192.0.2.1:4002", 25),                  // and SNAT
			add(unix.IPPROTO_TCP, 7, "10.0.0.9:4003", "10.96.0.10:80", "10.0.0.2:8080", "10.0.0.9:4003", 100),                // TIME_WAIT
			add(unix.IPPROTO_TCP, established, "10.0.0.9:4004", "10.0.0.2:8080", "10.0.0.2:8080", "10.0.0.9:4004", 100),      // not translated
			add(unix.IPPROTO_TCP, established, "10.0.0.2:4005", "10.96.0.10:80", "10.0.0.3:8080", "10.0.0.2:4005", 100),      // of the owner itself
			add(unix.IPPROTO_TCP, established, "[fd00::9]:4006", "[fd00:1::10]:80", "[fd00::2]:8080", "[fd00::9]:4006", 100), // IPv6
		} {
			if err != nil {
				return err
			}
		}
		idle := func(all []Connection, port uint16) time.Duration {
			i := slices.IndexFunc(all, func(c Connection) bool { return c.From.Port() == port })
			if i < 0 {
				t.Fatalf("got %+v, want a connection from port %d", all, port)
			}
			return time.Since(all[i].Existed)
		}
		all, more, err := Translated(netip.MustParseAddr("10.0.0.2"), 9, time.Second)
		if err != nil || more || len(all) != 3 {
			t.Fatalf("got %+v, more %t, error %v, want three", all, more, err)
		}
		// The timeouts are 120 s; 300 s if nothing was acknowledged; 30 s, or 120 s after a reply.
		for port, want := range map[uint16]time.Duration{4000: 19 * time.Second, 4001: 99 * time.Second, 4002: 4 * time.Second} {
			if got := idle(all, port); got < want || got > want+3*time.Second {
				t.Errorf("port %d: the last packet was %s ago or earlier, want %s", port, got, want)
			}
		}
		if c := all[slices.IndexFunc(all, func(c Connection) bool { return c.Protocol == unix.IPPROTO_UDP })]; c.To.String() != "10.96.0.10:53" || c.Receiver.String() != "10.0.0.2:53" {
			t.Errorf("got %+v", c)
		}
		if all, more, err := Translated(netip.MustParseAddr("10.0.0.2"), 2, time.Second); err != nil || !more || len(all) != 2 {
			t.Errorf("got %d, more %t, error %v, want two and that there are more", len(all), more, err)
		}
		if all, _, err := Translated(netip.MustParseAddr("fd00::2"), 9, time.Second); err != nil || len(all) != 1 {
			t.Errorf("got %+v, error %v about an IPv6 address, want one", all, err)
		}
		return nil
	})
}
