package netlab

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// floodBatch is how many frames Flood hands to the kernel in one call
// (UIO_MAXIOV is as many as it takes).
const floodBatch = 1024

// mmsghdr is struct mmsghdr of recvmmsg(2), which golang.org/x/sys does not have.
type mmsghdr struct {
	hdr unix.Msghdr
	_   uint32 // bytes sent
	_   [4]byte
}

// Flood sends frames by an interface of the calling thread's namespace, in
// order, again and again, as fast as one core can: sendmmsg(2), and past the
// queueing discipline, where a full queue would drop. It asks more before each
// batch of at most 1024 frames, with how many were sent so far, for how many to
// send at most; it ends at 0, and gives how many were sent. Call it inside Do.
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
		case unix.EINTR, unix.ENOBUFS: // ENOBUFS: the other end's backlog is full
			continue
		default:
			return sent, fmt.Errorf("send frames by %s: %w", ifname, errno)
		}
		sent += int(done)
		at = (at + int(done)) % len(messages)
	}
}

// Times has Flood send so many frames.
func Times(frames int) func(sent int) int {
	return func(sent int) int { return frames - sent }
}
