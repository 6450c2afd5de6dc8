package bpf

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// WorksUnprivileged returns nil if the loaded Observer works without CAP_BPF, and otherwise the
// reason why it does not. Before Linux 5.19, and with kernel.unprivileged_bpf_disabled, every
// bpf(2) call requires CAP_BPF, not only those that create objects.
func (o *Observer) WorksUnprivileged() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := lowerEffective(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN); err != nil {
			result <- err
			return
		}
		_, err := o.Counters()
		result <- err
	}()
	return <-result
}

// lowerEffective removes capabilities from the effective set of the calling thread.
func lowerEffective(capabilities ...int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("get capabilities: %w", err)
	}
	for _, c := range capabilities {
		sets[c/32].Effective &^= 1 << (c % 32)
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}
