package dhcp

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

const (
	// maxFile limits the size of a file. A lease takes about 100 bytes.
	maxFile = 16 << 20
	// maxAge is how long files that have not changed are not read again.
	maxAge = 24 * time.Hour
)

// A location is where one DHCP server keeps its records.
type location struct {
	// Path identifies the server: its lease file, or the directory with its lease files.
	Path string
	// Config is the file with the ranges; empty if there is none.
	Config string
	// Read reads the server's files. The error is os.ErrNotExist if there is no lease file.
	Read func() (content, error)
}

// source reads the files of all servers of one kind. It implements ipam.FileSource.
type source struct {
	host  ipam.Host
	ipam  string
	title string
	// list returns the directories to watch, and the servers.
	list func() ([]string, []location)
	// versions are those of the files that were read; nil if that is not known.
	versions versions

	places   []string
	devices  []ipam.Device      // nil until they are needed
	servers  map[string]*server // by path
	unlisted bool               // servers may have appeared
	stale    bool               // files may have changed
	ends     time.Time          // when a lease ends, or something missing may be gone; zero for at once
}

// newSource returns a source that has read nothing yet. title is the name of the kind of servers in
// sentences.
func newSource(host ipam.Host, name, title string, list func() ([]string, []location), read versions) *source {
	return &source{host: host, ipam: name, title: title, list: list, versions: read}
}

// Places implements ipam.FileSource.
func (s *source) Places() []string { return s.places }

func (s *source) Find(now time.Time) (again bool) {
	devices := s.devices
	if s.devices = nil; devices != nil {
		s.devices = s.host.Devices()
	}
	if s.versions == nil || !now.Before(s.ends) || s.versions.changed() || !reflect.DeepEqual(devices, s.devices) {
		clear(s.versions)
		s.find()
		s.stale = true
	}
	return false
}

func (s *source) find() {
	var at []location
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

func (s *source) Event(path string, _ bool) (handled bool) {
	if !slices.Contains(s.places, filepath.Dir(path)) {
		return false
	}
	s.unlisted, s.stale = true, true
	return true
}

// Read implements ipam.FileSource. It reads all files of all servers, because they are few.
func (s *source) Read(r ipam.FileRead) (again bool) {
	if !r.Lost && !s.stale {
		return false
	}
	if s.stale = false; s.unlisted || r.Lost {
		s.find()
	}
	s.ends = r.Now.Add(maxAge)
	for _, one := range s.servers {
		if c, err := one.at.Read(); err == nil {
			if s.devices == nil && len(one.leases)+len(c.Leases)+len(c.Reservations)+len(c.Ranges) > 0 {
				s.devices = s.host.Devices()
			}
			again = one.put(c, s.devices, r.Now) || again
		} else {
			again = one.fail(err, r.Now) || again
			s.ends = time.Time{}
		}
		for _, l := range one.leases {
			if !l.Expires.IsZero() && l.Expires.Before(s.ends) {
				s.ends = l.Expires
			}
		}
	}
	if again {
		s.ends = time.Time{}
	}
	return again
}

func (s *source) Pools() (pools []*ipam.FilePool) {
	for _, one := range s.servers {
		for _, p := range one.pools {
			pools = append(pools, p)
		}
	}
	return pools
}

func (s *source) Problems() (problems []string) {
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

// versions are the files and directories that were read, as they were before; nil for those that did not exist.
type versions map[string]os.FileInfo

func (v versions) note(path string) { v[path], _ = os.Stat(path) }

func (v versions) changed() bool {
	for path, had := range v {
		if info, err := os.Stat(path); (had != nil || err == nil) && !ipam.SameVersion(info, had) {
			return true
		}
	}
	return false
}

type nodeFiles struct {
	versions
	host ipam.Host
	root string // precedes all paths; empty except in tests
}

func newNodeFiles(host ipam.Host, cfg ipam.FilesConfig) nodeFiles {
	f := nodeFiles{versions: versions{}, host: host}
	if len(cfg.Dirs) > 0 {
		f.root = cfg.Dirs[0]
	}
	return f
}

// maxEntries limits the number of entries of a directory that are read.
const maxEntries = 1024

// names returns the names of the entries of a directory of the node, sorted; none if it does not exist. If it returns an
// error, there may be more.
func (f nodeFiles) names(dir string) (names []string, err error) {
	f.note(dir)
	if f.host.Visible(dir) != nil {
		return nil, nil
	}
	entries, err := ipam.Entries(f.host, dir, maxEntries)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// exists reports whether there is a file or directory.
func (f nodeFiles) exists(path string) bool {
	f.note(path)
	return f.versions[path] != nil
}

// errLost is that a server runs whose lease file does not exist.
var errLost = fmt.Errorf("%w, but the server runs", os.ErrNotExist)

// missing returns why a lease file is missing. A server makes it when it starts, and writes the file with its process ID,
// which it removes when it ends: without that one, it is normal. named is set if a configuration names the lease file.
func (f nodeFiles) missing(path string, named bool, pids ...string) error {
	running := slices.ContainsFunc(pids, f.exists)
	switch hidden := f.host.Visible(filepath.Dir(path)); {
	case hidden != nil && (named || running):
		return hidden
	case running:
		return errLost
	}
	return os.ErrNotExist
}

func (f nodeFiles) file(path string) ([]byte, error) {
	data, _, err := f.dated(path)
	return data, err
}

// dated returns the content of a file of the node, and when it was last written.
func (f nodeFiles) dated(path string) (data []byte, written time.Time, err error) {
	f.note(path)
	if err := f.host.Visible(filepath.Dir(path)); err != nil {
		return nil, written, fmt.Errorf("%w: %w", os.ErrNotExist, err) // the file there is the container's own
	}
	return f.host.ReadFile(path, true, maxFile)
}
