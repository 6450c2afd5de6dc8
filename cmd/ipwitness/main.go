// Command ipwitness shows the real holder of each address of a network and detects addresses with
// more than one holder. This package contains its subcommands, their flags and the wiring. Package
// show renders the output; packages agent and aggregator collect and judge the data.
package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	// The fallback roots for --tls-ca system if the system has none, as in the container image.
	_ "golang.org/x/crypto/x509roots/fallback"
	"golang.org/x/term"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
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
	syscall.Umask(0o077) // histories and backups are for this user, whatever a library or a directory allows
	sys := system{
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		terminal: term.IsTerminal(int(os.Stdout.Fd())),
		width: func() int {
			width, _, _ := term.GetSize(int(os.Stdout.Fd()))
			return max(0, width) // it is negative if it is not known
		},
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

// colorChoice is when output has colours.
type colorChoice string

const (
	colorAuto   colorChoice = "auto"
	colorAlways colorChoice = "always"
	colorNever  colorChoice = "never"
)

// colorFlag adds --color.
func colorFlag(cmd *cobra.Command, to *colorChoice) {
	cli.ChoiceFlag(cmd, to, "color", "", "colours by state; auto: in a terminal, unless NO_COLOR is set", colorAuto, colorAlways, colorNever)
}

// on reports whether stdout has colours. Variables count as they do for other programs:
// https://no-color.org and https://bixense.com/clicolors.
func (c colorChoice) on(sys system) bool {
	forced := sys.getenv("CLICOLOR_FORCE")
	switch {
	case c != colorAuto:
		return c == colorAlways
	case sys.getenv("NO_COLOR") != "":
		return false
	case forced != "" && forced != "0":
		return true
	}
	return sys.terminal && sys.getenv("TERM") != "dumb" && sys.getenv("CLICOLOR") != "0"
}

// terminalLayout returns the layout of output in the terminal, if stdout is one.
func (s system) terminalLayout(color colorChoice) show.Layout {
	layout := show.Layout{Color: color.on(s), Program: s.program}
	if !s.terminal {
		return layout
	}
	if columns, err := strconv.ParseUint(s.getenv("COLUMNS"), 10, 15); err == nil && columns > 0 {
		layout.Width = int(columns)
	} else if s.width != nil {
		layout.Width, layout.Resized = s.width(), s.width
	}
	return layout
}
