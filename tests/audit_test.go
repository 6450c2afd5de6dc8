package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// findings lists the findings that match a query string of the REST API.
func (l *lab) findings(query string) []*ipwitnessv1.Finding {
	l.t.Helper()
	var m ipwitnessv1.ListFindingsResponse
	if err := l.program.Get(l.t.Context(), "/v1/findings"+query, &m); err != nil {
		l.t.Fatal(err)
	}
	return m.GetFindings()
}

// awaitFindings waits until the findings are exactly these, each given as KIND ADDRESS.
func (l *lab) awaitFindings(want ...string) []*ipwitnessv1.Finding {
	l.t.Helper()
	slices.Sort(want)
	var got []*ipwitnessv1.Finding
	var text []string
	defer func() {
		if l.t.Failed() {
			l.t.Logf("findings: got %q, want %q", text, want)
		}
	}()
	wait.Until(l.t, fmt.Sprintf("findings %q", want), func() bool {
		got, text = l.findings(""), nil
		for _, f := range got {
			text = append(text, strings.TrimSpace(f.GetKind()+" "+f.GetAddress()))
		}
		slices.Sort(text)
		return slices.Equal(text, want)
	})
	return got
}

// found follows findings:watch and keeps every finding that it received.
type found struct {
	mu    sync.Mutex
	kinds []string
}

func (l *lab) follow() *found {
	f, ready := &found{}, make(chan struct{})
	var once sync.Once
	go func() {
		_ = l.program.WatchFindings(l.t.Context(), func(e netlab.FindingEvent) bool {
			switch e.GetType() {
			case ipwitnessv1.Watch_BOOKMARK:
				once.Do(func() { close(ready) })
			case ipwitnessv1.Watch_ADDED:
				f.mu.Lock()
				f.kinds = append(f.kinds, e.GetFinding().GetKind()+" "+e.GetFinding().GetAddress())
				f.mu.Unlock()
			}
			return true
		})
	}()
	<-ready
	return f
}

func (f *found) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.kinds)
}

// small is a kindnet network with room for five pods. A plan covers all namespaces that have
// processes, so no other test may use this range.
const small = `{"cniVersion":"1.0.0","name":"kindnet","plugins":[{"type":"ptp","ipMasq":false,"mtu":1500,
	"ipam":{"type":"host-local","dataDir":"/run/cni-ipam-state","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"198.18.78.0/29"}]]}}]}`

func TestDuplicatesArePredictedAndThePlanPreventsThem(t *testing.T) {
	t.Parallel()
	for name, wipe := range map[string]func(l *lab, dir string) error{
		"the directory is deleted":    func(_ *lab, dir string) error { return os.RemoveAll(dir) },
		"all that is in it is":        func(l *lab, _ string) error { return emptied(l, "/run/cni-ipam-state/kindnet") },
		"another one is put there":    func(_ *lab, dir string) error { return replaced(dir) },
		"ipwitness starts after that": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &lab{Host: newHost(t), t: t}
			if wipe != nil {
				l.start("--node", "node1")
			}
			cni := l.cni(netlab.PTP)
			const pods = 3
			want := []string{"ipam-state-lost"}
			for i := range pods {
				if err := cni.Add(fmt.Sprintf("old%d", i+1)); err != nil {
					t.Fatal(err)
				}
				want = append(want, "in-use-unallocated "+podAddress(i+1))
			}
			dir := l.Path("/run/cni-ipam-state/kindnet")
			if wipe == nil {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				l.start("--node", "node1")
			}
			for i := range pods {
				l.awaitPod(podAddress(i+1), fmt.Sprintf("old%d", i+1))
			}
			if wipe != nil {
				l.awaitAllocations(pods)
				if err := wipe(l, dir); err != nil {
					t.Fatal(err)
				}
			}
			l.awaitFindings(want...)
			// The finding about the pool is updated only a few times a second.
			wait.Until(t, "the loss to have all addresses at risk", func() bool {
				lost := l.findings("?kind=ipam-state-lost")
				return len(lost) == 1 && len(lost[0].GetAddresses()) == pods
			})
			for _, f := range l.awaitFindings(want...) {
				if f.GetSeverity() != ipwitnessv1.Finding_CRITICAL || len(f.GetRemedy()) == 0 || f.GetRunbook() == "" {
					t.Errorf("got %v, want it critical, with a remedy and a runbook", f)
				}
			}
			if got := l.watch.all(); len(got) != 0 {
				t.Errorf("conflicts: got %v, want none yet", got)
			}

			// Run the plan as an operator would. Afterwards there are no findings, and new pods get
			// addresses of their own.
			plan, err := l.Stdout(l.Command(binary, "audit", "--fix-plan"))
			if err != nil {
				t.Fatal(err)
			}
			script := l.Path("/run/plan.sh")
			if err := os.WriteFile(script, []byte(plan), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the plan is idempotent
				if out, err := l.Output(l.Command("sh", "/run/plan.sh", "node", "node1")); err != nil {
					t.Fatalf("%v\n%s\n%s", err, out, plan)
				}
			}
			l.awaitFindings()
			for i := range pods {
				if err := cni.Add(fmt.Sprintf("new%d", i+1)); err != nil {
					t.Fatal(err)
				}
			}
			for i := range pods {
				l.awaitPod(podAddress(pods+i+1), fmt.Sprintf("new%d", i+1))
				l.awaitPod(podAddress(i+1), fmt.Sprintf("old%d", i+1))
			}
			l.wantOnlyPlanted()
			l.awaitFindings()
		})
	}
}

// emptied deletes the contents of a directory.
func emptied(l *lab, dir string) error {
	_, err := l.Output(l.Command("sh", "-c", "rm -rf "+dir+"/*"))
	return err
}

// replaced replaces a directory with an empty one, as a restore does.
func replaced(dir string) error {
	if err := os.Mkdir(dir+".new", 0o755); err != nil {
		return err
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		return err
	}
	// Remove the old directory: every directory beside it counts as a network.
	defer func() { _ = os.RemoveAll(dir + ".old") }()
	return os.Rename(dir+".new", dir)
}

// awaitAllocations waits until the aggregator knows n allocations.
func (l *lab) awaitAllocations(n uint64) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("%d allocations", n), func() bool {
		var m ipwitnessv1.ListPoolsResponse
		if err := l.program.Get(l.t.Context(), "/v1/pools", &m); err != nil {
			l.t.Fatal(err)
		}
		var got uint64
		for _, p := range m.GetPools() {
			got += p.GetAllocated()
		}
		return got == n
	})
}

// churned returns the number of pods that come and go in a test: the given one, or 500 if slow tests
// run.
func churned(short int) int {
	if testing.Short() {
		return short
	}
	return 500
}

// cycle starts and ends pods by a plugin, several at a time, of which the last ones stay.
func cycle(t *testing.T, cni *netlab.CNI, pods, stay int) {
	t.Helper()
	var workers errgroup.Group
	const atOnce = 4
	for w := range atOnce {
		workers.Go(func() error {
			for i := w; i < pods; i += atOnce {
				if err := cni.Add(fmt.Sprintf("p%d", i)); err != nil {
					return err
				}
				if i < pods-stay {
					if err := cni.Delete(fmt.Sprintf("p%d", i)); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := workers.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestPodsThatComeAndGoAreNoFindings(t *testing.T) {
	t.Parallel()
	for name, conflist := range map[string]string{"ptp": netlab.PTP, "bridge": netlab.Bridge} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			found := l.follow()
			const stay = 5
			cycle(t, l.cni(conflist), churned(20), stay)
			l.awaitAllocations(stay)
			l.plant() // takes as long as the settle time
			l.awaitFindings()
			if got := found.all(); len(got) != 0 {
				t.Errorf("findings: got %q, want none", got)
			}
			l.wantConfirmed()
			for _, dir := range []string{"/run/cni-ipam-state/*", "/var/lib/cni/networks/*"} {
				if err := emptied(l, dir); err != nil {
					t.Fatal(err)
				}
			}
			wait.Until(t, "a finding, which shows that they are followed", func() bool { return len(found.all()) > 0 })
		})
	}
}

func TestALeakFillsThePoolAndThePlanFreesIt(t *testing.T) {
	t.Parallel()
	l := newLab(t, "--leaked-after", "1s")
	cni := l.cni(small)
	for i := range 5 {
		if err := cni.Add(fmt.Sprintf("p%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	l.awaitFindings("pool-exhaustion")
	// Three pods end as in a crash, without a CNI DEL.
	l.sh("ip netns del p0", "ip netns del p1", "ip netns del p2")
	l.awaitFindings("leaked 198.18.78.2", "leaked 198.18.78.3", "leaked 198.18.78.4", "pool-exhaustion")
	// The finding about the pool is updated only a few times a second.
	wait.Until(t, "all findings to say that 5 of 5 are given, 3 of them leaked", func() bool {
		return !slices.ContainsFunc(l.findings(""), func(f *ipwitnessv1.Finding) bool {
			p := f.GetPool()
			return p.GetSize() != 5 || p.GetAllocated() != 5 || p.GetLeaked() != 3
		})
	})
	if err := cni.Add("more"); err == nil {
		t.Error("a pod got an address of a pool that is full")
	}
	plan, err := l.Stdout(l.Command(binary, "audit", "--fix-plan"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.Path("/run/plan.sh"), []byte(plan), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := l.Output(l.Command("sh", "/run/plan.sh", "node", "node1")); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, plan)
	}
	l.awaitFindings()
	left, err := filepath.Glob(l.Path("/run/cni-ipam-state/kindnet/198.*"))
	if err != nil || len(left) != 2 {
		t.Errorf("host-local's files: got %v, %v, want those of the two running pods", left, err)
	}
	if err := cni.Add("again"); err != nil {
		t.Error(err)
	}
}

func TestAddressSetByHandIsPredicted(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cni := l.cni(netlab.PTP)
	if err := cni.Add("web"); err != nil {
		t.Fatal(err)
	}
	l.awaitPod("10.244.0.2", "web")
	l.pod("lab", "10.244.0.9/32")
	f := l.awaitFindings("in-use-unallocated 10.244.0.9")[0]
	if !strings.Contains(f.GetSummary(), "lab") {
		t.Errorf("summary: got %q, want it to name lab", f.GetSummary())
	}
	l.sh("ip -n lab addr del 10.244.0.9/32 dev eth0")
	l.awaitFindings()
}
