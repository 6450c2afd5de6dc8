package kubernetes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// The chart and the manifests that are installed.
var (
	chart     = absolute("../../deploy/helm/ipwitness")
	manifests = absolute("../../deploy/manifests")
)

func absolute(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		panic(err) // there is no working directory
	}
	return path
}

// installed is the shared cluster with an installed ipwitness: agents and aggregator run in pods,
// and are reached through the Service.
type installed struct {
	*lab
	services   *Services
	repository string // of the image
	tag        string
}

const (
	home = "ipwitness" // the namespace of the installation
	// nextTag is another tag of the image. It consists of digits only, as the short hash of a
	// commit can, but must stay a string: --set would make it a number.
	nextTag = "3020260"
	// definition is the name of the definition of the chart's custom resource.
	definition = "addressconflictacknowledgements.ipwitness.io"
)

// newInstalled prepares an installation.
func newInstalled(t *testing.T, namespace string) *installed {
	t.Helper()
	l := newLab(t, namespace)
	ctx, cancel := l.context()
	defer cancel()
	services, err := l.Services(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(services.Close)
	i := &installed{lab: l, services: services}
	archive, name, err := Image()
	if err != nil {
		t.Fatal(err)
	}
	i.repository, i.tag = name[:strings.LastIndex(name, ":")], name[strings.LastIndex(name, ":")+1:]
	if _, err := l.ImportImage(ctx, i.repository+":"+nextTag); err != nil {
		t.Fatal(err)
	}
	t.Logf("image %s of %s", name, archive)
	l.kube("wait", "--for=delete", "namespace/"+home, "--timeout=2m") // left by the previous test
	before := i.objects()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", i.logs())
		}
		_, _ = i.helm("uninstall", "ipwitness", "--ignore-not-found", "--wait") // left by a test that failed
		i.tryKube("delete", "namespace", home, "--ignore-not-found", "--timeout=2m")
		i.tryKube("delete", "crd", definition, "--ignore-not-found", "--timeout=2m") // Helm does not delete it
		i.until("nothing to be left behind", func() error {
			if left := missing(i.objects(), before); len(left) > 0 {
				return errors.New(strings.Join(left, "\n"))
			}
			return nil
		})
	})
	return i
}

// missing returns the elements of all that are not in some.
func missing(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// objects lists all objects in the cluster, except those in the namespaces of tests and those that
// Kubernetes itself creates and deletes.
func (i *installed) objects() []string {
	i.t.Helper()
	kinds := strings.Fields(i.kube("api-resources", "--verbs=list", "--output=name"))
	kinds = slices.DeleteFunc(kinds, func(kind string) bool {
		return slices.Contains([]string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses"}, kind)
	})
	out := i.kube("get", strings.Join(kinds, ","), "--all-namespaces", "--ignore-not-found",
		"--output", `jsonpath={range .items[*]}{.kind} {.metadata.namespace} {.metadata.name}{"\n"}{end}`)
	var all []string
	for line := range strings.Lines(out) {
		if w := strings.Fields(line); len(w) > 0 && !strings.Contains(line, i.namespace) {
			all = append(all, strings.Join(w, " "))
		}
	}
	slices.Sort(all)
	return all
}

// logs returns the logs and Events of the pods.
func (i *installed) logs() string {
	return strings.Join([]string{
		i.tryKube("--namespace", home, "get", "pods", "--output", "wide"),
		i.tryKube("--namespace", home, "get", "events"),
		i.tryKube("--namespace", home, "describe", "pods"),
		i.tryKube("--namespace", home, "logs", "--selector", "app.kubernetes.io/name=ipwitness", "--prefix", "--tail=30"),
	}, "\n")
}

// helm runs Helm as an administrator.
func (i *installed) helm(args ...string) (string, error) {
	cmd := i.Command(filepath.Join(i.programs, "helm"), append([]string{"--kubeconfig", i.Cluster.kubeconfig, "--namespace", home}, args...)...)
	return i.Output(cmd)
}

// mustHelm runs Helm, which must succeed.
func (i *installed) mustHelm(args ...string) string {
	i.t.Helper()
	out, err := i.helm(args...)
	if err != nil {
		i.t.Fatal(err)
	}
	return out
}

// values returns the values that the test cluster needs because it has no registry.
func (i *installed) values(more ...string) []string {
	args := []string{"--set", "image.pullPolicy=Never,image.repository=" + i.repository, "--set-string", "image.tag=" + i.tag}
	for _, m := range more {
		args = append(args, "--set", m)
	}
	return args
}

// install installs the chart, and waits until the aggregator answers. The test cluster has no storage
// class, so the data is in an emptyDir unless values say otherwise.
func (i *installed) install(values ...string) {
	i.t.Helper()
	i.mustHelm(append([]string{"install", "ipwitness", chart, "--create-namespace"}, i.values(append([]string{"aggregator.persistence.enabled=false"}, values...)...)...)...)
	i.reach()
}

// bearer adds a token to each request.
type bearer struct {
	token string
	http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.RoundTripper.RoundTrip(r)
}

// as returns the aggregator for queries with a token: through the Service, by its name, with TLS
// verified by ConfigMap ipwitness-ca.
func (i *installed) as(token string) (*netlab.Program, error) {
	ca, err := i.authority()
	if err != nil {
		return nil, err
	}
	return i.verifiedBy(ca, token)
}

// authority returns ConfigMap ipwitness-ca.
func (i *installed) authority() (string, error) {
	ctx, cancel := i.context()
	defer cancel()
	return i.Kubectl(ctx, "--namespace", home, "get", "configmap", "ipwitness-ca", "--output", `jsonpath={.data.ca\.crt}`)
}

// verifiedBy returns the aggregator for queries by a client that trusts a CA.
func (i *installed) verifiedBy(ca, token string) (*netlab.Program, error) {
	ctx, cancel := i.context()
	defer cancel()
	address, err := i.services.Serve(ctx, home, "ipwitness")
	if err != nil {
		return nil, err
	}
	dial := i.Client().Transport.(*http.Transport).DialContext
	return query("ipwitness."+home+".svc", ca, token, func(ctx context.Context) (net.Conn, error) {
		return dial(ctx, "tcp", net.JoinHostPort(address, "9641"))
	})
}

// query returns an aggregator for queries by its name. Each request opens a connection, because the next
// one may go to another pod.
func query(name, ca, token string, dial func(context.Context) (net.Conn, error)) (*netlab.Program, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca)) {
		return nil, fmt.Errorf("no certificate in %q", ca)
	}
	return netlab.Remote("https://"+name+":9641", &http.Client{Transport: bearer{token, &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13},
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}}), nil
}

// token returns a token of a service account, for the aggregator.
func (i *installed) token(ctx context.Context, account string) (string, error) {
	out, err := i.Kubectl(ctx, "--namespace", home, "create", "token", account, "--audience", "ipwitness")
	return strings.TrimSpace(out), err
}

// reach waits until the aggregator answers a reader, and makes l.aggregator query it as this
// reader.
func (i *installed) reach() {
	i.t.Helper()
	ctx, cancel := i.context()
	defer cancel()
	i.until("the aggregator to answer a reader", func() error {
		token, err := i.token(ctx, "ipwitness-reader")
		if err != nil {
			return err
		}
		if i.aggregator, err = i.as(token); err != nil {
			return err
		}
		_, err = i.aggregator.Nodes(ctx)
		return err
	})
}

// live waits until both nodes report without problems, with frames and container runtime observed.
func (i *installed) live() {
	i.t.Helper()
	i.until("both nodes to be live", func() error {
		nodes, err := i.aggregator.Nodes(i.t.Context())
		if err == nil && len(nodes) != len(i.Nodes) {
			err = fmt.Errorf("got %d nodes", len(nodes))
		}
		for _, n := range nodes {
			if n.GetState() != ipwitnessv1.Node_LIVE || len(n.GetProblems()) > 0 || n.GetWire() != "tcx" || n.GetPorts() == 0 || n.GetRuntime() == "" {
				err = errors.Join(err, fmt.Errorf("%v", n))
			}
		}
		return err
	})
}

// duplicate starts pods until two of them have the same address. It returns the address and the two
// pods.
func (i *installed) duplicate(name string) (addr string, pods []pod) {
	i.t.Helper()
	// Nodes allocate the same addresses in order, but not from the same first one, and a pod whose
	// sandbox is recreated changes its address.
	of := map[string][]pod{}
	for replicas := 8; replicas <= 32; replicas += 8 {
		i.deploy(name, replicas)
		clear(of)
		for _, p := range i.pods("app=" + name) {
			of[p.Address] = append(of[p.Address], p)
			if pods = of[p.Address]; len(pods) == 2 {
				return p.Address, pods
			}
		}
	}
	i.t.Fatalf("no two of them have one address: %v", of)
	return "", nil
}

// A cluster with the operators accepts all objects of the chart, for all values, and of the
// manifests.
func TestObjectsAreValid(t *testing.T) {
	l := newLab(t, "valid")
	ctx, cancel := l.context()
	defer cancel()
	if err := l.ApplyCRDs(ctx, "prometheus", "cert-manager"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := l.context()
		defer cancel()
		if err := l.DeleteCRDs(ctx, "prometheus", "cert-manager"); err != nil {
			t.Error(err)
		}
	})
	i := &installed{lab: l}
	dryRun := func(t *testing.T, manifest string) {
		ctx, cancel := l.context()
		defer cancel()
		out, err := l.kubectl(ctx, manifest, "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-")
		if err != nil {
			t.Error(err)
		}
		if n := strings.Count(manifest, "\nkind: "); strings.Count(out, "serverside-applied") != n {
			t.Errorf("got\n%s\nwant %d objects", out, n)
		}
	}
	for name, values := range map[string]string{
		"default":      "",
		"off":          "tls.mode=off,auth.tokenReview=false",
		"existing":     "tls.mode=existing,tls.mutual=true,auth.tokensSecret=tokens",
		"cert-manager": "tls.mode=cert-manager,tls.mutual=true",
		"issuer":       "tls.mode=cert-manager,tls.certManager.issuer.name=vault,tls.certManager.issuer.kind=ClusterIssuer",
		"monitoring":   "monitoring.serviceMonitor.enabled=true,monitoring.podMonitor.enabled=true,monitoring.rules.enabled=true,monitoring.dashboards.enabled=true",
		"fewer alerts": "monitoring.rules.enabled=true,monitoring.rules.disabled={IpwitnessAgentsAbsent}",
		"persistence":  "aggregator.persistence.enabled=true,aggregator.persistence.keep=true,aggregator.persistence.storageClass=fast",
		"privileged":   "agent.privileged=true,agent.hostPID=true,agent.seLinuxOptions.type=spc_t",
		"openshift":    "agent.seccompProfile.type=Unconfined,aggregator.podSecurityContext.runAsUser=null,aggregator.podSecurityContext.runAsGroup=null,aggregator.podSecurityContext.fsGroup=null",
		"outside": "aggregator.service.type=LoadBalancer,aggregator.service.ipFamilies={IPv4},aggregator.service.nodePorts.grpc=30640,aggregator.service.externalTrafficPolicy=Local," +
			"aggregator.service.loadBalancerClass=lan,aggregator.ingress.enabled=true,aggregator.ingress.className=web,aggregator.ingress.hosts={ipwitness.example.net}," +
			"aggregator.ingress.tls[0].hosts={ipwitness.example.net},aggregator.ingress.tls[0].secretName=web," +
			"extraObjects[0].apiVersion=v1,extraObjects[0].kind=ConfigMap,extraObjects[0].metadata.name=more",
		"all": "agent.hostPaths={/opt/cni,/srv},agent.hide={/var/lib/kubelet},agent.extraCapabilities={SYS_PTRACE},agent.interfaces={eth*},agent.appArmorProfile.type=Unconfined," +
			"agent.extraArgs={--log-level=debug},agent.extraEnv[0].name=GOGC,agent.extraEnv[0].value=off,aggregator.extraArgs={--log-level=debug},agent.httpListen=127.0.0.1:9999," +
			"aggregator.hostNetwork=true,aggregator.service.type=LoadBalancer,aggregator.service.loadBalancerSourceRanges={192.0.2.0/24},aggregator.priorityClassName=system-cluster-critical," +
			"commonLabels.team=net,commonAnnotations.by=us,image.pullSecrets[0].name=key,networkPolicy.nodeCIDRs={198.18.0.0/15},networkPolicy.egress[0].ports[0].port=443," +
			"rbac.aggregate=true,witness.networks.pods={10.244.0.0/16,fd00::/48},witness.shared.10\\.9\\.0\\.0/24=anycast",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := i.helm("template", "ipwitness", chart, "--namespace", l.namespace, "--set", values,
				"--api-versions", "cert-manager.io/v1/Certificate", "--api-versions", "monitoring.coreos.com/v1/ServiceMonitor",
				"--api-versions", "monitoring.coreos.com/v1/PodMonitor", "--api-versions", "monitoring.coreos.com/v1/PrometheusRule")
			if err != nil {
				t.Fatal(err)
			}
			dryRun(t, out)
		})
	}
	for _, overlay := range []string{"least-privilege", "privileged"} {
		t.Run(overlay, func(t *testing.T) {
			dryRun(t, strings.ReplaceAll(l.kube("kustomize", manifests+"/overlays/"+overlay), "namespace: ipwitness", "namespace: "+l.namespace))
		})
	}
	t.Run("component", func(t *testing.T) {
		dryRun(t, strings.ReplaceAll(l.kube("kustomize", kustomization(t, "components: [%s/components/cert-manager]")), "namespace: ipwitness", "namespace: "+l.namespace))
	})
}

// kustomization returns a directory with a kustomization that uses an overlay as its resource, and
// the given text; %s stands for the path of the manifests.
func kustomization(t *testing.T, more string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	to, err := filepath.Rel(dir, manifests)
	if err != nil {
		t.Fatal(err)
	}
	text := "resources: [%s/overlays/least-privilege]\n" + more + "\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.ReplaceAll(text, "%s", to)), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The defaults: certificates generated by Helm, tokens reviewed by Kubernetes, and no volume.
func TestHelmChart(t *testing.T) {
	i := newInstalled(t, "charted")
	begin := time.Now()
	i.install()
	i.until("the first owner", func() error {
		var m ipwitnessv1.ListOwnersResponse
		if err := i.aggregator.Get(t.Context(), "/v1/owners", &m); err != nil {
			return err
		}
		if len(m.GetOwners()) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	t.Logf("from helm install to the first owner listed: %s", time.Since(begin).Round(10*time.Millisecond))
	i.rollout()
	t.Logf("until all pods were ready: %s", time.Since(begin).Round(10*time.Millisecond))
	i.live()
	i.api(ipwitnessv1.Kubernetes_LIVE)

	addr, pods := i.duplicate("web")
	i.awaitConflict(addr, confirmed)
	i.awaitHolders(addr, pods...)
	t.Run("rights", func(t *testing.T) { i.wantRights(t, pods[0]) })
	t.Run("people", func(t *testing.T) { i.wantPeople(t, addr) })
	t.Run("pod security", func(t *testing.T) {
		cmd := i.KubectlCommand("label", "namespace", home, "--overwrite", "--dry-run=server", "pod-security.kubernetes.io/enforce=restricted")
		var warnings netlab.Log
		cmd.Stderr = &warnings
		if err := errors.Join(i.Start(cmd), cmd.Wait()); err != nil {
			t.Fatal(err)
		}
		out := warnings.String()
		if !strings.Contains(out, "ipwitness-agent") || strings.Contains(out, "ipwitness-aggregator") {
			t.Errorf("got\n%s\nwant only the agents to need more than restricted", out)
		}
	})
	t.Run("aggregator replaced", func(t *testing.T) {
		cert := i.certificate()
		away := i.without(func() { i.upgrade("aggregator.podAnnotations.again=yes") })
		t.Logf("aggregators replaced: %s", away)
		if i.certificate() != cert {
			t.Error("an upgrade made another certificate, though the old one is good for years")
		}
		i.awaitConflict(addr, confirmed)
	})
	t.Run("agents replaced", func(t *testing.T) {
		var second string
		away := i.without(func() {
			i.mustHelm(append(i.upgradeArgs(), "--set-string", "image.tag="+nextTag)...) // all pods are being replaced
			second, _ = i.duplicate("db")
			i.rollout()
		})
		t.Logf("all replaced: %s", away)
		i.awaitConflict(second, confirmed)
		i.awaitConflict(addr, confirmed)
	})
	t.Run("certificates", i.wantRenewal)
	t.Run("mounts", i.wantMounts)
	for _, p := range i.agents() {
		t.Logf("the cgroup of the agent of %s has %s", p.Node, i.memory(p))
	}
	t.Run("fewer agents", i.wantOnlyIntendedNodes)
	i.uninstall()
}

// wantMounts checks that agents see in their pods the changes of nodes, and do not keep deleted
// mounts alive: an IPAM directory that is deleted and created again, and the network namespaces of
// pods that end.
func (i *installed) wantMounts(t *testing.T) {
	node := i.Nodes[0]
	// A conflict replaces findings about its address, so one pod has an address of its own.
	others := slices.Concat(i.pods(""), i.ours("aggregator"))
	for alone := false; !alone; {
		p := i.run(fmt.Sprintf("alone-%d", len(others)), node.Name, "")
		alone = !slices.ContainsFunc(others, func(o pod) bool { return o.Address == p.Address })
		others = append(others, p)
	}
	if err := node.Forget(); err != nil {
		t.Fatal(err)
	}
	i.until("what host-local forgot", func() error {
		got, _, err := i.findings()
		if err == nil && !slices.ContainsFunc(got, func(s string) bool {
			return strings.HasPrefix(s, "ipam-state-lost") || strings.HasPrefix(s, "in-use-unallocated")
		}) {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
	// host-local starts again in a new directory, and allocates addresses that are in use.
	p := i.run("again", node.Name, "")
	i.until("the record of "+p.Name+" in the new directory", func() error {
		var m ipwitnessv1.ListPoolsResponse
		if err := i.aggregator.Get(t.Context(), "/v1/pools", &m); err != nil {
			return err
		}
		for _, pool := range m.GetPools() {
			if pool.GetNode() == node.Name && pool.GetAllocated() > 0 && pool.GetAllocated() < 5 {
				return nil
			}
		}
		return fmt.Errorf("got %v", m.GetPools())
	})
	i.in("delete", "deployment,pod", "--all", "--cascade=foreground", "--timeout=2m")
	i.until("addresses to end with their pods", func() error {
		var m ipwitnessv1.ListOwnersResponse
		if err := i.aggregator.Get(t.Context(), "/v1/owners?namespace="+i.namespace, &m); err != nil || len(m.GetOwners()) > 0 {
			return fmt.Errorf("got %v, %w", m.GetOwners(), err)
		}
		return nil
	})
}

// wantOnlyIntendedNodes checks whether a node without a pod of the DaemonSet is reported as missing.
func (i *installed) wantOnlyIntendedNodes(t *testing.T) {
	i.upgrade(`agent.nodeSelector.kubernetes\.io/hostname=` + i.Nodes[0].Name)
	i.until("nobody to miss the node that has no agent any more", func() error {
		text, err := i.aggregator.Text(t.Context(), "/metrics")
		if err != nil {
			return err
		}
		if !strings.Contains(text, fmt.Sprintf("\nipwitness_node_up{node=%q} 1\n", i.Nodes[0].Name)) || strings.Count(text, "\nipwitness_node_up{") != 1 ||
			!strings.Contains(text, "\nipwitness_nodes{state=\"disconnected\"} 1\n") {
			return errors.New("got\n" + text)
		}
		return nil
	})
}

// agents returns the pods of the agents.
func (i *installed) agents() []pod { return i.ours("agent") }

// ours returns the pods of a component of ipwitness.
func (i *installed) ours(component string) []pod {
	i.t.Helper()
	at := *i.lab
	at.namespace = home
	return at.pods("app.kubernetes.io/component=" + component)
}

// memory returns the memory usage of a pod's cgroup, to which the limit applies.
func (i *installed) memory(p pod) string {
	for _, file := range []string{"/sys/fs/cgroup/memory/**/memory.usage_in_bytes", "/sys/fs/cgroup/**/memory.current"} {
		root, name := filepath.Split(file)
		var found string
		_ = filepath.WalkDir(strings.TrimSuffix(root, "/**/"), func(path string, _ os.DirEntry, err error) error {
			if err == nil && filepath.Base(path) == "pod"+p.UID {
				if text, err := os.ReadFile(filepath.Join(path, name)); err == nil {
					found = strings.TrimSpace(string(text))
				}
				return filepath.SkipAll
			}
			return nil
		})
		if found != "" {
			return found + " bytes"
		}
	}
	return "no memory cgroup"
}

// uninstall uninstalls the release, and checks that all its objects are gone. The end of the test
// checks the rest.
func (i *installed) uninstall() {
	i.t.Helper()
	i.mustHelm("uninstall", "ipwitness", "--wait")
	i.uninstalled()
}

func (i *installed) uninstalled() {
	i.t.Helper()
	i.kube("--namespace", home, "wait", "--for=delete", "pods", "--all", "--timeout=2m")
	i.until("nothing to be left", func() error {
		ours := func(s string) bool { return strings.Contains(s, "ipwitness-") || strings.HasSuffix(s, " ipwitness") }
		left := slices.DeleteFunc(i.objects(), func(s string) bool { return !ours(s) || strings.HasPrefix(s, "Namespace ") })
		if len(left) > 0 {
			return errors.New(strings.Join(left, ", "))
		}
		return nil
	})
}

// wantRenewal checks that certificates are renewed when they are due, and only then, without
// interrupting connections.
func (i *installed) wantRenewal(t *testing.T) {
	ca := func() string {
		return i.kube("--namespace", home, "get", "configmap", "ipwitness-ca", "--output", `jsonpath={.data.ca\.crt}`)
	}
	due := func(secret string) {
		i.kube("--namespace", home, "annotate", "--overwrite", "secret", secret, "ipwitness.io/renew-after=1")
	}
	authority, cert := ca(), i.certificate()
	due("ipwitness-tls")
	i.upgrade()
	if i.certificate() == cert || ca() != authority {
		t.Error("got the old certificate or another CA, want another certificate of the same CA")
	}
	cert = i.certificate()
	due("ipwitness-ca")
	i.upgrade()
	if both := ca(); i.certificate() == cert || strings.Count(both, "BEGIN") != 2 || !strings.HasSuffix(strings.TrimSpace(both), strings.TrimSpace(authority)) {
		t.Errorf("got\n%s\nwant another CA, followed by the old one:\n%s", both, authority)
	}
	i.until("the aggregator to show the new certificate", func() error {
		newest, _, _ := strings.Cut(ca(), "-----END")
		p, err := i.verifiedBy(newest+"-----END CERTIFICATE-----\n", "")
		if err == nil {
			_, err = p.Status(t.Context(), "/healthz")
		}
		return err
	})
	i.reach()
	i.live()
}

// rollout waits until all pods match their objects and are ready.
func (i *installed) rollout() {
	i.t.Helper()
	i.kube("--namespace", home, "rollout", "status", "daemonset/ipwitness-agent", "--timeout=2m")
	i.kube("--namespace", home, "rollout", "status", "statefulset/ipwitness-aggregator", "--timeout=2m")
}

func (i *installed) upgradeArgs(values ...string) []string {
	args := []string{"upgrade", "ipwitness", chart, "--reuse-values"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return args
}

// upgrade changes values, and waits until the pods match them.
func (i *installed) upgrade(values ...string) {
	i.t.Helper()
	i.mustHelm(i.upgradeArgs(values...)...)
	i.rollout()
}

// certificate returns the certificate of the aggregator.
func (i *installed) certificate() string {
	return i.kube("--namespace", home, "get", "secret", "ipwitness-tls", "--output", `jsonpath={.data.tls\.crt}`)
}

// gap is what users lack while something is replaced.
type gap struct {
	// answers is the longest time without an answer of the API, and nodes that without an answer that has
	// both nodes connected.
	answers, nodes time.Duration
	// asked is the number of requests, and failed that of requests without an answer.
	asked, failed int
	// last is the error of the last one that failed.
	last error
}

func (g gap) String() string {
	text := fmt.Sprintf("longest gap in answers %s, in answers with both nodes %s, %d of %d requests failed",
		g.answers.Round(10*time.Millisecond), g.nodes.Round(10*time.Millisecond), g.failed, g.asked)
	if g.last != nil {
		text += ": " + g.last.Error()
	}
	return text
}

// without returns the gap from the start of do until everything works again.
func (i *installed) without(do func()) (g gap) {
	i.t.Helper()
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		answered, complete := time.Now(), time.Now()
		for ended, enough := false, (<-chan time.Time)(nil); ; {
			ctx, cancel := context.WithTimeout(i.t.Context(), 5*time.Second)
			nodes, err := i.aggregator.Nodes(ctx)
			cancel()
			silent := func(n *ipwitnessv1.Node) bool { return n.GetState() != ipwitnessv1.Node_LIVE }
			if g.asked++; err != nil {
				g.failed, g.last = g.failed+1, err
			} else {
				g.answers, answered = max(g.answers, time.Since(answered)), time.Now()
				if len(nodes) == len(i.Nodes) && !slices.ContainsFunc(nodes, silent) {
					g.nodes, complete = max(g.nodes, time.Since(complete)), time.Now()
					if ended {
						return
					}
				}
			}
			if !ended {
				select {
				case <-done:
					ended, enough = true, time.After(patience)
				default:
				}
			}
			select {
			case <-i.t.Context().Done():
				return
			case <-enough:
				i.t.Errorf("the API does not know both nodes again: got %v, %v", nodes, err)
				return
			case <-tick.C:
			}
		}
	}()
	do()
	close(done)
	<-over
	return g
}

// wantRights checks that accounts have the rights that they need, and no others.
func (i *installed) wantRights(t *testing.T, p pod) {
	canIn := func(namespace, account string) []string {
		lines := strings.Split(i.kube("auth", "can-i", "--list", "--no-headers", "--as", "system:serviceaccount:"+home+":"+account,
			"--as-group", "system:serviceaccounts", "--as-group", "system:authenticated", "--namespace", namespace), "\n")
		for j := range lines {
			lines[j] = strings.Join(strings.Fields(lines[j]), " ")
		}
		slices.Sort(lines)
		return lines
	}
	can := func(account string) []string { return canIn("default", account) }
	baseline := can("default")
	if more := missing(can("ipwitness-agent"), baseline); len(more) > 0 {
		t.Errorf("agents have more rights than other users:\n%s", strings.Join(more, "\n"))
	}
	reads := []string{"[/metrics] [] [get]"}
	for _, what := range []string{"conflicts", "events", "findings", "incidents", "nodes", "owners", "pools"} {
		reads = append(reads, what+".ipwitness.io [] [] [get list watch]")
	}
	if got := missing(can("ipwitness-reader"), baseline); !slices.Equal(got, reads) {
		t.Errorf("a reader may\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(reads, "\n"))
	}
	got := missing(can("ipwitness-aggregator"), baseline)
	want := []string{
		"blockaffinities.crd.projectcalico.org [] [] [list watch]",
		"blockaffinities.projectcalico.org [] [] [list watch]",
		"bgpconfigurations.crd.projectcalico.org [] [] [list watch]",
		"bgpconfigurations.projectcalico.org [] [] [list watch]",
		"ciliumendpoints.cilium.io [] [] [list watch]",
		"ciliumendpointslices.cilium.io [] [] [list watch]",
		"ciliumloadbalancerippools.cilium.io [] [] [list watch]",
		"ciliumnodes.cilium.io [] [] [list watch]",
		"ciliumpodippools.cilium.io [] [] [list watch]",
		"egressips.k8s.ovn.org [] [] [list watch]",
		"endpointslices.discovery.k8s.io [] [] [list watch]",
		"events [] [] [list watch get create patch]",
		"ipamblocks.crd.projectcalico.org [] [] [list watch]",
		"ipamblocks.projectcalico.org [] [] [list watch]",
		"ipamclaims.k8s.cni.cncf.io [] [] [list watch]",
		"ipaddresspools.metallb.io [] [] [list watch]",
		"ippools.crd.antrea.io [] [] [list watch]",
		"ipaddresses.networking.k8s.io [] [] [list watch]",
		"ippools.crd.projectcalico.org [] [] [list watch]",
		"ippools.projectcalico.org [] [] [list watch]",
		"ippools.whereabouts.cni.cncf.io [] [] [list watch]",
		"ipreservations.crd.projectcalico.org [] [] [list watch]",
		"ipreservations.projectcalico.org [] [] [list watch]",
		"ips.kubeovn.io [] [] [list watch]",
		"network-attachment-definitions.k8s.cni.cncf.io [] [] [list watch]",
		"nodes [] [] [list watch]",
		"overlappingrangeipreservations.whereabouts.cni.cncf.io [] [] [list watch]",
		"pods [] [] [list watch]",
		"resourceclaims.resource.k8s.io [] [] [list watch]",
		"servicecidrs.networking.k8s.io [] [] [list watch]",
		"servicel2statuses.metallb.io [] [] [list watch]",
		"services [] [] [list watch]",
		"spiderendpoints.spiderpool.spidernet.io [] [] [list watch]",
		"spiderippools.spiderpool.spidernet.io [] [] [list watch]",
		"subjectaccessreviews.authorization.k8s.io [] [] [create]",
		"subnets.kubeovn.io [] [] [list watch]",
		"tokenreviews.authentication.k8s.io [] [] [create]",
		"vips.kubeovn.io [] [] [list watch]",
		"virtualmachineinstances.kubevirt.io [] [] [list watch]",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the aggregator may\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	shared := missing(canIn(home, "ipwitness-aggregator"), append(want, baseline...))
	if want := []string{
		"addressconflictacknowledgements.ipwitness.io [] [] [list watch create patch delete]",
		"leases.coordination.k8s.io [] [] [create]",
		"leases.coordination.k8s.io [] [ipwitness] [get update]",
	}; !slices.Equal(shared, want) {
		t.Errorf("in its namespace, the aggregator may also\n%s\nwant\n%s", strings.Join(shared, "\n"), strings.Join(want, "\n"))
	}
	for _, what := range []string{"get secrets", "get configmaps", "delete pod/" + p.Name, "get node/node1", "get leases --namespace kube-system"} {
		args := append(strings.Fields(what), "--as", "system:serviceaccount:"+home+":ipwitness-aggregator")
		if out := i.tryKube(args...); !strings.Contains(out, "orbidden") {
			t.Errorf("kubectl %s, as the aggregator: got %q, want it forbidden", what, out)
		}
	}

	// The rights are sufficient: there are no problems, and Events are written.
	i.until("no problem with the Kubernetes API", func() error {
		metrics, err := i.aggregator.Text(t.Context(), "/metrics")
		if err != nil {
			return err
		}
		for _, want := range []string{"\nipwitness_kubernetes_problems 0\n", "\nipwitness_kubernetes_up 1\n", `ipwitness_kubernetes_events_total{result="forbidden"} 0`} {
			if !strings.Contains(metrics, want) {
				return fmt.Errorf("/metrics does not say %q", strings.TrimSpace(want))
			}
		}
		return nil
	})
	i.until("an Event of "+p.Name, func() error {
		if out := i.in("get", "events", "--field-selector", "involvedObject.name="+p.Name+",reason=AddressConflict", "--output=name"); out == "" {
			return errors.New("there is none")
		}
		return nil
	})
}

// wantPeople checks the rights of users: none, read, and acknowledge.
func (i *installed) wantPeople(t *testing.T, addr string) {
	ctx, cancel := i.context()
	defer cancel()
	account := func(name, role string) *netlab.Program {
		t.Helper()
		i.kube("--namespace", home, "create", "serviceaccount", name)
		t.Cleanup(func() { i.kube("--namespace", home, "delete", "serviceaccount", name) })
		if role != "" {
			i.kube("create", "clusterrolebinding", name, "--clusterrole", role, "--serviceaccount", home+":"+name)
			t.Cleanup(func() { i.kube("delete", "clusterrolebinding", name) })
		}
		token, err := i.token(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		return i.must(t, token)
	}
	conflict := i.awaitConflict(addr, confirmed)
	acknowledge := func(p *netlab.Program) int {
		code, err := p.Post(ctx, "/v1/conflicts/"+conflict.GetId()+":acknowledge",
			fmt.Sprintf(`{"reason": "NET-42", "expiresAt": %q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	withoutRole, operator := account("stranger", ""), account("operator", "ipwitness-operator")
	i.until("the rights of an operator", func() error { // which were granted just before
		code, err := operator.Status(ctx, "/v1/owners")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("got %d", code)
		}
		return err
	})
	for _, who := range []struct {
		name                       string
		aggregator                 *netlab.Program
		read, metrics, acknowledge int
	}{
		{"nobody", i.must(t, ""), http.StatusUnauthorized, http.StatusUnauthorized, http.StatusUnauthorized},
		{"a wrong token", i.must(t, "nonsense"), http.StatusUnauthorized, http.StatusUnauthorized, http.StatusUnauthorized},
		{"an account without rights", withoutRole, http.StatusForbidden, http.StatusForbidden, http.StatusForbidden},
		{"the reader", i.aggregator, http.StatusOK, http.StatusOK, http.StatusForbidden},
		{"an operator", operator, http.StatusOK, http.StatusOK, http.StatusOK},
	} {
		for path, want := range map[string]int{"/v1/owners": who.read, "/metrics": who.metrics, "/healthz": http.StatusOK} {
			if got, err := who.aggregator.Status(ctx, path); err != nil || got != want {
				t.Errorf("%s gets %s: got %d (%v), want %d", who.name, path, got, err, want)
			}
		}
		if got := acknowledge(who.aggregator); got != who.acknowledge {
			t.Errorf("%s acknowledges: got %d, want %d", who.name, got, who.acknowledge)
		}
	}

	// The Role has the rights that ipwitness -P needs.
	i.kube("--namespace", home, "create", "serviceaccount", "friend")
	friend, err := i.ServiceAccount(ctx, home, "friend")
	if err != nil {
		t.Fatal(err)
	}
	forward := func() (string, error) {
		cmd := i.Command(binary, "nodes", "-P", "--aggregator-namespace", home)
		cmd.Env = append(cmd.Env, "KUBECONFIG="+friend)
		return i.Output(cmd)
	}
	if out, err := forward(); err == nil {
		t.Errorf("ipwitness -P without the Role: got\n%s", out)
	}
	i.kube("--namespace", home, "create", "rolebinding", "friend", "--role=ipwitness-port-forward", "--serviceaccount", home+":friend")
	i.until("ipwitness -P with the Role, which was just given", func() error {
		out, err := forward()
		if err == nil && strings.Count(out, "LIVE") < 2 {
			err = fmt.Errorf("got\n%s", out)
		}
		return err
	})
}

// must returns the aggregator for queries with a token.
func (i *installed) must(t *testing.T, token string) *netlab.Program {
	t.Helper()
	p, err := i.as(token)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// volumes creates a persistent volume on each node. Claims without a storage class are bound to them, as
// long as the cluster has no default one.
func (i *installed) volumes(ctx context.Context) {
	i.t.Helper()
	for _, node := range i.Nodes {
		if err := os.MkdirAll(node.Path("/var/lib/volume"), 0o755); err != nil {
			i.t.Fatal(err)
		}
		err := i.Apply(ctx, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: volume-%[1]s, labels: {test: volume}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: /var/lib/volume}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[1]s]}]}]}}
`, node.Name))
		if err != nil {
			i.t.Fatal(err)
		}
	}
	i.t.Cleanup(func() { i.kube("delete", "persistentvolume", "--selector", "test=volume", "--wait=false") })
}

// A duplicate is found and told of, its acknowledgement survives an upgrade, and changes during the upgrade are
// reported. .ci/run runs this test of the installation, and no other.
func TestHelmUpgradeWithVolume(t *testing.T) {
	i := newInstalled(t, "volume")
	ctx, cancel := i.context()
	defer cancel()
	i.volumes(ctx)
	i.install("aggregator.persistence.enabled=true", "aggregator.persistence.storageClass=-")
	i.rollout()
	i.live()

	addr, pods := i.duplicate("web")
	conflict := i.awaitConflict(addr, confirmed)
	i.described(conflictEvent, "pod", pods[0].Name, addr)
	i.operates()
	i.acknowledge(i.aggregator, conflict.GetId())
	away := i.without(func() { i.upgrade("aggregator.podAnnotations.again=yes") })
	t.Logf("aggregators replaced: %s", away)
	var second string
	away = i.without(func() {
		i.mustHelm(append(i.upgradeArgs(), "--set-string", "image.tag="+nextTag)...) // all pods are being replaced
		second, _ = i.duplicate("db")
		i.rollout()
	})
	t.Logf("all replaced: %s", away)
	i.awaitConflict(second, confirmed)
	if c := i.awaitConflict(addr, confirmed); c.GetAcknowledgement().GetReason() != "NET-42" || c.GetId() != conflict.GetId() {
		t.Errorf("got %v, want it still acknowledged", c)
	}
	i.uninstall()
	i.kube("delete", "persistentvolume", "--selector", "test=volume", "--timeout=2m")
}

// Agents present certificates too, both existing ones and those generated by Helm.
func TestHelmMutualTLS(t *testing.T) {
	i := newInstalled(t, "mutual")
	i.kube("create", "namespace", home)
	i.certificates("MUTUAL=1")
	i.mutual("existing")
	i.kube("--namespace", home, "delete", "configmap/ipwitness-ca", "secret/ipwitness-tls", "secret/ipwitness-agent-tls")
	i.mutual("helm")
	i.uninstalled()
}

// mutual installs the chart, makes the agents present certificates and then none, and uninstalls
// it.
func (i *installed) mutual(mode string) {
	i.t.Helper()
	// The aggregator runs with IDs as OpenShift assigns them, which belong to no user in the image.
	i.install("tls.mode="+mode, "tls.mutual=true", "aggregator.podSecurityContext.runAsUser=1000650000,aggregator.podSecurityContext.runAsGroup=0,aggregator.podSecurityContext.fsGroup=1000650000")
	i.rollout()
	i.live()
	// An agent without a certificate is refused, and continues to run.
	i.mustHelm(i.upgradeArgs("agent.extraArgs={--tls-cert=,--tls-key=}")...)
	i.until("an agent to be refused without a certificate", func() error {
		out := i.tryKube("--namespace", home, "logs", "--selector", "app.kubernetes.io/component=agent", "--tail=-1")
		if !strings.Contains(out, "an agent must present a client certificate") {
			return errors.New(out)
		}
		return nil
	})
	i.mustHelm("uninstall", "ipwitness", "--wait")
}

// Helm refuses a namespace in which agents cannot run before it creates any object.
func TestHelmRefusesRestrictedNamespace(t *testing.T) {
	i := newInstalled(t, "restricted")
	i.kube("create", "namespace", home)
	i.kube("label", "namespace", home, "pod-security.kubernetes.io/enforce=baseline")
	_, err := i.helm(append([]string{"install", "ipwitness", chart}, i.values()...)...)
	if err == nil || !strings.Contains(err.Error(), "enforces Pod Security level baseline") {
		t.Errorf("got %v, want the reason", err)
	}
}

// Installation without Helm: kubectl, and certificates by openssl.
func TestManifests(t *testing.T) {
	i := newInstalled(t, "plain")
	i.kube("apply", "--filename", manifests+"/base/namespace.yaml")
	i.certificates()
	dir := kustomization(t, fmt.Sprintf("images: [{name: ghcr.io/ipwitness/ipwitness, newName: %q, newTag: %q}, {name: ghcr.io/ipwitness/ipwitness-agent, newName: %q, newTag: %q}]", i.repository, i.tag, i.repository+"-agent", i.tag))
	begin := time.Now()
	i.kube("apply", "--kustomize", dir)
	i.reach()
	i.rollout()
	i.live()
	t.Logf("from kubectl apply until all pods were ready and reported: %s", time.Since(begin).Round(10*time.Millisecond))
	addr, pods := i.duplicate("web")
	i.awaitConflict(addr, confirmed)
	i.awaitHolders(addr, pods...)
	t.Run("rights", func(t *testing.T) { i.wantRights(t, pods[0]) })

	// Replace the certificates: agents and users trust the new CA before it is used, and nothing is
	// restarted.
	i.certificates()
	old := i.aggregator
	i.until("the new certificate", func() error {
		if _, err := old.Nodes(t.Context()); err == nil {
			return errors.New("the old one is good")
		}
		return nil
	})
	i.reach()
	i.live()
	i.kube("delete", "--kustomize", dir, "--timeout=2m")
}

// certificates runs the script that docs recommend.
func (i *installed) certificates(env ...string) {
	i.t.Helper()
	cmd := i.Command(manifests + "/certificates.sh")
	cmd.Env = append(cmd.Env, "PATH="+i.programs+":"+os.Getenv("PATH"), "KUBECONFIG="+i.Cluster.kubeconfig)
	cmd.Env = append(cmd.Env, env...)
	if out, err := i.Output(cmd); err != nil {
		i.t.Fatalf("%v\n%s", err, out)
	}
}

// Every command of docs/install-kubernetes.md works, in the order of the page.
func TestInstallGuide(t *testing.T) {
	i := newInstalled(t, "guide")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	i.volumes(ctx)
	// Make the image of the chart available as if it had been pulled.
	values, err := i.helm("show", "chart", chart)
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(values, "\nappVersion: ")
	version, _, _ = strings.Cut(version, "\n")
	if _, err := i.ImportImage(ctx, "ghcr.io/ipwitness/ipwitness:"+version); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name, program := range map[string]string{"kubectl": i.programs + "/kubectl", "helm": i.programs + "/helm", "ipwitness": binary} {
		if err := os.Symlink(absolute(program), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	// The commands expect the repository in the working directory, and write files there.
	work := t.TempDir()
	for name, target := range map[string]string{"deploy": filepath.Dir(manifests), "bin": filepath.Dir(binary)} {
		if err := os.Symlink(absolute(target), filepath.Join(work, name)); err != nil {
			t.Fatal(err)
		}
	}
	guide, err := os.ReadFile("../../docs/install-kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(guide), "```sh\n")[1:]
	if len(blocks) < 9 {
		t.Fatalf("got %d blocks of commands", len(blocks))
	}
	for _, block := range blocks {
		commands, _, _ := strings.Cut(block, "```")
		cmd := i.Command("sh", "-euxc", "cd '"+work+"'\n"+commands)
		cmd.Env = append(cmd.Env, "PATH="+bin+":"+work+"/.local/bin:"+os.Getenv("PATH"), "KUBECONFIG="+i.Cluster.kubeconfig, "HOME="+work)
		out, err := i.Output(cmd)
		if err != nil {
			t.Fatalf("%s\n%v\n%s", commands, err, out)
		}
		if strings.Contains(commands, "ipwitness nodes -P") && (!strings.Contains(out, "node1") || !strings.Contains(out, "node2") || strings.Count(out, "LIVE") < 2) {
			t.Errorf("got\n%s\nwant both nodes", out)
		}
		t.Logf("%s%s", commands, out)
	}
}
