package awsvpc

import (
	"errors"
	"net/netip"
	"os"
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

// read reads the file. It returns true if it has to be read again soon. ipamd itself never removes the file: its
// allocations are lost then.
func (f *file) read(dir error, watch ipam.Watch, now time.Time) (again bool) {
	f.stale, f.changed = false, true
	var c checkpoint
	err := dir
	if err == nil {
		var data []byte
		var written time.Time
		if data, written, err = f.host.ReadFile(f.Name, false, maxFileSize); err == nil {
			f.seen = true
			if c, err = parse(data, written); err != nil && ipam.BeingWritten(written, now) {
				f.stale = true
				return true
			}
		}
	}
	if err != nil {
		missing := errors.Is(err, os.ErrNotExist)
		if (missing || errors.Is(err, ipam.ErrOrphaned)) && len(f.recorded) > 0 {
			f.lost, f.Lost, f.LostAt = map[netip.Addr]string{}, len(f.recorded), now
			for a, al := range f.recorded {
				f.lost[a] = al.ContainerID
			}
		}
		f.recorded = nil
		if f.State, f.Problem = ipam.Unreadable, ipam.Unreadably(err); missing {
			f.State, f.Problem = ipam.Missing, "the file does not exist: it was removed, or its directory was"
		}
		return false
	}
	f.Succeed(c.invalid, watch)
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
