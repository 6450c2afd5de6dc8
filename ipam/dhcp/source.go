package dhcp

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// MaxFile limits the size of a file. A lease takes about 100 bytes.
const MaxFile = 16 << 20

// A Location is where one DHCP server keeps its records.
type Location struct {
	// Path identifies the server: its lease file, or the directory with its lease files.
	Path string
	// Config is the file with the ranges; empty if there is none.
	Config string
	// Read reads the server's files. The error is os.ErrNotExist if there is no lease file.
	Read func() (Content, error)
}

// Source reads the files of all servers of one kind. It implements ipam.FileSource.
type Source struct {
	host  ipam.Host
	ipam  string
	title string
	// list returns the directories to watch, and the servers.
	list func() ([]string, []Location)

	places   []string
	devices  []ipam.Device      // nil until they are needed
	servers  map[string]*server // by path
	unlisted bool               // servers may have appeared
	stale    bool               // files may have changed
}

// NewSource returns a source that has read nothing yet. title is the name of the kind of servers in
// sentences.
func NewSource(host ipam.Host, name, title string, list func() ([]string, []Location)) *Source {
	return &Source{host: host, ipam: name, title: title, list: list}
}

// Places implements ipam.FileSource.
func (s *Source) Places() []string { return s.places }

// Find implements ipam.FileSource.
func (s *Source) Find(time.Time) (again bool) {
	s.devices = nil
	s.find()
	return false
}

func (s *Source) find() {
	var at []Location
	s.places, at = s.list()
	before := s.servers
	s.servers, s.unlisted = map[string]*server{}, false
	for _, one := range at {
		if s.servers[one.Path] = before[one.Path]; s.servers[one.Path] == nil {
			s.servers[one.Path] = &server{ipam: s.ipam}
		}
		s.servers[one.Path].at = one
	}
}

// Event implements ipam.FileSource.
func (s *Source) Event(path string, _ bool) (handled bool) {
	if !slices.Contains(s.places, filepath.Dir(path)) {
		return false
	}
	s.unlisted, s.stale = true, true
	return true
}

// Read implements ipam.FileSource. It reads all files of all servers, because they are few and small.
func (s *Source) Read(r ipam.FileRead) (again bool) {
	if !r.All && !r.Lost && !s.stale {
		return false
	}
	if s.stale = false; s.unlisted {
		s.find()
	}
	for _, one := range s.servers {
		if c, err := one.at.Read(); err == nil {
			if s.devices == nil && len(one.leases)+len(c.Leases)+len(c.Reservations)+len(c.Ranges) > 0 {
				s.devices = s.host.Devices()
			}
			again = one.put(c, s.devices, r.Now) || again
		} else {
			again = one.fail(err, r.Now) || again
		}
	}
	return again
}

// Pools implements ipam.FileSource.
func (s *Source) Pools() (pools []*ipam.FilePool) {
	for _, one := range s.servers {
		for _, p := range one.pools {
			pools = append(pools, &p.FilePool)
		}
	}
	return pools
}

// Problems implements ipam.FileSource.
func (s *Source) Problems() (problems []string) {
	for _, path := range slices.Sorted(maps.Keys(s.servers)) {
		for _, p := range s.servers[path].pools {
			if p.State == ipam.Unreadable {
				problems = append(problems, fmt.Sprintf("cannot read the leases of %s in %s: %s", s.title, path, p.Problem))
				break
			}
		}
	}
	return problems
}
