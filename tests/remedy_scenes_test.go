package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// block is the third byte of two ranges of addresses that no other scene uses, because a plan
// looks into all namespaces with processes.
type block byte

// blocks counts the blocks that are in use.
var blocks atomic.Uint32

func newBlock(t *testing.T) block {
	t.Helper()
	n := blocks.Add(1)
	if n > 127 {
		t.Fatal("all of 198.19.0.0/16 is in use")
	}
	return block(2 * n)
}

// network replaces the range of a network by that of the block.
func (b block) network(conflist string) string {
	return strings.ReplaceAll(conflist, "10.244.0.0/16", b.prefix())
}

// prefix returns the range of the block.
func (b block) prefix() string { return b.address(0) + "/24" }

// other returns the second range of the block.
func (b block) other() string { return (b + 1).prefix() }

// address returns an address of the range.
func (b block) address(host int) string { return fmt.Sprintf("198.19.%d.%d", b, host) }

// first returns the first address that host-local allocates from the range.
func (b block) first() string { return b.address(2) }

// conflictScenes are conflicts of each cause that can be built in a lab of namespaces.
// Calico's are in tests/kubernetes. The commands for whereabouts, Calico and Cilium run in
// aggregator/verdict against prepared answers (TestCommandsOnlyChange…).
var conflictScenes = map[string]func(t *testing.T, b block) *scene{
	"ipam-state-lost, the newer one is booked": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		cni := l.cni(b.network(netlab.PTP))
		s.place(l, cni, "old")
		l.awaitAllocations(1)
		forgotten(t, cni)
		s.place(l, cni, "new")
		s.keeper = "new"
		return s.conflicted(b.first(), "default/new | default/old", "ipam-state-lost")
	},
	"ipam-state-lost, nobody is booked": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		cni := l.cni(b.network(netlab.PTP))
		s.place(l, cni, "old")
		l.awaitAllocations(1)
		forgotten(t, cni)
		s.place(l, cni, "new")
		l.awaitAllocations(1)
		forgotten(t, cni)
		l.awaitAllocations(0)
		s.keeper = "old"
		return s.conflicted(b.first(), "default/new | default/old", "ipam-state-lost")
	},
	"ipam-state-lost, on a bridge": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		cni := l.cni(b.network(netlab.Bridge))
		s.place(l, cni, "old", "old2")
		l.awaitAllocations(2)
		forgotten(t, cni)
		s.place(l, cni, "new")
		s.keeper = "new"
		return s.conflicted(b.first(), "default/new | default/old", "ipam-state-lost")
	},
	"ipam-booked-elsewhere": func(t *testing.T, b block) *scene {
		l := &lab{Host: newHost(t), t: t}
		cni := l.cni(b.network(netlab.PTP))
		add(t, cni, "web", "other")
		dir := l.Path("/run/cni-ipam-state/kindnet")
		reallocate(t, l, filepath.Join(dir, b.first())) // before the aggregator has seen the right allocation
		l.start("--node", "node1")
		s := newScene(t, l)
		s.pods["web"] = &placed{l, cni}
		s.found("booked-elsewhere", b.first())
		s.kind = ""
		for _, file := range []string{b.first(), "last_reserved_ip.0"} { // the owner of the allocation ends
			if err := os.Remove(filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}
		s.place(l, cni, "db")
		s.keeper = "db"
		return s.conflicted(b.first(), "default/db | default/web", "ipam-booked-elsewhere")
	},
	"static-address, in a namespace": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.place(l, l.cni(b.network(netlab.PTP)), "web")
		l.awaitPod(b.first(), "web")
		l.pod("blue", b.first()+"/32")
		s.keeper = "web"
		return s.conflicted(b.first(), "blue | default/web", "static-address")
	},
	"static-address, in a namespace that had it first": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		l.pod("blue", b.first()+"/32")
		l.awaitOwners(b.first(), 1)
		s.place(l, l.cni(b.network(netlab.PTP)), "web")
		s.keeper = "web" // web has an allocation
		return s.conflicted(b.first(), "blue | default/web", "static-address")
	},
	"static-address, of the node": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		l.lan("192.0.2.1/24")
		s.place(l, l.cni(b.network(netlab.PTP)), "web")
		l.awaitPod(b.first(), "web")
		l.sh("ip addr add " + b.first() + "/32 dev eth0")
		s.ways = map[string]string{"default/web keeps the address": "web", "node1 itself must keep": "node1"}
		return s.conflicted(b.first(), "default/web | node1", "static-address")
	},
	"static-address, of a bridge of the node": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.incident(39)
		cni := l.cni(strings.ReplaceAll(b.network(netlab.Bridge), "cni0", "weave"))
		s.place(l, cni, "other")
		l.awaitPod(b.first(), "other")
		const web = 3
		l.sh("ip addr add " + b.address(web) + "/32 dev weave")
		s.foretold("in-use-unallocated", b.address(web))
		s.place(l, cni, "web")
		s.ways = map[string]string{"default/web keeps the address": "web", "node1 itself must keep": "node1"}
		return s.conflicted(b.address(web), "default/web | node1", "static-address")
	},
	"static-address, behind a pod's port": func(t *testing.T, b block) *scene {
		l := newLab(t, "--stale-after", "3s")
		s := newScene(t, l)
		cni := l.cni(b.network(netlab.Bridge))
		s.place(l, cni, "web", "launcher")
		l.ports(2)
		l.announce("web", b.first())
		l.evidence(b.first(), "web", "ASSIGNED eth0", "ANNOUNCED")
		l.sh("ip -n launcher link add br0 type bridge", "ip -n launcher link set br0 up", "ip -n launcher addr flush dev eth0",
			"ip -n launcher link set eth0 master br0",
			"ip netns add guest", "ip -n launcher link add tap0 type veth peer name tap1", "ip -n launcher link set tap0 master br0",
			"ip -n launcher link set tap1 up", "ip -n launcher link add link tap1 name eth0 netns guest type macvlan mode bridge",
			"ip -n launcher link set tap0 up", "ip -n guest link set eth0 address 02:00:00:00:00:06", "ip -n guest link set eth0 up")
		l.assign("guest", b.first()+"/24")
		silence := talks(t, func() { l.uses("guest", b.first(), b.address(77)) })
		s.byHand["Find the process or machine that uses the address behind"] = func() {
			silence()
			l.sh("ip -n guest addr del " + b.first() + "/24 dev eth0")
		}
		s.left = []string{"intended-not-observed"} // the launcher's finding
		s.ways = map[string]string{"default/web keeps the address": "web"}
		return s.conflicted(b.first(), "default/launcher | default/web", "static-address")
	},
	"tunnel-address": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		l.lan("192.0.2.1/24")
		s.place(l, l.cni(b.network(netlab.PTP)), "web")
		l.awaitPod(b.first(), "web")
		l.sh("ip link add flannel.1 type vxlan id 4096 dstport 4789 dev eth0 local 192.0.2.1 nolearning",
			"ip addr add "+b.first()+"/32 dev flannel.1", "ip link set flannel.1 up")
		s.byHand["a different address where it is configured"] = func() {}
		s.ways = map[string]string{"default/web keeps the address": "web", "the device must keep": "node1"}
		return s.conflicted(b.first(), "default/web | node1", "tunnel-address")
	},
	"overlapping-networks": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		var nets []*netlab.CNI
		conf := func(i string) string {
			return strings.NewReplacer("cbr0", "net"+i, "cni0", "cni"+i).Replace(b.network(netlab.Bridge))
		}
		for i, name := range []string{"web", "db"} {
			nets = append(nets, l.cni(conf(string(rune('0'+i)))))
			s.place(l, nets[i], name)
			l.awaitOwners(b.address(1), 1)
		}
		for i, net := range []string{"net0", "net1"} {
			s.byHand["Give network "+net] = func() {
				l.cni(strings.Replace(conf(string(rune('0'+i))), b.prefix(), b.other(), 1))
			}
		}
		s.keeper = "web" // both have an allocation, and web was first
		return s.conflicted(b.first(), "default/db | default/web", "overlapping-networks")
	},
	"pod-cidr-overlap": func(t *testing.T, b block) *scene {
		c := newCluster(t, 2)
		s := newScene(t, c.lab, c.nodes...)
		s.incident(34)
		conf := strings.Replace(b.network(netlab.Bridge), "cbr0", "pods", 1)
		networks := []*netlab.CNI{c.nodes[0].cni(conf), c.nodes[1].cni(conf)}
		s.place(c.nodes[0], networks[0], "ended")
		s.place(c.nodes[0], networks[0], "web")
		s.remove("ended")
		s.place(c.nodes[1], networks[1], "first")
		s.foretold("pod-cidr-overlap", b.address(2)+"-"+b.address(254))
		s.place(c.nodes[1], networks[1], "db")
		for i, name := range []string{"node1", "node2"} {
			s.byHand["On node "+name+", write a range that no other node has into"] = func() {
				c.nodes[i].cni(strings.Replace(conf, b.prefix(), b.other(), 1))
			}
		}
		s.ways = map[string]string{"node node1 keeps its range": "web", "node node2 keeps its range": "db"}
		s.keeper = "web"
		return s.conflicted(b.address(3), "default/db | default/web", "pod-cidr-overlap")
	},
	"external-device, of a pod": func(t *testing.T, _ block) *scene {
		l := newLab(t, "--stale-after", "3s")
		s := newScene(t, l)
		out := l.lan("192.0.2.1/24")
		s.place(l, l.macvlan(), "web")
		l.ports(1)
		l.awaitPod("192.0.2.100", "web")
		out.machine("thief", "02:00:00:00:00:99", "192.0.2.100/24")
		silence := talks(t, func() { out.uses("thief", "192.0.2.100", "192.0.2.77") })
		s.byHand["Find the device with MAC 02:00:00:00:00:99"] = func() {
			silence()
			out.sh("ip -n thief addr del 192.0.2.100/24 dev eth0")
		}
		s.keeper = "web"
		s.byHand["set rangeStart and rangeEnd"] = func() {
			l.cni(strings.Replace(macvlan, `"rangeStart":"192.0.2.100"`, `"rangeStart":"192.0.2.101"`, 1))
		}
		s.ways = map[string]string{"default/web keeps the address": "web", "MAC 02:00:00:00:00:99 keeps the address": "02:00:00:00:00:99"}
		return s.conflicted("192.0.2.100", " | default/web", "external-device")
	},
	"external-device, of a node": func(t *testing.T, _ block) *scene {
		l := newLab(t, "--stale-after", "3s")
		s := newScene(t, l)
		out := l.lan("192.0.2.1/24")
		l.ports(1)
		l.awaitOwners("192.0.2.1", 1)
		out.machine("thief", "02:00:00:00:00:99", "192.0.2.1/24")
		silence := talks(t, func() { out.uses("thief", "192.0.2.1", "192.0.2.77") })
		s.byHand["Find the device with MAC 02:00:00:00:00:99"] = func() {
			silence()
			out.sh("ip -n thief addr del 192.0.2.1/24 dev eth0")
		}
		s.ways = map[string]string{"node1 itself keeps the address": "node1", "MAC 02:00:00:00:00:99 keeps the address": "02:00:00:00:00:99"}
		return s.conflicted("192.0.2.1", " | node1", "external-device")
	},
	"split-brain": func(t *testing.T, _ block) *scene {
		c := newCluster(t, 2, "--handover-grace", "1s")
		s := newScene(t, c.lab, c.nodes...)
		c.shared()
		c.moves("ucarp")
		const vip = "192.0.2.50"
		for i, n := range c.nodes {
			n.sh("ip addr add " + vip + "/32 dev eth0")
			n.announce("/eth0", vip)
			c.awaitOwners(vip, i+1)
		}
		s.byHand["Correct that"] = func() { // once the nodes hear each other again, the backup releases the address
			c.nodes[1].sh("ip addr del " + vip + "/32 dev eth0")
		}
		s.keeper = "node1" // node1 had the address first
		s.ways = map[string]string{
			"only node node1 itself (eth0) is": "node1", "only node node2 itself (eth0) is": "node2",
			"node node1 itself (eth0) keeps": "node1", "node node2 itself (eth0) keeps": "node2",
		}
		return s.conflicted(vip, "node1 | node2", "split-brain")
	},
	"split-brain, keepalived was killed": func(t *testing.T, _ block) *scene {
		c := killedKeepalived(t)
		s := newScene(t, c.lab, c.nodes...)
		s.incident(37)
		s.byHand["Find out why keepalived has ended"] = func() { c.nodes[0].keepalived() }
		s.keeper = "node2" // node1 had the address first
		s.conflicted(vip, "node1 | node2", "split-brain")
		wait.Until(t, "the remedy to name the node that keeps the address", func() bool {
			remedy := s.remedy()
			return len(remedy) > 0 && len(remedy[0].GetChoice()) == 0
		})
		return s
	},
	"split-brain, two speakers of MetalLB": func(t *testing.T, _ block) *scene {
		v := newVIPs(t)
		v.metallb("node1")
		v.speaks("node1")
		s := newScene(t, v.lab, v.nodes...)
		s.incident(25)
		v.metallb("node2")
		v.wantHeldElsewhere(vip + " node1")
		s.foretold("vip-held-elsewhere", vip)
		v.speaks("node2")
		s.effects["kubectl delete"] = func() { v.silent("node1") }
		s.byHand["The conflict resolves by itself"] = func() { v.wantHeldElsewhere() }
		s.keeper = "node2"
		v.wantHeldElsewhere(vip + " node1,node2")
		return s.conflicted(vip, "node1 | node2", "split-brain")
	},
	"orphaned-sandbox": func(t *testing.T, b block) *scene {
		h := newHost(t)
		l := startLab(t, h, "--kubeconfig", apiOf(t, h, "new"))
		s := newScene(t, l)
		cni := l.cni(b.network(netlab.PTP))
		s.place(l, cni, "old")
		l.awaitAllocations(1)
		forgotten(t, cni)
		s.place(l, cni, "new")
		s.keeper = "new"
		return s.conflicted(b.first(), "default/new | default/old", "orphaned-sandbox")
	},
	"unknown, of two namespaces": func(t *testing.T, _ block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		l.pod("first", "192.0.2.7/32")
		l.awaitOwners("192.0.2.7", 1)
		l.pod("second", "192.0.2.7/32")
		s.keeper = "first"
		return s.conflicted("192.0.2.7", "first | second", "unknown")
	},
	"unknown, a kernel that refuses it": func(t *testing.T, _ block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add fd00:10:244::1/64 dev cni0 nodad")
		for _, pod := range []string{"a", "b"} {
			l.pod(pod)
			l.sh("ip link set v" + pod + " master cni0")
			l.sysctl(pod, "net/ipv6/conf/eth0/accept_dad=1")
		}
		l.bridged(2)
		const addr = "fd00:10:244::7"
		l.assign("a", addr+"/64")
		l.awaitOwners(addr, 1)
		l.sh("ip -n b addr add " + addr + "/64 dev eth0")
		s.keeper = "a"
		return s.conflicted(addr, "a | b", "unknown")
	},
}

func forgotten(t *testing.T, cni *netlab.CNI) {
	t.Helper()
	if err := cni.Forget(); err != nil {
		t.Fatal(err)
	}
}

// reallocate replaces the container ID in host-local's file of an address atomically. Writing
// the file in place would leave it empty for a moment, and the previous record would be
// lost.
func reallocate(t *testing.T, l *lab, file string) {
	t.Helper()
	next := l.Path("/run/next")
	write(t, next, "another\r\neth0")
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRemedyOfEachCauseLeavesTheRightOwner(t *testing.T) {
	t.Parallel()
	for name, build := range conflictScenes {
		t.Run(name, func(t *testing.T) { t.Parallel(); carriedOut(t, build) })
	}
}

// findingScenes are findings of each kind.
var findingScenes = map[string]func(t *testing.T, b block) *scene{
	"in-use-unallocated": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.place(l, l.cni(b.network(netlab.PTP)), "web", "db")
		l.awaitPod(b.first(), "web")
		l.awaitAllocations(2)
		if err := os.Remove(l.Path("/run/cni-ipam-state/kindnet/" + b.first())); err != nil {
			t.Fatal(err)
		}
		s.keeper = "web"
		return s.found("in-use-unallocated", b.first())
	},
	"in-use-unallocated, of a namespace": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.place(l, l.cni(b.network(netlab.PTP)), "web")
		l.awaitPod(b.first(), "web")
		l.pod("blue", b.address(9)+"/32")
		s.keeper, s.ways = "-", map[string]string{"it must keep": "blue"}
		return s.found("in-use-unallocated", b.address(9))
	},
	"in-use-unallocated, of the node": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		l.lan("192.0.2.1/24")
		s.place(l, l.cni(b.network(netlab.PTP)), "web")
		l.awaitPod(b.first(), "web")
		l.sh("ip addr add " + b.address(9) + "/32 dev eth0")
		s.byHand["set rangeStart and rangeEnd"] = func() {
			l.cni(strings.Replace(b.network(netlab.PTP), b.prefix()+`"`, b.prefix()+`","rangeEnd":"`+b.address(8)+`"`, 1))
		}
		s.keeper = "node1"
		return s.found("in-use-unallocated", b.address(9))
	},
	"booked-elsewhere": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.place(l, l.cni(b.network(netlab.PTP)), "web", "db")
		l.awaitPod(b.first(), "web")
		reallocate(t, l, l.Path("/run/cni-ipam-state/kindnet/"+b.first()))
		s.keeper, s.ways = "web", map[string]string{"it is Ready": "-"}
		return s.found("booked-elsewhere", b.first())
	},
	"leaked": func(t *testing.T, b block) *scene {
		l := newLab(t, "--leaked-after", "1s")
		s := newScene(t, l)
		cni := l.cni(b.network(netlab.PTP))
		s.place(l, cni, "web", "db")
		l.awaitAllocations(2)
		l.sh("ip netns del web")
		delete(s.pods, "web")
		s.effects["crictl rmp"] = func() { // the runtime calls CNI DEL
			if err := os.Remove(l.Path("/run/cni-ipam-state/kindnet/" + b.first())); err != nil {
				t.Fatal(err)
			}
		}
		s.keeper, s.unreal = "-", []string{"it exists and is Ready"}
		return s.found("leaked", b.first())
	},
	"ipam-state-lost": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		cni := l.cni(b.network(netlab.PTP))
		s.place(l, cni, "web", "db")
		l.awaitPod(b.first(), "web")
		l.awaitPod(b.address(3), "db") // the plan cannot repair the record of a namespace without a name
		l.awaitAllocations(2)
		forgotten(t, cni)
		return s.found("ipam-state-lost", "")
	},
	"pool-exhaustion": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		conf := strings.ReplaceAll(b.network(netlab.PTP), b.prefix(), b.address(0)+"/29")
		s.place(l, l.cni(conf), "a", "b", "c", "d", "e")
		s.byHand["Give the network a larger range"] = func() { l.cni(b.network(netlab.PTP)) }
		return s.found("pool-exhaustion", "")
	},
	"ipam-unreadable": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.place(l, l.cni(b.network(netlab.Bridge)), "web")
		l.awaitAllocations(1)
		// In a container, the directory itself may be mounted without its parent.
		l.sh("mkdir /var/lib/kept", "mv /var/lib/cni/networks /var/lib/kept/", "mkdir /var/lib/cni/networks", "mount --bind /var/lib/kept/networks /var/lib/cni/networks")
		l.awaitAllocations(1)
		l.sh("mv /var/lib/kept/networks/cbr0 /var/lib/kept/cbr0", "rmdir /var/lib/kept/networks")
		s.byHand["Check whether the agent may read it"] = func() {
			l.sh("umount /var/lib/cni/networks", "mv /var/lib/kept/cbr0 /var/lib/cni/networks/")
		}
		return s.found("ipam-unreadable", "")
	},
	"double-allocated": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.place(l, l.cni(b.network(netlab.PTP)), "web")
		l.awaitPod(b.first(), "web")
		second := l.cni(strings.ReplaceAll(b.network(netlab.PTP), "kindnet", "other"))
		if err := os.MkdirAll(l.Path("/run/cni-ipam-state/other"), 0o755); err != nil {
			t.Fatal(err)
		}
		// A record that was copied from another node: its container does not exist on this one.
		record := l.Path("/run/cni-ipam-state/other/" + b.first())
		write(t, record, "restored\r\neth0")
		s.place(l, second, "db")
		s.byHand["if it no longer exists, remove its record"] = func() {
			if err := os.Remove(record); err != nil {
				t.Fatal(err)
			}
		}
		s.keeper, s.left = "web", []string{"ranges-overlap"} // the reason why it could happen
		return s.found("double-allocated", b.first())
	},
	"intended-not-observed": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.place(l, l.cni(b.network(netlab.PTP)), "web")
		l.awaitPod(b.first(), "web")
		l.sh("ip -n web addr flush dev eth0")
		s.keeper = "-"
		return s.found("intended-not-observed", b.first())
	},
	"shared-address-answered": func(t *testing.T, _ block) *scene {
		c := newCluster(t, 2, "--stale-after", "3s")
		s := newScene(t, c.lab, c.nodes...)
		out := c.shared()
		const addr = "192.0.2.200"
		out.machine("asker", "02:00:00:00:00:20", "192.0.2.20/24")
		for _, n := range c.nodes {
			n.sh("ip addr add " + addr + "/32 dev lo")
		}
		// The kernels announce the address until the remedy forbids it.
		talks(t, func() {
			for _, n := range c.nodes {
				if out, err := n.Run("sysctl -n net.ipv4.conf.all.arp_ignore"); err == nil && strings.TrimSpace(out) == "0" {
					n.announce("/eth0", addr)
				}
			}
		})
		s.byHand["--shared "+addr] = func() {
			c.program.Kill()
			c.flags = append(c.flags, "--shared", addr+"=anycast")
			c.serve()
			c.awaitNodes(c.nodes...)
		}
		return s.found("shared-address-answered", addr)
	},
	"answered-by-another": func(t *testing.T, _ block) *scene {
		c := newCluster(t, 2)
		s := newScene(t, c.lab, c.nodes...)
		c.shared()
		const addr = "192.0.2.2"
		c.nodes[0].sh("ip addr add " + addr + "/32 dev lo")
		s.byHand["Find out what has set it there"] = func() { c.nodes[0].sh("ip addr del " + addr + "/32 dev lo") }
		return s.found("answered-by-another", addr)
	},
	"vip-held-elsewhere": func(t *testing.T, _ block) *scene {
		v := newVIPs(t)
		v.kubeVIP("node2")
		v.nodes[0].sh("ip addr add " + vip + "/32 dev eth0")
		s := newScene(t, v.lab, v.nodes...)
		s.incident(24)
		s.byHand["Find out whether node node2 answers"] = func() {}
		s.ways = map[string]string{"answers for it, or will": "-"}
		s.unreal = []string{"it will not"} // the finding remains
		return s.found("vip-held-elsewhere", vip)
	},
	"duplicate-node-name": func(t *testing.T, _ block) *scene {
		c := newCluster(t, 1)
		s := newScene(t, c.lab, c.nodes...)
		twin := c.addNode("node1")
		rename := func() {
			if twin.name == "node1" {
				twin.name = "node2"
				twin.again()
			}
		}
		s.byHand["Give all but one of them a unique hostname"] = rename
		s.byHand["Start all but one of the agents with a unique name"] = rename
		return s.found("duplicate-node-name", "")
	},
	"pod-cidr-overlap": func(t *testing.T, b block) *scene {
		c := newCluster(t, 2)
		s := newScene(t, c.lab, c.nodes...)
		conf := strings.Replace(b.network(netlab.PTP), "kindnet", "pods", 1)
		for i, n := range c.nodes {
			at := conf
			if i == 1 {
				at = strings.Replace(conf, b.prefix()+`"`, b.prefix()+`","rangeStart":"`+b.address(100)+`"`, 1)
			}
			s.place(n, n.cni(at), "web"+n.name)
			s.byHand["On node "+n.name+", remove that configuration"] = func() {
				n.cni(strings.Replace(conf, b.prefix(), b.other(), 1))
			}
			s.byHand["Restart the pods of node "+n.name] = func() {
				delete(s.held, n.name) // DaemonSet pods start on a cordoned node; other pods wait
				s.end("web" + n.name)
			}
		}
		s.unreal = []string{"Node.spec.podCIDRs of both nodes"}
		return s.found("pod-cidr-overlap", "")
	},
	"ranges-overlap": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		conf := map[string]string{
			"net0": strings.NewReplacer("kindnet", "net0").Replace(b.network(netlab.PTP)),
			"net1": strings.NewReplacer("kindnet", "net1", b.prefix()+`"`, b.prefix()+`","rangeStart":"`+b.address(100)+`"`).Replace(b.network(netlab.PTP)),
		}
		for net, text := range conf {
			s.place(l, l.cni(text), "web"+net)
			s.byHand["Give network "+net] = func() { l.cni(strings.ReplaceAll(text, fmt.Sprintf("198.19.%d.", b), fmt.Sprintf("198.19.%d.", b+1))) }
			s.byHand["Restart the pods of network "+net] = func() { s.end("web" + net) }
			s.byHand["remove the configuration of network "+net] = func() {
				s.remove("web" + net) // the network has no pods
				l.sh("rm /etc/cni/net.d/" + net + ".conflist")
			}
		}
		s.byHand["--shared CIDR"] = func() {
			l.agent.Kill()
			l.start("--node", "node1", "--shared", b.prefix()+"=two")
			l.awaitAllocations(2)
		}
		return s.found("ranges-overlap", "")
	},
}

func TestRemedyOfEachFindingEndsIt(t *testing.T) {
	t.Parallel()
	for name, build := range findingScenes {
		t.Run(name, func(t *testing.T) { t.Parallel(); carriedOut(t, build) })
	}
}

// apiOf serves, on the host, the part of the Kubernetes API that describes node1 and its
// pods. It returns a kubeconfig.
func apiOf(t *testing.T, h *netlab.Host, pods ...string) string {
	t.Helper()
	a, kubeconfig := serveAPI(t, h)
	a.put(t, "nodes", "", "node1", "{}")
	for _, pod := range pods {
		a.put(t, "pods", "default", pod, `{"spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}`)
	}
	return kubeconfig
}
