package bpf

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The capabilities that loading and attaching need. Attaching with TCX needs none beyond those for
// loading; clsact needs CAP_NET_ADMIN.
var (
	toLoad   = []int{unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN}
	toAttach = []int{unix.CAP_NET_ADMIN}
)

// explain adds to an error of the kernel what the operator can do about it. needed has the
// capabilities that the failed step needs.
func explain(err error, needed []int) error {
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

// missingCapabilities returns the names of the needed capabilities that the calling thread lacks.
func missingCapabilities(needed []int) []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return nil
	}
	have := func(capability int) bool {
		return sets[capability/32].Effective&(1<<(capability%32)) != 0
	}
	var missing []string
	for _, c := range needed {
		// CAP_SYS_ADMIN includes the capabilities that were split from it in Linux 5.8.
		if c != unix.CAP_NET_ADMIN && have(unix.CAP_SYS_ADMIN) || have(c) {
			continue
		}
		missing = append(missing, map[int]string{
			unix.CAP_BPF: "CAP_BPF", unix.CAP_PERFMON: "CAP_PERFMON", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN",
		}[c])
	}
	return missing
}
