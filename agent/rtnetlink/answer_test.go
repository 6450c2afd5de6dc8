package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// message returns a netlink message with the given payload, padded as in a datagram.
func message(typ, flags uint16, seq uint32, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(binary.NativeEndian.AppendUint32(b, 0), data...)
	return append(b, make([]byte, align4(len(b))-len(b))...)
}

func attribute(typ uint16, val ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(val)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), val...)
	return append(b, make([]byte, align4(len(b))-len(b))...)
}

func u32Bytes(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func TestAttributesEndWhereTheyDoNotFit(t *testing.T) {
	all := func(b []byte, most int) (out []uint16) {
		for typ, val := range attributes(b) {
			if out = append(out, typ, uint16(len(val))); len(out) == 2*most {
				break
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		b    []byte
		want []uint16
	}{
		"empty value":             {attribute(5), []uint16{5, 0}},
		"flags":                   {attribute(5|unix.NLA_F_NESTED, 1), []uint16{5, 1}},
		"two":                     {slices.Concat(attribute(5, 1), attribute(6)), []uint16{5, 1, 6, 0}},
		"length below the header": {slices.Concat([]byte{3, 0, 5, 0}, attribute(6)), nil},
		"longer than the rest":    {[]byte{9, 0, 5, 0, 1, 2, 3, 4}, nil},
		"half a header":           {[]byte{4, 0, 5}, nil},
	} {
		if got := all(c.b, 9); !slices.Equal(got, c.want) {
			t.Errorf("attributes, %s: got %v, want %v", name, got, c.want)
		}
	}
	if got := all(slices.Concat(attribute(5), attribute(6)), 1); len(got) != 2 {
		t.Errorf("attributes after a break: got %v, want one", got)
	}
}

func TestLinkIsReadAsTheKernelWritesIt(t *testing.T) {
	head := []byte{unix.AF_UNSPEC, 0, 1, 0, 9, 0, 0, 0, 0x43, 0x10, 0, 0, 0, 0, 0, 0}
	info := func(kind string, more ...byte) []byte {
		return attribute(unix.IFLA_LINKINFO, slices.Concat(attribute(unix.IFLA_INFO_KIND, append([]byte(kind), 0)...), more)...)
	}
	data := func(attrs ...byte) []byte { return attribute(unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, attrs...) }
	plain := Link{Index: 9, ARPHRD: unix.ARPHRD_ETHER, Flags: 0x1043, LowerNSID: NoNSID}
	with := func(change func(*Link)) Link {
		l := plain
		change(&l)
		return l
	}
	for name, c := range map[string]struct {
		attrs []byte
		want  Link
	}{
		"nothing": {nil, plain},
		"hardware": {
			slices.Concat(attribute(unix.IFLA_IFNAME, []byte("eth0\x00")...), attribute(unix.IFLA_ADDRESS, 2, 0, 0, 0, 0, 1)),
			with(func(l *Link) { l.Name, l.MAC = "eth0", "\x02\x00\x00\x00\x00\x01" }),
		},
		"veth in a bridge": {
			slices.Concat(attribute(unix.IFLA_LINK, u32Bytes(4)...), attribute(unix.IFLA_LINK_NETNSID, u32Bytes(0)...), attribute(unix.IFLA_MASTER, u32Bytes(3)...),
				info("veth", attribute(unix.IFLA_INFO_SLAVE_KIND, []byte("bridge\x00")...)...)),
			with(func(l *Link) { l.Lower, l.LowerNSID, l.Master, l.Kind, l.SlaveKind = 4, 0, 3, "veth", "bridge" }),
		},
		"peer in a namespace that ends": {attribute(unix.IFLA_LINK_NETNSID, 0xff, 0xff, 0xff, 0xff), with(func(l *Link) { l.LowerNSID = Elsewhere })},
		"index of another length":       {attribute(unix.IFLA_LINK, 4, 0), plain},
		"VLAN":                          {info("vlan", data(attribute(iflaVLANID, 10, 0)...)...), with(func(l *Link) { l.Kind, l.VLAN = "vlan", 10 })},
		"VLAN with another attribute":   {info("vlan", data(attribute(iflaBridgeDefaultPVID, 10, 0)...)...), with(func(l *Link) { l.Kind = "vlan" })},
		"VLAN of another length":        {info("vlan", data(attribute(iflaVLANID, 10, 0, 0, 0)...)...), with(func(l *Link) { l.Kind = "vlan" })},
		"no VLAN but a MACVLAN":         {info("macvlan", data(attribute(iflaVLANID, 10, 0)...)...), with(func(l *Link) { l.Kind = "macvlan" })},
		"VXLAN that answers":            {info("vxlan", data(attribute(iflaVXLANProxy, 1)...)...), with(func(l *Link) { l.Kind, l.Proxy = "vxlan", true })},
		"VXLAN that does not learn":     {info("vxlan", data(attribute(iflaVXLANLearning, 0)...)...), with(func(l *Link) { l.Kind, l.NoLearning = "vxlan", true })},
		"VXLAN that learns":             {info("vxlan", data(attribute(iflaVXLANLearning, 1)...)...), with(func(l *Link) { l.Kind = "vxlan" })},
		"VXLAN that does not answer":    {info("vxlan", data(attribute(iflaVXLANProxy, 0)...)...), with(func(l *Link) { l.Kind = "vxlan" })},
		"VXLAN of all tunnels":          {info("vxlan", data(attribute(iflaVXLANMetadata, 1)...)...), with(func(l *Link) { l.Kind, l.Metadata = "vxlan", true })},
		"VXLAN of one tunnel":           {info("vxlan", data(attribute(iflaVXLANMetadata, 0)...)...), with(func(l *Link) { l.Kind = "vxlan" })},
		"GENEVE of all tunnels":         {info("geneve", data(attribute(iflaGeneveMetadata)...)...), with(func(l *Link) { l.Kind, l.Metadata = "geneve", true })},
		"GRE of all tunnels":            {info("gretap", data(attribute(iflaGREMetadata)...)...), with(func(l *Link) { l.Kind, l.Metadata = "gretap", true })},
		"GENEVE with another attribute": {info("geneve", data(attribute(iflaGREMetadata)...)...), with(func(l *Link) { l.Kind = "geneve" })},
		"bridge": {
			info("bridge", data(slices.Concat(attribute(iflaBridgeFiltering, 1), attribute(iflaBridgeDefaultPVID, 3, 0))...)...),
			with(func(l *Link) { l.Kind, l.Filtering, l.DefaultPVID = "bridge", true, 3 }),
		},
		"bridge that does not filter":     {info("bridge", data(attribute(iflaBridgeFiltering, 0)...)...), with(func(l *Link) { l.Kind = "bridge" })},
		"bridge with others' attributes":  {info("bridge", data(slices.Concat(attribute(iflaVLANID, 10, 0), attribute(30, 1))...)...), with(func(l *Link) { l.Kind = "bridge" })},
		"bridge with other lengths":       {info("bridge", data(slices.Concat(attribute(iflaBridgeFiltering, 1, 1), attribute(iflaBridgeDefaultPVID, 3))...)...), with(func(l *Link) { l.Kind = "bridge" })},
		"bond with a bridge's attributes": {info("bond", data(slices.Concat(attribute(iflaBridgeFiltering, 1), attribute(iflaBridgeDefaultPVID, 3, 0))...)...), with(func(l *Link) { l.Kind = "bond" })},
	} {
		msg := slices.Concat(head, c.attrs)
		if got, err := parseLink(msg); err != nil || got != c.want {
			t.Errorf("%s: got %+v and error %v, want %+v", name, got, err, c.want)
		}
		m := Message{ID: 3}
		if known, err := m.parse(unix.RTM_DELLINK, 5, msg); err != nil || !known || !reflect.DeepEqual(m, Message{Type: unix.RTM_DELLINK, NSID: 5, Link: c.want}) {
			t.Errorf("message about %s: got %+v, %v and error %v", name, m, known, err)
		}
	}
	if _, err := parseLink(head[:15]); !errors.Is(err, errShort) {
		t.Errorf("link that is cut off: got error %v, want %v", err, errShort)
	}
}

func TestMessageIsReadByItsType(t *testing.T) {
	addr := slices.Concat([]byte{unix.AF_INET, 24, 0x80, 0, 2, 0, 0, 0}, attribute(unix.IFA_LOCAL, 192, 0, 2, 1))
	bridge := make([]byte, unix.SizeofIfInfomsg)
	bridge[0] = unix.AF_BRIDGE
	other := slices.Clone(bridge)
	other[0] = unix.AF_INET6
	for name, c := range map[string]struct {
		typ   uint16
		data  []byte
		known bool
		err   bool
	}{
		"address":                           {unix.RTM_NEWADDR, addr, true, false},
		"end of an address":                 {unix.RTM_DELADDR, addr, true, false},
		"address that is cut off":           {unix.RTM_NEWADDR, addr[:7], true, true},
		"address without an address":        {unix.RTM_NEWADDR, addr[:8], true, true},
		"nsid":                              {unix.RTM_NEWNSID, slices.Concat(make([]byte, 4), attribute(netnsaNSID, u32Bytes(3)...)), true, false},
		"nsid that is cut off":              {unix.RTM_DELNSID, make([]byte, 3), true, true},
		"empty link":                        {unix.RTM_NEWLINK, nil, true, true},
		"bridge port that is cut off":       {unix.RTM_NEWLINK, bridge[:15], true, true},
		"bridge port":                       {unix.RTM_NEWLINK, bridge, true, false},
		"end of a bridge port":              {unix.RTM_DELLINK, bridge, false, false},
		"IPv6 state of a link":              {unix.RTM_NEWLINK, other, false, false},
		"neighbour":                         {unix.RTM_NEWNEIGH, append([]byte{unix.AF_INET}, make([]byte, 11)...), true, false},
		"neighbour that is cut off":         {unix.RTM_DELNEIGH, []byte{unix.AF_INET6, 0, 0}, true, true},
		"entry of a forwarding table":       {unix.RTM_NEWNEIGH, append([]byte{unix.AF_BRIDGE}, make([]byte, 11)...), false, false},
		"route cache, which nobody follows": {unix.RTM_NEWNEIGHTBL, addr, false, false},
	} {
		m := Message{Port: BridgePort{Index: 3}, ID: 9}
		known, err := m.parse(c.typ, 4, c.data)
		if known != c.known || (err != nil) != c.err {
			t.Errorf("%s: got known %v and error %v", name, known, err)
		}
		if m.NSID != 4 || m.Port.Index == 3 {
			t.Errorf("%s: got %+v, want nsid 4 and nothing of the previous message", name, m)
		}
	}
	var m Message
	if _, err := m.parse(unix.RTM_NEWNSID, NoNSID, slices.Concat(make([]byte, 4), attribute(9, u32Bytes(8)...), attribute(netnsaNSID, u32Bytes(3)...))); err != nil || m.ID != 3 {
		t.Errorf("nsid: got %d and error %v, want 3", m.ID, err)
	}
	if id, err := parseNSID(make([]byte, 4)); err != nil || id != NoNSID {
		t.Errorf("message without an nsid: got %d and error %v, want none", id, err)
	}
}

func TestAddressIsReadAsTheKernelWritesIt(t *testing.T) {
	head := []byte{unix.AF_INET, 24, 0x80, 0, 2, 0, 0, 0}
	cache := slices.Concat(u32Bytes(1), u32Bytes(2), u32Bytes(150), u32Bytes(9))
	for name, c := range map[string]struct {
		attrs []byte
		want  string
	}{
		"local only":            {attribute(unix.IFA_LOCAL, 192, 0, 2, 1), "192.0.2.1 invalid IP 24 80 0s"},
		"with its own peer":     {slices.Concat(attribute(unix.IFA_ADDRESS, 192, 0, 2, 1), attribute(unix.IFA_LOCAL, 192, 0, 2, 1)), "192.0.2.1 192.0.2.1 24 80 0s"},
		"with a peer":           {slices.Concat(attribute(unix.IFA_ADDRESS, 192, 0, 2, 2), attribute(unix.IFA_LOCAL, 192, 0, 2, 1)), "192.0.2.1 192.0.2.2 24 80 0s"},
		"with a peer elsewhere": {slices.Concat(attribute(unix.IFA_ADDRESS, 198, 51, 100, 2), attribute(unix.IFA_LOCAL, 192, 0, 2, 1)), "192.0.2.1 198.51.100.2 32 80 0s"},
		"IPv6":                  {attribute(unix.IFA_ADDRESS, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1), "fd00::1 fd00::1 24 80 0s"},
		"with more flags":       {slices.Concat(attribute(unix.IFA_LOCAL, 192, 0, 2, 1), attribute(unix.IFA_FLAGS, u32Bytes(0x280)...)), "192.0.2.1 invalid IP 24 280 0s"},
		"with its time":         {slices.Concat(attribute(unix.IFA_LOCAL, 192, 0, 2, 1), attribute(unix.IFA_CACHEINFO, cache...)), "192.0.2.1 invalid IP 24 80 1.5s"},
		"with half its times":   {slices.Concat(attribute(unix.IFA_LOCAL, 192, 0, 2, 1), attribute(unix.IFA_CACHEINFO, cache[:12]...)), "192.0.2.1 invalid IP 24 80 0s"},
	} {
		a, err := parseAddr(slices.Concat(head, c.attrs))
		if got := fmt.Sprintf("%s %s %d %x %s", a.Addr, a.Peer, a.PrefixLength, a.Flags, a.Created); err != nil || got != c.want || a.Index != 2 {
			t.Errorf("%s: got %s of interface %d and error %v, want %s", name, got, a.Index, err, c.want)
		}
	}
	if _, err := parseAddr(head); err == nil || errors.Is(err, errShort) {
		t.Errorf("address without attributes: got error %v, want that it has no address", err)
	}
	if hops, err := parseRoute(make([]byte, unix.SizeofRtMsg)); err != nil || len(hops) != 0 {
		t.Errorf("route without attributes: got %v and error %v, want no hops", hops, err)
	}
	if _, err := parseAddr(head[:7]); !errors.Is(err, errShort) {
		t.Errorf("address that is cut off: got error %v, want %v", err, errShort)
	}
}

func TestOnlyTheVLANForUntaggedFramesIsThePVID(t *testing.T) {
	port := func(attrs ...byte) []byte {
		b := make([]byte, unix.SizeofIfInfomsg)
		b[4] = 21
		return append(b, attrs...)
	}
	vlan := attribute(iflaBridgeVLANInfo, bridgeVLANPVID, 0, 10, 0)
	for name, c := range map[string]struct {
		msg   []byte
		index int32
		pvid  uint16
	}{
		"none":                         {port(), 21, 0},
		"one":                          {port(attribute(unix.IFLA_AF_SPEC, vlan...)...), 21, 10},
		"tagged":                       {port(attribute(unix.IFLA_AF_SPEC, attribute(iflaBridgeVLANInfo, 4, 0, 10, 0)...)...), 21, 0},
		"in another attribute":         {port(attribute(unix.IFLA_PROTINFO, vlan...)...), 21, 0},
		"of another length":            {port(attribute(unix.IFLA_AF_SPEC, attribute(iflaBridgeVLANInfo, bridgeVLANPVID, 0, 10, 0, 0)...)...), 21, 0},
		"by another nested attribute":  {port(attribute(unix.IFLA_AF_SPEC, attribute(1, bridgeVLANPVID, 0, 10, 0)...)...), 21, 0},
		"flags of the bridge":          {port(attribute(unix.IFLA_AF_SPEC, slices.Concat(attribute(iflaBridgeFlags, 1, 0), vlan)...)...), 21, 10},
		"flags of another length":      {port(attribute(unix.IFLA_AF_SPEC, slices.Concat(attribute(iflaBridgeFlags, bridgeFlagsSelf, 0, 0, 0), vlan)...)...), 21, 10},
		"two bytes that are not flags": {port(attribute(unix.IFLA_AF_SPEC, slices.Concat(attribute(1, bridgeFlagsSelf, 0), vlan)...)...), 21, 10},
	} {
		if p, err := parsePort(c.msg); err != nil || p.Index != c.index || p.PVID != c.pvid || p.Tunnels != nil {
			t.Errorf("%s: got %+v and error %v, want VLAN %d of interface %d", name, p, err, c.pvid, c.index)
		}
	}
}

func TestTunnelsOfABridgePort(t *testing.T) {
	entry := func(id uint32, vid, flags byte) []byte {
		return attribute(iflaBridgeTunnelInfo, slices.Concat(attribute(iflaBridgeTunnelID, u32Bytes(id)...),
			attribute(iflaBridgeTunnelVID, vid, 0), attribute(iflaBridgeTunnelFlags, flags, 0))...)
	}
	const begin, end = 8, bridgeVLANRangeEnd
	for name, c := range map[string]struct {
		spec []byte
		want map[uint32]uint16
	}{
		"one":                 {entry(10010, 10, 0), map[uint32]uint16{10010: 10}},
		"a range":             {slices.Concat(entry(7, 5, 0), entry(100, 20, begin), entry(102, 22, end)), map[uint32]uint16{7: 5, 100: 20, 101: 21, 102: 22}},
		"an end of no range":  {entry(100, 20, end), map[uint32]uint16{}},
		"an end that is less": {slices.Concat(entry(100, 20, begin), entry(90, 10, end)), map[uint32]uint16{100: 20}},
		"empty":               {attribute(iflaBridgeTunnelInfo), map[uint32]uint16{}},
	} {
		head := make([]byte, unix.SizeofIfInfomsg)
		if p, err := parsePort(slices.Concat(head, attribute(unix.IFLA_AF_SPEC, c.spec...))); err != nil || !maps.Equal(p.Tunnels, c.want) {
			t.Errorf("%s: got %v and error %v, want %v", name, p.Tunnels, err, c.want)
		}
	}
}

func TestOptionsOfABridgePort(t *testing.T) {
	attrs := func(mode, learning, suppress byte) []byte {
		return slices.Concat(attribute(iflaPortMode, mode), attribute(iflaPortLearning, learning), attribute(iflaPortNeighSuppress, suppress))
	}
	for name, c := range map[string]struct {
		attrs []byte
		want  PortOptions
	}{
		"usual":             {attrs(0, 1, 0), PortOptions{}},
		"hairpin":           {attrs(1, 1, 0), PortOptions{Hairpin: true}},
		"without learning":  {attrs(0, 0, 0), PortOptions{Closed: true}},
		"answered in place": {attrs(0, 1, 1), PortOptions{Closed: true, Suppress: true}},
		"VLANs of tunnels":  {slices.Concat(attrs(0, 1, 0), attribute(iflaPortVLANTunnel, 1)), PortOptions{VLANTunnel: true}},
		"of another length": {attribute(iflaPortMode, 1, 0), PortOptions{}},
		"not described":     {nil, PortOptions{}},
	} {
		head := make([]byte, unix.SizeofIfInfomsg)
		head[4] = 21
		if got, err := parsePort(slices.Concat(head, attribute(unix.IFLA_PROTINFO, c.attrs...))); err != nil || *got.Options != c.want {
			t.Errorf("%s, as a message of the bridge: got %+v and error %v, want %+v", name, got.Options, err, c.want)
		}
		for kind, want := range map[string]PortOptions{"bridge": c.want, "bond": {}} {
			info := slices.Concat(attribute(unix.IFLA_INFO_SLAVE_KIND, append([]byte(kind), 0)...), attribute(unix.IFLA_INFO_SLAVE_DATA, c.attrs...))
			if got, err := parseLink(slices.Concat(head, attribute(unix.IFLA_LINKINFO, info...))); err != nil || got.PortOptions != want {
				t.Errorf("%s, of a %s: got %+v and error %v, want %+v", name, kind, got.PortOptions, err, want)
			}
		}
		if got, _ := parsePort(head); got.Options != nil {
			t.Errorf("message about the bridge itself: got %+v, want no options", got.Options)
		}
	}
}

func TestEntryOfAVXLANDeviceHasTheAddressToWhichFramesGo(t *testing.T) {
	head := make([]byte, unix.SizeofNdMsg)
	head[0], head[4] = unix.AF_BRIDGE, 9
	mac, to := attribute(unix.NDA_LLADDR, 2, 0, 0, 0, 0, 1), attribute(unix.NDA_DST, 192, 0, 2, 12)
	for name, c := range map[string]struct {
		attrs []byte
		want  string
	}{
		"an address":            {slices.Concat(mac, to), "192.0.2.12"},
		"a next hop":            {mac, "invalid IP"},
		"a port of its own":     {slices.Concat(mac, to, attribute(unix.NDA_PORT, 0x21, 0x18)), "invalid IP"},
		"a network of its own":  {slices.Concat(mac, to, attribute(unix.NDA_VNI, u32Bytes(7)...)), "invalid IP"},
		"a device below it":     {slices.Concat(mac, to, attribute(unix.NDA_IFINDEX, u32Bytes(2)...)), "192.0.2.12"},
		"an address of no kind": {slices.Concat(mac, attribute(unix.NDA_DST, 192, 0, 2)), "invalid IP"},
	} {
		if got, err := parseTunnelled(slices.Concat(head, c.attrs)); err != nil || got.Addr.String() != c.want || got.Index != 9 || got.MAC != "\x02\x00\x00\x00\x00\x01" {
			t.Errorf("%s: got %+v and error %v, want %s", name, got, err, c.want)
		}
	}
	if _, err := parseTunnelled(head[:11]); !errors.Is(err, errShort) {
		t.Errorf("entry that is cut off: got error %v, want %v", err, errShort)
	}
}

func TestNamespaceIsFoundBehindOtherControlMessages(t *testing.T) {
	control := func(level, typ uint32, data ...byte) []byte {
		b := make([]byte, unix.CmsgSpace(len(data)))
		binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(len(data))))
		binary.NativeEndian.PutUint32(b[8:], level)
		binary.NativeEndian.PutUint32(b[12:], typ)
		copy(b[16:], data)
		return b
	}
	nsid := control(unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, u32Bytes(9)...)
	broken := slices.Clone(nsid)
	broken[0] = 200
	for name, c := range map[string]struct {
		oob  []byte
		want int32
	}{
		"behind another one":     {slices.Concat(control(unix.SOL_SOCKET, 1, 1, 2, 3, 4), nsid), 9},
		"of another level":       {control(unix.SOL_SOCKET, unix.NETLINK_LISTEN_ALL_NSID, u32Bytes(9)...), NoNSID},
		"of another type":        {control(unix.SOL_NETLINK, unix.NETLINK_PKTINFO, u32Bytes(9)...), NoNSID},
		"too short":              {control(unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 9, 0), NoNSID},
		"empty":                  {control(unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID), NoNSID},
		"that does not fit":      {broken, NoNSID},
		"after one that is cut":  {slices.Concat(broken, nsid), NoNSID},
		"with half a header":     {nsid[:12], NoNSID},
		"with nothing behind it": {nsid, 9},
	} {
		if got := controlNSID(c.oob); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}
