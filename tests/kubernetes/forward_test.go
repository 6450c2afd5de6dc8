package kubernetes

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// aggregatorPods is an aggregator that runs as a pod of node1.
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
      containers:
        - name: aggregator
          image: %q
          imagePullPolicy: Never
          command: [/program/%s, aggregator, --kubeconfig=off]
          securityContext: {runAsUser: 0}
          ports: [{name: http, containerPort: 9641}]
          readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 1}
          volumeMounts: [{name: program, mountPath: /program}]
      volumes: [{name: program, hostPath: {path: %q}}]
---
apiVersion: v1
kind: Service
metadata: {name: ipwitness, labels: {app.kubernetes.io/name: ipwitness, app.kubernetes.io/component: aggregator}}
spec:
  selector: {app.kubernetes.io/name: ipwitness, app.kubernetes.io/component: aggregator}
  ports: [{name: http, port: 80, targetPort: http}]
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

// personRole has the first rights of a list, one a line.
func personRole(rights ...string) string {
	return `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "person"}, "rules": [` + strings.Join(rights, ",") + `]}`
}

// -P needs a kubeconfig and three rights, and nothing between the person and the
// API server.
func TestPeopleAskThroughThePortForward(t *testing.T) {
	l := newLab(t, "forward")
	l.apply(fmt.Sprintf(aggregatorPods, containerd.Image, filepath.Base(binary), filepath.Dir(binary), l.namespace))
	ctx, cancel := l.context()
	defer cancel()
	kubeconfig, err := l.ServiceAccount(ctx, l.namespace, "person")
	if err != nil {
		t.Fatal(err)
	}
	// ask runs a command as that person; the machine of the control plane has no
	// aggregator.
	ask := func(args ...string) (string, error) {
		cmd := l.Command(binary, append(args, "-P")...)
		cmd.Env = append(cmd.Environ(), "KUBECONFIG="+kubeconfig)
		return l.Output(cmd)
	}

	// Right after right.
	rights := []string{
		`{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}`,
		`{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}`,
		`{"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}`,
	}
	missing := []string{"list services in namespace forward", "list pods in namespace forward", "create pods/portforward in namespace forward"}
	for i, want := range missing {
		l.apply(personRole(rights[:i]...))
		l.until("the right to "+want+" to be missing", func() error {
			out, err := ask("nodes", "--namespace", l.namespace)
			if err == nil || !strings.Contains(err.Error(), "the right to "+want+" is missing") {
				return fmt.Errorf("got %q and %w", out, err)
			}
			return nil
		})
		if i == 1 {
			l.in("rollout", "status", "deployment/ipwitness", "--timeout=2m")
		}
	}
	if _, err := ask("nodes"); err == nil || !strings.Contains(err.Error(), "list services in namespace ipwitness is missing") {
		t.Errorf("without a namespace: got %v, want what is missing in the usual one", err)
	}
	l.apply(personRole(rights...))
	l.until("an answer", func() error {
		_, err := ask("conflicts", "--namespace", l.namespace)
		return err
	})

	// An agent reports to the pod, and the person sees what it has.
	first := l.readyAggregator("")
	watch := l.Command(binary, "owners", "-P", "--namespace", l.namespace, "--watch")
	watch.Env = append(watch.Environ(), "KUBECONFIG="+kubeconfig)
	var told, noticed netlab.Log
	watch.Stdout, watch.Stderr = &told, &noticed
	if err := l.Start(watch); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
		if t.Failed() {
			t.Logf("the watch said:\n%s\n%s", &told, &noticed)
		}
	})
	node1 := l.node("node1")
	report := func(p pod) *netlab.Program {
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
			if name := l.namespace + "/" + p.Name; !strings.Contains(told.String(), name) {
				return fmt.Errorf("got %q, want %s", told.String(), name)
			}
			return nil
		}
	}
	l.until("the watch to show the pod", shown(first))
	if out, err := ask("nodes", "-n", l.namespace); err != nil || !strings.Contains(out, "node1  LIVE") {
		t.Errorf("got %q and error %v, want node1", out, err)
	}
	if out, err := l.Output(l.Command("ss", "-Hltnp")); err != nil || strings.Contains(out, "ipwitness") || !strings.Contains(out, "etcd") {
		t.Errorf("got %q and error %v, want no local port of ipwitness", out, err)
	}

	// The pod goes away: the watch goes on with the next one.
	agent.Kill()
	l.in("delete", "pod", first.Name)
	second := l.readyAggregator(first.Name)
	l.until("the watch to go on", func() error {
		if got := noticed.String(); !strings.Contains(got, "was cut") || !strings.Contains(got, "goes on") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	report(second)
	l.until("the watch to show the next pod", shown(second))
}

// readyAggregator waits for the pod of the aggregator that is ready, and is another
// one than is named.
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
