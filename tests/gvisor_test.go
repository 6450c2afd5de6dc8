package tests

import (
	"os"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// sandboxConfig is an OCI bundle with busybox, in network namespace sb.
const sandboxConfig = `{
	"ociVersion": "1.0.0", "hostname": "sb", "root": {"path": "/run/image", "readonly": true},
	"process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/sleep", "1000"], "env": ["PATH=/bin"], "cwd": "/"},
	"mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
	"linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network", "path": "/run/netns/sb"}]}
}`

// gVisor takes the address of the interface and answers for it itself.
func TestGVisorThatTakesTheAddressFromTheKernelIsSeenByItsFrames(t *testing.T) {
	slow(t)
	t.Parallel()
	possible(t)
	h, err := netlab.NewMachine("gvisor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	e := &engineHost{lab: startLab(t, h)}
	const addr = "10.66.0.2"
	e.played("lan", "sb", addr)
	e.shell("mkdir -p /run/image/bin /run/bundle", "cp /bin/busybox /run/image/bin/", "ln -s busybox /run/image/bin/sleep",
		"ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.66.0.1/24 dev br0", "ip link set vsb master br0")
	if err := os.WriteFile(e.Path("/run/bundle/config.json"), []byte(sandboxConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	e.awaitPod(addr, "sb")
	mac := e.said("ip netns exec sb cat /sys/class/net/eth0/address")

	// This version takes a kernel with net.core.rmem_default in each namespace for the root one.
	var said netlab.Log
	cmd := e.Command("unshare", "--mount", "sh", "-euc", `
		cp /proc/sys/vm/mmap_min_addr /proc/sys/kernel/pid_max /run
		mount -t tmpfs tmpfs /proc/sys
		mkdir /proc/sys/vm /proc/sys/kernel
		cp /run/mmap_min_addr /proc/sys/vm
		cp /run/pid_max /proc/sys/kernel
		exec runsc --root /run/runsc --platform=ptrace --network=sandbox --ignore-cgroups run --bundle /run/bundle sb`)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := e.Start(cmd); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("runsc said:\n%s", said.String())
		}
	})
	wait.Until(t, "gVisor to take the address", func() bool { return !strings.Contains(e.said("ip -n sb -o -4 addr; echo"), addr) })
	wait.Until(t, "an answer of gVisor", func() bool { return e.runs("busybox arping -c 1 -w 1 -I br0 " + addr) })
	wait.Until(t, "the owner by its frames", func() bool {
		all := e.owners("?address=" + addr)
		return len(all) == 1 && all[0].GetWorkload().GetName() == "sb" && all[0].GetMac() == mac && all[0].GetExcluded() == "" &&
			len(all[0].GetEvidence()) == 1 && all[0].GetEvidence()[0].GetKind() == ipwitnessv1.Evidence_ANSWERED
	})

	e.played("lan", "other", addr)
	e.shell("ip link set vother master br0")
	e.watch.await("the duplicate", func(all []*ipwitnessv1.Conflict) bool {
		return slices.ContainsFunc(all, func(c *ipwitnessv1.Conflict) bool {
			return c.GetAddress() == addr && ownerNames(c) == "default/other | default/sb"
		})
	})
}
