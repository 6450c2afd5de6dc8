package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/situations"
)

// patience is the longest time that a test waits for a condition. It is not a performance budget.
const patience = 2 * time.Minute

// gate is set if tests with a cluster should run: make test-cluster.
const gate = "IPWITNESS_CLUSTER_TESTS"

// binary is the path of ipwitness: IPWITNESS_BIN (for example a race build), or one built once for
// all tests.
var binary = os.Getenv("IPWITNESS_BIN")

// one is the cluster that all tests share. The first test that needs it starts it.
var one struct {
	once    sync.Once
	cluster *Cluster
	// kubeconfig is a kubeconfig with the rights of an aggregator.
	kubeconfig string
	took       time.Duration
	err        error
}

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		if os.Getenv(gate) != "" && binary == "" {
			dir, err := os.MkdirTemp("", "ipwitness-test")
			if err != nil {
				return 1, err
			}
			defer func() { _ = os.RemoveAll(dir) }()
			if binary, err = netlab.Build(dir); err != nil {
				return 1, err
			}
		}
		defer func() {
			if one.cluster != nil {
				one.cluster.Close()
			}
		}()
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// needCluster skips the test unless gate is set.
func needCluster(t *testing.T) {
	t.Helper()
	if os.Getenv(gate) == "" {
		t.Skip("run make test-cluster")
	}
	if err := errors.Join(netlab.Possible(), containerd.Versions()[0].Missing); err != nil {
		t.Fatal(gate+" is set: ", err)
	}
}

// lab is the view that one test has of the shared cluster: its own namespace, aggregator and
// agents.
type lab struct {
	*Cluster
	t          *testing.T
	namespace  string
	kubeconfig string // with the rights of an aggregator

	aggregator *netlab.Program
	agents     map[string]*netlab.Program // by node
	// agent is the program that runs as the agents.
	agent string
}

// newLab waits for the cluster, and creates a namespace in it. Tests with a lab do not run in
// parallel, because they share the nodes.
func newLab(t *testing.T, namespace string) *lab {
	t.Helper()
	needCluster(t)
	one.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		begin := time.Now()
		if one.cluster, one.err = New(ctx, Options{Nodes: 2}); one.err != nil {
			return
		}
		one.took = time.Since(begin)
		if one.err = one.cluster.Rights(ctx); one.err == nil {
			one.kubeconfig, one.err = one.cluster.ServiceAccount(ctx, Outside, Outside+"-aggregator")
		}
	})
	if one.err != nil {
		t.Fatal("no cluster: ", one.err)
	}
	l := &lab{Cluster: one.cluster, t: t, namespace: namespace, kubeconfig: one.kubeconfig, agents: map[string]*netlab.Program{}, agent: binary}
	t.Logf("the cluster was ready after %s", one.took.Round(10*time.Millisecond))
	for _, n := range l.Nodes {
		if err := n.Forget(); err != nil { // so that each test gets the same addresses
			t.Fatal(err)
		}
	}
	l.kube("wait", "--for=delete", "namespace/"+l.namespace, "--timeout=2m") // with -count, a previous run may still be deleting it
	l.kube("create", "namespace", l.namespace)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pods; output of the cluster:\n%s\n%s", l.tryKube("get", "pods", "--all-namespaces", "--output", "wide"), l.Logs())
		}
		// No pod may hold an address in the next test, so wait for their deletion. The rest of the
		// namespace may take longer.
		out := l.tryKube("--namespace", l.namespace, "delete", "deployment,pod", "--all", "--cascade=foreground", "--timeout=2m")
		if strings.Contains(out, "rror") {
			t.Errorf("delete pods: %s", out)
		}
		l.kube("delete", "namespace", l.namespace, "--wait=false")
		// Events of this test, also those of its nodes, must not appear in the next test.
		for _, namespace := range []string{l.namespace, "default"} {
			l.kube("delete", "--raw", "/api/v1/namespaces/"+namespace+"/events")
		}
	})
	l.in("wait", "--for=create", "serviceaccount/default", "--timeout=2m") // pods need it
	return l
}

// context returns a context with a time limit. It is also valid during clean-up.
func (l *lab) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(l.t.Context()), patience)
}

// kube runs kubectl.
func (l *lab) kube(args ...string) string {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	out, err := l.Kubectl(ctx, args...)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// tryKube runs kubectl, and returns errors as text.
func (l *lab) tryKube(args ...string) string {
	ctx, cancel := l.context()
	defer cancel()
	out, err := l.Kubectl(ctx, args...)
	if err != nil {
		out += err.Error()
	}
	return out
}

// in runs kubectl in the test's namespace.
func (l *lab) in(args ...string) string {
	l.t.Helper()
	return l.kube(append([]string{"--namespace", l.namespace}, args...)...)
}

// apply applies a manifest in the test's namespace.
func (l *lab) apply(manifest string) {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	if _, err := l.kubectl(ctx, manifest, "--namespace", l.namespace, "apply", "--server-side", "--filename", "-"); err != nil {
		l.t.Fatal(err)
	}
}

// deploy creates a Deployment whose pods are spread over the nodes, and waits until they run.
func (l *lab) deploy(name string, replicas int) {
	l.t.Helper()
	l.apply(fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
        - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: %[1]s}}}
      containers: [{name: main, image: %[3]q, imagePullPolicy: Never}]
`, name, replicas, containerd.Image))
	l.in("rollout", "status", "deployment/"+name, "--timeout=2m")
}

// run creates a pod on a node, and waits until it runs. Its labels and further fields of its spec
// are given in JSON syntax.
func (l *lab) run(name, node, labels string, fields ...string) pod {
	l.t.Helper()
	spec := strings.Join(append([]string{fmt.Sprintf(`"nodeName": %q, "terminationGracePeriodSeconds": 1`, node)}, fields...), ", ")
	l.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "labels": {%s}},
		"spec": {%s, "containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never"}]}}`, name, labels, spec, containerd.Image))
	l.in("wait", "--for=condition=Ready", "pod/"+name, "--timeout=2m")
	return l.pod(name)
}

// pod returns one pod of the test's namespace.
func (l *lab) pod(name string) pod {
	l.t.Helper()
	for _, p := range l.pods("") {
		if p.Name == name {
			return p
		}
	}
	l.t.Fatalf("no pod %s", name)
	return pod{}
}

// node returns a node by its name.
func (l *lab) node(name string) *Node {
	l.t.Helper()
	for _, n := range l.Nodes {
		if n.Name == name {
			return n
		}
	}
	l.t.Fatalf("no node %s", name)
	return nil
}

// sandbox waits until a pod has exactly one sandbox, other than the given one.
func (l *lab) sandbox(p pod, not string) (got Sandbox) {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	l.until("one sandbox of "+p.Name, func() error {
		all, err := l.node(p.Node).Sandboxes(ctx, p.UID)
		if err != nil {
			return err
		}
		if len(all) != 1 || all[0].ID == not {
			return fmt.Errorf("got %v", all)
		}
		got = all[0]
		return nil
	})
	return got
}

// announce makes pods announce their addresses, and waits until the agent has seen it. The
// announcement of the plugin may precede the agent's observer.
func (l *lab) announce(pods ...pod) {
	l.t.Helper()
	for _, p := range pods {
		ns, err := l.node(p.Node).PodAt(fmt.Sprintf("/proc/%d/ns/net", l.sandbox(p, "").PID))
		if err != nil {
			l.t.Fatal(err)
		}
		defer ns.Close()
		addr := netip.MustParseAddr(p.Address)
		l.until(p.Name+" to be heard", func() error {
			err := ns.Do(func() error {
				i, err := net.InterfaceByName("eth0")
				if err != nil {
					return err
				}
				return netlab.Send("eth0", netlab.ARP(1, i.HardwareAddr, addr, addr))
			})
			if err != nil {
				return err
			}
			owners, err := l.listOwners(p.Address)
			for _, o := range owners {
				heard := func(e *ipwitnessv1.Evidence) bool { return e.GetKind() == ipwitnessv1.Evidence_ANNOUNCED }
				if nameOf(o) == l.owner(p) && slices.ContainsFunc(o.GetEvidence(), heard) {
					return nil
				}
			}
			return errors.Join(fmt.Errorf("not yet: %v", owners), err)
		})
	}
}

// sh runs a command line on a node.
func (l *lab) sh(n *Node, format string, args ...any) {
	l.t.Helper()
	if _, err := n.Run(format, args...); err != nil {
		l.t.Fatal(err)
	}
}

// plant creates a true duplicate of two namespaces without pods on every node, and waits until it
// is confirmed. This proves that everything that was reported a settle time earlier has been
// judged, too.
func (l *lab) plant() {
	l.t.Helper()
	planted := func(i int) string { return fmt.Sprintf("198.51.100.%d", i+1) }
	for i, n := range l.Nodes {
		for _, name := range []string{"plant1", "plant2"} {
			if err := n.Namespace(name); err != nil {
				l.t.Fatal(err)
			}
			l.t.Cleanup(func() { l.sh(n, "ip netns del %s", name) })
			l.sh(n, "ip link add v%s type veth peer name eth0 netns %[1]s", name)
			// Delete the port immediately: it would disappear some time after its namespace,
			// perhaps during another test.
			l.t.Cleanup(func() { l.sh(n, "ip link del v%s", name) })
			l.sh(n, "ip link set v%s up", name)
			l.sh(n, "ip -n %s link set eth0 up", name)
			l.sh(n, "ip -n %s addr add %s/32 dev eth0", name, planted(i))
		}
	}
	for i := range l.Nodes {
		l.awaitConflict(planted(i), ipwitnessv1.Conflict_CONFIRMED)
	}
}

// wantOnlyPlanted plants duplicates, and fails if any other conflict is or was confirmed, except
// for the given addresses.
func (l *lab) wantOnlyPlanted(addrs ...string) {
	l.t.Helper()
	l.plant()
	for _, c := range l.conflicts("") {
		if c.GetConfirmedAt() != nil && !slices.Contains(addrs, c.GetAddress()) && !strings.HasPrefix(c.GetAddress(), "198.51.100.") {
			l.t.Errorf("a look-alike was confirmed: %v", c)
		}
	}
}

// awaitHolders waits until an address is held by exactly these pods.
func (l *lab) awaitHolders(addr string, pods ...pod) {
	l.t.Helper()
	var want []string
	for _, p := range pods {
		want = append(want, l.owner(p))
	}
	slices.Sort(want)
	l.until("the right holders of "+addr, func() error {
		got, err := l.listHolders(addr)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("got %v, want %v", got, want)
		}
		return err
	})
}

// pod is the part of a pod in the API that tests use.
type pod struct {
	Name, UID, Node, Address, Phase string
}

// pods lists the pods of the test's namespace that match a selector, sorted by name.
func (l *lab) pods(selector string) []pod {
	l.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name, UID string }
			Spec     struct{ NodeName string }
			Status   struct{ PodIP, Phase string }
		}
	}
	if err := json.Unmarshal([]byte(l.in("get", "pods", "--selector", selector, "--output", "json")), &list); err != nil {
		l.t.Fatal(err)
	}
	var pods []pod
	for _, i := range list.Items {
		pods = append(pods, pod{Name: i.Metadata.Name, UID: i.Metadata.UID, Node: i.Spec.NodeName, Address: i.Status.PodIP, Phase: i.Status.Phase})
	}
	slices.SortFunc(pods, func(a, b pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// witness starts an aggregator on the control plane's machine and an agent on each node, and waits
// until they are connected.
func (l *lab) witness(aggregatorArgs ...string) {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	p, err := l.Aggregator(ctx, binary, append([]string{"--kubeconfig", l.kubeconfig}, aggregatorArgs...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.killed("the aggregator", p)
	l.aggregator = p
	for _, n := range l.Nodes {
		l.startAgent(n)
	}
	l.until("both nodes to be live", func() error {
		nodes, err := p.Nodes(ctx)
		for _, n := range nodes {
			if n.GetState() != ipwitnessv1.Node_LIVE {
				err = errors.Join(err, fmt.Errorf("%s is %s", n.GetName(), n.GetState()))
			}
		}
		if len(nodes) != len(l.Nodes) {
			err = errors.Join(err, fmt.Errorf("got %d nodes", len(nodes)))
		}
		return err
	})
}

// api waits until the aggregator's connection to the Kubernetes API is in a state.
func (l *lab) api(state ipwitnessv1.Kubernetes_State) {
	l.t.Helper()
	l.until(fmt.Sprintf("the Kubernetes API to be %s", state), func() error {
		var m ipwitnessv1.ListNodesResponse
		if err := l.aggregator.Get(l.t.Context(), "/v1/nodes", &m); err != nil {
			return err
		}
		k := m.GetKubernetes()
		if k.GetState() != state {
			return fmt.Errorf("it is %v", k)
		}
		return nil
	})
}

// startAgent starts the agent of a node, as in a DaemonSet: it sees the node's processes.
func (l *lab) startAgent(n *Node, args ...string) {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	p, err := n.Agent(ctx, l.agent, append([]string{"--node", n.Name, "--exclude-interfaces", Uplink, "--aggregator", Address + ":9640"}, args...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.killed("the agent of "+n.Name, p)
	l.agents[n.Name] = p
}

// killed kills a program when the test ends, and logs its last output if the test failed.
func (l *lab) killed(name string, p *netlab.Program) {
	l.t.Cleanup(func() {
		if l.t.Failed() {
			lines := strings.Split(p.Log.String(), "\n")
			l.t.Logf("%s said:\n%s", name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
		p.Kill()
	})
}

// until calls cond until it returns no error.
func (l *lab) until(what string, cond func() error) {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	if err := l.await(ctx, what, cond); err != nil {
		l.t.Fatal(err)
	}
}

// conflicts lists the conflicts of an address, including resolved ones.
func (l *lab) conflicts(addr string) []*ipwitnessv1.Conflict {
	l.t.Helper()
	all, err := l.listConflicts(addr)
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

// listConflicts is like conflicts, but returns errors, because an aggregator that is being replaced
// may interrupt an answer.
func (l *lab) listConflicts(addr string) ([]*ipwitnessv1.Conflict, error) {
	var m ipwitnessv1.ListConflictsResponse
	err := l.aggregator.Get(l.t.Context(), "/v1/conflicts?all=true&page_size=10000&address="+addr, &m)
	return m.GetConflicts(), err
}

// awaitConflict waits until the conflict of an address is in a state.
func (l *lab) awaitConflict(addr string, state ipwitnessv1.Conflict_State) *ipwitnessv1.Conflict {
	l.t.Helper()
	return l.awaitConflictSuch(addr, state, func(*ipwitnessv1.Conflict) error { return nil })
}

// awaitConflictSuch waits until the conflict of an address is in a state and such returns no error
// for it. Names, controllers and causes may be known later than the state.
func (l *lab) awaitConflictSuch(addr string, state ipwitnessv1.Conflict_State, such func(*ipwitnessv1.Conflict) error) (got *ipwitnessv1.Conflict) {
	l.t.Helper()
	l.until(fmt.Sprintf("the conflict of %s to be %s", addr, state), func() error {
		all, err := l.listConflicts(addr)
		if err != nil {
			return err
		}
		for _, got = range all {
			if got.GetState() == state {
				return such(got)
			}
		}
		holders, err := l.listHolders(addr)
		return errors.Join(fmt.Errorf("the conflict is %v; the owners are %v", all, holders), err)
	})
	return got
}

// row checks a row of docs/situations.md.
func (l *lab) row(id, addr, rule string) {
	l.t.Helper()
	if l.t.Failed() {
		return // a wrong result must not update the text
	}
	situations.Check(l.t, "../testdata/situations", id, addr, rule, func() situations.Output {
		s := situations.Output{Printed: l.ipwitness("explain", addr), Explanation: &ipwitnessv1.ExplainResponse{}}
		if err := l.aggregator.Get(l.t.Context(), "/v1/explain?address="+addr, s.Explanation); err != nil {
			l.t.Fatal(err)
		}
		return s
	})
}

// incident begins an incident of docs/incidents.md. What it shows is compared with its file when the
// test ends.
func (l *lab) incident(number int) *situations.Incident {
	l.t.Helper()
	i := situations.Play(l.t, "../testdata/incidents", number, l.aggregator.Cmd.Args)
	l.t.Cleanup(i.Check)
	return i
}

// ipwitness runs ipwitness, and returns its output.
func (l *lab) ipwitness(args ...string) string {
	l.t.Helper()
	out, err := l.Stdout(l.Command(binary, args...))
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// listHolders returns NODE/NAMESPACE/NAME/UID of each holder of an address.
func (l *lab) listHolders(addr string) (names []string, err error) {
	all, err := l.listOwners(addr)
	for _, o := range all {
		if o.GetState() == ipwitnessv1.Owner_LIVE && o.GetExcluded() == "" {
			names = append(names, nameOf(o))
		}
	}
	slices.Sort(names)
	return names, err
}

// listOwners lists all owners of an address.
func (l *lab) listOwners(addr string) ([]*ipwitnessv1.Owner, error) {
	var m ipwitnessv1.ListOwnersResponse
	err := l.aggregator.Get(l.t.Context(), "/v1/owners?address="+addr, &m)
	return m.GetOwners(), err
}

// nameOf returns NODE/NAMESPACE/NAME/UID of an owner.
func nameOf(o *ipwitnessv1.Owner) string {
	w := o.GetWorkload()
	return strings.Join([]string{o.GetNode(), w.GetNamespace(), w.GetName(), w.GetUid()}, "/")
}

// owner returns the name that nameOf gives to a pod of the test.
func (l *lab) owner(p pod) string {
	return strings.Join([]string{p.Node, l.namespace, p.Name, p.UID}, "/")
}
