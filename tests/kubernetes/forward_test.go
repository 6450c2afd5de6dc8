package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/pki"
)

// aggregatorPods is a manifest of an aggregator that runs as a pod on node1, and of a user account
// with the rights of a Role. It has placeholders for further fields of the pod, for flags and for
// the protocol of the port.
const aggregatorPods = `apiVersion: apps/v1
kind: Deployment
metadata: {name: ipwitness}
spec:
  replicas: 1
  selector: {matchLabels: &labels {app.kubernetes.io/name: ipwitness, app.kubernetes.io/component: aggregator}}
  template:
    metadata: {labels: *labels}
    spec:
      nodeName: node1
      terminationGracePeriodSeconds: 1
      %[5]s
      containers:
        - name: aggregator
          image: %[1]q
          imagePullPolicy: Never
          command: [/program/%[2]s, aggregator%[6]s]
          env: [{name: KUBERNETES_SERVICE_HOST, value: %[7]q}, {name: KUBERNETES_SERVICE_PORT, value: "6443"}]
          securityContext: {runAsUser: 0}
          ports: [{name: http, containerPort: 9641}]
          readinessProbe: {httpGet: {path: /readyz, port: http, scheme: %[8]s}, periodSeconds: 1}
          volumeMounts: [{name: program, mountPath: /program}, {name: certificate, mountPath: /certificate}]
      volumes: [{name: program, hostPath: {path: %[3]q}}, {name: certificate, secret: {secretName: certificate, optional: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: ipwitness, labels: {app.kubernetes.io/name: ipwitness, app.kubernetes.io/component: aggregator}}
spec:
  selector: {app.kubernetes.io/name: ipwitness, app.kubernetes.io/component: aggregator}
  ports: [{name: http, port: 80, targetPort: http, appProtocol: %[8]s}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: person}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: person}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: person}
subjects: [{kind: ServiceAccount, name: person, namespace: %[4]s}]
`

// person queries an aggregator with -P, on the control plane's machine, which runs no aggregator.
type person struct {
	*lab
	kubeconfig string
}

// deployAggregator creates an aggregator and a user account.
func (l *lab) deployAggregator(fields, flags, scheme string) person {
	l.t.Helper()
	l.apply(fmt.Sprintf(aggregatorPods, containerd.Image, filepath.Base(binary), filepath.Dir(binary), l.namespace, fields, flags, Address, scheme))
	ctx, cancel := l.context()
	defer cancel()
	kubeconfig, err := l.ServiceAccount(ctx, l.namespace, "person")
	if err != nil {
		l.t.Fatal(err)
	}
	return person{l, kubeconfig}
}

func (p person) command(args ...string) *exec.Cmd {
	cmd := p.Command(binary, append(args, "-P")...)
	cmd.Env = append(cmd.Env, "KUBECONFIG="+p.kubeconfig)
	return cmd
}

func (p person) ask(args ...string) (string, error) { return p.Output(p.command(args...)) }

// right is a rule of a Role, in JSON, and the words of the error if it is missing.
type right struct{ rule, lack string }

var (
	seeServices = right{`{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}`, "list services"}
	seePods     = right{`{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}`, "list pods"}
	reachPods   = right{`{"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}`, "create pods/portforward"}
	readCA      = right{`{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["ipwitness-ca"], "verbs": ["get"]}`, "get configmaps"}
	getToken    = right{`{"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["ipwitness-reader"], "verbs": ["create"]}`, "create serviceaccounts/token"}
)

// needs grants the rights one after the other. Each time, the error must name the next missing
// right, and with all of them there must be an answer.
func (p person) needs(rights ...right) {
	p.t.Helper()
	var rules []string
	for i := range len(rights) + 1 {
		p.apply(`{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "person"}, "rules": [` + strings.Join(rules, ",") + `]}`)
		if i == len(rights) {
			break
		}
		lack := fmt.Sprintf("you lack the permission to %s in namespace %s", rights[i].lack, p.namespace)
		p.until(lack, func() error {
			if out, err := p.ask("nodes", "--aggregator-namespace", p.namespace); err == nil || !strings.Contains(err.Error(), lack) {
				return fmt.Errorf("got %q and %w", out, err)
			}
			return nil
		})
		rules = append(rules, rights[i].rule)
	}
	p.until("an answer", func() error {
		_, err := p.ask("nodes", "--aggregator-namespace", p.namespace)
		return err
	})
}

// -P needs a kubeconfig and three rights, and no connection except to the API server.
func TestQueriesThroughThePortForward(t *testing.T) {
	l := newLab(t, "forward")
	p := l.deployAggregator("", ", --kubeconfig=off", "HTTP")
	first := l.readyAggregator("")
	p.needs(seeServices, seePods, reachPods)
	if out, err := p.ask("nodes"); err == nil || !strings.Contains(err.Error(), "you lack the permission to list services in namespace ipwitness") {
		t.Errorf("without a namespace: got %q and %v, want the missing permission in the default namespace", out, err)
	}

	// An agent reports to the pod, and the user sees its owners.
	watch := p.command("owners", "--aggregator-namespace", l.namespace, "--watch")
	var printed, noticed netlab.Log
	watch.Stdout, watch.Stderr = &printed, &noticed
	if err := l.Start(watch); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
		if t.Failed() {
			t.Logf("the watch said:\n%s\n%s", &printed, &noticed)
		}
	})
	node1 := l.node("node1")
	report := func(p pod) *netlab.Program {
		ctx, cancel := l.context()
		defer cancel()
		agent, err := node1.Agent(ctx, binary, "--node", "node1", "--exclude-interfaces", Uplink, "--aggregator", p.Address+":9640")
		if err != nil {
			t.Fatal(err)
		}
		l.killed("the agent", agent)
		return agent
	}
	agent := report(first)
	shown := func(p pod) func() error {
		return func() error {
			if name := l.namespace + "/" + p.Name; !strings.Contains(printed.String(), name) {
				return fmt.Errorf("got %q, want %s", printed.String(), name)
			}
			return nil
		}
	}
	l.until("the watch to show the pod", shown(first))
	l.until("node1 to be live", func() error {
		out, err := p.ask("nodes", "--aggregator-namespace", l.namespace)
		if err == nil && !strings.Contains(out, "node1  LIVE") {
			err = fmt.Errorf("got %q, want node1", out)
		}
		return err
	})
	if out, err := l.Output(l.Command("ss", "-Hltnp")); err != nil || strings.Contains(out, "ipwitness") || !strings.Contains(out, "etcd") {
		t.Errorf("got %q and error %v, want no local listening port of ipwitness", out, err)
	}

	// The pod is deleted, and the watch continues with its replacement.
	agent.Kill()
	l.in("delete", "pod", first.Name)
	second := l.readyAggregator(first.Name)
	l.until("the watch to continue", func() error {
		if got := noticed.String(); !strings.Contains(got, "was disconnected") || !strings.Contains(got, "The watch continues") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	report(second)
	l.until("the watch to show the next pod", shown(second))
}

// With TLS the aggregator authenticates itself, and the Kubernetes API authenticates the user.
func TestQueriesByTLSThroughThePortForward(t *testing.T) {
	l := newLab(t, "forward-tls")
	dir := t.TempDir()
	ca, err := pki.New(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.Want{File: "server", Hosts: []string{"ipwitness." + l.namespace + ".svc"}})
	if err != nil {
		t.Fatal(err)
	}
	l.in("create", "secret", "tls", "certificate", "--cert", pair.Cert, "--key", pair.Key)
	l.in("create", "configmap", "ipwitness-ca", "--from-file=ca.crt="+ca.File)
	for _, account := range []string{"aggregator", "ipwitness-reader"} {
		l.in("create", "serviceaccount", account)
	}
	l.apply(`{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "forward-reader"},
		"rules": [{"apiGroups": ["ipwitness.io"], "resources": ["nodes"], "verbs": ["list"]}]}`)
	t.Cleanup(func() { l.kube("delete", "clusterrole", "forward-reader") })
	for account, role := range map[string]string{"aggregator": "system:auth-delegator", "ipwitness-reader": "forward-reader"} {
		name := l.namespace + "-" + account
		l.kube("create", "clusterrolebinding", name, "--clusterrole", role, "--serviceaccount", l.namespace+":"+account)
		t.Cleanup(func() { l.kube("delete", "clusterrolebinding", name) })
	}
	// The pod network has no route to the API server, so the pod uses the node's network.
	p := l.deployAggregator("hostNetwork: true\n      serviceAccountName: aggregator",
		", --tls-cert=/certificate/tls.crt, --tls-key=/certificate/tls.key, --token-review", "HTTPS")
	l.readyAggregator("")

	p.needs(seeServices, readCA, seePods, reachPods, getToken)

	// The token belongs to the user's account, which has only the right to list nodes.
	if out, err := p.ask("owners", "--aggregator-namespace", l.namespace); err == nil || !strings.Contains(err.Error(), "system:serviceaccount:forward-tls:ipwitness-reader may not") {
		t.Errorf("got %q and error %v, want an error about the missing permission of the account", out, err)
	}
	own := filepath.Join(dir, "token")
	if err := os.WriteFile(own, []byte("no-token-of-anybody"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := p.ask("nodes", "--aggregator-namespace", l.namespace, "--token-file", own, "--tls-ca", ca.File); err == nil || !strings.Contains(err.Error(), "does not accept the token") {
		t.Errorf("got %q and error %v, want an error about the token of the file", out, err)
	}
	other, err := pki.New(dir, "other")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := p.ask("nodes", "--aggregator-namespace", l.namespace, "--tls-ca", other.File); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("got %q and error %v, want an error about the untrusted certificate", out, err)
	}
}

// readyAggregator waits for a ready pod of the aggregator other than the named one.
func (l *lab) readyAggregator(not string) (got pod) {
	l.t.Helper()
	l.until("the aggregator's pod", func() error {
		for _, got = range l.pods("app.kubernetes.io/component=aggregator") {
			if got.Name != not && got.Address != "" {
				return nil
			}
		}
		return errors.New("none yet")
	})
	l.in("wait", "--for=condition=Ready", "pod/"+got.Name, "--timeout=2m")
	return got
}
