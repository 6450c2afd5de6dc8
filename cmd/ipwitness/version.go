package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

// build describes the build of this program.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// readBuild returns the build with the version set by the linker, if any, and otherwise the
// information that the Go toolchain wrote into the binary.
func readBuild(linked string) build {
	info, _ := debug.ReadBuildInfo()
	return describeBuild(linked, commit, info)
}

// describeBuild describes a build by the values that the linker set or, if they are empty, by Go's
// build information: the module version of `go install`, or the commit of the checkout.
func describeBuild(linked, commit string, info *debug.BuildInfo) build {
	b := build{Version: linked, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil {
		if info.Main.Version != "(devel)" {
			b.Version = cmp.Or(b.Version, info.Main.Version)
		}
		b.Commit = cmp.Or(b.Commit, vcsCommit(info.Settings))
	}
	b.Version = cmp.Or(b.Version, "devel")
	b.Commit = cmp.Or(b.Commit, "unknown")
	return b
}

// vcsCommit returns the commit that was built, if it is known.
func vcsCommit(settings []debug.BuildSetting) string {
	var revision, dirty string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + dirty
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
