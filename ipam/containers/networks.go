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

	pools map[string]*ipam.FilePool // by network; that of an unreadable database has no name
	read  bool                      // the database was read before
}

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
		p.IPAM, p.Name, p.Network = n.engine, n.path+"#"+net.Name, ipam.EngineNetwork(n.engine, net.Name)
		p.Succeed("", filepath.Dir(n.path), watch)
		p.Update(net.allocations, since, now)
	}
	for name, p := range n.pools {
		if seen[name] {
			continue
		}
		if p.Update(nil, since, now); p.Lost == 0 {
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
		if p.Lose(now); p.Lost == 0 {
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
		p.EndLoss()
		p.Fail(err)
	}
}

// list returns all pools.
func (n *networks) list() (pools []*ipam.FilePool) {
	for _, name := range slices.Sorted(maps.Keys(n.pools)) {
		pools = append(pools, n.pools[name])
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

// pool returns the pool of a network.
func (n *networks) pool(network string) *ipam.FilePool {
	if n.pools == nil {
		n.pools = map[string]*ipam.FilePool{}
	}
	if n.pools[network] == nil {
		n.pools[network] = ipam.NewFilePool(n.engine, n.path)
	}
	return n.pools[network]
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
