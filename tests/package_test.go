package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// systemdHost is a machine whose first process, in its own PID namespace, is a real systemd that
// only runs a journal.
type systemdHost struct {
	*lab
	pid int    // of systemd
	env string // for scripts
}

// bootSystemd prepares the machine for systemd. Its control groups are below the current one, and
// its units are only those that every unit depends on. It sets a machine ID, because systemd would
// otherwise treat this as the first boot and enable all units.
const bootSystemd = `
	mount --make-rprivate /proc
	mount -t proc proc /proc
	mount --make-rprivate /sys
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	hostname >/etc/hostname
	echo "127.0.0.1 $(hostname)" >>/etc/hosts
	grep -q '^[0-9a-f]*$' /etc/machine-id || tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
	mkdir -p /run/units/sysinit.target.wants /etc/systemd/system
	mount -t tmpfs tmpfs /etc/systemd/system
	for u in basic multi-user network paths shutdown slices sockets sysinit timers umount; do
		ln -s /lib/systemd/system/$u.target /run/units/
	done
	ln -s /lib/systemd/system/systemd-journald.service /lib/systemd/system/systemd-journald*.socket /run/units/
	ln -s ../systemd-journald.service /run/units/sysinit.target.wants/
	export container=ipwitness-test SYSTEMD_UNIT_PATH=/etc/systemd/system:/usr/local/lib/systemd/system:/run/units
	exec /lib/systemd/systemd --system --unit=multi-user.target`

// newSystemdHost boots a systemdHost. Its /usr/local contains only the directory that every machine
// has.
func newSystemdHost(t *testing.T, name string) *systemdHost {
	t.Helper()
	possible(t)
	h, err := netlab.NewMachine(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	l := &systemdHost{lab: &lab{Host: h, t: t}}
	l.sh("mount -t tmpfs tmpfs /usr/local", "mkdir -m 755 /usr/local/bin")
	cmd := h.Command("sh", "-euc", `
		unified=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
		echo 0 >$unified$0/cgroup.procs
		exec unshare --cgroup --mount --pid --propagation unchanged --fork --kill-child sh -euc "$1"`, h.Cgroup(), bootSystemd)
	var said netlab.Log
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	wait.Until(t, "systemd to be up", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("systemd ended: %v: %s", err, said.String())
		default:
		}
		l.pid = child(child(cmd.Process.Pid))
		out, _ := l.in("systemctl is-system-running").Output()
		return l.pid != 0 && string(out) == "running\n"
	})
	t.Cleanup(func() { // units with private directories in the machine's /tmp and /var/tmp remove them only when they stop
		if out, err := l.in("systemctl stop 'ipwitness*'").CombinedOutput(); err != nil {
			t.Errorf("stop the units: %v: %s", err, out)
		}
	})
	return l
}

// child returns the PID of a child of a process, or 0.
func child(pid int) int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	return pid
}

// in returns a command that runs a script beside systemd, with a umask that makes new files private
// by default.
func (l *systemdHost) in(script string) *exec.Cmd {
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(l.pid), "--all", "--wd=/", "--", "sh", "-euxc", "umask 077\n"+l.env+script)
	cmd.Env = append(netlab.Environment(), "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root")
	return cmd
}

// do runs a script and returns its output.
func (l *systemdHost) do(script string) string {
	l.t.Helper()
	cmd := l.in(script)
	var trace bytes.Buffer
	cmd.Stderr = &trace
	out, err := cmd.Output()
	if err != nil {
		journal, _ := l.in("journalctl --no-pager --output=cat --lines=40").Output()
		l.t.Fatalf("%v\n%s%s\nThe journal:\n%s", err, out, trace.Bytes(), journal)
	}
	return string(out)
}

// prints waits until the output of a script matches a pattern.
func (l *systemdHost) prints(script, pattern string) {
	l.t.Helper()
	re := regexp.MustCompile(pattern)
	var out []byte
	defer func() {
		if l.t.Failed() {
			l.t.Logf("%s: got %s, want %s", script, out, pattern)
		}
	}()
	wait.Until(l.t, script, func() bool {
		out, _ = l.in(script).Output()
		return re.Match(out)
	})
}

// privileges returns the kernel's view of the privileges of a unit's process.
func (l *systemdHost) privileges(unit string) string {
	l.t.Helper()
	return l.do(`
		pid=$(systemctl show --property=MainPID --value ` + unit + `)
		awk '/^(Uid|CapBnd|NoNewPrivs|Seccomp):/ { print $1, $2 }' /proc/$pid/status
		awk '$2 == "/" { split($4, o, ","); print o[1] }' /proc/$pid/mounts`)
}

const (
	// CAP_NET_BROADCAST (11), CAP_NET_ADMIN (12), CAP_PERFMON (38) and CAP_BPF (39).
	fourCapabilities = "000000c000001800"
	noCapability     = "0000000000000000"
)

func privileges(uid, capabilities string) string {
	return fmt.Sprintf("Uid: %s\nCapBnd: %s\nNoNewPrivs: 1\nSeccomp: 2\nro\n", uid, capabilities)
}

// installPage returns a function that returns the commands below a heading of docs/install-linux.md.
func installPage(t *testing.T) func(heading string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/install-linux.md")
	if err != nil {
		t.Fatal(err)
	}
	commands, heading, inside := map[string]string{}, "", false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "#") && !inside:
			heading = strings.Trim(line, "# \n")
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh\n"
		case inside:
			commands[heading] += strings.ReplaceAll(line, "linux-amd64", "linux-"+runtime.GOARCH)
		}
	}
	return func(heading string) string {
		t.Helper()
		if commands[heading] == "" {
			t.Fatalf("docs/install-linux.md has no commands below a heading %q", heading)
		}
		return commands[heading]
	}
}

// exports returns the variables that commands of the page set.
func exports(commands string) string {
	return strings.Join(regexp.MustCompile(`(?m)^export .*\n`).FindAllString(commands, -1), "")
}

// unpackable returns the directory with the output of make package, as a path on the machine.
func unpackable(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../bin")
	if err != nil {
		t.Fatal(err)
	}
	found, _ := filepath.Glob(dir + "/ipwitness-*-linux-" + runtime.GOARCH + ".tar.gz")
	if len(found) != 1 {
		missing(t, fmt.Errorf("packages in bin: got %v, want one: run make package", found))
	}
	return dir
}

// missing skips the test, or fails it if skipping is not allowed.
func missing(t *testing.T, reason error) {
	t.Helper()
	if os.Getenv("IPWITNESS_ROOT_TESTS") != "" {
		t.Fatal("IPWITNESS_ROOT_TESTS is set: ", reason)
	}
	t.Skip(reason, ": run make test")
}

// possible skips the test, or fails it, if hosts cannot be created here.
func possible(t *testing.T) {
	t.Helper()
	_, err := exec.LookPath("/lib/systemd/systemd")
	if err := errors.Join(netlab.Possible(), err); err != nil {
		missing(t, err)
	}
}

func TestPackageOnAHostWithSystemd(t *testing.T) {
	slow(t)
	t.Parallel()
	l := newSystemdHost(t, "node1")
	at := "cd '" + unpackable(t) + "'\n"
	page := installPage(t)
	l.pod("before", "10.9.0.4/24")
	l.do(at + page("Install"))
	l.do(page("Several hosts"))
	l.prints("ipwitness nodes", `(?m)^node1 +LIVE .* tcx`)
	l.do(page("Check that it works"))

	uid := strings.TrimSpace(l.do("id --user ipwitness"))
	if got, want := l.privileges("ipwitness-agent"), privileges("0", fourCapabilities); got != want {
		t.Errorf("agent: got\n%s, want\n%s", got, want)
	}
	// The agent drops the capabilities that only its start needs, and its system call filter still
	// permits that.
	l.prints("grep CapEff /proc/$(systemctl show --property=MainPID --value ipwitness-agent)/status", `0000000000001000`)
	if got, want := l.privileges("ipwitness-aggregator"), privileges(uid, noCapability); got != want {
		t.Errorf("aggregator: got\n%s, want\n%s", got, want)
	}

	if out := l.do("ipwitness nodes -o yaml"); strings.Count(out, " problems: []\n") != 2 {
		t.Errorf("the agent, or the aggregator, has problems: %s", out)
	}

	// A pod of a container runtime, which also starts after the agent.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := containerd.Start(ctx, l.Host, containerd.Options{Network: netlab.PTP})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.RunPod(ctx, containerd.Pod{Name: "web"}); err != nil {
		t.Fatal(err)
	}
	l.prints("ipwitness owners "+podAddress(1), ` default/web `)

	// A namespace in /run/netns is visible although it was created later, and can be deleted.
	l.pod("web", "10.9.0.5/24")
	l.prints("ipwitness owners 10.9.0.4", `netns/before `)
	l.prints("ipwitness owners 10.9.0.5", `netns/web `)
	l.sh("ip netns del web")
	l.prints("ipwitness owners 10.9.0.5 2>&1", `No owner`)

	l.pod("one", "10.9.0.6/24")
	l.pod("two", "10.9.0.6/24")
	l.prints("ipwitness conflicts", `10\.9\.0\.6 +CONFIRMED `)
	l.do(page("Open it to other hosts") + page("With certificates"))
	if out, err := l.in("ipwitness nodes").CombinedOutput(); err == nil {
		t.Errorf("an unauthenticated caller: got %s", out)
	}
	l.env = exports(page("With certificates"))
	l.prints("ipwitness nodes", `(?m)^node1 +LIVE .* tcx`)
	l.prints("ipwitness conflicts", `10\.9\.0\.6 +CONFIRMED `)
	l.do(`ipwitness acknowledge 10.9.0.6 --reason "moving" --for 1h`)
	before := l.do("systemctl show --property=InvocationID --value ipwitness-agent ipwitness-aggregator")
	l.do(at + page("Upgrade"))
	if after := l.do("systemctl show --property=InvocationID --value ipwitness-agent ipwitness-aggregator"); after == before {
		t.Error("the upgrade has restarted nothing")
	}
	l.prints("ipwitness conflicts 10.9.0.6", `moving`)

	l.env = ""
	l.do("systemctl disable --now ipwitness-agent ipwitness-aggregator\n" + page("One host"))
	l.prints("ipwitness conflicts 10.9.0.6", `moving`) // the same data-dir
	if got, want := l.privileges("ipwitness"), privileges("0", fourCapabilities); got != want {
		t.Errorf("run: got\n%s, want\n%s", got, want)
	}
	if got := l.do("systemd-analyze verify ipwitness.service ipwitness-agent.service ipwitness-aggregator.service 2>&1"); got != "" {
		t.Errorf("the units: %s", got)
	}

	l.do(page("Uninstall"))
	if got := l.do(`
		find /usr/local /etc/ipwitness /var/lib/ipwitness /var/lib/private /etc/systemd/system -not -type d 2>/dev/null || true
		getent passwd ipwitness || true
		systemctl list-units --all --plain --no-legend 'ipwitness*'
		pgrep ipwitness || true`); got != "" {
		t.Errorf("left behind:\n%s", got)
	}
}

// The aggregator and an agent share one host, and another agent runs on a second host. They
// authenticate with tokens.
func TestPackageOnTwoHostsWithTokens(t *testing.T) {
	slow(t)
	t.Parallel()
	at := "cd '" + unpackable(t) + "'\n"
	page := installPage(t)
	one, two := newSystemdHost(t, "node1"), newSystemdHost(t, "node2")
	if err := one.Cable("eth0", two.Host, "eth0"); err != nil {
		t.Fatal(err)
	}
	one.do("ip address add 192.0.2.1/24 dev eth0; ip link set eth0 up")
	two.do("ip address add 192.0.2.2/24 dev eth0; ip link set eth0 up; echo 192.0.2.1 node1 >>/etc/hosts")

	one.do(at + page("Install") + page("Several hosts") + page("Open it to other hosts") + page("With tokens"))
	one.env = exports(page("People with tokens"))
	one.prints("ipwitness nodes", `(?m)^node1 +LIVE .* tcx`)
	one.do(page("People with tokens"))
	if got := one.do("stat --format='%a %U:%G %n' /etc/ipwitness/tokens /etc/ipwitness/*.token"); got != `640 root:ipwitness /etc/ipwitness/tokens
600 root:root /etc/ipwitness/agent.token
600 root:root /etc/ipwitness/alice.token
600 root:root /etc/ipwitness/node2.token
` {
		t.Errorf("the tokens: got\n%s", got)
	}

	two.do(at + page("Install") + "install -D -m 644 /usr/local/share/doc/ipwitness/agent.yaml /etc/ipwitness/agent.yaml\nsystemctl enable --now ipwitness-agent")
	two.do("install -d /etc/ipwitness/tls")
	for _, file := range [][2]string{{"tls/ca.crt", "tls/ca.crt"}, {"node2.token", "agent.token"}, {"alice.token", "alice.token"}} {
		two.do("cat >/etc/ipwitness/" + file[1] + " <<'end'\n" + one.do("cat /etc/ipwitness/"+file[0]) + "end")
	}
	two.do(page("On the other host"))
	two.env = exports(page("People with tokens"))
	two.prints("ipwitness nodes", `(?m)^node2 +LIVE .* tcx`)
	if out := two.do("ipwitness nodes -o yaml"); strings.Count(out, " problems: []\n") != 3 {
		t.Errorf("the agents, or the aggregator, have problems: %s", out)
	}

	refused := func(script, why string) {
		t.Helper()
		if out, err := two.in(script).CombinedOutput(); err == nil || !strings.Contains(string(out), why) {
			t.Errorf("%s: got %v and %s, want it refused: %s", script, err, out, why)
		}
	}
	refused("unset IPWITNESS_TOKEN_FILE; ipwitness nodes", "authentication is required")
	refused("ipwitness nodes --token-file /etc/ipwitness/agent.token", "node2 may not list nodes")
	one.do("sed -i '/ alice$/d' /etc/ipwitness/tokens")
	refused("ipwitness nodes", "the token is unknown")
}
