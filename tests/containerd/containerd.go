// Package containerd runs a real containerd on a host of netlab, for tests, the demo and the
// benchmarks. It uses the default paths, a handmade pause image and real CNI plugins.
//
// It has its own PID namespace, so that its shims and containers, which are not children of any
// process here, end with it. It also has its own cgroup, which is removed even if the process that
// started it is killed.
package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// Socket is the path of containerd's socket on a host.
const Socket = "/run/containerd/containerd.sock"

// Options configure a containerd.
type Options struct {
	// Bin is the directory of containerd, its shim and ctr. If it is empty, the programs of
	// Debian's packages are found in PATH.
	Bin string
	// Network is the configuration of the pods' network (a conflist). If it is empty, there is no
	// network until a configuration is put into /etc/cni/net.d of the host.
	Network string
}

// Containerd is a container runtime that runs inside a host.
type Containerd struct {
	// Log contains its output.
	Log *netlab.Log
	// Cgroup is the parent of the cgroups of its pods.
	Cgroup string

	host    *netlab.Host
	options Options
	plugins string
	init    *exec.Cmd // unshare; its child is the first process of the PID namespace
	pid     int       // PID of that child
	janitor *exec.Cmd
	broom   io.Closer // the janitor removes the cgroup when this is closed
	server  *exec.Cmd // nsenter; its child is containerd
	ended   chan struct{}
	conn    *grpc.ClientConn
}

const ready = "ready\n"

// Start starts a containerd on a host, and waits until it answers. A host can have only one.
func Start(ctx context.Context, host *netlab.Host, o Options) (*Containerd, error) {
	plugins, err := netlab.Plugins()
	if err != nil {
		return nil, err
	}
	c := &Containerd{Log: &netlab.Log{}, host: host, options: o, plugins: plugins}
	if err := c.prepare(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Containerd) prepare(ctx context.Context) error {
	if err := c.makeCgroup(); err != nil {
		return err
	}
	if err := c.makeFiles(); err != nil {
		return err
	}
	if err := c.makeNamespaces(); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+c.host.Path(Socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	c.conn = conn
	if err := c.Restart(ctx); err != nil {
		return err
	}
	program, err := pause()
	if err != nil {
		return err
	}
	return c.importImage(ctx, Image, "pause", "65535:65535", program)
}

// Import imports an image that contains only a static program, which runs as root.
func (c *Containerd) Import(ctx context.Context, image, program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return c.importImage(ctx, image, filepath.Base(program), "0:0", data)
}

// sweep first waits for the end of its standard input. It then removes a cgroup and its descendants
// in every hierarchy, once their processes have ended.
const sweep = `
	read -r _ || true
	for i in $(seq 1000); do
		find /sys/fs/cgroup -mindepth 1 -depth -type d -path "*/$0*" -exec rmdir {} + 2>/dev/null || true
		[ -n "$(find /sys/fs/cgroup -mindepth 1 -type d -name "$0" 2>/dev/null)" ] || exit 0
		sleep .05
	done
	exit 1`

// onMachine reports whether the host is a machine (netlab.NewMachine), which already has its own
// PIDs and cgroup.
func (c *Containerd) onMachine() bool { return c.host.Cgroup() != "" }

// makeCgroup chooses the name of the cgroup, and starts the process that removes it later.
func (c *Containerd) makeCgroup() error {
	if c.onMachine() {
		c.Cgroup = c.host.Cgroup()
		return nil
	}
	dir, err := os.MkdirTemp("", "ipwitness-ctd-") // a unique name
	if err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	c.Cgroup = "/" + filepath.Base(dir)
	c.janitor = exec.Command("sh", "-c", sweep, filepath.Base(dir))
	c.janitor.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this process, and any signal that kills it
	if c.broom, err = c.janitor.StdinPipe(); err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	if err := c.janitor.Start(); err != nil {
		c.janitor = nil
		return fmt.Errorf("start the process that removes cgroups: %w", err)
	}
	return nil
}

// configPath is the path of the configuration in the host.
const configPath = "/etc/containerd/config.toml"

// makeFiles writes the configuration of containerd to the /etc of the host.
func (c *Containerd) makeFiles() error {
	// Shared mounts, as with systemd: mounts on these directories must propagate between
	// containerd's mount namespace and the host's.
	_, err := c.host.Output(c.host.Command("sh", "-euc", `
		for dir in /run /var/lib /etc/cni; do
			if mountpoint -q $dir; then mount --make-shared $dir; fi
		done
		mkdir -p /etc/cni/net.d /etc/containerd`))
	if err != nil {
		return fmt.Errorf("make files of the host: %w", err)
	}
	config := fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
`, Socket, Image, c.plugins)
	if err := os.WriteFile(c.host.Path(configPath), []byte(config), 0o644); err != nil {
		return err
	}
	if c.options.Network == "" {
		return nil
	}
	return os.WriteFile(c.host.Path("/etc/cni/net.d/10-test.conflist"), []byte(c.options.Network), 0o644)
}

// makeNamespaces creates a PID namespace, and a mount namespace with its /proc. The first process
// reaps orphans.
func (c *Containerd) makeNamespaces() error {
	if c.onMachine() {
		return nil
	}
	cmd := c.host.Command("unshare", "--pid", "--fork", "--kill-child", "--mount", "--propagation", "unchanged", "sh", "-euc", `
		mount -t proc proc /proc
		echo ready
		sleep infinity &
		wait`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	var fault bytes.Buffer
	cmd.Stderr = &fault
	if err := c.host.Start(cmd); err != nil {
		return fmt.Errorf("make PID namespace: %w", err)
	}
	c.init = cmd
	line := make([]byte, len(ready))
	if _, err := io.ReadFull(out, line); err != nil {
		return fmt.Errorf("make PID namespace: %w: %s", err, strings.TrimSpace(fault.String()))
	}
	c.pid, err = child(cmd.Process.Pid)
	return err
}

// child returns the PID of the only child of a process.
func child(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return 0, fmt.Errorf("find child: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// Command returns a command that will run in the host and in containerd's PID namespace. Start it
// with Start of the host. Close ends it.
func (c *Containerd) Command(name string, args ...string) *exec.Cmd {
	var cmd *exec.Cmd
	if c.onMachine() {
		cmd = c.host.Command(name, args...)
	} else {
		cmd = exec.Command("nsenter", append([]string{"--target", strconv.Itoa(c.pid), "--net", "--mount", "--pid", "--", name}, args...)...)
		cmd.Env = netlab.Environment()
	}
	if c.options.Bin != "" {
		cmd.Env = append(cmd.Env, "PATH="+c.options.Bin+":"+os.Getenv("PATH"))
	}
	return cmd
}

// Restart starts containerd if it does not run, and waits until it answers. Existing sandboxes
// remain.
func (c *Containerd) Restart(ctx context.Context) error {
	if c.server != nil {
		return errors.New("containerd runs already")
	}
	program := filepath.Join(c.options.Bin, "containerd")
	if c.options.Bin == "" {
		var err error
		if program, err = exec.LookPath("containerd"); err != nil {
			return fmt.Errorf("needs containerd (Debian: apt-get install containerd runc): %w", err)
		}
	}
	cmd := c.Command(program, "--config", configPath)
	cmd.Stdout, cmd.Stderr = c.Log, c.Log
	if err := c.host.Start(cmd); err != nil {
		return fmt.Errorf("start containerd: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	c.server, c.ended = cmd, ended
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := c.Runtime().Status(ctx, &runtimev1.StatusRequest{})
		if err == nil && c.isReady(status.GetStatus()) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("not ready: %v", status.GetStatus())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for containerd: %w: %w\n%s", ctx.Err(), err, c.Log)
		case <-ended:
			return fmt.Errorf("containerd ended: %w\n%s", err, c.Log)
		case <-tick.C:
			c.conn.ResetConnectBackoff()
		}
	}
}

// isReady reports whether sandboxes can be created. Other conditions are ignored.
func (c *Containerd) isReady(s *runtimev1.RuntimeStatus) bool {
	for _, cond := range s.GetConditions() {
		needed := cond.GetType() == runtimev1.RuntimeReady || cond.GetType() == runtimev1.NetworkReady && c.options.Network != ""
		if needed && !cond.GetStatus() {
			return false
		}
	}
	return true
}

// importImage builds an image of one program and imports it.
func (c *Containerd) importImage(ctx context.Context, name, program, user string, code []byte) error {
	image, err := archive(name, program, user, code)
	if err != nil {
		return err
	}
	return c.ImportArchive(ctx, name, bytes.NewReader(image))
}

// ImportArchive imports an archive that contains the named image, and waits until CRI knows it:
// containerd notifies its CRI server by an event, after ctr has ended. A sandbox requested before
// that would make it look for the image in a registry.
func (c *Containerd) ImportArchive(ctx context.Context, image string, archive io.Reader) error {
	cmd := c.Command("ctr", "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import %s: %w: %s", image, err, out)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := c.Images().ImageStatus(ctx, &runtimev1.ImageStatusRequest{Image: &runtimev1.ImageSpec{Image: image}})
		if err == nil && status.GetImage() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until CRI has %s: %w\n%s", image, errors.Join(ctx.Err(), err), c.Log)
		case <-tick.C:
		}
	}
}

// Version returns the name and the version that the runtime reports.
func (c *Containerd) Version(ctx context.Context) (name, version string, err error) {
	v, err := c.Runtime().Version(ctx, &runtimev1.VersionRequest{})
	return v.GetRuntimeName(), v.GetRuntimeVersion(), err
}

// Socket returns the path of the socket for this process.
func (c *Containerd) Socket() string { return c.host.Path(Socket) }

// Runtime returns a client of its CRI runtime service.
func (c *Containerd) Runtime() runtimev1.RuntimeServiceClient {
	return runtimev1.NewRuntimeServiceClient(c.conn)
}

// Images returns a client of its CRI image service.
func (c *Containerd) Images() runtimev1.ImageServiceClient {
	return runtimev1.NewImageServiceClient(c.conn)
}

// PID returns the PID of containerd, outside its PID namespace.
func (c *Containerd) PID() (int, error) {
	if c.server == nil {
		return 0, errors.New("containerd does not run")
	}
	return child(c.server.Process.Pid)
}

// Kill kills containerd as in an accident. Its sandboxes continue to run.
func (c *Containerd) Kill() error {
	if c.server == nil {
		return nil
	}
	pid, err := c.PID()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill containerd: %w", err)
	}
	<-c.ended
	c.server = nil
	return nil
}

// Close ends containerd and all its containers, and removes their cgroups. On a machine, the
// containers end with the machine.
func (c *Containerd) Close() error {
	if c.conn != nil {
		_ = c.conn.Close()
	}
	if c.onMachine() && c.server != nil {
		_ = c.server.Process.Kill() // the rest ends with the machine
	}
	if c.init != nil {
		_ = c.init.Process.Kill()
		_ = c.init.Wait()
	}
	if c.server != nil {
		<-c.ended
	}
	if c.janitor == nil {
		return nil
	}
	_ = c.broom.Close()
	if err := c.janitor.Wait(); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", c.Cgroup, err)
	}
	return nil
}
