package containerd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

const patience = 2 * time.Minute

// held, if set, makes the test program the one that will be killed.
const held = "IPWITNESS_TEST_HOLDS_CONTAINERD"

func TestMain(m *testing.M) {
	if os.Getenv(held) == "" {
		os.Exit(m.Run())
	}
	if err := hold(); err != nil {
		fmt.Println(err)
	}
}

// hold starts a pod, prints the name of its cgroup, and waits.
func hold() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h, err := netlab.New()
	if err != nil {
		return err
	}
	c, err := Start(ctx, h, Options{Network: netlab.PTP})
	if err != nil {
		return err
	}
	if _, err := c.RunPod(ctx, Pod{Name: "web"}); err != nil {
		return err
	}
	fmt.Println(c.Cgroup)
	select {}
}

// possible skips the test if there is a reason, or fails it if skipping is not allowed.
func possible(t *testing.T, reasons ...error) {
	t.Helper()
	for _, err := range append(reasons, netlab.Possible()) {
		switch {
		case err == nil:
		case os.Getenv("IPWITNESS_ROOT_TESTS") != "":
			t.Fatal("IPWITNESS_ROOT_TESTS is set: ", err)
		default:
			t.Skip(err, ": run make test")
		}
	}
}

// living returns the cgroups with a name, and their processes.
func living(cgroup string) (dirs, processes []string) {
	dirs, _ = filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	one, _ := filepath.Glob("/sys/fs/cgroup" + cgroup) // version 2 only
	dirs = append(dirs, one...)
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, _ error) error {
			pids, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			processes = append(processes, strings.Fields(string(pids))...)
			return nil
		})
	}
	return dirs, processes
}

func TestPodsOutliveContainerdAndNothingOutlivesClose(t *testing.T) {
	for _, v := range Versions() {
		t.Run(v.Name, func(t *testing.T) {
			if testing.Short() && v.Name != "debian" {
				t.Skip("slow: run make test-all")
			}
			possible(t, v.Missing)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			h, err := netlab.New()
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			c, err := Start(ctx, h, Options{Bin: v.Bin, Network: netlab.PTP})
			if err != nil {
				t.Fatal(err)
			}
			err = live(ctx, t, c)
			if _, processes := living(c.Cgroup); len(processes) == 0 {
				t.Errorf("no process in cgroup %s: pods must be in another one", c.Cgroup)
			}
			if closed := c.Close(); err != nil || closed != nil {
				t.Fatal(err, closed)
			}
			if dirs, processes := living(c.Cgroup); len(dirs)+len(processes) != 0 {
				t.Errorf("left behind: %v, processes %v", dirs, processes)
			}
		})
	}
}

// live runs two pods through their life, including a restart of containerd.
func live(ctx context.Context, t *testing.T, c *Containerd) error {
	t.Helper()
	pod := Pod{Name: "web", UID: "0ddba110-0000-4000-8000-000000000001"}
	id, err := c.RunPod(ctx, pod)
	if err != nil {
		return err
	}
	container, err := c.RunContainer(ctx, id, pod, "main")
	if err != nil {
		return err
	}
	if _, err := c.RunPod(ctx, Pod{Name: "host", HostNetwork: true}); err != nil {
		return err
	}
	if err := c.Kill(); err != nil {
		return err
	}
	if err := c.Restart(ctx); err != nil {
		return err
	}
	s, err := c.Runtime().PodSandboxStatus(ctx, &runtimev1.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return err
	}
	if got := s.GetStatus(); got.GetState() != runtimev1.PodSandboxState_SANDBOX_READY || got.GetNetwork().GetIp() != "10.244.0.2" {
		t.Errorf("sandbox after a restart: got %v %v, want it ready, with 10.244.0.2", got.GetState(), got.GetNetwork())
	}
	if _, err := c.Runtime().StopContainer(ctx, &runtimev1.StopContainerRequest{ContainerId: container, Timeout: 60}); err != nil {
		return err
	}
	if s, err := c.Runtime().ContainerStatus(ctx, &runtimev1.ContainerStatusRequest{ContainerId: container}); err != nil || s.GetStatus().GetExitCode() != 0 {
		t.Errorf("container that was stopped: got %v, %v, want exit code 0", s.GetStatus(), err)
	}
	if err := c.StopPod(ctx, id); err != nil {
		return err
	}
	return c.RemovePod(ctx, id)
}

func TestNothingOutlivesAProcessThatIsKilled(t *testing.T) {
	possible(t, Versions()[0].Missing)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), held+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cgroup, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || !strings.HasPrefix(cgroup, "/ipwitness-") {
		t.Fatalf("cgroup of a pod: got %q, %v", cgroup, err)
	}
	wait.Until(t, "nothing to be left behind", func() bool {
		dirs, processes := living(strings.TrimSpace(cgroup))
		return len(dirs)+len(processes) == 0
	})
}
