package tests

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// planned is a host with the real host-local and pods that the audit can identify. Tests make plans
// from findings that the audit would report there.
type planned struct {
	t    *testing.T
	host *netlab.Host
	cni  *netlab.CNI
	node *verdict.Node
	pool *verdict.Pool
	dir  string // directory of host-local, as a path of this process
}

func newPlanned(t *testing.T) *planned {
	t.Helper()
	host := newHost(t)
	// A plan covers all namespaces that have processes, so no other test may use this range.
	cni, err := host.CNI(strings.ReplaceAll(netlab.Bridge, "10.244.0.0/16", "198.18.77.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	const dir = "/var/lib/cni/networks/cbr0"
	p := &planned{t: t, host: host, cni: cni, node: &verdict.Node{Name: "node-1"}, dir: host.Path(dir)}
	p.node.Boot = strings.TrimSpace(p.run("cat /proc/sys/kernel/random/boot_id"))
	p.node.Netns = strings.Trim(strings.TrimSpace(p.run("readlink /proc/self/ns/net")), "net:[]")
	p.pool = &verdict.Pool{
		Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: dir, Served: ipam.Served{Network: "cbr0"}, State: ipam.Known, Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("198.18.77.0/24"))}}, Node: p.node,
	}
	return p
}

func (p *planned) run(format string, args ...any) string {
	p.t.Helper()
	out, err := p.host.Run(format, args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// start creates a pod and returns its address.
func (p *planned) start(pod string) string {
	p.t.Helper()
	if err := p.cni.Add(pod); err != nil {
		p.t.Fatal(err)
	}
	return p.address(pod)
}

// address returns the address in a pod's kernel.
func (p *planned) address(pod string) string {
	p.t.Helper()
	fields := strings.Fields(p.run("ip -n %s -4 -o addr show dev eth0", pod))
	address, _, _ := strings.Cut(fields[slices.Index(fields, "inet")+1], "/")
	return address
}

// file returns the lines of host-local's file for an address: a container ID and an interface.
func (p *planned) file(address string) []string {
	p.t.Helper()
	raw, err := os.ReadFile(filepath.Join(p.dir, address))
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.Split(string(raw), "\r\n")
}

// holder returns a pod in the form in which the audit reports a holder.
func (p *planned) holder(pod, container string) verdict.Owner {
	p.t.Helper()
	open, err := p.host.Pod(pod)
	if err != nil {
		p.t.Fatal(err)
	}
	defer open.Close()
	inode, err := open.Inode()
	if err != nil {
		p.t.Fatal(err)
	}
	who := verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: pod, UID: "uid-" + pod, ContainerID: container, Source: "cni-result"}
	ns := &verdict.Namespace{Node: p.node, Netns: inode, Record: 2, ID: verdicttest.NamespaceID(p.node, 2, inode), Who: who.Who()}
	eth0 := &verdict.Interface{Namespace: ns, Name: "eth0", Attachment: verdict.Peer}
	return verdict.Owner{
		ID: ns.ID, Node: p.node, Namespace: ns, Interface: eth0, Assigned: true, State: verdict.Live,
		Claims: []*verdict.Claim{{Kind: verdict.Assigned, Interface: eth0}},
	}
}

// unallocated returns the finding that a pod's address has no file.
func (p *planned) unallocated(pod, container string) verdict.Finding {
	return verdict.Finding{
		Kind: verdict.FindingInUseUnallocated, Severity: verdict.Critical, Address: netip.MustParseAddr(p.address(pod)), Pool: p.pool,
		Owners: []verdict.Owner{p.holder(pod, container)},
	}
}

// reserved returns a finding about an address that host-local has allocated to a container.
func (p *planned) reserved(kind, address, container string, owners ...verdict.Owner) verdict.Finding {
	return verdict.Finding{
		Kind: kind, Severity: verdict.Critical, Address: netip.MustParseAddr(address), Pool: p.pool, Owners: owners,
		Allocations: []*verdict.Allocation{{Pool: p.pool, Allocation: ipam.Allocation{ContainerID: container, Interface: "eth0", Location: filepath.Join(p.pool.Name, address)}}},
	}
}

// plan returns the script that corrects findings.
func (p *planned) plan(findings ...verdict.Finding) string {
	p.t.Helper()
	var list []*ipwitnessv1.Finding
	for i := range findings {
		f := &findings[i]
		out := &ipwitnessv1.Finding{Id: strconv.Itoa(i), Kind: f.Kind, Address: f.Address.String(), Severity: ipwitnessv1.Finding_Severity(f.Severity)}
		for _, fix := range explain.Finding(f, verdict.PoolUse{}).Fixes {
			out.Fixes = append(out.Fixes, &ipwitnessv1.Fix{Node: fix.Node, What: fix.What, Command: fix.Command, Manual: fix.Manual})
		}
		list = append(list, out)
	}
	var script bytes.Buffer
	if err := show.FixPlan(&script, list, show.Origin{
		Server: "http://127.0.0.1:9641", Now: time.Now(),
		Nodes: []*ipwitnessv1.Node{{Name: p.node.Name, BootId: p.node.Boot, Netns: p.node.Netns}},
	}); err != nil {
		p.t.Fatal(err)
	}
	return script.String()
}

// apply runs a plan on the host with a shell, and returns its output.
func (p *planned) apply(shell []string, plan string) string {
	p.t.Helper()
	out, err := p.try(shell, plan)
	if err != nil {
		p.t.Fatalf("run the plan: %v\n%s", err, plan)
	}
	return out
}

func (p *planned) try(shell []string, plan string) (string, error) {
	args := append(slices.Clone(shell[1:]), "-c", plan, "plan.sh", "node", "node-1")
	return p.host.Output(p.host.Command(shell[0], args...))
}

// shells are the shells in which a plan must work.
var shells = map[string][]string{"dash": {"dash"}, "bash": {"bash", "--posix"}, "busybox": {"busybox", "sh"}}

func TestPlanRestoresRecordsOfHostLocal(t *testing.T) {
	for name, shell := range shells {
		if _, err := exec.LookPath(shell[0]); err != nil && name != "dash" {
			continue // dash is Debian's sh
		}
		t.Run(name, func(t *testing.T) {
			p := newPlanned(t)
			taken := make(map[string][]string)
			for _, pod := range []string{"web-1", "web-2", "web-3"} {
				address := p.start(pod)
				taken[address] = p.file(address)
			}
			before, err := os.Stat(filepath.Join(p.dir, p.address("web-1")))
			if err != nil {
				t.Fatal(err)
			}
			if err := p.cni.Forget(); err != nil {
				t.Fatal(err)
			}
			var findings []verdict.Finding
			for _, pod := range []string{"web-1", "web-2", "web-3"} {
				findings = append(findings, p.unallocated(pod, taken[p.address(pod)][0]))
			}
			plan := p.plan(findings...)
			for round := range 2 { // the plan is idempotent
				out := p.apply(shell, plan)
				if got := strings.Count(out, "nothing to do"); got != 3*round {
					t.Errorf("round %d: got %q", round, out)
				}
				for address, want := range taken {
					if got := p.file(address); !slices.Equal(got, want) {
						t.Errorf("%s: got %q, want %q as host-local wrote it", address, got, want)
					}
				}
			}
			if after, err := os.Stat(filepath.Join(p.dir, p.address("web-1"))); err != nil || after.Mode() != before.Mode() {
				t.Errorf("got %v, %v, want the mode of host-local's own files, %v", after, err, before.Mode())
			}
			for _, pod := range []string{"api-1", "api-2"} {
				if address := p.start(pod); taken[address] != nil {
					t.Errorf("host-local allocated %s to %s, although it is in use", address, pod)
				}
			}
			// When a pod ends, host-local frees the allocation that the plan wrote.
			first := p.address("web-1")
			if err := p.cni.Delete("web-1"); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(p.dir, first)); !os.IsNotExist(err) {
				t.Errorf("got %v, want the reservation of %s gone with its pod", err, first)
			}
		})
	}
}

func TestPlanSkipsChangedState(t *testing.T) {
	p := newPlanned(t)
	shell := shells["dash"]
	address := p.start("web-1")
	own := p.file(address)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(p.dir, address), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(text, out string) {
		t.Helper()
		if got := strings.Join(p.file(address), "\r\n"); got != text {
			t.Errorf("got the file %q, want %q; the plan said %q", got, text, out)
		}
	}
	gone := func(out string) {
		t.Helper()
		if _, err := os.Stat(filepath.Join(p.dir, address)); !os.IsNotExist(err) {
			t.Errorf("got %v, want no file; the plan said %q", err, out)
		}
	}

	// The file now has another owner: neither an allocating plan nor a plan made for a different
	// owner changes it.
	write("other\r\neth0")
	want("other\r\neth0", p.apply(shell, p.plan(p.unallocated("web-1", own[0]))))
	want("other\r\neth0", p.apply(shell, p.plan(p.reserved(verdict.FindingBookedElsewhere, address, "third", p.holder("web-1", own[0])))))
	want("other\r\neth0", p.apply(shell, p.plan(p.reserved(verdict.FindingLeaked, address, "third"))))
	// The address is in use, so it is not freed.
	out := p.apply(shell, p.plan(p.reserved(verdict.FindingLeaked, address, "other")))
	want("other\r\neth0", out)
	if !strings.Contains(out, "it is in use") {
		t.Errorf("got %q, want the message that the address has an owner", out)
	}
	// The file still has the owner that the plan was made for, so it is rewritten for the holder.
	want(strings.Join(own, "\r\n"), p.apply(shell, p.plan(p.reserved(verdict.FindingBookedElsewhere, address, "other", p.holder("web-1", own[0])))))

	// On another node, or after a reboot, the plan refuses to run.
	for _, other := range []verdict.Node{{Boot: "another", Netns: p.node.Netns}, {Boot: p.node.Boot, Netns: "1"}} {
		was := *p.node
		plan := p.plan(p.reserved(verdict.FindingLeaked, address, own[0]))
		plan = strings.NewReplacer("'"+was.Boot+"'", "'"+other.Boot+"'", "'"+was.Netns+"'", "'"+other.Netns+"'").Replace(plan)
		if out, err := p.try(shell, plan); err == nil {
			t.Errorf("got %q, want it refused", out)
		}
	}

	// The holder has ended in the meantime, so nothing is allocated to it.
	stale := p.plan(p.unallocated("web-1", own[0]), p.reserved(verdict.FindingBookedElsewhere, address, "other", p.holder("web-1", own[0])))
	if err := p.cni.Delete("web-1"); err != nil {
		t.Fatal(err)
	}
	gone(p.apply(shell, stale))
	write("other\r\neth0")
	want("other\r\neth0", p.apply(shell, stale))
	// The address is unused, so it is freed. This includes files with only an ID, as old versions
	// of host-local wrote them.
	free := p.plan(p.reserved(verdict.FindingLeaked, address, "other"))
	// But it is not freed if there are more processes than a command line can list.
	want("other\r\neth0", p.apply(shell, "ls() { return 126; }\n"+free))
	gone(p.apply(shell, free))
	write("other")
	gone(p.apply(shell, free))
	gone(p.apply(shell, free))
	if err := p.cni.Forget(); err != nil {
		t.Fatal(err)
	}
	gone(p.apply(shell, free)) // the directory stays absent
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("got %v, want no directory", err)
	}
}
