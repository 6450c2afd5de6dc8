// Package containers reads the networks and containers of the container engines docker and podman from
// their files. Both keep a bbolt database, which they write meanwhile.
package containers

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// A network is a network of an engine as its database describes it.
type network struct {
	ipam.Pool
	allocations map[netip.Addr]ipam.Allocation
}

// networks are the pools of all networks of an engine.
type networks struct {
	// engine is the name of the engine, and path that of its database.
	engine, path string

	pools map[string]*pool
	read  bool // the database was read before
}

// A pool has the allocations of a network.
type pool struct {
	ipam.FilePool
	current map[netip.Addr]*ipam.FileAllocation
	missing map[netip.Addr]string // lost allocations that are not restored yet: containers by address
}

// emptiedAtOnce is the number of records from which their disappearance at once is a loss: the end of
// a container removes those of that container.
const emptiedAtOnce = 2

// put sets the networks that were read from the database, which was last written at the given time.
func (n *networks) put(found []network, written, now time.Time, watch ipam.Watch) {
	var since time.Time
	if n.read {
		since = written // when allocations of the first version were made is not known
	}
	n.read = true
	seen := map[string]bool{}
	for i := range found {
		net := &found[i]
		seen[net.Name] = true
		p := n.pool(net.Name)
		p.Pool = net.Pool
		p.IPAM, p.Name, p.Network, p.State = n.engine, n.path+"#"+net.Name, ipam.EngineNetwork(n.engine, net.Name), ipam.Known
		if watch.Err != nil {
			p.State = ipam.Stale
			p.Problem = fmt.Sprintf("cannot watch %s for changes (%s), reading it every %s instead: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances",
				filepath.Dir(n.path), ipam.OneLine(watch.Err), ipam.CheckEvery)
		}
		p.put(net.allocations, since, now)
	}
	for name, p := range n.pools {
		if seen[name] {
			continue
		}
		if p.put(nil, since, now); p.Lost == 0 {
			delete(n.pools, name)
			continue
		}
		p.State, p.Problem = ipam.Missing, n.path+" has no network "+name
	}
}

// vanish records that the database is missing. Its records are lost; if it had none, it is as if it
// had never existed.
func (n *networks) vanish(now time.Time) {
	n.read = false
	for name, p := range n.pools {
		if p.lose(now); p.Lost == 0 {
			delete(n.pools, name)
			continue
		}
		p.State, p.Problem = ipam.Missing, "the file "+n.path+" was removed"
	}
}

// fail records that the database cannot be read. Its allocations are not known, and not lost.
func (n *networks) fail(err error) {
	n.read = false
	if len(n.pools) == 0 {
		n.pool("")
	}
	for _, p := range n.pools {
		clear(p.missing)
		p.replace(nil, time.Time{})
		p.LostAt, p.Lost, p.State, p.Problem = time.Time{}, 0, ipam.Unreadable, ipam.OneLine(err)
	}
}

// list returns all pools.
func (n *networks) list() (pools []*ipam.FilePool) {
	for _, name := range slices.Sorted(maps.Keys(n.pools)) {
		pools = append(pools, &n.pools[name].FilePool)
	}
	return pools
}

// problems says why the database cannot be read.
func (n *networks) problems() (problems []string) {
	for _, p := range n.list() {
		if p.State == ipam.Unreadable {
			return []string{fmt.Sprintf("cannot read the networks of %s in %s: %s", n.engine, n.path, p.Problem)}
		}
	}
	return nil
}

// pool returns the pool with a name.
func (n *networks) pool(name string) *pool {
	if n.pools == nil {
		n.pools = map[string]*pool{}
	}
	p := n.pools[name]
	if p == nil {
		p = &pool{
			FilePool: ipam.FilePool{Pool: ipam.Pool{IPAM: n.engine, Name: n.path}, Changes: map[netip.Addr]*ipam.FileAllocation{}},
			current:  map[netip.Addr]*ipam.FileAllocation{}, missing: map[netip.Addr]string{},
		}
		n.pools[name] = p
	}
	return p
}

// put sets the allocations of the pool, and notices if all were lost or restored.
func (p *pool) put(next map[netip.Addr]ipam.Allocation, since, now time.Time) {
	if len(next) == 0 && len(p.current) >= emptiedAtOnce {
		p.lose(now)
	}
	p.replace(next, since)
	for a, al := range next {
		if id, lost := p.missing[a]; lost && id == al.ContainerID {
			delete(p.missing, a)
		}
	}
	if len(p.missing) == 0 {
		p.LostAt, p.Lost = time.Time{}, 0
	}
}

// lose records that all allocations were lost at once.
func (p *pool) lose(now time.Time) {
	if len(p.current) > 0 {
		p.LostAt, p.Lost = now, len(p.current)
	}
	for a, al := range p.current {
		p.missing[a] = al.ContainerID
	}
	p.replace(nil, time.Time{})
}

// replace sets the allocations of the pool. Those that are new were made at the given time.
func (p *pool) replace(next map[netip.Addr]ipam.Allocation, since time.Time) {
	for a := range p.current {
		if _, still := next[a]; !still {
			delete(p.current, a)
			p.Changes[a] = nil
		}
	}
	for a, al := range next {
		if had := p.current[a]; had == nil || had.Allocation != al {
			made := &ipam.FileAllocation{Allocation: al, AllocatedAt: since}
			p.current[a], p.Changes[a] = made, made
		}
	}
}

// subnet returns the addresses that a network of an engine allocates from a prefix: all but the
// network's own address and, for IPv4, the broadcast address of the whole subnet.
func subnet(whole, part netip.Prefix) ipam.Range {
	all, r := ipam.RangeOf(whole), ipam.RangeOf(part)
	if r.First == all.First && r.First != r.Last {
		r.First = r.First.Next()
	}
	if r.Last == all.Last && r.Last.Is4() && r.First != r.Last {
		r.Last = r.Last.Prev()
	}
	return r
}
