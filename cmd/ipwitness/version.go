package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

// build says which build this is.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// readBuild takes the version that the linker set, if it did, and the rest from
// what the Go toolchain wrote into the binary.
func readBuild(linked string) build {
	b := build{Version: linked, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		dirty := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				dirty = s.Value == "true"
			}
		}
		if dirty && b.Commit != "" {
			b.Commit += "-dirty"
		}
	}
	b.Version = cmp.Or(b.Version, "devel")
	b.Commit = cmp.Or(b.Commit, "unknown")
	return b
}

func newVersion(sys system) *cobra.Command {
	var format show.Format
	cmd := &cobra.Command{
		Use:               "version [flags]",
		Short:             "Show the version of this program",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			b := readBuild(version)
			if format.ForPrograms() {
				return show.Value(sys.stdout, format, b)
			}
			_, err := fmt.Fprintf(sys.stdout, "ipwitness %s\ncommit    %s\ngo        %s\nplatform  %s\n",
				b.Version, b.Commit, b.Go, b.Platform)
			return err
		},
	}
	outputFlag(cmd, &format)
	return cmd
}
