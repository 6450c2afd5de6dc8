package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/containerd"
)

// ipwitness works as a plugin of kubectl.
func TestKubectlIpwitness(t *testing.T) {
	l := newLab(t, "plugin")
	l.witness()
	l.api(ipwitnessv1.Kubernetes_LIVE)
	l.deploy("web", 2)
	pods := l.pods("app=web")
	addr := pods[0].Address
	l.awaitOwners(addr, pods...)
	l.awaitControllers(addr, "web")

	dir := t.TempDir()
	completion, err := filepath.Abs("../../deploy/kubectl/kubectl_complete-ipwitness")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(binary, filepath.Join(dir, "kubectl-ipwitness")), os.Symlink(completion, filepath.Join(dir, "kubectl_complete-ipwitness"))); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		cmd := l.KubectlCommand()
		cmd.Args = append(cmd.Args[:len(cmd.Args)-4], args...)                                                 // kubectl does not pass its own flags to plugins
		cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"), "IPWITNESS_SERVER=http://127.0.0.1:9641") // not through a port-forward
		out, err := l.Output(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	plugin := func(args ...string) string {
		t.Helper()
		return kubectl(append([]string{"ipwitness"}, args...)...)
	}
	for _, p := range pods {
		if out := kubectl("__complete", "ipwitness", "owners", "-n", l.namespace, ""); !strings.Contains(out, p.Name+"\t") {
			t.Errorf("got\n%s\nwant the pod %s among the completions", out, p.Name)
		}
		for command, out := range map[string]string{
			"conflicts": plugin("conflicts"), "conflicts " + addr: plugin("conflicts", addr), "owners": plugin("owners", addr, "-o", "wide"),
		} {
			if name := l.namespace + "/" + p.Name; !strings.Contains(out, name) {
				t.Errorf("kubectl ipwitness %s: got\n%s\nwant it to name %s", command, out, name)
			}
		}
	}
	if out := plugin("owners", addr, "-o", "wide"); strings.Count(out, "Deployment/web") != 2 || strings.Count(out, "Running") != 2 {
		t.Errorf("got\n%s\nwant the Deployment and the phase of both", out)
	}
	if out := plugin("conflicts", "--help"); !strings.Contains(out, "kubectl ipwitness conflicts") {
		t.Errorf("got %q, want the name of the command as it was called", out)
	}
	if out := plugin("nodes"); !strings.Contains(out, "Kubernetes API: LIVE, https://"+Address+":6443") {
		t.Errorf("got\n%s\nwant the state of the Kubernetes API", out)
	}
}

// Steps two to four of the runbook, beside a conflict: they show Events, pods, and the pods of the
// CNI plugin.
func TestKubernetesDetailsOfAConflict(t *testing.T) {
	l := newLab(t, "beside")
	l.witness()
	l.deploy("web", 2)
	addr := l.pods("app=web")[0].Address
	l.awaitConflict(addr, confirmed)

	// IPAM fails on node1, so no more pods can start there. The path exists at every moment, as a
	// file or as the directory, because a plugin would otherwise create a new directory.
	node1 := l.node("node1")
	state := node1.Path("/var/lib/cni/networks")
	if err := os.WriteFile(state+".other", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exchange := func() error {
		return unix.Renameat2(unix.AT_FDCWD, state, unix.AT_FDCWD, state+".other", unix.RENAME_EXCHANGE)
	}
	if err := exchange(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(exchange(), os.Remove(state+".other")); err != nil {
			t.Error(err)
		}
	})
	l.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stuck"},
		"spec": {"nodeName": "node1", "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never"}]}}`, containerd.Image))

	// The plugin's own pods: one on each node, which does not start.
	daemons := func(args ...string) string { return l.kube(append([]string{"--namespace", "kube-system"}, args...)...) }
	ctx, cancel := l.context()
	defer cancel()
	err := l.Apply(ctx, fmt.Sprintf(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-flannel-ds, namespace: kube-system}
spec:
  selector: {matchLabels: {app: flannel}}
  template:
    metadata: {labels: {app: flannel}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %q, imagePullPolicy: Never, command: [/no/such/program]}]
`, containerd.Image))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemons("delete", "daemonset", "kube-flannel-ds", "--cascade=foreground", "--timeout=2m") })

	wants := []string{
		"Event " + l.namespace + "/stuck node1 FailedCreatePodSandBox: ",
		"Pod kube-system/kube-flannel-ds-",
	}
	l.until("what Kubernetes says beside the conflict", func() error {
		var objects []string
		for _, r := range l.awaitConflict(addr, confirmed).GetRelated() {
			objects = append(objects, fmt.Sprintf("%s %s/%s %s %s: %s", r.GetKind(), r.GetNamespace(), r.GetName(), r.GetNode(), r.GetReason(), r.GetMessage()))
		}
		all := strings.Join(objects, "\n")
		for _, want := range wants {
			if !strings.Contains(all, want) {
				return fmt.Errorf("got %q, want %q", all, want)
			}
		}
		if !strings.Contains(all, "Flannel") {
			return fmt.Errorf("got %q, want the name of the plugin", all)
		}
		return nil
	})
	page, err := l.Output(l.Command(binary, "conflicts", addr))
	if err != nil || !strings.Contains(page, "Kubernetes says:\n") || !strings.Contains(page, "  Event "+l.namespace+"/stuck ") {
		t.Errorf("got\n%s\nwant the text of the event", page)
	}
}
