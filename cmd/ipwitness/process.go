package main

import (
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// process is what the commands that watch have in common.
type process struct {
	build    build
	log      *slog.Logger
	registry *prometheus.Registry
}

// newProcess makes the log and the metrics of a command that watches.
func newProcess(sys system, l logging) (process, error) {
	// Somebody who reads our output and goes away must not kill us: the agent
	// has to detach from the interfaces.
	signal.Ignore(syscall.SIGPIPE)

	log, err := l.logger(sys.stderr)
	if err != nil {
		return process{}, err
	}
	b := readBuild(version)
	return process{build: b, log: log, registry: newRegistry(b)}, nil
}

// newRegistry makes the registry of all metrics of this process.
func newRegistry(b build) *prometheus.Registry {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "ipwitness_build_info",
		Help:        "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Commit, "goversion": b.Go},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
