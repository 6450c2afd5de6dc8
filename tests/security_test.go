package tests

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/pki"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// secured is a cluster whose aggregator requires certificates of agents and tokens of users.
type secured struct {
	*cluster
	dir              string
	servers, clients *pki.CA
}

const aliceToken = "alice-token-0123456789"

func newSecured(t *testing.T) *secured {
	t.Helper()
	return newGuarded(t, aliceToken+" operator alice\n", true)
}

// newGuarded starts an aggregator with TLS and a token file that contains alice's token. If
// certificates is set, agents need a client certificate, too.
func newGuarded(t *testing.T, tokens string, certificates bool) *secured {
	t.Helper()
	s := &secured{dir: t.TempDir()}
	s.servers, s.clients = authority(t, s.dir, "servers"), authority(t, s.dir, "clients")
	pair := s.serverPair(t)
	file := filepath.Join(s.dir, "tokens")
	if err := os.WriteFile(file, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	h.Secure = &netlab.Secure{TLS: &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}, Token: aliceToken}
	s.cluster = &cluster{
		lab:   &lab{Host: h, service: &service{at: h}, t: t},
		flags: []string{"--tls-cert", pair.Cert, "--tls-key", pair.Key, "--tokens", file},
	}
	s.trust()
	if certificates {
		s.flags = append(s.flags, "--tls-client-ca", s.clients.File)
	}
	s.serve()
	return s
}

// trust adds the CA of the server certificates to those that the clients of the test trust.
func (s *secured) trust() {
	s.t.Helper()
	raw, err := os.ReadFile(s.servers.File)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Secure.TLS.RootCAs.AppendCertsFromPEM(raw)
}

func authority(t *testing.T, dir, name string) *pki.CA {
	t.Helper()
	ca, err := pki.New(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// serverPair writes the aggregator's certificate, with all addresses by which its nodes reach it.
func (s *secured) serverPair(t *testing.T) pki.Pair {
	t.Helper()
	pair, err := s.servers.Issue(pki.Want{
		File: "aggregator", CommonName: "aggregator", Hosts: []string{"127.0.0.1", "198.18.0.0", "198.18.0.2", "198.18.0.4"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// pair writes the certificate of a node's agent. A second one with the same file name replaces the
// first.
func (s *secured) pair(file, node string) pki.Pair {
	s.t.Helper()
	p, err := s.clients.Issue(pki.Want{File: file, CommonName: node, Organization: "ipwitness:agents"})
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// node creates a node whose agent presents the certificate of the given node name.
func (s *secured) node(name, certified string) *lab {
	s.t.Helper()
	n := s.addMachine(newHost(s.t), name, len(s.nodes)+1)
	n.boot(n.number)
	p := s.pair(name, certified)
	n.witness("--aggregator", n.managed(s.cluster)+":9640", "--tls-ca", s.servers.File, "--tls-cert", p.Cert, "--tls-key", p.Key)
	return n
}

func TestAgentsReportByCertificatesThatAreReplaced(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	one, two := s.node("node1", "node1"), s.node("node2", "node2")
	s.awaitNodes(one, two)
	lying := s.node("node3", "node2")
	wait.Until(t, "the agent of node3 to be refused", func() bool {
		return strings.Contains(lying.agent.Log.String(), "only for its own node: node2 belongs to node node2, but reports as node node3")
	})

	addr := podAddress(1)
	add(t, one.cni(podsByPTP), "web-0")
	add(t, two.cni(podsByPTP), "web-1")
	s.watch.await("the conflict to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	if got := s.acknowledge(s.only(addr).GetId()).GetAcknowledgement(); got.GetAcknowledgedBy() != "alice" {
		t.Errorf("acknowledged by: got %v, want alice", got)
	}

	// Both CAs and all certificates are replaced while the programs run. New connections use the
	// new certificates.
	s.servers, s.clients = authority(t, s.dir, "servers"), authority(t, s.dir, "clients")
	s.serverPair(t)
	s.pair("node1", "node1")
	s.trust() // clients of the test may also have to reconnect
	one.cut()
	s.awaitNode("node1", ipwitnessv1.Node_DISCONNECTED)
	one.mend()
	s.awaitNode("node1", ipwitnessv1.Node_LIVE)
	for _, p := range []*netlab.Program{s.program, one.agent} {
		wait.Until(t, "the log to say that the files have changed", func() bool {
			return strings.Contains(p.Log.String(), "reloaded changed TLS files")
		})
	}
	for _, n := range s.allNodes() {
		if n.GetName() == "node3" {
			t.Errorf("node3 is listed: %v", n)
		}
	}
}

// acknowledge acknowledges a conflict for an hour.
func (s *secured) acknowledge(id string) *ipwitnessv1.Conflict {
	s.t.Helper()
	body := fmt.Sprintf(`{"reason":"known","expiresAt":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339))
	res, err := s.Client().Post(strings.Replace(netlab.Server, "http:", "https:", 1)+"/v1/conflicts/"+id+":acknowledge", "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var raw bytes.Buffer
	if _, err := raw.ReadFrom(res.Body); err != nil {
		s.t.Fatal(err)
	}
	m := &ipwitnessv1.Conflict{}
	if err := protojson.Unmarshal(raw.Bytes(), m); err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("acknowledge: %s %s: %v", res.Status, raw.String(), err)
	}
	return m
}
