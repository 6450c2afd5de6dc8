package tests

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// containerLab is a host whose agent runs in a container, as in a DaemonSet, beside an aggregator.
type containerLab struct {
	*runtimeLab
	container string // ID
}

// contained is how the agent's container differs from that of a DaemonSet.
type contained struct {
	dirs    []string // directories of the host, mounted at the same paths
	seccomp string   // profile; empty means the runtime's default
}

// parents are the directories of the node that a DaemonSet mounts.
var parents = []string{"/run", "/var/lib", "/etc/cni"}

// startContained starts the agent in a container: as root with the four capabilities, with the
// runtime's default seccomp profile, a read-only root file system and the node's network.
func startContained(t *testing.T, v containerd.Version, o contained) *containerLab {
	t.Helper()
	if os.Getenv("IPWITNESS_BIN") != "" {
		t.Skip("a container of nothing but ipwitness needs a static one: unset IPWITNESS_BIN")
	}
	l := &containerLab{runtimeLab: newRuntimeLab(t, v)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := l.Aggregator(ctx, binary)
	if err != nil {
		t.Fatal(err)
	}
	killed(t, "the aggregator", p)
	l.service = &service{at: l.Host, program: p, watch: watchConflicts(t, p)}
	const image = "localhost/ipwitness:1"
	if err := l.runtime.Import(ctx, image, netlab.AgentOf(binary)); err != nil {
		t.Fatal(err)
	}
	pod := containerd.Pod{Name: "ipwitness-agent", Namespace: "ipwitness", HostNetwork: true, Logs: "/run/ipwitness-logs"}
	sandbox, err := l.runtime.RunPod(ctx, pod)
	if err != nil {
		t.Fatal(err)
	}
	var mounts []*runtimev1.Mount
	for _, dir := range o.dirs {
		if err := os.MkdirAll(l.Path(dir), 0o755); err != nil { // hostPath's DirectoryOrCreate
			t.Fatal(err)
		}
		mounts = append(mounts, &runtimev1.Mount{
			HostPath: dir, ContainerPath: dir, Readonly: true, Propagation: runtimev1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
		})
	}
	seccomp := &runtimev1.SecurityProfile{ProfileType: runtimev1.SecurityProfile_RuntimeDefault}
	if o.seccomp != "" {
		const profile = "/run/seccomp.json"
		if err := os.WriteFile(l.Path(profile), []byte(o.seccomp), 0o600); err != nil {
			t.Fatal(err)
		}
		seccomp = &runtimev1.SecurityProfile{ProfileType: runtimev1.SecurityProfile_Localhost, LocalhostRef: profile}
	}
	l.container, err = l.runtime.RunContainerAs(ctx, sandbox, pod, &runtimev1.ContainerConfig{
		Metadata: &runtimev1.ContainerMetadata{Name: "agent"},
		Image:    &runtimev1.ImageSpec{Image: image},
		Args:     []string{"--node", "node1", "--aggregator", "127.0.0.1:9640"},
		Mounts:   mounts,
		LogPath:  "agent.log",
		Linux: &runtimev1.LinuxContainerConfig{SecurityContext: &runtimev1.LinuxContainerSecurityContext{
			Capabilities: &runtimev1.Capability{
				DropCapabilities: []string{"ALL"},
				AddCapabilities:  []string{"NET_ADMIN", "NET_BROADCAST", "BPF", "PERFMON"},
			},
			NamespaceOptions: &runtimev1.NamespaceOption{Network: runtimev1.NamespaceMode_NODE, Pid: runtimev1.NamespaceMode_CONTAINER},
			RunAsUser:        &runtimev1.Int64Value{},
			ReadonlyRootfs:   true,
			NoNewPrivs:       true,
			Seccomp:          seccomp,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(l.Path("/run/ipwitness-logs/agent.log"))
			t.Logf("the agent said:\n%s", log)
		}
	})
	wait.Until(t, "the agent to report", func() bool {
		nodes, err := p.Nodes(t.Context())
		return err == nil && len(nodes) == 1
	})
	return l
}

// onContainers runs a test with an agent in a container of each available containerd.
func onContainers(t *testing.T, o contained, test func(t *testing.T, l *containerLab)) {
	t.Parallel()
	for _, v := range containerd.Versions() {
		t.Run("containerd "+v.Name, func(t *testing.T) {
			t.Parallel()
			test(t, startContained(t, v, o))
		})
	}
}

// configure writes the configuration of a host network that keeps its allocations in a directory of
// its own.
func (l *containerLab) configure(name, dataDir string) {
	l.t.Helper()
	conf := strings.NewReplacer(`"kindnet"`, `"`+name+`"`, "/run/cni-ipam-state", dataDir, "10.244.", "10.245.").Replace(netlab.PTP)
	if err := os.WriteFile(l.Path("/etc/cni/net.d/20-"+name+".conflist"), []byte(conf), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// doctor runs ipwitness-agent doctor in the agent's container.
func (l *containerLab) doctor() string {
	l.t.Helper()
	r, err := l.runtime.Runtime().ExecSync(l.t.Context(), &runtimev1.ExecSyncRequest{
		ContainerId: l.container, Cmd: []string{"/" + filepath.Base(netlab.AgentOf(binary)), "doctor"}, Timeout: int64(patience.Seconds()),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return string(r.GetStdout()) + string(r.GetStderr())
}

// awaitWords waits until a text contains all of the words.
func awaitWords(t *testing.T, what string, text func() string, words ...string) {
	t.Helper()
	var said string
	defer func() {
		if t.Failed() {
			t.Logf("%s: got %s, want %q in it", what, said, words)
		}
	}()
	wait.Until(t, what, func() bool {
		said = text()
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(said, w) })
	})
}

// unreadable waits until the only finding is that a pool cannot be read, and its text contains the
// reasons.
func (l *containerLab) unreadable(pool string, why ...string) {
	l.t.Helper()
	awaitWords(l.t, pool+" to be found unreadable", func() string {
		if got := l.findings("?kind=ipam-unreadable"); len(got) == 1 {
			return got[0].GetSummary()
		}
		return ""
	}, append(why, pool)...)
}

// problems waits until the problems of the node contain the words.
func (l *containerLab) problems(words ...string) {
	l.t.Helper()
	awaitWords(l.t, "problems of the node", func() string { return strings.Join(l.node().GetProblems(), "\n") }, words...)
}

func TestAgentInAContainerSeesAllOfTheNode(t *testing.T) {
	onContainers(t, contained{dirs: parents}, func(t *testing.T, l *containerLab) {
		l.run(containerd.Pod{Name: "web", UID: uid(1)})
		l.awaitPod(podAddress(1), "web")
		// The name of the pod may come from its CNI result, so wait for the runtime too.
		wait.Until(t, "the runtime to be known", func() bool { return strings.HasPrefix(l.node().GetRuntime(), "containerd") })
		if n := l.node(); n.GetWire() == "off" || len(n.GetProblems()) != 0 {
			t.Errorf("node: got %v, want frames, addresses, names and no problem", n)
		}
		awaitWords(t, "the agent's log", func() string {
			said, _ := os.ReadFile(l.Path("/run/ipwitness-logs/agent.log")) // containerd writes it
			return string(said)
		}, `dropped="CAP_NET_BROADCAST CAP_PERFMON CAP_BPF" kept=CAP_NET_ADMIN`)
		if said := l.doctor(); strings.Contains(said, "missing") || strings.Contains(said, "not mounted") {
			t.Errorf("doctor said:\n%s", said)
		}

		// The agent must not keep the namespace alive: the veth disappears only when the namespace
		// really ends, because nobody deletes it.
		l.pod("short", "10.99.0.7/24")
		l.awaitOwners("10.99.0.7", 1)
		l.sh("ip netns del short")
		l.awaitOwners("10.99.0.7", 0)
		wait.Until(t, "the namespace to be gone", func() bool {
			_, err := l.Run("ip link show vshort")
			return err != nil
		})

		// The accident of the blog post, once in each directory.
		l.awaitAllocations(1)
		l.forget()
		l.awaitFindings("in-use-unallocated "+podAddress(1), "ipam-state-lost")
		l.run(containerd.Pod{Name: "db", UID: uid(2)})
		l.watch.await("the duplicate", inState(podAddress(1), ipwitnessv1.Conflict_CONFIRMED))
		l.configure("other", "/var/lib/cni/networks")
		file := l.Path("/var/lib/cni/networks/other/10.245.0.9")
		for range 2 {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte("container\r\neth0"), 0o600); err != nil {
				t.Fatal(err)
			}
			l.awaitAllocations(2)
			if err := os.RemoveAll(l.Path("/var/lib/cni")); err != nil {
				t.Fatal(err)
			}
			l.awaitAllocations(1)
		}
	})
}

func TestIPAMDirectoryThatIsNotMountedIsAFinding(t *testing.T) {
	onContainers(t, contained{dirs: parents}, func(t *testing.T, l *containerLab) {
		l.configure("far", "/data/ipam")
		l.unreadable("/data/ipam/far", "not mounted into the agent's container", "mount /data of the node", "HostToContainer")
		l.problems("/data/ipam/far", "mount /data of the node")

		// A symbolic link that points outside the mounted directories.
		l.sh("rm /etc/cni/net.d/20-far.conflist")
		wait.Until(t, "no finding", func() bool { return len(l.findings("?kind=ipam-unreadable")) == 0 })
		l.sh("rm -rf /var/lib/cni", "ln -s /data/cni /var/lib/cni")
		l.configure("linked", "/var/lib/cni/networks")
		l.unreadable("/var/lib/cni/networks/linked", "mount /data/cni of the node")
	})
}

func TestContainerWithNothingMountedSaysWhatToMount(t *testing.T) {
	onContainers(t, contained{}, func(t *testing.T, l *containerLab) {
		l.problems("CNI configurations", "mount /etc/cni of the node", "host-local", "mount /var/lib/cni of the node")
		wantWords(t, l.doctor(), "/run/netns: it is not mounted", "mount /run of the node", "mount /etc/cni of the node", "mount /var/lib/cni of the node")
	})
}

func TestContainerWithFewerMountsLosesWhatTheDocsSay(t *testing.T) {
	less := []string{"/run/netns", "/run/cni-ipam-state", "/var/lib/cni", "/etc/cni"}
	onContainers(t, contained{dirs: less}, func(t *testing.T, l *containerLab) {
		l.run(containerd.Pod{Name: "web", UID: uid(1)})
		l.awaitPod(podAddress(1), "web") // from its CNI result
		l.awaitAllocations(1)
		l.pod("short", "10.99.0.7/24")
		l.awaitOwners("10.99.0.7", 1)
		l.sh("ip netns del short")
		wait.Until(t, "the namespace to be gone", func() bool {
			_, err := l.Run("ip link show vshort")
			return err != nil
		})
		if got := l.node().GetProblems(); len(got) != 0 {
			t.Errorf("problems: got %q, want none", got)
		}
		l.configure("other", "/var/lib/cni/networks")
		l.sh("rm -rf /var/lib/cni", "mkdir -p /var/lib/cni/networks/other")
		l.unreadable("/var/lib/cni/networks/other", "the directory that was mounted here was removed", "mount its parent instead")
	})
}

func TestSeccompProfileThatDeniesBPFIsNamed(t *testing.T) {
	const deny = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["bpf"],"action":"SCMP_ACT_ERRNO"}]}`
	onContainers(t, contained{dirs: parents, seccomp: deny}, func(t *testing.T, l *containerLab) {
		l.run(containerd.Pod{Name: "web", UID: uid(1)})
		l.awaitPod(podAddress(1), "web")
		if n := l.node(); n.GetWire() != "off" {
			t.Errorf("wire without bpf(2): got %s, want off", n.GetWire())
		}
		l.problems("frames are not seen", "no capability is missing: look for a seccomp profile")
		wantWords(t, l.doctor(), "observer is missing", "what to do:   look for what denies it: a seccomp profile")
	})
}
