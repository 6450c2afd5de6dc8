package stream

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/pki"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// file writes a secret to a file.
func (l *lab) file(name, content string) string {
	l.Helper()
	name = filepath.Join(l.TempDir(), name)
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		l.Fatal(err)
	}
	return name
}

// publishes checks that a publisher with some settings reaches the stream.
func (l *lab) publishes(settings stream.Settings) {
	l.Helper()
	r := l.replica(0)
	r.present("10.0.0.1")
	_, end := r.publish(settings)
	defer end()
	wait.Until(l, "the state in the stream", func() bool { return l.states() > 0 })
	r.record(pb.Watch_ADDED, "10.0.0.2")
	l.await("ADDED 10.0.0.2")
}

// refused checks that a publisher with other settings is refused, and counts that as a failure.
func (l *lab) refused(settings stream.Settings) {
	l.Helper()
	r := l.replica(0)
	r.present("10.0.0.1")
	p, end := r.publish(settings)
	defer end()
	wait.Until(l, "the server to refuse the publisher", func() bool {
		return strings.Contains(l.server.Log.String(), "uthentication") || strings.Contains(l.server.Log.String(), "uthorization") || strings.Contains(l.server.Log.String(), "TLS handshake error")
	})
	if sent := p.Stats().Sent; sent != 0 {
		l.Errorf("got %d transitions, want none", sent)
	}
}

func TestThePublisherHasAToken(t *testing.T) {
	l := newLabWith(t, "authorization { token: secret }\n", natsclient.Token("secret"))
	l.refused(l.settings())
	wrong := l.settings()
	wrong.Token = l.file("wrong", "wrong\n")
	l.refused(wrong)
	right := l.settings()
	right.Token = l.file("token", "secret\n")
	l.publishes(right)
}

func TestThePublisherHasAnNKey(t *testing.T) {
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := user.PublicKey()
	seed, _ := user.Seed()
	sign := func(nonce []byte) ([]byte, error) { return user.Sign(nonce) }
	l := newLabWith(t, fmt.Sprintf("authorization { users: [ { nkey: %s } ] }\n", public), natsclient.Nkey(public, sign))
	l.refused(l.settings())
	right := l.settings()
	right.NKey = l.file("nkey", string(seed)+"\n")
	l.publishes(right)
}

// The publisher needs no other permissions than those in docs/export.md.
func TestTheDocumentedPermissionsSuffice(t *testing.T) {
	publisher, publisherSeed := documentedUser(t, "export.md", "The account of the aggregator needs these permissions")
	reader, readerSeed := documentedUser(t, "fleet.md", "The account of the fleet in NATS needs these permissions")
	l := newLabWith(t, fmt.Sprintf("authorization { users: [ %s, %s, { user: test, password: test } ] }\n", publisher, reader), natsclient.UserInfo("test", "test"))
	settings := l.settings()
	settings.NKey = l.file("nkey", publisherSeed)
	l.publishes(settings)
	f := &fleetLab{TB: t, dir: t.TempDir(), url: l.url, nkey: l.file("nkey2", readerSeed)}
	f.start()
	defer func() { f.stop() }()
	f.await(nil, "a.b 10.0.0.1", "a.b 10.0.0.2")
	f.stop() // it continues from its position
	f.start()
	f.awaitState("a.b", pb.Cluster_LIVE)
	l.publishes(settings) // another replica, which compares
	if problems := f.Fleet.Problems(); len(problems) != 0 {
		t.Errorf("got the problems %q, want none", problems)
	}
}

// documentedUser returns a user with the permissions in a sentence of a page, and the seed of the user.
func documentedUser(t *testing.T, name, begins string) (user, seed string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	_, sentence, found := strings.Cut(string(page), begins)
	sentence, _, _ = strings.Cut(sentence, "\n")
	if !found {
		t.Fatalf("docs/%s has no permissions", name)
	}
	publish, subscribe, _ := strings.Cut(sentence, "subscribe to")
	list := func(text string) string {
		var all []string
		for _, one := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
			subject := strings.ReplaceAll(one[1], "CLUSTER", "a=2Eb")
			all = append(all, strconv.Quote(regexp.MustCompile(`\bNAME\b`).ReplaceAllLiteralString(subject, stream.Name("a.b"))))
		}
		return strings.Join(all, ", ")
	}
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := key.PublicKey()
	raw, _ := key.Seed()
	return fmt.Sprintf("{ nkey: %s, permissions: { publish: [%s], subscribe: [%s] } }", public, list(publish), list(subscribe)), string(raw) + "\n"
}

const systemAccount = "system"

// claims returns a signed JWT of NATS.
func claims(t *testing.T, signer, subject nkeys.KeyPair, kind, name string) string {
	t.Helper()
	issuer, _ := signer.PublicKey()
	sub, _ := subject.PublicKey()
	stored := -1
	if name == systemAccount { // a server refuses to start if it may store something
		stored = 0
	}
	body, err := json.Marshal(map[string]any{
		"jti": name, "iat": time.Now().Unix(), "iss": issuer, "name": name, "sub": sub,
		"nats": map[string]any{
			"type": kind, "version": 2, "subs": -1, "data": -1, "payload": -1,
			"limits": map[string]any{"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1, "mem_storage": stored, "disk_storage": stored, "streams": stored, "consumer": stored},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"typ":"JWT","alg":"ed25519-nkey"}`)) + "." + encode(body)
	signature, err := signer.Sign([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + encode(signature)
}

func TestThePublisherHasCredentials(t *testing.T) {
	operator, _ := nkeys.CreateOperator()
	account, _ := nkeys.CreateAccount()
	system, _ := nkeys.CreateAccount()
	user, _ := nkeys.CreateUser()
	ours, _ := account.PublicKey()
	theirs, _ := system.PublicKey()
	seed, _ := user.Seed()
	creds := fmt.Sprintf("-----BEGIN NATS USER JWT-----\n%s\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n",
		claims(t, account, user, "user", "publisher"), seed)
	name := filepath.Join(t.TempDir(), "creds")
	if err := os.WriteFile(name, []byte(creds), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLabWith(t, fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n  %s: %s\n  %s: %s\n}\n",
		claims(t, operator, operator, "operator", "test"), theirs, ours, claims(t, operator, account, "account", "ours"),
		theirs, claims(t, operator, system, "account", systemAccount)), natsclient.UserCredentials(name))
	l.refused(l.settings())
	right := l.settings()
	right.Creds = name
	l.publishes(right)
}

func TestThePublisherUsesTLSAndReloadsItsFiles(t *testing.T) {
	dir := t.TempDir()
	issue := func(ca *pki.CA, file string) pki.Pair {
		t.Helper()
		pair, err := ca.Issue(pki.Want{File: file, CommonName: file, Hosts: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	newCA := func(name string) *pki.CA {
		t.Helper()
		ca, err := pki.New(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	first := newCA("ca")
	server, client := issue(first, "server"), issue(first, "client")
	l := newLabWith(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n", server.Cert, server.Key, first.File),
		natsclient.RootCAs(first.File), natsclient.ClientCert(client.Cert, client.Key))
	without := l.settings()
	without.CA = first.File
	l.refused(without)

	r := l.replica(0)
	r.present("10.0.0.1")
	settings := l.settings()
	settings.CA, settings.Cert, settings.Key = first.File, client.Cert, client.Key
	_, end := r.publish(settings)
	defer end()
	wait.Until(t, "the state in the stream", func() bool { return l.states() > 0 })

	// Another authority replaces the first one: all files are written again under their names.
	l.server.Kill()
	second := newCA("ca")
	issue(second, "server")
	issue(second, "client")
	if err := l.server.Restart(l.url); err != nil {
		t.Fatal(err)
	}
	r.record(pb.Watch_ADDED, "10.0.0.2")
	l.await("ADDED 10.0.0.2")
}

func TestSettingsThatCannotWorkAreErrors(t *testing.T) {
	exists := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(exists, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	servers := []string{"nats://127.0.0.1:4222"}
	for want, s := range map[string]stream.Settings{
		"need --nats": {Creds: exists},
		"--nats-cert and --nats-key: a certificate": {Servers: servers, Cert: exists},
		"set only one of them":                      {Servers: servers, Creds: exists, Token: exists},
		"read the credentials":                      {Servers: servers, Token: exists + "-missing"},
		"has no certificate":                        {Servers: servers, CA: exists},
		"use the certificate":                       {Servers: servers, Cert: exists, Key: exists},
	} {
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if err := (&stream.Settings{Servers: servers, Token: exists}).Check(); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

// A URL with TLS, a CA bundle or a client certificate makes the client use TLS, whatever the server says.
func TestATokenNeedsTLS(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.New(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	client, err := ca.Issue(pki.Want{File: "client", CommonName: "client"})
	if err != nil {
		t.Fatal(err)
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := user.Seed()
	l := &lab{TB: t}
	token, nkey := l.file("token", "secret\n"), l.file("nkey", string(seed))
	for name, one := range map[string]struct {
		settings stream.Settings
		refused  bool
	}{
		"nats":                   {stream.Settings{Servers: []string{"nats://192.0.2.1:4222"}, Token: token}, true},
		"ws":                     {stream.Settings{Servers: []string{"ws://nats.example.net"}, Token: token}, true},
		"one of several":         {stream.Settings{Servers: []string{"tls://192.0.2.1:4222", "nats://192.0.2.2:4222"}, Token: token}, true},
		"a name like loopback":   {stream.Settings{Servers: []string{"nats://localhost.example.net:4222"}, Token: token}, true},
		"tls and wss":            {stream.Settings{Servers: []string{"tls://192.0.2.1:4222", "wss://nats.example.net"}, Token: token}, false},
		"a CA bundle":            {stream.Settings{Servers: []string{"nats://192.0.2.1:4222"}, Token: token, CA: ca.File}, false},
		"a certificate":          {stream.Settings{Servers: []string{"ws://192.0.2.1:4222"}, Token: token, Cert: client.Cert, Key: client.Key}, false},
		"this host":              {stream.Settings{Servers: []string{"nats://127.0.0.1:4222", "nats://[::1]:4222", "ws://localhost"}, Token: token}, false},
		"an NKey, which is safe": {stream.Settings{Servers: []string{"nats://192.0.2.1:4222"}, NKey: nkey}, false},
	} {
		err := one.settings.Check()
		if !one.refused && err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
		if one.refused && (err == nil || !strings.Contains(err.Error(), "without TLS")) {
			t.Errorf("%s: got %v, want an error that says that there is no TLS", name, err)
		}
	}
}

// A server without TLS gets nothing of a client with a CA bundle.
func TestACABundleRequiresTLS(t *testing.T) {
	ca, err := pki.New(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	l := newLabWith(t, "authorization { token: secret }\n", natsclient.Token("secret"))
	settings := l.settings()
	settings.Token = l.file("token", "secret\n")
	l.publishes(settings)
	before := len(l.messages())
	settings.CA = ca.File
	r := l.replica(0)
	r.present("10.0.0.1")
	p, end := r.publish(settings)
	defer end()
	wait.Until(t, "the client to fail", func() bool { return p.Stats().Lag > 0 })
	r.ahead.Store(int64(longAgo)) // problems are reported after a minute
	wait.Until(t, "a problem", func() bool { return strings.Contains(fmt.Sprint(p.Problems()), "secure connection") })
	if n := len(l.messages()); n != before {
		t.Errorf("got %d more messages without TLS, want none", n-before)
	}
}
