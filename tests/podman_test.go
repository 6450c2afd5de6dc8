package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// unusedConfig configures the network podman for CNI plugins.
const unusedConfig = `{"cniVersion":"0.4.0","name":"podman","plugins":[
	{"type":"bridge","bridge":"cni-podman0","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.88.0.0/16","gateway":"10.88.0.1"}]]}},
	{"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall"},{"type":"tuning"}]}`

// newPodmanHost returns a host with podman, which needs no daemon.
func newPodmanHost(t *testing.T) *engineHost {
	t.Helper()
	e := newEngineHost(t, "podman")
	for path, content := range map[string]string{
		// Higher limits than these need CAP_SYS_RESOURCE.
		"/etc/containers/containers.conf": "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1000:1000\"]\n[engine]\nevents_logger = \"file\"\ncgroup_manager = \"cgroupfs\"\n",
		"/etc/containers/policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
		// Debian's package has a configuration for CNI plugins, which nothing uses with netavark.
		"/etc/cni/net.d/87-podman-bridge.conflist": unusedConfig,
		"/etc/containers/storage.conf":             "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n",
	} {
		e.shell("mkdir -p " + filepath.Dir(path))
		if err := os.WriteFile(e.Path(path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e.shell("podman import /run/image.tar img")
	return e
}

// runOnNetworks starts and removes containers, each with an address of each of many networks, so that n
// addresses come and go. That takes less time than to start as many containers.
func (e *engineHost) runOnNetworks(n int) {
	e.t.Helper()
	const networks = 20
	if n < networks {
		return
	}
	var options []string
	for i := range networks {
		e.shell(fmt.Sprintf("podman network create --disable-dns --subnet 172.31.%d.0/24 churn%[1]d", i))
		options = append(options, fmt.Sprintf("--network churn%d", i))
	}
	for range (n + networks - 1) / networks {
		e.run("mover", options...)
		e.shell("podman rm -t 0 -f mover")
	}
}

func TestPodmanThatLostItsRecordsIsForetoldAndItsRemedyLeavesOneOwner(t *testing.T) {
	t.Parallel()
	e := newPodmanHost(t)
	found := e.follow()
	e.shell("ip link add uplink type veth peer name lan", "ip link set uplink up", "ip link set lan up",
		"podman network create --disable-dns --driver macvlan --subnet 192.168.50.0/24 --opt parent=uplink macvlan")
	id, first := e.run("first", "--network macvlan")
	e.awaitContainer(first, "first", id)
	web, addr := e.run("web")
	e.awaitContainer(addr, "web", web)
	const jobs = 3
	for range jobs { // churn: the next container gets the address
		job, addr := e.run("job")
		e.awaitContainer(addr, "job", job)
		e.shell("podman rm -t 0 -f job")
	}
	e.runOnNetworks(churned(jobs) - jobs)
	e.awaitAllocations(2)

	// Someone cleans up /run.
	if got := found.all(); len(got) > 0 {
		t.Errorf("got findings %q before the loss, want none", got)
	}
	e.shell("rm /run/containers/networks/ipam.db")
	e.awaitFindings("in-use-unallocated "+addr, "in-use-unallocated "+first, "ipam-state-lost", "ipam-state-lost")
	i := e.incident(32)
	i.foretold("in-use-unallocated", first)
	second, again := e.run("second", "--network macvlan")
	if again != first {
		t.Fatalf("podman gave %s, want %s again", again, first)
	}
	e.restartWithoutRecord(i, first, "first", id, "second", second)
	e.shell("podman stop -t 0 web", "podman start web")
	e.awaitContainer(e.address("web"), "web", web)
	e.awaitFindings()

	// An address that was set by hand.
	e.inside("web", "addr add "+first+"/24 dev eth0")
	e.inside("first", "addr add "+e.address("second")+"/24 dev eth0")
	e.awaitCause(first, "static-address")
}
