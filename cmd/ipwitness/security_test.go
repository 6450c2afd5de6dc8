package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	agentreport "github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/cmd/cli"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
	"github.com/ipwitness/ipwitness/tests/pki"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// guarded is an aggregator with access control, and the CAs of its certificates.
type guarded struct {
	*server
	t       *testing.T
	ca      *pki.CA // of the server
	clients *pki.CA
	pair    pki.Pair
	log     *strings.Builder
	tokens  string
}

const (
	agentToken    = "agent-token-0123456789"
	readerToken   = "reader-token-0123456789"
	operatorToken = "operator-token-0123456789"
)

// newGuarded starts an aggregator with tokens, and with client certificates if certificates is set.
func newGuarded(t *testing.T, certificates bool) *guarded {
	t.Helper()
	dir := t.TempDir()
	g := &guarded{t: t, tokens: filepath.Join(dir, "tokens"), log: &strings.Builder{}}
	g.ca, g.clients = newCA(t, dir, "servers"), newCA(t, dir, "clients")
	g.pair = issue(t, g.ca, pki.Want{File: "server", CommonName: "aggregator", Hosts: []string{"127.0.0.1", "localhost"}})
	g.write("# who may come\n" + agentToken + " agent node1\n" + readerToken + " reader bob\n" + operatorToken + " operator alice\n")
	files := secure.Files{Cert: g.pair.Cert, Key: g.pair.Key}
	if certificates {
		files.ClientCA = g.clients.File
	}
	p := cli.Process{Build: cli.Build{Version: "v1"}, Log: slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Registry: cli.NewRegistry(cli.Build{})}
	agg, s, err := (&serving{
		aggregator: aggregator.Config{Kubeconfig: "off", Access: access.Config{Tokens: g.tokens}}, files: files,
		listen: addresses{grpc: "127.0.0.1:0", http: "127.0.0.1:0", metrics: "127.0.0.1:0"},
	}).open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	g.server = s
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- agg.Run(ctx) }()
	go func() { ended <- s.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
		for _, secret := range []string{agentToken, readerToken, operatorToken, "PRIVATE"} {
			if strings.Contains(g.log.String(), secret) {
				t.Errorf("the log has the secret %q:\n%s", secret, g.log)
			}
		}
	})
	return g
}

func newCA(t *testing.T, dir, name string) *pki.CA {
	t.Helper()
	ca, err := pki.New(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *pki.CA, want pki.Want) pki.Pair {
	t.Helper()
	p, err := ca.Issue(want)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// write replaces the token file.
func (g *guarded) write(tokens string) {
	g.t.Helper()
	if err := os.WriteFile(g.tokens+".new", []byte(tokens), 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(g.tokens+".new", g.tokens); err != nil {
		g.t.Fatal(err)
	}
}

// file creates a file that contains a token.
func (g *guarded) file(token string) string {
	g.t.Helper()
	name := filepath.Join(g.t.TempDir(), "token")
	if err := os.WriteFile(name, []byte(token+"\n"), 0o600); err != nil {
		g.t.Fatal(err)
	}
	return name
}

// connect opens a gRPC connection like an agent with these files.
func (g *guarded) connect(files secure.Files) agentreport.Conn {
	g.t.Helper()
	creds, err := files.DialOptions(slog.New(slog.DiscardHandler))
	if err != nil {
		g.t.Fatal(err)
	}
	at := g.listeners.grpc.Addr().String()
	conn, err := agentreport.Replicas(at, creds).Dial(at)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// agent opens a stream like an agent with these files.
func (g *guarded) agent(files secure.Files) pb.ReportService_ReportClient {
	g.t.Helper()
	stream, err := pb.NewReportServiceClient(g.connect(files)).Report(g.t.Context())
	if err != nil {
		return failed{err: err}
	}
	return stream
}

// failed is a stream that could not be opened.
type failed struct {
	pb.ReportService_ReportClient
	err error
}

func (f failed) Send(*pb.ReportRequest) error      { return f.err }
func (f failed) Recv() (*pb.ReportResponse, error) { return nil, f.err }
func hello(node, boot string, epoch uint64) *pb.ReportRequest {
	return &pb.ReportRequest{
		Sequence: 1, SnapshotBegin: true, SnapshotEnd: true,
		Hello: &pb.Hello{Node: node, BootId: boot, Netns: "1", Epoch: epoch, Version: "v1"},
	}
}

// say sends a message and returns the aggregator's response to it.
func say(stream pb.ReportService_ReportClient, m *pb.ReportRequest) error {
	_ = stream.Send(m) // Recv returns the reason
	for {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		if got.GetAcknowledged() >= m.GetSequence() {
			return nil
		}
	}
}

// wantRefused checks that an error has the code and contains the words.
func wantRefused(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %s", err, code)
	}
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want it to say %q", err, w)
		}
	}
}

func TestAgentsAuthenticateWithTokens(t *testing.T) {
	g := newGuarded(t, false)
	with := func(token string) secure.Files { return secure.Files{CA: g.ca.File, Token: g.file(token)} }
	if err := say(g.agent(with(agentToken)), hello("node1", "boot1", 1)); err != nil {
		t.Errorf("with its own token: %v", err)
	}
	wantRefused(t, say(g.agent(with(agentToken)), hello("node2", "boot2", 1)), codes.PermissionDenied, "only for its own node", "node1", "node2")
	wantRefused(t, say(g.agent(with("wrong-token-0123456789")), hello("node1", "boot1", 1)), codes.Unauthenticated, "the token is unknown")
	wantRefused(t, say(g.agent(with(operatorToken)), hello("node1", "boot1", 1)), codes.PermissionDenied, "alice may not report")
	wantRefused(t, say(g.agent(secure.Files{CA: g.ca.File}), hello("node1", "boot1", 1)), codes.Unauthenticated, "--token-file")
	wantRefused(t, say(g.agent(secure.Files{CA: g.clients.File}), hello("node1", "boot1", 1)), codes.Unavailable, "unknown authority")
	wantRefused(t, say(g.agent(secure.Files{}), hello("node1", "boot1", 1)), codes.Unavailable)

	// An agent that reports the boot ID of another node, or of the agent in this process, cannot
	// take over that node's table. It is an additional node.
	g.write(agentToken + " agent node1\n" + "other-token-0123456789 agent node2\n" + readerToken + " reader bob\n")
	victim := g.agent(with(agentToken))
	if err := say(victim, hello("node1", "boot1", 1)); err != nil {
		t.Fatal(err)
	}
	inside, err := pb.NewReportServiceClient(g.conn).Report(t.Context())
	if err == nil {
		err = say(inside, hello("here", "boot0", 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, boot := range []string{"boot1", "boot0"} {
		if err := say(g.agent(with("other-token-0123456789")), hello("node2", boot, 2)); err != nil {
			t.Errorf("with the boot id of another node: %v", err)
		}
	}
	for name, stream := range map[string]pb.ReportService_ReportClient{"another node": victim, "this process": inside} {
		if err := say(stream, &pb.ReportRequest{Sequence: 2}); err != nil {
			t.Errorf("the agent of %s, whose boot id another agent reports: %v", name, err)
		}
	}
	if code, nodes := g.ask("GET", "/v1/nodes", readerToken, ""); code != http.StatusOK || strings.Count(nodes, "which cannot both be true") != 4 {
		t.Errorf("got %d %s, want it listed with all four nodes", code, nodes)
	}

	// It cannot be many nodes either.
	for n := 0; err == nil && n < 100; n++ {
		err = say(g.agent(with("other-token-0123456789")), hello("node2", fmt.Sprint("boot", 10+n), 1))
	}
	wantRefused(t, err, codes.ResourceExhausted, "16 different boot IDs")
}

func TestAgentsAuthenticateWithCertificates(t *testing.T) {
	g := newGuarded(t, true)
	with := func(want pki.Want) secure.Files {
		want.File = "agent"
		p := issue(t, g.clients, want)
		return secure.Files{CA: g.ca.File, Cert: p.Cert, Key: p.Key}
	}
	mine := pki.Want{CommonName: "node1", Organization: access.AgentsGroup}
	if err := say(g.agent(with(mine)), hello("node1", "boot1", 1)); err != nil {
		t.Errorf("with its own certificate: %v", err)
	}
	also := pki.Want{CommonName: "node3.example.net", Organization: access.AgentsGroup, Hosts: []string{"node3"}}
	if err := say(g.agent(with(also)), hello("node3", "boot3", 1)); err != nil {
		t.Errorf("with a certificate that has the node as an additional name: %v", err)
	}
	wantRefused(t, say(g.agent(with(mine)), hello("node2", "boot2", 1)), codes.PermissionDenied, "only for its own node")
	wantRefused(t, say(g.agent(with(pki.Want{CommonName: "node1"})), hello("node1", "boot1", 1)), codes.PermissionDenied, access.AgentsGroup)
	// A certificate that agents share does not identify a node, but a token does.
	shared := with(pki.Want{CommonName: "ipwitness-agent"})
	wantRefused(t, say(g.agent(shared), hello("ipwitness-agent", "boot1", 1)), codes.PermissionDenied, "with its certificate alone")
	shared.Token = g.file(agentToken)
	if err := say(g.agent(shared), hello("node1", "boot1", 2)); err != nil {
		t.Errorf("with a shared certificate and a token: %v", err)
	}
	wantRefused(t, say(g.agent(shared), hello("node2", "boot2", 1)), codes.PermissionDenied, "only for its own node")
	wantRefused(t, say(g.agent(secure.Files{CA: g.ca.File, Token: g.file(agentToken)}), hello("node1", "boot1", 1)), codes.Unauthenticated, "client certificate")

	// With a certificate of another CA, or an expired one, the handshake fails.
	unknown := issue(t, newCA(t, t.TempDir(), "clients"), pki.Want{File: "agent", CommonName: "node1", Organization: access.AgentsGroup})
	wantRefused(t, say(g.agent(secure.Files{CA: g.ca.File, Cert: unknown.Cert, Key: unknown.Key}), hello("node1", "boot1", 1)), codes.Unavailable)
	old := mine
	old.Ended = true
	wantRefused(t, say(g.agent(with(old)), hello("node1", "boot1", 1)), codes.Unavailable)
}

// ask sends a REST request, with a token if it is not empty.
func (g *guarded) ask(method, path, token, body string) (int, string) {
	g.t.Helper()
	return g.askAt(g.listeners.http, method, path, token, body)
}

// askAt sends a request to a listener, with a token if it is not empty.
func (g *guarded) askAt(l net.Listener, method, path, token, body string) (int, string) {
	g.t.Helper()
	config, err := secure.Files{CA: g.ca.File}.Client()
	if err != nil {
		g.t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(g.t.Context(), method, "https://"+l.Addr().String()+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// Metadata that only the gateway may set.
	req.Header.Set("Grpc-Metadata-Ipwitness-Caller", "mallory")
	res, err := client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		g.t.Fatal(err)
	}
	return res.StatusCode, string(raw)
}

func TestReadersAndOperatorsHaveTokens(t *testing.T) {
	g := newGuarded(t, false)
	ack := fmt.Sprintf(`{"reason":"known","expiresAt":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339))
	for _, c := range []struct {
		method, path, token, body string
		want                      int
		says                      string
	}{
		{"GET", "/v1/owners", "", "", 401, "authentication is required"},
		{"GET", "/v1/owners:watch", "", "", 401, "authentication is required"},
		{"GET", "/metrics", "", "", 401, "authentication is required"},
		{"GET", "/v1/nodes", "wrong-token-0123456789", "", 401, "the token is unknown"},
		{"GET", "/v1/nodes", agentToken, "", 403, "node1 may not list nodes"},
		{"GET", "/healthz", "", "", 200, "ok"},
		{"GET", "/readyz", "", "", 200, "ok"},
		{"GET", "/", "", "", 200, "/v1/owners"},
		{"GET", "/openapi.json", "", "", 200, `"openapi"`},
		{"GET", "/v1/owners", readerToken, "", 200, `"owners":[]`},
		{"GET", "/v1/explain?address=192.0.2.1", readerToken, "", 200, "192.0.2.1"},
		{"GET", "/v1/pools", operatorToken, "", 200, `"pools":[]`},
		{"GET", "/metrics", readerToken, "", 200, "ipwitness_build_info"},
		{"POST", "/v1/conflicts/abc:acknowledge", "", ack, 401, "authentication is required"},
		{"POST", "/v1/conflicts/abc:acknowledge", readerToken, ack, 403, "bob may not create conflicts/acknowledge"},
		{"POST", "/v1/conflicts/abc:acknowledge", operatorToken, ack, 404, "abc"},
		{"POST", "/v1/backup", "", "{}", 401, "authentication is required"},
		{"POST", "/v1/backup", readerToken, "{}", 403, "bob may not get backups"},
		{"POST", "/v1/backup", operatorToken, "{}", 400, "in memory only"},
		{"GET", "/v1/findings/", readerToken, "", 404, "does not exist"},
	} {
		code, body := g.ask(c.method, c.path, c.token, c.body)
		if code != c.want || !strings.Contains(body, c.says) {
			t.Errorf("%s %s with %q: got %d %s, want %d %q", c.method, c.path, c.token, code, body[:min(len(body), 500)], c.want, c.says)
		}
	}
	if _, body := g.ask("GET", "/metrics", readerToken, ""); !strings.Contains(body, `ipwitness_requests_refused_total{reason="unauthenticated"}`) {
		t.Errorf("refusals are not counted: %s", body)
	}

	// A token that is removed from the file is no longer accepted. A file that cannot be read
	// changes nothing.
	g.write("short agent node1\n")
	if code, _ := g.ask("GET", "/v1/owners", readerToken, ""); code != 200 {
		t.Errorf("with a damaged file: got %d, want the previous tokens", code)
	}
	g.write(operatorToken + " operator alice\n")
	if code, _ := g.ask("GET", "/v1/owners", readerToken, ""); code != 401 {
		t.Errorf("with a removed token: got %d, want 401", code)
	}
}

// The listener of --metrics-listen follows the same access rules and serves nothing of the
// API.
func TestMetricsListenNeedsATokenToo(t *testing.T) {
	g := newGuarded(t, false)
	for _, c := range []struct {
		path, token string
		want        int
	}{
		{"/healthz", "", 200},
		{"/readyz", "", 200},
		{"/metrics", "", 401},
		{"/metrics", agentToken, 403},
		{"/metrics", readerToken, 200},
		{"/v1/owners", readerToken, 404},
	} {
		if code, body := g.askAt(g.listeners.metrics, "GET", c.path, c.token, ""); code != c.want {
			t.Errorf("%s with %q: got %d %s, want %d", c.path, c.token, code, body[:min(len(body), 500)], c.want)
		}
	}
}

func TestGRPCAndRESTNeedTheSameRights(t *testing.T) {
	g := newGuarded(t, false)
	call := func(token string) error {
		conn := g.connect(secure.Files{CA: g.ca.File, Token: g.file(token)})
		_, err := pb.NewWitnessServiceClient(conn).ListOwners(t.Context(), &pb.ListOwnersRequest{})
		if err != nil {
			return err
		}
		watch, err := pb.NewWitnessServiceClient(conn).WatchOwners(t.Context(), &pb.WatchOwnersRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		if err != nil {
			return err
		}
		backup, err := pb.NewWitnessServiceClient(conn).Backup(t.Context(), &pb.BackupRequest{})
		if err == nil {
			_, err = backup.Recv()
		}
		if token == readerToken {
			wantRefused(t, err, codes.PermissionDenied, "get backups")
		} else {
			wantRefused(t, err, codes.FailedPrecondition, "in memory only") // the rights are sufficient
		}
		_, err = pb.NewWitnessServiceClient(conn).AcknowledgeConflict(t.Context(), &pb.AcknowledgeConflictRequest{Id: "abc", Withdraw: true})
		return err
	}
	wantRefused(t, call(agentToken), codes.PermissionDenied, "list owners")
	wantRefused(t, call(readerToken), codes.PermissionDenied, "create conflicts/acknowledge")
	wantRefused(t, call(operatorToken), codes.NotFound)
}

func TestOversizedRequestsAreRefused(t *testing.T) {
	g := newGuarded(t, false)
	// A message that is larger than any agent sends.
	stream := g.agent(secure.Files{CA: g.ca.File, Token: g.file(agentToken)})
	big := hello("node1", "boot1", 1)
	big.Claims = []*pb.ClaimRecord{{Network: strings.Repeat("x", 5<<20)}}
	wantRefused(t, say(stream, big), codes.ResourceExhausted, "larger than max")
	// A small message that becomes large when it is decoded.
	many := hello("node1", "boot1", 1)
	for range 250_000 {
		many.Links = append(many.Links, &pb.LinkRecord{})
	}
	wantRefused(t, say(g.agent(secure.Files{CA: g.ca.File, Token: g.file(agentToken)}), many), codes.Internal, "more than 200000 parts")
	// A body that is larger than any valid request.
	if code, body := g.ask("POST", "/v1/conflicts/abc:acknowledge", operatorToken, `{"reason":"`+strings.Repeat("x", 64<<10)+`"}`); code != 400 || !strings.Contains(body, "too large") {
		t.Errorf("a large body: got %d %s, want 400 too large", code, body)
	}
}

// Under synctest the clock stands still while a goroutine waits for the network, so the speed of
// the machine does not matter.
func TestTooFrequentCallsAreRefusedWithAdvice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, false)
		const atOnce = 1000
		words := []string{"too many calls", "500 per second", "use a watch"}

		config, err := secure.Files{CA: g.ca.File}.Client()
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		ask := func() (int, string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.listeners.http.Addr().String()+"/v1/nodes", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+readerToken)
			res, err := (&http.Client{Transport: transport}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			raw, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, string(raw)
		}
		for n := range atOnce {
			if code, body := ask(); code != http.StatusOK {
				t.Fatalf("REST, call %d of %d: got %d %s", n+1, atOnce, code, body)
			}
		}
		code, body := ask()
		for _, w := range words {
			if code != http.StatusTooManyRequests || !strings.Contains(body, w) {
				t.Errorf("REST, one more: got %d %s, want 429 with %q", code, body, w)
			}
		}

		conn := g.connect(secure.Files{CA: g.ca.File, Token: g.file(operatorToken)})
		list := func() error {
			_, err := pb.NewWitnessServiceClient(conn).ListNodes(t.Context(), &pb.ListNodesRequest{})
			return err
		}
		for n := range atOnce { // another caller has its own quota
			if err := list(); err != nil {
				t.Fatalf("gRPC, call %d of %d: %v", n+1, atOnce, err)
			}
		}
		wantRefused(t, list(), codes.ResourceExhausted, words...)
	})
}

type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(code int) { r.code = code }

func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.body.Write(p)
}

func TestCertificatesRotateWithoutARestart(t *testing.T) {
	g := newGuarded(t, false)
	serial := func() string {
		config, err := secure.Files{CA: g.ca.File}.Client()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", g.listeners.http.Addr().String(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	want := pki.Want{File: "server", CommonName: "aggregator", Hosts: []string{"127.0.0.1"}}
	issue(t, g.ca, want)
	after := serial()
	if before == after {
		t.Errorf("the certificate is still that of serial %s after it was replaced", before)
	}
	// A damaged certificate is not used.
	if err := os.WriteFile(g.pair.Cert, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got != after {
		t.Errorf("with a damaged file: got serial %s, want %s", got, after)
	}
}

func TestTLSIsOfTheNewestVersion(t *testing.T) {
	g := newGuarded(t, false)
	config, err := secure.Files{CA: g.ca.File}.Client()
	if err != nil {
		t.Fatal(err)
	}
	config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, l := range []net.Listener{g.listeners.http, g.listeners.grpc, g.listeners.metrics} {
		if conn, err := tls.Dial("tcp", l.Addr().String(), config); err == nil {
			_ = conn.Close()
			t.Errorf("%s speaks TLS 1.2", l.Addr())
		}
	}
}

func TestTheCLISendsItsToken(t *testing.T) {
	g := newGuarded(t, false)
	ask := func(args ...string) (int, string) {
		var out strings.Builder
		sys := system{program: "ipwitness", stdout: &out, stderr: &out, getenv: noDataDir, now: time.Now, transport: newTransport()}
		code := execute(t.Context(), sys, append(args, "--server", "https://"+g.listeners.http.Addr().String(), "--tls-ca", g.ca.File))
		return code, out.String()
	}
	if code, out := ask("nodes", "--token-file", g.file(readerToken)); code != 0 {
		t.Errorf("nodes with a token: got %d: %s", code, out)
	}
	if code, out := ask("nodes"); code != 1 || !strings.Contains(out, "--token-file") {
		t.Errorf("nodes without a token: got %d: %s, want it to name --token-file", code, out)
	}
	if code, out := ask("nodes", "--token-file", "/nowhere"); code != 1 || !strings.Contains(out, "/nowhere") || strings.Contains(out, "cannot reach") {
		t.Errorf("nodes with no file: got %d: %s", code, out)
	}
}

func TestFlagsThatAreNotSafeAreRefused(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a pod
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte(readerToken+" reader bob\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.WriteFile(open, []byte(readerToken+" reader bob\n"), 0o600), os.Chmod(open, 0o644)); err != nil { // regardless of the umask
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"aggregator", "--tokens", tokens}, "unencrypted"},
		{[]string{"aggregator", "--tokens", tokens, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--metrics-listen", ":0"}, "unencrypted"},
		{[]string{"aggregator", "--require-auth", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}, "no authentication is configured"},
		{[]string{"run", "--require-auth", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}, "no authentication is configured"},
		{[]string{"aggregator", "--tokens", open, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}, "every user of this host can access"},
		{[]string{"aggregator", "--token-review", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}, "needs the Kubernetes API"},
		{[]string{"aggregator", "--anonymous", "none", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}, "would refuse all callers"},
		{[]string{"aggregator", "--tls-cert", "x"}, "--tls-key"},
		{[]string{"aggregator", "--tls-client-ca", "x"}, "--tls-cert"},
		{[]string{"nodes", "--server", "http://192.0.2.1", "--token-file", tokens}, "not sent without TLS"},
	} {
		var out strings.Builder
		sys := system{program: "ipwitness", stdout: &out, stderr: &out, getenv: noDataDir, now: time.Now, transport: newTransport()}
		ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
		if code := execute(ctx, sys, c.args); code != 1 || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: got %d: %s, want it to say %q", c.args, code, out.String(), c.says)
		}
		cancel()
	}
}

// Each listener that other hosts can reach without authentication logs one warning.
func TestListenersWithoutAuthenticationLogAWarning(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a pod
	ca := newCA(t, t.TempDir(), "servers")
	pair := issue(t, ca, pki.Want{File: "server", CommonName: "aggregator", Hosts: []string{"localhost"}})
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(readerToken+" reader bob\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want map[string]string // what unauthenticated callers may do, by listener
	}{
		"open": {
			[]string{"aggregator", "--grpc-listen", ":0", "--http-listen", ":0", "--metrics-listen", ":0"},
			map[string]string{"grpc-listen": "report and read", "http-listen": "read", "metrics-listen": "read metrics"},
		},
		"open, encrypted": {
			[]string{"aggregator", "--grpc-listen", "127.0.0.1:0", "--http-listen", ":0", "--tls-cert", pair.Cert, "--tls-key", pair.Key},
			map[string]string{"http-listen": "read"},
		},
		"this host only": {[]string{"aggregator", "--grpc-listen", "127.0.0.1:0", "--http-listen", "[::1]:0", "--metrics-listen", "localhost:0"}, nil},
		"authenticated": {
			[]string{"aggregator", "--grpc-listen", ":0", "--http-listen", ":0", "--metrics-listen", ":0", "--tls-cert", pair.Cert, "--tls-key", pair.Key, "--tokens", tokens, "--require-auth"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log := &lineWriter{text: `"msg":"starting"`, end: cancel}
			sys := system{program: "ipwitness", stdout: io.Discard, stderr: log, getenv: noDataDir, now: time.Now, transport: newTransport()}
			execute(ctx, sys, append(c.args, "--log-format", "json"))
			got := map[string]string{}
			for line := range strings.Lines(log.String()) {
				var entry struct {
					Level, Msg, Listener string
					May                  string `json:"unauthenticated_access"`
				}
				if json.Unmarshal([]byte(line), &entry) == nil && entry.Listener != "" {
					if _, twice := got[entry.Listener]; twice || entry.Level != "WARN" {
						t.Errorf("got %s, want it once, as a warning", line)
					}
					got[entry.Listener] = entry.May
				}
			}
			if !strings.Contains(log.String(), log.text) || !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v; the log:\n%s", got, c.want, log)
			}
		})
	}
}

func TestWorldReadableSecretsCauseAWarning(t *testing.T) {
	g := newGuarded(t, false)
	token := g.file(readerToken)
	for _, c := range []struct {
		mode os.FileMode
		want bool
	}{{0o600, false}, {0o440, false}, {0o444, true}} {
		if err := errors.Join(os.Chmod(token, c.mode), os.Chmod(g.pair.Key, c.mode)); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		log := slog.New(slog.NewTextHandler(&out, nil))
		if _, err := (secure.Files{Cert: g.pair.Cert, Key: g.pair.Key}).Server(log); err != nil {
			t.Fatal(err)
		}
		if _, err := (secure.Files{CA: g.ca.File, Token: token}).DialOptions(log); err != nil {
			t.Fatal(err)
		}
		sys := system{program: "ipwitness", stdout: io.Discard, stderr: &out, getenv: noDataDir, now: time.Now, transport: newTransport()}
		args := []string{"nodes", "--server", "https://" + g.listeners.http.Addr().String(), "--tls-ca", g.ca.File, "--token-file", token}
		if code := execute(t.Context(), sys, args); code != 0 {
			t.Errorf("mode %o: got %d", c.mode, code)
		}
		want := 0
		if c.want {
			want = 1
		}
		if key, others := strings.Count(out.String(), "file="+g.pair.Key), strings.Count(out.String(), "file="+token); key != want || others != want {
			t.Errorf("mode %o: got %d warnings about the key and %d about the token, want %d: %s", c.mode, key, others, want, &out)
		}
		if cli := strings.Count(out.String(), "chmod o= "+token); cli != want {
			t.Errorf("mode %o: got %d warnings of the command, want %d: %s", c.mode, cli, want, &out)
		}
	}
}

// A page of another site that uses DNS rebinding must not acknowledge anything.
func TestWithoutAccessControlOnlyThisHostAcknowledges(t *testing.T) {
	s, _ := testServer(t)
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		remote, host string
		want         int
	}{
		{"127.0.0.1:1", "127.0.0.1:9641", 404},
		{"[::1]:1", "localhost:9641", 404},
		{"127.0.0.1:1", "[::1]:9641", 404},
		{"127.0.0.1:1", hostname + ":9641", 404},
		{"127.0.0.1:1", strings.ToUpper(hostname) + ":9641", 404}, // host names are case-insensitive
		{"127.0.0.1:1", "evil.example.net", 403},
		{"192.0.2.7:1", "127.0.0.1:9641", 403},
	} {
		w := &recorder{header: http.Header{}}
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+c.host+"/v1/conflicts/abc:acknowledge", strings.NewReader(`{"withdraw":true}`))
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr = c.remote
		s.http.Handler.ServeHTTP(w, r)
		if w.code != c.want {
			t.Errorf("from %s for %s: got %d %s, want %d", c.remote, c.host, w.code, w.body.String(), c.want)
		}
	}
}

// After the replacement of a CA, existing connections with its certificates are closed.
func TestAConnectionDoesNotOutliveItsAuthority(t *testing.T) {
	g := newGuarded(t, true)
	p := issue(t, g.clients, pki.Want{File: "agent", CommonName: "node1", Organization: access.AgentsGroup})
	creds, err := secure.Files{CA: g.ca.File, Cert: p.Cert, Key: p.Key}.DialOptions(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	at := g.listeners.grpc.Addr().String()
	conn, err := agentreport.Replicas(at, creds).Dial(at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	report := func(epoch uint64) error {
		stream, err := pb.NewReportServiceClient(conn).Report(t.Context())
		if err != nil {
			return err
		}
		return say(stream, hello("node1", "boot1", epoch))
	}
	if err := report(1); err != nil {
		t.Fatal(err)
	}
	newCA(t, filepath.Dir(g.clients.File), "clients")
	wantRefused(t, report(2), codes.Unauthenticated, "no longer valid", "unknown authority")
}

func TestNamesMayBeUnicode(t *testing.T) {
	g := newGuarded(t, false)
	g.write(readerToken + " reader jürgen\n")
	if code, body := g.ask("GET", "/v1/owners", readerToken, ""); code != 200 {
		t.Errorf("got %d %s, want 200", code, body)
	}
}

// Headers of unauthenticated requests must be small.
func TestLargeHeadersAreRefused(t *testing.T) {
	g := newGuarded(t, false)
	config, err := secure.Files{CA: g.ca.File}.Client()
	if err != nil {
		t.Fatal(err)
	}
	at := g.listeners.grpc.Addr().String()
	conn, err := agentreport.Replicas(at, []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}).Dial(at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-large", strings.Repeat("x", cli.MaxHeader))
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil {
		t.Errorf("a header of more than %d bytes is accepted", cli.MaxHeader)
	}
}

// The token is not sent along if a server redirects the request to another host.
func TestTokensDoNotFollowRedirects(t *testing.T) {
	shown := make(chan string, 1)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { shown <- r.Header.Get("Authorization") }))
	defer elsewhere.Close()
	first := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer first.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(readerToken), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	sys := system{program: "ipwitness", stdout: &out, stderr: &out, getenv: noDataDir, now: time.Now, transport: newTransport()}
	if code := execute(t.Context(), sys, []string{"nodes", "--server", first.URL, "--token-file", token}); code != 1 || !strings.Contains(out.String(), elsewhere.URL) {
		t.Errorf("got %d: %s, want it to name the redirect target", code, out.String())
	}
	select {
	case got := <-shown:
		t.Errorf("another server received %q", got)
	default:
	}
}

// A page of another site cannot read data either.
func TestAPageOfAnotherSiteReadsNothing(t *testing.T) {
	s, _ := testServer(t)
	for _, c := range []struct {
		remote, host, path string
		want               int
	}{
		{"127.0.0.1:1", "localhost:9641", "/v1/owners", 200},
		{"127.0.0.1:1", "127.0.0.1:9641", "/metrics", 200},
		{"127.0.0.1:1", "evil.example.net:9641", "/healthz", 200},
		{"127.0.0.1:1", "evil.example.net:9641", "/v1/owners", 403},
		{"127.0.0.1:1", "evil.example.net:9641", "/v1/owners:watch", 403},
		{"127.0.0.1:1", "evil.example.net:9641", "/metrics", 403},
		{"192.0.2.7:1", "ipwitness.example.net", "/v1/owners", 200},
	} {
		w := &recorder{header: http.Header{}}
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+c.host+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr = c.remote
		s.http.Handler.ServeHTTP(w, r)
		if w.code != c.want {
			t.Errorf("%s from %s for %s: got %d %s, want %d", c.path, c.remote, c.host, w.code, w.body.String(), c.want)
		}
	}
}
