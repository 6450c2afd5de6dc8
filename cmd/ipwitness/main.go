// Command ipwitness shows the real holder of each address of a network and detects addresses with
// more than one holder. This package contains its subcommands, their flags and the wiring. Package
// show renders the output; packages agent and aggregator collect and judge the data.
package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	// The fallback roots for --tls-ca system if the system has none, as in the container image.
	_ "golang.org/x/crypto/x509roots/fallback"
	"golang.org/x/term"
)

// version and commit are set by the build with -ldflags "-X main.version=… -X main.commit=…".
var version, commit string

// system is the environment that a command runs in. Tests provide their own.
type system struct {
	program        string // how the user invokes this program: ipwitness, or kubectl ipwitness
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool // stdout is a terminal
	oneTerminal    bool // stdout and stderr are terminals
	getenv         func(string) string
	now            func() time.Time
	transport      http.RoundTripper // used by the client commands
}

func main() {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	sys := system{
		program:   programName(os.Args[0]),
		stdin:     os.Stdin,
		stdout:    os.Stdout,
		stderr:    os.Stderr,
		terminal:  term.IsTerminal(int(os.Stdout.Fd())),
		getenv:    os.Getenv,
		now:       time.Now,
		transport: newTransport(),
	}
	sys.oneTerminal = sys.terminal && term.IsTerminal(int(os.Stderr.Fd()))
	os.Exit(execute(ctx, sys, os.Args[1:]))
}

// programName returns how the user invokes a program with this first argument. A kubectl plugin is
// invoked through kubectl.
func programName(arg0 string) string {
	if plugin, ok := strings.CutPrefix(filepath.Base(arg0), "kubectl-"); ok {
		return "kubectl " + strings.ReplaceAll(plugin, "_", "-")
	}
	return "ipwitness"
}
