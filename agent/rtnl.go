package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// noNSID is the nsid of a namespace that has none in our table
// (NETNSA_NSID_NOT_ASSIGNED in include/uapi/linux/net_namespace.h).
const noNSID int32 = -1

// elsewhere is the nsid of a namespace that is not ours and has no nsid: it is dying.
const elsewhere int32 = -2

// unresolved is the nsid of a namespace that only another table has a number for.
const unresolved int32 = -3

// Attributes that golang.org/x/sys does not name.
const (
	netnsaNSID = 1 // NETNSA_NSID
	netnsaFD   = 3 // NETNSA_FD

	iflaVLANID            = 1  // IFLA_VLAN_ID, in IFLA_INFO_DATA of a VLAN device
	iflaBridgeFiltering   = 7  // IFLA_BR_VLAN_FILTERING, in IFLA_INFO_DATA of a bridge
	iflaBridgeDefaultPVID = 39 // IFLA_BR_VLAN_DEFAULT_PVID, likewise
	iflaBridgeFlags       = 0  // IFLA_BRIDGE_FLAGS, in IFLA_AF_SPEC of the family AF_BRIDGE
	bridgeFlagsSelf       = 2  // BRIDGE_FLAGS_SELF
	iflaBridgeVLANInfo    = 2  // IFLA_BRIDGE_VLAN_INFO, likewise
	bridgeVLANPVID        = 2  // BRIDGE_VLAN_INFO_PVID

	nlaTypeMask   = 0x3fff // NLA_TYPE_MASK: without the flags NESTED and NET_BYTEORDER
	rtextSkipStat = 1 << 3 // RTEXT_FILTER_SKIP_STATS: leaves 200 bytes of counters out
	rtextVLANs    = 1 << 2 // RTEXT_FILTER_BRVLAN_COMPRESSED: ranges of VLANs, not each
)

// errNamespaceGone says that an nsid names no living namespace.
var errNamespaceGone = errors.New("network namespace is gone")

// rtnl asks the kernel by rtnetlink, in the namespace of the thread that made
// it. It is not safe for concurrent use.
type rtnl struct {
	fd  int
	seq uint32
	buf []byte
}

// newRTNL opens a socket for requests. Without strict checking the kernel
// silently ignores IFA_TARGET_NETNSID and answers with our own addresses, so
// there is no going on without it.
func newRTNL() (*rtnl, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	r := &rtnl{fd: fd, buf: make([]byte, 64<<10)}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		r.close()
		return nil, fmt.Errorf("set NETLINK_GET_STRICT_CHK (needs Linux 4.20): %w", err)
	}
	// Extended acknowledgements only make errors readable.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		r.close()
		return nil, fmt.Errorf("bind rtnetlink socket: %w", err)
	}
	return r, nil
}

func (r *rtnl) close() { _ = unix.Close(r.fd) }

// do sends one request and calls fn with each message of the answer.
func (r *rtnl) do(typ, flags uint16, body []byte, fn func(typ uint16, data []byte) error) error {
	r.seq++
	req := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(req[0:], uint32(unix.SizeofNlMsghdr+len(body)))
	binary.NativeEndian.PutUint16(req[4:], typ)
	binary.NativeEndian.PutUint16(req[6:], flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(req[8:], r.seq)
	if err := unix.Sendto(r.fd, append(req, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send: %w", err)
	}

	var fault error // the first error of fn: the rest of the answer is still to be read
	interrupted := false
	for {
		n, from, err := unix.Recvfrom(r.fd, r.buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			continue // only the kernel may answer
		}
		for h, data := range messages(r.buf[:n]) {
			if h.seq != r.seq {
				continue // left over from a request that was given up
			}
			interrupted = interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
			switch h.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				// A dump's error hides in the payload of NLMSG_DONE.
				if len(data) >= 4 {
					if errno := int32(binary.NativeEndian.Uint32(data)); errno != 0 {
						return ackError(h, data, unix.Errno(-errno))
					}
				}
				if fault == nil && interrupted {
					return errDumpInterrupted
				}
				return fault
			case unix.NLMSG_NOOP:
			default:
				if fault == nil && fn != nil {
					fault = fn(h.typ, data)
				}
				if flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0 {
					return fault
				}
			}
		}
	}
}

// errDumpInterrupted says that the list changed while it was read (NLM_F_DUMP_INTR).
var errDumpInterrupted = errors.New("dump was interrupted by a change")

// ackError adds the kernel's own words (NLMSGERR_ATTR_MSG) to its errno.
func ackError(h header, data []byte, errno unix.Errno) error {
	off := 4
	if h.typ == unix.NLMSG_ERROR {
		off = unix.SizeofNlMsgerr
		if h.flags&unix.NLM_F_CAPPED == 0 && len(data) >= unix.SizeofNlMsgerr {
			if inner := int(binary.NativeEndian.Uint32(data[4:])); inner > unix.SizeofNlMsghdr {
				off += inner - unix.SizeofNlMsghdr
			}
		}
	}
	if h.flags&unix.NLM_F_ACK_TLVS != 0 && off <= len(data) {
		for typ, val := range attributes(data[off:]) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				return fmt.Errorf("%w (%s)", errno, unix.ByteSliceToString(val))
			}
		}
	}
	return errno
}

// dump repeats a dump that a change interrupted: each try calls fn anew, and
// reset before it.
func (r *rtnl) dump(typ uint16, body []byte, reset func(), fn func(typ uint16, data []byte) error) error {
	var err error
	for range 16 {
		reset()
		if err = r.do(typ, unix.NLM_F_DUMP, body, fn); !errors.Is(err, errDumpInterrupted) {
			return err
		}
	}
	return err
}

// target appends the attribute that sends a request to another namespace.
func target(body []byte, attr uint16, nsid int32) []byte {
	if nsid == noNSID {
		return body
	}
	return appendAttr(body, attr, uint32(nsid))
}

// links lists the interfaces of a namespace.
func (r *rtnl) links(nsid int32) ([]linkMsg, error) {
	var out []linkMsg
	body := make([]byte, unix.SizeofIfInfomsg)
	body = appendAttr(target(body, unix.IFLA_TARGET_NETNSID, nsid), unix.IFLA_EXT_MASK, rtextSkipStat)
	err := r.dump(unix.RTM_GETLINK, body, func() { out = out[:0] }, func(_ uint16, data []byte) error {
		l, err := parseLink(data)
		out = append(out, l)
		return err
	})
	return out, namespaceError("list links", nsid, err)
}

// link reads one interface of a namespace; unix.ENODEV says that it is not there.
func (r *rtnl) link(nsid, index int32) (linkMsg, error) {
	var out linkMsg
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	body = appendAttr(target(body, unix.IFLA_TARGET_NETNSID, nsid), unix.IFLA_EXT_MASK, rtextSkipStat)
	err := r.do(unix.RTM_GETLINK, 0, body, func(_ uint16, data []byte) (err error) {
		out, err = parseLink(data)
		return err
	})
	return out, namespaceError("get link", nsid, err)
}

// addrs lists the addresses of a namespace, IPv4 and IPv6; of one interface
// where index is not 0.
func (r *rtnl) addrs(nsid, index int32) ([]addrMsg, error) {
	var out []addrMsg
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		begin := len(out)
		body := make([]byte, unix.SizeofIfAddrmsg)
		body[0] = family
		binary.NativeEndian.PutUint32(body[4:], uint32(index))
		body = target(body, unix.IFA_TARGET_NETNSID, nsid)
		err := r.dump(unix.RTM_GETADDR, body, func() { out = out[:begin] }, func(typ uint16, data []byte) error {
			if typ != unix.RTM_NEWADDR {
				return nil // without IPv6 the kernel answers AF_INET6 with other families' messages
			}
			a, err := parseAddr(data)
			if err == nil && (index == 0 || a.index == index) {
				out = append(out, a)
			}
			return err
		})
		if family == unix.AF_INET6 && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)) {
			break // a kernel without IPv6
		}
		if errors.Is(err, unix.ENODEV) {
			return nil, nil // the interface is gone, and its addresses with it
		}
		if err != nil {
			return nil, namespaceError("list addresses", nsid, err)
		}
	}
	return out, nil
}

// pvids gives the VLAN that each bridge of our own, and each port of one, gives
// untagged frames.
func (r *rtnl) pvids() (map[int32]uint16, error) {
	out := map[int32]uint16{}
	body := make([]byte, unix.SizeofIfInfomsg)
	body[0] = unix.AF_BRIDGE
	body = appendAttr(body, unix.IFLA_EXT_MASK, rtextVLANs)
	err := r.dump(unix.RTM_GETLINK, body, func() { clear(out) }, func(_ uint16, data []byte) error {
		index, pvid, err := parsePort(data)
		out[index] = pvid
		return err
	})
	return out, namespaceError("list VLANs of bridge ports", noNSID, err)
}

// route returns the hops to which the node's own routing tables send an address, or none
// if there is no route.
func (r *rtnl) route(addr netip.Addr) (hops []hop, err error) {
	body := make([]byte, unix.SizeofRtMsg)
	raw := addr.AsSlice()
	body[0], body[1] = unix.AF_INET, uint8(addr.BitLen())
	if addr.Is6() {
		body[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(body[8:], unix.RTM_F_FIB_MATCH) // the matching route itself, not the result of the lookup
	body = binary.NativeEndian.AppendUint16(body, uint16(unix.SizeofRtAttr+len(raw)))
	body = binary.NativeEndian.AppendUint16(body, unix.RTA_DST)
	err = r.do(unix.RTM_GETROUTE, 0, append(body, raw...), func(_ uint16, data []byte) (err error) {
		hops, err = parseRoute(data)
		return err
	})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	return hops, namespaceError("look up route", noNSID, err)
}

// nsids lists the ids of all namespaces in our table.
func (r *rtnl) nsids() ([]int32, error) {
	var out []int32
	body := make([]byte, 4) // struct rtgenmsg, padded
	err := r.dump(unix.RTM_GETNSID, body, func() { out = out[:0] }, func(_ uint16, data []byte) error {
		id, err := parseNSID(data)
		if id >= 0 {
			out = append(out, id)
		}
		return err
	})
	return out, namespaceError("list namespace ids", noNSID, err)
}

// nsidOf gives the nsid of an open namespace in our table, and assigns one
// where it has none.
func (r *rtnl) nsidOf(fd int) (nsid int32, assigned bool, err error) {
	get := func() (int32, error) {
		id := noNSID
		err := r.do(unix.RTM_GETNSID, 0, appendAttr(make([]byte, 4), netnsaFD, uint32(fd)), func(_ uint16, data []byte) (err error) {
			id, err = parseNSID(data)
			return err
		})
		return id, err
	}
	if id, err := get(); err != nil || id >= 0 {
		return id, false, namespaceError("get namespace id", noNSID, err)
	}
	body := appendAttr(make([]byte, 4), netnsaFD, uint32(fd))
	auto := noNSID // any free id
	body = appendAttr(body, netnsaNSID, uint32(auto))
	// EEXIST: somebody was quicker.
	err = r.do(unix.RTM_NEWNSID, unix.NLM_F_ACK, body, nil)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return noNSID, false, namespaceError("assign namespace id", noNSID, err)
	}
	assigned = err == nil
	nsid, err = get()
	return nsid, assigned, namespaceError("get namespace id", noNSID, err)
}

// namespaceError says what was asked, and recognises the answer to an nsid
// that names nothing any more.
func namespaceError(what string, nsid int32, err error) error {
	switch {
	case err == nil:
		return nil
	case nsid != noNSID && errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%s of nsid %d: %w", what, nsid, errNamespaceGone)
	case nsid != noNSID:
		return fmt.Errorf("%s of nsid %d: %w", what, nsid, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// listener hears the changes of links, addresses and namespace ids in every
// namespace that has an nsid in ours.
type listener struct {
	file *os.File
	rc   syscall.RawConn
	buf  []byte
	oob  []byte
}

// newListener subscribes: to all namespaces, which needs CAP_NET_BROADCAST, or
// to our own only.
func newListener(everywhere bool) (*listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	fail := func(what string, err error) (*listener, error) {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if everywhere {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err != nil {
			return fail("set NETLINK_LISTEN_ALL_NSID (needs CAP_NET_BROADCAST)", err)
		}
	}
	// A storm of thousands of changes must fit. Beyond it ENOBUFS tells, and we list again.
	const room = 16 << 20
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail("bind rtnetlink socket", err)
	}
	for _, group := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NSID} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			return fail(fmt.Sprintf("join rtnetlink group %d", group), err)
		}
	}
	file := os.NewFile(uintptr(fd), "rtnetlink")
	rc, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("watch rtnetlink socket: %w", err)
	}
	return &listener{file: file, rc: rc, buf: make([]byte, 64<<10), oob: make([]byte, 256)}, nil
}

func (l *listener) close() { _ = l.file.Close() }

// run calls fn with every message until ctx ends, and lost after messages were
// lost (ENOBUFS). What cannot be parsed is counted by malformed and left.
func (l *listener) run(ctx context.Context, fn func(*message), lost, malformed func()) error {
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var msg message
	// After ENOBUFS the socket takes nothing new until what it holds was read:
	// that is older than the list to come, and the list must come after it.
	draining := false
	for {
		var n, oobn int
		var from unix.Sockaddr
		var errno error
		err := l.rc.Read(func(fd uintptr) bool {
			// recvmsg: the nsid comes as a control message, which recvfrom drops.
			n, oobn, _, from, errno = unix.Recvmsg(int(fd), l.buf, l.oob, 0)
			return draining || !errors.Is(errno, unix.EAGAIN) && !errors.Is(errno, unix.EINTR)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("receive from rtnetlink: %w", err)
		case errors.Is(errno, unix.ENOBUFS):
			draining = true
			continue
		case draining && errors.Is(errno, unix.EAGAIN):
			draining = false
			lost()
			continue
		case draining && (errno == nil || errors.Is(errno, unix.EINTR)):
			continue
		case errno != nil:
			return fmt.Errorf("receive from rtnetlink: %w", errno)
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			continue
		}
		nsid := controlNSID(l.oob[:oobn])
		for h, data := range messages(l.buf[:n]) {
			known, err := msg.parse(h.typ, nsid, data)
			switch {
			case err != nil:
				malformed()
			case known:
				fn(&msg)
			}
		}
	}
}
