package netlab

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// floodBatch is the number of frames that Flood passes to the kernel in one call. UIO_MAXIOV is the
// kernel's limit.
const floodBatch = 1024

// mmsghdr is struct mmsghdr of recvmmsg(2), which golang.org/x/sys does not define.
type mmsghdr struct {
	hdr unix.Msghdr
	_   uint32 // bytes sent
	_   [4]byte
}

// Flood sends frames on an interface of the calling thread's namespace, in a loop, as fast as one
// core can. It uses sendmmsg(2) and bypasses the queueing discipline, which would drop frames if
// its queue is full. Before each batch of at most 1024 frames it calls more with the number of
// frames sent so far. more returns the most that may be sent, and 0 ends the flood. Flood returns
// the number of frames sent. Call it inside Do.
func Flood(ifname string, frames [][]byte, more func(sent int) int) (sent int, err error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return 0, fmt.Errorf("find interface: %w", err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open packet socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return 0, fmt.Errorf("set PACKET_QDISC_BYPASS: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
		return 0, fmt.Errorf("bind packet socket to %s: %w", ifname, err)
	}
	iovecs := make([]unix.Iovec, len(frames))
	messages := make([]mmsghdr, len(frames))
	for i, f := range frames {
		iovecs[i].Base = &f[0]
		iovecs[i].SetLen(len(f))
		messages[i].hdr.Iov = &iovecs[i]
		messages[i].hdr.SetIovlen(1)
	}
	for at := 0; ; {
		n := min(more(sent), floodBatch, len(messages)-at)
		if n <= 0 {
			return sent, nil
		}
		done, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&messages[at])), uintptr(n), 0, 0, 0)
		switch errno {
		case 0:
		case unix.EINTR, unix.ENOBUFS: // ENOBUFS: the backlog of the other end is full
			continue
		default:
			return sent, fmt.Errorf("send frames by %s: %w", ifname, errno)
		}
		sent += int(done)
		at = (at + int(done)) % len(messages)
	}
}

// Times returns a function that makes Flood send the given number of frames.
func Times(frames int) func(sent int) int {
	return func(sent int) int { return frames - sent }
}
