package awsvpc

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

const (
	// checkpointDir is the directory of ipamd's files, as Clean returns it.
	checkpointDir = "/run/aws-node"
	// networkName and pluginType are the network and the plugin in configName, which the DaemonSet
	// installs.
	networkName = "aws-cni"
	pluginType  = "aws-cni"
	configName  = "10-aws.conflist"
	// checkpointName is the checkpoint of the first network card. Those of the others are named
	// cardPrefix and their number.
	checkpointName = "ipam.json"
	cardPrefix     = "ipam-nic-"
	// maxEntries is larger than the number of files in the directory.
	maxEntries = 4096
)

// A source reads the checkpoints of ipamd.
type source struct {
	host     ipam.Host
	dir      string   // of the checkpoints
	configs  []string // directories of CNI configurations
	files    map[string]*file
	branches branchPods
	unopened error // why the directory cannot be read
}

// newSource returns a source that has read nothing yet.
func newSource(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	s := &source{
		host: host, dir: checkpointDir, configs: cfg.CNIConfig, files: map[string]*file{},
		branches: branchPods{host: host, dir: resultsDir, known: map[string][]netip.Addr{}, stale: map[string]bool{}},
	}
	if len(cfg.Dirs) > 0 {
		s.dir = cfg.Dirs[0]
	}
	return s
}

// Places implements ipam.FileSource. CNI results are watched only where the AWS VPC CNI is used.
func (s *source) Places() []string {
	if len(s.files) == 0 {
		return []string{s.dir}
	}
	return []string{s.dir, s.branches.dir}
}

func (s *source) Find(time.Time) (again bool) {
	names, err := s.checkpoints()
	config := "" // the CNI configuration of the AWS VPC CNI
	for _, dir := range s.configs {
		path := filepath.Join(dir, configName)
		if _, _, err := s.host.ReadFile(path, true, maxFileSize); err == nil {
			config = path
			break
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && (config != "" || s.host.Visible(s.dir) == nil) {
		names = []string{checkpointName} // the node uses the AWS VPC CNI: its pool is unreadable
	}
	s.unopened = err
	for _, name := range names {
		if path := filepath.Join(s.dir, name); s.files[path] == nil {
			f := &file{FilePool: *ipam.NewFilePool(Name, path), host: s.host, stale: true, changed: true}
			// Each pod has a veth of its own, and the node routes to it.
			f.Network, f.Plugin, f.Routed, f.State = networkName, pluginType, true, ipam.Reading
			s.files[path] = f
		}
	}
	for _, f := range s.files {
		f.Config = config
	}
	return false
}

// checkpoints returns the names of the checkpoints. The error is os.ErrNotExist if there is no
// directory.
func (s *source) checkpoints() (names []string, err error) {
	if err := s.host.Visible(s.dir); err != nil {
		return nil, err
	}
	entries, err := ipam.Entries(s.host, s.dir, maxEntries)
	for _, e := range entries {
		if isCheckpoint(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// isCheckpoint reports whether a file of the directory is a checkpoint.
func isCheckpoint(name string) bool {
	number, card := strings.CutPrefix(strings.TrimSuffix(name, ".json"), cardPrefix)
	return name == checkpointName || card && strings.HasSuffix(name, ".json") && number != "" && strings.Trim(number, "0123456789") == ""
}

// Event implements ipam.FileSource.
func (s *source) Event(path string, _ bool) (handled bool) {
	if f := s.files[path]; f != nil {
		f.stale = true
		return true
	}
	dir, name := filepath.Split(path)
	switch filepath.Clean(dir) {
	case s.dir:
		before, _, temporary := strings.Cut(name, ".tmp") // ipamd writes such a file before it renames it
		return temporary && isCheckpoint(before)
	case s.branches.dir:
		s.branches.stale[name] = true
		return true
	}
	return false
}

func (s *source) Read(r ipam.FileRead) (again bool) {
	for path, f := range s.files {
		if !f.stale && !r.All && !r.Lost {
			continue
		}
		again = f.read(s.unopened, r.Watches[s.dir], r.Now) || again
		if f.State == ipam.Missing && !f.seen {
			delete(s.files, path) // ipamd has not created it yet
		}
	}
	first := s.files[filepath.Join(s.dir, checkpointName)]
	if first == nil {
		clear(s.branches.stale)
		s.branches.fault = nil
	} else if s.branches.read(first.Network, r) {
		first.changed = true
	}
	for _, f := range s.files {
		if !f.changed {
			continue
		}
		// The addresses of branch ENIs are reserved, so that they are not missed in the checkpoint, and have no holder in it,
		// so that they are not leaked.
		f.changed = false
		next := make(map[netip.Addr]ipam.FileAllocation, len(f.recorded))
		if f == first {
			for _, addresses := range s.branches.known {
				for _, a := range addresses {
					next[a] = ipam.FileAllocation{Allocation: ipam.Allocation{Address: a}}
				}
			}
		}
		maps.Copy(next, f.recorded)
		f.Set(next)
	}
	return again
}

func (s *source) Pools() (pools []*ipam.FilePool) {
	for _, f := range s.files {
		pools = append(pools, &f.FilePool)
	}
	return pools
}

func (s *source) Problems() (problems []string) {
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		if f := s.files[path]; f.State == ipam.Unreadable {
			problems = append(problems, fmt.Sprintf("cannot read the allocations of the AWS VPC CNI in %s: %s", path, f.Problem))
		}
	}
	if err := s.branches.fault; err != nil {
		problems = append(problems, fmt.Sprintf("cannot read all CNI results of the AWS VPC CNI in %s, so that addresses of branch ENIs may be unknown: %s", s.branches.dir, ipam.Unreadably(err)))
	}
	return problems
}
