package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// runtimeLab is a lab whose host has a containerd.
type runtimeLab struct {
	*lab
	runtime *containerd.Containerd
}

// newRuntimeLab creates a host with a containerd, without an agent. Only slow tests use the newest one.
func newRuntimeLab(t *testing.T, v containerd.Version) *runtimeLab {
	t.Helper()
	if v.Name != "debian" {
		slow(t)
	}
	if v.Missing != nil && os.Getenv("IPWITNESS_ROOT_TESTS") != "" {
		t.Fatal("IPWITNESS_ROOT_TESTS is set: ", v.Missing)
	} else if v.Missing != nil {
		t.Skip(v.Missing, ": run make test")
	}
	l := &lab{Host: newHost(t), t: t}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := containerd.Start(ctx, l.Host, containerd.Options{Bin: v.Bin, Network: netlab.PTP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			said := strings.Split(c.Log.String(), "\n")
			t.Logf("containerd said:\n%s", strings.Join(said[max(0, len(said)-10):], "\n"))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &runtimeLab{l, c}
}

// onRuntimes runs a test with each available containerd, one without events and one with events,
// once the agent has found it. If alone is set, the agent cannot see the CNI results that
// containerd keeps.
func onRuntimes(t *testing.T, alone bool, test func(t *testing.T, l *runtimeLab), args ...string) {
	t.Parallel()
	for _, v := range containerd.Versions() {
		t.Run("containerd "+v.Name, func(t *testing.T) {
			t.Parallel()
			l := newRuntimeLab(t, v)
			if alone {
				l.sh("mount -t tmpfs tmpfs /var/lib/cni")
			}
			l.start(append([]string{"--node", "node1"}, args...)...)
			l.awaitMetric("ipwitness_agent_cri_connected", 1)
			test(t, l)
		})
	}
}

// run starts the sandbox of a pod.
func (l *runtimeLab) run(p containerd.Pod) (id string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	id, err := l.runtime.RunPod(ctx, p)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

// remove removes a sandbox.
func (l *runtimeLab) remove(id string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	if err := errors.Join(l.runtime.StopPod(ctx, id), l.runtime.RemovePod(ctx, id)); err != nil {
		l.t.Fatal(err)
	}
}

// forget deletes host-local's directory, as a restore or a cleanup script might.
func (l *runtimeLab) forget() {
	l.t.Helper()
	if err := os.RemoveAll(l.Path("/run/cni-ipam-state")); err != nil {
		l.t.Fatal(err)
	}
}

// awaitMetric waits until a metric of the agent has a value.
func (l *runtimeLab) awaitMetric(name string, value float64) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprint(name, " to be ", value), func() bool {
		text, err := l.program.Text(l.t.Context(), "/metrics")
		return err == nil && strings.Contains(text, fmt.Sprintf("\n%s %v\n", name, value))
	})
}

// uid returns the n-th pod UID.
func uid(n int) string { return fmt.Sprintf("0ddba110-0000-4000-8000-%012d", n) }

// named returns a short name of a workload.
func named(w *ipwitnessv1.Workload) string {
	return fmt.Sprintf("%s %s/%s %s %s by %s", w.GetKind(), w.GetNamespace(), w.GetName(), w.GetUid(), w.GetContainerId(), w.GetSource())
}

// wantNamed waits until the owners of an address have these names.
func (l *runtimeLab) wantNamed(addr string, want ...string) {
	l.t.Helper()
	slices.Sort(want)
	var got []string
	defer func() {
		if l.t.Failed() {
			l.t.Logf("owners of %s: got %q, want %q", addr, got, want)
		}
	}()
	wait.Until(l.t, "names of the owners of "+addr, func() bool {
		got = nil
		for _, o := range l.owners("?address=" + addr) {
			got = append(got, named(o.GetWorkload()))
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

func byCRI(pod, uid, id string) string {
	return fmt.Sprintf("POD default/%s %s %s by cri", pod, uid, id)
}

func TestT1ThroughAContainerRuntime(t *testing.T) {
	onRuntimes(t, true, func(t *testing.T, l *runtimeLab) {
		old1 := l.run(containerd.Pod{Name: "old1", UID: uid(1)})
		old2 := l.run(containerd.Pod{Name: "old2", UID: uid(2)})
		l.forget()
		new1 := l.run(containerd.Pod{Name: "new1", UID: uid(3)})
		addr := podAddress(1)
		l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/new1 | default/old1", "NODE node1", "default/new1", "default/old1")
		l.wantNamed(addr, byCRI("old1", uid(1), old1), byCRI("new1", uid(3), new1))
		l.wantNamed(podAddress(2), byCRI("old2", uid(2), old2))
		if got := l.node().GetRuntime(); !strings.HasPrefix(got, "containerd ") {
			t.Errorf("runtime of the node: got %q, want containerd and its version", got)
		}

		wide, err := l.Output(l.Command(binary, "owners", "-o", "wide"))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range slices.Concat(l.owners("?address="+addr), l.owners("?address="+podAddress(2))) {
			w := o.GetWorkload()
			want := []string{o.GetAddress(), "default/" + w.GetName(), o.GetInterface(), o.GetMac(), o.GetHostInterface(), "cri", w.GetContainerId()[:12]}
			if !slices.ContainsFunc(strings.Split(wide, "\n"), func(line string) bool {
				return !slices.ContainsFunc(want, func(word string) bool { return !slices.Contains(strings.Fields(line), word) })
			}) {
				t.Errorf("owners -o wide: got no line with %q:\n%s", want, wide)
			}
		}

		l.remove(old1)
		l.watch.await("the conflict to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
		l.wantNamed(addr, byCRI("new1", uid(3), new1))
	})
}

func TestNamesSurviveAKilledRuntime(t *testing.T) {
	onRuntimes(t, true, func(t *testing.T, l *runtimeLab) {
		old := l.run(containerd.Pod{Name: "old", UID: uid(1)})
		l.wantNamed(podAddress(1), byCRI("old", uid(1), old))
		if err := l.runtime.Kill(); err != nil {
			t.Fatal(err)
		}
		const away = "has not answered since"
		wait.Until(t, "the problem to be shown", func() bool {
			out, err := l.Output(l.Command(binary, "nodes"))
			return err == nil && strings.Contains(out, "the container runtime at "+containerd.Socket+" "+away)
		})
		l.awaitMetric("ipwitness_agent_cri_connected", 0)
		l.plant() // any lost event would have been lost by now
		l.wantNamed(podAddress(1), byCRI("old", uid(1), old))

		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := l.runtime.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the problem to be gone", func() bool { return !strings.Contains(fmt.Sprint(l.node().GetProblems()), away) })
		l.forget()
		again := l.run(containerd.Pod{Name: "new", UID: uid(2)})
		l.wantConflict(podAddress(1), ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/new | default/old", "NODE node1")
		l.wantNamed(podAddress(1), byCRI("old", uid(1), old), byCRI("new", uid(2), again))
	})
}

func TestL3SandboxThatTheRuntimeRecreates(t *testing.T) {
	onRuntimes(t, true, func(t *testing.T, l *runtimeLab) {
		first := l.run(containerd.Pod{Name: "web-0", UID: uid(1)})
		l.wantNamed(podAddress(1), byCRI("web-0", uid(1), first))
		l.forget()
		second := l.run(containerd.Pod{Name: "web-0", UID: uid(1), Attempt: 1})
		l.wantNamed(podAddress(1), byCRI("web-0", uid(1), first), byCRI("web-0", uid(1), second))
		l.plant()
		if c := l.only(podAddress(1)); c.GetConfirmedAt() != nil || c.GetRule() != "same-pod" {
			t.Errorf("two sandboxes of one pod: got %s by rule %s, want no conflict that was confirmed, by same-pod", c.GetState(), c.GetRule())
		}
		l.remove(first)
		l.watch.await("the suspicion to be resolved", inState(podAddress(1), ipwitnessv1.Conflict_RESOLVED))
		// Only the runtime names the pods here, and it lists a sandbox only when that runs. On a
		// busy machine this takes longer than the default settle time.
	}, "--handover-grace", "1h", "--settle", "10s")
}

func TestL5PodOfTheRuntimeInTheNodesNetwork(t *testing.T) {
	onRuntimes(t, true, func(t *testing.T, l *runtimeLab) {
		l.sh("ip link add lan0 type veth peer name lan1", "ip link set lan0 up", "ip link set lan1 up", "ip addr add 192.0.2.1/24 dev lan0")
		l.run(containerd.Pod{Name: "proxy", UID: uid(1), HostNetwork: true})
		other := l.run(containerd.Pod{Name: "web", UID: uid(2)})
		l.wantNamed(podAddress(1), byCRI("web", uid(2), other))
		l.wantNamed("192.0.2.1", "HOST /node1   by node")
		l.wantOnlyPlanted()
	})
}

// intended returns the intended addresses that an owner lacks.
func intended(o *ipwitnessv1.Owner) string {
	var all []string
	for _, i := range o.GetIntended() {
		all = append(all, fmt.Sprintf("%s %s by %s", i.GetAddress(), i.GetInterface(), i.GetSource()))
	}
	return strings.Join(all, ", ")
}

func TestAddressThatOnlyTheRuntimeRecordsIsShown(t *testing.T) {
	onRuntimes(t, false, func(t *testing.T, l *runtimeLab) {
		l.run(containerd.Pod{Name: "web", UID: uid(1), Labels: map[string]string{"vm.kubevirt.io/name": "desktop"}})
		l.run(containerd.Pod{Name: "other", UID: uid(2)})
		l.awaitOwners(podAddress(2), 1)
		netns := l.awaitOwners(podAddress(1), 1)[0].GetNetns()
		path, err := l.Output(l.Command("sh", "-c", `for f in /run/netns/*; do [ "$(stat -c %i "$f")" != "$0" ] || echo "$f"; done`, netns))
		if err != nil {
			t.Fatal(err)
		}
		in := "nsenter --net=" + strings.TrimSpace(path)
		l.sh(in+" ip addr add 10.99.0.1/32 dev eth0", in+" ip addr del "+podAddress(1)+"/16 dev eth0")
		wait.Until(t, "what was intended", func() bool {
			owners := l.owners("?address=10.99.0.1")
			return len(owners) == 1 && intended(owners[0]) == podAddress(1)+" eth0 by cri"
		})
		if w := l.owners("?address=10.99.0.1")[0].GetWorkload(); w.GetName() != "web" || w.GetVirtualMachine() != "desktop" {
			t.Errorf("owner: got %v, want the pod web of the machine desktop", w)
		}
		if got := intended(l.awaitOwners(podAddress(2), 1)[0]); got != "" {
			t.Errorf("intended addresses of a pod that has its own: got %q, want none", got)
		}
		// A user-space network stack, such as gVisor's, has the address with the MAC of eth0.
		l.announce(filepath.Base(strings.TrimSpace(path)), podAddress(1))
		wait.Until(t, "the wire to show it", func() bool { return intended(l.owners("?address=10.99.0.1")[0]) == "" })
		l.sh(in + " ip addr add " + podAddress(1) + "/16 dev eth0")
		wait.Until(t, "nothing to be missing", func() bool { return intended(l.awaitOwners(podAddress(1), 1)[0]) == "" })
	})
}

func TestRuntimeIsAskedOncePerPod(t *testing.T) {
	onRuntimes(t, false, func(t *testing.T, l *runtimeLab) {
		const pods = 10
		for i := range pods {
			id := l.run(containerd.Pod{Name: fmt.Sprintf("p%d", i), UID: uid(i)})
			l.wantNamed(podAddress(i+1), byCRI(fmt.Sprintf("p%d", i), uid(i), id))
		}
		l.awaitMetric(`ipwitness_agent_cri_calls_total{method="PodSandboxStatus",result="ok"}`, pods)
	})
}

func TestRuntimeWithoutPermissionIsAProblem(t *testing.T) {
	t.Parallel()
	l := newRuntimeLab(t, containerd.Versions()[0])
	if err := os.Chmod(l.runtime.Socket(), 0); err != nil {
		t.Fatal(err)
	}
	// Without CAP_DAC_OVERRIDE, file permissions also apply to root.
	const four = "-all,+net_admin,+net_broadcast,+bpf,+perfmon"
	args := without(four, "run", "--node", "node1")
	l.launch(l.Command(args[0], args[1:]...))
	wait.Until(t, "the problem to be shown", func() bool { return len(l.node().GetProblems()) == 1 })
	said := l.node().GetProblems()[0]
	wantWords(t, said, containerd.Socket, "no permission to use the socket", "permission denied", "names of new pods come from CNI results and processes")
	doctor := without(four, "doctor")
	out, err := l.Output(l.Command(doctor[0], doctor[1:]...))
	if err != nil {
		t.Error("doctor: ", err)
	}
	wantWords(t, out, "container runtime is degraded", "permission denied", "let the process write to that socket")

	if err := os.Chmod(l.runtime.Socket(), 0o600); err != nil {
		t.Fatal(err)
	}
	l.awaitMetric("ipwitness_agent_cri_connected", 1)
	id := l.run(containerd.Pod{Name: "web", UID: uid(1)})
	l.wantNamed(podAddress(1), byCRI("web", uid(1), id))
	wait.Until(t, "no problem once it may be asked", func() bool { return len(l.node().GetProblems()) == 0 })
	if out, err = l.Output(l.Command(doctor[0], doctor[1:]...)); err != nil {
		t.Error("doctor: ", err)
	}
	wantWords(t, out, "containerd ", " at "+containerd.Socket)
}
