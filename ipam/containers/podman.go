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

// PodmanName is the name of podman in the API.
const PodmanName = "podman"

// Podman describes the networks of podman with netavark: the addresses that podman has given to the
// containers of root, and the names of the containers. podman's socket is not used.
//
// podman reads and writes its database with each start and each end of a container. It frees an address
// when the container stops, and a container that starts again gets the next free one.
var Podman = engine(PodmanName, newPodman)

// The default directories of the database, of the configurations of networks, and of the storage.
const (
	databaseDir = "/run/containers/networks"
	configDir   = "/etc/containers/networks"
	storageDir  = "/var/lib/containers/storage"
)

// A podmanSource reads podman's database of addresses, the configurations of its networks and the names of
// its containers.
type podmanSource struct {
	source
	configDir  string
	containers podmanContainers
	given      map[string]map[netip.Addr]string // by ID of the container
	fault      error                            // why the containers cannot be read
	unknown    error                            // why the configurations of networks are not visible
}

// newPodman returns a source that has read nothing yet. The directories of the configuration, if there
// are any, are those of the database, of the configurations of networks, and of the storage.
func newPodman(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	dirs := []string{databaseDir, configDir, storageDir}
	if len(cfg.Dirs) == len(dirs) {
		dirs = cfg.Dirs
	}
	return &podmanSource{
		source:     newSource(host, PodmanName, filepath.Join(dirs[0], "ipam.db")),
		configDir:  dirs[1],
		containers: podmanContainers{host: host, storage: dirs[2], known: map[string]podmanContainer{}},
	}
}

// Places implements ipam.FileSource. The containers are watched only where podman allocates addresses.
func (s *podmanSource) Places() []string {
	places := []string{filepath.Dir(s.Path)}
	if len(s.Pools()) > 0 {
		places = append(append(places, s.configDir), s.containers.dirs...)
	}
	return places
}

// Find implements ipam.FileSource.
func (s *podmanSource) Find(time.Time) (again bool) {
	s.hidden, s.unknown = s.host.Visible(filepath.Dir(s.Path)), s.host.Visible(s.configDir)
	if len(s.Pools()) > 0 {
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
	again, err := s.read(r, func(db *bolt.DB) ([]ipam.PoolRecords, error) {
		known, fault := configs(s.host, s.configDir)
		if fault != nil {
			s.Changed() // read it again
		}
		found, err := parsePodman(db, known, fault)
		if err != nil {
			return nil, err
		}
		s.given = map[string]map[netip.Addr]string{}
		for _, n := range found {
			for a, al := range n.Allocations {
				if s.given[al.ContainerID] == nil {
					s.given[al.ContainerID] = map[netip.Addr]string{}
				}
				s.given[al.ContainerID][a] = ipam.EngineNetwork(PodmanName, n.Name)
			}
		}
		return found, nil
	})
	if errors.Is(err, os.ErrNotExist) {
		s.given = nil
	}
	if len(s.Pools()) == 0 {
		s.fault = nil
	} else if r.All || r.Lost {
		s.fault = s.containers.read()
	}
	s.containers.give(s.given)
	return again
}

// Containers implements ipam.ContainerSource.
func (s *podmanSource) Containers() []*ipam.Container { return s.containers.found }

func (s *podmanSource) Problems() []string {
	problems := s.problems()
	if undescribed := func(p *ipam.FilePool) bool { return p.State == ipam.Known && p.Plugin == "" }; s.unknown != nil && slices.ContainsFunc(s.Pools(), undescribed) {
		problems = append(problems, fmt.Sprintf("cannot read the ranges of %s's networks: %s", PodmanName, s.unknown))
	}
	if s.fault != nil {
		problems = append(problems, fmt.Sprintf("cannot read the containers of %s: %s", PodmanName, ipam.OneLine(s.fault)))
	}
	return problems
}
