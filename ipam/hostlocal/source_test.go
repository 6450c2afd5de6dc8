package hostlocal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

// ptp returns the configuration of a network with one range.
func (l *lab) ptp(network, subnet string) string {
	return fmt.Sprintf(`{"name":%q,"type":"ptp","ipam":{"type":"host-local","dataDir":%q,"subnet":%q}}`, network, l.dir, subnet)
}

// first returns the first address of a network's first range.
func (l *lab) first(network string) string {
	if r := l.pool(network).Ranges; len(r) > 0 {
		return r[0].First.String()
	}
	return ""
}

func TestPoolsFollowTheConfigurations(t *testing.T) {
	l := newLab(t)
	l.allocate("pods", "10.1.0.2", "c")
	l.configure("20-pods.conf", l.ptp("pods", "10.2.0.0/24"))
	l.configure("10-other.conf", l.ptp("other", "10.9.0.0/24"))
	l.look()
	if p := l.pool("pods"); l.first("pods") != "10.2.0.2" || p.Plugin != "ptp" || !p.Routed || p.Config != l.conf+"/20-pods.conf" || len(p.Gateways) != 1 || p.State != ipam.Known {
		t.Errorf("pool with a configuration: got %+v", p)
	}
	if p := l.pool("other"); p.State != ipam.Missing || p.Lost != 0 || l.first("other") != "10.9.0.2" || !strings.Contains(p.Problem, "the directory does not exist") {
		t.Errorf("network without allocations: got %+v", p)
	}
	l.configure("15-pods.conflist", l.ptp("pods", "10.3.0.0/24"))
	if l.look(); l.first("pods") != "10.3.0.2" {
		t.Errorf("two configurations of a network: got %s, want the range of the first", l.first("pods"))
	}
	l.must(os.Remove(filepath.Join(l.conf, "15-pods.conflist")))
	l.configure("20-pods.conf", `{"name":`)
	l.look()
	if problems := l.source.Problems(); l.first("pods") != "10.2.0.2" || len(problems) != 1 || !strings.Contains(problems[0], "20-pods.conf (parse JSON: ") {
		t.Errorf("configuration that cannot be parsed: got %s, problems %q, want the previous range", l.first("pods"), problems)
	}
	l.host.Broken[l.conf] = os.ErrPermission
	l.look()
	if problems := l.source.Problems(); l.first("pods") != "10.2.0.2" || l.first("other") != "10.9.0.2" || len(problems) != 1 || !strings.Contains(problems[0], "cannot read the CNI configurations (permission denied)") {
		t.Errorf("configurations that cannot be read: got %s and %s, problems %q, want the previous ranges", l.first("pods"), l.first("other"), problems)
	}
	clear(l.host.Broken)
	l.must(os.RemoveAll(filepath.Join(l.root, "etc")))
	l.look()
	if p := l.pool("pods"); len(p.Ranges) != 0 || p.Routed || p.Config != "" || len(l.addresses("pods")) != 1 || len(l.source.Problems()) != 0 {
		t.Errorf("pool without a configuration: got %+v, problems %q", p, l.source.Problems())
	}
	if _, ok := l.allocations[l.path("other")]; ok {
		t.Error("network without configuration and directory: got a pool, want none")
	}
}

// nomadBridge is the configuration of Nomad's bridge, which is in no file.
func (l *lab) nomadBridge(subnet string) string {
	return fmt.Sprintf(`{"cniVersion":"0.4.0","name":"nomad","plugins":[{"type":"loopback"},{"type":"bridge","bridge":"nomad","ipMasq":true,
		"isGateway":true,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":%q}]]}},{"type":"firewall"}]}`, l.dir, subnet)
}

func TestConfigurationThatACallerPassesIsInItsResults(t *testing.T) {
	l := newLab(t)
	l.allocate("nomad", "172.26.64.2", "alloc")
	l.result("nomad-other", "c", l.ptp("nomad-other", "10.9.0.0/24"))
	path := l.result("nomad", "alloc", l.nomadBridge("172.26.64.0/20"))
	l.look()
	if p := l.pool("nomad"); l.first("nomad") != "172.26.64.2" || p.Device != "nomad" || !p.Routed || p.Config != "" || p.State != ipam.Known {
		t.Errorf("got %+v, want the range and bridge of Nomad", p)
	}
	l.must(os.Remove(filepath.Join(l.path("nomad"), "172.26.64.2")), os.Remove(path))
	if l.look(); l.first("nomad") != "172.26.64.2" {
		t.Errorf("last container deleted: got %q, want the range as long as the directory exists", l.first("nomad"))
	}
	l.configure("10-nomad.conf", l.ptp("nomad", "10.2.0.0/24"))
	l.result("nomad", "later", l.nomadBridge("172.26.64.0/20"))
	if l.look(); l.first("nomad") != "10.2.0.2" {
		t.Errorf("configuration in a file: got %q, want its range", l.first("nomad"))
	}
}

func TestResultThatWasLeftBehindIsNoConfiguration(t *testing.T) {
	l := newLab(t)
	l.allocate("nomad", "172.26.64.2", "alloc")
	l.result("nomad", "alloc", l.nomadBridge("172.26.64.0/20"))
	l.result("elsewhere", "c", l.ptp("elsewhere", "10.9.0.0/24")) // has no directory
	l.must(os.Remove(filepath.Join(l.root, "alloc")))
	l.look()
	if p := l.pool("nomad"); len(p.Ranges) != 0 || p.State != ipam.Known || len(l.source.Pools()) != 1 {
		t.Errorf("got %+v and %d pools, want one without a range: the namespace of its container is gone", p, len(l.source.Pools()))
	}
	l.result("nomad", "next", l.nomadBridge("172.26.64.0/20"))
	l.allocate("nomad", "172.26.64.3", "next")
	l.event("nomad", "172.26.64.3", false)
	if l.look(); l.first("nomad") != "172.26.64.2" {
		t.Errorf("next container: got %q, want its range", l.first("nomad"))
	}
}

func TestConfigurationIsInTheResultsOfItsOwnContainers(t *testing.T) {
	l := newLab(t)
	l.allocate("nomad", "172.26.64.2", "alloc")
	l.result("nomad", "alloc", l.nomadBridge("172.26.64.0/20"))
	for i := range 2 * maxRead {
		l.result("nomad-web", fmt.Sprint("c", i), l.ptp("nomad-web", "10.9.0.0/24"))
	}
	l.allocate("old", "10.8.0.2", "former")
	data, err := json.Marshal(map[string]any{"config": []byte(l.ptp("old", "10.8.0.0/24"))}) // as before libcni 1.2
	l.must(err, os.WriteFile(filepath.Join(l.source.results, "old-former-eth0"), data, 0o600))
	l.allocate("out", "10.7.0.2", "/../x")
	l.must(os.Rename(l.result("out", "c", l.ptp("out", "10.7.0.0/24")), filepath.Join(l.source.results, "x-eth0")))
	l.look()
	if l.first("nomad") != "172.26.64.2" {
		t.Errorf("later results of a network with a longer name: got %q, want the range", l.first("nomad"))
	}
	if l.first("old") != "" {
		t.Errorf("result that names no namespace: got %q, want none, as it may have been left behind", l.first("old"))
	}
	if l.first("out") != "" {
		t.Errorf("container ID that is a path: got %q, want none", l.first("out"))
	}
}

func TestFormerDirectoryOfANetworkIsOutOfUse(t *testing.T) {
	l := newLab(t)
	l.allocate("nomad", "172.26.64.2", "former")
	l.allocate("other", "10.1.0.2", "c")
	l.look()
	former := l.path("nomad")
	l.must(os.Chtimes(former, l.now, l.now))
	l.dir = filepath.Join(l.root, "run/cni")
	l.source.parents = append(l.source.parents, l.dir)
	l.allocate("nomad", "172.26.64.2", "alloc")
	l.result("nomad", "alloc", l.nomadBridge("172.26.64.0/20"))
	l.look()
	if _, got := l.allocations[former]; got || l.first("nomad") != "172.26.64.2" || len(l.addresses("nomad")) != 1 || len(l.allocations) != 2 {
		t.Errorf("got %v, want the directory that is in use, and that of the other network", l.allocations)
	}
	l.must(os.RemoveAll(l.path("nomad")))
	if l.look(); l.pool("nomad").Lost != 1 {
		t.Errorf("got %+v of the directory that was removed, want its loss", l.pool("nomad"))
	}
	l.allocate("nomad", "172.26.64.2", "alloc")
	l.configure("10-nomad.conf", strings.ReplaceAll(l.ptp("nomad", "10.2.0.0/24"), l.dir, filepath.Dir(former)))
	if l.look(); len(l.allocations[former]) != 1 || len(l.addresses("nomad")) != 1 {
		t.Errorf("got %v, want the directory that a file names, too", l.allocations)
	}
}

func TestDirectoryOfAnotherProgramIsNoPool(t *testing.T) {
	l := newLab(t)
	l.dir = filepath.Join(l.root, "run/cni")
	l.source.parents = append(l.source.parents, l.dir)
	l.must(os.MkdirAll(l.path("bin"), 0o755), os.MkdirAll(l.path("new"), 0o755), os.WriteFile(filepath.Join(l.path("bin"), "bridge"), nil, 0o600))
	if l.look(); len(l.source.Pools()) != 0 {
		t.Errorf("got %d pools, want none: host-local has used no directory", len(l.source.Pools()))
	}
	l.allocate("new", "10.1.0.2", "c")
	l.event("new", "10.1.0.2", false)
	l.release("new", "10.1.0.2")
	if pools := l.source.Pools(); len(pools) != 1 || pools[0].Name != l.path("new") || pools[0].State != ipam.Known {
		t.Errorf("got %v, want the directory that host-local has used", pools)
	}
}

func TestFirstDirectoryOfConfigurationsCounts(t *testing.T) {
	l := newLab(t)
	l.source.confs.dirs = []string{filepath.Join(l.root, "b"), filepath.Join(l.root, "a")}
	for i, dir := range l.source.confs.dirs {
		l.conf = dir
		l.configure("10-pods.conf", l.ptp("pods", fmt.Sprintf("10.%d.0.0/24", i+1)))
	}
	if l.look(); l.first("pods") != "10.1.0.2" {
		t.Errorf("got %s, want the range of the first directory", l.first("pods"))
	}
}

func TestConfiguredDirectoryElsewhereIsForgottenWithItsConfiguration(t *testing.T) {
	l := newLab(t)
	parent := l.dir
	l.dir = filepath.Join(l.root, "elsewhere")
	l.configure("10-pods.conf", l.ptp("pods", "10.1.0.0/24"))
	l.allocate("pods", "10.1.0.2", "c")
	l.look()
	if got := l.addresses("pods"); len(got) != 1 {
		t.Errorf("configured directory: got %q, want one", got)
	}
	l.must(os.Remove(filepath.Join(l.conf, "10-pods.conf")))
	l.look()
	if _, ok := l.allocations[l.path("pods")]; ok {
		t.Error("directory that no configuration names: got a pool, want none")
	}
	l.dir = parent
	l.allocate("pods", "10.1.0.2", "c")
	l.look()
	if got := l.addresses("pods"); len(got) != 1 {
		t.Errorf("directory at a usual place: got %q, want one", got)
	}
}

func TestFilesThatAreNotConfigurationsAreIgnored(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"a.conf~", "a.txt", "conf", ".conf.swp"} {
		l.configure(name, l.ptp("wrong", "10.7.0.0/24"))
	}
	l.must(os.MkdirAll(filepath.Join(l.conf, "dir.conf"), 0o755), os.Symlink(filepath.Join(l.root, "real"), filepath.Join(l.conf, "link.json")))
	l.look()
	if len(l.allocations) != 0 || len(l.source.Problems()) != 0 {
		t.Errorf("files of other kinds: got %v, problems %q", l.allocations, l.source.Problems())
	}
	l.must(os.WriteFile(filepath.Join(l.root, "real"), []byte(l.ptp("linked", "10.8.0.0/24")), 0o600))
	l.configure("x.json", l.ptp("json", "10.9.0.0/24"))
	l.look()
	if l.first("linked") != "10.8.0.2" || l.first("json") != "10.9.0.2" || len(l.allocations) != 2 {
		t.Errorf("link and .json file: got %v", l.allocations)
	}
}

func TestFileThatIsBeingWrittenIsNoProblem(t *testing.T) {
	l := newLab(t)
	l.configure("x.conf", `{"name"`)
	l.must(os.Chtimes(filepath.Join(l.conf, "x.conf"), l.now, l.now))
	if l.look(); len(l.source.Problems()) != 0 || !l.again {
		t.Errorf("at once: got problems %q and again %v, want to look again", l.source.Problems(), l.again)
	}
	l.now = l.now.Add(2 * ipam.Settled)
	if l.look(); len(l.source.Problems()) != 1 || l.again {
		t.Errorf("later: got problems %q and again %v, want one", l.source.Problems(), l.again)
	}
}

func TestRangesOfFlannelAreThoseOfTheNode(t *testing.T) {
	l := newLab(t)
	env := filepath.Join(l.root, "run/flannel/subnet.env")
	l.configure("10-flannel.conflist", fmt.Sprintf(
		`{"name":"cbr0","plugins":[{"type":"flannel","subnetFile":%q,"ipam":{"dataDir":%q},"delegate":{"isDefaultGateway":true}}]}`, env, l.dir))
	l.look()
	if p := l.pool("cbr0"); p.State != ipam.Missing || p.Plugin != "bridge" || p.Device != "cni0" || !p.Routed || len(p.Ranges) != 0 || len(l.source.Problems()) != 0 {
		t.Errorf("pool before flannel runs: got %+v, problems %q", p, l.source.Problems())
	}
	if places := l.source.Places(); !slices.Contains(places, filepath.Dir(env)) {
		t.Errorf("places: got %q, want that of subnet.env too", places)
	}
	l.host.Hidden[filepath.Dir(env)] = errors.New("not mounted")
	l.look()
	if problems := l.source.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "its ranges are unknown: not mounted") {
		t.Errorf("problems: got %q", problems)
	}
	clear(l.host.Hidden)
	l.must(os.MkdirAll(filepath.Dir(env), 0o755), os.Symlink(filepath.Join(l.root, "subnet.env"), env))
	for content, want := range map[string]string{
		"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\n": "[10.244.3.2-10.244.3.254]",
		"FLANNEL_SUBNET=10.244.4.1/24\nFLANNEL_IPV6_SUBNET=fd00:4::1/120\n":               "[10.244.4.2-10.244.4.254 fd00:4::2-fd00:4::ff]",
		" FLANNEL_SUBNET=10.244.5.0/30 \nFLANNEL_IPV6_SUBNET=\n":                          "[10.244.5.2/32]",
		"": "[]",
	} {
		l.must(os.WriteFile(env, []byte(content), 0o600))
		l.look()
		if got := fmt.Sprint(l.pool("cbr0").Ranges); got != want || len(l.source.Problems()) != 0 {
			t.Errorf("%q: got ranges %s, problems %q, want %s", content, got, l.source.Problems(), want)
		}
	}
	for content, want := range map[string]string{
		"FLANNEL_SUBNET=mine\n":          "subnet.env: FLANNEL_SUBNET is not a subnet: restart flannel, which rewrites the file",
		"FLANNEL_SUBNET=10.244.4.1/31\n": "too small",
	} {
		l.must(os.WriteFile(env, []byte(content), 0o600))
		l.look()
		if problems := l.source.Problems(); len(problems) != 1 || !strings.Contains(problems[0], want) || len(l.pool("cbr0").Ranges) != 0 {
			t.Errorf("%q: got problems %q, ranges %v", content, problems, l.pool("cbr0").Ranges)
		}
	}
}

func TestConfigurationThatHostLocalRefusesIsAProblemOfItsPool(t *testing.T) {
	l := newLab(t)
	conf := func(start string) string {
		return fmt.Sprintf(`{"name":"x","type":"ptp","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.1.0.0/29","rangeStart":%q}]]}}`, l.dir, start)
	}
	l.configure("x.conf", conf("10.1.0.3"))
	l.allocate("x", "10.1.0.3", "c")
	if l.look(); l.pool("x").State != ipam.Known || l.pool("x").Problem != "" || len(l.source.Problems()) != 0 {
		t.Fatalf("got %+v and problems %q of a good configuration", l.pool("x").Pool, l.source.Problems())
	}
	l.configure("x.conf", conf("10.2.0.3"))
	l.look()
	if p := l.pool("x"); p.State != ipam.Known || !strings.Contains(p.Problem, "RangeStart 10.2.0.3 not in network 10.1.0.0/29") || len(p.Ranges) != 0 {
		t.Errorf("got %+v, want the refusal of host-local", p.Pool)
	}
	if got := l.addresses("x"); !slices.Equal(got, []string{"10.1.0.3"}) {
		t.Errorf("got addresses %q, want that of the record", got)
	}
	l.configure("x.conf", `{"name":`)
	if l.look(); !strings.Contains(l.pool("x").Problem, "parse JSON") || len(l.addresses("x")) != 1 {
		t.Errorf("got %+v, want that the configuration cannot be parsed", l.pool("x").Pool)
	}
	l.configure("x.conf", strings.Replace(conf("10.2.0.3"), `"x"`, `"new"`, 1))
	if l.look(); l.pool("new").State != ipam.Unreadable || !strings.Contains(l.pool("new").Problem, "RangeStart") {
		t.Errorf("got %+v, want the refusal although no address was allocated", l.pool("new").Pool)
	}
	l.configure("x.conf", conf("10.1.0.3"))
	if l.look(); l.pool("x").Problem != "" || len(l.pool("x").Ranges) != 1 {
		t.Errorf("got %+v of a good configuration again", l.pool("x").Pool)
	}
}

func TestTwoPluginsOfOneListShareADirectory(t *testing.T) {
	l := newLab(t)
	plugin := func(kind, subnet string) string {
		return fmt.Sprintf(`{"type":%q,"ipam":{"type":"host-local","dataDir":%q,"subnet":%q}}`, kind, l.dir, subnet)
	}
	l.configure("x.conf", `{"name":"x","plugins":[`+plugin("bridge", "10.1.0.0/29")+`,`+plugin("macvlan", "10.2.0.0/29")+`,`+plugin("macvlan", "10.1.0.0/29")+`]}`)
	l.look()
	if p := l.pool("x"); len(l.allocations) != 1 || fmt.Sprint(p.Ranges) != "[10.1.0.2-10.1.0.6 10.2.0.2-10.2.0.6]" || fmt.Sprint(p.Gateways) != "[10.1.0.1 10.2.0.1]" || p.Plugin != "bridge" {
		t.Errorf("pool: got %+v, want one with both ranges", p)
	}
}

func TestProblemsNameTheMissingMount(t *testing.T) {
	l := newLab(t)
	l.host.Hidden[l.dir], l.host.Hidden[l.conf] = errors.New("mount the one"), errors.New("mount the other")
	l.look()
	problems := strings.Join(l.source.Problems(), "\n")
	for _, want := range []string{"cannot read the allocations of host-local in " + l.dir + ": mount the one", "cannot read the CNI configurations in " + l.conf + ": mount the other"} {
		if !strings.Contains(problems, want) {
			t.Errorf("problems: got %q, want one with %q", problems, want)
		}
	}
	clear(l.host.Hidden)
	l.host.Broken[l.dir] = os.ErrPermission
	l.look()
	if problems := l.source.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "cannot read the allocations of host-local (permission denied)") {
		t.Errorf("problems: got %q", problems)
	}
}

func TestNodeWithoutAllocationsHasNoProblem(t *testing.T) {
	l := newLab(t)
	if l.look(); len(l.source.Problems()) != 0 || len(l.source.Pools()) != 0 {
		t.Errorf("no directories: got problems %q", l.source.Problems())
	}
	l.must(os.MkdirAll(l.dir, 0o755), os.MkdirAll(l.conf, 0o755))
	if l.look(); len(l.source.Problems()) != 0 || len(l.source.Pools()) != 0 {
		t.Errorf("empty directories: got problems %q", l.source.Problems())
	}
}
