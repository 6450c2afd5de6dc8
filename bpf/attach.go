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

// ErrGone says that the interface went away while it was being attached to.
var ErrGone = errors.New("interface is gone")

// Mode is how an Observer hangs on an interface.
type Mode uint8

// The modes.
const (
	// TCX is first in line, and ends with this process. It needs Linux 6.6.
	TCX Mode = iota + 1
	// Clsact is a filter of the clsact qdisc. It may sit behind a filter that
	// takes frames away, and outlives a process that is killed.
	Clsact
)

// String gives the mode as metrics and flags name it.
func (m Mode) String() string {
	switch m {
	case TCX:
		return "tcx"
	case Clsact:
		return "clsact"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// Attachment is an Observer on the ingress of one interface.
type Attachment struct {
	mode   Mode
	there  func() bool // nil where nobody else can take it off
	mu     sync.Mutex
	remove func()       // removes its port from the program's maps
	detach func() error // nil once done
}

// There says whether it still hangs on the interface: whoever removes a clsact
// qdisc removes what is in it. Where that cannot be told it is taken to.
func (a *Attachment) There() bool {
	return a.there == nil || a.there()
}

// Mode is how it hangs there.
func (a *Attachment) Mode() Mode {
	return a.mode
}

// Close takes the Observer off the interface. It is no error when that was done
// before, or when the interface was deleted or has moved to another namespace.
// Like the call that attached, it acts on the namespace of the calling thread:
// make both in the same one.
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

// AttachTCX puts the Observer on the ingress of an interface of the calling
// thread's network namespace, before all other TCX programs and clsact filters.
// The error is ErrGone when there is no such interface.
//
// The attachment follows its interface into another namespace, where Ifindex
// means something else: close it when the interface leaves.
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
	if err != nil {
		remove()
		return nil, attachError(TCX, ifindex, err)
	}
	return &Attachment{mode: TCX, remove: remove, detach: l.Close}, nil
}

// HaveTCX gives nil where AttachTCX can work, and otherwise why it cannot. It
// touches no interface.
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

	// A kernel that knows TCX looks for the interface, and finds that there
	// cannot be one of this index.
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
