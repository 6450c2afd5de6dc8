package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// result is the result of one suite in a guest.
type result struct {
	suite                   string
	verdict                 string // ok, or the error
	passed, failed, skipped int
	seconds                 string
}

// home is the working directory of suites, which contains testdata, as with go test.
const home = "home"

// says is the prefix of the lines printed by init.sh.
const says = "ipwitness-guest: "

// boot runs the suites in a kernel, copies the output to out, and returns a result for each suite.
func boot(ctx context.Context, k *kernel, dir, cni, ipwitness string, suites []suite, out io.Writer) ([]result, error) {
	results := make([]result, len(suites))
	for i, s := range suites {
		results[i] = result{suite: s.name, verdict: "not run"}
	}
	initramfs := filepath.Join(dir, "initramfs-"+k.release)
	if err := pack(initramfs, k, dir, cni, ipwitness, suites); err != nil {
		return results, fmt.Errorf("make initramfs: %w", err)
	}
	defer func() { _ = os.Remove(initramfs) }()

	// On a busy machine the guest's timer may be late, which would make the kernel's timer check
	// panic. Both virtual processors share one thread: with two, a kernel that patches its own code
	// sometimes hits the int3 that the other processor has just written.
	// The tests pass midnight at the end of a month: what they do must not depend on the hour or the date.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", "2048",
		"-rtc", "base=2028-02-29T23:57:00",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", k.image, "-initrd", initramfs, "-append", "console=ttyS0 quiet panic=-1 no_timer_check")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 5 * time.Second
	console, err := cmd.StdoutPipe()
	if err != nil {
		return results, fmt.Errorf("make pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return results, fmt.Errorf("start qemu: %w", err)
	}
	done := follow(console, results, out)
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return results, fmt.Errorf("the guest was stopped: %w", context.Cause(ctx))
	case err != nil:
		return results, fmt.Errorf("run qemu: %w", err)
	case !done:
		return results, errors.New("the guest ended without a result: see its last output above")
	}
	return results, nil
}

// follow reads the console of a guest to its end, records the results of the suites, and reports
// whether the guest shut down normally.
func follow(console io.Reader, results []result, out io.Writer) (done bool) {
	var r *result
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if line == "" || strings.HasPrefix(line, "=== ") {
			continue
		}
		_, _ = fmt.Fprintln(out, line)
		// Kernel messages may precede the prefix on the same line.
		if _, result, ok := strings.Cut(line, says); ok {
			words := append(strings.Fields(result), "", "", "")
			for i := range results {
				if results[i].suite == words[1] {
					r = &results[i]
				}
			}
			switch {
			case words[0] == "done":
				done = true
			case r == nil:
			case words[0] == "begin":
				r.verdict = "no end"
			case words[0] == "end":
				r.seconds = words[3]
				if r.verdict = "ok"; words[2] != "0" {
					r.verdict = "FAILED: exit " + words[2]
				} else if r.passed == 0 {
					r.verdict = "FAILED: no test passed"
				}
			}
			continue
		}
		if r == nil {
			continue
		}
		switch { // tests without subtests
		case strings.HasPrefix(line, "--- PASS"):
			r.passed++
		case strings.HasPrefix(line, "--- FAIL"):
			r.failed++
		case strings.HasPrefix(line, "--- SKIP"):
			r.skipped++
		}
	}
	return done
}

// pack writes the initramfs of a guest.
func pack(file string, k *kernel, dir, cni, ipwitness string, suites []suite) error {
	temp, err := os.MkdirTemp(dir, "initramfs-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	t := tree{temp}
	faults := []error{os.Chmod(temp, 0o755)} // of the guest's root directory, for tests that run as nobody
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "var/lib", "usr/sbin", home} {
		faults = append(faults, t.add(d, fs.ModeDir, nil))
	}
	faults = append(faults, t.add("init", 0o755, initScript))

	var order strings.Builder
	seen := map[string]bool{}
	for _, m := range modules {
		faults = append(faults, k.load(m, seen, func(name string, data []byte) error {
			order.WriteString(name + ".ko\n")
			return t.add("modules/"+name+".ko", 0o644, data)
		}))
	}
	faults = append(faults, t.add("modules/order", 0o644, []byte(order.String())))

	var list strings.Builder
	for _, s := range suites {
		list.WriteString(s.name + " " + s.command + "\n")
	}
	faults = append(faults, t.add("suites", 0o644, []byte(list.String())))

	programs := map[string]string{"bin/busybox": "busybox", "bin/ipwitness": ipwitness, "bin/ipwitness-agent": ipwitness + "-agent"}
	for _, name := range []string{"ip", "tc", "bridge", "unshare", "nsenter"} {
		programs["usr/sbin/"+name] = name
	}
	for _, pattern := range []string{dir + "/*.test", cni + "/*"} {
		found, _ := filepath.Glob(pattern)
		if len(found) == 0 {
			return fmt.Errorf("no file %s: run make test-kernels", pattern)
		}
		for _, f := range found {
			to := "bin/"
			if strings.HasPrefix(pattern, cni) {
				to = "cni/"
			}
			programs[to+filepath.Base(f)] = f
		}
	}
	golden, _ := filepath.Glob("tests/testdata/*/*")
	for _, f := range golden {
		faults = append(faults, t.file(home+strings.TrimPrefix(f, "tests"), f))
	}
	for as, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return err
		}
		faults = append(faults, t.program(as, path))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return t.pack(file)
}
