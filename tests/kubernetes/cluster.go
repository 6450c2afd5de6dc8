// Package kubernetes runs a real Kubernetes on machines of netlab: etcd, the API server, the
// controller manager and the scheduler on one machine, and a containerd and a kubelet on each of
// the nodes. `make kubernetes` builds the programs.
//
// Nodes are connected to the control plane, but not to each other. Each node has a bridge for its
// pods, with the same range of addresses on all nodes. Everything ends with Close, or with the
// process that created it.
package kubernetes

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// Network is the default pod network. All nodes use the same range, so that the same addresses are
// allocated on each.
var Network = strings.NewReplacer("cbr0", "pods", `"isGateway":true`, `"isDefaultGateway":true`).Replace(netlab.Bridge)

// Address is the address of the control plane's machine.
const Address = "198.18.0.1"

// Options configure a cluster.
type Options struct {
	// Nodes is the number of nodes, which are called node1 and so on.
	Nodes int
	// Network is the configuration of the pods' network (a conflist).
	Network string
	// NodeRanges is a range from which each node is assigned a part (Node.spec.podCIDRs). The
	// network here does not use that. Empty means none.
	NodeRanges string
	// Bare leaves out the controllers and the scheduler.
	Bare bool
	// Containerd is the directory of containerd's programs. If it is empty, they are found in PATH.
	Containerd string
}

// Cluster is a control plane with its nodes.
type Cluster struct {
	*netlab.Host // the machine of the control plane
	Nodes        []*Node

	options     Options
	programs    string // directory of the programs
	etcd, api   *daemon
	controllers []*daemon // including the scheduler
	kubeconfig  string    // of an administrator
}

// New creates a cluster, and waits until all its nodes are ready.
func New(ctx context.Context, o Options) (*Cluster, error) {
	if o.Network == "" {
		o.Network = Network
	}
	programs, err := Programs()
	if err != nil {
		return nil, err
	}
	h, err := netlab.New()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Host: h, options: o, programs: programs}
	if err := c.start(ctx); err != nil {
		err = fmt.Errorf("%w\n%s", err, c.Logs())
		c.Close()
		return nil, err
	}
	return c, nil
}

// Programs returns the directory of the programs: IPWITNESS_KUBERNETES_BIN, or bin/kubernetes of
// the repository that contains the working directory.
func Programs() (string, error) {
	if dir := os.Getenv("IPWITNESS_KUBERNETES_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		bin := filepath.Join(dir, "bin/kubernetes")
		if _, err := os.Stat(filepath.Join(bin, "kubelet")); err == nil {
			return bin, nil
		}
	}
	return "", errors.New("no Kubernetes in bin/kubernetes: run 'make kubernetes', or set IPWITNESS_KUBERNETES_BIN")
}

// start starts the control plane and the nodes, in parallel where possible.
func (c *Cluster) start(ctx context.Context) error {
	if err := c.startControlPlane(); err != nil {
		return err
	}
	for i := range c.options.Nodes {
		n, err := c.newNode(i + 1)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	// Container runtimes do not depend on the API server, so they start before it.
	faults := make([]error, len(c.Nodes))
	var wg sync.WaitGroup
	for i, n := range c.Nodes {
		wg.Go(func() { faults[i] = n.startRuntime(ctx) })
	}
	err := c.awaitAPI(ctx)
	wg.Wait()
	if err := errors.Join(append(faults, err)...); err != nil || c.options.Bare {
		return err
	}
	for _, n := range c.Nodes {
		if err := n.startKubelet(); err != nil {
			return err
		}
	}
	if err := c.startControllers(); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if _, err := c.Kubectl(ctx, "wait", "--for=create", "node/"+n.Name, "--timeout=2m"); err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "node/"+n.Name, "--timeout=2m"); err != nil {
			return err
		}
	}
	// Pods cannot be created before their default service account exists.
	_, err = c.Kubectl(ctx, "wait", "--for=create", "serviceaccount/default", "--timeout=2m")
	return err
}

// The files of the control plane.
const (
	etcDir  = "/var/lib/kubernetes"
	apiCert = etcDir + "/apiserver/apiserver.crt" // signed by itself, created at its start
	saKey   = etcDir + "/sa.key"
	saPub   = etcDir + "/sa.pub"
	tokens  = etcDir + "/tokens.csv"
)

// writeTokens writes the token file. The token of each user is the user's name, because the cluster
// is not reachable from outside.
func (c *Cluster) writeTokens() error {
	lines := []string{"admin,admin,admin,system:masters"}
	for i := range c.options.Nodes {
		name := nodeName(i + 1)
		lines = append(lines, fmt.Sprintf("%s,system:node:%[1]s,%[1]s,system:nodes", name))
	}
	return c.write(tokens, strings.Join(lines, "\n")+"\n")
}

// write writes a file on the control plane's machine.
func (c *Cluster) write(path, text string) error { return write(c.Host, path, text) }

func write(h *netlab.Host, path, text string) error {
	if err := os.MkdirAll(filepath.Dir(h.Path(path)), 0o755); err != nil {
		return err
	}
	// Replace the file atomically, because it may be read at any time.
	if err := os.WriteFile(h.Path(path+".new"), []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(h.Path(path+".new"), h.Path(path))
}

func (c *Cluster) startControlPlane() error {
	if _, err := c.Run("ip addr add %s/32 dev lo", Address); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	err = errors.Join(
		c.writeTokens(),
		c.write(saKey, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))),
		c.write(saPub, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))))
	if err != nil {
		return err
	}
	c.etcd, err = c.begin(c.Host, "etcd", "--data-dir", etcDir+"/etcd", "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380")
	if err != nil {
		return err
	}
	return c.beginAPI()
}

func (c *Cluster) beginAPI() (err error) {
	c.api, err = c.begin(c.Host, "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address="+Address, "--advertise-address="+Address, "--secure-port=6443", "--cert-dir="+filepath.Dir(apiCert),
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--token-auth-file="+tokens,
		"--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP", // node names cannot be resolved
		"--service-account-key-file="+saPub, "--service-account-signing-key-file="+saKey,
		"--service-account-issuer=https://kubernetes.default.svc")
	return err
}

// awaitAPI waits until the API server is ready and accepts the administrator.
func (c *Cluster) awaitAPI(ctx context.Context) error {
	err := c.await(ctx, "the certificate of the API server", func() error {
		if err := c.api.running(); err != nil {
			return err
		}
		_, err := os.Stat(c.Path(apiCert))
		return err
	})
	if err != nil {
		return err
	}
	if c.kubeconfig, err = c.Kubeconfig("admin", "admin"); err != nil {
		return err
	}
	return c.await(ctx, "the API server", func() error {
		if err := c.api.running(); err != nil {
			return err
		}
		_, err := c.Kubectl(ctx, "get", "--raw=/readyz")
		return err
	})
}

func (c *Cluster) startControllers() error {
	args := []string{
		"--kubeconfig=" + c.kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
		"--service-account-private-key-file=" + saKey, "--root-ca-file=" + apiCert,
		// A node whose kubelet is killed by a test must keep its state for the rest of the test.
		"--node-monitor-grace-period=1h",
	}
	if r := c.options.NodeRanges; r != "" {
		args = append(args, "--allocate-node-cidrs=true", "--cluster-cidr="+r)
	}
	manager, err := c.begin(c.Host, "kube-controller-manager", args...)
	if err != nil {
		return err
	}
	c.controllers = []*daemon{manager}
	scheduler, err := c.begin(c.Host, "kube-scheduler", "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1")
	if err != nil {
		return err
	}
	c.controllers = append(c.controllers, scheduler)
	return nil
}

// Kubeconfig writes a kubeconfig for a user with a token. It returns the path, which is the same on
// the control plane's machine and on the nodes.
func (c *Cluster) Kubeconfig(user, token string) (path string, err error) {
	cert, err := os.ReadFile(c.Path(apiCert))
	if err != nil {
		return "", err
	}
	path = "/run/kubernetes/" + user + ".conf"
	const ca = "/run/kubernetes/ca.crt"
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s:6443", certificate-authority: %q}}]
users: [{name: %q, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: %[3]q}}]
current-context: test
`, Address, ca, user, token)
	for _, h := range c.machines() {
		if err := errors.Join(write(h, ca, string(cert)), write(h, path, config)); err != nil {
			return "", err
		}
	}
	return path, nil
}

// ServiceAccount writes a kubeconfig for a service account, and returns its path. Its user has
// exactly the rights of the service account.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string) (path string, err error) {
	token, err := c.Kubectl(ctx, "create", "token", name, "--namespace", namespace, "--duration=12h")
	if err != nil {
		return "", err
	}
	return c.Kubeconfig(namespace+"-"+name, strings.TrimSpace(token))
}

// Outside is the namespace of programs that tests run outside pods, and the prefix of their RBAC
// objects. It keeps them apart from an installed ipwitness.
const Outside = "outside"

// Rights creates the service account Outside-aggregator with the rights of an aggregator, from the
// published manifest.
func (c *Cluster) Rights(ctx context.Context) error {
	manifest, err := os.ReadFile("../../deploy/manifests/base/rbac.yaml")
	if err != nil {
		return err
	}
	renamed := strings.NewReplacer("ipwitness-", Outside+"-", `namespace: "ipwitness"`, "namespace: "+Outside).Replace(string(manifest))
	return c.Apply(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+Outside+"}\n---\n"+renamed)
}

func (c *Cluster) machines() []*netlab.Host {
	all := []*netlab.Host{c.Host}
	for _, n := range c.Nodes {
		all = append(all, n.Host)
	}
	return all
}

// KubectlCommand returns a command that runs kubectl as an administrator on the control plane's
// machine.
func (c *Cluster) KubectlCommand(args ...string) *exec.Cmd {
	return c.Command(filepath.Join(c.programs, "kubectl"), append([]string{"--kubeconfig", c.kubeconfig, "--cache-dir", "/run/kubernetes/cache"}, args...)...)
}

// Kubectl runs kubectl and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, "", args...)
}

// Apply applies a manifest.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	_, err := c.kubectl(ctx, manifest, "apply", "--server-side", "--filename", "-")
	return err
}

func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := c.KubectlCommand(args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, fault netlab.Log
	cmd.Stdout, cmd.Stderr = &out, &fault
	if err := c.Start(cmd); err != nil {
		return "", fmt.Errorf("start kubectl: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), errors.Join(ctx.Err(), err), strings.TrimSpace(fault.String()))
	}
	return out.String(), nil
}

// KillAPI kills the API server as in an accident.
func (c *Cluster) KillAPI() { c.api.kill() }

// RestartAPI starts the API server after KillAPI, and waits until it is ready. It also restarts the
// controllers and the scheduler: each time that they lose the API server within two minutes, they
// wait longer before they reconnect, up to a minute.
func (c *Cluster) RestartAPI(ctx context.Context) error {
	if err := c.beginAPI(); err != nil {
		return err
	}
	if err := c.awaitAPI(ctx); err != nil || c.options.Bare {
		return err
	}
	for _, d := range c.controllers {
		d.kill()
	}
	return c.startControllers()
}

// Logs returns the last lines of the logs of all parts of the cluster.
func (c *Cluster) Logs() string {
	var b strings.Builder
	tail := func(name string, log *netlab.Log) {
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		fmt.Fprintf(&b, "--- %s\n%s\n", name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
	for _, d := range append([]*daemon{c.etcd, c.api}, c.controllers...) {
		if d != nil {
			tail(d.name, d.log)
		}
	}
	for _, n := range c.Nodes {
		if n.Runtime != nil {
			tail("containerd of "+n.Name, n.Runtime.Log)
		}
		if n.kubelet != nil {
			tail("kubelet of "+n.Name, n.kubelet.log)
		}
	}
	return b.String()
}

// Close ends the cluster.
func (c *Cluster) Close() {
	var wg sync.WaitGroup
	for _, n := range c.Nodes {
		wg.Go(n.Close)
	}
	for _, d := range append(c.controllers, c.api, c.etcd) {
		if d != nil {
			d.kill()
		}
	}
	wg.Wait()
	c.Host.Close()
}

// await calls done repeatedly until it returns no error.
func (c *Cluster) await(ctx context.Context, what string, done func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		if _, over := errors.AsType[ended](err); over {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// daemon is a program that runs until it is killed.
type daemon struct {
	name string
	log  *netlab.Log
	cmd  *exec.Cmd
	over chan struct{}
}

// ended is the error that a daemon no longer runs.
type ended string

func (e ended) Error() string { return string(e) + " ended" }

// begin starts one of the programs on a machine.
func (c *Cluster) begin(h *netlab.Host, program string, args ...string) (*daemon, error) {
	d := &daemon{name: program, log: &netlab.Log{}, cmd: h.Command(filepath.Join(c.programs, program), args...), over: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := h.Start(d.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.over)
	}()
	return d, nil
}

func (d *daemon) running() error {
	select {
	case <-d.over:
		return ended(d.name)
	default:
		return nil
	}
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	<-d.over
}
