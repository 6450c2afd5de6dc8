package containers

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// DockerName is the name of docker in the API.
const DockerName = "docker"

// Docker describes the networks of docker: the addresses that dockerd has given to containers, and the
// names of the containers. Its files are below docker's data root; docker's socket is not used.
//
// dockerd keeps its allocations in memory, and restores them from the database when it starts. It frees
// an address when the container stops, and a container that starts again gets the lowest free one.
var Docker = engine(DockerName, newDocker)

// The default directories: docker's data root, and that of the network namespaces of its containers.
const (
	defaultRoot = "/var/lib/docker"
	runtimeDir  = "/run/docker/netns"
)

// A dockerSource reads dockerd's database of networks, and the configurations of its containers.
type dockerSource struct {
	source
	root       string
	containers dockerContainers
	runtime    string // directory of the network namespaces of containers
	used       bool   // dockerd has created network namespaces
}

// newDocker returns a source that has read nothing yet. The directories of the configuration, if there
// are any, are the data root and that of network namespaces.
func newDocker(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	root, runtime := defaultRoot, runtimeDir
	if len(cfg.Dirs) == 2 {
		root, runtime = cfg.Dirs[0], cfg.Dirs[1]
	}
	return &dockerSource{
		source: newSource(host, DockerName, filepath.Join(root, "network", "files", "local-kv.db")),
		root:   root, runtime: runtime,
		containers: dockerContainers{host: host, dir: filepath.Join(root, "containers"), known: map[string]dockerVersion{}},
	}
}

// Places implements ipam.FileSource.
func (s *dockerSource) Places() []string { return []string{filepath.Dir(s.Path), s.containers.dir} }

func (s *dockerSource) Find(time.Time) (again bool) {
	s.hidden, s.used = s.host.Visible(s.root), false
	if dir, _, err := s.host.OpenDir(s.runtime); err == nil {
		s.used = true
		_ = dir.Close()
	}
	return false
}

func (s *dockerSource) Event(path string, _ bool) (handled bool) {
	if path == s.Path {
		s.Changed()
		return true
	}
	dir := filepath.Dir(path)
	return dir == filepath.Dir(s.Path) || dir == s.containers.dir
}

// Read implements ipam.FileSource. dockerd writes the configuration of a container after the database,
// so that the containers are read a while later.
func (s *dockerSource) Read(r ipam.FileRead) (again bool) {
	if s.hidden != nil {
		return false // the files there are the container's own
	}
	if r.All || r.Lost {
		s.containers.read()
	}
	again, _ = s.read(r, parseDocker)
	fixed := map[string]*ipam.Container{}
	for _, c := range s.Containers() {
		fixed[c.ID] = c
	}
	for _, p := range s.Pools() {
		p.Fix(func(al *ipam.Allocation) string {
			if c := fixed[al.ContainerID]; c != nil && c.Fixed[al.Address] && c.Given[al.Address] == p.Network {
				return c.FixedIn
			}
			return ""
		})
	}
	return again
}

// Containers implements ipam.ContainerSource.
func (s *dockerSource) Containers() (all []*ipam.Container) {
	for _, name := range slices.Sorted(maps.Keys(s.containers.known)) {
		if v := s.containers.known[name]; v.Container != nil {
			all = append(all, v.Container)
		}
	}
	return all
}

func (s *dockerSource) Problems() []string {
	problems := s.problems()
	if s.hidden != nil && s.used {
		problems = append(problems, fmt.Sprintf("cannot read the networks and containers of %s: %s", DockerName, s.hidden))
	}
	if s.containers.fault != nil {
		problems = append(problems, fmt.Sprintf("cannot read %d of the containers of %s in %s: %s", s.containers.faults, DockerName, s.containers.dir, ipam.OneLine(s.containers.fault)))
	}
	return problems
}
