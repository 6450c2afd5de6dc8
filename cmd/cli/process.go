package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
)

// Process contains what the commands that run an agent or an aggregator have in common.
type Process struct {
	Build    Build
	Log      *slog.Logger
	Registry *prometheus.Registry
}

// NewProcess creates the log and the metrics of such a command.
func NewProcess(stderr io.Writer, l Logging) Process {
	// If the reader of the output exits, SIGPIPE must not kill this Process, because the agent has to
	// detach from the interfaces.
	signal.Ignore(syscall.SIGPIPE)

	b := ReadBuild()
	return Process{Build: b, Log: l.logger(stderr), Registry: NewRegistry(b)}
}

// NewRegistry returns the registry of all metrics of this process.
func NewRegistry(b Build) *prometheus.Registry {
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

// Logging contains the log flags.
type Logging struct{ Level, format string }

// AddFlags adds the log flags.
func (l *Logging) AddFlags(cmd *cobra.Command) {
	ChoiceFlag(cmd, &l.Level, "log-level", "", "lowest level to log; the default of run in a terminal is warn", "info", "debug", "warn", "error")
	ChoiceFlag(cmd, &l.format, "log-format", "", "log format", "text", "json")
}

// logger returns the logger that the flags select.
func (l *Logging) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // the flag has no other words
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: short}
	if l.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// longest is the largest number of bytes of a value in the log.
const longest = 2 << 10

// short shortens a value of a log line. Errors become their texts: slog's text handler writes them with %+v, which adds
// the stack to errors of some libraries.
func short(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(fmt.Sprint(err))
	}
	if a.Value.Kind() == slog.KindString && len(a.Value.String()) > longest {
		a.Value = slog.StringValue(strings.ToValidUTF8(a.Value.String()[:longest], "") + "…")
	}
	return a
}
