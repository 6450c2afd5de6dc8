// Command image makes an OCI image archive of what the last stage of a Dockerfile
// says, for several architectures and without a container engine. The same files
// give the same bytes: no time is in it but the one that is given.
//
// It knows the instructions that need nothing to be run: ARG, COPY, LABEL, ENV,
// USER, WORKDIR, EXPOSE and ENTRYPOINT, from scratch. Others are an error.
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
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// options are the flags.
type options struct {
	dockerfile string
	context    string
	stages     string            // a directory for each architecture, with one for each other stage
	arches     []string          // GOARCH
	args       map[string]string // of ARG
	epoch      time.Time         // the time of everything
	reference  string            // what the image is called
	out        string
}

func main() {
	o := options{args: map[string]string{}}
	flag.StringVar(&o.dockerfile, "file", "Dockerfile", "the Dockerfile whose last stage is made")
	flag.StringVar(&o.context, "context", ".", "the directory that COPY takes from")
	flag.StringVar(&o.stages, "stages", "", "where the files of the other stages are: DIR/ARCH/STAGE/")
	arches := flag.String("arch", "amd64,arm64", "the architectures, with commas between")
	flag.Func("build-arg", "NAME=VALUE of an ARG; repeatable", func(s string) error {
		k, v, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want NAME=VALUE")
		}
		o.args[k] = v
		return nil
	})
	epoch := flag.Int64("epoch", 0, "the time of everything, in seconds since 1970")
	flag.StringVar(&o.reference, "name", "", "what the image is called, with its tag")
	flag.StringVar(&o.out, "o", "image.tar", "the archive to write")
	flag.Parse()
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

// write writes an OCI archive: an image layout (image-spec, image-layout.md) in a
// tar file. Its name is where containerd looks for it, and where others do.
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
	return errors.Join(o.pack(w, dir, "."), w.Close(), f.Close())
}

// defaultPath is what engines put into every image.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// image makes the image for one architecture.
func (o options) image(arch string) (v1.Image, error) {
	stage, escape, err := o.lastStage()
	if err != nil {
		return nil, err
	}
	args := map[string]string{}
	cfg := &v1.ConfigFile{
		Created: v1.Time{Time: o.epoch}, OS: "linux", Architecture: arch,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Env: []string{defaultPath}, WorkingDir: "/", Labels: map[string]string{}, ExposedPorts: map[string]struct{}{}},
	}
	lex := shell.NewLex(escape)
	expand := func(word string) (string, error) {
		var env []string
		for k, v := range args {
			env = append(env, k+"="+v)
		}
		out, _, err := lex.ProcessWord(word, shell.EnvsFromSlice(append(env, cfg.Config.Env...)))
		return out, err
	}
	var layers []mutate.Addendum
	for _, command := range stage.Commands {
		if c, ok := command.(instructions.SupportsSingleWordExpansion); ok {
			if err := c.Expand(expand); err != nil {
				return nil, fmt.Errorf("expand %s: %w", command, err)
			}
		}
		history := v1.History{Created: cfg.Created, CreatedBy: fmt.Sprint(command), EmptyLayer: true}
		switch c := command.(type) {
		case *instructions.ArgCommand:
			for _, a := range c.Args {
				if _, ok := o.args[a.Key]; ok {
					args[a.Key] = o.args[a.Key]
				} else if a.Value != nil {
					args[a.Key] = *a.Value
				}
			}
			continue
		case *instructions.CopyCommand:
			layer, err := o.layer(c, arch)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c, err)
			}
			history.EmptyLayer = false
			layers = append(layers, mutate.Addendum{Layer: layer, History: history, MediaType: types.OCILayer})
			continue
		case *instructions.LabelCommand:
			for _, l := range c.Labels {
				cfg.Config.Labels[l.Key] = l.Value
			}
		case *instructions.EnvCommand:
			for _, e := range c.Env {
				cfg.Config.Env = append(cfg.Config.Env, e.Key+"="+e.Value)
			}
		case *instructions.UserCommand:
			cfg.Config.User = c.User
		case *instructions.WorkdirCommand:
			cfg.Config.WorkingDir = path.Join(cfg.Config.WorkingDir, c.Path)
		case *instructions.ExposeCommand:
			for _, p := range c.Ports {
				cfg.Config.ExposedPorts[p+"/tcp"] = struct{}{}
			}
		case *instructions.EntrypointCommand:
			if c.PrependShell {
				return nil, fmt.Errorf("%s: there is no shell: write a JSON list", c)
			}
			cfg.Config.Entrypoint = c.CmdLine
		default:
			return nil, fmt.Errorf("%s: cannot be done without an engine", command)
		}
		layers = append(layers, mutate.Addendum{History: history})
	}
	img, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), cfg)
	if err != nil {
		return nil, err
	}
	return mutate.Append(img, layers...)
}

// lastStage reads the Dockerfile. It is read anew for each image, for expanding
// its words changes it.
func (o options) lastStage() (stage instructions.Stage, escape rune, err error) {
	fail := func(err error) (instructions.Stage, rune, error) {
		return instructions.Stage{}, 0, fmt.Errorf("read %s: %w", o.dockerfile, err)
	}
	text, err := os.ReadFile(o.dockerfile)
	if err != nil {
		return fail(err)
	}
	tree, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return fail(err)
	}
	stages, _, err := instructions.Parse(tree.AST, nil)
	if err != nil {
		return fail(err)
	}
	last := stages[len(stages)-1]
	if last.BaseName != "scratch" {
		return fail(fmt.Errorf("its last stage is from %s, not from scratch", last.BaseName))
	}
	return last, tree.EscapeToken, nil
}

// layer makes the layer of one COPY.
func (o options) layer(c *instructions.CopyCommand, arch string) (v1.Layer, error) {
	if c.Chown != "" || c.Chmod != "" || c.Parents || len(c.ExcludePatterns) != 0 || len(c.SourceContents) != 0 {
		return nil, errors.New("only --from and --link are known here")
	}
	from := o.context
	if c.From != "" {
		from = filepath.Join(o.stages, arch, c.From)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if dir, ok := strings.CutSuffix(c.DestPath, "/"); ok && dir != "" {
		if err := w.WriteHeader(o.header(strings.TrimPrefix(dir, "/")+"/", 0o755, 0)); err != nil {
			return nil, err
		}
	} else if !ok && len(c.SourcePaths) > 1 {
		return nil, errors.New("a destination of several files ends with a slash")
	}
	for _, source := range c.SourcePaths {
		to := c.DestPath
		if strings.HasSuffix(to, "/") {
			to += path.Base(source)
		}
		if err := o.add(w, filepath.Join(from, source), strings.TrimPrefix(to, "/")); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// pack adds all files of a directory, in order.
func (o options) pack(w *tar.Writer, dir, root string) error {
	return fs.WalkDir(os.DirFS(dir), root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(o.header(name+"/", 0o755, 0))
		}
		return o.add(w, filepath.Join(dir, name), name)
	})
}

// add adds a file. Of its mode only that it can be run matters: the rest is the
// umask of whoever has the file.
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

// header is that of a file of root, or of a directory where its name ends with a slash.
func (o options) header(name string, mode, size int64) *tar.Header {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: o.epoch, Format: tar.FormatUSTAR}
	if strings.HasSuffix(name, "/") {
		h.Typeflag = tar.TypeDir
	}
	return h
}
