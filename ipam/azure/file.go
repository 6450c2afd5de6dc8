package azure

import (
	"crypto/sha256"
	"errors"
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
	// The second pool has the allocations of addresses that are allocated twice: an address has one
	// allocation in a pool.
	pools []*ipam.FilePool
}

const (
	// maxFileSize limits the size of a file. A file with 250 pods has less than 1 MiB.
	maxFileSize = 16 << 20
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
		problem := ""
		if i == 0 { // the second pool only shows what is allocated twice
			if p.Network = network; f.invalid != "" {
				problem = f.invalid + " has no valid address"
			}
		}
		if f.read {
			p.Succeed(problem, filepath.Dir(f.path), watch)
		}
	}
}

// put records the content of the file.
func (f *stateFile) put(c *content, written, now time.Time) {
	since := written
	if !f.read {
		since = time.Time{} // when allocations of the first version were made is not known
	}
	first, rest := c.split()
	f.open()
	f.pools[0].Update(first, since, now)
	f.pools[0].Ranges, f.invalid = c.ranges, c.invalid
	switch {
	case len(rest) == 0:
		f.pools = f.pools[:1]
		return
	case len(f.pools) == 1:
		f.pools = append(f.pools, newPool(f.path+second))
	}
	f.pools[1].Update(rest, since, now)
}

// open makes sure that the file has a pool.
func (f *stateFile) open() {
	if len(f.pools) == 0 {
		f.pools = []*ipam.FilePool{newPool(f.path)}
	}
}

// allocations returns the number of allocations of the first pool.
func (f *stateFile) allocations() int {
	if len(f.pools) == 0 {
		return 0
	}
	return f.pools[0].Allocated()
}

// vanish records that the file is missing or empty. Its records are lost; if it had none, it is as if
// it had never existed.
func (f *stateFile) vanish(now time.Time) {
	f.open()
	f.read, f.pools = false, f.pools[:1]
	p := f.pools[0]
	p.Lose(now)
	if p.State, p.Problem = ipam.Missing, "the file "+f.path+" was removed or emptied"; p.Lost == 0 {
		f.pools = nil
	}
}

// fail records that the file cannot be read. Its allocations are not known, and not lost.
func (f *stateFile) fail(err error) {
	f.open()
	f.read, f.pools = false, f.pools[:1]
	f.pools[0].Fail(err)
}

// drop forgets the file.
func (f *stateFile) drop() { f.pools, f.read = nil, false }

func newPool(name string) *ipam.FilePool {
	p := ipam.NewFilePool(Name, name)
	p.Routed = true
	return p
}
