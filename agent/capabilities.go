package agent

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/ipwitness/ipwitness/bpf"
)

// lasting has the capabilities that the agent needs for as long as it runs. All others are
// needed only at startup. The kernel checks CAP_BPF and CAP_PERFMON when the observer is
// loaded, not when it is attached (kernel/bpf/tcx.c). It checks CAP_NET_BROADCAST against the
// credentials with which the socket was opened (do_one_broadcast in net/netlink/af_netlink.c).
var lasting = []cap.Value{
	cap.NET_ADMIN,       // clsact, and all requests about another namespace
	cap.SYS_PTRACE,      // names: the namespaces of processes with more capabilities
	cap.DAC_READ_SEARCH, // names and IPAM: files whose mode denies access
}

// DropCapabilities drops the capabilities that are needed only at startup. obs is nil if there
// is no observer.
func DropCapabilities(log *slog.Logger, obs *bpf.Observer) {
	keep := lasting
	if obs != nil {
		if err := obs.WorksUnprivileged(); err != nil {
			keep = append(slices.Clone(keep), cap.BPF)
			log.Info("the observer needs CAP_BPF for as long as it runs", "reason", err)
		}
	}
	dropped, kept, err := dropPrivileges(keep)
	if err != nil {
		log.Warn("cannot drop capabilities that only the start needs, keeping all: allow capset(2) and prctl(2) in the seccomp profile", "error", err)
		return
	}
	log.Info("dropped capabilities that only the start needs", "dropped", dropped, "kept", kept)
}

// dropPrivileges permanently drops all other capabilities from all threads of this process. A
// program that it executes cannot regain them. It returns the names of the dropped and of the
// kept capabilities.
func dropPrivileges(keep []cap.Value) (dropped, kept string, err error) {
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return "", "", fmt.Errorf("set no_new_privs: %w", err)
	}
	now, then := cap.GetProc(), cap.NewSet()
	var without, with []string
	for v := range cap.MaxBits() {
		// The call returns no error for capabilities that the kernel knows.
		if had, _ := now.GetFlag(cap.Permitted, v); !had {
			continue
		}
		name := strings.ToUpper(v.String())
		if !slices.Contains(keep, v) {
			without = append(without, name)
			continue
		}
		with = append(with, name)
		_, _ = then.SetFlag(cap.Permitted, true, v), then.SetFlag(cap.Effective, true, v)
	}
	if err := then.SetProc(); err != nil {
		return "", "", fmt.Errorf("set capabilities: %w", err)
	}
	return strings.Join(without, " "), strings.Join(with, " "), nil
}
