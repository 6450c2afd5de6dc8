// Package containers reads the networks and containers of the container engines docker and podman from
// their files. Both keep a bbolt database, which they write meanwhile.
package containers

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// Limits of what is read.
const (
	// maxNetworks limits the configurations of networks that are read, and maxContainers the containers,
	// running or not.
	maxNetworks, maxContainers = 1024, 4096
	// maxName limits the name of a network, and is less than ipam.MaxText.
	maxName = 200
	// maxConfig limits the size of a configuration. A usual one has a few kilobytes.
	maxConfig = 4 << 20
)

func engine(name string, files func(ipam.Host, ipam.FilesConfig) ipam.FileSource) ipam.IPAM {
	return ipam.IPAM{
		Name: name, Title: name,
		Traits: ipam.Traits{Engine: true},
		Files:  files,
		Pooled: func(p *ipam.Pool, node string) string {
			title, of := name, "network "+networkName(p)
			if p.Network == "" {
				of = p.Name // the database cannot be read
			}
			if node != "" {
				title += " on node " + node
			}
			return title + " (" + of + ")"
		},
		Repair: ipam.Repair{
			Texts: ipam.ReadTexts("containers/engine.txt", "containers/"+name+".txt"),
			Words: func(c *ipam.Case) map[string]any { return map[string]any{"ofengine": networkName(c.Pool)} },
		},
	}
}

// networkName returns the engine's name of the network that a pool serves.
func networkName(p *ipam.Pool) string {
	_, name, _ := ipam.CutEngine(p.Network)
	return name
}

// A source reads the database of an engine.
type source struct {
	host ipam.Host
	bolt.File
	networks ipam.Document
	hidden   error // why the database is not visible
}

func newSource(host ipam.Host, engine, path string) source {
	return source{host: host, File: bolt.File{Host: host, Path: path}, networks: ipam.Document{IPAM: engine, Path: path}}
}

// Pools implements ipam.FileSource.
func (s *source) Pools() []*ipam.FilePool { return s.networks.Pools() }

// read reads the database if it may have changed. It returns true for again if the database or the files
// of its containers, which are written later, are to be read again soon.
func (s *source) read(r ipam.FileRead, parse func(db *bolt.DB) ([]ipam.PoolRecords, error)) (again bool, err error) {
	changed, again, err := s.Read(r, func(db *bolt.DB, written time.Time) error {
		found, err := parse(db)
		if err == nil {
			for i := range found {
				n := &found[i]
				n.Name, n.Network = s.Path+"#"+n.Name, ipam.EngineNetwork(s.networks.IPAM, n.Name)
			}
			s.networks.Put(found, written, r.Now, r.Watches[filepath.Dir(s.Path)])
		}
		return err
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.networks.Vanish("removed", r.Now)
	case err != nil:
		for _, p := range s.Pools() {
			p.EndLoss()
		}
		s.networks.Fail(err)
	case !changed:
		for _, p := range s.Pools() {
			if p.State == ipam.Known || p.State == ipam.Stale {
				p.Succeed(p.Problem, r.Watches[filepath.Dir(s.Path)])
			}
		}
	}
	return again || changed && err == nil, err
}

// problems says why the database cannot be read.
func (s *source) problems() (problems []string) {
	for _, p := range s.Pools() {
		if p.State == ipam.Unreadable {
			return []string{fmt.Sprintf("cannot read the networks of %s in %s: %s", s.networks.IPAM, s.Path, p.Problem)}
		}
	}
	return nil
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

// keep returns the previous record of a container if nothing has changed.
func keep(had, found *ipam.Container) *ipam.Container {
	if had != nil && found != nil && had.ID == found.ID && had.Name == found.Name && had.Netns == found.Netns && maps.Equal(had.Given, found.Given) && maps.Equal(had.Fixed, found.Fixed) {
		return had
	}
	return found
}
