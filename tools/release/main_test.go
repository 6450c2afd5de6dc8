package main

import (
	"archive/tar"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// release makes a release of small files, and returns its options.
func release(t *testing.T, revision string) options {
	t.Helper()
	o := options{
		dir: t.TempDir(), version: "v1.2.3", revision: revision, goVersion: "go1.26.8", arches: []string{"amd64", "arm64"},
		image: "example.com/ipwitness:v1.2.3", builder: "https://example.com/ci", template: "../../deploy/krew/ipwitness.yaml.tmpl",
	}
	for _, arch := range o.arches {
		if err := o.write("ipwitness-v1.2.3-linux-"+arch+".tar.gz", []byte(arch)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(o.dir, "ipwitness-v1.2.3-image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	index := `{"manifests":[{"digest":"sha256:abc"}]}`
	w := tar.NewWriter(f)
	for _, err := range []error{
		w.WriteHeader(&tar.Header{Name: "blobs/", Typeflag: tar.TypeDir, Mode: 0o755}),
		w.WriteHeader(&tar.Header{Name: "index.json", Size: int64(len(index)), Mode: 0o644}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write([]byte(index)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return o
}

// dependency runs the release and returns the first dependency of its provenance.
func dependency(t *testing.T, o options) (statement, resource) {
	t.Helper()
	if err := o.run(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.dir, provenance))
	if err != nil {
		t.Fatal(err)
	}
	var s statement
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s, s.Predicate.BuildDefinition.ResolvedDependencies[0]
}

func TestAReleaseOfUncommittedChangesNamesNoCommit(t *testing.T) {
	const commit = "749841b9749841b9749841b9749841b9749841b9"
	s, d := dependency(t, release(t, commit))
	if d.Digest["gitCommit"] != commit || s.Predicate.BuildDefinition.ExternalParameters["uncommittedChanges"] != nil {
		t.Errorf("got %v and %v, want the commit %s", d, s.Predicate.BuildDefinition.ExternalParameters, commit)
	}
	if last := s.Subject[len(s.Subject)-1]; last.Name != "example.com/ipwitness:v1.2.3" || last.Digest["sha256"] != "abc" {
		t.Errorf("got %v, want the image with its digest", last)
	}
	s, d = dependency(t, release(t, commit+"-dirty"))
	if d.Digest != nil || s.Predicate.BuildDefinition.ExternalParameters["uncommittedChanges"] != true {
		t.Errorf("got %v and %v, want no digest, and that there are changes", d, s.Predicate.BuildDefinition.ExternalParameters)
	}
}

func TestARepeatedReleaseIsTheSame(t *testing.T) {
	o := release(t, "1")
	dependency(t, o)
	before, err := os.ReadFile(filepath.Join(o.dir, checksums))
	if err != nil {
		t.Fatal(err)
	}
	dependency(t, o)
	after, err := os.ReadFile(filepath.Join(o.dir, checksums))
	if err != nil || string(after) != string(before) {
		t.Errorf("got (%v)\n%s\nwant\n%s", err, after, before)
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	for _, missing := range []string{"ipwitness-v1.2.3-linux-arm64.tar.gz", "ipwitness-v1.2.3-image.tar"} {
		o := release(t, "1")
		if err := os.Remove(filepath.Join(o.dir, missing)); err != nil {
			t.Fatal(err)
		}
		if err := o.run(); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("got %v, want an error that names %s", err, missing)
		}
	}
	o := release(t, "1")
	if err := os.Mkdir(filepath.Join(o.dir, "amd64"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := o.run(); err == nil || !strings.Contains(err.Error(), "amd64 is not a file") {
		t.Errorf("got %v, want that amd64 is not a file", err)
	}
}
