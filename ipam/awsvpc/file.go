package awsvpc

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// A file is one checkpoint, which is a pool. Its name is its path.
type file struct {
	ipam.FilePool
	host  ipam.Host
	stale bool // it has to be read
	seen  bool // it existed

	recorded map[netip.Addr]ipam.FileAllocation // as last read
	changed  bool                               // they may not be published
	// lost has the containers of the allocations that disappeared with the file, by address.
	lost map[netip.Addr]string
}

// maxFileSize limits the size of a checkpoint. An allocation takes about 250 bytes.
const maxFileSize = 8 << 20

func newFile(path string, host ipam.Host) *file {
	f := &file{FilePool: *ipam.NewFilePool(Name, path), host: host, stale: true, changed: true}
	f.Network = networkName
	// Each pod has a veth of its own, and the node routes to it.
	f.Plugin, f.Routed = pluginType, true
	f.State = ipam.Reading
	return f
}

// read reads the file. It returns true if it has to be read again soon.
func (f *file) read(dir error, watch ipam.Watch, now time.Time) (again bool) {
	f.stale, f.changed = false, true
	if dir != nil {
		f.fail(dir, now)
		return false
	}
	data, written, err := f.host.ReadFile(f.Name, false, maxFileSize)
	if err != nil {
		f.fail(err, now)
		return false
	}
	f.seen = true
	c, err := parse(data, written)
	if err != nil {
		if ipam.BeingWritten(written, now) {
			f.stale = true
			return true
		}
		f.fail(err, now)
		return false
	}
	f.Succeed(c.invalid, filepath.Dir(f.Name), watch)
	f.recorded = c.allocations
	if c.network != "" {
		f.Network = c.network
	}
	for a, container := range f.lost {
		if al, there := c.allocations[a]; there && al.ContainerID == container {
			// ipamd has written what it has in memory, or the file was restored.
			f.lost, f.Lost, f.LostAt = nil, 0, time.Time{}
			break
		}
	}
	return false
}

// fail records that the file cannot be read.
func (f *file) fail(err error, now time.Time) {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, ipam.ErrOrphaned) {
		f.lose(now)
	}
	f.recorded = nil
	if errors.Is(err, os.ErrNotExist) {
		f.State, f.Problem = ipam.Missing, "the file does not exist: it was removed, or its directory was"
		return
	}
	f.State, f.Problem = ipam.Unreadable, ipam.Unreadably(err)
}

// lose records that the file was removed with all of its allocations. ipamd itself never removes it.
func (f *file) lose(now time.Time) {
	if len(f.recorded) == 0 {
		return
	}
	f.lost, f.Lost, f.LostAt = map[netip.Addr]string{}, len(f.recorded), now
	for a, al := range f.recorded {
		f.lost[a] = al.ContainerID
	}
}

// publish sets the allocations of the pool. The addresses of
// branch ENIs are reserved, so that they are not missed in the checkpoint, and have no holder in it,
// so that they are not leaked.
func (f *file) publish(branches map[string][]netip.Addr) {
	f.changed = false
	next := make(map[netip.Addr]ipam.FileAllocation, len(f.recorded))
	for _, addresses := range branches {
		for _, a := range addresses {
			next[a] = ipam.FileAllocation{Allocation: ipam.Allocation{Address: a}}
		}
	}
	maps.Copy(next, f.recorded)
	f.Set(next)
}
