package bpf

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ErrGone is returned when the interface disappears while the Observer is being attached to it.
var ErrGone = errors.New("interface is gone")

// ErrDescriptors is returned by AttachTCX if the process would have too few file descriptors left for anything
// else. Each TCX attachment needs one, and AttachClsact needs none.
var ErrDescriptors = errors.New("too few file descriptors are left")

// descriptorsLeft returns whether enough descriptors are left after one that was just opened: the kernel
// gives the lowest number that is free. A quarter of the limit, at most 1024, is for connections and files.
func descriptorsLeft(opened int) bool {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return true
	}
	return uint64(opened)+min(limit.Cur/4, 1024) < limit.Cur
}

// Mode is the way in which an Observer is attached to an interface.
type Mode uint8

// The modes.
const (
	// TCX attaches before all other programs. The attachment ends with this process. It requires
	// Linux 6.6.
	TCX Mode = iota + 1
	// Clsact adds a filter to the clsact qdisc. A filter before it may drop frames, and it outlives
	// a process that is killed.
	Clsact
)

// String returns the name of the mode in metrics and flags.
func (m Mode) String() string {
	if m == TCX {
		return "tcx"
	}
	return "clsact"
}

// Attachment is the attachment of an Observer to the ingress of one interface.
type Attachment struct {
	mode   Mode
	there  func() bool // nil if no other program can remove it
	mu     sync.Mutex
	remove func()       // removes its port from the program's maps
	detach func() error // nil once done
}

// There reports whether the Observer is still attached. Removing a clsact qdisc also removes its
// filters. If the kernel cannot be asked, There returns true.
func (a *Attachment) There() bool {
	return a.there == nil || a.there()
}

// Mode returns the way in which the Observer is attached.
func (a *Attachment) Mode() Mode {
	return a.mode
}

// Close detaches the Observer from the interface. It succeeds if the Observer is already detached,
// and if the interface was deleted or moved to another namespace. It acts on the network namespace
// of the calling thread, which must be the one in which the Observer was attached.
func (a *Attachment) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.detach == nil {
		return nil
	}
	if err := a.detach(); err != nil {
		return fmt.Errorf("detach %s observer: %w", a.mode, err)
	}
	a.detach = nil
	a.remove()
	return nil
}

// AttachTCX attaches the Observer to the ingress of an interface of the calling thread's network
// namespace, before all other TCX programs and clsact filters. The error is ErrGone if there is no
// such interface, and ErrDescriptors if the process has too few file descriptors left.
//
// The attachment follows the interface into another namespace, where its index has another meaning:
// close the attachment when the interface leaves.
func (o *Observer) AttachTCX(ifindex int) (*Attachment, error) {
	remove, err := o.addPort(ifindex)
	if err != nil {
		return nil, err
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: ifindex,
		Program:   o.objects.Observe,
		Attach:    ebpf.AttachTCXIngress,
		Anchor:    link.Head(),
	})
	if errors.Is(err, unix.EMFILE) {
		err = ErrDescriptors
	} else if raw, ok := l.(interface{ FD() int }); err == nil && ok && !descriptorsLeft(raw.FD()) {
		err = errors.Join(ErrDescriptors, l.Close())
	}
	if err != nil {
		remove()
		return nil, attachError(TCX, ifindex, err)
	}
	return &Attachment{mode: TCX, remove: remove, detach: l.Close}, nil
}

// HaveTCX returns nil if the kernel supports AttachTCX, and otherwise the reason why it does not.
// It does not change any interface.
func HaveTCX() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "ipwitness_probe",
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		return fmt.Errorf("load bpf program: %w", explain(err, toLoad))
	}
	defer func() { _ = prog.Close() }()

	// A kernel with TCX looks for the interface. No interface can have this index.
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: math.MaxInt32,
		Program:   prog,
		Attach:    ebpf.AttachTCXIngress,
	})
	switch {
	case err == nil:
		return l.Close()
	case errors.Is(err, unix.ENODEV):
		return nil
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("TCX needs Linux 6.6: use clsact: %w", err)
	}
	return fmt.Errorf("probe for TCX: %w", explain(err, toLoad))
}

func attachError(mode Mode, ifindex int, err error) error {
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("attach %s observer to interface %d: %w", mode, ifindex, ErrGone)
	}
	return fmt.Errorf("attach %s observer to interface %d: %w", mode, ifindex, explain(err, toAttach))
}
