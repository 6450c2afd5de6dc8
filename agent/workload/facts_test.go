package workload

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/tests/agenttest"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestEachFieldIsFromTheBestSourceThatHasIt(t *testing.T) {
	runtime := &Sandbox{ID: "sandbox", Workload: &ipwitnessv1.Workload{
		Kind: ipwitnessv1.Workload_POD, Namespace: "shop", Name: "by-cri", Uid: "u-cri", ContainerId: "c-cri", VirtualMachine: "vm1", Source: "cri",
	}}
	runtimeWithout := &Sandbox{ID: "sandbox", Workload: &ipwitnessv1.Workload{
		Kind: ipwitnessv1.Workload_POD, Namespace: "shop", Name: "by-cri", Source: "cri",
	}}
	result := &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Namespace: "net", Name: "by-cni", Uid: "u-cni", ContainerId: "c-cni", Source: "cni-result"}
	resultWithout := &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Namespace: "net", Name: "by-cni", Source: "cni-result"}
	person := &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_UNKNOWN, Name: "blue", Source: "netns"}
	generatedName := &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_CONTAINER, Name: "cni-" + agenttest.PodUID, Source: "netns"}
	cgroup := Container{ID: "c-cgroup", Pod: "u-cgroup"}
	pause := Process{PID: 7, Name: "pause"}
	for name, c := range map[string]struct {
		facts facts
		want  string
	}{
		"nothing":                 {facts{}, "nothing"},
		"all":                     {facts{sandbox: runtime, result: result, file: person, container: cgroup, process: pause}, "POD shop/by-cri u-cri c-cri vm1 pause (7) by cri, process:process"},
		"runtime alone":           {facts{sandbox: runtime}, "POD shop/by-cri u-cri c-cri vm1  by cri"},
		"runtime without ids":     {facts{sandbox: runtimeWithout, result: result}, "POD shop/by-cri u-cni c-cni   by cri, containerId:cni-result uid:cni-result"},
		"ids of the cgroup":       {facts{sandbox: runtimeWithout, result: resultWithout, container: cgroup, process: pause}, "POD shop/by-cri u-cgroup c-cgroup  pause (7) by cri, containerId:cgroup process:process uid:cgroup"},
		"no runtime":              {facts{result: result, file: generatedName, container: cgroup, process: pause}, "POD net/by-cni u-cni c-cni  pause (7) by cni-result, process:process"},
		"result without ids":      {facts{result: resultWithout, container: cgroup}, "POD net/by-cni u-cgroup c-cgroup   by cni-result, containerId:cgroup uid:cgroup"},
		"person":                  {facts{file: person, container: Container{ID: "c-cgroup"}, process: pause}, "CONTAINER /blue  c-cgroup  pause (7) by netns, containerId:cgroup process:process"},
		"made up, and a cgroup":   {facts{file: generatedName, container: cgroup, process: pause}, "POD / u-cgroup c-cgroup  pause (7) by cgroup, process:process"},
		"made up, and no cgroup":  {facts{file: generatedName, process: pause}, "CONTAINER /cni-" + agenttest.PodUID + "    pause (7) by netns, process:process"},
		"cgroup":                  {facts{container: cgroup, process: pause}, "POD / u-cgroup c-cgroup  pause (7) by cgroup, process:process"},
		"process that has ended":  {facts{file: person, process: Process{PID: 7, Name: "sh", Ended: true}}, "UNKNOWN /blue    sh (7, ended) by netns, process:process"},
		"process":                 {facts{process: pause}, "UNKNOWN /    pause (7) by process"},
		"runtime, and its result": {facts{sandbox: runtimeWithout}.with(facts{result: result}), "POD shop/by-cri u-cni c-cni   by cri, containerId:cni-result uid:cni-result"},
		"result, and its runtime": {facts{result: result, file: generatedName}.with(facts{sandbox: runtime}), "POD shop/by-cri u-cri c-cri vm1  by cri"},
		"nothing more is said":    {facts{sandbox: runtime, result: result, file: person}.with(facts{}), "POD shop/by-cri u-cri c-cri vm1  by cri"},
	} {
		t.Run(name, func(t *testing.T) {
			got := "nothing"
			before := fmt.Sprint(runtime.Workload, runtimeWithout.Workload, result, resultWithout, person, generatedName)
			if w := c.facts.workload(); w != nil {
				got = fmt.Sprintf("%s %s/%s %s %s %s %s by %s", w.GetKind(), w.GetNamespace(), w.GetName(), w.GetUid(), w.GetContainerId(), w.GetVirtualMachine(), w.GetProcess(), w.GetSource())
				if len(w.GetSources()) > 0 {
					got += ", " + strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(w.GetSources()), "map["), "]")
				}
			}
			if p := c.facts.process; uint32(p.PID) != c.facts.workload().GetProcessId() || p.Ended != c.facts.workload().GetProcessEnded() {
				t.Errorf("process: got %v, want %v", c.facts.workload(), p)
			}
			if got != c.want {
				t.Errorf("name: got  %q\n          want %q", got, c.want)
			}
			if after := fmt.Sprint(runtime.Workload, runtimeWithout.Workload, result, resultWithout, person, generatedName); after != before {
				t.Errorf("shared facts were changed: got %s, want %s", after, before)
			}
		})
	}
}

// say sets the sandboxes that the container runtime reports.
func say(n *Names, all ...*Sandbox) { n.sandboxes = func() []*Sandbox { return all } }

// sandboxNamed returns a sandbox with the given first process.
func sandboxNamed(name string, p Process, ips ...string) *Sandbox {
	s := &Sandbox{ID: "id-" + name, Process: p, Workload: &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Namespace: "shop", Name: name, Source: "cri"}}
	for _, ip := range ips {
		s.IPs = append(s.IPs, netip.MustParseAddr(ip))
	}
	return s
}

// name returns the name of a namespace and its source.
func (n *testNames) name(inode uint64) string {
	w := agenttest.Workload(n.table, inode)
	return fmt.Sprint(w.GetName(), " by ", w.GetSource())
}

func TestSandboxIsFoundByPathProcessOrCgroup(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cni-1")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal("mount a namespace, which needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	inode, err := namespaceInode(path)
	if err != nil {
		t.Fatal(err)
	}
	n, p := newTestNames(t, inode, 100, 200, 300)
	n.netnsDirs = []string{dir}
	p.Put(40, 2, "pause", 600, 100, "/")
	p.Put(50, 2, "pause", 700, 200, "/docker/"+agenttest.InnerID)
	byPath, byProcess, byCgroup := sandboxNamed("by-path", Process{}), sandboxNamed("by-process", Process{PID: 40, Start: 600}), sandboxNamed("by-cgroup", Process{})
	byPath.Path, byCgroup.ID = path, agenttest.InnerID
	say(n.Names, byPath, byProcess, byCgroup)
	n.Look(true)
	for inode, want := range map[uint64]string{inode: "by-path by cri", 100: "by-process by cri", 200: "by-cgroup by cri", 300: " by "} {
		if got := n.name(inode); got != want {
			t.Errorf("namespace %d: got %q, want %q", inode, got, want)
		}
	}
	// A pod in the namespace of the node.
	p.Put(60, 2, "pause", 800, n.kernel.OwnInode(), "/")
	if got := n.sandboxInode(sandboxNamed("host", Process{PID: 60, Start: 800}), nil); got != 0 {
		t.Errorf("sandbox in the namespace of the node: got inode %d, want none", got)
	}
	// The PID belongs to another process now.
	p.Put(40, 2, "other", 900, 300, "/")
	say(n.Names, byPath, byProcess, byCgroup, sandboxNamed("stale", Process{PID: 40, Start: 600}))
	n.Look(true)
	if got := n.name(300); got != " by process" {
		t.Errorf("namespace of another process: got %q, want no name", got)
	}
	// If the runtime forgets a sandbox whose namespace still exists, the name remains.
	say(n.Names)
	n.Look(true)
	if got := n.name(100); got != "by-process by cri" {
		t.Errorf("namespace of a forgotten sandbox: got %q, want its name", got)
	}
}

func TestRuntimeIsAskedForNamespacesWithoutASandbox(t *testing.T) {
	n, p := newTestNames(t, 100, 200)
	var unnamed []uint64 // inodes
	n.unnamed = func(numbers []uint64) {
		unnamed = nil
		for inode, number := range n.kernel.OurInodes() {
			if slices.Contains(numbers, number) {
				unnamed = append(unnamed, inode)
			}
		}
		slices.Sort(unnamed)
	}
	p.Put(40, 2, "pause", 600, 100, "/")
	n.Look(true)
	if !slices.Equal(unnamed, []uint64{100, 200}) {
		t.Errorf("namespaces without a sandbox: got %v, want both", unnamed)
	}
	say(n.Names, sandboxNamed("web-0", Process{PID: 40, Start: 600}))
	n.Look(false)
	if !slices.Equal(unnamed, []uint64{200}) {
		t.Errorf("namespaces without a sandbox: got %v, want 200", unnamed)
	}
}

func TestRuntimeNamesTheNetworkOfPods(t *testing.T) {
	n, p := newTestNames(t, 100)
	p.Put(40, 2, "pause", 600, 100, "/")
	n.kernel.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 1, Address: agenttest.Address(2, "10.0.0.2/24")})
	n.kernel.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 1, Address: agenttest.Address(2, "10.0.0.9/24")})
	say(n.Names, sandboxNamed("web-0", Process{PID: 40, Start: 600}, "10.0.0.2", "10.0.0.3"))
	n.Look(true)
	wantNetworks(t, n.table, "10.0.0.2 ASSIGNED cri, 10.0.0.9 ASSIGNED ")
	say(n.Names) // the addresses of a forgotten sandbox remain
	n.Look(true)
	wantNetworks(t, n.table, "10.0.0.2 ASSIGNED cri, 10.0.0.9 ASSIGNED ")
}

func TestNetworkOfTheCNIResultIsPreferredToTheRuntimes(t *testing.T) {
	n := &Names{cni: newCNICache(nil, "", nil)}
	s := sandboxNamed("web-0", Process{}, "10.0.0.2", "10.0.0.3")
	say(n, s)
	g := func(iface, ip string) kernel.InterfaceAddress {
		return kernel.InterfaceAddress{Interface: iface, Addr: netip.MustParseAddr(ip)}
	}
	n.cni.results["x"] = cniFile{
		workload: &ipwitnessv1.Workload{Source: "cni-result"},
		networks: map[string]kernel.Networks{"/p": {g("eth0", "10.0.0.2"): {Name: "pods"}, g("net1", "10.1.0.2"): {Name: "storage"}}},
	}
	assigned, intended := n.assignments(map[string]uint64{"/p": 100}, map[uint64]facts{100: {sandbox: s}})
	if want := (kernel.Networks{g("eth0", "10.0.0.2"): {Name: "pods"}, g("eth0", "10.0.0.3"): {Name: "cri"}, g("net1", "10.1.0.2"): {Name: "storage"}}); !maps.Equal(assigned[100], want) {
		t.Errorf("networks: got %v, want %v", assigned[100], want)
	}
	if want := (kernel.Intended{g("eth0", "10.0.0.2"): "cri", g("eth0", "10.0.0.3"): "cri", g("net1", "10.1.0.2"): "cni-result"}); !maps.Equal(intended[100], want) {
		t.Errorf("meant: got %v, want %v", intended[100], want)
	}
}

// The container runtime calls Multus only, which calls the plugins that assign addresses to a
// pod.
func TestNetworksOfMultusAreThoseOfItsDelegates(t *testing.T) {
	n := &Names{cni: newCNICache(nil, "", nil)}
	say(n)
	g := func(iface, ip string) kernel.InterfaceAddress {
		return kernel.InterfaceAddress{Interface: iface, Addr: netip.MustParseAddr(ip)}
	}
	of := func(addrs kernel.Networks) cniFile {
		return cniFile{workload: &ipwitnessv1.Workload{Source: "cni-result"}, networks: map[string]kernel.Networks{"/p": addrs}}
	}
	n.cni.results["multus-cni-network-x-eth0"] = of(kernel.Networks{g("eth0", "10.0.0.2"): {Name: "multus-cni-network"}, g("eth0", "fd00::2"): {Name: "multus-cni-network"}})
	n.cni.results[ofMultus+"pods-x-eth0"] = of(kernel.Networks{g("eth0", "10.0.0.2"): {Name: "pods"}})
	n.cni.results[ofMultus+"storage-x-net1"] = of(kernel.Networks{g("net1", "10.1.0.2"): {Name: "storage"}})
	assigned, intended := n.assignments(map[string]uint64{"/p": 100}, map[uint64]facts{})
	if want := (kernel.Networks{g("eth0", "10.0.0.2"): {Name: "pods"}, g("eth0", "fd00::2"): {Name: "multus-cni-network"}, g("net1", "10.1.0.2"): {Name: "storage"}}); !maps.Equal(assigned[100], want) {
		t.Errorf("networks: got %v, want %v", assigned[100], want)
	}
	// net1 may be a user-space device, so its address is not expected.
	if want := (kernel.Intended{g("eth0", "10.0.0.2"): "cni-result", g("eth0", "fd00::2"): "cni-result"}); !maps.Equal(intended[100], want) {
		t.Errorf("meant: got %v, want %v", intended[100], want)
	}
}

func TestSearchHasOneTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Names{changed: make(chan struct{}, 1)}
		after := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := len(n.changed); got != want {
				t.Errorf("wake-ups: got %d, want %d", got, want)
			}
			if want == 1 {
				<-n.changed
			}
		}
		const moment = time.Millisecond
		for range 2 {
			n.wakeAfter(time.Second)
			n.wakeAfter(2 * time.Second)
			after(time.Second-moment, 0)
			after(2*moment, 1)
			after(time.Second, 0)
		}
	})
}
