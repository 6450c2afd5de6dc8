package export

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ipwitness/ipwitness/tests/pki"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// A CA bundle that changes is used without a restart. One that cannot be used leaves the previous one.
func TestAChangedCABundleIsUsed(t *testing.T) {
	dir := t.TempDir()
	var received atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { received.Add(1) }))
	t.Cleanup(server.Close)
	var bundles [][]byte
	for _, name := range []string{"old", "new"} {
		ca, err := pki.New(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Issue(pki.Want{File: name, CommonName: name, Hosts: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}} // in the end, that of the new CA
		bundle, err := os.ReadFile(ca.File)
		if err != nil {
			t.Fatal(err)
		}
		bundles = append(bundles, bundle)
	}
	server.StartTLS()
	file := filepath.Join(dir, "bundle")
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file+".next", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".next", file); err != nil {
			t.Fatal(err)
		}
	}
	write(bundles[0])
	b := newBench(t, Settings{OTLP: server.URL, CA: file})
	b.state()
	b.changed(b.conflict(1))
	wait.Until(t, "the receiver to be refused", func() bool { return b.stats().Failures > 0 })
	if n := received.Load(); n != 0 {
		t.Fatalf("got %d requests with another CA, want none", n)
	}
	write(bundles[1])
	wait.Until(t, "the transition with the new CA", func() bool { return b.stats().Sent == 1 })
	before := b.stats()
	write([]byte("not a certificate"))
	b.changed(b.conflict(2))
	wait.Until(t, "the transition with a bundle that cannot be used", func() bool { return b.stats().Sent > before.Sent })
	write(bundles[0])
	b.changed(b.conflict(3))
	wait.Until(t, "the receiver to be refused again", func() bool { return b.stats().Failures > before.Failures })
}
