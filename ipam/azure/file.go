package azure

import (
	"crypto/sha256"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// A stateFile is a file with the whole state of one program. Its second pool has the allocations of addresses
// that are allocated twice: an address has one allocation in a pool.
type stateFile struct {
	ipam.Document
	parse func(data []byte) (content, error)
	host  ipam.Host
	// plugins are the types of the IPAM plugins whose networks the file serves.
	plugins []string

	stale   bool // it must be read again
	version [sha256.Size]byte
	invalid string // a record without a valid address; empty if there is none
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
	data, written, err := f.host.ReadFile(f.Path, false, maxFileSize)
	version := sha256.Sum256(data)
	if err == nil && (!f.Read || version != f.version) {
		var c content
		if c, err = f.parse(data); err == nil {
			f.put(&c, written, now)
			f.version = version
		} else if ipam.BeingWritten(written, now) {
			return true
		}
	}
	if err != nil {
		f.fail(err, now)
	}
	f.describe(network, watch)
	return false
}

// describe sets what the content of the file does not say.
func (f *stateFile) describe(network string, watch ipam.Watch) {
	for _, p := range f.Pools() {
		problem := ""
		if p.Name == f.Path { // the second pool only shows what is allocated twice
			if p.Network = network; f.invalid != "" {
				problem = f.invalid + " has no valid address"
			}
		}
		if f.Read {
			p.Succeed(problem, watch)
		}
	}
}

func (f *stateFile) put(c *content, written, now time.Time) {
	pool := func(name string, ranges []ipam.Range, allocations map[netip.Addr]ipam.Allocation) ipam.PoolRecords {
		return ipam.PoolRecords{Pool: ipam.Pool{Name: name, Ranges: ranges, Wiring: ipam.Wiring{Routed: true}}, Allocations: allocations}
	}
	first, rest := c.split()
	found := []ipam.PoolRecords{pool(f.Path, c.ranges, first)}
	if len(rest) > 0 {
		found = append(found, pool(f.Path+second, nil, rest))
	} else {
		f.Forget(f.Path + second)
	}
	f.Put(found, written, now, ipam.Watch{})
	f.invalid = c.invalid
}

// fail records that the file cannot be read, or is missing or empty.
func (f *stateFile) fail(err error, now time.Time) {
	if f.Forget(f.Path + second); errors.Is(err, os.ErrNotExist) || errors.Is(err, errEmpty) {
		f.Vanish("removed or emptied", now)
		return
	}
	f.Fail(err)
}
