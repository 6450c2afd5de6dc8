package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// build makes an image of a Dockerfile, from files with these times and modes.
func build(t *testing.T, dockerfile string, mode os.FileMode, modified time.Time) ([]byte, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"Dockerfile": dockerfile, "LICENSE": "licence", "stages/amd64/build/out/program": "amd64", "stages/arm64/build/out/program": "arm64"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	o := options{
		dockerfile: filepath.Join(dir, "Dockerfile"), context: dir, stages: filepath.Join(dir, "stages"),
		arches: []string{"amd64", "arm64"}, args: map[string]string{"VERSION": "v1"}, epoch: time.Unix(1e9, 0).UTC(),
		reference: "example.com/program:v1", out: filepath.Join(dir, "image.tar"),
	}
	if _, err := o.run(); err != nil {
		return nil, err
	}
	return os.ReadFile(o.out)
}

const dockerfile = `FROM golang AS build
RUN make
FROM scratch
COPY --from=build /out/program /program
COPY LICENSE /licenses/
ARG VERSION=devel
LABEL version="$VERSION"
USER 65532
ENTRYPOINT ["/program"]
`

func TestSameFilesGiveTheSameBytes(t *testing.T) {
	one, err := build(t, dockerfile, 0o755, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	two, err := build(t, dockerfile, 0o700, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if string(one) != string(two) {
		t.Error("times or modes of the files are in the image")
	}
	if other, err := build(t, strings.Replace(dockerfile, "USER 65532", "USER 65533", 1), 0o755, time.Unix(1, 0)); err != nil || string(one) == string(other) {
		t.Errorf("another user, error %v: got the same image", err)
	}
}

func TestWhatNeedsAnEngineIsRefused(t *testing.T) {
	for instruction, want := range map[string]string{
		"RUN touch /x":               "without an engine",
		"COPY --chmod=600 LICENSE /": "only --from and --link",
		"ENTRYPOINT /program":        "no shell",
		"COPY --from=other /x /x":    "no such file",
		"FROM golang":                "not from scratch",
	} {
		if _, err := build(t, dockerfile+instruction+"\n", 0o644, time.Unix(1, 0)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", instruction, err, want)
		}
	}
}
