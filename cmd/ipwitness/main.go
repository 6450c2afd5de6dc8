// Command ipwitness says who really holds each address of a network, and
// whether anybody else does. This package has its subcommands, their flags and
// the wiring; what is shown is in package show, what is known in agent and
// aggregator.
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

	// The roots of --tls-ca system where the system has none, as in the image.
	_ "golang.org/x/crypto/x509roots/fallback"
	"golang.org/x/term"
)

// What the build sets, with -ldflags "-X main.version=… -X main.commit=…".
var version, commit string

// system is the world that a command runs in; tests bring their own.
type system struct {
	program        string // how the user calls us: ipwitness, or kubectl ipwitness
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool // stdout is a terminal
	oneTerminal    bool // whether stderr is a terminal, too
	getenv         func(string) string
	now            func() time.Time
	transport      http.RoundTripper // of the client commands
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

// programName is how the user calls a program with this first argument: a
// kubectl plugin is called through kubectl.
func programName(arg0 string) string {
	if plugin, ok := strings.CutPrefix(filepath.Base(arg0), "kubectl-"); ok {
		return "kubectl " + strings.ReplaceAll(plugin, "_", "-")
	}
	return "ipwitness"
}
