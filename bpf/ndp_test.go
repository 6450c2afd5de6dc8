package bpf

import (
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	addr6A   = netip.MustParseAddr("2001:db8::1")
	addr6B   = netip.MustParseAddr("2001:db8::2")
	allNodes = netip.MustParseAddr("ff02::1")
)

// ndpFrame describes a frame. Its checksum is not set.
type ndpFrame struct {
	source   MAC // of the Ethernet frame
	tags     []vlanTag
	from, to netip.Addr
	before   []extension // in order
	typ      byte
	flags    byte
	target   netip.Addr
	options  []byte
	change   func(packet []byte) // changes the packet from its IPv6 header on
}

// extension is an extension header before ICMPv6. Its default body is 6 bytes of PadN.
type extension struct {
	typ  byte
	body []byte // from its third byte on
}

// solicitedNode returns the solicited-node multicast address of an address.
func solicitedNode(addr netip.Addr) netip.Addr {
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	a := addr.As16()
	copy(group[13:], a[13:])
	return netip.AddrFrom16(group)
}

// option returns an option whose body is padded to a multiple of 8 bytes.
func option(typ byte, body ...byte) []byte {
	size := (2 + len(body) + 7) / 8
	return append(append([]byte{typ, byte(size)}, body...), make([]byte, size*8-2-len(body))...)
}

func sourceOption(mac MAC) []byte { return option(ndSourceLLAddr, mac[:]...) }
func targetOption(mac MAC) []byte { return option(ndTargetLLAddr, mac[:]...) }

func (f ndpFrame) bytes() []byte {
	b := slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, f.source[:])
	for _, tag := range f.tags {
		b = binary.BigEndian.AppendUint16(b, tag[0])
		b = binary.BigEndian.AppendUint16(b, tag[1])
	}
	b = binary.BigEndian.AppendUint16(b, 0x86dd)

	var payload []byte
	next := byte(protocolICMPv6)
	for _, e := range slices.Backward(f.before) {
		if e.body == nil {
			e.body = []byte{1, 4, 0, 0, 0, 0}
		}
		head := append([]byte{next, byte((2+len(e.body))/8 - 1)}, e.body...)
		payload = append(head, payload...)
		next = e.typ
	}
	payload = append(payload, f.typ, 0, 0, 0, f.flags, 0, 0, 0)
	payload = append(payload, f.target.AsSlice()...)
	payload = append(payload, f.options...)

	packet := []byte{0x60, 0, 0, 0}
	packet = binary.BigEndian.AppendUint16(packet, uint16(len(payload)))
	packet = append(packet, next, ndHopLimit)
	packet = slices.Concat(packet, f.from.AsSlice(), f.to.AsSlice(), payload)
	if f.change != nil {
		f.change(packet)
	}
	return append(b, packet...)
}

// solicitation returns a solicitation from a host that has an address itself.
func solicitation(mac MAC, from, target netip.Addr) []byte {
	return ndpFrame{
		source: mac, from: from, to: solicitedNode(target),
		typ: ndSolicitation, target: target, options: sourceOption(mac),
	}.bytes()
}

// advertisement returns an advertisement of an address. It is multicast unless the Solicited flag
// is set.
func advertisement(mac MAC, target netip.Addr, flags byte) []byte {
	to := allNodes
	if flags&ndSolicited != 0 {
		to = addr6B
	}
	return ndpFrame{
		source: mac, from: target, to: to,
		typ: ndAdvertisement, flags: flags, target: target, options: targetOption(mac),
	}.bytes()
}

func ndpCases() []frameCase {
	var (
		zero = netip.IPv6Unspecified()
		addr = netip.MustParseAddr

		ask   = ndpFrame{source: macA, from: addr6A, to: solicitedNode(addr6B), typ: ndSolicitation, target: addr6B, options: sourceOption(macA)}
		sent  = ndpFrame{source: macA, from: addr6A, to: allNodes, typ: ndAdvertisement, flags: ndOverride, target: addr6A, options: targetOption(macA)}
		probe = ndpFrame{source: macA, from: zero, to: solicitedNode(addr6A), typ: ndSolicitation, target: addr6A}

		used      = Binding{Protocol: NDP, Kind: Used, Addr: addr6A, SHA: macA, Source: macA}
		announced = Binding{Protocol: NDP, Kind: Announced, Addr: addr6A, SHA: macA, Source: macA}
		answered  = Binding{Protocol: NDP, Kind: Answered, Addr: addr6A, SHA: macA, Source: macA}
		none      = Binding{}

		nonce   = option(14, 1, 2, 3, 4, 5, 6)
		unknown = option(253, 1, 2, 3)

		toMapped = ndpFrame{
			source: macA, from: addr6A, to: addr("::ffff:224.0.0.1"), typ: ndAdvertisement, flags: ndOverride | ndSolicited,
			target: addr6A, options: targetOption(macA),
		}
	)
	with := func(f ndpFrame, change func(f *ndpFrame)) []byte {
		change(&f)
		return f.bytes()
	}
	changed := func(f ndpFrame, at int, value byte) []byte {
		f.change = func(packet []byte) { packet[at] = value }
		return f.bytes()
	}
	options := func(f ndpFrame, options ...[]byte) []byte {
		f.options = slices.Concat(options...)
		return f.bytes()
	}
	behind := func(before ...extension) []byte {
		return with(ask, func(f *ndpFrame) { f.before = before })
	}
	tagged := func(tags ...vlanTag) []byte { return with(sent, func(f *ndpFrame) { f.tags = tags }) }
	from := func(source string) []byte { return with(ask, func(f *ndpFrame) { f.from = addr(source) }) }
	target := func(f ndpFrame, target string) []byte {
		return with(f, func(f *ndpFrame) { f.target = addr(target) })
	}
	onVLAN := func(vlan, inner uint16) Binding {
		b := announced
		b.VLAN, b.InnerVLAN = vlan, inner
		return b
	}
	at := func(b Binding, a string) Binding {
		b.Addr = addr(a)
		return b
	}
	by := func(b Binding, mac MAC) Binding {
		b.SHA = mac
		return b
	}
	group := MAC{0x33, 0x33, 0, 0, 0, 1}
	withoutOverride := func(b Binding) Binding {
		b.NoOverride = true
		return b
	}
	cut := func(by int) []byte { b := ask.bytes(); return b[:len(b)-by] }
	padded := func(f ndpFrame, padding ...byte) []byte { return append(f.bytes(), padding...) }
	// The IPv6 header contains this length, but the message is complete.
	payloadLength := func(f ndpFrame, n byte) []byte { return changed(f, 5, n) }
	const messageLen = ndLen + ndOptionLen
	hopByHop, destination := extension{typ: protocolHopOpts}, extension{typ: protocolDstOpts}
	routing := func(segmentsLeft byte) extension {
		return extension{typ: protocolRouting, body: []byte{0, segmentsLeft, 0, 0, 0, 0}}
	}

	return []frameCase{
		{"a solicited advertisement to what is no multicast in IPv6", toMapped.bytes(), ResultEvent, answered},
		{"a solicitation uses its source", ask.bytes(), ResultEvent, used},
		{"a solicitation to one host uses its source", with(ask, func(f *ndpFrame) { f.to = addr6B }), ResultEvent, used},
		{"a solicited advertisement answers", advertisement(macA, addr6A, ndSolicited|ndOverride), ResultEvent, answered},
		{"an unsolicited advertisement announces", sent.bytes(), ResultEvent, announced},
		{"an unsolicited advertisement to one host announces", with(sent, func(f *ndpFrame) { f.to = addr6B }), ResultEvent, announced},
		{"a router's advertisement of itself", changed(sent, 44, 0x80|ndOverride), ResultEvent, announced},
		{"an answer without override", advertisement(macA, addr6A, ndSolicited), ResultEvent, withoutOverride(answered)},
		{"an announcement without override", advertisement(macA, addr6A, 0), ResultEvent, withoutOverride(announced)},
		{"reserved flags of a solicitation mean nothing", changed(ask, 44, 0xff), ResultEvent, used},
		{
			"the claim of an advertisement is its target, not its source",
			with(sent, func(f *ndpFrame) { f.from = addr("fe80::1") }), ResultEvent, announced,
		},
		{
			"an advertisement from no address is believed, as RFC 4861 has it",
			with(sent, func(f *ndpFrame) { f.from = zero }), ResultEvent, announced,
		},
		{"link-local addresses", from("fe80::1"), ResultEvent, at(used, "fe80::1")},
		{
			"the source of the frame is kept beside the link-layer address",
			with(sent, func(f *ndpFrame) { f.source = macB }), ResultEvent,
			Binding{Protocol: NDP, Kind: Announced, Addr: addr6A, SHA: macA, Source: macB},
		},
		{"padding changes nothing", padded(sent, 1, 2, 3, 4, 5, 6, 7, 8, 9), ResultEvent, announced},
		{"padding that looks like an option changes nothing", padded(probe, sourceOption(macA)...), ResultProbe, none},

		{"duplicate address detection claims nothing", probe.bytes(), ResultProbe, none},
		{"duplicate address detection with a nonce claims nothing", options(probe, nonce), ResultProbe, none},
		{"a target's link-layer address in a probe is ignored", options(probe, targetOption(macA)), ResultProbe, none},
		{"a solicitation without a link-layer address claims nothing", options(ask), ResultOther, none},
		{"a solicitation with a target's link-layer address claims nothing", options(ask, targetOption(macA)), ResultOther, none},
		{"an advertisement without a link-layer address claims nothing", options(sent), ResultOther, none},
		{"an advertisement with its source's link-layer address claims nothing", options(sent, sourceOption(macA)), ResultOther, none},

		{"other options before", options(ask, nonce, unknown, sourceOption(macA)), ResultEvent, used},
		{"other options behind", options(ask, sourceOption(macA), unknown, nonce), ResultEvent, used},
		{"a long option before", options(ask, option(253, make([]byte, 254)...), sourceOption(macA)), ResultEvent, used},
		{"the first of two link-layer addresses counts", options(ask, sourceOption(macA), sourceOption(macB)), ResultEvent, used},
		{
			"as many options as are walked",
			options(ask, slices.Repeat(unknown, maxNDOptions-1), sourceOption(macA)), ResultEvent, used,
		},
		{
			"more options than are walked",
			options(ask, sourceOption(macA), slices.Repeat(unknown, maxNDOptions)), ResultUnparsedOptions, none,
		},
		{"an option of length 0", options(ask, []byte{ndSourceLLAddr, 0, 2, 0, 0x5e, 0x10, 0, 1}), ResultMalformed, none},
		{"another option of length 0", options(ask, sourceOption(macA), make([]byte, 8)), ResultMalformed, none},
		{"a probe with an option of length 0", options(probe, make([]byte, 8)), ResultMalformed, none},
		{"an option that ends too late", options(sent, []byte{ndTargetLLAddr, 2, 2, 0, 0x5e, 0x10, 0, 1}), ResultMalformed, none},
		{"another option that ends too late", options(sent, targetOption(macA), []byte{253, 255, 0, 0, 0, 0, 0, 0}), ResultMalformed, none},
		{"half an option", options(sent, targetOption(macA), []byte{253, 1, 0, 0}), ResultMalformed, none},
		{"one byte of an option", options(sent, targetOption(macA), []byte{253}), ResultMalformed, none},
		{
			"an option that ends in the padding",
			append(options(ask, sourceOption(macA), []byte{253, 2, 0, 0, 0, 0, 0, 0}), make([]byte, 8)...), ResultMalformed, none,
		},
		{"a link-layer address that ends in the padding", payloadLength(ask, messageLen-1), ResultMalformed, none},
		{"a link-layer address in the padding", payloadLength(ask, ndLen), ResultOther, none},

		{"a link-layer address too long", options(ask, option(ndSourceLLAddr, append(macA[:], 0)...)), ResultInvalid, none},
		{"a target's link-layer address too long", options(sent, option(ndTargetLLAddr, append(macA[:], 0)...)), ResultInvalid, none},
		{"a link-layer address of zeroes", options(ask, sourceOption(MAC{})), ResultEvent, by(used, MAC{})},
		{"a target's link-layer address of zeroes", options(sent, targetOption(MAC{})), ResultEvent, by(announced, MAC{})},
		{"a multicast link-layer address", options(ask, sourceOption(group)), ResultEvent, by(used, group)},
		{"the broadcast link-layer address", options(sent, targetOption(broadcast)), ResultEvent, by(announced, broadcast)},
		{"the first of two link-layer addresses counts, whatever it is", options(ask, sourceOption(MAC{}), sourceOption(macA)), ResultEvent, by(used, MAC{})},

		{"forwarded by a router", changed(ask, 7, 254), ResultInvalid, none},
		{"an advertisement forwarded by a router", changed(sent, 7, 64), ResultInvalid, none},
		{"a probe forwarded by a router", changed(probe, 7, 254), ResultInvalid, none},
		{"a code", changed(ask, 41, 1), ResultInvalid, none},
		{"a code of an advertisement", changed(sent, 41, 255), ResultInvalid, none},
		{"a probe to all nodes", with(probe, func(f *ndpFrame) { f.to = allNodes }), ResultInvalid, none},
		{"a probe to one host", with(probe, func(f *ndpFrame) { f.to = addr6A }), ResultInvalid, none},
		{"a probe to a group near those of solicited nodes", with(probe, func(f *ndpFrame) { f.to = addr("ff02::1:fe00:1") }), ResultInvalid, none},
		{"a probe to a solicited node of another scope", with(probe, func(f *ndpFrame) { f.to = addr("ff05::1:ff00:1") }), ResultInvalid, none},
		{"a probe to a group of more bits", with(probe, func(f *ndpFrame) { f.to = addr("ff02::1:0:1:ff00:1") }), ResultInvalid, none},
		{"a probe with its source's link-layer address", options(probe, nonce, sourceOption(macA)), ResultInvalid, none},
		{
			"a solicited advertisement to all nodes",
			with(sent, func(f *ndpFrame) { f.flags |= ndSolicited }), ResultInvalid, none,
		},

		{"a multicast source", from("ff02::1"), ResultInvalid, none},
		{"a loopback source", from("::1"), ResultInvalid, none},
		{"an IPv4-mapped source", from("::ffff:192.0.2.1"), ResultInvalid, none},
		{"an advertisement from a multicast source", with(sent, func(f *ndpFrame) { f.from = allNodes }), ResultInvalid, none},
		{"a multicast target", target(sent, "ff02::1"), ResultInvalid, none},
		{"no target", target(sent, "::"), ResultInvalid, none},
		{"a loopback target", target(sent, "::1"), ResultInvalid, none},
		{"an IPv4-mapped target", target(sent, "::ffff:192.0.2.1"), ResultInvalid, none},
		{"a solicitation for a multicast target", target(ask, "ff02::1"), ResultInvalid, none},
		{"a solicitation for no target", target(ask, "::"), ResultInvalid, none},
		{"a solicitation for a loopback target", target(ask, "::1"), ResultInvalid, none},
		{"a probe for a multicast target", target(probe, "ff02::1"), ResultInvalid, none},
		{"the address after loopback", target(sent, "::2"), ResultEvent, at(announced, "::2")},
		{"an address that looks like loopback", target(sent, "::1:0:0:1"), ResultEvent, at(announced, "::1:0:0:1")},
		{"an IPv4-compatible address", target(sent, "::192.0.2.1"), ResultEvent, at(announced, "::192.0.2.1")},
		{"the address before IPv4-mapped ones", target(sent, "::fffe:ffff:ffff"), ResultEvent, at(announced, "::fffe:ffff:ffff")},
		{"the address after IPv4-mapped ones", target(sent, "::1:0:0:0"), ResultEvent, at(announced, "::1:0:0:0")},
		{"an IPv4-translated address", target(sent, "::ffff:0:192.0.2.1"), ResultEvent, at(announced, "::ffff:0:192.0.2.1")},
		{"the last unicast address", target(sent, "feff::1"), ResultEvent, at(announced, "feff::1")},

		{"802.1Q", tagged(vlanTag{0x8100, 10}), ResultEvent, onVLAN(10, 0)},
		{"QinQ", tagged(vlanTag{0x88a8, 20}, vlanTag{0x8100, 10}), ResultEvent, onVLAN(20, 10)},
		{"a priority tag is no VLAN", tagged(vlanTag{0x8100, 0x6000}), ResultEvent, announced},
		{"a claim under three VLANs is counted", tagged(vlanTag{0x8100, 1}, vlanTag{0x8100, 2}, vlanTag{0x8100, 3}), ResultUnparsedTags, none},
		{"any number of priority tags", tagged(slices.Repeat([]vlanTag{{0x8100, 0}}, 300)...), ResultEvent, announced},
		{"cut off by one byte in a VLAN", func() []byte {
			b := tagged(vlanTag{0x8100, 10})
			return b[:len(b)-1]
		}(), ResultMalformed, none},

		{"behind hop-by-hop options", behind(hopByHop), ResultEvent, used},
		{"behind destination options", behind(destination), ResultEvent, used},
		{"behind a long header", behind(extension{protocolDstOpts, make([]byte, 8*8-2)}), ResultEvent, used},
		{"behind a routing header that is done", behind(routing(0)), ResultEvent, used},
		{"behind a routing header that is not done", behind(routing(1)), ResultNone, none},
		{"behind all of them", behind(hopByHop, destination, routing(0), destination), ResultEvent, used},
		{"behind as many as a frame of 1500 bytes holds", behind(slices.Repeat([]extension{destination}, 176)...), ResultEvent, used},
		{"behind as many as are walked", behind(slices.Repeat([]extension{destination}, maxExtensions)...), ResultEvent, used},
		{"behind more than are walked", behind(slices.Repeat([]extension{destination}, maxExtensions+1)...), ResultUnparsedExtensions, none},
		{"another protocol behind as many", behind(append(slices.Repeat([]extension{destination}, maxExtensions), extension{44, make([]byte, 6)})...), ResultNone, none},
		{"behind hop-by-hop options that come second", behind(destination, hopByHop), ResultNone, none},
		{"in a fragment", behind(extension{44, make([]byte, 6)}), ResultNone, none},
		{"in a fragment behind options", behind(destination, extension{44, make([]byte, 6)}), ResultNone, none},
		{"behind an authentication header", behind(extension{51, make([]byte, 6)}), ResultNone, none},
		{"behind no next header", behind(extension{59, make([]byte, 6)}), ResultNone, none},
		{"another protocol behind options", changed(ndpFrame{
			source: macA, from: addr6A, to: addr6B, before: []extension{hopByHop}, typ: ndSolicitation, target: addr6B,
		}, ipv6Len, 6), ResultNone, none},
		{"a header that ends behind the frame", with(ask, func(f *ndpFrame) {
			f.before = []extension{destination}
			f.change = func(packet []byte) { packet[ipv6Len+1] = 255 }
		}), ResultNone, none},
		{"a header that is cut off", behind(destination)[:ethernetLen+ipv6Len+3], ResultNone, none},
		{"behind options, and forwarded", with(ask, func(f *ndpFrame) {
			f.before = []extension{destination}
			f.change = func(packet []byte) { packet[7] = 254 }
		}), ResultInvalid, none},
		{"behind options, and cut off by one byte", func() []byte {
			b := behind(hopByHop)
			return b[:len(b)-1]
		}(), ResultMalformed, none},

		{"cut off by one byte", cut(1), ResultMalformed, none},
		{"cut off before its options", cut(ndOptionLen), ResultMalformed, none},
		{"cut off in its target", cut(ndOptionLen + 1), ResultMalformed, none},
		{"cut off after its type", cut(messageLen - 1), ResultMalformed, none},
		{"cut off before its type", cut(messageLen), ResultNone, none},
		{"a length that ends in the target", payloadLength(ask, ndLen-1), ResultMalformed, none},
		{"a length of nothing", payloadLength(ask, 0), ResultMalformed, none},
		{"a length beyond the frame", payloadLength(ask, messageLen+8), ResultMalformed, none},
		{"a length beyond a byte", changed(ask, 4, 1), ResultMalformed, none},

		{"IPv4 in place of IPv6", changed(ask, 0, 0x45), ResultNone, none},
		{"TCP", changed(ask, 6, 6), ResultNone, none},
		{"ICMP for IPv4", changed(ask, 6, 1), ResultNone, none},
		{"an echo request", changed(ask, 40, 128), ResultNone, none},
		{"a router solicitation", changed(ask, 40, 133), ResultNone, none},
		{"a router advertisement", changed(ask, 40, 134), ResultNone, none},
		{"a redirect", changed(ask, 40, 137), ResultNone, none},
		{"a multicast listener report", changed(ndpFrame{
			source: macA, from: addr6A, to: allNodes, before: []extension{hopByHop}, typ: 143, target: addr6B,
		}, 7, 1), ResultNone, none},
	}
}

func TestClaimsWithAndWithoutOverrideAreDistinguished(t *testing.T) {
	o := newObserver(t)
	frames := map[byte][]byte{}
	for _, flags := range []byte{0, ndOverride, ndSolicited, ndSolicited | ndOverride} {
		frames[flags] = advertisement(macA, addr6A, flags)
	}
	for _, order := range [][]byte{
		{ndOverride, 0, ndSolicited, ndSolicited | ndOverride},
		{0, ndOverride, ndSolicited | ndOverride, ndSolicited},
	} {
		for i, flags := range order {
			ev := o.wantReported(t, frames[flags])
			if want := flags&ndOverride == 0; ev.NoOverride != want {
				t.Errorf("flags %#x: got no override %t, want %t", flags, ev.NoOverride, want)
			}
			for _, known := range order[:i+1] {
				o.wantSilent(t, frames[known])
			}
		}
		o.wantReported(t, solicitation(macA, addr6A, addr6B))
		o.wantSilent(t, solicitation(macA, addr6A, addr6B))
		o.age(t, macA, addr6A, 30*time.Second)
	}
}

func TestContestedIPv6AddressIsReportedEverySecond(t *testing.T) {
	o := newObserver(t)
	frame := advertisement(macA, addr6A, ndOverride)
	if err := o.Contest(addr6A, true); err != nil {
		t.Fatal(err)
	}
	o.wantReported(t, frame)
	o.wantSilent(t, frame)
	o.age(t, macA, addr6A, time.Second)
	if ev := o.wantReported(t, frame); ev.Frames != 2 {
		t.Errorf("got %d frames since the last event, want 2", ev.Frames)
	}
}

func TestFragmentedBufferIsRead(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), _ Mode) {
		c := connect(t)
		const mtu = 9000
		if err := netlink.LinkSetMTU(c.here, mtu); err != nil {
			t.Fatal(err)
		}
		c.inPeer(t, func() {
			if err := netlink.LinkSetMTU(c.peerLink(t), mtu); err != nil {
				t.Fatal(err)
			}
		})
		o := newObserver(t)
		a, err := attach(o, c.ifindex)
		attached(t, a, err)

		// A packet socket fragments packets that are longer than a page, except for the Ethernet
		// header.
		long := option(253, make([]byte, 255*8-2)...)
		f := ndpFrame{
			source: macA, from: addr6A, to: allNodes, typ: ndAdvertisement, flags: ndOverride, target: addr6A,
			options: slices.Concat(long, long, targetOption(macA)),
		}
		if len(f.bytes()) <= os.Getpagesize() {
			t.Skipf("needs a page shorter than %d bytes", len(f.bytes()))
		}
		c.send(t, f.bytes())
		if got := o.await(t); got.Addr != addr6A || got.SHA != macA || got.Kind != Announced {
			t.Errorf("got %+v, want ANNOUNCED %s at %s", got, addr6A, macA)
		}
	})
}

func TestNDPFramesOfLinuxAreParsed(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), _ Mode) {
		c := connect(t)
		o := newObserver(t)
		a, err := attach(o, c.ifindex)
		attached(t, a, err)
		add := func(l netlink.Link, addr netip.Addr, flags int) {
			t.Helper()
			ip := mustParseAddr(t, addr.String()+"/64")
			ip.Flags = flags
			if err := netlink.AddrAdd(l, ip); err != nil {
				t.Fatal("add address: ", err)
			}
		}
		var mac MAC
		want := func(kind Kind, addr netip.Addr) {
			t.Helper()
			for {
				ev := o.await(t)
				if ev.Addr != addr {
					continue // for example its link-local address
				}
				if ev.Kind != kind || ev.SHA != mac || ev.Source != mac || ev.NoOverride || ev.Protocol != NDP {
					t.Errorf("got %+v, want that %s is %d by %s", ev, addr, kind, mac)
				}
				return
			}
		}

		add(c.here, addr6A, unix.IFA_F_NODAD)
		c.inPeer(t, func() {
			mac = MAC(c.peerLink(t).Attrs().HardwareAddr)
			add(c.peerLink(t), addr6B, unix.IFA_F_NODAD)
			sendTo(t, addr6A)
		})
		want(Used, addr6B)

		// Use another address: this end already has the first one in its neighbour table and need
		// not resolve it.
		other := netip.MustParseAddr("2001:db8::4")
		c.inPeer(t, func() { add(c.peerLink(t), other, unix.IFA_F_NODAD) })
		sendTo(t, other)
		want(Answered, other)

		// After duplicate address detection, the kernel announces the address.
		addr := netip.MustParseAddr("2001:db8::3")
		c.inPeer(t, func() {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/eth0/ndisc_notify", []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
			add(c.peerLink(t), addr, 0)
		})
		want(Announced, addr)
		counts := o.counts(t)[NDP]
		if counts[ResultProbe] == 0 {
			t.Error("got no probe of duplicate address detection")
		}
		if counts[ResultMalformed] != 0 || counts[ResultInvalid] != 0 {
			t.Errorf("got %d malformed and %d invalid frames of the kernel, want none",
				counts[ResultMalformed], counts[ResultInvalid])
		}
	})
}

// sendTo sends one byte by UDP.
func sendTo(tb testing.TB, addr netip.Addr) {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal("open UDP socket: ", err)
	}
	defer func() { _ = unix.Close(fd) }()
	const discard = 9
	if err := unix.Sendto(fd, []byte{0}, 0, &unix.SockaddrInet6{Port: discard, Addr: addr.As16()}); err != nil {
		tb.Fatalf("send to %s: %v", addr, err)
	}
}
