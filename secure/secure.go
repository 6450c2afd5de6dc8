// Package secure provides TLS configurations and tokens from files, which may change while
// the program runs: well-kept certificates and tokens are short-lived. Access is decided in
// aggregator/access; nothing here knows a role.
package secure

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// System is the value of --tls-ca for the certificate authorities of this host.
const System = "system"

// minVersion is the oldest TLS version: all clients and servers of ipwitness support it.
const minVersion = tls.VersionTLS13

// Files are the files that the --tls-* flags and --token-file name; empty for none.
type Files struct {
	// Cert is our certificate with its chain, Key its private key (PEM).
	Cert, Key string
	// CA is the CA bundle used to verify server certificates (PEM), or System.
	CA string
	// ClientCA is the CA bundle used to verify client certificates (PEM).
	ClientCA string
	// Token is the file with our own bearer token.
	Token string
}

// Check returns an error if a file is missing that another one needs.
func (f Files) Check() error {
	switch {
	case f.Cert != "" && f.Key == "":
		return errors.New("--tls-cert needs the key of the certificate: set --tls-key")
	case f.Key != "" && f.Cert == "":
		return errors.New("--tls-key needs the certificate of the key: set --tls-cert")
	case f.ClientCA != "" && f.Cert == "":
		return errors.New("--tls-client-ca needs TLS: set --tls-cert and --tls-key")
	}
	return nil
}

// Exposed returns the files with a secret that every user of this host can read.
func (f Files) Exposed() []string { return exposed(f.Key, f.Token) }

// exposed returns the files that every user of this host can read. Group permissions are
// left to the administrator: in Kubernetes, a pod reads its Secrets through the group in
// fsGroup.
func exposed(names ...string) (all []string) {
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.Mode().Perm()&0o004 != 0 {
			all = append(all, name)
		}
	}
	return all
}

// WarnExposed logs which of some files with a secret every user of this host can read.
func WarnExposed(log *slog.Logger, secrets ...string) {
	for _, name := range exposed(secrets...) {
		log.Warn("every user of this host can read a secret: run 'chmod o=' on it, or set defaultMode 0440 for a Secret in Kubernetes", "file", name)
	}
}

// Server returns the TLS configuration of a server for protocols; nil without a
// certificate. The files are read now, and again when they have changed at the next
// handshake. If they cannot be used then, their previous contents stay in use.
func (f Files) Server(log *slog.Logger, protocols ...string) (*tls.Config, error) {
	if err := f.Check(); err != nil || f.Cert == "" {
		return nil, err
	}
	current := Follow(f, log, func() (*tls.Config, error) {
		pair, err := f.Pair()
		if err != nil {
			return nil, err
		}
		c := &tls.Config{
			MinVersion: minVersion, NextProtos: protocols, Certificates: []tls.Certificate{pair},
			SessionTicketsDisabled: true, // so that every handshake verifies the client
		}
		if f.ClientCA != "" {
			// Clients without a certificate may have a token.
			c.ClientAuth = tls.VerifyClientCertIfGiven
			c.ClientCAs, err = ReadCAs("certificate authorities", f.ClientCA)
		}
		return c, err
	})
	first, err := current.Config()
	if err != nil {
		return nil, err
	}
	config := first.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return current.Config() }
	return config, nil
}

// Verifier returns a function that verifies a client's certificate by the current files of
// a Server. The handshake has verified it by the files of that time.
func Verifier(server *tls.Config) func(chain []*x509.Certificate) error {
	return func(chain []*x509.Certificate) error {
		now, err := server.GetConfigForClient(nil)
		if err != nil {
			return err
		}
		between := x509.NewCertPool()
		for _, c := range chain[1:] {
			between.AddCert(c)
		}
		_, err = chain[0].Verify(x509.VerifyOptions{
			Roots: now.ClientCAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		return err
	}
}

// Client returns the TLS configuration of a client from the current files; nil without a
// CA and a certificate.
func (f Files) Client() (*tls.Config, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	if f.CA == "" && f.Cert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: minVersion}
	var err error
	if f.CA != System && f.CA != "" {
		if c.RootCAs, err = ReadCAs("certificate authorities", f.CA); err != nil {
			return nil, err
		}
	}
	if f.Cert != "" {
		pair, err := f.Pair()
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Pair reads our certificate and its key.
func (f Files) Pair() (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return pair, fmt.Errorf("cannot use the certificate %s with the key %s: %w", f.Cert, f.Key, err)
	}
	return pair, nil
}

// ReadCAs reads a CA bundle (PEM). what names it in errors.
func ReadCAs(what, name string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM: it must begin with -----BEGIN CERTIFICATE-----", name)
	}
	return pool, nil
}

// DialOptions returns the credentials of a gRPC client, which uses no TLS without a CA. Each connection uses the
// files as they are when it is made.
func (f Files) DialOptions(log *slog.Logger) ([]grpc.DialOption, error) {
	switch {
	case f.CA == "" && f.Token != "":
		return nil, errors.New("--token-file is not sent without TLS, because it could be read in transit: set --tls-ca to the CA of the aggregator's certificate")
	case f.CA == "" && f.Cert != "" && f.ClientCA == "":
		return nil, errors.New("--tls-cert needs TLS: set --tls-ca to the CA of the aggregator's certificate")
	case f.CA == "":
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	current := Follow(f, log, f.Client)
	first, err := current.Config()
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(rotating{credentials.NewTLS(first), current})}
	if f.Token != "" {
		if _, err := ReadToken(f.Token); err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(Token(f.Token)))
	}
	return options, nil
}

// rotating are credentials from files that change.
type rotating struct {
	credentials.TransportCredentials
	current *Follower
}

// ClientHandshake implements credentials.TransportCredentials.
func (r rotating) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := r.current.Config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

func (r rotating) Clone() credentials.TransportCredentials { return r }

// Known requires a client certificate for some paths if there is TLS.
func Known(next http.Handler, config *tls.Config, paths ...string) http.Handler {
	if config == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(paths, r.URL.Path) && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) {
			http.Error(w, "this path requires a client certificate signed by the CA of --tls-client-ca", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// maxToken is the maximum size of a token in bytes.
const maxToken = 64 << 10

// ReadToken returns the bearer token that a file contains now.
func ReadToken(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("read our token: %w", err)
	}
	defer func() { _ = file.Close() }() // only read
	raw, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	token := string(bytes.TrimSpace(raw))
	switch {
	case err != nil:
		return "", fmt.Errorf("read our token: %w", err)
	case token == "" || len(raw) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s must contain one token and nothing else", name)
	}
	return token, nil
}

// Token is a file with a bearer token, which is read for each call.
type Token string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t Token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := ReadToken(string(t))
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (t Token) RequireTransportSecurity() bool { return true }

// RoundTripper returns a transport that sends the token with each request. It sends only
// over TLS, or to this host.
func (t Token) RoundTripper(next http.RoundTripper) http.RoundTripper { return bearer{t, next} }

type bearer struct {
	token Token
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if host := r.URL.Hostname(); r.URL.Scheme != "https" && host != "localhost" && !net.ParseIP(host).IsLoopback() {
		return nil, Problem{errors.New("--token-file is not sent without TLS, because it could be read in transit: use an https:// server")}
	}
	token, err := ReadToken(string(b.token))
	if err != nil {
		return nil, Problem{err}
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return b.next.RoundTrip(r)
}

// Problem is an error on this side that kept a request from being sent.
type Problem struct{ error }

// RoundTrip implements http.RoundTripper for a transport that could not be created.
func (p Problem) RoundTrip(*http.Request) (*http.Response, error) { return nil, p }

// NewProblem returns an error as a Problem.
func NewProblem(err error) Problem { return Problem{err} }

// A Follower holds a configuration made from files, and makes it again when they change. Use
// Follow.
//
// It looks at the files at each handshake. grpc's certprovider/pemfile, which polls them
// from a goroutine, would apply a rotation or a revoked CA later, and could neither fail
// at startup nor report that the new files cannot be used. controller-runtime's
// certwatcher does not follow CA bundles.
type Follower struct {
	files Files
	log   *slog.Logger
	read  func() (*tls.Config, error) // called when a file has changed

	mu     sync.Mutex
	state  []os.FileInfo // of the files; nil for a missing one
	value  *tls.Config   // nil before the first one
	logged string        // the last error that was logged
}

// Follow returns a Follower of files; read makes the configuration.
func Follow(files Files, log *slog.Logger, read func() (*tls.Config, error)) *Follower {
	return &Follower{files: files, log: log, read: read}
}

// Config returns the configuration from the files as they are, or as they were when they could
// last be used. The same configuration is returned until they change.
func (f *Follower) Config() (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	var now []os.FileInfo
	for _, name := range []string{f.files.Cert, f.files.Key, f.files.CA, f.files.ClientCA} {
		if name != "" && name != System {
			info, _ := os.Stat(name) // read returns the error
			names, now = append(names, name), append(now, info)
		}
	}
	if f.value != nil && slices.EqualFunc(f.state, now, func(a, b os.FileInfo) bool {
		if a == nil || b == nil {
			return a == nil && b == nil
		}
		return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
	}) {
		return f.value, nil
	}
	value, err := f.read()
	switch {
	case err == nil:
		if f.value != nil {
			f.log.Info("reloaded changed TLS files", "files", names)
		}
		f.value, f.state, f.logged = value, now, ""
		WarnExposed(f.log, f.files.Key, f.files.Token)
	case f.value == nil:
		return nil, err
	case f.logged != err.Error(): // tried again: perhaps only one of two files is written yet
		f.logged = err.Error()
		f.log.Warn("cannot use changed TLS files: keeping the previous contents", "error", err)
	}
	return f.value, nil
}

var (
	notBeforeDesc = prometheus.NewDesc("ipwitness_tls_certificate_not_before_timestamp_seconds",
		"Start of the validity of the certificate in --tls-cert; absent without a certificate.", nil, nil)
	notAfterDesc = prometheus.NewDesc("ipwitness_tls_certificate_not_after_timestamp_seconds",
		"End of the validity of the certificate in --tls-cert; absent without a certificate.", nil, nil)
)

// Describe implements prometheus.Collector. The metrics are the validity of our certificate.
func (f Files) Describe(out chan<- *prometheus.Desc) {
	out <- notBeforeDesc
	out <- notAfterDesc
}

// Collect implements prometheus.Collector.
func (f Files) Collect(out chan<- prometheus.Metric) {
	raw, err := os.ReadFile(f.Cert)
	block, _ := pem.Decode(raw)
	if err != nil || block == nil {
		return // no certificate, or the log has the error
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return
	}
	at := func(d *prometheus.Desc, t time.Time) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(t.Unix()))
	}
	at(notBeforeDesc, cert.NotBefore)
	at(notAfterDesc, cert.NotAfter)
}
