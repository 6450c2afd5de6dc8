package main

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

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

// stdoutWidth returns the number of columns of the terminal; 0 if that is not known.
func stdoutWidth() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 0
	}
	return width
}
