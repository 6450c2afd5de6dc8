package bpf

import (
	"net/netip"
	"slices"
	"testing"
)

// frameCase is a frame with the expected result.
type frameCase struct {
	name   string
	frame  []byte
	result Result
	want   Binding // if the result is an event
}

func arpCases() []frameCase {
	padded := func(b []byte) []byte { return append(b, make([]byte, max(0, 60-len(b)))...) }
	tagged := func(tags ...vlanTag) []byte {
		return arpFrame{tags: tags, op: 1, sha: macA, spa: addrA, tpa: addrB}.bytes()
	}
	changed := func(at int, value byte) []byte {
		return arpFrame{op: 1, sha: macA, spa: addrA, tpa: addrB, change: func(arp []byte) { arp[at] = value }}.bytes()
	}
	from := func(spa string) []byte { return request(macA, netip.MustParseAddr(spa), addrB) }
	used := Binding{Kind: Used, Addr: addrA, SHA: macA, Source: macA}
	onVLAN := func(vlan, inner uint16) Binding {
		b := used
		b.VLAN, b.InnerVLAN = vlan, inner
		return b
	}
	asKind := func(kind Kind) Binding {
		b := used
		b.Kind = kind
		return b
	}
	usedAddr := func(spa string) Binding {
		b := used
		b.Addr = netip.MustParseAddr(spa)
		return b
	}
	by := func(b Binding, mac MAC) Binding {
		b.SHA, b.Source = mac, mac
		return b
	}
	group := MAC{0x01, 0, 0x5e, 0, 0, 1}
	plain := request(macA, addrA, addrB)
	ethernet := func(etherType ...byte) []byte { return slices.Concat(plain[:12], etherType) }

	cases := []frameCase{
		{"a request uses its sender's address", plain, ResultEvent, used},
		{"a reply answers", reply(macA, addrA, addrB), ResultEvent, asKind(Answered)},
		{"a request for the own address announces", request(macA, addrA, addrA), ResultEvent, asKind(Announced)},
		{"a reply about the own address announces", reply(macA, addrA, addrA), ResultEvent, asKind(Announced)},
		{"a probe claims nothing", request(macA, addrNone, addrA), ResultProbe, Binding{}},
		{"a probe for nothing claims nothing", request(macA, addrNone, addrNone), ResultProbe, Binding{}},
		{"padding to 60 bytes changes nothing", padded(slices.Clone(plain)), ResultEvent, used},
		{"padding to 1500 bytes changes nothing", append(slices.Clone(plain), make([]byte, 1500-len(plain))...), ResultEvent, used},
		{
			"the source of the frame is kept beside the sender's MAC",
			arpFrame{source: macB, op: 2, sha: macA, spa: addrA, tpa: addrB}.bytes(), ResultEvent,
			Binding{Kind: Answered, Addr: addrA, SHA: macA, Source: macB},
		},
		{
			"a target in a reply claims nothing",
			arpFrame{op: 2, sha: macA, spa: addrA, tpa: addrB, change: func(arp []byte) { copy(arp[18:], macB[:]) }}.bytes(),
			ResultEvent, asKind(Answered),
		},

		{"802.1Q", tagged(vlanTag{0x8100, 10}), ResultEvent, onVLAN(10, 0)},
		{"802.1Q with priority and DEI", tagged(vlanTag{0x8100, 0xf00a}), ResultEvent, onVLAN(10, 0)},
		{"802.1ad", tagged(vlanTag{0x88a8, 4094}), ResultEvent, onVLAN(4094, 0)},
		{"QinQ", tagged(vlanTag{0x88a8, 20}, vlanTag{0x8100, 10}), ResultEvent, onVLAN(20, 10)},
		{"QinQ with 802.1Q twice", tagged(vlanTag{0x8100, 20}, vlanTag{0x8100, 10}), ResultEvent, onVLAN(20, 10)},
		{"a priority tag is no VLAN", tagged(vlanTag{0x8100, 0x6000}), ResultEvent, used},
		{"a priority tag around a VLAN is none", tagged(vlanTag{0x8100, 0}, vlanTag{0x8100, 10}), ResultEvent, onVLAN(10, 0)},
		{"a priority tag inside a VLAN is none", tagged(vlanTag{0x8100, 10}, vlanTag{0x8100, 0}), ResultEvent, onVLAN(10, 0)},
		{"a claim under three VLANs is counted", tagged(vlanTag{0x8100, 1}, vlanTag{0x8100, 2}, vlanTag{0x8100, 3}), ResultUnparsedTags, Binding{}},
		{
			"a probe under three VLANs is not",
			arpFrame{tags: []vlanTag{{0x8100, 1}, {0x8100, 2}, {0x8100, 3}}, op: 1, sha: macA, spa: addrNone, tpa: addrA}.bytes(), ResultNone,
			Binding{},
		},
		{"any number of priority tags", tagged(slices.Repeat([]vlanTag{{0x8100, 0}}, 300)...), ResultEvent, used},
		{
			"a VLAN among priority tags",
			tagged(slices.Concat(slices.Repeat([]vlanTag{{0x88a8, 0}}, 100), []vlanTag{{0x8100, 10}}, slices.Repeat([]vlanTag{{0x8100, 0}}, 100))...),
			ResultEvent, onVLAN(10, 0),
		},
		{"as many tags as are walked", tagged(slices.Repeat([]vlanTag{{0x8100, 0}}, maxTags)...), ResultEvent, used},
		{"more tags than are walked", tagged(slices.Repeat([]vlanTag{{0x8100, 0}}, maxTags+1)...), ResultUnparsedTags, Binding{}},
		{"tagged and padded", padded(tagged(vlanTag{0x8100, 10})), ResultEvent, onVLAN(10, 0)},

		{"cut off by one byte", plain[:41], ResultMalformed, Binding{}},
		{"cut off after the Ethernet header and a byte", plain[:15], ResultMalformed, Binding{}},
		{"cut off in ARP after a tag", tagged(vlanTag{0x8100, 10})[:45], ResultMalformed, Binding{}},
		{"cut off in ARP after two tags", tagged(vlanTag{0x88a8, 20}, vlanTag{0x8100, 10})[:49], ResultMalformed, Binding{}},
		{"cut off in the tag", tagged(vlanTag{0x8100, 10})[:17], ResultNone, Binding{}},
		{"cut off in the inner tag", tagged(vlanTag{0x88a8, 20}, vlanTag{0x8100, 10})[:21], ResultNone, Binding{}},
		{"hardware type IEEE 802, which Linux takes", changed(1, 6), ResultEvent, used},
		{"hardware that is not Ethernet", changed(1, 7), ResultMalformed, Binding{}},
		{"hardware beyond a byte", changed(0, 1), ResultMalformed, Binding{}},
		{"a protocol that is not IPv4", changed(2, 0x86), ResultMalformed, Binding{}},
		{"a hardware address too long", changed(4, 8), ResultMalformed, Binding{}},
		{"a protocol address too long", changed(5, 16), ResultMalformed, Binding{}},
		{"no operation", changed(7, 0), ResultOther, Binding{}},
		{"a RARP request in ARP", changed(7, 3), ResultOther, Binding{}},
		{"InARP", changed(7, 8), ResultOther, Binding{}},
		{"an operation beyond a byte", changed(6, 1), ResultOther, Binding{}},

		{"a sender without a MAC, which Linux takes", request(MAC{}, addrA, addrB), ResultEvent, by(used, MAC{})},
		{"a sender with a multicast MAC, which Linux takes", request(group, addrA, addrB), ResultEvent, by(used, group)},
		{"a sender with the broadcast MAC, which Linux takes", reply(broadcast, addrA, addrB), ResultEvent, by(asKind(Answered), broadcast)},
		{"a probe without a MAC", request(MAC{}, addrNone, addrB), ResultProbe, Binding{}},
		{"a reply from no address", reply(macA, addrNone, addrB), ResultInvalid, Binding{}},
		{"a loopback sender", from("127.0.0.1"), ResultInvalid, Binding{}},
		{"the last loopback sender", from("127.255.255.255"), ResultInvalid, Binding{}},
		{"a multicast sender", from("224.0.0.1"), ResultInvalid, Binding{}},
		{"a class E sender", from("240.0.0.1"), ResultInvalid, Binding{}},
		{"a broadcast sender", from("255.255.255.255"), ResultInvalid, Binding{}},
		{"the address before loopback", from("126.255.255.255"), ResultEvent, usedAddr("126.255.255.255")},
		{"the address after loopback", from("128.0.0.0"), ResultEvent, usedAddr("128.0.0.0")},
		{"the last unicast address", from("223.255.255.255"), ResultEvent, usedAddr("223.255.255.255")},
		{"a link-local sender", from("169.254.1.1"), ResultEvent, usedAddr("169.254.1.1")},

		{"IPv4", append(ethernet(0x08, 0x00), make([]byte, 46)...), ResultNone, Binding{}},
		{"IPv6", append(ethernet(0x86, 0xdd), make([]byte, 46)...), ResultNone, Binding{}},
		{"RARP", append(ethernet(0x80, 0x35), plain[14:]...), ResultNone, Binding{}},
		{"IPv4 in a VLAN", append(ethernet(0x81, 0x00, 0x00, 0x0a, 0x08, 0x00), make([]byte, 46)...), ResultNone, Binding{}},
		{"a length in place of a type", append(ethernet(0x00, 0x2e), make([]byte, 46)...), ResultNone, Binding{}},
		{"a runt", append(ethernet(0x80, 0x35), 0), ResultNone, Binding{}},
	}
	return cases
}

// forEachFrame runs a test on the frames of each protocol.
func forEachFrame(t *testing.T, test func(t *testing.T, protocol Protocol, tt frameCase)) {
	for protocol, cases := range map[Protocol][]frameCase{ARP: arpCases(), NDP: ndpCases()} {
		t.Run(protocol.String(), func(t *testing.T) {
			for _, tt := range cases {
				t.Run(tt.name, func(t *testing.T) { test(t, protocol, tt) })
			}
		})
	}
}

func TestFramesMeanTheSameInKernelAndGo(t *testing.T) {
	o := newObserver(t)
	forEachFrame(t, func(t *testing.T, protocol Protocol, tt frameCase) {
		got := assertAgrees(t, o, tt.frame, tt.result, tt.want)
		if tt.result != ResultNone && got != protocol {
			t.Errorf("got counter %s, want %s", got, protocol)
		}
	})
}

func TestDecodeKnowsEachFrame(t *testing.T) {
	forEachFrame(t, func(t *testing.T, _ Protocol, tt frameCase) {
		got, result := Decode(tt.frame, 0)
		if got != tt.want || result != tt.result {
			t.Errorf("got %+v %s, want %+v %s", got, result, tt.want, tt.result)
		}
	})
}

func TestDecodeTakesTheOffloadedTagAsTheOutermost(t *testing.T) {
	inner := arpFrame{tags: []vlanTag{{0x8100, 10}}, op: 1, sha: macA, spa: addrA, tpa: addrB}
	for _, tt := range []struct {
		name      string
		offloaded uint16
		frame     []byte
		vlan      uint16
		inner     uint16
		result    Result
	}{
		{"no tag in the frame", 20, request(macA, addrA, addrB), 20, 0, ResultEvent},
		{"a tag in the frame", 20, inner.bytes(), 20, 10, ResultEvent},
		{"a priority tag outside", 0x6000, inner.bytes(), 10, 0, ResultEvent},
		{
			"a priority tag in between", 20,
			arpFrame{tags: []vlanTag{{0x8100, 0}, {0x8100, 10}}, op: 1, sha: macA, spa: addrA, tpa: addrB}.bytes(),
			20, 10, ResultEvent,
		},
		{
			"a third VLAN", 30,
			arpFrame{tags: []vlanTag{{0x8100, 20}, {0x8100, 10}}, op: 1, sha: macA, spa: addrA, tpa: addrB}.bytes(),
			0, 0, ResultUnparsedTags,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, result := Decode(tt.frame, tt.offloaded)
			if got.VLAN != tt.vlan || got.InnerVLAN != tt.inner || result != tt.result {
				t.Errorf("got VLANs %d.%d and %s, want %d.%d and %s",
					got.VLAN, got.InnerVLAN, result, tt.vlan, tt.inner, tt.result)
			}
		})
	}
}

func TestDecodeIgnoresARunt(t *testing.T) {
	frame := request(macA, addrA, addrB)
	for length := range ethernetLen {
		if got, result := Decode(frame[:length], 0); result != ResultNone || got != (Binding{}) {
			t.Errorf("%d bytes: got %+v %s, want nothing", length, got, result)
		}
	}
}

// FuzzDecodeAgrees checks that the two decoders return the same.
func FuzzDecodeAgrees(f *testing.F) {
	for _, tt := range append(arpCases(), ndpCases()...) {
		f.Add(tt.frame)
	}
	o := newObserver(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		// The kernel does not run programs on frames that are only a header, on IP without an IP
		// header, or on more than a page.
		if len(frame) <= ethernetLen || len(frame) > 1514 {
			return
		}
		switch [2]byte(frame[12:14]) {
		case [2]byte{0x08, 0x00}, [2]byte{0x86, 0xdd}:
			if len(frame) < ethernetLen+40 {
				return
			}
		}
		want, result := Decode(frame, 0)
		assertAgrees(t, o, frame, result, want)
	})
}

// assertAgrees runs both decoders on a frame whose binding o does not know, and removes the binding
// again. It returns the protocol for which the kernel counted the frame.
func assertAgrees(tb testing.TB, o *Observer, frame []byte, result Result, want Binding) Protocol {
	tb.Helper()
	if got, r := Decode(frame, 0); got != want || r != result {
		tb.Errorf("in Go got %+v %s, want %+v %s", got, r, want, result)
	}

	before := monotonic()
	protocol, got := o.runCounted(tb, frame)
	if got != result {
		tb.Errorf("in the kernel got counter %s moved, want %s", got, result)
	}
	ev, ok := o.waiting(tb)
	if ok != (result == ResultEvent) {
		tb.Fatalf("in the kernel got event %t (%+v), want %t", ok, ev, !ok)
	}
	if !ok {
		return protocol
	}
	if protocol != want.Protocol {
		tb.Errorf("got counter %s, want %s", protocol, want.Protocol)
	}
	if ev.Ktime < before || ev.Ktime > monotonic() {
		tb.Errorf("got ktime %s, want between %s and now", ev.Ktime, before)
	}
	wantEvent := Event{
		Ktime:      ev.Ktime,
		Ifindex:    1,
		VLAN:       want.VLAN,
		InnerVLAN:  want.InnerVLAN,
		Protocol:   want.Protocol,
		Kind:       want.Kind,
		NoOverride: want.NoOverride,
		Addr:       want.Addr,
		SHA:        want.SHA,
		Source:     want.Source,
		Frames:     1,
	}
	if ev != wantEvent {
		tb.Errorf("in the kernel got %+v, want %+v", ev, wantEvent)
	}
	if extra, more := o.waiting(tb); more {
		tb.Errorf("got a second event %+v, want one", extra)
	}
	if err := o.Forget(ev.Ifindex, ev.VLAN, ev.InnerVLAN, ev.Addr, ev.SHA, ev.Source); err != nil {
		tb.Error(err)
	}
	return protocol
}
