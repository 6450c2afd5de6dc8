package containers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// The default directories: docker's data root, and that of the network namespaces of its containers.
const (
	defaultRoot = "/var/lib/docker"
	runtimeDir  = "/run/docker/netns"
)

// A source reads dockerd's database of networks, and the configurations of its containers.
type dockerSource struct {
	host ipam.Host
	root string
	bolt.File
	networks   Networks
	containers dockerContainers
	runtime    string // directory of the network namespaces of containers
	hidden     error  // why the data root is not visible
	used       bool   // dockerd has created network namespaces
}

// newDocker returns a source that has read nothing yet. The directories of the configuration, if there
// are any, are the data root and that of network namespaces.
func newDocker(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	root, runtime := defaultRoot, runtimeDir
	if len(cfg.Dirs) == 2 {
		root, runtime = cfg.Dirs[0], cfg.Dirs[1]
	}
	path := filepath.Join(root, "network", "files", "local-kv.db")
	return &dockerSource{
		host: host, root: root, runtime: runtime,
		File:       bolt.File{Host: host, Path: path},
		networks:   Networks{Engine: DockerName, Title: dockerTitle, Path: path},
		containers: dockerContainers{host: host, dir: filepath.Join(root, "containers"), known: map[string]dockerVersion{}},
	}
}

// Places implements ipam.FileSource.
func (s *dockerSource) Places() []string { return []string{filepath.Dir(s.Path), s.containers.dir} }

// Find implements ipam.FileSource.
func (s *dockerSource) Find(time.Time) (again bool) {
	s.hidden, s.used = s.host.Visible(s.root), false
	if dir, _, err := s.host.OpenDir(s.runtime); err == nil {
		s.used = true
		_ = dir.Close()
	}
	return false
}

// Event implements ipam.FileSource.
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
	changed, again, err := s.File.Read(r, func(db *bolt.DB, written time.Time) error {
		networks, err := parseDocker(db)
		if err == nil {
			s.networks.Put(networks, written, r.Now, r.Watches[filepath.Dir(s.Path)])
		}
		return err
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.networks.Vanish(r.Now)
	case errors.Is(err, os.ErrPermission):
		s.networks.Fail(fmt.Errorf("%w: give the agent's user read access to it", err))
	case err != nil:
		s.networks.Fail(err)
	}
	return again || changed && err == nil
}

// Pools implements ipam.FileSource.
func (s *dockerSource) Pools() []*ipam.FilePool { return s.networks.Pools() }

// Containers implements ipam.ContainerSource.
func (s *dockerSource) Containers() []*ipam.Container { return s.containers.list() }

// Problems implements ipam.FileSource.
func (s *dockerSource) Problems() []string {
	problems := s.networks.Problems()
	if s.hidden != nil && s.used {
		problems = append(problems, fmt.Sprintf("cannot read the networks and containers of %s: %s", dockerTitle, s.hidden))
	}
	if s.containers.fault != nil {
		problems = append(problems, fmt.Sprintf("cannot read %d of the containers of %s in %s: %s", s.containers.faults, dockerTitle, s.containers.dir, ipam.OneLine(s.containers.fault)))
	}
	return problems
}
