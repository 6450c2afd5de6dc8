package rtnetlink

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestBridgePortHasAPVID(t *testing.T) {
	// struct ifinfomsg of the family AF_BRIDGE, then IFLA_AF_SPEC with a range of VLANs and
	// the VLAN for untagged frames.
	data := make([]byte, unix.SizeofIfInfomsg)
	data[0], data[4] = unix.AF_BRIDGE, 21
	spec := []byte{
		8, 0, iflaBridgeVLANInfo, 0, 8, 0, 2, 0, // RANGE_BEGIN, VLAN 2
		8, 0, iflaBridgeVLANInfo, 0, 16, 0, 9, 0, // RANGE_END, VLAN 9
		8, 0, iflaBridgeVLANInfo, 0, 6, 0, 10, 0, // PVID and UNTAGGED, VLAN 10
	}
	data = append(data, byte(4+len(spec)), 0, unix.IFLA_AF_SPEC, 0x80)
	data = append(data, spec...)
	var m Message
	known, err := m.parse(unix.RTM_NEWLINK, NoNSID, data)
	if err != nil || !known || m.Type != NewPort || m.Port.Index != 21 || m.Port.PVID != 10 {
		t.Errorf("parse: got %+v, %v, %v, want PVID 10 of interface 21", m, known, err)
	}
	if _, err := m.parse(unix.RTM_NEWLINK, NoNSID, data[:8]); err == nil {
		t.Error("parse of a message cut off: got no error")
	}

	// A network card that is a port of the bridge describes its embedded switch. That does not
	// change the card's VLAN.
	data = data[:unix.SizeofIfInfomsg]
	data = append(data, 4+8, 0, unix.IFLA_AF_SPEC, 0x80, 6, 0, iflaBridgeFlags, 0, bridgeFlagsSelf, 0, 0, 0)
	if known, err := m.parse(unix.RTM_NEWLINK, NoNSID, data); err != nil || !known || m.Link.Index != 0 {
		t.Errorf("parse of a network card's own message: got %+v, %v, %v, want no interface", m, known, err)
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
		want []Hop
	}{
		"an interface":          {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_OIF, u32(7)...)), []Hop{{Index: 7}}},
		"a gateway":             {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_GATEWAY, one.AsSlice()...), attr(unix.RTA_OIF, u32(7)...)), []Hop{{Index: 7, Gateway: one}}},
		"one of the other kind": {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_VIA, append([]byte{10, 0}, two.AsSlice()...)...), attr(unix.RTA_OIF, u32(7)...)), []Hop{{Index: 7, Gateway: two}}},
		"two ways":              {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_MULTIPATH, slices.Concat(nexthop(7, attr(unix.RTA_GATEWAY, one.AsSlice()...)...), nexthop(8))...)), []Hop{{Index: 7, Gateway: one}, {Index: 8}}},
		"a way that is cut off": {slices.Concat(header(unix.RTN_UNICAST), attr(unix.RTA_MULTIPATH, 200, 0, 0, 0, 7, 0, 0, 0)), nil},
		"an address of the node": {
			slices.Concat(header(unix.RTN_LOCAL), attr(unix.RTA_TABLE, u32(100)...), attr(unix.RTA_DST, one.AsSlice()...), attr(unix.RTA_OIF, u32(1)...)),
			[]Hop{{Index: 1, Local: true, Prefix: netip.PrefixFrom(one, 32), Table: 100}},
		},
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
