package netlab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The HTTP addresses of ipwitness inside a host: of run and aggregator, and of agent.
const (
	Server      = "http://127.0.0.1:9641"
	AgentServer = "http://127.0.0.1:9642"
)

// Build builds ipwitness and ipwitness-agent in a directory, and returns the path of ipwitness.
func Build(dir string) (string, error) {
	bin := filepath.Join(dir, "ipwitness")
	// tests/web is a module of its own, whose go.mod lacks what only the programs need.
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/ipwitness/ipwitness").Output()
	if err != nil {
		return "", fmt.Errorf("find the module of ipwitness: %w", err)
	}
	build := exec.Command("go", "build", "-C", strings.TrimSpace(string(root)), "-buildvcs=false", "-o", dir+"/", "./cmd/ipwitness", "./cmd/ipwitness-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build ipwitness: %w\n%s", err, out)
	}
	return bin, nil
}

// Program is an ipwitness that runs inside a host.
type Program struct {
	Cmd    *exec.Cmd
	Log    *Log // standard error
	server string
	client *http.Client
	ended  chan struct{}
	err    error // set once it has ended
}

// Log collects the output of a program.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String returns all output so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Ipwitness starts `bin run args…` inside the host and waits until it serves
// and its agent reports.
func (h *Host) Ipwitness(ctx context.Context, bin string, args ...string) (*Program, error) {
	return h.Launch(ctx, h.Command(bin, append([]string{"run"}, args...)...))
}

// Launch starts a command that finally executes `ipwitness run`, and waits like Ipwitness.
func (h *Host) Launch(ctx context.Context, cmd *exec.Cmd) (*Program, error) {
	return h.begin(ctx, cmd, Server, func(p *Program) bool {
		nodes, err := p.Nodes(ctx)
		return err == nil && len(nodes) > 0
	})
}

// Aggregator starts `bin aggregator args…` inside the host and waits until it
// serves.
func (h *Host) Aggregator(ctx context.Context, bin string, args ...string) (*Program, error) {
	return h.begin(ctx, h.Command(bin, append([]string{"aggregator"}, args...)...), Server, func(p *Program) bool {
		_, err := p.Nodes(ctx)
		return err == nil
	})
}

// AgentOf returns the path of the agent that is beside ipwitness.
func AgentOf(bin string) string { return bin + "-agent" }

// Agent starts the agent beside bin inside the host and waits until it serves its metrics. It may not
// be connected to its aggregator yet.
func (h *Host) Agent(ctx context.Context, bin string, args ...string) (*Program, error) {
	return h.LaunchAgent(ctx, h.Command(AgentOf(bin), args...))
}

// LaunchAgent starts a command that finally executes ipwitness-agent, and waits like Agent.
func (h *Host) LaunchAgent(ctx context.Context, cmd *exec.Cmd) (*Program, error) {
	return h.begin(ctx, cmd, AgentServer, func(p *Program) bool {
		_, err := p.Text(ctx, "/metrics")
		return err == nil
	})
}

// begin starts a command that finally executes ipwitness, and waits until it is ready.
func (h *Host) begin(ctx context.Context, cmd *exec.Cmd, server string, ready func(*Program) bool) (*Program, error) {
	// An agent serves TLS only if it requires client certificates.
	if h.Secure != nil && (server == Server || len(h.Secure.TLS.Certificates) > 0) {
		server = strings.Replace(server, "http:", "https:", 1)
	}
	p := &Program{Cmd: cmd, Log: &Log{}, server: server, client: h.Client(), ended: make(chan struct{})}
	p.Cmd.Stderr = p.Log
	p.Cmd.Stdout = p.Log
	if err := h.Start(p.Cmd); err != nil {
		return nil, fmt.Errorf("start ipwitness: %w", err)
	}
	go func() {
		p.err = p.Cmd.Wait()
		close(p.ended)
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ready(p) {
		select {
		case <-ctx.Done():
			p.Kill()
			return nil, fmt.Errorf("wait for ipwitness: %w\n%s", ctx.Err(), p.Log)
		case <-p.ended:
			return nil, fmt.Errorf("ipwitness ended: %w\n%s", p.err, p.Log)
		case <-tick.C:
		}
	}
	return p, nil
}

// Remote returns a program at a URL that was started elsewhere.
func Remote(server string, client *http.Client) *Program {
	return &Program{Log: &Log{}, server: server, client: client}
}

// Nodes lists the agents that report to the program.
func (p *Program) Nodes(ctx context.Context) ([]*ipwitnessv1.Node, error) {
	var m ipwitnessv1.ListNodesResponse
	err := p.Get(ctx, "/v1/nodes", &m)
	return m.GetNodes(), err
}

// Stop sends SIGTERM, waits, and returns how long the program took to end, and its error.
func (p *Program) Stop() (took time.Duration, err error) {
	begin := time.Now()
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	<-p.ended
	p.client.CloseIdleConnections()
	return time.Since(begin), p.err
}

// Kill sends SIGKILL and waits until the program has ended.
func (p *Program) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.ended
	p.client.CloseIdleConnections()
}

// Ended returns a channel that is closed when the program has ended.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Text returns the body of a GET request.
func (p *Program) Text(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.server+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: %s: %s", path, resp.Status, body)
	}
	return string(body), nil
}

// Status returns the status of a GET request.
func (p *Program) Status(ctx context.Context, path string) (int, error) {
	return p.status(ctx, http.MethodGet, path, "")
}

// Post posts JSON to a path, and returns the status.
func (p *Program) Post(ctx context.Context, path, body string) (int, error) {
	return p.status(ctx, http.MethodPost, path, body)
}

func (p *Program) status(ctx context.Context, method, path, body string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.server+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// Get decodes the body of a GET request into a message.
func (p *Program) Get(ctx context.Context, path string, m proto.Message) error {
	body, err := p.Text(ctx, path)
	if err != nil {
		return err
	}
	return protojson.Unmarshal([]byte(body), m)
}

// Event is one line of a watch of conflicts, with the time when it was read.
type Event struct {
	*ipwitnessv1.WatchConflictsResponse
	Read time.Time
}

// WatchConflicts calls fn with every line of conflicts:watch until fn returns false, ctx ends or
// the stream ends.
func (p *Program) WatchConflicts(ctx context.Context, fn func(Event) bool) error {
	return p.watch(ctx, "/v1/conflicts:watch", func(line []byte, read time.Time) (bool, error) {
		m := &ipwitnessv1.WatchConflictsResponse{}
		err := protojson.Unmarshal(line, m)
		return err == nil && fn(Event{m, read}), err
	})
}

// FindingEvent is one line of a watch of findings, with the time when it was read.
type FindingEvent struct {
	*ipwitnessv1.WatchFindingsResponse
	Read time.Time
}

// WatchFindings is like WatchConflicts, for findings:watch.
func (p *Program) WatchFindings(ctx context.Context, fn func(FindingEvent) bool) error {
	return p.watch(ctx, "/v1/findings:watch", func(line []byte, read time.Time) (bool, error) {
		m := &ipwitnessv1.WatchFindingsResponse{}
		err := protojson.Unmarshal(line, m)
		return err == nil && fn(FindingEvent{m, read}), err
	})
}

// watch calls fn with the result in every line.
func (p *Program) watch(ctx context.Context, path string, fn func(result []byte, read time.Time) (bool, error)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.server+path, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "application/x-ndjson") {
		return fmt.Errorf("content type of a watch: got %q, want application/x-ndjson", got)
	}
	lines := bufio.NewReaderSize(resp.Body, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		read := time.Now()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read watch: %w", err)
		}
		var outer struct {
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(line, &outer); err != nil {
			return fmt.Errorf("parse line of watch: %w", err)
		}
		if outer.Result == nil {
			return fmt.Errorf("watch ended: %s", outer.Error)
		}
		switch more, err := fn(outer.Result, read); {
		case err != nil:
			return fmt.Errorf("parse event of watch: %w", err)
		case !more:
			return nil
		}
	}
}
