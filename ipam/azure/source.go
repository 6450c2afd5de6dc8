package azure

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// A source reads the state files of Azure CNI (platform/os_linux.go at 0be7e3d, cns/service/main.go):
//
//   - azure-vnet-ipam.json and azure-vnet-ipamv6.json: the addresses that Azure has assigned to the
//     node, and the containers that azure-vnet-ipam has given them to.
//   - azure-vnet.json: the endpoints of azure-vnet. azure-cns restores its allocations from it, unless
//     it keeps them itself.
//   - azure-cns/azure-endpoints.json: the endpoints of azure-cns, if it keeps them. azure-vnet.json
//     is not used then, and may be left over.
//   - azure-cns.db: the same endpoints, if azure-cns keeps its state in a database
//     (StateStoreBackend "bolt"). azure-endpoints.json is not used then, and remains as a backup.
type source struct {
	host      ipam.Host
	run       string // directory of the files
	confDirs  []string
	networks  map[string]string // by type of the IPAM plugin
	ipams     []*stateFile
	vnet, cns *stateFile
	database  bolt.File
	state     *stateFile // what the database says
	// inDatabase is set if azure-cns keeps its state in the database.
	inDatabase bool
	hidden     error // why the directory of the files is not visible
}

// The default directories. /var/run is a link to /run.
const (
	runDir   = "/run"
	stateDir = "/var/lib/azure-network"
)

// newSource returns a source that has read nothing yet. The directories of the configuration, if
// there are any, are that of the files and that of azure-cns's database.
func newSource(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	run, state := runDir, stateDir
	if len(cfg.Dirs) == 2 {
		run, state = cfg.Dirs[0], cfg.Dirs[1]
	}
	file := func(name string, parse func([]byte) (content, error), plugins ...string) *stateFile {
		return &stateFile{Document: ipam.Document{IPAM: Name, Path: filepath.Join(run, name)}, parse: parse, host: host, plugins: plugins}
	}
	database := filepath.Join(state, "azure-cns.db")
	return &source{
		host: host, run: run, confDirs: cfg.CNIConfig, database: bolt.File{Host: host, Path: database},
		ipams: []*stateFile{file("azure-vnet-ipam.json", parseIPAM, vnetIPAM), file("azure-vnet-ipamv6.json", parseIPAM, vnetIPAMv6)},
		vnet:  file("azure-vnet.json", parseVnet, cns),
		cns:   file("azure-cns/azure-endpoints.json", parseEndpoints, cns, delegated),
		state: &stateFile{Document: ipam.Document{IPAM: Name, Path: database}, host: host, plugins: []string{cns, delegated}},
	}
}

func (s *source) files() []*stateFile { return append(slices.Clone(s.ipams), s.vnet, s.cns, s.state) }

// Places implements ipam.FileSource.
func (s *source) Places() []string {
	return append([]string{s.run, filepath.Dir(s.cns.Path), filepath.Dir(s.state.Path)}, s.confDirs...)
}

// Event implements ipam.FileSource. Other files in the directories, which have the state of other
// programs, are known not to matter.
func (s *source) Event(path string, _ bool) (handled bool) {
	if path == s.state.Path {
		s.database.Changed()
		return true
	}
	for _, f := range s.files() {
		if f.Path == path {
			f.stale = true
			return true
		}
	}
	own, dir := filepath.Dir(s.cns.Path), filepath.Dir(path)
	return path != own && (dir == s.run || dir == own || dir == filepath.Dir(s.state.Path))
}

// Find reads which networks use the IPAM plugins of Azure.
func (s *source) Find(time.Time) (again bool) {
	before, unread := s.networks, false
	s.networks = map[string]string{}
	for _, f := range ipam.ConfFiles(s.host, s.confDirs) {
		unread = unread || f.Err != nil // host-local's source reports it
		for kind, network := range networks(f.Data) {
			if s.networks[kind] == "" { // the first file counts
				s.networks[kind] = network
			}
		}
	}
	for kind, network := range before {
		if unread && s.networks[kind] == "" {
			s.networks[kind] = network
		}
	}
	s.hidden = s.host.Visible(s.run)
	return false
}

func (s *source) Read(r ipam.FileRead) (again bool) {
	if s.hidden != nil {
		return false // the files there are the container's own
	}
	due := func(f *stateFile) bool { return f.stale || r.All || r.Lost }
	update := func(f *stateFile) {
		again = f.update(r.Now, s.network(f), r.Watches[filepath.Dir(f.Path)]) || again
	}
	for _, f := range s.ipams {
		if due(f) {
			update(f)
		}
	}
	again = s.readDatabase(r) || again
	if s.inDatabase {
		s.cns.Forget()
		if slices.ContainsFunc(s.state.Pools(), func(p *ipam.FilePool) bool { return p.Allocated() > 0 }) || !s.state.Read {
			s.vnet.Forget()
			return again
		}
		// No pod runs, or azure-vnet keeps the endpoints.
		if due(s.vnet) {
			update(s.vnet)
		}
		if len(s.vnet.Pools()) > 0 {
			s.state.Forget()
		}
		return again
	}
	if !due(s.cns) && !due(s.vnet) {
		return again
	}
	if update(s.cns); len(s.cns.Pools()) > 0 {
		s.vnet.Forget() // it is not used
	} else {
		update(s.vnet)
	}
	return again
}

// network returns the network that a file serves; empty if it is not known.
func (s *source) network(f *stateFile) string {
	for _, kind := range f.plugins {
		if n := s.networks[kind]; n != "" {
			return n
		}
	}
	return ""
}

// readDatabase reads the database of azure-cns. It returns true if it is to be called again soon.
func (s *source) readDatabase(r ipam.FileRead) (again bool) {
	// azure-cns on this node may keep its state in a database, or did so.
	may := len(s.state.Pools()) > 0
	if _, err := os.Lstat(s.state.Path); !may && err == nil {
		_, err := os.Lstat(s.cns.Path)
		may = err == nil || s.network(s.cns) != "" || len(s.cns.Pools()) > 0
	}
	if !may {
		s.inDatabase = false
		s.state.Forget()
		s.database.Changed() // for when it may
		return false
	}
	changed, again, err := s.database.Read(r, func(db *bolt.DB, written time.Time) error {
		c, err := parseDatabase(db)
		if err == nil {
			s.state.put(&c, written, r.Now)
		}
		return err
	})
	switch {
	case errors.Is(err, errRolledBack):
		s.inDatabase = false
		s.state.Forget()
	case err != nil:
		s.inDatabase = !errors.Is(err, os.ErrNotExist)
		s.state.fail(err, r.Now)
	case changed:
		s.inDatabase = true
	}
	s.state.describe(s.network(s.state), r.Watches[filepath.Dir(s.state.Path)])
	return again
}

func (s *source) Pools() (pools []*ipam.FilePool) {
	for _, f := range s.files() {
		pools = append(pools, f.Pools()...)
	}
	return pools
}

func (s *source) Problems() (problems []string) {
	if s.hidden != nil && len(s.networks) > 0 {
		named := slices.Sorted(maps.Values(s.networks))[0]
		problems = append(problems, fmt.Sprintf("cannot read the allocations of Azure CNI in %s, which allocates the addresses of network %s: %s", s.run, named, s.hidden))
	}
	for _, p := range s.Pools() {
		switch {
		case p.State == ipam.Unreadable:
			problems = append(problems, fmt.Sprintf("cannot read the allocations of Azure CNI in %s: %s", p.Name, p.Problem))
		case p.State == ipam.Known && p.Problem != "":
			problems = append(problems, fmt.Sprintf("cannot read all allocations of Azure CNI in %s: %s", p.Name, p.Problem))
		}
	}
	return problems
}
