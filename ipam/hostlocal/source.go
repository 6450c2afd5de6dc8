package hostlocal

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// A source reads CNI configurations, and the directories in which host-local keeps its allocations.
type source struct {
	host     ipam.Host
	parents  []string // directories with a directory for each network
	results  string   // libcni's cache of results
	confs    cniConfs
	dirs     map[string]*directory // by path
	problems []string              // of configurations and of the parent directories
}

// newSource returns a source that has read nothing yet.
func newSource(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	return &source{host: host, parents: cfg.Dirs, results: cfg.CNIResults, confs: cniConfs{dirs: cfg.CNIConfig, host: host}, dirs: map[string]*directory{}}
}

// Places implements ipam.FileSource.
func (s *source) Places() []string {
	places := slices.AppendSeq(slices.Concat(s.confs.dirs, s.parents), maps.Keys(s.dirs))
	for _, env := range s.confs.envs {
		places = append(places, filepath.Dir(env))
	}
	return places
}

func (s *source) Event(path string, removed bool) (handled bool) {
	dir, name := filepath.Split(path)
	if d := s.dirs[filepath.Clean(dir)]; d != nil {
		d.event(name, removed)
		return true
	}
	if d := s.dirs[path]; d != nil {
		d.stale = true
	}
	return false
}

func (s *source) Find(now time.Time) (again bool) {
	networks, problems, again := s.confs.read(now)
	dirs := slices.Collect(maps.Keys(networks))
	if err := s.host.Visible(s.parents...); err != nil {
		problems = append(problems, fmt.Sprintf("cannot read the allocations of host-local in %s: %s", strings.Join(s.parents, " and "), err))
	}
	// A network that no file configures has one directory: since 1.9.4, that of Nomad is in /run/cni, where it copies the
	// records, and the former one remains.
	latest, where := map[string]os.FileInfo{}, map[string]string{} // by network
	for _, parent := range s.parents {
		found, err := s.networkDirs(parent)
		if err != nil {
			problems = append(problems, fmt.Sprintf("cannot read the allocations of host-local (%s): give the agent's user read access to that directory, or mount it",
				ipam.OneLine(err)))
		}
		for _, info := range found {
			name, dir := info.Name(), filepath.Join(parent, info.Name())
			_, named := networks[dir]
			switch was := latest[name]; {
			case named:
			case was == nil || was.ModTime().Before(info.ModTime()):
				delete(s.dirs, where[name])
				latest[name], where[name] = info, dir
			default:
				delete(s.dirs, dir)
			}
		}
	}
	dirs = slices.AppendSeq(dirs, maps.Values(where))
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if s.dirs[dir] != nil {
			continue
		}
		d := newDirectory(dir, s.host)
		d.found = slices.Contains(s.parents, filepath.Dir(dir))
		s.dirs[dir] = d
	}
	for dir, d := range s.dirs {
		d.configure(networks[dir])
	}
	s.problems = problems
	return again
}

// networkDirs returns the subdirectories whose names are valid network names. A missing
// directory has none.
func (s *source) networkDirs(path string) (found []os.FileInfo, err error) {
	const most = 4096
	entries, err := ipam.Entries(s.host, path, most)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && isNetworkName(e.Name()) {
			found = append(found, info)
		}
	}
	return found, err
}

func (s *source) Read(r ipam.FileRead) (again bool) {
	for path, d := range s.dirs {
		was := d.State
		d.watch = r.Watches[path]
		if d.stale || r.Lost || r.All && (d.State != ipam.Known || d.watch.Err != nil || !d.same()) {
			d.read(r.Now)
		} else if len(d.touched) > 0 {
			d.readTouched(r.Now)
		}
		if r.All && d.found && d.Config == "" { // Find has not found its configuration
			if n, ok := s.confs.passed(s.results, d); ok {
				d.passed = n
			}
			d.configure(d.passed)
		}
		d.judgeLoss(r.Now)
		again = again || d.State != was && d.State == ipam.Missing // more may be about to disappear
		if d.Config == "" && (!d.found || d.State == ipam.Missing && d.LostAt.IsZero()) {
			delete(s.dirs, path)
		}
	}
	return again
}

func (s *source) Pools() (pools []*ipam.FilePool) {
	for _, d := range s.dirs {
		if !d.foreign() {
			pools = append(pools, &d.FilePool)
		}
	}
	return pools
}

func (s *source) Problems() []string {
	problems := slices.Clone(s.problems)
	for _, path := range slices.Sorted(maps.Keys(s.dirs)) {
		d := s.dirs[path]
		if d.State == ipam.Unreadable {
			problems = append(problems, fmt.Sprintf("cannot read the allocations of host-local in %s: %s", path, d.Problem))
		}
		if d.unread > 0 {
			problems = append(problems, fmt.Sprintf("the owners of %d allocations of host-local, such as that of %s, are unknown, because their files are damaged, not regular, "+
				"or cannot be read: run the agent as root", d.unread, d.anyUnread()))
		}
	}
	return problems
}
