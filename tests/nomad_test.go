package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// nomadNetwork gives an allocation its fixed address: the range has one address.
const nomadNetwork = `{"cniVersion":"1.0.0","name":"carrier","plugins":[{"type":"macvlan","master":"eth0","mode":"bridge",
	"ipam":{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24","rangeStart":"192.0.2.100","rangeEnd":"192.0.2.100"}]]}}]}`

// nomad is a host on which the test plays Nomad with one allocation. Nomad calls the plugins without the
// arguments of Kubernetes, and the container ID is that of the allocation, also after a restart.
type nomad struct {
	*scene
	bin string
}

// nomadAddress is the address of the allocation.
const nomadAddress = "192.0.2.100"

func newNomad(t *testing.T) *nomad {
	t.Helper()
	l := newLab(t)
	l.lan("192.0.2.1/24")
	l.cni(nomadNetwork)
	bin, err := netlab.Plugins()
	if err != nil {
		t.Fatal(err)
	}
	n := &nomad{newScene(t, l), bin}
	n.left = []string{"pool-exhaustion"} // the range has one address
	n.namespace()
	// The result of the second ADD replaces that of the first, which names its namespace.
	wait.Until(t, "the name of the first namespace", func() bool {
		owners := n.owners("?address=" + nomadAddress)
		return len(owners) == 1 && strings.HasPrefix(owners[0].GetWorkload().GetName(), "cnitool-")
	})
	n.keeper = n.owners("?address=" + nomadAddress)[0].GetWorkload().GetName()
	n.awaitAllocations(1)
	return n
}

// call calls the plugins for the allocation.
func (n *nomad) call(command string) {
	n.t.Helper()
	cmd := n.Command(filepath.Join(n.bin, "cnitool"), command, "carrier", "/run/netns/alloc")
	cmd.Env = append(cmd.Env, "CNI_PATH="+n.bin, "NETCONFPATH=/etc/cni/net.d")
	if _, err := n.Output(cmd); err != nil {
		n.t.Fatal(err)
	}
}

// namespace creates a new network namespace for the allocation.
func (n *nomad) namespace() {
	n.t.Helper()
	if err := n.Namespace("alloc"); err != nil {
		n.t.Fatal(err)
	}
	n.call("add")
}

// task starts a task in the current namespace of the allocation.
func (n *nomad) task() *exec.Cmd {
	n.t.Helper()
	task := n.Command("ip", "netns", "exec", "alloc", "sleep", "1000")
	if err := n.Start(task); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { endTask(task) })
	inode := n.inode()
	wait.Until(n.t, "the task in the namespace", func() bool {
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", task.Process.Pid))
		return err == nil && at == "net:["+inode+"]"
	})
	return task
}

func endTask(task *exec.Cmd) {
	_ = task.Process.Kill()
	_ = task.Wait()
}

// inode returns the number of the current namespace of the allocation.
func (n *nomad) inode() string {
	n.t.Helper()
	out, err := n.Run("stat -L -c %%i /run/netns/alloc")
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// solve carries out the way through the remedy whose last alternative is this one, after which the
// current namespace alone has the address. looked gets what the command printed that lists processes.
func (n *nomad) solve(alternative string, looked func(processes string)) way {
	n.t.Helper()
	n.conflicted(nomadAddress, n.keeper+" | "+n.keeper, "replaced-namespace")
	all := ways(n.remedy())
	i := slices.IndexFunc(all, func(w way) bool { return slices.Equal(w.labels, []string{alternative}) })
	if i < 0 {
		n.t.Fatalf("got no way %q: %v", alternative, all)
	}
	for _, a := range all[i].actions {
		for _, word := range []string{"kubelet", "crictl", "sandbox"} {
			if strings.Contains(a.GetText()+a.GetCommand(), word) {
				n.t.Errorf("got a step for pods: %v", a)
			}
		}
		if strings.HasPrefix(a.GetCommand(), "find ") {
			out, _ := n.Command("sh", "-c", a.GetCommand()).Output() // processes may end meanwhile
			looked(string(out))
		}
		n.do(a)
	}
	n.solved(all[i].labels)
	if got, want := n.owners("?address=" + nomadAddress)[0].GetNetns(), n.inode(); got != want {
		n.t.Errorf("got the address in network namespace %s, want the current one, %s", got, want)
	}
	n.awaitAllocations(1)
	return all[i]
}

// In hashicorp/nomad issue 26562, one of two tasks was restarted and got a new network namespace, and
// the other one remained in the old one.
func TestNomadTaskThatIsRestartedGetsASecondNamespace(t *testing.T) {
	t.Parallel()
	n := newNomad(t)
	other := n.task()
	n.incident(33)
	n.sh("ip netns del alloc") // the other task keeps the namespace
	n.call("del")
	n.foretold("in-use-unallocated", nomadAddress)
	n.namespace()
	n.task()
	restarted := false
	n.byHand["Restart what these processes belong to"] = func() {
		endTask(other)
		n.task()
		restarted = true
	}
	n.byHand["The namespace ends with its last process"] = func() {}
	w := n.solve("it lists processes", func(processes string) {
		if processes == "" {
			t.Error("got no process in the old namespace, want the other task")
		}
	})
	if !restarted {
		t.Errorf("got %v, want the other task restarted", w.actions)
	}
	n.played.Remedied(w.actions, situations.Commands(w.actions)...)
	n.played.Check()
}

// A file keeps the old namespace, in which nothing runs any more.
func TestNamespaceThatAFileKeepsIsReplaced(t *testing.T) {
	t.Parallel()
	n := newNomad(t)
	n.sh("touch /run/netns/old", "mount --bind /run/netns/alloc /run/netns/old", "ip netns del alloc")
	n.call("del")
	n.namespace()
	n.task()
	n.byHand["a file descriptor keeps it"] = func() {}
	n.solve("it lists none", func(processes string) {
		if processes != "" {
			t.Errorf("got processes %q in the old namespace, want none", processes)
		}
	})
	if out, err := n.Run("ls /run/netns"); err != nil || strings.Contains(out, "old") {
		t.Errorf("got %q, %v, want the file of the old namespace removed, and that of the current one left", out, err)
	}
}
