package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/pki"
)

// Agents authenticate with the tokens of their pods. The real API server names the node of each
// token, and an agent may report only for that node. Users have the rights that RBAC grants them.
func TestTokensOfKubernetes(t *testing.T) {
	l := newLab(t, "tokens")
	l.apply(`
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: ServiceAccount, metadata: {name: agents}},
  {apiVersion: v1, kind: ServiceAccount, metadata: {name: reader}},
  {apiVersion: v1, kind: ServiceAccount, metadata: {name: nobody}}]}`)
	l.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: tokens-test-reader}
rules:
  - {apiGroups: [ipwitness.io], resources: [owners, conflicts, findings, pools, nodes], verbs: [get, list, watch]}
  - {nonResourceURLs: [/metrics], verbs: [get]}`)
	t.Cleanup(func() {
		l.kube("delete", "clusterrole/tokens-test-reader", "clusterrolebinding/tokens-test-reader", "--ignore-not-found")
	})
	l.kube("create", "clusterrolebinding", "tokens-test-reader", "--clusterrole", "tokens-test-reader", "--serviceaccount", "tokens:reader")
	one := l.run("agent-one", "node1", "", `"serviceAccountName": "agents"`)
	two := l.run("agent-two", "node2", "", `"serviceAccountName": "agents"`)

	token := func(account string, args ...string) string {
		return strings.TrimSpace(l.in(append([]string{"create", "token", account}, args...)...))
	}
	ofPod := func(p pod, audience string) string {
		return token("agents", "--audience", audience, "--bound-object-kind", "Pod", "--bound-object-name", p.Name, "--bound-object-uid", p.UID)
	}
	reader := token("reader")

	dir := t.TempDir()
	ca, err := pki.New(dir, "servers")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.Want{File: "aggregator", CommonName: "aggregator", Hosts: []string{"127.0.0.1", Address}})
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	l.Secure = &netlab.Secure{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, Token: reader}
	t.Cleanup(func() { l.Secure = nil })
	ctx, cancel := l.context()
	defer cancel()
	p, err := l.Aggregator(ctx, binary, "--kubeconfig", l.kubeconfig, "--tls-cert", pair.Cert, "--tls-key", pair.Key,
		"--token-review", "--agent-account", "tokens/agents")
	if err != nil {
		t.Fatal(err)
	}
	l.killed("the aggregator", p)
	l.aggregator = p

	agent := func(n *Node, token string) string {
		name := filepath.Join(dir, n.Name+".token")
		replace(t, name, token)
		l.startAgent(n, "--tls-ca", ca.File, "--token-file", name)
		return name
	}
	live := func(name string) {
		t.Helper()
		l.until(name+" to be live", func() error {
			nodes, err := p.Nodes(t.Context())
			for _, n := range nodes {
				if n.GetName() == name && n.GetState() == ipwitnessv1.Node_LIVE {
					return nil
				}
			}
			return fmt.Errorf("got %v, %w", nodes, err)
		})
	}
	refused := func(name, says string) {
		t.Helper()
		l.until("the agent of "+name+" to be refused", func() error {
			if log := l.agents[name].Log.String(); !strings.Contains(log, says) {
				return fmt.Errorf("got %s, want it to say %q", log, says)
			}
			return nil
		})
	}

	agent(l.node("node1"), ofPod(one, "ipwitness"))
	live("node1")
	of := agent(l.node("node2"), ofPod(one, "ipwitness"))
	refused("node2", "only for its own node: system:serviceaccount:tokens:agents belongs to node node1, but reports as node node2")
	replace(t, of, ofPod(two, "elsewhere"))
	refused("node2", "it must be unexpired and have the audience ipwitness")
	replace(t, of, token("agents", "--audience", "ipwitness"))
	refused("node2", "is not bound to a node")
	replace(t, of, token("reader", "--audience", "ipwitness"))
	refused("node2", "it is not an agent")
	replace(t, of, ofPod(two, "ipwitness"))
	live("node2") // without a restart

	// The token of a deleted pod is invalid.
	l.agents["node1"].Kill()
	l.in("delete", "pod", one.Name, "--now")
	l.startAgent(l.node("node1"), "--tls-ca", ca.File, "--token-file", filepath.Join(dir, "node1.token"))
	refused("node1", "Kubernetes does not accept the token")

	// The aggregator caches the review of a token for a minute, so this takes long.
	ctx, cancel = l.context()
	defer cancel()
	for _, c := range []struct {
		method, path, token string
		want                int
	}{
		{http.MethodGet, "/v1/owners", "", 401},
		{http.MethodGet, "/v1/owners", "no-token-of-anybody", 401},
		{http.MethodGet, "/v1/owners", token("nobody"), 403},
		{http.MethodGet, "/v1/owners", ofPod(two, "ipwitness"), 403},
		{http.MethodGet, "/v1/owners", reader, 200},
		{http.MethodGet, "/v1/owners", token("reader", "--audience", "ipwitness"), 200},
		{http.MethodGet, "/metrics", reader, 200},
		{http.MethodGet, "/metrics", token("nobody"), 403},
		{http.MethodPost, "/v1/conflicts/abc:acknowledge", reader, 403},
	} {
		l.Secure.Token = c.token
		req, err := http.NewRequestWithContext(ctx, c.method, "https://127.0.0.1:9641"+c.path, strings.NewReader(`{"withdraw":true}`))
		if err != nil {
			t.Fatal(err)
		}
		if c.method == http.MethodGet {
			req.Body, req.ContentLength = http.NoBody, 0
		}
		res, err := l.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s %s with a token of %d bytes: got %s, want %d", c.method, c.path, len(c.token), res.Status, c.want)
		}
	}
	for _, log := range []string{p.Log.String(), l.agents["node2"].Log.String()} {
		if strings.Contains(log, "eyJ") { // the beginning of every Kubernetes token
			t.Errorf("the log has a token: %s", log)
		}
	}
}

// replace replaces a file atomically.
func replace(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}
