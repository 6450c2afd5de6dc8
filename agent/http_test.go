package agent

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestAgentIsHealthyBeforeItReportsAndReadyAfter(t *testing.T) {
	registry := prometheus.NewRegistry()
	a, err := New(Config{Node: "node1"}, slog.New(slog.DiscardHandler), registry)
	if err != nil {
		t.Fatal(err)
	}
	h := a.Handler(registry)
	check := func(path string, status int, text string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != status || !strings.Contains(w.Body.String(), text) {
			t.Errorf("GET %s: got %d %q, want %d and %q in it", path, w.Code, w.Body, status, text)
		}
	}
	check("/", 200, "/readyz")
	check("/healthz", 200, "ok")
	health := httptest.NewRecorder()
	h.ServeHTTP(health, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	if got := health.Header().Get("Content-Type"); got != "text/plain; charset=utf-8" {
		t.Errorf("type of /healthz: got %q, want plain text", got)
	}
	check("/readyz", 503, "not reporting")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if strings.Contains(w.Body.String(), "ok") {
		t.Errorf("agent that is not ready: got %q, want no ok", w.Body)
	}
	check("/metrics", 200, "ipwitness_agent_report_connected 0")
	check("/v1/owners", 404, "")
	up, down := 1, 1
	a.streams.Store(&[]func() (int, int){func() (int, int) { return up, down }})
	check("/readyz", 200, "ok")
	check("/metrics", 200, "ipwitness_agent_report_connected 0")
	check("/metrics", 200, `ipwitness_agent_aggregators{state="connected"} 1`)
	check("/metrics", 200, `ipwitness_agent_aggregators{state="disconnected"} 1`)
	up, down = 2, 0
	check("/metrics", 200, "ipwitness_agent_report_connected 1")
}
