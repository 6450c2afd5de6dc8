package ipam

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// A FilePool is a pool with the allocations that have changed.
type FilePool struct {
	Pool
	// LostAt is when Lost allocations disappeared at once without being released; zero if none are
	// missing.
	LostAt time.Time
	Lost   int
	// Changes are the allocations that have changed since they were published; nil for addresses
	// that were released.
	Changes map[netip.Addr]*FileAllocation

	current map[netip.Addr]FileAllocation
	missing map[netip.Addr]string // lost allocations that are not restored yet: containers by address
}

// A FileAllocation is an allocation that is recorded in a file.
type FileAllocation struct {
	Allocation
	AllocatedAt time.Time // by the clock of the node
	// KeptUntil is when a DHCP server stops to keep the address back, because a client or the server itself found it in
	// use; zero for other allocations.
	KeptUntil time.Time
	// Expires is when the lease of a DHCP client ends, unless it renews it; zero for never, and for other allocations.
	Expires time.Time
}

// NewFilePool returns a pool without allocations.
func NewFilePool(ipam, name string) *FilePool {
	return &FilePool{Pool: Pool{IPAM: ipam, Name: name}, Changes: map[netip.Addr]*FileAllocation{}}
}

// Allocated returns the number of allocations that were set last.
func (p *FilePool) Allocated() int { return len(p.current) }

// Set replaces the allocations.
func (p *FilePool) Set(next map[netip.Addr]FileAllocation) {
	for a := range p.current {
		if _, stays := next[a]; !stays {
			p.Changes[a] = nil
		}
	}
	for a, al := range next {
		if was, there := p.current[a]; !there || was != al {
			p.Changes[a] = &al
		}
	}
	p.current = next
}

// Fix sets what the configurations of holders say about the allocations: in does so for one of them.
func (p *FilePool) Fix(in func(al *Allocation) (file string)) {
	for a, al := range p.current {
		if file := in(&al.Allocation); file != al.FixedIn {
			al.FixedIn = file
			p.current[a], p.Changes[a] = al, &al
		}
	}
}

// emptiedAtOnce is the number of records from which their disappearance in one version of a file is a
// loss, for a file in which each release removes the records of one container.
const emptiedAtOnce = 2

// Update replaces the allocations by those of a file that has no times. Those that are new were made at
// the time since, which is zero if it is not known. If the file has no allocation any more, they were
// lost at once. The loss ends when all lost allocations are back.
func (p *FilePool) Update(next map[netip.Addr]Allocation, since, now time.Time) {
	if len(next) == 0 && len(p.current) >= emptiedAtOnce {
		p.Lose(now)
	}
	dated := make(map[netip.Addr]FileAllocation, len(next))
	for a, al := range next {
		had, there := p.current[a]
		if dated[a] = (FileAllocation{Allocation: al, AllocatedAt: since}); there && had.SameHolder(&al) {
			dated[a] = FileAllocation{Allocation: al, AllocatedAt: had.AllocatedAt}
		}
		if id, lost := p.missing[a]; lost && id == al.ContainerID {
			delete(p.missing, a)
		}
	}
	if p.Set(dated); len(p.missing) == 0 {
		p.EndLoss()
	}
}

// Lose records that all allocations were lost at once.
func (p *FilePool) Lose(now time.Time) {
	if len(p.current) == 0 {
		return
	}
	p.LostAt, p.Lost, p.missing = now, len(p.current), make(map[netip.Addr]string, len(p.current))
	for a, al := range p.current {
		p.missing[a] = al.ContainerID
	}
	p.Set(nil)
}

// EndLoss records that no allocation is missing any more, or that it is not known.
func (p *FilePool) EndLoss() { p.LostAt, p.Lost, p.missing = time.Time{}, 0, nil }

// Fail records that the allocations cannot be read. They are not known, and not lost.
func (p *FilePool) Fail(err error) {
	p.Set(nil)
	p.State, p.Problem = Unreadable, Unreadably(err)
}

// Unreadably returns the problem of a pool whose file cannot be read.
func Unreadably(err error) string {
	if errors.Is(err, os.ErrPermission) {
		return OneLine(err) + ": give the agent's user read access to it"
	}
	return OneLine(err)
}

// Succeed records that the allocations were read. problem describes an inconsistency; empty for none. watch is the state of
// the directory of the file: without events, the allocations may be old, which is a problem of the agent, not of the pool.
func (p *FilePool) Succeed(problem string, watch Watch) {
	if p.State, p.Problem = Known, problem; watch.Err != nil {
		p.State = Stale
	}
}

// A Document is a file or a database with all records of one program, and the pools that it leads to.
type Document struct {
	// IPAM is the name of the IPAM, and Path that of the document.
	IPAM, Path string
	// Read is set if the current version was read.
	Read bool

	pools map[string]*FilePool // by name; that of a document that was never readable has its path
}

// PoolRecords are a pool and its allocations as a document describes them.
type PoolRecords struct {
	Pool
	Allocations map[netip.Addr]Allocation
	// Fault says why the records of this pool cannot be read, although those of others can.
	Fault error
}

// Put replaces the pools by those in the document, which was last written at the given time.
func (d *Document) Put(found []PoolRecords, written, now time.Time, watch Watch) {
	var since time.Time
	if d.Read {
		since = written // when allocations of the first version were made is not known
	}
	d.Read = true
	seen := map[string]bool{}
	for i := range found {
		seen[found[i].Name] = true
		p := d.pool(found[i].Name)
		p.Pool = found[i].Pool
		p.IPAM = d.IPAM
		if err := found[i].Fault; err != nil {
			p.Fail(err)
			continue
		}
		p.Succeed("", watch)
		p.Update(found[i].Allocations, since, now)
	}
	for name, p := range d.pools {
		if seen[name] {
			continue
		}
		if p.Update(nil, since, now); p.Lost == 0 {
			delete(d.pools, name)
			continue
		}
		p.State, p.Problem = Missing, d.Path+" has no network "+strings.TrimPrefix(name, d.Path+"#")
	}
}

// Vanish records that the document has no records any more; how says why. They are lost; if it had none, it is
// as if it had never existed.
func (d *Document) Vanish(how string, now time.Time) {
	d.Read = false
	for name, p := range d.pools {
		if p.Lose(now); p.Lost == 0 {
			delete(d.pools, name)
			continue
		}
		p.State, p.Problem = Missing, "the file "+d.Path+" was "+how
	}
}

// Fail records that the document cannot be read. Its allocations are not known, and not lost.
func (d *Document) Fail(err error) {
	d.Read = false
	if len(d.pools) == 0 {
		d.pool(d.Path)
	}
	for _, p := range d.pools {
		p.Fail(err)
	}
}

// Forget forgets pools; all of them if none is named.
func (d *Document) Forget(names ...string) {
	if len(names) == 0 {
		d.pools, d.Read = nil, false
	}
	for _, name := range names {
		delete(d.pools, name)
	}
}

// Pools returns all pools, sorted by name.
func (d *Document) Pools() (pools []*FilePool) {
	for _, name := range slices.Sorted(maps.Keys(d.pools)) {
		pools = append(pools, d.pools[name])
	}
	return pools
}

func (d *Document) pool(name string) *FilePool {
	if d.pools == nil {
		d.pools = map[string]*FilePool{}
	}
	if d.pools[name] == nil {
		d.pools[name] = NewFilePool(d.IPAM, name)
	}
	return d.pools[name]
}
