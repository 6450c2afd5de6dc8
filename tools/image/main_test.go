package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// build creates an archive from files with this time and mode, and returns its contents.
func build(t *testing.T, version string, mode os.FileMode, modified time.Time) string {
	t.Helper()
	dir := t.TempDir()
	names := []string{"LICENSE", "bpf/LICENSE.GPL-2.0", "bpf/LICENSE.BSD-2-Clause"}
	for _, arch := range []string{"amd64", "arm64"} {
		names = append(names, arch+"/build/out/ipwitness", arch+"/build/out/THIRD-PARTY-LICENSES")
	}
	for _, name := range names {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	o := options{
		program: programs[0], context: dir, binaries: dir, arches: []string{"amd64", "arm64"}, version: version, epoch: time.Unix(1e9, 0).UTC(),
		reference: "example.com/program:v1", out: filepath.Join(dir, "image.tar"),
	}
	if _, err := o.run(); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(o.out)
	if err != nil {
		t.Fatal(err)
	}
	return string(image)
}

func TestSameFilesGiveTheSameBytes(t *testing.T) {
	one := build(t, "v1", 0o755, time.Unix(1, 0))
	if two := build(t, "v1", 0o700, time.Now()); one != two {
		t.Error("times or modes of the files are in the image")
	}
	if other := build(t, "v2", 0o755, time.Unix(1, 0)); one == other {
		t.Error("got the same image of another version")
	}
}
