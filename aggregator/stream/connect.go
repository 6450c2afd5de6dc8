// Package stream keeps the transitions of a cluster in a replicated stream on NATS JetStream, so that
// others can follow them: a fleet, or any program that reads JetStream.
//
// The leader among the replicas publishes what its journal has recorded. The stream is the only queue,
// and the only memory of what was published: each message names the position in the journal, and is
// accepted only as the next one of the stream. So a leader that was replaced publishes nothing, a restart repeats
// nothing, and while NATS is away the journal keeps what is to be published. A new leader may repeat what has just
// happened. Nothing here delays a verdict.
package stream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ipwitness/ipwitness/secure"
)

// Defaults of Settings.
const (
	DefaultRetention = 3 * 24 * time.Hour
	DefaultSize      = 10 << 30
)

// Settings say how NATS is reached. Files are read again for each connection.
type Settings struct {
	// Servers are the URLs of NATS servers; empty if NATS is not used.
	Servers []string
	// CA is the file with the CA bundle used to verify the servers; empty for the CAs of the system. Cert
	// and Key are the client certificate and its private key; empty for none.
	CA, Cert, Key string
	// Creds is the file with a JWT and its seed, NKey the file with a seed, and Token the file with a
	// token; empty for none.
	Creds, NKey, Token string
	// Retention is how long the stream keeps messages, and Size is the number of bytes that they may take.
	Retention time.Duration
	Size      int64
}

// Used reports whether NATS is used.
func (s *Settings) Used() bool { return len(s.Servers) > 0 }

// Check returns an error if the settings contradict each other, or if a file cannot be used.
func (s *Settings) Check() error {
	if !s.Used() {
		if s.CA+s.Cert+s.Key+s.Creds+s.NKey+s.Token != "" {
			return errors.New("the other --nats-… flags need --nats")
		}
		return nil
	}
	if (s.Cert == "") != (s.Key == "") {
		return errors.New("--nats-cert and --nats-key: a certificate and its key belong together: set both")
	}
	credentials := slices.DeleteFunc([]string{s.Creds, s.NKey, s.Token}, func(name string) bool { return name == "" })
	if len(credentials) > 1 {
		return errors.New("--nats-creds, --nats-nkey and --nats-token-file: set only one of them")
	}
	for _, name := range credentials {
		if _, err := os.ReadFile(name); err != nil {
			return fmt.Errorf("read the credentials for NATS: %w", err)
		}
	}
	if s.Token != "" {
		for _, server := range s.Servers {
			u, err := url.Parse(server)
			if onThisHost := err == nil && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()); s.plain(server) && !onThisHost {
				return fmt.Errorf("--nats-token-file is not sent to %s without TLS, because it could be read in transit: use tls:// or wss:// in every --nats URL, or set --nats-ca; or use --nats-nkey or --nats-creds, whose secrets are never sent", server)
			}
		}
	}
	if _, err := s.roots(); err != nil {
		return err
	}
	_, err := s.pair()
	return err
}

// plain reports whether a server may be reached without TLS.
func (s *Settings) plain(server string) bool {
	if s.CA+s.Cert != "" { // see options
		return false
	}
	u, err := url.Parse(server)
	return err != nil || u.Scheme != "tls" && u.Scheme != "wss"
}

// Secrets returns the files with a secret.
func (s *Settings) Secrets() []string { return []string{s.Key, s.Creds, s.NKey, s.Token} }

// roots reads the CA bundle; nil for that of the system.
func (s *Settings) roots() (*x509.CertPool, error) {
	if s.CA == "" {
		return nil, nil
	}
	return secure.ReadCAs("the CA bundle for NATS", s.CA)
}

// pair reads the client certificate; an empty one for none.
func (s *Settings) pair() (tls.Certificate, error) {
	if s.Cert == "" {
		return tls.Certificate{}, nil
	}
	return secure.Files{Cert: s.Cert, Key: s.Key}.Pair()
}

func (s *Settings) options() (all []nats.Option, err error) {
	if s.CA+s.Cert != "" {
		pair, roots := nats.TLSCertHandler(s.pair), nats.RootCAsHandler(s.roots)
		if s.Cert == "" {
			pair = nil
		}
		all = append(all, nats.ClientTLSConfig(pair, roots))
	}
	switch {
	case s.Creds != "":
		all = append(all, nats.UserCredentials(s.Creds))
	case s.NKey != "":
		option, err := nats.NkeyOptionFromSeed(s.NKey)
		if err != nil {
			return nil, fmt.Errorf("read the NKey for NATS: %w", err)
		}
		all = append(all, option)
	case s.Token != "":
		all = append(all, nats.TokenHandler(func() string {
			raw, _ := os.ReadFile(s.Token) // without the token, the server refuses the connection
			return strings.TrimSpace(string(raw))
		}))
		if slices.ContainsFunc(s.Servers, s.plain) { // on this host; servers that these name may be on others
			all = append(all, nats.IgnoreDiscoveredServers())
		}
	}
	return all, nil
}

const (
	// firstPause and lastPause limit the pauses between attempts to connect to all servers, which double.
	firstPause = 250 * time.Millisecond
	lastPause  = 30 * time.Second
	// connectWithin is how long an attempt to connect to a server may take.
	connectWithin = 5 * time.Second
	// pingEvery is how often a connection without traffic is tested. Without two answers, it is replaced.
	pingEvery = 10 * time.Second
	// answerWithin is how long NATS may take to answer a request.
	answerWithin = 10 * time.Second
)

// A Link is the connection to NATS. It is made again for ever. Use Connect.
type Link struct {
	Settings
	conn *nats.Conn
	js   jetstream.JetStream
	log  *slog.Logger

	mu sync.Mutex
	// down is the last error while there is no connection, and since is when the connection was lost.
	down  error
	since time.Time
	clock func() time.Time
}

var errConnecting = errors.New("not connected yet")

// Connect returns a link that connects in the background. The caller closes it.
func Connect(s Settings, name string, log *slog.Logger, clock func() time.Time) (*Link, error) {
	l := &Link{Settings: s, log: log, clock: clock, down: errConnecting, since: clock()}
	options, err := s.options()
	if err != nil {
		return nil, err
	}
	options = append(
		options, nats.Name(name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(pause), nats.Timeout(connectWithin), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2),
		nats.ReconnectBufSize(-1), // what is not sent is sent again
		nats.ConnectHandler(l.up), nats.ReconnectHandler(l.up),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { l.lost(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.lost(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			l.log.Debug("NATS reports an error", "error", err)
		}),
	)
	if l.conn, err = nats.Connect(strings.Join(s.Servers, ","), options...); err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	if l.js, err = jetstream.New(l.conn, jetstream.WithDefaultTimeout(answerWithin)); err != nil {
		l.conn.Close()
		return nil, fmt.Errorf("cannot use JetStream: %w", err)
	}
	return l, nil
}

// pause returns the pause after a number of attempts with all servers.
func pause(attempts int) time.Duration {
	d := min(firstPause<<min(max(attempts, 1)-1, 10), lastPause)
	return d/2 + rand.N(d/2)
}

// Close closes the connection.
func (l *Link) Close() { l.conn.Close() }

func (l *Link) up(c *nats.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log.Info("connected to NATS", "server", c.ConnectedUrlRedacted(), "disconnected_since", l.since)
	l.down = nil
}

func (l *Link) lost(err error) {
	if err == nil { // the server or this process ends the connection
		err = nats.ErrConnectionClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down == nil {
		l.since = l.clock()
		l.log.Warn("disconnected from NATS: connecting again", "error", err)
	} else if errors.Is(l.down, errConnecting) {
		l.log.Warn("cannot connect to NATS: trying again", "error", err)
	}
	l.down = err
}

// Down returns why there is no connection, and since when; nil if there is one.
func (l *Link) Down() (since time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.down
}

// Hosts returns the hosts of the configured servers, for people.
func (s *Settings) Hosts() string {
	var hosts []string
	for _, server := range s.Servers {
		u, err := url.Parse(server)
		if err != nil {
			continue // the flag refuses it
		}
		hosts = append(hosts, u.Host)
	}
	return strings.Join(hosts, ",")
}

func (l *Link) await(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for !l.conn.IsConnected() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// lookEvery is how often it is looked whether there is a connection.
const lookEvery = 100 * time.Millisecond
