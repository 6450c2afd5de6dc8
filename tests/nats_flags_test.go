package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/pki"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The aggregator uses the files of its flags, and creates the stream as they say.
func TestTheFlagsOfNATSAreUsed(t *testing.T) {
	slow(t)
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca, err := pki.New(dir, "nats")
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.Issue(pki.Want{File: "server", CommonName: "server", Hosts: []string{"127.0.0.1"}})
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
	public, _ := user.PublicKey()
	seed, _ := user.Seed()
	for name, one := range map[string]struct {
		more  string
		flags []string
		with  []natsclient.Option
	}{
		"TLS and a token": {
			fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\nauthorization { token: secret }\n", server.Cert, server.Key, ca.File),
			[]string{
				"--nats", "tls://127.0.0.1:4222", "--nats-ca", ca.File, "--nats-cert", client.Cert, "--nats-key", client.Key,
				"--nats-token-file", file("token", "secret\n"), "--nats-retention", "2d", "--nats-size", "1GiB",
			},
			[]natsclient.Option{natsclient.RootCAs(ca.File), natsclient.ClientCert(client.Cert, client.Key), natsclient.Token("secret")},
		},
		"an NKey": {
			fmt.Sprintf("authorization { users: [ { nkey: %s } ] }\n", public),
			[]string{"--nats", "nats://127.0.0.1:4222", "--nats-nkey", file("nkey", string(seed)), "--nats-retention", "48h", "--nats-size", "1024MiB"},
			[]natsclient.Option{natsclient.Nkey(public, func(nonce []byte) ([]byte, error) { return user.Sign(nonce) })},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bin, err := nats.Binary("..")
			if err != nil {
				t.Fatal(err)
			}
			h := newHost(t)
			s, err := nats.Start(h, bin, t.TempDir(), nats.Config{Name: "one", Port: 4222, More: one.more})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Kill)
			newAggregatorOn(t, h, append(one.flags, "--cluster", "prod", "--data-dir", filepath.Join(t.TempDir(), "data"))...)
			conn, err := nats.Connect(h, "nats://127.0.0.1:4222", one.with...)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			js, err := jetstream.New(conn)
			if err != nil {
				t.Fatal(err)
			}
			var cfg jetstream.StreamConfig
			wait.Until(t, "the stream", func() bool {
				s, err := js.Stream(t.Context(), stream.Name("prod"))
				if err == nil {
					cfg = s.CachedInfo().Config
				}
				return err == nil
			})
			if cfg.MaxAge != 48*time.Hour || cfg.MaxBytes != 1<<30 || cfg.Storage != jetstream.FileStorage || cfg.Replicas != 1 {
				t.Errorf("got stream %+v, want 48 h, 1 GiB, files and one server", cfg)
			}
		})
	}
}
