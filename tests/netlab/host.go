// Package netlab creates hosts from namespaces, for tests, the demo and the benchmarks.
//
// A Host has its own network namespace and its own mount namespace, with an empty /run, /var/lib
// and /etc/cni. Named network namespaces, and the files and configuration of CNI plugins, are
// therefore private to the host. The network of the machine is never changed. Everything is removed
// when the Host is closed, or when the process that created it dies.
package netlab

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Host is a simulated machine.
type Host struct {
	// InOrder makes Namespace create pods with ascending inodes, so that lists of owners, which are
	// sorted by inode, always have the same order.
	InOrder bool
	// Secure is how clients of the host connect to an aggregator with TLS; nil for plain HTTP.
	Secure *Secure

	holder *exec.Cmd // keeps the namespaces
	pid    int       // PID of a process in them
	enter  []string  // command prefix that enters the namespaces
	netns  *os.File
	tie    io.Closer // of a machine: its holder ends when this is closed
	cgroup string
	last   uint64 // inode of the newest namespace, if InOrder is set
}

// umask is the umask of machines. It does not depend on that of the caller, because files of
// containers and units must be readable for all users.
const umask = 0o022

// ready is the output of the holder once its namespaces are set up.
const ready = "ready\n"

// New creates a host that has only a loopback interface. Its /etc is an overlay, so that /etc/cni
// need not be created in the /etc of the machine. A kernel without overlays is one booted for the
// tests, whose /etc may be changed. A mount at the machine's /run/netns, which ip(8) creates, is
// removed from the copied mount namespace, because runtimes would find it in the list of mounts.
func New() (*Host, error) {
	unix.Umask(umask)
	return hold(exec.Command("unshare", "--net", "--mount", "--propagation", "private", "sh", "-euc", `
		umount --lazy /run/netns 2>/dev/null || true
		mount -t tmpfs tmpfs /run
		mount -t tmpfs tmpfs /var/lib
		mkdir -p /run/netns /var/lib/cni /run/etc/upper /run/etc/work
		mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc 2>/dev/null || true
		mkdir -p /etc/cni
		mount -t tmpfs tmpfs /etc/cni
		mkdir /etc/cni/net.d
		ip link set lo up
		echo ready
		exec sleep infinity`))
}

// Beside creates a host with its own network that shares the files of h. Both see the same
// /run/netns, like two kind nodes on one machine.
func (h *Host) Beside() (*Host, error) {
	return hold(h.Command("unshare", "--net", "sh", "-euc", "ip link set lo up; echo ready; exec sleep infinity"))
}

// Boot gives the host its own boot ID, which its programs read in place of the kernel's. This makes
// it another machine, or the same machine after a reboot.
func (h *Host) Boot(id string) error {
	const file = "/run/boot_id"
	if err := os.WriteFile(h.Path(file), []byte(id+"\n"), 0o444); err != nil {
		return fmt.Errorf("write boot id: %w", err)
	}
	_, err := h.Run("mount --bind %s /proc/sys/kernel/random/boot_id", file)
	return err
}

// hold starts a process that creates namespaces and keeps them alive.
func hold(cmd *exec.Cmd) (*Host, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	var fault bytes.Buffer
	cmd.Stderr = &fault
	if err := start(cmd); err != nil {
		return nil, fmt.Errorf("make namespaces: %w", err)
	}
	h := &Host{holder: cmd}
	line := make([]byte, len(ready))
	if _, err := io.ReadFull(out, line); err != nil {
		h.Close()
		return nil, fmt.Errorf("make namespaces (needs root, iproute2 and util-linux): %w: %s", err, strings.TrimSpace(fault.String()))
	}
	if err := h.settle(cmd.Process.Pid, "--net", "--mount"); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// settle makes the namespaces of a process those of the host.
func (h *Host) settle(pid int, namespaces ...string) (err error) {
	h.pid = pid
	h.enter = append(append([]string{"nsenter", "--target", strconv.Itoa(pid)}, namespaces...), "--")
	if h.netns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	return nil
}

// start starts a command that dies with this process. The kernel considers the starting thread the
// parent, so that thread must not end before the command.
func start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := make(chan error)
	go func() {
		runtime.LockOSThread()
		e := cmd.Start()
		err <- e
		if e == nil {
			var info unix.Siginfo
			_ = unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		}
		runtime.UnlockOSThread()
	}()
	return <-err
}

// Close ends the host and all its processes that were started by Command.
func (h *Host) Close() {
	if h.netns != nil {
		_ = h.netns.Close()
	}
	if h.tie != nil {
		_ = h.tie.Close() // the holder ends the host
	} else {
		_ = h.holder.Process.Kill()
	}
	_ = h.holder.Wait()
}

// Command returns a command that will run inside the host. Start it with Start, so that it cannot
// outlive this process.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	line := slices.Concat(h.enter, []string{name}, args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = Environment()
	return cmd
}

// Environment returns the environment for commands on a host. It is that of this process, without
// variables that refer to files outside the host or configure ipwitness, Kubernetes or a runtime. By
// default, ipwitness keeps nothing there: hosts that share their files would share its directory, too.
func Environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(strings.ToUpper(variable), "=")
		return strings.HasSuffix(name, "_PROXY") || slices.ContainsFunc([]string{"IPWITNESS_", "KUBE", "HELM_", "CONTAINERD_"}, func(whose string) bool {
			return strings.HasPrefix(name, whose)
		})
	}), "IPWITNESS_DATA_DIR=off")
}

// Start starts a command from Command.
func (h *Host) Start(cmd *exec.Cmd) error { return start(cmd) }

// Run runs a command line inside the host, split at blanks, and returns its output.
func (h *Host) Run(format string, args ...any) (string, error) {
	line := fmt.Sprintf(format, args...)
	words := strings.Fields(line)
	return h.Output(h.Command(words[0], words[1:]...))
}

// Output runs a command from Command and returns its output.
func (h *Host) Output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[len(h.enter):], " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// Stdout is like Output, but without stderr, which may contain warnings.
func (h *Host) Stdout(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[len(h.enter):], " "), err, bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}

// Do runs fn on a thread that is inside the host's network namespace. fn must
// not start goroutines that use the network: they would run outside.
func (h *Host) Do(fn func() error) error { return inside(h.netns, fn) }

// inside runs fn on a separate thread in a network namespace. The thread is never unlocked, so Go
// ends it with the goroutine.
func inside(netns *os.File, fn func() error) error {
	err := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if e := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); e != nil {
			err <- fmt.Errorf("enter network namespace: %w", e)
			return
		}
		err <- fn()
	}()
	return <-err
}

// Secure is the configuration of a client of an aggregator with TLS and tokens.
type Secure struct {
	TLS   *tls.Config
	Token string
}

// Client returns an HTTP client whose connections start inside the host.
func (h *Host) Client() *http.Client {
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = h.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}
	if h.Secure == nil {
		return &http.Client{Transport: t}
	}
	t.TLSClientConfig = h.Secure.TLS
	return &http.Client{Transport: bearer{t, h.Secure.Token}}
}

// bearer adds a token to requests.
type bearer struct {
	*http.Transport
	token string
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(r)
}

// Namespace creates a named network namespace.
func (h *Host) Namespace(name string) error {
	if h.InOrder && h.last == 0 {
		var err error
		if h.last, err = inode(h.netns); err != nil {
			return err
		}
	}
	for {
		if _, err := h.Run("ip netns add %s", name); err != nil || !h.InOrder {
			return err
		}
		p, err := h.Pod(name)
		if err != nil {
			return err
		}
		// Keep it open until the end, so that the next namespace cannot have the same inode.
		defer p.Close()
		i, err := inode(p.netns)
		if err != nil {
			return err
		}
		if i > h.last {
			h.last = i
			return nil
		}
		if _, err := h.Run("ip netns del %s", name); err != nil {
			return err
		}
	}
}

// Cable connects the host to another host by a veth, and sets both ends up.
func (h *Host) Cable(ifname string, other *Host, otherIfname string) error {
	// Run would not work: inside a machine, PIDs are different.
	add := exec.Command("nsenter", "--target", strconv.Itoa(h.pid), "--net", "--",
		"ip", "link", "add", ifname, "type", "veth", "peer", "name", otherIfname, "netns", strconv.Itoa(other.pid))
	if out, err := add.CombinedOutput(); err != nil {
		return fmt.Errorf("lay cable %s: %w: %s", ifname, err, bytes.TrimSpace(out))
	}
	if _, err := h.Run("ip link set %s up", ifname); err != nil {
		return err
	}
	_, err := other.Run("ip link set %s up", otherIfname)
	return err
}

// Pod opens the network namespace with a name, as created by `ip netns add`.
func (h *Host) Pod(name string) (*Pod, error) {
	return h.PodAt("/run/netns/" + name)
}

// PodAt opens the network namespace at a path of the host, such as /proc/PID/ns/net.
func (h *Host) PodAt(path string) (*Pod, error) {
	f, err := os.Open(h.Path(path))
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return &Pod{netns: f}, nil
}

// Path returns the path of a host's file for this process.
func (h *Host) Path(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", h.pid, path)
}

// Pod is an open network namespace of a host. Close it before the pod is deleted, because it keeps
// the namespace alive.
type Pod struct {
	netns *os.File
}

// Do runs fn on a thread that is inside the pod's network namespace.
func (p *Pod) Do(fn func() error) error { return inside(p.netns, fn) }

// Inode returns the inode of the pod's network namespace, which identifies it in lists of owners.
func (p *Pod) Inode() (string, error) {
	i, err := inode(p.netns)
	return fmt.Sprint(i), err
}

func inode(netns *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(netns.Fd()), &st); err != nil {
		return 0, fmt.Errorf("stat network namespace: %w", err)
	}
	return st.Ino, nil
}

// Fd returns the descriptor of the open namespace.
func (p *Pod) Fd() int { return int(p.netns.Fd()) }

// Close closes the namespace.
func (p *Pod) Close() { _ = p.netns.Close() }

// ErrNoRoot means that hosts cannot be created because the process is not root.
var ErrNoRoot = errors.New("needs root")

// Possible returns an error if hosts cannot be created here.
func Possible() error {
	if os.Geteuid() != 0 {
		return ErrNoRoot
	}
	for _, tool := range []string{"unshare", "nsenter", "ip", "sh", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("needs %s (Debian: apt-get install util-linux iproute2): %w", tool, err)
		}
	}
	return nil
}
