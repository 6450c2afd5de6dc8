package main

import (
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// process contains what the commands that run an agent or an aggregator have in common.
type process struct {
	build    build
	log      *slog.Logger
	registry *prometheus.Registry
}

// newProcess creates the log and the metrics of such a command.
func newProcess(sys system, l logging) (process, error) {
	// If the reader of the output exits, SIGPIPE must not kill this process, because the agent has to
	// detach from the interfaces.
	signal.Ignore(syscall.SIGPIPE)

	log, err := l.logger(sys.stderr)
	if err != nil {
		return process{}, err
	}
	b := readBuild(version)
	return process{build: b, log: log, registry: newRegistry(b)}, nil
}

// newRegistry returns the registry of all metrics of this process.
func newRegistry(b build) *prometheus.Registry {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "ipwitness_build_info",
		Help:        "Always 1; the labels describe the build.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Commit, "goversion": b.Go},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
