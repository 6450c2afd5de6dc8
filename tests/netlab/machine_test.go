package netlab

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/wait"
)

// held, if set, makes the test program the one that will be killed.
const held = "IPWITNESS_TEST_HOLDS_MACHINE"

func TestMain(m *testing.M) {
	if os.Getenv(held) == "" {
		os.Exit(m.Run())
	}
	h, err := NewMachine("box")
	if err == nil {
		_, err = h.Output(h.Command("sh", "-euc", daemon(h)))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(h.Cgroup())
	select {}
}

// daemon returns a script that leaves a process behind, as a container runtime does for each pod,
// and creates cgroups.
func daemon(h *Host) string {
	return `mkdir -p /etc/test
		for d in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts); do mkdir -p $d` + h.Cgroup() + `/pod; done
		setsid -f ` + sleeper(h.Cgroup()) + ` >/dev/null 2>&1`
}

// sleeper returns a unique command line.
func sleeper(cgroup string) string {
	return "sleep 9" + strings.ReplaceAll(strings.TrimPrefix(cgroup, "/ipwitness-"), "-", ".")
}

// left returns the remaining cgroups and processes of a machine.
func left(t *testing.T, cgroup string) (all []string) {
	t.Helper()
	out, err := exec.Command("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").Output()
	if err != nil && len(out) == 0 {
		t.Fatal(err)
	}
	for range strings.Count(string(out), sleeper(cgroup)+" ") {
		all = append(all, "daemon")
	}
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range hierarchies {
		if _, err := os.Stat(dir + cgroup); err == nil {
			all = append(all, dir+cgroup)
		}
	}
	return all
}

// waitForDaemon waits for the process and a cgroup of daemon. The command line of a process is empty
// for a moment while it executes another program.
func waitForDaemon(t *testing.T, cgroup string) {
	t.Helper()
	wait.Until(t, "a daemon and cgroups", func() bool {
		got := left(t, cgroup)
		return len(got) >= 2 && got[0] == "daemon"
	})
}

func possible(t *testing.T) {
	t.Helper()
	if err := Possible(); err != nil {
		if os.Getenv("IPWITNESS_ROOT_TESTS") != "" {
			t.Fatal("IPWITNESS_ROOT_TESTS is set: ", err)
		}
		t.Skip(err, ": run make test")
	}
}

func TestMachineLeavesNothingBehind(t *testing.T) {
	possible(t)
	h, err := NewMachine("box")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if out, err := h.Run("hostname"); err != nil || out != "box\n" {
		t.Errorf("hostname: got %q, %v, want box", out, err)
	}
	if _, err := h.Output(h.Command("sh", "-euc", daemon(h))); err != nil {
		t.Fatal(err)
	}
	waitForDaemon(t, h.Cgroup())
	h.Close()
	if got := left(t, h.Cgroup()); got != nil {
		t.Errorf("after the end: got %v, want nothing", got)
	}
	if _, err := os.Stat("/etc/test"); err == nil {
		t.Error("what a machine wrote into /etc is on this one")
	}
}

func TestMachineEndsWithItsCreator(t *testing.T) {
	possible(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), held+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	defer end()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read the cgroup: got %q, %v", line, err)
	}
	cgroup := strings.TrimSpace(line)
	waitForDaemon(t, cgroup)
	end()
	wait.Until(t, "nothing to be left behind", func() bool { return left(t, cgroup) == nil })
}

func TestEnvironmentVariablesDoNotLeadOutOfAHost(t *testing.T) {
	kept := Environment()
	for _, name := range []string{"HTTPS_PROXY", "no_proxy", "IPWITNESS_SERVER", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HELM_NAMESPACE", "CONTAINERD_ADDRESS"} {
		t.Setenv(name, "elsewhere")
	}
	t.Setenv("IPWITNESS", "no flag's")
	if got, want := Environment(), append(kept, "IPWITNESS=no flag's"); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("got %q, want %q", got, want)
	}
}
