package awsvpc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// realResult is libcni's file for a pod that the real plugin set up, without its configuration.
const realResult = `{"kind":"cniCacheV1","containerId":"c0ffee01","ifName":"eth0","networkName":"aws-cni","netns":"/run/netns/web",
	"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","web"],["K8S_POD_UID","uid-web"]],
	"result":{"cniVersion":"0.4.0","dns":{},"interfaces":[{"name":"eni68caf03a5f4"},{"mac":"1","name":"eth0","sandbox":"/run/netns/web"},
	{"mac":"0","name":"dummy68caf03a5f4","sandbox":"0"}],"ips":[{"address":"198.18.81.5/32","interface":1,"version":"4"}]}}`

// branchResult is the same with the VLAN ID of a branch ENI, as the plugin's source sets it.
var branchResult = strings.Replace(realResult, `"mac":"0"`, `"mac":"7"`, 1)

func TestAddressesOfBranchENIsAreFoundInResults(t *testing.T) {
	for data, want := range map[string]string{
		realResult:   "[]",
		branchResult: "[198.18.81.5]",
		strings.Replace(branchResult, `"ips":[`, `"ips":[{"address":"fd00::5/128"},{"address":"mine"},{"address":"::ffff:10.0.0.5/128"},`, 1): "[fd00::5 10.0.0.5 198.18.81.5]",
		strings.Replace(branchResult, `"mac":"7"`, `"mac":"4095"`, 1):                                                                         "[198.18.81.5]",
		strings.Replace(branchResult, `"mac":"7"`, `"mac":"4096"`, 1):                                                                         "[]",
		strings.Replace(branchResult, `"mac":"7"`, `"mac":"02:00:00:00:00:07"`, 1):                                                            "[]",
		strings.Replace(branchResult, `"name":"dummy`, `"name":"other`, 1):                                                                    "[]",
		strings.Replace(branchResult, `"interfaces":[`, `"interfaces":[{"mac":"9","name":"dummy1"},`, 1):                                      "[198.18.81.5]",
		strings.Replace(branchResult, `"sandbox":"0"}`, `"sandbox":"0"},{"mac":"0","name":"dummy2"}`, 1):                                      "[198.18.81.5]",
		`{}`: "[]",
	} {
		if got, err := branchAddresses([]byte(data)); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, error %v, want %s", data, got, err, want)
		}
	}
	for _, data := range []string{"", "{", "[]", `{"result":7}`, branchResult[:100]} {
		if got, err := branchAddresses([]byte(data)); err == nil {
			t.Errorf("%q: got %v, want an error", data, got)
		}
	}
}

// result writes a file of libcni's cache.
func (l *lab) result(name, data string) {
	l.Helper()
	dir := l.source.branches.dir
	l.must(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
}

// resultEvent lets the source handle the event of a result, and read what is due.
func (l *lab) resultEvent(name string, removed bool) {
	l.Helper()
	if path := filepath.Join(l.source.branches.dir, name); !l.source.Event(path, removed) {
		l.Errorf("event of %s: got not handled, want handled", path)
	}
	l.read()
}

func TestAddressesOfBranchENIsAreReserved(t *testing.T) {
	l := newLab(t)
	l.result("aws-cni-c1-eth0", branchResult)
	l.result("aws-cni-c2-eth0", realResult)
	l.result("other-c1-eth0", strings.ReplaceAll(branchResult, "198.18.81.5", "198.18.81.6"))
	l.write(checkpointName, checkpointOf(entry(`"ipv4":"10.0.0.5"`)))
	const recorded = "10.0.0.5 default/web c1 eth0"
	l.look()
	l.want(checkpointName, recorded, "198.18.81.5 /  ")

	branch := func(n int) string {
		return strings.ReplaceAll(branchResult, "198.18.81.5", fmt.Sprint("198.18.81.", n))
	}
	l.result("aws-cni-c3-eth0", branch(7))
	l.resultEvent("aws-cni-c3-eth0", false)
	l.want(checkpointName, recorded, "198.18.81.5 /  ", "198.18.81.7 /  ")
	if l.resultEvent("aws-cni-c3-eth0", false); l.changes != 0 {
		t.Errorf("result that is the same: got %d changes", l.changes)
	}
	l.result("other-c4-eth0", branch(8))
	if l.resultEvent("other-c4-eth0", false); l.changes != 0 {
		t.Errorf("result of another network: got %d changes", l.changes)
	}
	l.result("aws-cni-c4-eth0", branch(8)[:50])
	if l.resultEvent("aws-cni-c4-eth0", false); l.changes != 0 {
		t.Errorf("incomplete result: got %d changes", l.changes)
	}
	l.result("aws-cni-c4-eth0", branch(8))
	l.look()
	l.want(checkpointName, recorded, "198.18.81.5 /  ", "198.18.81.7 /  ", "198.18.81.8 /  ")
	l.must(os.Remove(filepath.Join(l.source.branches.dir, "aws-cni-c4-eth0")))
	l.resultEvent("aws-cni-c4-eth0", true)
	l.want(checkpointName, recorded, "198.18.81.5 /  ", "198.18.81.7 /  ")
	l.must(os.Remove(filepath.Join(l.source.branches.dir, "aws-cni-c3-eth0")))
	l.look()
	l.want(checkpointName, recorded, "198.18.81.5 /  ")
	l.result("aws-cni-c1-eth0", branch(9))
	l.look() // a file that libcni has written is only removed
	l.want(checkpointName, recorded, "198.18.81.5 /  ")
	l.lost = true
	l.look()
	l.want(checkpointName, recorded, "198.18.81.9 /  ")
	// What ipamd has recorded counts.
	l.write(checkpointName, checkpointOf(entry(`"ipv4":"198.18.81.9"`)))
	l.event(checkpointName, false)
	l.want(checkpointName, "198.18.81.9 default/web c1 eth0")
	l.must(os.RemoveAll(l.source.branches.dir))
	l.look()
	l.want(checkpointName, "198.18.81.9 default/web c1 eth0")
}

func TestAddressesOfBranchENIsStayReservedWithoutACheckpoint(t *testing.T) {
	l := newLab(t)
	l.result("aws-cni-c1-eth0", branchResult)
	l.write(checkpointName, checkpointOf(entry(`"ipv4":"10.0.0.5"`)))
	l.look()
	l.must(os.Remove(l.path(checkpointName)))
	l.event(checkpointName, true)
	l.want(checkpointName, "198.18.81.5 /  ")
}

func TestResultsOfTheNetworkInTheCheckpointAreRead(t *testing.T) {
	l := newLab(t)
	l.result("pods-c1-eth0", branchResult)
	l.write(checkpointName, checkpointOf(entry(`"ipv4":"10.0.0.5","networkName":"pods"`)))
	l.look()
	l.want(checkpointName, "10.0.0.5 default/web c1 eth0", "198.18.81.5 /  ")
	if p := l.pool(checkpointName); p.Network != "pods" {
		t.Errorf("got network %q", p.Network)
	}
	l.write(checkpointName, checkpointOf())
	l.event(checkpointName, false)
	if p := l.pool(checkpointName); p.Network != "pods" {
		t.Errorf("got network %q without allocations, want the previous one", p.Network)
	}
}

func TestResultsThatCannotBeReadAreNamed(t *testing.T) {
	l := newLab(t)
	dir := l.source.branches.dir
	l.write(checkpointName, checkpointOf())
	l.result("aws-cni-c1-eth0", branchResult)
	l.look()
	l.result("aws-cni-c2-eth0", "{")
	l.result("other-c2-eth0", "{")
	fresh := filepath.Join(dir, "aws-cni-c3-eth0")
	l.result("aws-cni-c3-eth0", "{")
	l.must(os.Chtimes(fresh, l.now, l.now))
	l.look()
	if got := l.source.Problems(); len(got) != 1 || !strings.Contains(got[0], "aws-cni-c2-eth0: parse CNI result") {
		t.Errorf("got problems %q, want the result that cannot be parsed", got)
	}
	l.must(os.Remove(filepath.Join(dir, "aws-cni-c2-eth0")), os.Remove(fresh))
	for _, lost := range []bool{false, true} {
		l.host.Broken[dir], l.lost = os.ErrPermission, lost
		l.look()
		if got := l.source.Problems(); len(got) != 1 || !strings.Contains(got[0], "permission denied: give the agent's user read access") {
			t.Errorf("got problems %q, want the directory that cannot be listed", got)
		}
		l.want(checkpointName, "198.18.81.5 /  ")
	}
	clear(l.host.Broken)
	if l.look(); len(l.source.Problems()) != 0 {
		t.Errorf("got problems %q when all can be read", l.source.Problems())
	}
}

func TestResultsAreLimited(t *testing.T) {
	l := newLab(t)
	l.write(checkpointName, checkpointOf())
	l.result("aws-cni-large-eth0", branchResult+strings.Repeat(" ", maxResultSize))
	l.result("aws-cni-c1-eth0", branchResult)
	l.result("target", strings.ReplaceAll(branchResult, "198.18.81.5", "198.18.81.6"))
	l.must(os.Symlink("target", filepath.Join(l.source.branches.dir, "aws-cni-link-eth0")))
	l.look()
	l.want(checkpointName, "198.18.81.5 /  ")
}
