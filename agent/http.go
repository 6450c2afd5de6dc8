package agent

import (
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const index = `ipwitness-agent: observes the owners of addresses on this node

/metrics   for Prometheus
/healthz   ok while the agent runs
/readyz    ok while the agent reports to an aggregator
`

// Handler serves the agent's health, and the metrics of gatherer. Owners are served by
// aggregators.
func (a *Agent) Handler(gatherer prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", text(index))
	mux.HandleFunc("GET /healthz", text("ok\n"))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if connected, _ := a.aggregators(); connected == 0 {
			http.Error(w, "not reporting to any aggregator: see the log", http.StatusServiceUnavailable)
			return
		}
		text("ok\n")(w, r)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	return mux
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, body)
	}
}
