package awsvpc

import (
	"errors"
	"fmt"
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

	recorded  map[netip.Addr]ipam.FileAllocation // as last read
	published map[netip.Addr]ipam.FileAllocation
	changed   bool // published may differ from recorded
	// lost has the containers of the allocations that disappeared with the file, by address.
	lost map[netip.Addr]string
}

// maxFileSize limits the size of a checkpoint. An allocation takes about 250 bytes.
const maxFileSize = 8 << 20

func newFile(path string, host ipam.Host) *file {
	f := &file{host: host, stale: true, changed: true, published: map[netip.Addr]ipam.FileAllocation{}}
	f.IPAM, f.Name, f.Network = Name, path, networkName
	// Each pod has a veth of its own, and the node routes to it.
	f.Plugin, f.Routed = pluginType, true
	f.State = ipam.Reading
	f.Changes = map[netip.Addr]*ipam.FileAllocation{}
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
	f.State, f.Problem = ipam.Known, c.invalid
	if watch.Err != nil {
		f.State = ipam.Stale
		f.Problem = fmt.Sprintf("cannot watch %s for changes (%s), reading it every %s instead: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances",
			filepath.Dir(f.Name), ipam.OneLine(watch.Err), ipam.CheckEvery)
	}
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
	f.State, f.Problem = ipam.Unreadable, ipam.OneLine(err)
	if errors.Is(err, os.ErrPermission) {
		f.Problem += ": give the agent's user read access to it"
	}
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

// publish puts into Changes what differs from the allocations that were published. The addresses of
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
	for a := range f.published {
		if _, stays := next[a]; !stays {
			f.Changes[a] = nil
		}
	}
	for a, al := range next {
		if was, there := f.published[a]; !there || was != al {
			f.Changes[a] = &al
		}
	}
	f.published = next
}
