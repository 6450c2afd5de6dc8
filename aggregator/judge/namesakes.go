package judge

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Names tracks connected nodes by name. It is guarded by the lock of the facts.
type Names struct {
	facts  *facts.Facts
	set    *Set
	byName map[string][]*facts.Node
	// called is the name under which each node is listed in byName.
	called map[*facts.Node]string
	// found is true for nodes that are known to share their name, and false for nodes that were
	// pinged to find out: after a reboot, the previous stream of a node may stay open for a while
	// and is not a second node.
	found map[*facts.Node]bool
}

// namesChanged checks whether a node shares its name with another one. It must be called after the node
// connected, disconnected or was renamed.
func (names *Names) namesChanged(n *facts.Node) {
	live := n.Peer != nil && !n.Rec.Unheard
	before, was := names.called[n]
	if was && (!live || before != n.Name) {
		delete(names.called, n)
		delete(names.found, n)
		names.byName[before] = slices.DeleteFunc(names.byName[before], func(other *facts.Node) bool { return other == n })
		names.check(before)
		was = false
	}
	if !live {
		return
	}
	if !was {
		names.called[n] = n.Name
		names.byName[n.Name] = append(names.byName[n.Name], n)
	}
	names.check(n.Name)
}

// answered records that the agent of a node has just answered.
func (names *Names) answered(n *facts.Node) {
	if found, ok := names.found[n]; ok && !found {
		names.namesChanged(n)
	}
}

// check updates the finding about connected nodes that share a name.
func (names *Names) check(name string) {
	nodes := names.byName[name]
	if len(nodes) == 0 {
		delete(names.byName, name)
	}
	var newest verdict.Stamp
	for _, n := range nodes {
		newest = max(newest, n.ConnectedAt)
	}
	var sure []*facts.Node
	for _, n := range nodes {
		if names.found[n] || n.LastHeard >= newest {
			sure = append(sure, n)
		} else if names.found[n] = false; n.Peer != nil { // it may be leaving
			n.Peer.Ping(names.facts.Clock())
		}
	}
	id := audit.NamesID(names.facts.Policy, name)
	if len(sure) < 2 {
		for _, n := range sure {
			delete(names.found, n)
		}
		names.set.End(id, false)
		return
	}
	var machines []verdict.Machine
	for _, n := range sure {
		names.found[n] = true
		machines = append(machines, verdict.Machine{
			Name: n.Rec.Name, Boot: n.ID.Boot, Netns: n.ID.Netns, Kernel: n.Kernel, Version: n.Version, Since: n.ConnectedAt,
		})
	}
	names.set.Publish(new(audit.Names(names.facts.Policy, name, machines)))
}

// Shared reports whether a node shares its name. The caller holds the facts.
func (names *Names) Shared(n *facts.Node) bool { return names.found[n] }

// Others returns the names of the other nodes with the same name as a node, and the ID of the
// finding about them. The caller holds the facts.
func (names *Names) Others(n *facts.Node) (others []string, id string) {
	id = audit.NamesID(names.facts.Policy, n.Name)
	if f := names.set.finding(id); f != nil {
		for _, m := range f.Namesakes.Machines {
			if m.Name != n.Rec.Name {
				others = append(others, m.Name)
			}
		}
	}
	return others, id
}
