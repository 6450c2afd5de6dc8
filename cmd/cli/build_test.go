package cli

import (
	"runtime/debug"
	"testing"
)

func TestVersionIsFromTheLinkerOrTheBuildInfo(t *testing.T) {
	const rev = "0123456789abcdef0123456789abcdef01234567"
	checkout := func(version, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{
			Main:     debug.Module{Version: version},
			Settings: []debug.BuildSetting{{Key: "vcs.modified", Value: modified}, {Key: "vcs.revision", Value: rev}},
		}
	}
	for name, tt := range map[string]struct {
		linked, commit string
		info           *debug.BuildInfo
		wantVersion    string
		wantCommit     string
	}{
		"make, image, package":       {"v1.2.3", rev, checkout("(devel)", "true"), "v1.2.3", rev},
		"version without commit":     {"v1.2.3", "", checkout("v0.0.0-2026", "false"), "v1.2.3", rev},
		"go install …@v1.2.3":        {"", "", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "v1.2.3", "unknown"},
		"go build in a checkout":     {"", "", checkout("v1.2.4-0.20261121-0123456789ab+dirty", "true"), "v1.2.4-0.20261121-0123456789ab+dirty", rev + "-dirty"},
		"go build -buildvcs=false":   {"", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel", "unknown"},
		"neither modules nor linker": {"", "", nil, "devel", "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			got := describeBuild(tt.linked, tt.commit, tt.info)
			if got.Version != tt.wantVersion || got.Commit != tt.wantCommit {
				t.Errorf("got %s, %s, want %s, %s", got.Version, got.Commit, tt.wantVersion, tt.wantCommit)
			}
		})
	}
}
