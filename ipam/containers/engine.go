package containers

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// Limits of what is read.
const (
	// maxNetworks and maxRecords limit what is kept of a database, and maxContainers the containers,
	// running or not.
	maxNetworks, maxRecords, maxContainers = 1024, 65536, 4096
	// maxName limits the name of a network, and is less than ipam.MaxText.
	maxName = 200
	// maxConfig limits the size of a configuration. A usual one has a few kilobytes.
	maxConfig = 4 << 20
)

// An engine has what distinguishes the engines.
type engine struct {
	// name is the name in the API and in sentences. database is the usual path of the database, and
	// mount the directory to mount for it.
	name, database, mount string
	files                 func(ipam.Host, ipam.FilesConfig) ipam.FileSource
	// How to exclude an address from a network, to enlarge a network, and to find out what removed the
	// database.
	exclude, enlarge, search string
	// restart returns the steps that restart a container.
	restart func(node, id string) []advice.Action
	// empty returns the step after which no container has an address without a record.
	empty func(node string) advice.Action
	// kept says when the record of an unknown container of a node ends, with %s for the node. ended
	// returns how to proceed with the record of a container that does not run.
	kept  string
	ended func(t remedies, id string) []advice.Alternative
}

// ipam describes the engine.
func (e engine) ipam() ipam.IPAM {
	empty := func(node, _ string) []advice.Action { return []advice.Action{e.empty(node)} }
	return ipam.IPAM{
		Name: e.name, Title: e.name,
		Traits: ipam.Traits{Engine: true},
		Files:  e.files,
		PoolTitle: func(p *ipam.Pool, node string) string {
			title, of := e.name, "network "+networkName(p)
			if p.Network == "" {
				of = p.Name // the database cannot be read
			}
			if node != "" {
				title += " on node " + node
			}
			return title + " (" + of + ")"
		},
		Repair: ipam.Repair{
			Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a, e} },
			Exclude:  func(*ipam.Pool, string, netip.Addr) ipam.Exclusion { return ipam.Exclusion{How: e.exclude} },
			Location: func(*ipam.Pool, netip.Addr) string { return e.database },
			Enlarge:  func(*ipam.Pool) string { return e.enlarge },
			Access: func(*ipam.Pool) string {
				return "Check whether the agent may read it: the agent needs " + e.database + " of the node. In a container, mount " + e.mount + " read-only with HostToContainer propagation."
			},
			RestartContainer: e.restart,
			Effects: ipam.Effects{
				Free: e.name + " has no record of it. It will allocate the address to one of the next containers in the network.",
			},
			Loss: ipam.Loss{Empty: empty, Search: func(*ipam.Pool) string { return e.search }},
		},
	}
}

// networkName returns the engine's name of the network that a pool serves.
func networkName(p *ipam.Pool) string {
	_, name, _ := ipam.CutEngine(p.Network)
	return name
}

// remedies builds the remedies for an address. No command of an engine records an address for a
// running container.
type remedies struct {
	ipam.Case
	ipam.Advisor
	engine engine
}

// Reserve advises to restart the holder, which then has a record. If several addresses have none, it may
// get another one of them.
func (t remedies) Reserve() {
	name := t.engine.name
	t.Advise("Start no containers in network %s on node %s meanwhile: %s may allocate the address to one of them.", networkName(t.Pool), t.Node, name)
	restart, fix := t.Restarting(name + " records the address that it gets")
	t.Act(
		advice.Say("Check which addresses of node %s have no record.", t.Node).By("", "ipwitness audit --kind in-use-unallocated "+advice.Argument(t.Node)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it is only "+t.Address.String(), restart...),
			advice.Either("there are others, one of which its successor may get", t.engine.empty(t.Node)),
		))
	if fix.What != "" {
		t.Fix(fix)
	}
}

// Reassign advises to restart the holder, because the record is that of another container.
func (t remedies) Reassign() {
	t.Advise("Leave the record as it is: %s frees the address when the container of the record stops.", t.engine.name)
	t.Restart(t.engine.name + " gives it a free address")
}

// Release advises to have the engine free the address of a container that does not run.
func (t remedies) Release() {
	name, id := t.engine.name, t.Allocation.ContainerID
	if id == "" {
		t.Advise("Leave the record as it is: it only makes one address unavailable"+t.engine.kept, t.Node)
		return
	}
	id = advice.ShortID(id)
	t.Act(
		advice.Say("On node %s, check whether container %s, for which the address is recorded, is running.", t.Node, id).
			By(t.Node, name+" ps --all --no-trunc --filter "+advice.Quote("id="+t.Allocation.ContainerID)),
		advice.Say("Continue according to the result.").Or(append([]advice.Alternative{
			advice.Either("it is running", advice.Say("Leave its record as it is: the container may have taken its interface down.")),
		}, t.engine.ended(t, id)...)...))
	t.ByHand(t.Node, "", "Free %s: %s records it for container %s, and no interface has the address.", t.Address, name, id)
}

// A source reads the database of an engine.
type source struct {
	host ipam.Host
	bolt.File
	networks networks
	hidden   error // why the database is not visible
}

func newSource(host ipam.Host, engine, path string) source {
	return source{host: host, File: bolt.File{Host: host, Path: path}, networks: networks{engine: engine, path: path}}
}

// Pools implements ipam.FileSource.
func (s *source) Pools() []*ipam.FilePool { return s.networks.list() }

// read reads the database if it may have changed. It returns true for again if the database or the files
// of its containers, which are written later, are to be read again soon.
func (s *source) read(r ipam.FileRead, parse func(db *bolt.DB) ([]network, error)) (again bool, err error) {
	changed, again, err := s.Read(r, func(db *bolt.DB, written time.Time) error {
		found, err := parse(db)
		if err == nil {
			s.networks.put(found, written, r.Now, r.Watches[filepath.Dir(s.Path)])
		}
		return err
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.networks.vanish(r.Now)
	case err != nil:
		s.networks.fail(err)
	}
	return again || changed && err == nil, err
}

// sameVersion reports whether a file has not changed between two looks at it.
func sameVersion(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// keep returns the previous record of a container if nothing has changed.
func keep(had, found *ipam.Container) *ipam.Container {
	if had != nil && found != nil && had.ID == found.ID && had.Name == found.Name && had.Netns == found.Netns && maps.Equal(had.Given, found.Given) {
		return had
	}
	return found
}
