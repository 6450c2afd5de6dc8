// Command ipwitness shows the real holder of each address of a network and detects addresses with
// more than one holder. This package contains its subcommands, their flags and the wiring. Package
// show renders the output; packages agent and aggregator collect and judge the data.
package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	// The fallback roots for --tls-ca system if the system has none, as in the container image.
	_ "golang.org/x/crypto/x509roots/fallback"
	"golang.org/x/term"

	"github.com/ipwitness/ipwitness/cmd/cli"
)

// system is the environment that a command runs in. Tests provide their own.
type system struct {
	program        string // how the user invokes this program: ipwitness, or kubectl ipwitness
	plugin         bool   // the user invokes this program as a plugin of kubectl
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool       // stdout is a terminal
	width          func() int // number of columns of the terminal; 0 if that is not known
	oneTerminal    bool       // stdout and stderr are terminals
	getenv         func(string) string
	now            func() time.Time
	transport      http.RoundTripper // used by the client commands
}

func main() {
	sys := system{
		stdin:     os.Stdin,
		stdout:    os.Stdout,
		stderr:    os.Stderr,
		terminal:  term.IsTerminal(int(os.Stdout.Fd())),
		width:     stdoutWidth,
		getenv:    os.Getenv,
		now:       time.Now,
		transport: newTransport(),
	}
	sys.program, sys.plugin = programName(os.Args[0])
	sys.oneTerminal = sys.terminal && term.IsTerminal(int(os.Stderr.Fd()))
	os.Exit(execute(cli.Context(), sys, os.Args[1:]))
}

// programName returns how the user invokes a program with this first argument, and whether it is a
// plugin of kubectl, which is invoked through kubectl.
func programName(arg0 string) (name string, plugin bool) {
	base := filepath.Base(arg0)
	for _, prefix := range []string{"kubectl-", "kubectl_"} {
		if name, ok := strings.CutPrefix(base, prefix); ok {
			return "kubectl " + strings.ReplaceAll(name, "_", "-"), true
		}
	}
	return "ipwitness", false
}
