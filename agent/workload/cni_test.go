package workload

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestCNIResultNamesThePodOfASandbox(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		want  *ipwitnessv1.Workload
		netns []string
	}{
		"Kubernetes": {
			`{"kind":"cniCacheV1","containerId":"abc","ifName":"eth0","networkName":"kindnet","netns":"/var/run/netns/cni-1",
			  "cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web-0"],["K8S_POD_UID","u1"]],
			  "result":{"interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/var/run/netns/cni-1"}]}}`,
			&ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Namespace: "shop", Name: "web-0", Uid: "u1", ContainerId: "abc", Source: "cni-result"},
			[]string{"/run/netns/cni-1"},
		},
		"podman": {
			`{"kind":"cniCacheV1","containerId":"abc","result":{"interfaces":[{"name":"eth0","sandbox":"/run/netns/cni-2"}]}}`,
			&ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_CONTAINER, Name: "abc", ContainerId: "abc", Source: "cni-result"},
			[]string{"/run/netns/cni-2"},
		},
		"no interfaces": {
			`{"kind":"cniCacheV1","containerId":"abc","netns":"/var/run/netns/cni-3","result":{"ip4":{"ip":"10.0.0.2/24"}}}`,
			&ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_CONTAINER, Name: "abc", ContainerId: "abc", Source: "cni-result"},
			[]string{"/run/netns/cni-3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := parseResult([]byte(c.file))
			if err != nil {
				t.Fatal(err)
			}
			if f.workload.String() != c.want.String() {
				t.Errorf("workload: got %v, want %v", f.workload, c.want)
			}
			if got := slices.Compact(f.netns); !slices.Equal(got, c.netns) {
				t.Errorf("namespaces: got %v, want %v", got, c.netns)
			}
		})
	}
	for _, junk := range []string{"", "null", "[]", `{"cniArgs":[["a"]]}`, `{"result":7}`} {
		if f, err := parseResult([]byte(junk)); err == nil && len(f.netns) != 0 {
			t.Errorf("result %q: got namespaces %v", junk, f.netns)
		}
	}
}

// The plugin host-device copies the addresses of the device that it moves if it is told to.
func TestCNIResultSaysThatAnAddressWasTakenAlong(t *testing.T) {
	for name, c := range map[string]struct {
		config any
		want   bool
	}{
		"of another form":  {map[string]any{"type": "host-device", "useInterfaceNetwork": true}, false},
		"told to":          {[]byte(`{"name":"lan","plugins":[{"type":"host-device","device":"eth1","useInterfaceNetwork":true},{"type":"tuning"}]}`), true},
		"one plugin":       {[]byte(`{"name":"lan","type":"host-device","device":"eth1","useInterfaceNetwork":true}`), true},
		"by IPAM":          {[]byte(`{"name":"lan","plugins":[{"type":"host-device","device":"eth1","ipam":{"type":"static"}}]}`), false},
		"another plugin":   {[]byte(`{"name":"lan","plugins":[{"type":"macvlan","useInterfaceNetwork":true}]}`), false},
		"no configuration": {[]byte(``), false},
		"junk":             {[]byte(`[1`), false},
	} {
		file, err := json.Marshal(map[string]any{
			"kind": "cniCacheV1", "containerId": "abc", "networkName": "lan", "ifName": "net1", "netns": "/run/netns/a", "config": c.config,
			"cniArgs": [][]string{{"K8S_POD_NAME", "web-0"}}, "result": map[string]any{"ips": []map[string]any{{"address": "192.0.2.7/24"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		f, err := parseResult(file)
		got := f.networks["/run/netns/a"][kernel.InterfaceAddress{Interface: "net1", Addr: netip.MustParseAddr("192.0.2.7")}]
		if want := (table.Network{Name: "lan", TakenAlong: c.want}); err != nil || got != want {
			t.Errorf("%s: got %+v and error %v, want %+v", name, got, err, want)
		}
	}
}

func TestInvalidCNIResultIsAnError(t *testing.T) {
	for _, junk := range []string{"", "[]", "{", `{"result":7}`, `{"cniArgs":"a"}`} {
		if f, err := parseResult([]byte(junk)); err == nil {
			t.Errorf("result %q: got %+v, want an error", junk, f)
		}
	}
}

func TestCNIResultWithAnOverlongNameIsRejected(t *testing.T) {
	longest := strings.Repeat("x", table.MaxLength)
	if f, err := parseResult([]byte(`{"containerId":"` + longest + `"}`)); err != nil || f.workload.GetContainerId() != longest {
		t.Errorf("longest name: got %.60v and error %v, want it", f.workload, err)
	}
	long := longest + "x"
	for _, file := range []string{
		`{"containerId":"` + long + `"}`, `{"cniArgs":[["K8S_POD_NAMESPACE","` + long + `"]]}`,
		`{"cniArgs":[["K8S_POD_NAME","` + long + `"]]}`, `{"cniArgs":[["K8S_POD_UID","` + long + `"]]}`,
	} {
		if f, err := parseResult([]byte(file)); err == nil {
			t.Errorf("%.40s…: got %.60v, want an error: the aggregator would refuse the whole message", file, f.workload)
		}
	}
}

// The results are embedded because the tests also run without the source tree.
//
//go:embed testdata/cni
var results embed.FS

// realResult returns libcni's cached result of a pod that the real bridge plugin set up.
func realResult(t *testing.T, version string) string {
	t.Helper()
	data, err := results.ReadFile("testdata/cni/" + version + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCNIResultNamesTheNetworkOfAnAddress(t *testing.T) {
	real := func(version string) string { return realResult(t, version) }
	// pod returns the file that libcni would write for a pod with the given result.
	pod := func(network, result string) string {
		return `{"kind":"cniCacheV1","containerId":"abc","ifName":"eth0","networkName":"` + network + `","netns":"/var/run/netns/cni-1",
			"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web-0"]],"result":` + result + `}`
	}
	const eth0 = `{"interfaces":[{"name":"cbr0"},{"name":"eth0","sandbox":"/var/run/netns/cni-1"}],"ips":[{"interface":1,"address":"10.0.0.2/24"}]}`
	for name, c := range map[string]struct{ file, want string }{
		"version 0.2.0": {real("0.2.0"), "/run/netns/cni-0.2.0 eth0 10.242.0.2 pods-0.2.0"},
		"version 0.3.1": {real("0.3.1"), "/run/netns/cni-0.3.1 eth0 10.243.0.2 pods-0.3.1, /run/netns/cni-0.3.1 eth0 fd00:243::2 pods-0.3.1"},
		"version 0.4.0": {real("0.4.0"), "/run/netns/cni-0.4.0 eth0 10.244.0.2 pods-0.4.0, /run/netns/cni-0.4.0 eth0 fd00:244::2 pods-0.4.0"},
		"version 1.0.0": {real("1.0.0"), "/run/netns/cni-1.0.0 eth0 10.240.0.2 pods-1.0.0, /run/netns/cni-1.0.0 eth0 fd00:240::2 pods-1.0.0"},
		"version 1.1.0": {real("1.1.0"), "/run/netns/cni-1.1.0 eth0 10.241.0.2 pods-1.1.0, /run/netns/cni-1.1.0 eth0 fd00:241::2 pods-1.1.0"},
		"no pod": {
			strings.ReplaceAll(real("1.0.0"), "K8S_POD_NAME\"", "OTHER\""),
			"",
		},
		"version 0.2.0, IPv6": {pod("net", `{"ip6":{"ip":"fd00::2/64"}}`), "/run/netns/cni-1 eth0 fd00::2 net"},
		"no index of an interface": {
			pod("net", `{"interfaces":[{"name":"x","sandbox":"/run/netns/cni-1"}],"ips":[{"address":"10.0.0.2/24"}]}`),
			"/run/netns/cni-1 eth0 10.0.0.2 net",
		},
		"interfaces in two sandboxes": {
			pod("net", `{"interfaces":[{"name":"net1","sandbox":"/run/netns/a"},{"name":"net2","sandbox":"/var/run/netns/b"}],
				"ips":[{"interface":0,"address":"10.0.0.2/24"},{"interface":1,"address":"10.0.0.3/24"}]}`),
			"/run/netns/a net1 10.0.0.2 net, /run/netns/b net2 10.0.0.3 net",
		},
		"address of the host's end": {pod("net", `{"interfaces":[{"name":"veth0"}],"ips":[{"interface":0,"address":"10.0.0.2/24"}]}`), ""},
		"index that is none":        {pod("net", `{"interfaces":[],"ips":[{"interface":0,"address":"10.0.0.2/24"},{"interface":-1,"address":"10.0.0.3/24"}]}`), ""},
		"interface that is none":    {pod("net", `{"interfaces":[{"name":"`+strings.Repeat("x", 16)+`","sandbox":"/run/netns/a"}],"ips":[{"interface":0,"address":"10.0.0.2/24"}]}`), ""},
		"address that is none":      {pod("net", `{"ips":[{"address":"10.0.0.2"},{"address":""}]}`), ""},
		"a pod of Kubernetes":       {pod("kindnet", eth0), "/run/netns/cni-1 eth0 10.0.0.2 kindnet"},
		"podman's own network":      {pod("podman", eth0), ""},
		"another one of podman":     {pod("net", strings.Replace(eth0, "cbr0", "cni-podman1", 1)), ""},
		"loopback":                  {pod("cni-loopback", `{"interfaces":[{"name":"lo","sandbox":"/run/netns/a"}],"ips":[{"interface":0,"address":"127.0.0.1/8"},{"interface":0,"address":"::1/128"}]}`), ""},
		"no name":                   {pod("", eth0), ""},
		"no name of a network":      {pod("a/b", eth0), ""},
		"name of the most letters":  {pod(strings.Repeat("a", 253), eth0), "/run/netns/cni-1 eth0 10.0.0.2 " + strings.Repeat("a", 253)},
		"name with one more":        {pod(strings.Repeat("a", 254), eth0), ""},
		"pod's own cni-podman0":     {pod("net", strings.ReplaceAll(eth0, "eth0", "cni-podman0")), "/run/netns/cni-1 cni-podman0 10.0.0.2 net"},
		"longest interface":         {pod("net", strings.ReplaceAll(eth0, "eth0", "fifteen-letters")), "/run/netns/cni-1 fifteen-letters 10.0.0.2 net"},
		"interface without a name":  {pod("net", strings.ReplaceAll(eth0, "eth0", "")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := parseResult([]byte(c.file))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for path, addrs := range f.networks {
				for g, network := range addrs {
					got = append(got, fmt.Sprint(path, " ", g.Interface, " ", g.Addr, " ", network.Name))
				}
			}
			slices.Sort(got)
			if text := strings.Join(got, ", "); text != c.want {
				t.Errorf("networks: got %q, want %q", text, c.want)
			}
		})
	}
}

func TestResultsOfTheCacheReachTheClaims(t *testing.T) {
	dir := t.TempDir()
	sandbox := filepath.Join(dir, "cni-1.0.0")
	if err := os.WriteFile(sandbox, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/ns/net", sandbox, "", unix.MS_BIND, ""); err != nil {
		t.Fatal("mount a namespace, which needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(sandbox, unix.MNT_DETACH) })
	inode, err := namespaceInode(sandbox)
	if err != nil {
		t.Fatal(err)
	}
	n, _ := newTestNames(t, inode)
	n.netnsDirs = []string{dir}
	n.kernel.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 1, Address: agenttest.Address(2, "10.240.0.2/24")})
	if err := os.Mkdir(n.cni.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.cni.dir, "pods-1.0.0-x-eth0")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(realResult(t, "1.0.0"), "/run/netns/cni-1.0.0", sandbox)), 0o600); err != nil {
		t.Fatal(err)
	}
	// Multus' result is for the same sandbox, but it does not name the pod.
	if err := os.MkdirAll(n.cni.multusDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	ofMultus := fmt.Sprintf(`{"netns":%q,"cniArgs":[["K8S_POD_NAME","multus"]]}`, sandbox)
	if err := os.WriteFile(filepath.Join(n.cni.multusDir(), "pods-x-eth0"), []byte(ofMultus), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Look(true)
	if got := n.name(inode); got != "web-0 by cni-result" {
		t.Errorf("name of the pod: got %q, want web-0 by cni-result", got)
	}
	wantNetworks(t, n.table, "10.240.0.2 ASSIGNED pods-1.0.0")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.Look(true) // the namespace exists, and the result assigns its address
	wantNetworks(t, n.table, "10.240.0.2 ASSIGNED pods-1.0.0")
}

func TestResultsOfMultusAreRead(t *testing.T) {
	n, _ := newTestNames(t)
	write := func(dir, pod string) {
		t.Helper()
		for _, err := range []error{
			os.MkdirAll(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "pods-x-eth0"), []byte(`{"netns":"/run/netns/a","cniArgs":[["K8S_POD_NAME","`+pod+`"]]}`), 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func() (names []string) {
		if err := n.cni.read(); err != nil {
			t.Fatal(err)
		}
		for name, f := range n.cni.results {
			names = append(names, name+" "+f.workload.GetName())
		}
		slices.Sort(names)
		return names
	}
	write(n.cni.multusDir(), "one")
	if got, want := read(), []string{"multus/pods-x-eth0 one"}; !slices.Equal(got, want) {
		t.Errorf("without the runtime's cache: got %q, want %q", got, want)
	}
	write(n.cni.dir, "two")
	write(n.cni.multusDir(), "three")
	if got, want := read(), []string{"multus/pods-x-eth0 three", "pods-x-eth0 two"}; !slices.Equal(got, want) {
		t.Errorf("with both: got %q, want %q", got, want)
	}
	if err := os.RemoveAll(n.cni.multusDir()); err != nil {
		t.Fatal(err)
	}
	if got, want := read(), []string{"pods-x-eth0 two"}; !slices.Equal(got, want) {
		t.Errorf("without Multus: got %q, want %q", got, want)
	}
}

// Multus may be installed after the agent has started.
func TestResultsOfMultusAreWatched(t *testing.T) {
	n, _ := newTestNames(t)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- n.cni.watch(ctx, n.lacks) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(n.cni.multusDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	again := time.NewTicker(10 * time.Millisecond) // repeat, because the test cannot see when the directory is watched
	defer again.Stop()
	for _, name := range []string{"one", "another"} {
		for n.cni.results[ofMultus+"pods-x-eth0"].workload.GetName() != name {
			if err := os.WriteFile(filepath.Join(n.cni.multusDir(), "pods-x-eth0"), []byte(`{"netns":"/run/netns/a","cniArgs":[["K8S_POD_NAME","`+name+`"]]}`), 0o600); err != nil {
				t.Fatal(err)
			}
			select {
			case <-n.changed:
				if err := n.cni.read(); err != nil {
					t.Fatal(err)
				}
			case <-again.C:
			}
		}
	}
}

func TestUnchangedResultIsReadOnce(t *testing.T) {
	n, _ := newTestNames(t)
	file := filepath.Join(n.cni.dir, "pods-x-eth0")
	write := func(name string) {
		t.Helper()
		for _, err := range []error{
			os.MkdirAll(n.cni.dir, 0o700),
			os.WriteFile(file, []byte(`{"netns":"/run/netns/a","cniArgs":[["K8S_POD_NAME","`+name+`"]]}`), 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func() *ipwitnessv1.Workload {
		if err := n.cni.read(); err != nil {
			t.Fatal(err)
		}
		return n.cni.results["pods-x-eth0"].workload
	}
	write("web-0")
	first := read()
	if again := read(); again != first || first.GetName() != "web-0" {
		t.Errorf("unchanged result: got %v and then %v, want it to be read once", first, again)
	}
	write("web-10")
	if got := read(); got.GetName() != "web-10" {
		t.Errorf("replaced result: got %v, want web-10", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != nil {
		t.Errorf("removed result: got %v, want none", got)
	}
}

// A file that stays without a result is named; one that is just being written is not.
func TestDamagedResultsAreNamed(t *testing.T) {
	const whole = `{"kind":"cniCacheV1","containerId":"abc","netns":"/run/netns/a"}`
	dir := t.TempDir()
	c := newCNICache(slog.New(slog.DiscardHandler), dir, func() {})
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(what, want string) {
		t.Helper()
		if err := c.read(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.damage()); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	pass := func() {
		for name, b := range c.broken {
			c.broken[name] = broken{b.version, b.err, b.since.Add(-writtenWithin)}
		}
	}
	write("a", whole)
	write("half", whole[:20])
	write("later", `{"kind":"cniCacheV2"}`)
	read("read once", "<nil>")
	write("half", whole)
	pass()
	read("one is complete now", `1 files, such as `+filepath.Join(dir, "later")+`: parse CNI result: the kind "cniCacheV2" is not known`)
	write("empty", "")
	read("another one is empty", "1 files")
	pass()
	read("another one stays empty", "2 files, such as "+filepath.Join(dir, "empty"))
	for _, name := range []string{"later", "empty"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	read("they are removed", "<nil>")
	if len(c.results) != 2 {
		t.Errorf("got results %v, want two", c.results)
	}
	const pod = `{"kind":"cniCacheV1","containerId":"p","netns":"/run/netns/p","ifName":"eth0","networkName":"n","cniArgs":[["K8S_POD_NAME","p"]],"result":{"ips":[{"address":"ADDRESS"}]}}`
	write("pod", strings.ReplaceAll(pod, "ADDRESS", "banana"))
	read("an address cannot be parsed", `1 files, such as `+filepath.Join(dir, "pod")+`: parse CNI result: "banana" is not an address`)
	if c.results["pod"].workload.GetName() != "p" {
		t.Error("got no name from a result with an address that cannot be parsed, want one")
	}
	write("pod", strings.ReplaceAll(pod, "ADDRESS", "10.0.0.2/24"))
	read("it is one now", "<nil>")
}
