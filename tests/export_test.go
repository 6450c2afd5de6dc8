package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The addresses of receivers on the host of the aggregator.
const (
	hookAt      = "127.0.0.1:8080"
	collectorAt = "127.0.0.1:4318"
)

// receiver is a webhook on a host. It can fail, hang and be down.
type receiver struct {
	t    *testing.T
	host *netlab.Host
	mu   sync.Mutex
	// server is nil while the receiver is down.
	server *httptest.Server
	// answers are the next answers; then it accepts everything.
	answers []http.HandlerFunc
	// asked has the id of each request, and accepted has the events that were accepted.
	asked    []string
	accepted []told
}

// told is a CloudEvent.
type told struct {
	SpecVersion, ID, Source, Type, Subject string
	Data                                   map[string]any
}

func newReceiver(t *testing.T, h *netlab.Host) *receiver {
	t.Helper()
	r := &receiver{t: t, host: h}
	r.up()
	t.Cleanup(r.down)
	return r
}

func (r *receiver) up() {
	r.t.Helper()
	var l net.Listener
	if err := r.host.Do(func() (err error) { l, err = net.Listen("tcp", hookAt); return err }); err != nil {
		r.t.Fatal(err)
	}
	r.server = &httptest.Server{Listener: l, Config: &http.Server{Handler: r}}
	r.server.Start()
}

func (r *receiver) down() {
	if r.server != nil {
		r.server.CloseClientConnections()
		r.server.Close()
		r.server = nil
	}
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	var e told
	if err := json.Unmarshal(body, &e); err != nil {
		r.t.Errorf("%v in %s", err, body)
	}
	r.mu.Lock()
	r.asked = append(r.asked, e.ID)
	var answer http.HandlerFunc
	if len(r.answers) > 0 {
		answer, r.answers = r.answers[0], r.answers[1:]
	}
	if answer == nil {
		r.accepted = append(r.accepted, e)
	}
	r.mu.Unlock()
	if answer != nil {
		answer(w, req)
	}
}

// next sets the next answers.
func (r *receiver) next(answers ...http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = answers
}

// all returns the events that were accepted, the first time that each was.
func (r *receiver) all() (all []told) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for _, e := range r.accepted {
		if !seen[e.ID] {
			all = append(all, e)
		}
		seen[e.ID] = true
	}
	return all
}

func (r *receiver) requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

// has reports whether an event of a type about an address was accepted.
func (r *receiver) has(what, addr string) bool {
	return slices.ContainsFunc(r.all(), func(e told) bool { return e.Type == "io.github.ipwitness."+what && e.Subject == addr })
}

// fails answers with a status.
func fails(status int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for pair := range slices.Chunk(header, 2) {
			w.Header().Set(pair[0], pair[1])
		}
		w.WriteHeader(status)
	}
}

// collector is a real OpenTelemetry collector that writes log records to a file.
type collector struct {
	t    *testing.T
	file string
}

func newCollector(t *testing.T, h *netlab.Host) *collector {
	t.Helper()
	bin, err := filepath.Abs("../bin/otelcol/otelcol")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatal(err, ": run make otelcol")
	}
	dir := t.TempDir()
	c := &collector{t: t, file: filepath.Join(dir, "logs.json")}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {file: {path: %q, flush_interval: 50ms}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {logs: {receivers: [otlp], exporters: [file]}}
`, collectorAt, c.file), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &netlab.Log{}
	cmd := h.Command(bin, "--config", "file:"+config)
	cmd.Stdout, cmd.Stderr = log, log
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the collector said:\n%s", log)
		}
	})
	client := h.Client()
	wait.Until(t, "the collector", func() bool {
		resp, err := client.Post("http://"+collectorAt+"/v1/logs", "application/json", strings.NewReader("{}"))
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	client.CloseIdleConnections()
	return c
}

// logged is a log record, with its attributes of type string.
type logged struct {
	event, severity string
	attributes      map[string]string
}

// all returns the log records of the collector, each once.
func (c *collector) all() (all []logged) {
	c.t.Helper()
	raw, err := os.ReadFile(c.file)
	if err != nil {
		return nil
	}
	lines := json.NewDecoder(bytes.NewReader(raw))
	seen := map[string]bool{}
	for {
		var line struct {
			ResourceLogs []struct {
				ScopeLogs []struct {
					LogRecords []struct {
						EventName, SeverityText string
						Attributes              []struct {
							Key   string
							Value struct{ StringValue string }
						}
					}
				}
			}
		}
		if lines.Decode(&line) != nil {
			return all // the last line may be incomplete
		}
		for _, of := range line.ResourceLogs {
			for _, scope := range of.ScopeLogs {
				for _, r := range scope.LogRecords {
					one := logged{strings.TrimPrefix(r.EventName, "ipwitness."), r.SeverityText, map[string]string{}}
					for _, a := range r.Attributes {
						one.attributes[a.Key] = a.Value.StringValue
					}
					if id := one.attributes["log.record.uid"]; !seen[id] {
						seen[id] = true
						all = append(all, one)
					}
				}
			}
		}
	}
}

func (c *collector) has(what, addr string) bool {
	c.t.Helper()
	return slices.ContainsFunc(c.all(), func(r logged) bool { return r.event == what && r.attributes["ipwitness.address"] == addr })
}

// webhookSecret writes a secret, and returns its file.
func webhookSecret(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// An aggregator tells a real OpenTelemetry collector, a real Alertmanager and a webhook. The webhook
// fails, hangs and is down while the aggregator is killed; then it has everything, in order.
func TestTransitionsReachEachReceiver(t *testing.T) {
	slow(t)
	t.Parallel()
	const one, two, three, four = "10.244.0.1", "10.244.0.2", "10.244.0.3", "10.244.0.4"
	h := newHost(t)
	hook, otel := newReceiver(t, h), newCollector(t, h)
	alertmanager := watchedBy(t, h, 0)
	hook.next(fails(http.StatusInternalServerError), fails(http.StatusTooManyRequests, "Retry-After", "1"))
	c := newAggregatorOn(t, h, "--data-dir", filepath.Join(t.TempDir(), "data"), "--cluster", "prod",
		"--otlp-endpoint", "http://"+collectorAt, "--alertmanager", "http://127.0.0.1:9093",
		"--webhook", "http://"+hookAt+"/hook", "--webhook-secret-file", webhookSecret(t))
	n := c.addNode("node1")
	duplicate := func(addr string) {
		t.Helper()
		name := strings.ReplaceAll(addr, ".", "-")
		n.pod("a"+name, addr+"/32")
		n.pod("b"+name, addr+"/32")
		c.watch.await(addr+" to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	}
	end := func(addr string) {
		t.Helper()
		n.sh("ip -n b" + strings.ReplaceAll(addr, ".", "-") + " addr del " + addr + "/32 dev eth0")
	}
	heard := func(what, addr string) {
		t.Helper()
		wait.Until(t, addr+" "+what+" at the webhook", func() bool { return hook.has(what, addr) })
	}
	recorded := func(what, addr string) {
		t.Helper()
		wait.Until(t, addr+" "+what+" at the collector", func() bool { return otel.has(what, addr) })
	}

	duplicate(one)
	heard("conflict.confirmed", one)
	recorded("conflict.confirmed", one)
	recorded("owner.added", one)
	alert := alerted(t, alertmanager, "IpwitnessAddressConflict", 1)[0]
	if alert.Labels["address"] != one || alert.Labels["cluster"] != "prod" || alert.Labels["id"] != c.only(one).GetId() || alert.Annotations["runbook_url"] == "" {
		t.Errorf("got %+v", alert)
	}
	end(one)
	heard("conflict.resolved", one)
	recorded("conflict.resolved", one)
	alerted(t, alertmanager, "IpwitnessAddressConflict", 0)

	// A webhook that hangs delays neither verdicts nor other receivers.
	release := make(chan struct{})
	hangs := make(chan struct{})
	hang := sync.OnceFunc(func() { close(hangs) })
	hook.next(slices.Repeat([]http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
		hang()
		<-release
		w.WriteHeader(http.StatusInternalServerError)
	}}, 100)...)
	duplicate(two)
	<-hangs
	duplicate(three)
	recorded("conflict.confirmed", three)
	alerted(t, alertmanager, "IpwitnessAddressConflict", 2)
	if hook.has("conflict.confirmed", three) {
		t.Error("the webhook has an event while it hangs")
	}

	// The aggregator is killed while the webhook is down, and a conflict ends meanwhile.
	asked := hook.requests()
	attempted := asked[len(asked)-1]
	close(release)
	hook.down()
	c.program.Kill()
	end(two)
	hook.next()
	c.serve()
	c.watch.await("the duplicate to be confirmed again", inState(three, ipwitnessv1.Conflict_CONFIRMED))
	wait.Until(t, "an attempt that failed", func() bool { return strings.Contains(c.program.Log.String(), "cannot deliver transitions") })
	recorded("conflict.resolved", two)
	hook.up()
	heard("conflict.resolved", two)
	duplicate(four)
	heard("conflict.confirmed", four)
	recorded("conflict.confirmed", four)
	if !slices.ContainsFunc(hook.all(), func(e told) bool {
		return e.ID == attempted && e.Subject == two && e.Type == "io.github.ipwitness.conflict.confirmed"
	}) {
		t.Errorf("the webhook has not got %s, which it was sent before the restart", attempted)
	}

	// The checker: what the receivers have is what the history has.
	var wanted, got, logs, records []string
	wait.Until(t, "all of the history at the receivers", func() bool {
		wanted, got, logs, records = nil, nil, nil, nil
		for _, e := range c.history("--kind", "conflict").events {
			conflict, ok := e["conflict"].(map[string]any)
			if !ok {
				t.Fatalf("got %v", e)
			}
			line := fmt.Sprint(e["time"], conflict["id"], conflict["episode"], conflict["state"], conflict["cause"])
			logs = append(logs, fmt.Sprint(conflict["id"], conflict["state"]))
			if conflict["confirmedAt"] != nil {
				wanted = append(wanted, line)
			}
		}
		for _, e := range hook.all() {
			if conflict, ok := e.Data["conflict"].(map[string]any); ok {
				got = append(got, fmt.Sprint(e.Data["time"], conflict["id"], conflict["episode"], conflict["state"], conflict["cause"]))
			}
		}
		for _, r := range otel.all() {
			if id := r.attributes["ipwitness.conflict.id"]; id != "" {
				records = append(records, fmt.Sprint(id, strings.ToUpper(r.attributes["ipwitness.conflict.state"])))
			}
		}
		return len(got) >= len(wanted) && len(records) >= len(logs)
	})
	if !slices.Equal(got, wanted) {
		t.Errorf("the webhook has\n%s\nthe history\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
	if !slices.Equal(records, logs) {
		t.Errorf("the collector has\n%s\nthe history\n%s", strings.Join(records, "\n"), strings.Join(logs, "\n"))
	}
	for _, e := range hook.all() {
		if e.SpecVersion != "1.0" || e.Source != "/ipwitness/prod" {
			t.Errorf("got %+v", e)
		}
	}
	checkMetrics(t, c.program)
}

// The receiver of docs/export.md accepts what an aggregator signs, and nothing else.
func TestTheDocumentedWebhookReceiverChecksSignatures(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../docs/export.md")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?ms)^```python\n(.*?)^```$").FindSubmatch(raw)
	if program == nil {
		t.Fatal("docs/export.md has no example")
	}
	h := newHost(t)
	secret := webhookSecret(t)
	file := filepath.Join(t.TempDir(), "receiver.py")
	if err := os.WriteFile(file, program[1], 0o600); err != nil {
		t.Fatal(err)
	}
	log := &netlab.Log{}
	cmd := h.Command("python3", "-u", file, secret)
	cmd.Stdout, cmd.Stderr = log, log
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := newAggregatorOn(t, h, "--data-dir", filepath.Join(t.TempDir(), "data"), "--webhook", "http://"+hookAt, "--webhook-secret-file", secret)
	n := c.addNode("node1")
	n.pod("a", planted+"/32")
	n.pod("b", planted+"/32")
	wait.Until(t, "the event", func() bool {
		return strings.Contains(log.String(), "io.github.ipwitness.conflict.confirmed "+planted)
	})

	// Another secret is not accepted, and ipwitness says what to correct.
	if err := os.WriteFile(secret+".new", []byte("whsec_"+strings.Repeat("QUFB", 8)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(secret+".new", secret); err != nil {
		t.Fatal(err)
	}
	n.sh("ip -n b addr del " + planted + "/32 dev eth0")
	wait.Until(t, "the problem", func() bool { return strings.Contains(c.says("nodes"), "--webhook-secret-file") })
	if strings.Contains(log.String(), "conflict.resolved") {
		t.Errorf("the receiver accepted another signature:\n%s", log)
	}
}
