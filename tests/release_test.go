package tests

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// A published is a directory of files to publish, as make release makes it.
type published struct {
	t    *testing.T
	sums map[string]string // SHA-256 of each file, computed by the test
}

// releaseDir is the directory of the files to publish.
const releaseDir = "../bin/release/dist"

func readRelease(t *testing.T) *published {
	t.Helper()
	slow(t)
	entries, err := os.ReadDir(releaseDir)
	if err != nil {
		missing(t, err)
	}
	p := &published{t, map[string]string{}}
	for _, e := range entries {
		sum := sha256.Sum256(p.read(e.Name()))
		p.sums[e.Name()] = hex.EncodeToString(sum[:])
	}
	return p
}

func (p *published) read(name string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(releaseDir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return data
}

// one returns the name of the only file that matches a pattern. Files of the agent alone match only
// patterns that name it.
func (p *published) one(pattern string) string {
	p.t.Helper()
	var found []string
	for name := range p.sums {
		agent := strings.HasPrefix(name, "ipwitness-agent-")
		if ok, _ := filepath.Match(pattern, name); ok && agent == strings.HasPrefix(pattern, "ipwitness-agent-") {
			found = append(found, name)
		}
	}
	if len(found) != 1 {
		p.t.Fatalf("got %v for %s, want one file", found, pattern)
	}
	return found[0]
}

// program returns a program in the package of an architecture.
func (p *published) program(name, arch string) []byte {
	p.t.Helper()
	pack := p.one("ipwitness-*-linux-" + arch + ".tar.gz")
	files, err := untar(bytes.NewReader(p.read(pack)), true)
	if err != nil {
		p.t.Fatal(err)
	}
	program, ok := files[strings.TrimSuffix(pack, ".tar.gz")+"/usr/local/bin/"+name]
	if !ok {
		p.t.Fatalf("%s has no %s", pack, name)
	}
	return []byte(program.Data)
}

// A provenance is what the tests read of the statement.
type provenance struct {
	Type          string `json:"_type"`
	PredicateType string
	Subject       []struct {
		Name   string
		Digest map[string]string
	}
	Predicate struct {
		BuildDefinition struct {
			ExternalParameters struct {
				Architectures      []string
				Plugins            []string
				UncommittedChanges bool
			}
			ResolvedDependencies []struct {
				URI    string
				Digest map[string]string
			}
		}
		RunDetails struct{ Builder struct{ ID string } }
	}
}

func (p *published) provenance() (s provenance) {
	p.t.Helper()
	if err := json.Unmarshal(p.read("provenance.intoto.json"), &s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

// arches returns the architectures of the release: those of the image, which the provenance names.
func (p *published) arches() []string {
	p.t.Helper()
	_, images := readArchive(p.t, filepath.Join(releaseDir, p.one("ipwitness-*-image.tar")))
	want := slices.Sorted(maps.Keys(images))
	if got := p.provenance().Predicate.BuildDefinition.ExternalParameters.Architectures; !slices.Equal(got, want) || len(got) == 0 {
		p.t.Fatalf("got the architectures %v in the provenance, want those of the image, %v", got, want)
	}
	return want
}

func TestTheChecksumsOfAReleaseAreThoseOfItsFiles(t *testing.T) {
	p := readRelease(t)
	got := map[string]string{}
	for line := range strings.Lines(string(p.read("SHA256SUMS"))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		got[name] = sum
	}
	want := maps.Clone(p.sums)
	delete(want, "SHA256SUMS")
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if cmd := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS"); len(want) < 6 {
		t.Errorf("got %d files, want image, packages, chart, SBOMs, manifest and provenance", len(want))
	} else {
		cmd.Dir = releaseDir
		output(t, cmd)
	}
}

func TestTheSBOMsListTheModulesOfTheirPrograms(t *testing.T) {
	p := readRelease(t)
	for _, of := range []struct{ program, arch string }{{"ipwitness", "amd64"}, {"ipwitness", "arm64"}, {"ipwitness-agent", "amd64"}, {"ipwitness-agent", "arm64"}} {
		var sbom struct {
			BomFormat string
			Metadata  struct {
				Component struct{ Name, Version string }
			}
			Components []struct{ Name, Version string }
		}
		name := p.one(of.program + "-*-linux-" + of.arch + ".cdx.json")
		if err := json.Unmarshal(p.read(name), &sbom); err != nil {
			t.Fatal(err)
		}
		built, err := buildinfo.Read(bytes.NewReader(p.program(of.program, of.arch)))
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"std " + built.GoVersion}
		for _, m := range built.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			want = append(want, m.Path+" "+m.Version)
		}
		var got []string
		for _, c := range sbom.Components {
			got = append(got, c.Name+" "+c.Version)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || len(want) < 20 {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		main := sbom.Metadata.Component
		if sbom.BomFormat != "CycloneDX" || main.Name != built.Main.Path || name != of.program+"-"+main.Version+"-linux-"+of.arch+".cdx.json" {
			t.Errorf("%s: got %s of %s %s, want that of %s, in the version of the file's name", name, sbom.BomFormat, main.Name, main.Version, built.Main.Path)
		}
	}
}

func TestTheProvenanceNamesAllFilesAndTheImage(t *testing.T) {
	p := readRelease(t)
	statement := p.provenance()
	if statement.Type != "https://in-toto.io/Statement/v1" || statement.PredicateType != "https://slsa.dev/provenance/v1" || statement.Predicate.RunDetails.Builder.ID == "" {
		t.Errorf("got %s of %s by %q, want an in-toto statement with SLSA's provenance", statement.Type, statement.PredicateType, statement.Predicate.RunDetails.Builder.ID)
	}
	got := map[string]string{}
	for _, s := range statement.Subject {
		got[s.Name] = s.Digest["sha256"]
	}
	want := maps.Clone(p.sums)
	delete(want, "SHA256SUMS")
	delete(want, "provenance.intoto.json")
	for _, pattern := range []string{"ipwitness-*-image.tar", "ipwitness-agent-*-image.tar"} {
		archive := filepath.Join(releaseDir, p.one(pattern))
		image, _ := readArchive(t, archive)
		want[image] = indexDigest(t, archive)
	}
	if !maps.Equal(got, want) {
		t.Errorf("got subjects %v, want %v", got, want)
	}
	from := statement.Predicate.BuildDefinition.ResolvedDependencies[0]
	dirty := statement.Predicate.BuildDefinition.ExternalParameters.UncommittedChanges
	if commit := from.Digest["gitCommit"]; !dirty && !strings.HasSuffix(from.URI, "@"+commit) || dirty == (commit != "") {
		t.Errorf("got %v of uncommitted changes %t, want a commit only without changes", from, dirty)
	}
}

// indexDigest returns the digest of the image in an archive, of which a registry would say that it is
// the digest of the bytes of its index.
func indexDigest(t *testing.T, archive string) string {
	t.Helper()
	files, err := readTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Manifests []struct{ Digest string } }
	if err := json.Unmarshal([]byte(files["index.json"].Data), &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("got %v, %v, want one image", index, err)
	}
	digest := strings.TrimPrefix(index.Manifests[0].Digest, "sha256:")
	sum := sha256.Sum256([]byte(files["blobs/sha256/"+digest].Data))
	if hex.EncodeToString(sum[:]) != digest {
		t.Errorf("got the digest %s of an index with the checksum %x", digest, sum)
	}
	return digest
}

func TestTheKrewManifestInstallsThePackages(t *testing.T) {
	p := readRelease(t)
	var manifest struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []struct {
				Selector struct {
					MatchLabels map[string]string `yaml:"matchLabels"`
				}
				URI, SHA256, Bin string
				Files            []struct{ From, To string }
			}
		}
	}
	if err := yaml.Unmarshal(p.read("ipwitness.yaml"), &manifest); err != nil {
		t.Fatal(err)
	}
	var systems []string
	for _, arch := range p.arches() {
		systems = append(systems, "linux-"+arch)
	}
	systems = append(systems, p.provenance().Predicate.BuildDefinition.ExternalParameters.Plugins...)
	if manifest.Metadata.Name != "ipwitness" || len(manifest.Spec.Platforms) != len(systems) {
		t.Fatalf("got %s with %d platforms, want ipwitness with %d", manifest.Metadata.Name, len(manifest.Spec.Platforms), len(systems))
	}
	for i, platform := range manifest.Spec.Platforms {
		file := p.one("ipwitness-*-" + systems[i] + ".tar.gz")
		if got := platform.Selector.MatchLabels; got["os"]+"-"+got["arch"] != systems[i] {
			t.Errorf("got the platform %v, want %s", got, systems[i])
		}
		if path.Base(platform.URI) != file || path.Base(path.Dir(platform.URI)) != manifest.Spec.Version || platform.SHA256 != p.sums[file] {
			t.Errorf("got %s with %s, want %s of version %s with %s", platform.URI, platform.SHA256, file, manifest.Spec.Version, p.sums[file])
		}
		packed, err := untar(bytes.NewReader(p.read(file)), true)
		if err != nil {
			t.Fatal(err)
		}
		var installed []string
		for _, f := range platform.Files {
			if _, ok := packed[f.From]; !ok || f.To != "." {
				t.Errorf("%s has no %s to copy to %s", file, f.From, f.To)
			}
			installed = append(installed, path.Base(f.From))
		}
		built, err := buildinfo.Read(strings.NewReader(packed[platform.Files[0].From].Data))
		if err != nil {
			t.Fatal(err)
		}
		target := map[string]string{}
		for _, s := range built.Settings {
			target[s.Key] = s.Value
		}
		if got := target["GOOS"] + "-" + target["GOARCH"]; got != systems[i] {
			t.Errorf("got a program for %s in %s", got, file)
		}
		if !slices.Contains(installed, platform.Bin) || !slices.Contains(installed, "LICENSE") {
			t.Errorf("got files %v and the program %s, want the program and its licence", installed, platform.Bin)
		}
	}
}

func TestThePackagedChartUsesTheImage(t *testing.T) {
	p := readRelease(t)
	helm := filepath.Join(os.Getenv("IPWITNESS_KUBERNETES_BIN"), "helm")
	if _, err := os.Stat(helm); err != nil {
		missing(t, err)
	}
	chart := filepath.Join(releaseDir, p.one("ipwitness-*.tgz"))
	output(t, exec.Command(helm, "lint", "--strict", chart))
	rendered := output(t, exec.Command(helm, "template", "ipwitness", chart))
	for _, pattern := range []string{"ipwitness-*-image.tar", "ipwitness-agent-*-image.tar"} {
		image, _ := readArchive(t, filepath.Join(releaseDir, p.one(pattern)))
		if want := fmt.Sprintf("image: %q", image); strings.Count(rendered, want) != 1 {
			t.Errorf("got\n%s\nwant %s once", rendered, want)
		}
	}
}
