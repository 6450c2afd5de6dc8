package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// release makes a release of small files, and returns its options.
func release(t *testing.T, revision string) options {
	t.Helper()
	o := options{
		dir: t.TempDir(), version: "v1.2.3", revision: revision, goVersion: "go1.26.8", arches: []string{"amd64", "arm64"}, plugins: []string{"darwin-arm64"}, epoch: 1700000000,
		image: "example.com/ipwitness:v1.2.3", agentImage: "example.com/ipwitness-agent:v1.2.3", builder: "https://example.com/ci", template: "../../deploy/krew/ipwitness.yaml.tmpl",
	}
	for _, arch := range o.arches {
		if err := o.write("ipwitness-v1.2.3-linux-"+arch+".tar.gz", []byte(arch)); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.write("ipwitness-v1.2.3-darwin-arm64.tar.gz", []byte("darwin")); err != nil {
		t.Fatal(err)
	}
	if err := o.write("ipwitness-1.2.3.tgz", chart(t, time.Now())); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"ipwitness", "ipwitness-agent"} {
		f, err := os.Create(filepath.Join(o.dir, program+"-v1.2.3-image.tar"))
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
	}
	return o
}

// chart returns a package as Helm makes it at a time.
func chart(t *testing.T, at time.Time) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	zip.Comment, zip.ModTime = "Helm", at
	w := tar.NewWriter(zip)
	for _, name := range []string{"ipwitness/Chart.yaml", "ipwitness/values.yaml"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(name)), Mode: 0o644, ModTime: at}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestAChartThatIsPackagedLaterHasTheSameBytes(t *testing.T) {
	at := time.Unix(1700000000, 0).UTC()
	first, err := settled(chart(t, time.Now()), at)
	if err != nil {
		t.Fatal(err)
	}
	later, err := settled(chart(t, time.Now().Add(time.Hour)), at)
	if err != nil || !bytes.Equal(first, later) {
		t.Errorf("got other bytes an hour later, and %v", err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(first))
	if err != nil || zip.Comment != "Helm" {
		t.Fatalf("got %v, want Helm's comment, and %v", zip, err)
	}
	h, err := tar.NewReader(zip).Next()
	if err != nil || h.Name != "ipwitness/Chart.yaml" || !h.ModTime.Equal(at) {
		t.Errorf("got %v and %v, want Chart.yaml of %s", h, err, at)
	}
	if _, err := settled([]byte("no archive"), at); err == nil {
		t.Error("got no error for a file that is no archive")
	}
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
	if last := s.Subject[len(s.Subject)-1]; last.Name != "example.com/ipwitness-agent:v1.2.3" || last.Digest["sha256"] != "abc" {
		t.Errorf("got %v, want the image of the agent with its digest", last)
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
	for _, missing := range []string{"ipwitness-v1.2.3-linux-arm64.tar.gz", "ipwitness-v1.2.3-darwin-arm64.tar.gz", "ipwitness-v1.2.3-image.tar", "ipwitness-agent-v1.2.3-image.tar"} {
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
