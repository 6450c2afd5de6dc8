// Package secure makes TLS and tokens of files, which may change while the program
// runs: certificates and tokens are short-lived where they are well kept. Who may do
// what is decided in aggregator/access; nothing here knows a role.
package secure

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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

	"google.golang.org/grpc/credentials"
)

// System is the value of --tls-ca for the certificate authorities of this host.
const System = "system"

// minVersion is the oldest TLS that is spoken: all that speak to ipwitness are of
// this decade.
const minVersion = tls.VersionTLS13

// Files are what the --tls-* flags and --token-file name; empty for none.
type Files struct {
	// Cert and Key are PEM: of a certificate, with its chain, and of its key.
	Cert, Key string
	// CA is PEM: who may have signed a server's certificate; or System.
	CA string
	// ClientCA is PEM: who may have signed a client's certificate.
	ClientCA string
	// Token is where our own bearer token is.
	Token string
}

// Check says which file is missing beside the others.
func (f Files) Check() error {
	switch {
	case f.Cert != "" && f.Key == "":
		return errors.New("--tls-cert needs the key of the certificate: name it with --tls-key")
	case f.Key != "" && f.Cert == "":
		return errors.New("--tls-key needs the certificate of the key: name it with --tls-cert")
	case f.ClientCA != "" && f.Cert == "":
		return errors.New("--tls-client-ca needs TLS: name our own certificate with --tls-cert and --tls-key")
	}
	return nil
}

// Exposed returns the files with a secret that every user of this host can read. Group
// permissions are left to the administrator: in Kubernetes, a pod reads its Secrets through
// the group in fsGroup.
func (f Files) Exposed() (names []string) {
	for _, name := range []string{f.Key, f.Token} {
		if info, err := os.Stat(name); err == nil && info.Mode().Perm()&0o004 != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Server gives the TLS of a server, which speaks protocols; nil where there is no
// certificate. The files are read at once, and again when they change; where that
// fails, what they were before goes on being used.
func (f Files) Server(log *slog.Logger, protocols ...string) (*tls.Config, error) {
	if err := f.Check(); err != nil || f.Cert == "" {
		return nil, err
	}
	current := f.follow(log, func() (*tls.Config, error) {
		pair, err := f.pair()
		if err != nil {
			return nil, err
		}
		c := &tls.Config{
			MinVersion: minVersion, NextProtos: protocols, Certificates: []tls.Certificate{pair},
			SessionTicketsDisabled: true, // a client is verified anew each time
		}
		if f.ClientCA != "" {
			// Who shows none is known by its token, or not at all.
			c.ClientAuth = tls.VerifyClientCertIfGiven
			c.ClientCAs, err = readCAs(f.ClientCA)
		}
		return c, err
	})
	first, err := current.get()
	if err != nil {
		return nil, err
	}
	config := first.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return current.get() }
	return config, nil
}

// Verifier verifies the certificates of clients by the files that a Server has now:
// those of a connection were verified when it was made.
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

// Client gives the TLS of a client as the files are now; nil where no CA is named.
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
		if c.RootCAs, err = readCAs(f.CA); err != nil {
			return nil, err
		}
	}
	if f.Cert != "" {
		pair, err := f.pair()
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// pair reads our own certificate.
func (f Files) pair() (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return pair, fmt.Errorf("use the certificate %s with the key %s: %w", f.Cert, f.Key, err)
	}
	return pair, nil
}

func readCAs(name string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read certificate authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM: it must begin with -----BEGIN CERTIFICATE-----", name)
	}
	return pool, nil
}

// ClientCredentials are those of a gRPC client: each connection uses the files as
// they are when it is made. They are nil where no CA is named.
func (f Files) ClientCredentials(log *slog.Logger) (credentials.TransportCredentials, error) {
	if f.CA == "" {
		switch {
		case f.Token != "":
			return nil, errors.New("--token-file is not sent without TLS, where all on the way could read it: name who signed the aggregator's certificate with --tls-ca")
		case f.Cert != "" && f.ClientCA == "":
			return nil, errors.New("--tls-cert is not shown without TLS: name who signed the aggregator's certificate with --tls-ca")
		}
		return nil, nil
	}
	current := f.follow(log, func() (*tls.Config, error) { return f.Client() })
	first, err := current.get()
	if err != nil {
		return nil, err
	}
	return rotating{credentials.NewTLS(first), current}, nil
}

// rotating is TLS by files that change.
type rotating struct {
	credentials.TransportCredentials
	current *follower
}

// ClientHandshake is for credentials.TransportCredentials.
func (r rotating) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := r.current.get()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

// Clone is for credentials.TransportCredentials.
func (r rotating) Clone() credentials.TransportCredentials { return r }

// Known wants a client certificate of who asks for some paths, where there is TLS.
func Known(next http.Handler, config *tls.Config, paths ...string) http.Handler {
	if config == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(paths, r.URL.Path) && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) {
			http.Error(w, "show a client certificate that is signed by the CA of --tls-client-ca", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// maxToken is how many bytes a token has at most.
const maxToken = 64 << 10

// ReadToken gives the bearer token that a file has now.
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
		return "", fmt.Errorf("%s is not a file with one token and nothing else", name)
	}
	return token, nil
}

// Token is the bearer token of a file, read again for each call.
type Token string

// GetRequestMetadata is for credentials.PerRPCCredentials.
func (t Token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := ReadToken(string(t))
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity is for credentials.PerRPCCredentials.
func (t Token) RequireTransportSecurity() bool { return true }

// RoundTripper sends the token with each request, over TLS or to this host only.
func (t Token) RoundTripper(next http.RoundTripper) http.RoundTripper { return bearer{t, next} }

type bearer struct {
	token Token
	next  http.RoundTripper
}

// RoundTrip is for http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !loopback(r.URL.Hostname()) {
		return nil, Problem{errors.New("--token-file is not sent without TLS, where all on the way could read it: use an https:// server")}
	}
	token, err := ReadToken(string(b.token))
	if err != nil {
		return nil, Problem{err}
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return b.next.RoundTrip(r)
}

// Problem is why a request was not even sent: what is wrong is on this side.
type Problem struct{ error }

// RoundTrip is for http.RoundTripper: a transport that cannot be had.
func (p Problem) RoundTrip(*http.Request) (*http.Response, error) { return nil, p }

// NewProblem makes a Problem of an error.
func NewProblem(err error) Problem { return Problem{err} }

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// follower has what files say, and reads them again when they change.
type follower struct {
	log     *slog.Logger
	names   []string
	exposed func() []string
	read    func() (*tls.Config, error)

	mu    sync.Mutex
	state []os.FileInfo // of the files, nil for one that is not there
	value *tls.Config
	valid bool
	said  string // what was wrong with them
}

// unchanged tells whether a file is what it was.
func unchanged(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// follow gives what read makes of the files, and again when one of them has changed.
func (f Files) follow(log *slog.Logger, read func() (*tls.Config, error)) *follower {
	var names []string
	for _, name := range []string{f.Cert, f.Key, f.CA, f.ClientCA} {
		if name != "" && name != System {
			names = append(names, name)
		}
	}
	return &follower{log: log, names: names, exposed: f.Exposed, read: read}
}

// get gives what the files say, or said when they could last be used.
func (f *follower) get() (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := make([]os.FileInfo, len(f.names))
	for i, name := range f.names {
		now[i], _ = os.Stat(name) // read says what is wrong
	}
	if f.valid && slices.EqualFunc(f.state, now, unchanged) {
		return f.value, nil
	}
	value, err := f.read()
	switch {
	case err == nil:
		if f.valid {
			f.log.Info("files of TLS have changed and are used anew", "files", f.names)
		}
		f.value, f.state, f.valid, f.said = value, now, true, ""
		for _, name := range f.exposed() {
			f.log.Warn("every user of this host can read a secret: take that away with 'chmod o=', or for a Secret in Kubernetes with defaultMode 0440", "file", name)
		}
	case !f.valid:
		return value, err
	case f.said != err.Error(): // one of two may be written already: it is tried again
		f.said = err.Error()
		f.log.Warn("files of TLS have changed and cannot be used: what they were before is used on", "error", err)
	}
	return f.value, nil
}
