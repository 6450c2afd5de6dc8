package rtnetlink

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Attributes and bits of ctnetlink (include/uapi/linux/netfilter/nfnetlink_conntrack.h, nf_conntrack_common.h).
const (
	ctnlGet, ctnlNew = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1, unix.NFNL_SUBSYS_CTNETLINK << 8

	ctaTupleOrig, ctaTupleReply, ctaStatus, ctaProtoinfo = 1, 2, 3, 4
	ctaTimeout, ctaZone, ctaTimestamp, ctaFilter         = 7, 18, 20, 25
	ctaTupleIP, ctaTupleProto                            = 1, 2
	ctaProtoNum, ctaProtoSourcePort, ctaProtoPort        = 1, 2, 3
	ctaIPv4Source, ctaFilterReply, ctaFilterSource       = 1, 2, 1

	nested = 1 << 15 // NLA_F_NESTED

	statusDying, statusOffload = 1 << 9, 1 << 14
)

// A Connection is an entry of the connection tracking (conntrack) of our own namespace.
type Connection struct {
	Protocol byte
	// From and To are those of the first packet, and Receiver is where its packets lead.
	From, To, Receiver netip.AddrPort
	// State is the state of a TCP connection (enum tcp_conntrack).
	State byte
	Zone  uint16
	// Existed is a time at which the entry existed: its begin if the kernel records that, otherwise that of its last packet, as
	// far as the timeout shows it; zero if neither is known.
	Existed time.Time
	offload bool
}

// leads reports whether packets of the connection that are still to come lead to the receiver: a new connection replaces an entry
// that has ended (net/netfilter/nf_conntrack_proto_tcp.c).
func (c *Connection) leads() bool {
	return c.Protocol != unix.IPPROTO_TCP || c.State > 0 && int(c.State) < len(tcpStates)
}

// tcpStates are the states of a TCP connection that may go on. tcpTimeouts and udpTimeouts are the settings of net.netfilter.nf_conntrack_* that a timeout may come from, beside that of the state.
var (
	tcpStates   = [...]string{"", "syn_sent", "syn_recv", "established", "fin_wait", "close_wait"}
	tcpTimeouts = []string{"tcp_timeout_max_retrans", "tcp_timeout_unacknowledged", "tcp_timeout_close"}
	udpTimeouts = []string{"udp_timeout", "udp_timeout_stream"}
)

// Translated returns the entries whose destination is translated to an address (DNAT), at most so many, and whether there are more.
// It gives up after a while.
func Translated(addr netip.Addr, most int, within time.Duration) (out []Connection, more bool, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, false, err
	}
	timeout := unix.NsecToTimeval(within.Nanoseconds())
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
	r := &Conn{fd: fd, buf: make([]byte, 64<<10), until: time.Now().Add(within)}
	defer r.Close()
	body := []byte{unix.AF_INET6, unix.NFNETLINK_V0, 0, 0}
	if addr.Is4() { // the filter for IPv6 omits what it should let pass (ctnetlink_filter_match_tuple in Linux 6.18)
		body[0] = unix.AF_INET
		body = append(body, attr(ctaTupleReply|nested, attr(ctaTupleIP|nested, attr(ctaIPv4Source, addr.AsSlice())))...)
		body = append(body, attr(ctaFilter|nested, appendAttr(nil, ctaFilterReply, ctaFilterSource))...) // ignored before Linux 5.8
	}
	now, settings := time.Now(), map[string]int64{}
	err = r.do(ctnlGet, unix.NLM_F_DUMP, body, func(typ uint16, data []byte) {
		c, remaining, ok := parseConnection(data)
		if typ != ctnlNew || !ok || c.Receiver.Addr() != addr || c.To.Addr() == addr || !c.leads() {
			return
		}
		if len(out) == most {
			more = true
			return
		}
		if c.Existed.IsZero() && !c.offload {
			c.Existed = lastPacket(&c, now, int64(remaining), settings)
		}
		out = append(out, c)
	})
	if errors.Is(err, errInterrupted) || errors.Is(err, unix.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded) {
		return out, true, nil
	}
	return out, more, err
}

// lastPacket returns a time after the last packet of a connection whose timeout has so many seconds left. The kernel sets the timeout
// with each packet, to the setting for the state or a smaller one: the smallest one that may have been set counts.
func lastPacket(c *Connection, now time.Time, remaining int64, settings map[string]int64) time.Time {
	names := udpTimeouts
	if c.Protocol == unix.IPPROTO_TCP {
		names = append([]string{"tcp_timeout_" + tcpStates[c.State]}, tcpTimeouts...)
	}
	set := int64(0)
	for _, name := range names {
		if _, read := settings[name]; !read {
			text, _ := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
			settings[name], _ = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		}
		if settings[name] == 0 {
			return time.Time{}
		}
		if s := settings[name]; s >= remaining && (set == 0 || s < set) {
			set = s
		}
	}
	if set == 0 { // a setting was changed
		return time.Time{}
	}
	return now.Add(-time.Duration(max(0, set-remaining-1)) * time.Second)
}

// parseConnection returns a TCP or UDP connection, and the seconds that its timeout has left.
func parseConnection(b []byte) (c Connection, remaining uint32, ok bool) {
	if len(b) < 4 {
		return c, 0, false
	}
	status, timed := uint32(0), false
	for typ, val := range attributes(b[4:]) { // struct nfgenmsg
		switch typ {
		case ctaTupleOrig:
			c.From, c.To, c.Protocol = parseTuple(val)
		case ctaTupleReply:
			c.Receiver, _, _ = parseTuple(val)
		case ctaStatus:
			status = bigEndian(val)
		case ctaTimeout:
			remaining, timed = bigEndian(val), true
		case ctaZone:
			c.Zone = uint16(bigEndian(val)) //nolint:gosec // of two bytes
		case ctaProtoinfo:
			for typ, val := range attributes(val) {
				for state, val := range attributes(val) {
					if typ == 1 && state == 1 && len(val) == 1 { // CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE
						c.State = val[0]
					}
				}
			}
		case ctaTimestamp:
			for typ, val := range attributes(val) {
				if typ == 1 && len(val) == 8 { // CTA_TIMESTAMP_START
					if at := int64(binary.BigEndian.Uint64(val)); at > 0 { //nolint:gosec // nanoseconds since 1970
						c.Existed = time.Unix(0, at)
					}
				}
			}
		}
	}
	c.offload = status&statusOffload != 0
	valid := c.From.IsValid() && c.To.IsValid() && c.Receiver.IsValid() && (c.Protocol == unix.IPPROTO_UDP || c.Protocol == unix.IPPROTO_TCP)
	return c, remaining, valid && timed && status&statusDying == 0
}

// parseTuple returns one direction of a connection.
func parseTuple(b []byte) (from, to netip.AddrPort, protocol byte) {
	var addrs [2]netip.Addr
	var ports [2]uint16
	for typ, val := range attributes(b) {
		for what, val := range attributes(val) {
			switch {
			case typ == ctaTupleIP && what >= 1 && what <= 4:
				addrs[(what-1)%2], _ = netip.AddrFromSlice(val)
			case typ == ctaTupleProto && what == ctaProtoNum && len(val) == 1:
				protocol = val[0]
			case typ == ctaTupleProto && (what == ctaProtoSourcePort || what == ctaProtoPort):
				ports[what-ctaProtoSourcePort] = uint16(bigEndian(val)) //nolint:gosec // of two bytes
			}
		}
	}
	return netip.AddrPortFrom(addrs[0], ports[0]), netip.AddrPortFrom(addrs[1], ports[1]), protocol
}

func attr(typ uint16, val []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(val))) //nolint:gosec // few bytes
	b = append(binary.NativeEndian.AppendUint16(b, typ), val...)
	return append(b, make([]byte, align4(len(b))-len(b))...)
}

// bigEndian returns a value of at most four bytes in network byte order.
func bigEndian(b []byte) (n uint32) {
	for _, one := range b[:min(len(b), 4)] {
		n = n<<8 | uint32(one)
	}
	return n
}
