package facts

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Changes are what one step has changed besides addresses. They are valid until Config.Changed returns.
type Changes struct {
	// Nodes are the nodes whose state has changed, and Names are those that have connected, disconnected or been
	// renamed.
	Nodes, Names []*Node
	// Answered is the node whose agent is known to be alive by a message; nil if there is none.
	Answered *Node
	// Coverage is set if an agent may observe more or less of its node.
	Coverage bool
	// Ranges are the nodes that may allocate other addresses, or may share a hardware address with other interfaces
	// on their links; nil is the cluster.
	Ranges map[*Node]struct{}
	// Lacking are the namespaces that may lack an address that they were meant to have. Former are namespaces that
	// have ended or got another ID.
	Lacking map[NamespaceRef]struct{}
	Former  []FormerNamespace
	// Pools are the pools that have changed, or whose allocations have. Ended are the pools that were removed or are
	// about to be renamed.
	Pools map[*Pool]struct{}
	Ended []*Pool
	// Dropped is the number of records, by kind, that are invalid or exceed a limit, and Refused is the number of
	// those that did not fit into memory.
	Dropped, Refused map[string]int
}

// A NamespaceRef is a namespace of a node by its record number.
type NamespaceRef struct {
	Node   *Node
	Record uint32
}

// A FormerNamespace is a namespace of a node by the ID that it had.
type FormerNamespace struct {
	Node *Node
	ID   string
}

func newChanges() Changes {
	return Changes{
		Ranges: make(map[*Node]struct{}), Lacking: make(map[NamespaceRef]struct{}), Pools: make(map[*Pool]struct{}),
		Dropped: make(map[string]int), Refused: make(map[string]int),
	}
}

func (c *Changes) node(n *Node) {
	if !slices.Contains(c.Nodes, n) {
		c.Nodes = append(c.Nodes, n)
	}
}

func (c *Changes) name(n *Node) {
	if !slices.Contains(c.Names, n) {
		c.Names = append(c.Names, n)
	}
}

func (c *Changes) ranges(n *Node) { c.Ranges[n] = struct{}{} }

func (c *Changes) lacking(n *Node, record uint32) { c.Lacking[NamespaceRef{n, record}] = struct{}{} }

func (c *Changes) former(n *Node, ns uint32) {
	if n.namespaces.at(ns).record != verdict.OwnRecord {
		c.Former = append(c.Former, FormerNamespace{n, n.idOf(ns)})
	}
}

func (c *Changes) pool(p *Pool) { c.Pools[p] = struct{}{} }

// tell passes on what has changed since the last call. The maps are used again, unless they have become large.
func (f *Facts) tell() {
	c := &f.changes
	f.Changed(c)
	if len(c.Lacking)+len(c.Pools)+len(c.Ranges) > piece {
		*c = newChanges()
		return
	}
	c.Nodes, c.Names, c.Former, c.Ended = nil, nil, nil, nil
	c.Answered, c.Coverage = nil, false
	clear(c.Ranges)
	clear(c.Lacking)
	clear(c.Pools)
	clear(c.Dropped)
	clear(c.Refused)
}
