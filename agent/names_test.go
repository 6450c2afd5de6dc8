package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
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

func TestOnlySmallRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	fifo, link, large, fine := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "large"), filepath.Join(dir, "fine")
	for _, err := range []error{
		unix.Mkfifo(fifo, 0o600),
		os.Symlink("/dev/zero", link),
		os.WriteFile(large, nil, 0o600),
		os.Truncate(large, 2<<20),
		os.WriteFile(fine, []byte("{}"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, readable := range map[string]bool{fifo: false, link: false, large: false, fine: true} {
		if _, err := readSmall(path); (err == nil) != readable {
			t.Errorf("read %s: got %v", filepath.Base(path), err)
		}
	}
}

func TestGlobsChooseThePortsThatAreWatched(t *testing.T) {
	for _, c := range []struct {
		include, exclude []string
		name             string
		want             bool
	}{
		{nil, nil, "eth0", true},
		{[]string{"veth*", "eth?"}, nil, "eth0", true},
		{[]string{"veth*"}, nil, "eth0", false},
		{nil, []string{"docker*"}, "docker0", false},
		{[]string{"*"}, []string{"eth0"}, "eth0", false},
	} {
		w := &wire{include: c.include, exclude: c.exclude}
		if got := w.wanted(c.name); got != c.want {
			t.Errorf("%s with include %v and exclude %v: got %v, want %v", c.name, c.include, c.exclude, got, c.want)
		}
	}
}

func TestConfigurationThatCannotBeMeantIsRefused(t *testing.T) {
	for _, c := range []Config{{Wire: "carrier-pigeon"}, {Interfaces: []string{"[eth"}}, {ExcludeInterfaces: []string{"["}}} {
		if _, err := c.defaults(); err == nil {
			t.Errorf("configuration %+v: got no error", c)
		}
	}
}

func TestAgentIsUsableWithNetlinkOrTheWire(t *testing.T) {
	check := func(observer, namespaces string) []Check {
		return []Check{{Feature: checkObserver, Status: observer}, {Feature: checkNamespaces, Status: namespaces}}
	}
	for _, c := range []struct {
		checks []Check
		usable bool
	}{
		{check(StatusOK, StatusOK), true},
		{check(StatusMissing, StatusOK), true},
		{check(StatusOK, StatusMissing), true},
		{check(StatusMissing, StatusMissing), false},
	} {
		if err := Usable(c.checks); (err == nil) != c.usable {
			t.Errorf("usable with %v: got %v", c.checks, err)
		}
	}
}
