package tests

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// nomadNetwork gives an allocation its fixed address: the range has one address.
const nomadNetwork = `{"cniVersion":"1.0.0","name":"carrier","plugins":[{"type":"macvlan","master":"eth0","mode":"bridge",
	"ipam":{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24","rangeStart":"192.0.2.100","rangeEnd":"192.0.2.100"}]]}}]}`

// Incident 33: Nomad calls the plugins without the arguments of Kubernetes, and the container ID is
// that of the allocation, also after a restart. One of two tasks is restarted and gets a new network
// namespace, and the other task remains in the old one.
func TestNomadTaskThatIsRestartedGetsASecondNamespace(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.lan("192.0.2.1/24")
	l.cni(nomadNetwork)
	bin, err := netlab.Plugins()
	if err != nil {
		t.Fatal(err)
	}
	call := func(command string) {
		t.Helper()
		cmd := l.Command(filepath.Join(bin, "cnitool"), command, "carrier", "/run/netns/alloc")
		cmd.Env = append(cmd.Env, "CNI_PATH="+bin, "NETCONFPATH=/etc/cni/net.d")
		if _, err := l.Output(cmd); err != nil {
			t.Fatal(err)
		}
	}
	// start starts a task in a new namespace of the allocation.
	start := func() (task *exec.Cmd) {
		t.Helper()
		if err := l.Namespace("alloc"); err != nil {
			t.Fatal(err)
		}
		call("add")
		task = l.Command("ip", "netns", "exec", "alloc", "sleep", "1000")
		if err := l.Start(task); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { endTask(task) })
		return task
	}
	const addr = "192.0.2.100"
	old := start()
	// The result of the second ADD replaces that of the first, which names its namespace.
	wait.Until(t, "the name of the first namespace", func() bool {
		owners := l.owners("?address=" + addr)
		return len(owners) == 1 && strings.HasPrefix(owners[0].GetWorkload().GetName(), "cnitool-")
	})
	l.awaitAllocations(1)

	i := l.incident(33)
	l.sh("ip netns del alloc") // the other task keeps the namespace
	call("del")
	i.foretold("in-use-unallocated", addr)
	start()
	i.conflicted(addr, "unknown")
	endTask(old)
	l.awaitOwners(addr, 1)
}

func endTask(task *exec.Cmd) {
	_ = task.Process.Kill()
	_ = task.Wait()
}
