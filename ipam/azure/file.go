package azure

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// A stateFile is a file with the whole state of one program, and the pools that it leads to.
type stateFile struct {
	path  string
	parse func(data []byte) (content, error)
	host  ipam.Host
	// plugins are the types of the IPAM plugins whose networks the file serves.
	plugins []string

	stale   bool // it must be read again
	version [sha256.Size]byte
	read    bool   // its current version was read
	invalid string // a record without a valid address; empty if there is none
	pools   []*pool
	losses
}

// A pool has allocations of a file. The second pool of a file has those of addresses that are
// allocated twice: an address has one allocation in a pool.
type pool struct {
	ipam.FilePool
	current map[netip.Addr]*ipam.FileAllocation
}

// losses are the records that were lost.
type losses struct {
	lostAt  time.Time
	lost    int
	missing map[netip.Addr]string // those that are not restored yet: containers by address
}

const (
	// maxFileSize limits the size of a file. A file with 250 pods has less than 1 MiB.
	maxFileSize = 16 << 20
	// emptiedAtOnce is the number of records from which their disappearance in one version of a file is
	// a loss: each DEL removes one.
	emptiedAtOnce = 2
	// second is appended to the path of a file in the name of its second pool.
	second = "#2"
)

// update reads the file. It returns true if it is to be called again soon. network is the network
// that the file serves, and watch the state of its directory.
func (f *stateFile) update(now time.Time, network string, watch ipam.Watch) (again bool) {
	f.stale = false
	data, written, err := f.host.ReadFile(f.path, false, maxFileSize)
	version := sha256.Sum256(data)
	if err == nil && (!f.read || version != f.version) {
		var c content
		if c, err = f.parse(data); err == nil {
			f.put(&c, written, now)
			f.read, f.version = true, version
		} else if ipam.BeingWritten(written, now) {
			return true
		}
	}
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, errEmpty):
		f.vanish(now)
	case err != nil:
		f.fail(err)
	}
	f.describe(network, watch)
	return false
}

// describe sets what the content of the file does not say.
func (f *stateFile) describe(network string, watch ipam.Watch) {
	for i, p := range f.pools {
		if i == 0 { // the second pool only shows what is allocated twice
			p.Network, p.LostAt, p.Lost = network, f.lostAt, f.lost
		}
		switch {
		case f.read && watch.Err != nil:
			p.State = ipam.Stale
			p.Problem = fmt.Sprintf("cannot watch %s for changes (%s), reading it every %s instead: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances",
				filepath.Dir(f.path), ipam.OneLine(watch.Err), ipam.CheckEvery)
		case f.read:
			p.State, p.Problem = ipam.Known, ""
			if i == 0 && f.invalid != "" {
				p.Problem = f.invalid + " has no valid address"
			}
		}
	}
}

// put records the content of the file.
func (f *stateFile) put(c *content, written, now time.Time) {
	first, rest := c.split()
	if had := f.allocations(); len(first) == 0 && len(had) >= emptiedAtOnce {
		f.lose(had, now)
	}
	if len(f.pools) == 0 {
		f.pools = []*pool{newPool(f.path)}
	}
	p := f.pools[0]
	p.put(first, f.since(written))
	p.Ranges, f.invalid = c.ranges, c.invalid
	switch {
	case len(rest) == 0:
		f.pools = f.pools[:1]
	case len(f.pools) == 1:
		f.pools = append(f.pools, newPool(f.path+second))
	}
	if len(rest) > 0 {
		f.pools[1].put(rest, f.since(written))
	}
	f.restore(first)
}

// since returns when allocations that are new in the file were made. It is not known for the first
// version that is read.
func (f *stateFile) since(written time.Time) time.Time {
	if !f.read {
		return time.Time{}
	}
	return written
}

// allocations returns the allocations of the first pool.
func (f *stateFile) allocations() map[netip.Addr]*ipam.FileAllocation {
	if len(f.pools) == 0 {
		return nil
	}
	return f.pools[0].current
}

// vanish records that the file is missing or empty. Its records are lost; if it had none, it is as if
// it had never existed.
func (f *stateFile) vanish(now time.Time) {
	if had := f.allocations(); len(had) > 0 {
		f.lose(had, now)
	}
	f.read = false
	if f.lost == 0 {
		f.pools = nil
		return
	}
	f.pools = f.pools[:1]
	p := f.pools[0]
	p.put(nil, time.Time{})
	p.State, p.Problem = ipam.Missing, "the file "+f.path+" was removed or emptied"
}

// fail records that the file cannot be read. Its allocations are not known, and not lost.
func (f *stateFile) fail(err error) {
	f.read = false
	if len(f.pools) == 0 {
		f.pools = []*pool{newPool(f.path)}
	}
	f.pools = f.pools[:1]
	p := f.pools[0]
	p.put(nil, time.Time{})
	p.State, p.Problem = ipam.Unreadable, ipam.OneLine(err)
	if errors.Is(err, os.ErrPermission) {
		p.Problem += ": give the agent's user read access to it"
	}
}

// drop forgets the file.
func (f *stateFile) drop() { f.pools, f.read, f.losses = nil, false, losses{} }

// lose records that all allocations were lost at once.
func (f *stateFile) lose(had map[netip.Addr]*ipam.FileAllocation, now time.Time) {
	f.losses = losses{lostAt: now, lost: len(had), missing: map[netip.Addr]string{}}
	for a, al := range had {
		f.missing[a] = al.ContainerID
	}
}

// restore ends a loss once the file has all lost records again.
func (f *stateFile) restore(now map[netip.Addr]ipam.Allocation) {
	for a, al := range now {
		if was, lost := f.missing[a]; lost && was == al.ContainerID {
			delete(f.missing, a)
		}
	}
	if len(f.missing) == 0 {
		f.losses = losses{}
	}
}

func newPool(name string) *pool {
	return &pool{
		FilePool: ipam.FilePool{Pool: ipam.Pool{IPAM: Name, Name: name, Wiring: ipam.Wiring{Routed: true}}, Changes: map[netip.Addr]*ipam.FileAllocation{}},
		current:  map[netip.Addr]*ipam.FileAllocation{},
	}
}

// put sets the allocations of the pool. Those that are new were made at the given time.
func (p *pool) put(next map[netip.Addr]ipam.Allocation, since time.Time) {
	for a := range p.current {
		if _, still := next[a]; !still {
			delete(p.current, a)
			p.Changes[a] = nil
		}
	}
	for a, al := range next {
		made := &ipam.FileAllocation{Allocation: al, AllocatedAt: since}
		if had := p.current[a]; had != nil && sameHolder(&had.Allocation, &al) {
			if made.AllocatedAt = had.AllocatedAt; *made == *had {
				continue
			}
		}
		p.current[a], p.Changes[a] = made, made
	}
}
