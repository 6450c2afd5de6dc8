// Command release completes a directory of files to publish: it writes the krew manifest of the kubectl
// plugin, the provenance of all files, and their checksums. `make release` builds the files and runs it.
//
// The output depends only on the files and the flags, so the same commit results in the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

const (
	// krewManifest is the name that krew requires: that of the plugin.
	krewManifest = "ipwitness.yaml"
	provenance   = "provenance.intoto.json"
	checksums    = "SHA256SUMS"
	source       = "https://github.com/ipwitness/ipwitness"
)

// options are the flags.
type options struct {
	dir               string
	version, revision string
	goVersion         string
	arches            []string
	plugins           []string // other systems than Linux, as OS-ARCH
	epoch             int64    // time of the files in the chart, in seconds
	image, agentImage string   // name and tag
	builder           string
	template          string
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "bin/release/dist", "directory of the files to publish")
	flag.StringVar(&o.version, "version", "devel", "version of the release")
	flag.StringVar(&o.revision, "revision", "unknown", "commit of the sources")
	flag.StringVar(&o.goVersion, "go", "", "version of Go that built the programs")
	arches := flag.String("arch", "amd64,arm64", "architectures, separated by commas")
	plugins := flag.String("plugins", "darwin-amd64,darwin-arm64", "other systems that have the kubectl plugin, as OS-ARCH, separated by commas")
	flag.Int64Var(&o.epoch, "epoch", 0, "time of the commit, in seconds since 1970")
	flag.StringVar(&o.image, "image", "", "name of the image, with its tag")
	flag.StringVar(&o.agentImage, "agent-image", "", "name of the agent's image, with its tag")
	flag.StringVar(&o.builder, "builder", "", "URI of what runs the build")
	flag.StringVar(&o.template, "krew", "deploy/krew/ipwitness.yaml.tmpl", "template of the krew manifest")
	flag.Parse()
	o.arches, o.plugins = strings.Split(*arches, ","), strings.FieldsFunc(*plugins, func(r rune) bool { return r == ',' })
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	if o.dirty() {
		fmt.Fprintln(os.Stderr, "release: there are uncommitted changes: do not publish these files")
	}
}

func (o options) run() error {
	if err := o.settleCharts(); err != nil {
		return fmt.Errorf("set the times in the chart: %w", err)
	}
	if err := o.writeKrew(); err != nil {
		return fmt.Errorf("write the krew manifest: %w", err)
	}
	if err := o.writeProvenance(); err != nil {
		return fmt.Errorf("write the provenance: %w", err)
	}
	if err := o.writeSums(); err != nil {
		return fmt.Errorf("write the checksums: %w", err)
	}
	return nil
}

// dirty reports whether the sources differ from the commit.
func (o options) dirty() bool { return strings.HasSuffix(o.revision, "-dirty") }

// sum returns the SHA-256 of a file.
func (o options) sum(name string) (string, error) {
	f, err := os.Open(filepath.Join(o.dir, name))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// files lists the files to publish, except for some.
func (o options) files(except ...string) (names []string, err error) {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			return nil, fmt.Errorf("%s is not a file", filepath.Join(o.dir, e.Name()))
		}
		if !slices.Contains(except, e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// A pack is a file with the plugin for one system. Program and Licence are paths in it.
type pack struct{ OS, Arch, File, Program, Licence, SHA256 string }

// packs returns what krew can install: the packages for Linux, and the plugins for other systems.
func (o options) packs() (all []pack, err error) {
	for _, arch := range o.arches {
		dir := "ipwitness-" + o.version + "-linux-" + arch
		all = append(all, pack{OS: "linux", Arch: arch, File: dir + ".tar.gz", Program: dir + "/usr/local/bin/ipwitness", Licence: dir + "/usr/local/share/doc/ipwitness/LICENSE"})
	}
	for _, system := range o.plugins {
		name, arch, ok := strings.Cut(system, "-")
		if !ok {
			return nil, fmt.Errorf("%q is not a system: use OS-ARCH, like darwin-arm64", system)
		}
		dir := "ipwitness-" + o.version + "-" + system
		all = append(all, pack{OS: name, Arch: arch, File: dir + ".tar.gz", Program: dir + "/ipwitness", Licence: dir + "/LICENSE"})
	}
	for i := range all {
		if all[i].SHA256, err = o.sum(all[i].File); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// writeKrew fills in the krew manifest.
func (o options) writeKrew() error {
	t, err := template.ParseFiles(o.template)
	if err != nil {
		return err
	}
	about := struct {
		Version, Download string
		Packages          []pack
	}{Version: o.version, Download: source + "/releases/download/" + o.version}
	if about.Packages, err = o.packs(); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := t.Option("missingkey=error").Execute(&out, about); err != nil {
		return err
	}
	return o.write(krewManifest, out.Bytes())
}

// The statement is an in-toto statement (https://in-toto.io/Statement/v1) with the provenance of SLSA
// (https://slsa.dev/spec/v1.0/provenance).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string         `json:"buildType"`
	ExternalParameters   map[string]any `json:"externalParameters"`
	ResolvedDependencies []resource     `json:"resolvedDependencies"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
}

// writeProvenance says from what the files and the image were built, and how.
func (o options) writeProvenance() error {
	commit, _ := strings.CutSuffix(o.revision, "-dirty")
	s := statement{
		Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1",
		Predicate: predicate{BuildDefinition: buildDefinition{
			BuildType:          source + "/blob/main/docs/release.md#provenance",
			ExternalParameters: map[string]any{"version": o.version, "architectures": o.arches, "plugins": o.plugins, "image": o.image, "agentImage": o.agentImage},
			ResolvedDependencies: []resource{
				{URI: "git+" + source + "@" + commit, Digest: map[string]string{"gitCommit": commit}},
				{URI: "https://go.dev/dl/#" + o.goVersion, Name: o.goVersion},
			},
		}},
	}
	if o.dirty() {
		// The commit is not what was built.
		s.Predicate.BuildDefinition.ResolvedDependencies[0].Digest = nil
		s.Predicate.BuildDefinition.ExternalParameters["uncommittedChanges"] = true
	}
	s.Predicate.RunDetails.Builder.ID = o.builder
	names, err := o.files(provenance, checksums)
	if err != nil {
		return err
	}
	for _, name := range names {
		sum, err := o.sum(name)
		if err != nil {
			return err
		}
		s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	for _, of := range []struct{ program, image string }{{"ipwitness", o.image}, {"ipwitness-agent", o.agentImage}} {
		digest, err := o.imageDigest(of.program)
		if err != nil {
			return err
		}
		s.Subject = append(s.Subject, resource{Name: of.image, Digest: map[string]string{"sha256": digest}})
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return o.write(provenance, append(text, '\n'))
}

// imageDigest returns the digest of a program's image, by which registries know it, from its archive.
func (o options) imageDigest(program string) (string, error) {
	name := program + "-" + o.version + "-image.tar"
	f, err := os.Open(filepath.Join(o.dir, name))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("%s has no index.json", name)
		}
		if err != nil {
			return "", fmt.Errorf("read %s: %w", name, err)
		}
		if h.Name != "index.json" {
			continue
		}
		var index struct{ Manifests []struct{ Digest string } }
		if err := json.NewDecoder(r).Decode(&index); err != nil {
			return "", fmt.Errorf("read index.json of %s: %w", name, err)
		}
		if len(index.Manifests) != 1 {
			return "", fmt.Errorf("%s has %d images, want one", name, len(index.Manifests))
		}
		digest, ok := strings.CutPrefix(index.Manifests[0].Digest, "sha256:")
		if !ok {
			return "", fmt.Errorf("%s has the digest %s, want one of SHA-256", name, index.Manifests[0].Digest)
		}
		return digest, nil
	}
}

// writeSums writes the checksums as sha256sum reads them.
func (o options) writeSums() error {
	names, err := o.files(checksums)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for _, name := range names {
		sum, err := o.sum(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s  %s\n", sum, name)
	}
	return o.write(checksums, out.Bytes())
}

func (o options) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(o.dir, name), text, 0o644)
}
