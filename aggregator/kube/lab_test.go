package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/kubernetes"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// gate is the environment variable that enables tests with a real Kubernetes: make
// test-cluster.
const gate = "IPWITNESS_CLUSTER_TESTS"

// patience is the maximum time to wait for a condition.
const patience = 2 * time.Minute

// shared is the control plane that all tests share. It has only the nodes that tests create.
var shared struct {
	once    sync.Once
	cluster *kubernetes.Cluster
	err     error
	labs    int // number of labs so far
}

func TestMain(m *testing.M) {
	logOfClientGo(slog.New(slog.DiscardHandler)) // otherwise it would log to the first test after that test has ended
	code := m.Run()
	if shared.cluster != nil {
		shared.cluster.Close()
	}
	os.Exit(code)
}

// lab is a namespace on the real control plane, with a mirror of it.
type lab struct {
	*kubernetes.Cluster
	testing.TB
	namespace string
}

func newLab(t testing.TB) *lab {
	t.Helper()
	if os.Getenv(gate) == "" {
		t.Skip("run make test-cluster")
	}
	if err := netlab.Possible(); err != nil {
		t.Fatal(gate+" is set: ", err)
	}
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if shared.cluster, shared.err = kubernetes.New(ctx, kubernetes.Options{}); shared.err == nil {
			shared.err = errors.Join(shared.cluster.Rights(ctx), shared.cluster.Apply(ctx, poor))
		}
	})
	if shared.err != nil {
		t.Fatal("no cluster: ", shared.err)
	}
	shared.labs++
	name := strings.ToLower(t.Name())
	l := &lab{Cluster: shared.cluster, TB: t, namespace: fmt.Sprintf("%s-%d", name[:min(len(name), 50)], shared.labs)}
	l.kube("create", "namespace", l.namespace)
	// Pods cannot be created without the service account. Its controller may have lost the API
	// server in the previous test.
	l.kube("wait", "--for=create", "serviceaccount/default", "--namespace", l.namespace, "--timeout=2m")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the cluster said:\n%s", l.Logs())
		}
		l.kube("delete", "namespace", l.namespace, "--wait=false")
	})
	return l
}

// rich is the service account with all rights of an aggregator.
const rich = kubernetes.Outside + "-aggregator"

// poor is a service account that lacks some of the rights.
const poor = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: poor, namespace: outside}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: poor}
rules:
- {apiGroups: [""], resources: [pods, nodes], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: poor}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: poor}
subjects: [{kind: ServiceAccount, name: poor, namespace: outside}]
`

// kube runs kubectl.
func (l *lab) kube(args ...string) string {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := l.Kubectl(ctx, args...)
	if err != nil {
		l.Fatal(err)
	}
	return out
}

// apply applies a manifest in the test's namespace.
func (l *lab) apply(format string, args ...any) {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	manifest := strings.ReplaceAll(fmt.Sprintf(format, args...), "NAMESPACE", l.namespace)
	if err := l.Apply(ctx, manifest); err != nil {
		l.Fatal(err)
	}
}

// status patches the status of an object.
func (l *lab) status(object, patch string) {
	l.Helper()
	l.kube("patch", "--namespace", l.namespace, object, "--subresource=status", "--type=merge", "--patch", patch)
}

// pod creates a pod that is bound to a node without a kubelet.
func (l *lab) pod(name, node, ip, more string) {
	l.Helper()
	l.apply(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: NAMESPACE
%s
spec:
  nodeName: %s
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers: [{name: main, image: example/image}]
`, name, more, node)
	l.status("pod/"+name, fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%[1]q}]}}`, ip))
}

// node creates a node without a kubelet.
func (l *lab) node(name, cidr string) {
	l.Helper()
	l.apply(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"spec":{"podCIDR":%q,"podCIDRs":[%[2]q]}}`, name, cidr)
	l.Cleanup(func() {
		l.kube("delete", "node", name, "--ignore-not-found", "--wait=false")
		l.kube("delete", "events", "--namespace", "default", "--field-selector", "involvedObject.name="+name)
	})
}

// mirrored is a running mirror with its reported changes.
type mirrored struct {
	*Cluster
	lab  *lab
	stop func()
	// ipam has the reported changes of IPAMs.
	ipam *ledger

	mu      sync.Mutex
	changes []Changes
	conns   []net.Conn
	away    bool
}

// mirror starts a mirror that uses a service account.
func (l *lab) mirror(account string) *mirrored {
	l.Helper()
	return l.replica(account, "")
}

// replica is like mirror, for a replica that shares a Lease with others.
func (l *lab) replica(account, lease string) *mirrored {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	path, err := l.ServiceAccount(ctx, kubernetes.Outside, account)
	if err != nil {
		l.Fatal(err)
	}
	// The mirror runs outside the control plane's mount namespace, so adjust the path of the
	// CA.
	config, err := os.ReadFile(l.Path(path))
	if err != nil {
		l.Fatal(err)
	}
	const ca = "/run/kubernetes/ca.crt"
	file := filepath.Join(l.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(config), ca, l.Path(ca))), 0o600); err != nil {
		l.Fatal(err)
	}
	m := &mirrored{lab: l, ipam: newLedger(l)}
	c, err := open(Config{Kubeconfig: file, Log: slog.New(slog.NewTextHandler(l.Output(), nil)), Version: "test", Lease: lease},
		func(where *rest.Config) { where.Dial = m.dial })
	if err != nil {
		l.Fatal(err)
	}
	m.Cluster = c
	c.discovery.every, c.discovery.check = 100*time.Millisecond, 0
	c.Notify(func(changes Changes) {
		m.ipam.take(changes.IPAM)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.changes = append(m.changes, changes)
	})
	running, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(running) }()
	m.stop = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			l.Errorf("run: %v", err)
		}
	})
	l.Cleanup(m.stop)
	return m
}

// dial connects from the control plane's network namespace.
func (m *mirrored) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return nil, errors.New("the test has cut the connection")
	}
	err = m.lab.Do(func() error {
		// With a literal address there is no lookup, so everything happens on this thread.
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	if err == nil {
		m.conns = append(m.conns, conn)
	}
	return conn, err
}

// cut disconnects the mirror from the API server, or connects it again.
func (m *mirrored) cut(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
	for _, conn := range m.conns {
		_ = conn.Close()
	}
	m.conns = nil
}

// restart restarts the API server.
func (l *lab) restart() {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.RestartAPI(ctx); err != nil {
		l.Fatal(err)
	}
}

// until waits for a condition.
func (m *mirrored) until(what string, is func() bool) {
	m.lab.Helper()
	wait.Until(m.lab, what, is)
}

func (m *mirrored) awaitState(want pb.Kubernetes_State) {
	m.lab.Helper()
	m.until("the state is "+want.String(), func() bool { return m.Status().GetState() == want })
}

// reported reports whether a matching change was reported.
func (m *mirrored) reported(such func(Changes) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.changes, such)
}

// named looks a pod up by its name.
func (m *mirrored) named(name, node string) *verdict.PodObject {
	return m.Pod(m.lab.namespace, name, "", node)
}

// there reports whether the API has a pod, and gone whether it does not. While the API server
// is unavailable, both return false.
func there(p *verdict.PodObject) bool { return p != nil && !p.Absent }
func gone(p *verdict.PodObject) bool  { return p != nil && p.Absent }

// addresses parses addresses.
func addresses(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
