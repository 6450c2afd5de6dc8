package bpf

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// The capabilities that loading and attaching need. Attaching with TCX needs none beyond those for
// loading; clsact needs CAP_NET_ADMIN.
var (
	toLoad   = []cap.Value{cap.BPF, cap.PERFMON, cap.NET_ADMIN}
	toAttach = []cap.Value{cap.NET_ADMIN}
)

// explain adds to an error of the kernel what the operator can do about it. needed has the
// capabilities that the failed step needs.
func explain(err error, needed []cap.Value) error {
	missing := missingCapabilities(needed)
	switch {
	case len(missing) > 0:
		return &missingError{missing, err}
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: no capability is missing: look for a seccomp profile, "+
			"an LSM or kernel lockdown that denies bpf(2)", err)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w: the maps need about 20 MiB of this control group's memory", err)
	}
	return err
}

// missingError names the missing capabilities. It replaces the text of the kernel's error, which
// varies when capabilities are missing.
type missingError struct {
	capabilities []string
	err          error
}

// Error implements error.
func (e *missingError) Error() string {
	return "operation not permitted: give this process " + strings.Join(e.capabilities, ", ")
}

// Unwrap returns the kernel's error.
func (e *missingError) Unwrap() error { return e.err }

// missingCapabilities returns the names of the needed capabilities that the process lacks.
func missingCapabilities(needed []cap.Value) (missing []string) {
	all := cap.GetProc()
	// CAP_SYS_ADMIN includes the capabilities that were split from it in Linux 5.8.
	admin, _ := all.GetFlag(cap.Effective, cap.SYS_ADMIN)
	for _, c := range needed {
		if have, _ := all.GetFlag(cap.Effective, c); !have && (c == cap.NET_ADMIN || !admin) {
			missing = append(missing, strings.ToUpper(c.String()))
		}
	}
	return missing
}

// WorksUnprivileged returns nil if the loaded Observer works without CAP_BPF, and otherwise the
// reason why it does not. Before Linux 5.19, and with kernel.unprivileged_bpf_disabled, every
// bpf(2) call requires CAP_BPF, not only those that create objects.
func (o *Observer) WorksUnprivileged() error {
	_, err := cap.FuncLauncher(func(any) error { // on a thread of its own, which ends with the function
		set := cap.GetProc()
		if err := set.SetFlag(cap.Effective, false, cap.BPF, cap.PERFMON, cap.SYS_ADMIN); err != nil {
			return err
		}
		if err := set.SetProc(); err != nil {
			return fmt.Errorf("set capabilities: %w", err)
		}
		_, err := o.Counters()
		return err
	}).Launch(nil)
	return err
}
