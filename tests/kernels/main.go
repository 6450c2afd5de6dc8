// Kernels boots real Debian kernels in qemu and runs the tests in each of them: `make
// test-kernels`. It needs no KVM and installs nothing: a kernel and its modules are unpacked under
// -dir, where the package is kept for the next run.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// modules are the kernel modules that the tests need, unless they are built in. openvswitch needs
// crc32c_generic without declaring it.
var modules = strings.Fields("veth bridge macvlan vxlan 8021q bonding dummy ipvlan vrf tun crc32c_generic openvswitch sch_ingress cls_bpf cls_u32 act_bpf nf_conntrack_netlink")

// suite is a test binary in -dir with its arguments.
type suite struct{ name, command string }

// kernels are the tested series, each with a pattern of the scenarios that it does not support.
var kernels = []struct{ series, without string }{
	{"6.1", "Netkit"}, // no TCX before 6.6, no netkit before 6.7
	{"6.12", "^$"},
}

// choice selects the scenarios. It does not include all, because a guest without KVM is many times
// slower than the machine.
const choice = "^Test(Device|T1PTP|T2Bridge|T9Duplicates|T13|L1Address|L20|AgentOfRoot)"

// packages are the packages of the agent that have tests.
var packages = strings.Fields("agent allocations kernel report rtnetlink table wire workload")

// units returns the suites of bpf and of the packages of the agent.
func units() []suite {
	out := []suite{{"bpf", "bpf.test -test.v -test.timeout 15m"}}
	for _, p := range packages {
		out = append(out, suite{p, p + ".test -test.v -test.short -test.timeout 15m"})
	}
	return out
}

// scenarios returns the suite of those tests in tests/ whose names match the first pattern but not
// the second.
func scenarios(names, without string) suite {
	return suite{"scenarios", "tests.test -test.v -test.timeout 30m -test.run " + names + " -test.skip " + without}
}

// named returns the suites with tests whose names match a pattern. They run only these tests. The test
// binaries are in dir.
func named(ctx context.Context, dir, names, without string) (out []suite, err error) {
	for _, s := range append(units(), scenarios(choice, without)) {
		binary, _, _ := strings.Cut(s.command, " ")
		tests, err := exec.CommandContext(ctx, filepath.Join(dir, binary), "-test.list", names).Output()
		if err != nil {
			return nil, fmt.Errorf("list tests of %s: %w", binary, err)
		}
		if len(tests) > 0 {
			out = append(out, suite{s.name, s.command + " -test.run " + names})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no test has a name that matches %s", names)
	}
	return out, nil
}

//go:embed init.sh
var initScript []byte

func main() {
	dir := flag.String("dir", "bin/kernels", "directory of the packages, the kernels and the test binaries")
	program := flag.String("ipwitness", "bin/ipwitness", "program to test")
	cni := flag.String("cni", "bin/cni", "directory of the CNI plugins")
	timeout := flag.Duration("timeout", 45*time.Minute, "time limit of one kernel")
	only := flag.String("kernel", "", "test only this series, like 6.12")
	run := flag.String("run", "", "run only the tests with this name, like go test -run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	var runs []*kernelRun
	for _, k := range kernels {
		if *only != "" && *only != k.series {
			continue
		}
		suites := append(units(), scenarios(choice, k.without))
		if *run != "" {
			var err error
			if suites, err = named(ctx, *dir, *run, k.without); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		r := &kernelRun{series: k.series, suites: suites}
		r.kernel, r.err = unpacked(*dir, k.series)
		runs = append(runs, r)
	}
	// Run all guests in parallel, because each uses only one processor.
	var guests sync.WaitGroup
	for _, r := range runs {
		if r.err == nil {
			guests.Go(func() { r.test(ctx, *dir, *cni, *program, *timeout) })
		}
	}
	guests.Wait()

	summary := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(summary, "\nKERNEL\tSUITE\tPASSED\tFAILED\tSKIPPED\tSECONDS\tRESULT")
	code := 0
	for _, r := range runs {
		release := r.series
		if r.kernel != nil {
			release = r.kernel.release
		}
		for _, s := range r.results {
			if s.verdict != "ok" {
				code = 1
			}
			_, _ = fmt.Fprintf(summary, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", release, s.suite, s.passed, s.failed, s.skipped, s.seconds, s.verdict)
		}
		if r.err != nil {
			code = 1
			_, _ = fmt.Fprintf(summary, "%s\t\t\t\t\t\tFAILED, see above\n", release)
			fmt.Fprintf(os.Stderr, "kernel %s: %v\n", r.series, r.err)
		}
	}
	_ = summary.Flush()
	os.Exit(code)
}

// kernelRun is a run of suites on a kernel series.
type kernelRun struct {
	series  string
	suites  []suite
	kernel  *kernel
	results []result
	err     error
}

// test runs the suites in the kernel.
func (r *kernelRun) test(ctx context.Context, dir, cni, program string, timeout time.Duration) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took longer than %s", timeout))
	defer cancel()
	r.results, r.err = boot(ctx, r.kernel, dir, cni, program, r.suites, labelled(r.series))
}

// labelled is a writer that prefixes each console line with the kernel series and writes it to
// standard output.
type labelled string

// Write implements io.Writer.
func (l labelled) Write(line []byte) (int, error) {
	_, err := os.Stdout.WriteString(string(l) + "  " + string(line))
	return len(line), err
}
