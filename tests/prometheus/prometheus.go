// Package prometheus runs a real Prometheus and a real Alertmanager on a host of a test, with the
// rules of ipwitness, and queries them. It also defines the dashboards and renders them.
package prometheus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// The addresses on the host.
const (
	prometheusAt   = "127.0.0.1:9090"
	alertmanagerAt = "127.0.0.1:9093"
)

// Target is a scrape target.
type Target struct {
	Address string            // HOST:PORT
	Labels  map[string]string // added to the target
}

// Job is a scrape job.
type Job struct {
	Name    string
	Targets []Target
	// More contains further lines of the job in prometheus.yml (for example a tls_config).
	More string
}

// Config is the configuration for Start.
type Config struct {
	// Jobs are the scrape jobs. Without any, only Alertmanager is started.
	Jobs []Job
	// Interval is the interval of scrapes and of rule evaluations.
	Interval time.Duration
}

// Server is a Prometheus with an Alertmanager.
type Server struct {
	client *http.Client
	// Logs contains the output of both programs.
	Logs  *netlab.Log
	stops []func()
}

// Files returns the directory of the chart that contains the rules and the dashboards.
func Files() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		files := filepath.Join(dir, "deploy/helm/ipwitness/files")
		if _, err := os.Stat(files); err == nil {
			return files, nil
		}
	}
	return "", errors.New("find deploy/helm/ipwitness/files: run this inside the repository")
}

// Start starts them on a host, and waits until they are ready.
func Start(ctx context.Context, h *netlab.Host, cfg Config) (*Server, error) {
	files, err := Files()
	if err != nil {
		return nil, err
	}
	for _, program := range []string{"prometheus", "prometheus-alertmanager"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w (Debian: apt-get install %s)", err, program)
		}
	}
	rules, err := os.ReadFile(filepath.Join(files, "rules.yaml"))
	if err != nil {
		return nil, err
	}
	const dir = "/run/prometheus"
	for name, content := range map[string]string{
		"prometheus.yml":   cfg.yaml(),
		"rules.yaml":       string(rules),
		"alertmanager.yml": "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n",
	} {
		file := h.Path(filepath.Join(dir, name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	s := &Server{client: h.Client(), Logs: &netlab.Log{}}
	commands, listen := []*exec.Cmd{
		h.Command("prometheus-alertmanager", "--config.file="+dir+"/alertmanager.yml", "--storage.path="+dir+"/alerts",
			"--web.listen-address="+alertmanagerAt, "--cluster.listen-address=", "--log.level=warn"),
	}, []string{alertmanagerAt}
	if len(cfg.Jobs) > 0 {
		commands = append(commands, h.Command("prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data",
			"--web.listen-address="+prometheusAt, "--log.level=warn"))
		listen = append(listen, prometheusAt)
	}
	for _, cmd := range commands {
		cmd.Stdout, cmd.Stderr = s.Logs, s.Logs
		if err := h.Start(cmd); err != nil {
			s.Stop()
			return nil, fmt.Errorf("start Prometheus and Alertmanager: %w", err)
		}
		s.stops = append(s.stops, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	for _, at := range listen {
		if err := s.await(ctx, "http://"+at+"/-/ready"); err != nil {
			s.Stop()
			return nil, fmt.Errorf("wait for %s: %w\n%s", at, err, s.Logs)
		}
	}
	return s, nil
}

// yaml returns the text of prometheus.yml.
func (cfg Config) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "global: {scrape_interval: %[1]s, scrape_timeout: %[1]s, evaluation_interval: %[1]s}\n", cfg.interval())
	fmt.Fprintf(&b, "rule_files: [rules.yaml]\nalerting: {alertmanagers: [{static_configs: [{targets: ['%s']}]}]}\nscrape_configs:\n", alertmanagerAt)
	for _, j := range cfg.Jobs {
		fmt.Fprintf(&b, "  - job_name: %s\n    static_configs:\n", j.Name)
		for _, t := range j.Targets {
			labels, _ := json.Marshal(t.Labels) // JSON is valid YAML
			fmt.Fprintf(&b, "      - {targets: ['%s'], labels: %s}\n", t.Address, bytes.ReplaceAll(labels, []byte("null"), []byte("{}")))
		}
		for line := range strings.Lines(j.More) {
			b.WriteString("    " + line)
		}
	}
	return b.String()
}

func (cfg Config) interval() string { return fmt.Sprintf("%dms", cfg.Interval.Milliseconds()) }

// await waits until a page is served.
func (s *Server) await(ctx context.Context, page string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := s.get(ctx, page)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// Stop ends both programs.
func (s *Server) Stop() {
	for _, stop := range s.stops {
		stop()
	}
	s.client.CloseIdleConnections()
}

func (s *Server) get(ctx context.Context, page string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", page, resp.Status, body)
	}
	return body, err
}

// Point is a value with its time.
type Point struct {
	At    time.Time
	Value float64
}

// Series is one series of a result: one point, or the points of a range.
type Series struct {
	Labels map[string]string
	Points []Point
}

// Query evaluates an expression now.
func (s *Server) Query(ctx context.Context, expr string) ([]Series, error) {
	return s.ask(ctx, "query", url.Values{"query": {expr}})
}

// QueryRange evaluates an expression over a period.
func (s *Server) QueryRange(ctx context.Context, expr string, from, to time.Time, step time.Duration) ([]Series, error) {
	at := func(t time.Time) string { return fmt.Sprintf("%.3f", float64(t.UnixMilli())/1000) }
	return s.ask(ctx, "query_range", url.Values{
		"query": {expr}, "start": {at(from)}, "end": {at(to)}, "step": {strconv.FormatFloat(step.Seconds(), 'f', -1, 64)},
	})
}

func (s *Server) ask(ctx context.Context, how string, q url.Values) ([]Series, error) {
	body, err := s.get(ctx, "http://"+prometheusAt+"/api/v1/"+how+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  *point
				Values []point
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("parse answer to %s: %w: %s", q.Get("query"), err, body)
	}
	var out []Series
	for _, r := range answer.Data.Result {
		one := Series{Labels: r.Metric}
		if r.Value != nil {
			r.Values = append(r.Values, *r.Value)
		}
		for _, p := range r.Values {
			one.Points = append(one.Points, Point(p))
		}
		out = append(out, one)
	}
	return out, nil
}

// point is [seconds, "value"].
type point Point

// UnmarshalJSON implements json.Unmarshaler.
func (p *point) UnmarshalJSON(raw []byte) error {
	var at float64
	var value string
	if err := json.Unmarshal(raw, &[]any{&at, &value}); err != nil {
		return err
	}
	v, err := strconv.ParseFloat(value, 64)
	p.At, p.Value = time.UnixMilli(int64(at*1000)), v
	return err
}

// Alert is an active alert of Alertmanager.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
}

// Alerts returns the alerts of Alertmanager with a name.
func (s *Server) Alerts(ctx context.Context, name string) ([]Alert, error) {
	body, err := s.get(ctx, "http://"+alertmanagerAt+"/api/v2/alerts?filter="+url.QueryEscape(`alertname="`+name+`"`))
	if err != nil {
		return nil, err
	}
	var alerts []Alert
	return alerts, json.Unmarshal(body, &alerts)
}

// AwaitAlerts waits until Alertmanager has n alerts with a name.
func (s *Server) AwaitAlerts(ctx context.Context, name string, n int) ([]Alert, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		alerts, err := s.Alerts(ctx, name)
		if err == nil && len(alerts) == n {
			return alerts, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %d alerts %s: got %v: %w\n%s", n, name, alerts, errors.Join(err, ctx.Err()), s.Logs)
		case <-tick.C:
		}
	}
}
