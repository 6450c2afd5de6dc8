// Command image creates the OCI image archive of a program of ipwitness, for several architectures and without a
// container engine. The same files result in the same bytes, because the only time in the archive
// is a flag. The Dockerfile describes the same images for container engines;
// TestImageEqualsTheDockerfiles compares both.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// options are the flags.
type options struct {
	program           program
	context           string // the directory of the licences
	binaries          string // DIR/ARCH/build/out contains the files of the Dockerfile's build stage
	arches            []string
	version, revision string
	epoch             time.Time
	reference         string
	out               string
}

// program is what an image has of its own.
type program struct {
	name, description, user string
	ports                   map[string]struct{}
}

// programs are the aggregator, which needs no privileges, and the agent, which runs as root.
var programs = []program{
	{"ipwitness", "Who really holds this IP address, right now, and does anybody else?", "65532:65532", map[string]struct{}{"9640/tcp": {}, "9641/tcp": {}, "9643/tcp": {}}},
	{"ipwitness-agent", "The agent of ipwitness: observes the owners of addresses on a node", "0:0", map[string]struct{}{"9642/tcp": {}}},
}

func main() {
	var o options
	called := flag.String("program", "ipwitness", "program of the image: ipwitness or ipwitness-agent")
	flag.StringVar(&o.context, "context", ".", "directory of the sources")
	flag.StringVar(&o.binaries, "binaries", "bin/release", "directory with ARCH/build/out for each architecture")
	arches := flag.String("arch", "amd64,arm64", "architectures, separated by commas")
	flag.StringVar(&o.version, "version", "devel", "version in the labels")
	flag.StringVar(&o.revision, "revision", "unknown", "commit in the labels")
	epoch := flag.Int64("epoch", 0, "time of all files, in seconds since 1970")
	flag.StringVar(&o.reference, "name", "", "name of the image, with its tag")
	flag.StringVar(&o.out, "o", "image.tar", "archive to write")
	flag.Parse()
	at := slices.IndexFunc(programs, func(p program) bool { return p.name == *called })
	if at < 0 {
		fmt.Fprintln(os.Stderr, "image: unknown program", *called)
		os.Exit(1)
	}
	o.program = programs[at]
	o.arches, o.epoch = strings.Split(*arches, ","), time.Unix(*epoch, 0).UTC()
	digest, err := o.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %s@%s\n", o.out, o.reference, digest)
}

func (o options) run() (v1.Hash, error) {
	tag, err := name.NewTag(o.reference, name.StrictValidation)
	if err != nil {
		return v1.Hash{}, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range o.arches {
		img, err := o.image(arch)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("make the image for %s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	return digest, o.write(index, tag)
}

// image returns the image for one architecture.
func (o options) image(arch string) (v1.Image, error) {
	const label = "org.opencontainers.image."
	config := v1.Config{
		Entrypoint:   []string{"/" + o.program.name},
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, // as container engines set it
		User:         o.program.user,
		WorkingDir:   "/",
		ExposedPorts: o.program.ports,
		Labels: map[string]string{
			label + "title":         o.program.name,
			label + "description":   o.program.description,
			label + "url":           "https://github.com/ipwitness/ipwitness",
			label + "source":        "https://github.com/ipwitness/ipwitness",
			label + "documentation": "https://github.com/ipwitness/ipwitness/blob/main/docs/reference.md",
			label + "vendor":        "The ipwitness authors",
			label + "licenses":      "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
			label + "version":       o.version,
			label + "revision":      o.revision,
		},
	}
	built := filepath.Join(o.binaries, arch, "build/out")
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err := errors.Join(
		o.add(w, filepath.Join(built, o.program.name), o.program.name),
		w.WriteHeader(o.header("licenses/", 0o755, 0)),
		o.add(w, filepath.Join(o.context, "LICENSE"), "licenses/LICENSE"),
		o.add(w, filepath.Join(o.context, "bpf/LICENSE.GPL-2.0"), "licenses/LICENSE.GPL-2.0"),
		o.add(w, filepath.Join(o.context, "bpf/LICENSE.BSD-2-Clause"), "licenses/LICENSE.BSD-2-Clause"),
		o.add(w, filepath.Join(built, "THIRD-PARTY-LICENSES"), "licenses/THIRD-PARTY-LICENSES"),
		w.Close())
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: o.epoch}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(base, &v1.ConfigFile{
		Created: created, OS: "linux", Architecture: arch, Config: config, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(img, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: created, CreatedBy: "make image"},
	})
}

// write writes an OCI archive: an image layout (image-spec, image-layout.md) in a tar file.
// containerd and others read the name from the annotations.
func (o options) write(index v1.ImageIndex, tag name.Tag) error {
	dir, err := os.MkdirTemp("", "ipwitness-image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          tag.Name(),
		"org.opencontainers.image.ref.name": tag.TagStr(),
	})); err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	f, err := os.Create(o.out)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	return errors.Join(o.pack(w, dir), w.Close(), f.Close())
}

// pack adds all files of a directory, in order.
func (o options) pack(w *tar.Writer, dir string) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(o.header(name+"/", 0o755, 0))
		}
		return o.add(w, filepath.Join(dir, name), name)
	})
}

// add adds a file. Only the executable bit of its mode is kept, because the rest depends on the
// umask.
func (o options) add(w *tar.Writer, file, name string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	if err := w.WriteHeader(o.header(name, mode, int64(len(data)))); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// header returns the header of a file that root owns, or of a directory if its name ends with
// a slash.
func (o options) header(name string, mode, size int64) *tar.Header {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: o.epoch, Format: tar.FormatUSTAR}
	if strings.HasSuffix(name, "/") {
		h.Typeflag = tar.TypeDir
	}
	return h
}
