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
	now, then := cap.GetProc(), cap.NewSet()
	var dropped, kept []string
	for v := range cap.MaxBits() {
		// The call returns no error for capabilities that the kernel knows.
		if had, _ := now.GetFlag(cap.Permitted, v); !had {
			continue
		}
		name := strings.ToUpper(v.String())
		if !slices.Contains(keep, v) {
			dropped = append(dropped, name)
			continue
		}
		kept = append(kept, name)
		_, _ = then.SetFlag(cap.Permitted, true, v), then.SetFlag(cap.Effective, true, v)
	}
	// All threads of this process drop them. A program that it executes cannot regain them.
	_, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1)
	if err != nil {
		err = fmt.Errorf("set no_new_privs: %w", err)
	} else if err = then.SetProc(); err != nil {
		err = fmt.Errorf("set capabilities: %w", err)
	}
	if err != nil {
		log.Warn("cannot drop capabilities that only the start needs, keeping all: allow capset(2) and prctl(2) in the seccomp profile", "error", err)
		return
	}
	log.Info("dropped capabilities that only the start needs", "dropped", strings.Join(dropped, " "), "kept", strings.Join(kept, " "))
}
