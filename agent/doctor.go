package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/ipwitness/ipwitness/agent/allocations"
	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/workload"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/bpf"
	"github.com/ipwitness/ipwitness/ipam"
)

// Values of Check.Status.
const (
	StatusOK       = "ok"       // available
	StatusDegraded = "degraded" // not available, but there is a substitute
	StatusMissing  = "missing"  // not available, and something is lost
)

// A Check is the result of checking one feature that the agent needs.
type Check struct {
	Feature string `json:"feature"`
	// Status is ok, degraded or missing.
	Status string `json:"status"`
	// Detail describes the finding.
	Detail string `json:"detail"`
	// Used is the substitute that is used instead.
	Used string `json:"used,omitempty"`
	// Lost is what does not work without the feature.
	Lost string `json:"lost,omitempty"`
	// Fix is how to make the feature available.
	Fix string `json:"fix,omitempty"`
}

// Names of the checks that decide whether the agent can work.
const (
	checkObserver   = "observer"
	checkNamespaces = "namespaces"
)

type findings struct {
	checks  []Check
	lacking bool // a capability is missing
}

// add adds a check that describes what is lost, and the error of the attempt. If the attempt
// succeeded, nothing is lost, and the check only has its details.
func (f *findings) add(c Check, err error, details string) {
	switch c.Detail = details; {
	case errors.Is(err, os.ErrPermission) && c.Fix != "":
		c.Detail = err.Error()
		if c.Fix = "look for what denies it: a seccomp profile, an LSM or kernel lockdown"; f.lacking {
			c.Fix = "give the process the capabilities that are missing above (or run it as root)"
		}
	case err != nil:
		c.Detail = err.Error()
	default:
		c.Status, c.Used, c.Lost, c.Fix = StatusOK, "", "", ""
	}
	f.checks = append(f.checks, c)
}

// Doctor tries everything that an agent with the given configuration needs on this host. It
// attaches nothing to the host's interfaces, and leaves nothing behind except ids of network
// namespaces (RTM_NEWNSID), which the agent assigns as well.
func Doctor(cfg Config) []Check {
	cfg, err := cfg.defaults()
	if err != nil {
		return []Check{{Feature: "configuration", Status: StatusMissing, Detail: err.Error(), Lost: "everything", Fix: "correct the flag"}}
	}
	var found findings
	found.add(Check{Feature: "kernel"}, nil, KernelRelease())
	obs, loadErr := bpf.Load()
	if loadErr == nil {
		_ = obs.Close()
	}
	for _, c := range capabilities {
		name := strings.ToUpper(c.value.String())
		if c.value == cap.PERFMON && loadErr == nil {
			c.used, c.lost = "nothing: this kernel does not require it", "nothing here; Linux 6.1 and 6.12 do not load the observer without it"
		}
		status := StatusMissing
		if c.used != "" {
			status = StatusDegraded
		}
		var err error
		if has, _ := cap.GetProc().GetFlag(cap.Effective, c.value); !has {
			err, found.lacking = errors.New("not in the effective set"), true
		}
		found.add(Check{Feature: name, Status: status, Used: c.used, Lost: c.lost, Fix: "give the process " + name + " (or run it as root): " + permissionsPage},
			err, c.purpose)
	}

	const noFrames = "frames are not seen: conflicts with devices outside this node's namespaces stay hidden"
	found.add(Check{Feature: "BPF programs", Status: StatusMissing, Used: "netlink only", Lost: noFrames, Fix: "a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF"},
		features.HaveProgramType(ebpf.SchedCLS), "programs of type sched_cls load")
	found.add(Check{Feature: "BPF ring buffer", Status: StatusMissing, Used: "netlink only", Lost: noFrames, Fix: "Linux 5.8 or newer"},
		features.HaveMapType(ebpf.RingBuf), "BPF_MAP_TYPE_RINGBUF")
	found.add(Check{Feature: "BPF LRU map", Status: StatusMissing, Used: "netlink only", Lost: noFrames, Fix: "Linux 4.10 or newer"},
		features.HaveMapType(ebpf.LRUHash), "BPF_MAP_TYPE_LRU_HASH")
	tcx := bpf.HaveTCX()
	hasTCX := Check{Feature: "TCX", Status: StatusDegraded, Used: "clsact", Lost: "the first position among the filters: another program may hide frames", Fix: "Linux 6.6 or newer"}
	if errors.Is(tcx, os.ErrPermission) {
		hasTCX.Status, hasTCX.Used, hasTCX.Lost = StatusMissing, "netlink only", noFrames
	}
	found.add(hasTCX, tcx, "links of attach type BPF_TCX_INGRESS")
	tried, clsactErr := tryClsact()
	found.checks = append(found.checks, clsactCheck(tried, clsactErr, tcx))
	found.add(Check{Feature: checkObserver, Status: StatusMissing, Used: "netlink only (as with --wire off)", Lost: noFrames, Fix: "see the lines above"},
		loadErr, "the observer's programs and maps load")

	req, err := rtnetlink.Dial()
	found.add(Check{Feature: "rtnetlink strict checking", Status: StatusMissing, Lost: "everything: without it the kernel answers for the wrong namespace", Fix: "Linux 4.20 or newer"},
		err, "NETLINK_GET_STRICT_CHK")
	if req != nil {
		defer req.Close()
		nsid, err := req.OwnNSID()
		found.add(Check{Feature: checkNamespaces, Status: StatusMissing, Used: "frames, and the node's own addresses", Lost: "addresses inside pods: duplicates that no frame shows", Fix: "give the process CAP_NET_ADMIN"},
			err, fmt.Sprintf("interfaces and addresses are read by nsid (ours is %d)", nsid))
		// Whether the tenants of pods on this host's ports of Open vSwitch can be told apart.
		links, err := req.Links(rtnetlink.NoNSID)
		if err == nil {
			found.checks = append(found.checks, ovsCheck(kernel.OVSPorts(links)))
		} else {
			found.checks = append(found.checks, Check{
				Feature: checkOVS, Status: StatusDegraded, Detail: err.Error(), Used: "other sources", Lost: "the ports of Open vSwitch",
				Fix: "look for what denies it: a seccomp profile or an LSM",
			})
		}
	}
	listen, err := rtnetlink.Listen(true)
	if err == nil {
		listen.Close()
	}
	found.add(Check{
		Feature: "events of all namespaces", Status: StatusDegraded,
		Used: fmt.Sprintf("a listing every %s", kernel.ListEvery), Lost: "promptness: a change is seen up to two seconds late",
		Fix: "give the process CAP_NET_BROADCAST (Linux 4.2)",
	}, err, "NETLINK_LISTEN_ALL_NSID")

	root := allocations.FindRoot("/proc")
	for _, dir := range cfg.NetnsDirs {
		found.checks = append(found.checks, sourceCheck(root, "named namespaces", dir, "namespaces without a veth here (macvlan, ipvlan), their names and inodes"))
	}
	return append(found.checks,
		sourceCheck(root, "CNI results", cfg.CNIResults, "names of pods and containers"),
		sourcesCheck(root, "CNI configurations", cfg.CNIConfig, "address ranges and their networks"),
		sourcesCheck(root, "host-local's allocations", cfg.IPAMDirs, "the records of IPAM: duplicates are not predicted"),
		readRuntime(cfg.CRISocket), readProcesses("/proc"))
}

// checkOVS is the feature of the check of Open vSwitch.
const checkOVS = "Open vSwitch"

func ovsCheck(ports []string) Check {
	c := Check{Feature: checkOVS, Status: StatusOK, Detail: "no ports here"}
	tenants := 0
	for _, name := range ports {
		if ipam.SeparatesTenants(name) {
			tenants++
		}
	}
	switch {
	case tenants > 0:
		c.Status = StatusDegraded
		c.Detail = fmt.Sprintf("%d ports, %d of them Kube-OVN's, whose tenants (VPCs) may use the same addresses: the kernel does not show to which tenant a port belongs", len(ports), tenants)
		c.Used = "annotations of pods, if the aggregator follows the Kubernetes API"
		c.Lost = "duplicates among pods of Kube-OVN, if it does not"
		c.Fix = "let the aggregator follow the Kubernetes API (--kubeconfig)"
	case len(ports) > 0:
		c.Detail = fmt.Sprintf("%d ports", len(ports))
	}
	return c
}

// Usable returns nil if the agent can use the wire or netlink, according to the checks of
// Doctor. Otherwise the error says why it can use neither.
func Usable(checks []Check) error {
	var missing []string
	for _, c := range checks {
		if c.Feature == "rtnetlink strict checking" && c.Status == StatusMissing {
			return fmt.Errorf("the agent cannot work here: %s: %s", c.Feature, c.Detail)
		}
		if (c.Feature == checkObserver || c.Feature == checkNamespaces) && c.Status == StatusMissing {
			missing = append(missing, c.Detail)
		}
	}
	if len(missing) == 2 {
		return errors.New("the agent cannot work here, with neither frames nor netlink: " + strings.Join(missing, "; "))
	}
	return nil
}

// permissionsPage explains the purpose of each capability.
const permissionsPage = "https://github.com/ipwitness/ipwitness/blob/main/docs/permissions.md"

// capabilities lists the four capabilities that the agent uses (capabilities(7)).
var capabilities = []struct {
	value               cap.Value
	purpose, used, lost string
}{
	{cap.NET_ADMIN, "attaches the observer, reads addresses in other namespaces", "", "everything: frames, and addresses inside pods"},
	{cap.NET_BROADCAST, "receives changes in all namespaces", fmt.Sprintf("a listing every %s", kernel.ListEvery), "promptness: a change is seen up to two seconds late"},
	{cap.BPF, "loads the observer", "netlink only (as with --wire off)", "frames: conflicts with devices outside this node's namespaces"},
	{cap.PERFMON, "loads the observer", "netlink only (as with --wire off)", "frames: conflicts with devices outside this node's namespaces"},
}

// tryClsact attaches the observer by clsact in a temporary network namespace, which ends with
// the filter. It reports whether it could create the namespace.
func tryClsact() (tried bool, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread and its namespace end with the goroutine
		if unix.Unshare(unix.CLONE_NEWNET) != nil {
			return
		}
		tried = true
		var obs *bpf.Observer
		if obs, err = bpf.Load(); err == nil {
			_, err = obs.AttachClsact(loopbackIndex)
			_ = obs.Close()
		}
	}()
	<-done
	return tried, err
}

// clsactCheck returns the check of clsact. tcx is nil if TCX can be used instead.
func clsactCheck(tried bool, err, tcx error) Check {
	c := Check{Feature: "clsact", Status: StatusOK, Detail: "filters attach by a clsact qdisc"}
	switch {
	case !tried:
		c.Detail = "not tried: this needs a network namespace of its own, and CAP_SYS_ADMIN to create one"
		return c
	case err == nil:
		return c
	case tcx == nil:
		c.Status, c.Used, c.Lost = StatusDegraded, "TCX", "nothing"
	default:
		c.Status, c.Used, c.Lost = StatusMissing, "netlink only", "frames"
	}
	c.Detail, c.Fix = err.Error(), "a kernel with CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF"
	return c
}

// loopbackIndex is the index of lo in every network namespace (LOOPBACK_IFINDEX).
const loopbackIndex = 1

func sourceCheck(root allocations.Root, feature, dir, gives string) Check {
	const mountParent = "mount its parent read-only with HostToContainer propagation"
	c := Check{Feature: feature, Status: StatusOK, Detail: dir}
	_, err := os.ReadDir(dir)
	unseen := root.Reach(dir)
	if allocations.Orphaned(dir) {
		unseen = ipam.ErrOrphaned
	}
	switch {
	case unseen != nil:
		c.Status, c.Detail = StatusDegraded, fmt.Sprintf("%s: %v", dir, unseen)
		c.Used, c.Lost, c.Fix = "other sources", gives, mountParent
	case errors.Is(err, os.ErrNotExist):
		c.Detail += " does not exist (it may appear later)"
	case err != nil:
		c.Status, c.Detail = StatusDegraded, err.Error()
		c.Used, c.Lost, c.Fix = "other sources", gives, "let the process read it; in a container, "+mountParent
	}
	return c
}

// sourcesCheck checks directories of one kind. One of them may be invisible as long as
// another one is visible.
func sourcesCheck(root allocations.Root, feature string, dirs []string, gives string) Check {
	var there []string
	for _, dir := range dirs {
		c := sourceCheck(root, feature, dir, gives)
		if c.Status != StatusOK && (root.Reach(dir) == nil || root.ReachAny(dirs) != nil) {
			c.Used = "nothing"
			return c
		}
		if c.Detail == dir {
			there = append(there, dir)
		}
	}
	detail := cmp.Or(strings.Join(there, ", "), "none of "+strings.Join(dirs, ", ")+" exists (it may appear later)")
	return Check{Feature: feature, Status: StatusOK, Detail: detail}
}

func readRuntime(socket string) Check {
	c := Check{Feature: "container runtime", Status: StatusOK}
	runtime := workload.NewRuntime(slog.New(slog.DiscardHandler), socket, "/proc")
	if runtime.Off() {
		c.Detail = "disabled (--cri-socket off)"
		return c
	}
	name, at, err := runtime.Probe(context.Background())
	switch {
	case err == nil && name == "":
		c.Detail = "none found (it may appear later)"
		return c
	case err == nil:
		c.Detail = name + " at " + at
		return c
	}
	c.Status, c.Detail = StatusDegraded, table.Short(err)
	c.Used = "CNI results, cgroups and processes"
	c.Lost = "names of pods that have no CNI result; virtual machines, and the addresses that the runtime records"
	c.Fix = "correct --cri-socket, or start the runtime"
	if errors.Is(err, os.ErrPermission) {
		c.Fix = "let the process write to that socket (in a container, mount the directory that it is in)"
	}
	return c
}

func readProcesses(procDir workload.ProcDir) Check {
	c := Check{
		Feature: "processes", Status: StatusDegraded, Used: "veth peers, named namespaces and CNI results",
		Lost: "namespaces that have neither a veth here nor a name; ids of containers, and processes, in names",
		Fix:  "hostPID and CAP_SYS_PTRACE, if you want those names",
	}
	entries, err := os.ReadDir(string(procDir))
	if err != nil {
		c.Detail = err.Error()
		return c
	}
	own, _ := procDir.Netns(os.Getpid())
	read, refused, elsewhere := 0, 0, 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		switch inode, err := procDir.Netns(pid); {
		case errors.Is(err, os.ErrPermission):
			refused++
		case err == nil:
			read++
			if inode != own {
				elsewhere++
			}
		}
	}
	pidns, err := os.Readlink(filepath.Join(string(procDir), "self/ns/pid"))
	_, hidden := os.Stat(procDir.Path(1, ""))
	switch {
	case refused > read:
		c.Detail = fmt.Sprintf("/proc/PID/ns/net of %d out of %d processes cannot be read", refused, read+refused)
	case hidden != nil:
		c.Detail = "processes of other users are hidden (/proc is mounted with hidepid)"
		c.Fix = "run it as root, or mount /proc without hidepid, if you want those names"
	case elsewhere == 0 && err == nil && pidns != allocations.InitialPIDNamespace:
		c.Detail = fmt.Sprintf("only processes of this PID namespace are seen (%d), and none is in another network namespace", read)
	default:
		c.Status, c.Used, c.Lost, c.Fix = StatusOK, "", "", ""
		c.Detail = fmt.Sprintf("ns/net, stat and cgroup in /proc/PID: %d processes, %d of them in other network namespaces", read, elsewhere)
		if refused > 0 {
			c.Detail += fmt.Sprintf("; %d cannot be read", refused)
		}
	}
	return c
}

// KernelRelease returns the release of the running kernel, or "" if it is unknown.
func KernelRelease() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return unix.ByteSliceToString(u.Release[:])
}
