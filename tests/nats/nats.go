// Package nats runs real NATS servers with JetStream for tests.
package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// Binary returns the path of the real server, which make nats builds, from a directory of the tests.
func Binary(root string) (string, error) {
	bin, err := filepath.Abs(filepath.Join(root, "bin/nats/nats-server"))
	if err == nil {
		_, err = os.Stat(bin)
	}
	if err != nil {
		return "", fmt.Errorf("%w: run make nats", err)
	}
	return bin, nil
}

// A Config is the configuration of a server.
type Config struct {
	Name string
	// Domain is the JetStream domain; empty for none.
	Domain string
	// Port is the port for clients on 127.0.0.1.
	Port int
	// Cluster is the name of the cluster, and Routes are the ports of its servers; RoutePort is the own one.
	Cluster   string
	Routes    []int
	RoutePort int
	// LeafPort is the port for leaf nodes. Hub is the URL of the leaf nodes of the server that this one is a
	// leaf node of; empty for none.
	LeafPort int
	Hub      string
	// More is added to the file.
	More string
}

// A Server is one nats-server, which can be killed and started again.
type Server struct {
	Config
	host *netlab.Host // nil for this host
	bin  string
	file string
	cmd  *exec.Cmd
	Log  *netlab.Log
}

// Start starts a server on a host, or on this one if host is nil. It keeps its data in a directory.
func Start(host *netlab.Host, bin, dir string, cfg Config) (*Server, error) {
	s := &Server{Config: cfg, host: host, bin: bin, file: filepath.Join(dir, cfg.Name+".conf"), Log: &netlab.Log{}}
	if err := s.write(); err != nil {
		return nil, err
	}
	return s, s.Start()
}

// write writes the file of the configuration.
func (s *Server) write() error {
	cfg, dir := s.Config, filepath.Dir(s.file)
	var b strings.Builder
	fmt.Fprintf(&b, "server_name: %s\nlisten: \"127.0.0.1:%d\"\nports_file_dir: %q\n", cfg.Name, cfg.Port, dir)
	// By default, the limit is a part of the free space, which streams of 10 GiB may exceed although they are
	// nearly empty.
	fmt.Fprintf(&b, "jetstream {\n  store_dir: %q\n  max_file_store: 1TB\n  sync_interval: always\n", filepath.Join(dir, cfg.Name))
	if cfg.Domain != "" {
		fmt.Fprintf(&b, "  domain: %s\n", cfg.Domain)
	}
	fmt.Fprintln(&b, "}")
	if cfg.Cluster != "" {
		fmt.Fprintf(&b, "cluster {\n  name: %s\n  listen: \"127.0.0.1:%d\"\n  routes: [", cfg.Cluster, cfg.RoutePort)
		for _, port := range cfg.Routes {
			fmt.Fprintf(&b, " \"nats://127.0.0.1:%d\",", port)
		}
		fmt.Fprintln(&b, " ]\n}")
	}
	switch {
	case cfg.LeafPort != 0:
		fmt.Fprintf(&b, "leafnodes { listen: \"127.0.0.1:%d\" }\n", cfg.LeafPort)
	case cfg.Hub != "":
		fmt.Fprintf(&b, "leafnodes { remotes: [ { url: %q } ], reconnect: 1s }\n", cfg.Hub)
	}
	b.WriteString(cfg.More)
	return os.WriteFile(s.file, []byte(b.String()), 0o600)
}

// Restart starts a server that was killed, on the port of a URL that it had chosen.
func (s *Server) Restart(url string) (err error) {
	if s.Port, err = portOf(url); err != nil {
		return err
	}
	if err := s.write(); err != nil {
		return err
	}
	return s.Start()
}

// Start starts the server, and returns at once.
func (s *Server) Start() error {
	if s.host == nil {
		s.cmd = exec.Command(s.bin, "--config", s.file)
	} else {
		s.cmd = s.host.Command(s.bin, "--config", s.file)
	}
	s.cmd.Stdout, s.cmd.Stderr = s.Log, s.Log
	if err := s.host.Start(s.cmd); err != nil { // which needs no host
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	return nil
}

// Kill sends SIGKILL, and waits until the server has ended.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// portOf returns the port of a URL.
func portOf(url string) (int, error) {
	_, port, err := net.SplitHostPort(url[strings.Index(url, "://")+len("://"):])
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// URL returns the URL for clients. A server with the port -1 has chosen one.
func (s *Server) URL(ctx context.Context) (string, error) {
	if s.Port > 0 {
		return fmt.Sprintf("nats://127.0.0.1:%d", s.Port), nil
	}
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	file := filepath.Join(filepath.Dir(s.file), fmt.Sprintf("nats-server_%d.ports", s.cmd.Process.Pid))
	for {
		raw, err := os.ReadFile(file)
		var ports struct{ Nats []string }
		if err == nil && json.Unmarshal(raw, &ports) == nil && len(ports.Nats) > 0 {
			return ports.Nats[0], nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the ports of %s: %w\n%s", s.Name, ctx.Err(), s.Log)
		}
	}
}

// listening is how a server logs its address for leaf nodes, which is not among the ports in its file.
var listening = regexp.MustCompile(`Listening for leafnode connections on 127\.0\.0\.1:(\d+)`)

// Leafnodes returns the URL for leaf nodes. From then on, the server has the ports that it has chosen.
func (s *Server) Leafnodes(ctx context.Context) (string, error) {
	url, err := s.URL(ctx)
	if err != nil {
		return "", err
	}
	found := listening.FindStringSubmatch(s.Log.String()) // it is logged before the file is written
	if found == nil {
		return "", fmt.Errorf("%s does not listen for leaf nodes:\n%s", s.Name, s.Log)
	}
	if s.Port, err = portOf(url); err == nil {
		s.LeafPort, err = strconv.Atoi(found[1])
	}
	if err == nil {
		err = s.write()
	}
	return "nats://127.0.0.1:" + found[1], err
}

// startsWithin is how long a server may take to start.
const startsWithin = 30 * time.Second

// dialer connects inside a host.
type dialer struct{ host *netlab.Host }

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (conn net.Conn, err error) {
	err = d.host.Do(func() error {
		conn, err = (&net.Dialer{Timeout: 2 * time.Second}).Dial(network, address)
		return err
	})
	return conn, err
}

// Connect returns a client of servers on a host, or on this one if host is nil.
func Connect(host *netlab.Host, urls string, options ...nats.Option) (*nats.Conn, error) {
	options = append(options, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if host != nil {
		options = append(options, nats.SetCustomDialer(dialer{host}))
	}
	return nats.Connect(urls, options...)
}

// Read returns the messages of a stream that there are now, except those that are no transitions.
func Read(ctx context.Context, conn *nats.Conn, domain, stream string) (all []*pb.TransitionBatch, err error) {
	js, err := jetstream.New(conn)
	if domain != "" {
		js, err = jetstream.NewWithDomain(conn, domain)
	}
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute})
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.DeleteConsumer(ctx, c.CachedInfo().Name) }()
	for {
		some, err := c.FetchNoWait(256)
		if err != nil {
			return all, err
		}
		n := 0
		for m := range some.Messages() {
			b := new(pb.TransitionBatch)
			n++
			if proto.Unmarshal(m.Data(), b) != nil {
				continue
			}
			meta, err := m.Metadata()
			if err != nil {
				return all, err
			}
			if meta.Sequence.Stream != b.GetSequence() {
				return all, fmt.Errorf("message %d of the stream says that it is number %d", meta.Sequence.Stream, b.GetSequence())
			}
			all = append(all, b)
		}
		if err := some.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
			return all, err
		}
		if n == 0 {
			return all, nil
		}
	}
}
