package containers

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// The default directories of the database, of the configurations of networks, and of the storage.
const (
	databaseDir = "/run/containers/networks"
	configDir   = "/etc/containers/networks"
	storageDir  = "/var/lib/containers/storage"
)

// A source reads podman's database of addresses, the configurations of its networks and the names of
// its containers.
type podmanSource struct {
	host ipam.Host
	bolt.File
	networks   Networks
	configDir  string
	containers podmanContainers
	given      map[string]map[netip.Addr]string // by ID of the container
	fault      error                            // why the containers cannot be read
	hidden     error                            // why the database is not visible
	unknown    error                            // why the configurations of networks are not visible
}

// newPodman returns a source that has read nothing yet. The directories of the configuration, if there
// are any, are those of the database, of the configurations of networks, and of the storage.
func newPodman(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	dirs := []string{databaseDir, configDir, storageDir}
	if len(cfg.Dirs) == len(dirs) {
		dirs = cfg.Dirs
	}
	path := filepath.Join(dirs[0], "ipam.db")
	return &podmanSource{
		host:       host,
		File:       bolt.File{Host: host, Path: path},
		networks:   Networks{Engine: PodmanName, Title: podmanTitle, Path: path},
		configDir:  dirs[1],
		containers: podmanContainers{host: host, storage: dirs[2], known: map[string]podmanContainer{}},
	}
}

// Places implements ipam.FileSource. The containers are watched only where podman allocates addresses.
func (s *podmanSource) Places() []string {
	places := []string{filepath.Dir(s.Path)}
	if len(s.networks.Pools()) > 0 {
		places = append(append(places, s.configDir), s.containers.dirs...)
	}
	return places
}

// Find implements ipam.FileSource.
func (s *podmanSource) Find(time.Time) (again bool) {
	s.hidden, s.unknown = s.host.Visible(filepath.Dir(s.Path)), s.host.Visible(s.configDir)
	if len(s.networks.Pools()) > 0 {
		s.containers.find()
	}
	return false
}

// Event implements ipam.FileSource. Each of the other files is written together with the database.
func (s *podmanSource) Event(path string, _ bool) (handled bool) {
	if path == s.Path {
		s.Changed()
		return true
	}
	for _, dir := range s.containers.dirs {
		if filepath.Dir(path) == dir {
			return true
		}
	}
	return filepath.Dir(path) == filepath.Dir(s.Path)
}

// Read implements ipam.FileSource. podman writes the namespace of a container after the database, so
// that the containers are read again a while later.
func (s *podmanSource) Read(r ipam.FileRead) (again bool) {
	if s.hidden != nil {
		return false // the files there are the container's own
	}
	changed, again, err := s.File.Read(r, func(db *bolt.DB, written time.Time) error {
		networks, err := parsePodman(db, configs(s.host, s.configDir))
		if err == nil {
			s.networks.Put(networks, written, r.Now, r.Watches[filepath.Dir(s.Path)])
			s.record(networks)
		}
		return err
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.networks.Vanish(r.Now)
		s.given = nil
	case errors.Is(err, os.ErrPermission):
		s.networks.Fail(fmt.Errorf("%w: give the agent's user read access to it", err))
	case err != nil:
		s.networks.Fail(err)
	}
	if (r.All || r.Lost) && len(s.networks.Pools()) > 0 {
		s.fault = s.containers.read()
	}
	s.containers.give(s.given)
	return again || changed && err == nil
}

// record records which addresses the containers have according to the database.
func (s *podmanSource) record(networks []Network) {
	s.given = map[string]map[netip.Addr]string{}
	for i := range networks {
		n := &networks[i]
		for a, al := range n.Allocations {
			if s.given[al.ContainerID] == nil {
				s.given[al.ContainerID] = map[netip.Addr]string{}
			}
			s.given[al.ContainerID][a] = ipam.EngineNetwork(PodmanName, n.Name)
		}
	}
}

// Pools implements ipam.FileSource.
func (s *podmanSource) Pools() []*ipam.FilePool { return s.networks.Pools() }

// Containers implements ipam.ContainerSource.
func (s *podmanSource) Containers() []*ipam.Container { return s.containers.found }

// Problems implements ipam.FileSource.
func (s *podmanSource) Problems() []string {
	problems := s.networks.Problems()
	if undescribed := func(p *ipam.FilePool) bool { return p.State == ipam.Known && p.Plugin == "" }; s.unknown != nil && slices.ContainsFunc(s.Pools(), undescribed) {
		problems = append(problems, fmt.Sprintf("cannot read the ranges of %s's networks: %s", podmanTitle, s.unknown))
	}
	if s.fault != nil {
		problems = append(problems, fmt.Sprintf("cannot read the containers of %s: %s", podmanTitle, ipam.OneLine(s.fault)))
	}
	return problems
}
