package tests

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// imageArchive is the archive of a program's image that make image writes.
func imageArchive(program string) string { return "../bin/" + program + "-image.tar" }

// descriptor is an OCI content descriptor (image-spec, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// imageIndex is an OCI image index.
type imageIndex struct {
	Manifests []descriptor `json:"manifests"`
}

// image is the part of an image that matters when it runs.
type image struct {
	Created      time.Time `json:"created"`
	OS           string    `json:"os"`
	Architecture string    `json:"architecture"`
	// Config is the configuration of the image's containers.
	Config map[string]any `json:"config"`
	Files  map[string]imageFile
}

// imageFile is a file or a directory of an image.
type imageFile struct {
	Mode     int64
	UID, GID int
	Time     time.Time
	Data     string
}

// readArchive reads an OCI archive. It returns the name that containerd gives to the contents, and
// an image for each architecture.
func readArchive(t *testing.T, file string) (name string, images map[string]image) {
	t.Helper()
	blobs, err := readTar(file)
	if err != nil {
		t.Fatal(err)
	}
	get := func(name string, v any) {
		t.Helper()
		if err := json.Unmarshal([]byte(blobs[name].Data), v); err != nil {
			t.Fatalf("%s of %s: %v", name, file, err)
		}
	}
	blob := func(d descriptor) string { return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:") }
	var top imageIndex
	get("index.json", &top)
	if len(top.Manifests) != 1 {
		t.Fatalf("%s: got %v, want one image", file, top.Manifests)
	}
	name = top.Manifests[0].Annotations["io.containerd.image.name"]
	if top.Manifests[0].MediaType == "application/vnd.oci.image.index.v1+json" {
		get(blob(top.Manifests[0]), &top)
	}
	images = map[string]image{}
	for _, d := range top.Manifests {
		var manifest struct {
			Config descriptor   `json:"config"`
			Layers []descriptor `json:"layers"`
		}
		get(blob(d), &manifest)
		img := image{Files: map[string]imageFile{}}
		get(blob(manifest.Config), &img)
		for _, layer := range manifest.Layers {
			files, err := untar(strings.NewReader(blobs[blob(layer)].Data), true)
			if err != nil {
				t.Fatal(err)
			}
			maps.Copy(img.Files, files)
		}
		images[img.Architecture] = img
	}
	return name, images
}

func readTar(file string) (map[string]imageFile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return untar(f, false)
}

func untar(r io.Reader, zipped bool) (map[string]imageFile, error) {
	if zipped {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, err
		}
		r = z
	}
	files := map[string]imageFile{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return nil, err
		}
		files[h.Name] = imageFile{h.Mode & 0o7777, h.Uid, h.Gid, h.ModTime.UTC(), string(data)}
	}
}

// builtImage reads the archive of a program's image that make image built.
func builtImage(t *testing.T, program string) (name string, images map[string]image) {
	t.Helper()
	if _, err := os.Stat(imageArchive(program)); err != nil {
		missing(t, err)
	}
	return readArchive(t, imageArchive(program))
}

// golang replaces the image of that name in this test: its only userland is busybox, and it uses Go
// and the caches of this machine.
const golang = `FROM scratch
COPY sh /bin/sh
COPY empty /tmp/
ENV PATH=/usr/local/go/bin:/bin GOPATH=/go GOTOOLCHAIN=local
WORKDIR /go
`

// TestImageEqualsTheDockerfiles builds the targets of the Dockerfile with buildah and without a
// network. Each result must have the same configuration and, byte for byte, the same files as that
// of make image.
func TestImageEqualsTheDockerfiles(t *testing.T) {
	slow(t)
	t.Parallel()
	h := newHost(t)
	for program, debian := range map[string]string{"buildah": "buildah", "busybox": "busybox-static"} {
		if _, err := exec.LookPath(program); err != nil {
			missing(t, fmt.Errorf("needs %s (Debian: apt-get install %s): %w", program, debian, err))
		}
	}
	if in, of := goVersion(t, "../Dockerfile", "ARG GO_VERSION="), goVersion(t, "../go.mod", "go "); in != of {
		t.Errorf("Go of the Dockerfile: got %s, want %s, as in go.mod", in, of)
	}
	env := strings.Fields(output(t, exec.Command("go", "env", "GOROOT", "GOMODCACHE", "GOCACHE", "GOVERSION")))
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	output(t, exec.Command("go", "-C", repository, "mod", "download")) // the build has no network

	// buildah keeps all its data on a tmpfs of the host.
	dir := "/run/buildah"
	buildah := func(args ...string) {
		t.Helper()
		cmd := h.Command("env", slices.Concat([]string{
			"TMPDIR=" + dir + "/tmp", "CONTAINERS_STORAGE_CONF=" + dir + "/storage.conf", "BUILDAH_ISOLATION=chroot",
			"buildah", "--storage-driver=vfs", "--root=" + dir + "/root", "--runroot=" + dir + "/run",
		}, args)...)
		output(t, cmd)
	}
	_, err = h.Output(h.Command("sh", "-euc", `
		mkdir -p $0/tmp $0/base/empty
		cp "$(command -v busybox)" $0/base/sh
		echo "$1" >$0/base/Dockerfile
		echo '{"default":[{"type":"insecureAcceptAnything"}]}' >$0/policy.json
		printf '[storage]\ndriver = "vfs"\n' >$0/storage.conf`, dir, golang))
	if err != nil {
		t.Fatal(err)
	}
	policy := "--signature-policy=" + dir + "/policy.json"
	version := strings.TrimPrefix(env[3], "go")
	buildah("build", policy, "--tag=docker.io/library/golang:"+version, dir+"/base")
	for target, program := range map[string]string{"agent": "ipwitness-agent", "ipwitness": "ipwitness"} {
		_, images := builtImage(t, program)
		for arch, want := range images {
			label := func(name string) string {
				labels, _ := want.Config["Labels"].(map[string]any)
				return fmt.Sprint(labels["org.opencontainers.image."+name])
			}
			buildah("build", policy, "--network=none", "--pull-never", "--format=oci", "--identity-label=false", "--tag=built", "--target="+target,
				"--platform=linux/"+arch, "--build-arg=BUILDPLATFORM=linux/"+runtime.GOARCH,
				"--build-arg=GO_VERSION="+version, "--build-arg=VERSION="+label("version"), "--build-arg=REVISION="+label("revision"),
				"--timestamp="+strconv.FormatInt(want.Created.Unix(), 10),
				"--volume="+env[0]+":/usr/local/go:ro", "--volume="+env[1]+":/go/pkg/mod", "--volume="+env[2]+":/.cache/go-build", repository)
			buildah("push", policy, "built", "oci-archive:"+dir+"/"+target+arch+".tar:built")
			_, all := readArchive(t, h.Path(dir+"/"+target+arch+".tar"))
			got := all[arch]
			if got.OS != want.OS || !got.Created.Equal(want.Created) || !reflect.DeepEqual(got.Config, want.Config) {
				t.Errorf("%s: the Dockerfile gives\n%s %v %v, make image\n%s %v %v", arch, got.OS, got.Created, got.Config, want.OS, want.Created, want.Config)
			}
			for name, f := range got.Files {
				// Normalize the mode as make image does: the other bits depend on the umask of the
				// checkout.
				if f.Mode&0o100 != 0 {
					f.Mode = 0o755
				} else {
					f.Mode = 0o644
				}
				if w, ok := want.Files[name]; !ok || f != w {
					t.Errorf("%s: %s differs between the Dockerfile (%d bytes, mode %o) and make image (%d, %o): is %s older than the sources?",
						arch, name, len(f.Data), f.Mode, len(w.Data), w.Mode, imageArchive(program))
				}
			}
			if len(got.Files) != len(want.Files) || want.Files[program].Mode != 0o755 {
				t.Errorf("%s: got %d files, want %d", arch, len(got.Files), len(want.Files))
			}
		}
	}
}

// goVersion returns the text that follows a prefix on a line of a file.
func goVersion(t *testing.T, file, prefix string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut("\n"+string(text), "\n"+prefix)
	version, _, _ := strings.Cut(rest, "\n")
	return version
}

// output runs a command and returns its output.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var fault bytes.Buffer
	cmd.Stderr = &fault
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, fault.Bytes())
	}
	return string(out)
}

// TestImageRunsAgentAndAggregator imports the images unchanged into each containerd. The aggregator
// runs as its image's user, and the agent as root with four capabilities. Both have a read-only
// file system.
func TestImageRunsAgentAndAggregator(t *testing.T) {
	slow(t)
	t.Parallel()
	name, _ := builtImage(t, "ipwitness")
	agentName, _ := builtImage(t, "ipwitness-agent")
	for _, v := range containerd.Versions() {
		t.Run("containerd "+v.Name, func(t *testing.T) {
			t.Parallel()
			l := newRuntimeLab(t, v)
			for _, dir := range []string{"/var/lib", "/etc/cni"} { // as on a real node
				output(t, l.runtime.Command("mount", "--make-shared", dir))
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for program, name := range map[string]string{"ipwitness": name, "ipwitness-agent": agentName} {
				archive, err := os.Open(imageArchive(program))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = archive.Close() }()
				if err := l.runtime.ImportArchive(ctx, name, archive); err != nil {
					t.Fatal(err)
				}
			}

			aggregator := containerd.Pod{Name: "aggregator"}
			id := l.run(aggregator)
			process := l.container(ctx, id, aggregator, name, &runtimev1.LinuxContainerSecurityContext{
				Capabilities: &runtimev1.Capability{DropCapabilities: []string{"ALL"}},
			}, nil, "aggregator")
			wantProcess(t, process, "65532", noCapability)
			at := podAddress(1)

			agent := containerd.Pod{Name: "agent", HostNetwork: true}
			id = l.run(agent)
			var mounts []*runtimev1.Mount
			for _, dir := range []string{"/run", "/var/lib", "/etc/cni"} {
				mounts = append(mounts, &runtimev1.Mount{
					HostPath: dir, ContainerPath: dir, Readonly: true, Propagation: runtimev1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
				})
			}
			process = l.container(ctx, id, agent, agentName, &runtimev1.LinuxContainerSecurityContext{
				RunAsUser: &runtimev1.Int64Value{Value: 0},
				Capabilities: &runtimev1.Capability{
					DropCapabilities: []string{"ALL"},
					AddCapabilities:  []string{"NET_ADMIN", "NET_BROADCAST", "BPF", "PERFMON"},
				},
				NamespaceOptions: &runtimev1.NamespaceOption{Network: runtimev1.NamespaceMode_NODE},
			}, mounts, "--node", "node1", "--aggregator", at+":9640")
			wantProcess(t, process, "0", fourCapabilities)

			l.run(containerd.Pod{Name: "web"})
			for command, want := range map[string]string{"nodes": "node1", "owners " + podAddress(2): " default/web "} {
				wait.Until(t, command+" to show "+want, func() bool {
					out, err := l.Output(l.Command(binary, append([]string{"--server", "http://" + at + ":9641"}, strings.Fields(command)...)...))
					return err == nil && strings.Contains(out, want)
				})
			}
			l.pod("one", "10.9.0.6/24")
			l.pod("two", "10.9.0.6/24")
			wait.Until(t, "a conflict", func() bool {
				out, err := l.Output(l.Command(binary, "--server", "http://"+at+":9641", "conflicts"))
				return err == nil && strings.Contains(out, "10.9.0.6")
			})
		})
	}
}

// container starts the image in a pod, as kubelet would with these security settings, and returns
// its PID in the namespace of the test.
func (l *runtimeLab) container(ctx context.Context, sandbox string, p containerd.Pod, image string,
	security *runtimev1.LinuxContainerSecurityContext, mounts []*runtimev1.Mount, args ...string,
) (pid string) {
	l.t.Helper()
	security.NoNewPrivs, security.ReadonlyRootfs = true, true
	security.Seccomp = &runtimev1.SecurityProfile{ProfileType: runtimev1.SecurityProfile_RuntimeDefault}
	id, err := l.runtime.RunContainerAs(ctx, sandbox, p, &runtimev1.ContainerConfig{
		Metadata: &runtimev1.ContainerMetadata{Name: "ipwitness"},
		Image:    &runtimev1.ImageSpec{Image: image},
		Args:     args,
		Mounts:   mounts,
		Linux:    &runtimev1.LinuxContainerConfig{SecurityContext: security},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	wait.Until(l.t, "the process of "+p.Name, func() bool {
		cgroups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
		for _, file := range cgroups {
			data, _ := os.ReadFile(file)
			if bytes.Contains(data, []byte(id)) {
				pid = filepath.Base(filepath.Dir(file))
				return true
			}
		}
		return false
	})
	return pid
}

// wantProcess checks the privileges of a process.
func wantProcess(t *testing.T, pid, uid, capabilities string) {
	t.Helper()
	wait.Until(t, "the program to run in process "+pid, func() bool { // until then, the process is runc
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		return strings.HasPrefix(string(comm), "ipwitness")
	})
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/" + pid + "/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nUid:\t" + uid + "\t", "\nCapBnd:\t" + capabilities + "\n", "\nNoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("got %s, want %q", status, want)
		}
	}
	if root, _, _ := strings.Cut(string(mounts), "\n"); !strings.Contains(root, " / ") || !strings.Contains(root, " ro,") {
		t.Errorf("file system of process %s: got %s, want it read-only", pid, root)
	}
}
