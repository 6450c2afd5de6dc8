package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/ipwitness/ipwitness/agent/allocations"
	"github.com/ipwitness/ipwitness/agent/workload"

	"github.com/ipwitness/ipwitness/bpf"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/agenttest"
	"github.com/ipwitness/ipwitness/tests/alone"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// drop removes capabilities from the process, or all if none is named.
func drop(t *testing.T, values ...cap.Value) {
	t.Helper()
	set := cap.GetProc()
	if len(values) == 0 {
		set = cap.NewSet()
	}
	if err := set.SetFlag(cap.Effective, false, values...); len(values) > 0 && err != nil {
		t.Fatal(err)
	}
	if err := set.SetProc(); err != nil {
		t.Fatal(err)
	}
}

// examine examines the host, and returns the checks by name.
func examine(t *testing.T, cfg Config) ([]Check, map[string]Check) {
	t.Helper()
	checks := Doctor(cfg)
	by := map[string]Check{}
	for _, c := range checks {
		by[c.Feature] = c
		if c.Detail == "" || (c.Status == StatusOK) != (c.Used+c.Lost+c.Fix == "") || c.Status != StatusOK && (c.Lost == "" || c.Fix == "") {
			t.Errorf("check: got %+v, want details, and what is lost if it is not ok", c)
		}
	}
	return checks, by
}

func TestEverythingIsExaminedAndNothingIsLeft(t *testing.T) {
	alone.Run(t, func() {
		dir := t.TempDir()
		for _, name := range []string{"netns", "results", "net.d", "networks"} {
			if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		at := func(name string) string { return filepath.Join(dir, name) }
		cfg := Config{NetnsDirs: []string{at("netns"), at("later")}, CNIConfig: []string{at("net.d")}, IPAMDirs: []string{at("networks")}, CNIResults: at("results"), CRISocket: workload.RuntimeOff}
		open := func() int {
			names, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(names)
		}
		_, _ = examine(t, cfg) // libraries keep some files
		before := open()
		checks, by := examine(t, cfg)
		if got := open(); got > before {
			t.Errorf("open files: got %d, want %d as before", got, before)
		}
		wait.Until(t, "no thread is in another network namespace", func() bool {
			threads, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Fatal(err)
			}
			own, _ := os.Readlink("/proc/thread-self/ns/net")
			return !slices.ContainsFunc(threads, func(e os.DirEntry) bool {
				if e.Name() == strconv.Itoa(os.Getpid()) {
					return false // the main thread cannot end: if it was used, Go does not use it again
				}
				ns, err := os.Readlink("/proc/self/task/" + e.Name() + "/ns/net")
				return err == nil && ns != own
			})
		})
		var features []string
		for _, c := range checks {
			features = append(features, c.Feature)
			if c.Status != StatusOK && c.Feature != "processes" && c.Feature != "TCX" {
				t.Errorf("check as root: got %+v, want ok", c)
			}
		}
		want := "kernel CAP_NET_ADMIN CAP_NET_BROADCAST CAP_BPF CAP_PERFMON BPF programs BPF ring buffer BPF LRU map TCX clsact observer " +
			"rtnetlink strict checking namespaces Open vSwitch events of all namespaces named namespaces named namespaces CNI results CNI configurations host-local's allocations container runtime processes"
		if got := strings.Join(features, " "); got != want {
			t.Errorf("features: got %s, want %s", got, want)
		}
		release, err := os.ReadFile("/proc/sys/kernel/osrelease")
		if err != nil {
			t.Fatal(err)
		}
		if got := by["kernel"].Detail; got != strings.TrimSpace(string(release)) {
			t.Errorf("kernel: got %q, want %q", got, release)
		}
		if err := Usable(checks); err != nil {
			t.Errorf("usable: got error %v", err)
		}
		for feature, detail := range map[string]string{
			"clsact": "filters attach by a clsact qdisc", "CNI results": at("results"), "CNI configurations": at("net.d"), "host-local's allocations": at("networks"),
			"named namespaces": at("later") + " does not exist", "container runtime": "disabled",
		} {
			if got := by[feature].Detail; !strings.Contains(got, detail) {
				t.Errorf("%s: got %q, want %q in it", feature, got, detail)
			}
		}
	})
}

func TestMissingCapabilitiesAreFound(t *testing.T) {
	alone.Run(t, func() {
		all := cap.GetProc()
		drop(t, cap.NET_ADMIN)
		if _, by := examine(t, Config{CRISocket: workload.RuntimeOff}); by["namespaces"].Status != StatusMissing || !strings.Contains(by["namespaces"].Fix, "capabilities that are missing above") {
			t.Errorf("namespaces without CAP_NET_ADMIN: got %+v, want that a capability is missing", by["namespaces"])
		}
		if err := all.SetProc(); err != nil {
			t.Fatal(err)
		}
		drop(t, cap.BPF)
		if _, by := examine(t, Config{CRISocket: workload.RuntimeOff}); by["observer"].Status != StatusOK || !strings.Contains(by["CAP_BPF"].Used, "netlink only") {
			t.Errorf("observer that loads with CAP_SYS_ADMIN: got %+v, CAP_BPF %+v, want what is used without CAP_BPF", by["observer"], by["CAP_BPF"])
		}
		if err := all.SetProc(); err != nil {
			t.Fatal(err)
		}
		drop(t, cap.PERFMON, cap.SYS_ADMIN)
		checks, by := examine(t, Config{CRISocket: workload.RuntimeOff})
		if got := by["clsact"]; got.Status != StatusOK || !strings.Contains(got.Detail, "not tried") {
			t.Errorf("clsact without CAP_SYS_ADMIN: got %+v, want not tried", got)
		}
		loads := by["observer"].Status == StatusOK
		if got := by["CAP_PERFMON"]; got.Status != StatusDegraded || strings.Contains(got.Used, "does not require it") != loads || !strings.Contains(got.Fix, "CAP_PERFMON") {
			t.Errorf("CAP_PERFMON if the observer loads %v: got %+v", loads, got)
		}
		if err := Usable(checks); err != nil {
			t.Errorf("usable without CAP_PERFMON: got error %v", err)
		}

		drop(t)
		checks, by = examine(t, Config{CRISocket: workload.RuntimeOff})
		for feature, want := range map[string]string{
			"CAP_NET_ADMIN": StatusMissing, "CAP_NET_BROADCAST": StatusDegraded, "CAP_BPF": StatusDegraded, "CAP_PERFMON": StatusDegraded, "observer": StatusMissing,
			"namespaces": StatusMissing, "events of all namespaces": StatusDegraded, "TCX": StatusMissing, "rtnetlink strict checking": StatusOK, "kernel": StatusOK,
		} {
			c := by[feature]
			if c.Status != want {
				t.Errorf("%s without capabilities: got %+v, want %s", feature, c, want)
			}
			if strings.HasPrefix(feature, "CAP_") && (c.Detail != "not in the effective set" || !strings.Contains(c.Fix, feature) || strings.Contains(c.Used, "does not ask")) {
				t.Errorf("%s: got %+v, want that it is not in the effective set", feature, c)
			}
		}
		for _, feature := range []string{"observer", "namespaces", "events of all namespaces", "TCX"} {
			if got := by[feature].Fix; !strings.Contains(got, "capabilities that are missing above") {
				t.Errorf("%s: got advice %q, want the missing capabilities", feature, got)
			}
		}
		if err := Usable(checks); err == nil || !strings.Contains(err.Error(), by["namespaces"].Detail) {
			t.Errorf("usable without capabilities: got error %v, want one with details", err)
		}
	})
}

func TestCheckSaysWhatIsLostUnlessItSucceeds(t *testing.T) {
	c := Check{Feature: "x", Status: StatusMissing, Used: "u", Lost: "l", Fix: "f"}
	denied := fmt.Errorf("load: %w", os.ErrPermission)
	for name, test := range map[string]struct {
		check   Check
		lacking bool
		err     error
		want    Check
	}{
		"success":                      {c, true, nil, Check{Feature: "x", Status: StatusOK, Detail: "there"}},
		"failure":                      {c, true, os.ErrClosed, Check{Feature: "x", Status: StatusMissing, Detail: os.ErrClosed.Error(), Used: "u", Lost: "l", Fix: "f"}},
		"denied":                       {c, false, denied, Check{Feature: "x", Status: StatusMissing, Detail: denied.Error(), Used: "u", Lost: "l", Fix: "look for what denies it: a seccomp profile, an LSM or kernel lockdown"}},
		"denied without a capability":  {c, true, denied, Check{Feature: "x", Status: StatusMissing, Detail: denied.Error(), Used: "u", Lost: "l", Fix: "give the process the capabilities that are missing above (or run it as root)"}},
		"denied, and nothing can help": {Check{Feature: "x", Status: StatusMissing}, true, denied, Check{Feature: "x", Status: StatusMissing, Detail: denied.Error()}},
	} {
		f := findings{lacking: test.lacking}
		f.add(test.check, test.err, "there")
		if len(f.checks) != 1 || f.checks[0] != test.want {
			t.Errorf("%s: got %+v, want %+v", name, f.checks, test.want)
		}
	}
}

func TestClsactIsMissedIfNothingReplacesIt(t *testing.T) {
	for name, c := range map[string]struct {
		tried    bool
		err, tcx error
		want     string
	}{
		"works":             {true, nil, os.ErrClosed, "ok  "},
		"not tried":         {false, nil, os.ErrClosed, "ok  "},
		"fails, but TCX":    {true, os.ErrExist, nil, "degraded TCX nothing"},
		"fails, and no TCX": {true, os.ErrExist, os.ErrClosed, "missing netlink only frames"},
	} {
		got := clsactCheck(c.tried, c.err, c.tcx)
		if text := got.Status + " " + got.Used + " " + got.Lost; text != c.want || (got.Fix != "") != (c.err != nil) || c.err != nil && got.Detail != c.err.Error() {
			t.Errorf("clsact that %s: got %+v, want %q", name, got, c.want)
		}
	}
}

func TestAgentIsNotUsableIfTheKernelAnswersForTheWrongNamespace(t *testing.T) {
	strict := Check{Feature: "rtnetlink strict checking", Status: StatusMissing, Detail: "too old"}
	if err := Usable([]Check{strict}); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("without strict checking: got error %v, want its details", err)
	}
	strict.Status = StatusOK
	if err := Usable([]Check{strict, {Feature: "TCX", Status: StatusMissing}, {Feature: "clsact", Status: StatusMissing}}); err != nil {
		t.Errorf("with strict checking: got error %v", err)
	}
}

func TestCapabilitiesOfTheStartAreDropped(t *testing.T) {
	alone.Run(t, func() {
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, nil))
		obs, err := bpf.Load()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = obs.Close() }()
		want := cap.NewSet()
		keep := slices.Clone(lasting)
		if obs.WorksUnprivileged() != nil {
			keep = append(keep, cap.BPF)
		}
		had := cap.GetProc()
		for _, v := range keep {
			if ok, _ := had.GetFlag(cap.Permitted, v); ok {
				if err := want.SetFlag(cap.Permitted, true, v); err != nil {
					t.Fatal(err)
				}
				if err := want.SetFlag(cap.Effective, true, v); err != nil {
					t.Fatal(err)
				}
			}
		}
		held := func(when string) {
			t.Helper()
			if diff, err := cap.GetProc().Cf(want); err != nil || diff != 0 {
				t.Errorf("capabilities %s: got %s, want %s", when, cap.GetProc(), want)
			}
		}
		DropCapabilities(log, obs)
		held("with an observer")
		if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || on != 1 {
			t.Errorf("no_new_privs: got %d and error %v, want 1", on, err)
		}
		text := said.String()
		if strings.Count(text, "level=INFO") < 1 || !strings.Contains(text, "dropped=\"") || !strings.Contains(text, "CAP_SYS_ADMIN") || !strings.Contains(text, "CAP_SYS_PTRACE") || strings.Contains(text, "level=WARN") {
			t.Errorf("log: got %s, want what is dropped and what is kept", text)
		}
		dropped, kept, _ := strings.Cut(text[strings.LastIndex(text, "dropped="):], "kept=")
		if !strings.Contains(dropped, "CAP_SYS_ADMIN") || strings.Contains(dropped, "CAP_NET_ADMIN") || !strings.Contains(kept, "CAP_NET_ADMIN") || strings.Contains(kept, "CAP_SYS_ADMIN") {
			t.Errorf("log: got %s, want each capability as dropped or as kept", text)
		}
		if err := want.SetFlag(cap.Permitted, false, cap.BPF); err != nil {
			t.Fatal(err)
		}
		if err := want.SetFlag(cap.Effective, false, cap.BPF); err != nil {
			t.Fatal(err)
		}
		DropCapabilities(log, nil)
		held("without one")
	})
}

func TestObserverThatNeedsTheCapabilityKeepsIt(t *testing.T) {
	alone.Run(t, func() {
		obs, err := bpf.Load()
		if err == nil {
			err = obs.Close() // it does not work with any capability
		}
		if err != nil {
			t.Fatal(err)
		}
		DropCapabilities(slog.New(slog.DiscardHandler), obs)
		for v, want := range map[cap.Value]bool{cap.BPF: true, cap.NET_ADMIN: true, cap.SYS_ADMIN: false} {
			if has, err := cap.GetProc().GetFlag(cap.Effective, v); err != nil || has != want {
				t.Errorf("%s: got %v and error %v, want %v", v, has, err, want)
			}
		}
	})
}

func TestDirectoryThatCannotBeSeenIsMissed(t *testing.T) {
	alone.NeedsDisk(t)
	alone.Run(t, func() {
		base := t.TempDir()
		at := func(name string) string { return filepath.Join(base, name) }
		for _, name := range []string{"own", "mounted", "removed", "orphan"} {
			if err := os.Mkdir(at(name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for source, target := range map[string]string{"/proc": at("mounted"), at("removed"): at("orphan")} {
			if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
		}
		if err := os.Remove(at("removed")); err != nil {
			t.Fatal(err)
		}
		want := func(what string, c Check, status, detail, used string) {
			t.Helper()
			if c.Status != status || !strings.Contains(c.Detail, detail) || c.Used != used || (status == StatusOK) != (c.Lost+c.Fix == "") {
				t.Errorf("%s: got %+v, want %s, %q and %q", what, c, status, detail, used)
			}
		}
		want("mounted", sourceCheck(true, "x", at("mounted"), "y"), StatusOK, at("mounted"), "")
		want("of the container", sourceCheck(true, "x", at("own"), "y"), StatusDegraded, at("own")+": "+allocations.ErrNotMounted.Error(), "other sources")
		want("orphaned", sourceCheck(true, "x", at("orphan"), "y"), StatusDegraded, ipam.ErrOrphaned.Error(), "other sources")
		want("one of two is mounted", sourcesCheck(true, "x", []string{at("own"), at("mounted")}, "y"), StatusOK, at("mounted"), "")
		want("none is mounted", sourcesCheck(true, "x", []string{at("own"), at("own")}, "y"), StatusDegraded, allocations.ErrNotMounted.Error(), "nothing")
		want("one of two is orphaned", sourcesCheck(true, "x", []string{at("orphan"), at("mounted")}, "y"), StatusDegraded, ipam.ErrOrphaned.Error(), "nothing")
	})
}

// namedRuntime answers with its name only.
type namedRuntime struct {
	runtimev1.UnimplementedRuntimeServiceServer
}

func (namedRuntime) Version(context.Context, *runtimev1.VersionRequest) (*runtimev1.VersionResponse, error) {
	return &runtimev1.VersionResponse{RuntimeName: "fake", RuntimeVersion: "v1"}, nil
}

func TestRuntimeAndProcessesThatCannotBeReadAreNamed(t *testing.T) {
	alone.Run(t, func() {
		dir, err := os.MkdirTemp("", "d") // paths of sockets are short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		socket := filepath.Join(dir, "s")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		runtimev1.RegisterRuntimeServiceServer(server, namedRuntime{})
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		if c := readRuntime(socket); c.Status != StatusOK || !strings.Contains(c.Detail, "fake") || !strings.HasSuffix(c.Detail, " at "+socket) {
			t.Errorf("runtime: got %+v, want its name and its socket", c)
		}
		if c := readRuntime(socket + "-missing"); c.Status != StatusDegraded || c.Used == "" || !strings.Contains(c.Fix, "correct --cri-socket") {
			t.Errorf("missing socket: got %+v, want that the flag may be wrong", c)
		}
		if c := readRuntime(workload.RuntimeAuto); c.Status != StatusOK || c.Detail == "" {
			t.Errorf("any runtime: got %+v", c)
		}

		p := agenttest.NewTree(t)
		for pid := range 5 {
			p.Put(pid+1, 0, "x", 1, 10, "/")
		}
		if err := os.WriteFile(filepath.Join(p.Dir, "version"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for path, mode := range map[string]os.FileMode{socket: 0, filepath.Join(p.Dir, "3/ns"): 0} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			for pid := range 5 {
				_ = os.Chmod(filepath.Join(p.Dir, fmt.Sprint(pid+1), "ns"), 0o700)
			}
		})
		drop(t, cap.DAC_OVERRIDE, cap.DAC_READ_SEARCH)
		if c := readRuntime(socket); c.Status != StatusDegraded || !strings.Contains(c.Fix, "let the process write") {
			t.Errorf("socket that denies access: got %+v, want advice about its mode", c)
		}
		check := func(status, detail string) {
			t.Helper()
			if c := readProcesses(workload.ProcDir(p.Dir)); c.Status != status || !strings.Contains(c.Detail, detail) {
				t.Errorf("processes: got %+v, want %s and %q", c, status, detail)
			}
		}
		check(StatusOK, "4 processes, 4 of them in other network namespaces; 1 cannot be read")
		p.End(5)
		if err := os.Chmod(filepath.Join(p.Dir, "2/ns"), 0); err != nil {
			t.Fatal(err)
		}
		check(StatusOK, "2 processes, 2 of them in other network namespaces; 2 cannot be read")
		if err := os.Chmod(filepath.Join(p.Dir, "1/ns"), 0); err != nil {
			t.Fatal(err)
		}
		check(StatusDegraded, "of 3 out of 4 processes cannot be read")
	})
}
