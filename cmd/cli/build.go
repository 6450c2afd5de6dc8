package cli

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// version and commit are set by the build with -ldflags "-X …/cmd/cli.version=… -X …/cmd/cli.commit=…".
var version, commit string

// Build describes the build of this program.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ReadBuild returns the build with the version set by the linker, if any, and otherwise the
// information that the Go toolchain wrote into the binary.
func ReadBuild() Build {
	info, _ := debug.ReadBuildInfo()
	return describeBuild(version, commit, info)
}

// describeBuild describes a build by the values that the linker set or, if they are empty, by Go's
// build information: the module version of `go install`, or the commit of the checkout.
func describeBuild(linked, commit string, info *debug.BuildInfo) Build {
	b := Build{Version: linked, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil {
		if info.Main.Version != "(devel)" {
			b.Version = cmp.Or(b.Version, info.Main.Version)
		}
		set := map[string]string{}
		for _, s := range info.Settings {
			set[s.Key] = s.Value
		}
		if set["vcs.modified"] == "true" && set["vcs.revision"] != "" {
			set["vcs.revision"] += "-dirty"
		}
		b.Commit = cmp.Or(b.Commit, set["vcs.revision"])
	}
	b.Version = cmp.Or(b.Version, "devel")
	b.Commit = cmp.Or(b.Commit, "unknown")
	return b
}
