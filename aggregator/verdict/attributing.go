package verdict

import "slices"

// attribution finds the owners of an address.
type attribution struct {
	*evaluation
	// assigned has the Assigned claims. They are listed only when the first wire claim is
	// attributed: on a LAN, few of many claims are assigned.
	assigned []*Claim
	// guests has the claims of virtual machines behind the ports of their pods. It is filled on first use.
	guests []*Claim
	// strangers has the frames of machines outside with MACs of namespaces on the nodes that they entered. It is filled on first use.
	strangers []*Claim
	// unsolicited has the senders that sent an unsolicited claim. It is filled on first use.
	unsolicited map[unsolicitedSender]struct{}
}

// evidence is the evidence for one owner. It is gathered while claims are attributed.
type evidence struct {
	assigned, failed, local, private bool  // claims of kernels
	answers                          bool  // a kernel answers without having the address
	strong, old, weak                bool  // claims on the wire: recent, expired, and too weak to make an owner
	until                            Stamp // when strong expires if no frame follows; 0 for never
	proxied                          Proxy // why answers on the wire do not make the sender an owner
	plugin, cloned                   MAC   // plugin: used by a network plugin to answer; cloned: belongs to another namespace
	claims                           int
}

// configured reports whether any kernel has the address for the owner.
func (e *evidence) configured() bool { return e.assigned || e.failed || e.local || e.private }

// ownerTable collects the owners and their evidence.
type ownerTable struct {
	owners   []Owner
	evidence []evidence
	byID     map[string]int // nil if there are few claims
}

// indexOf returns the index of the owner with an ID; -1 if there is none.
func (l *ownerTable) indexOf(id string) int {
	if l.byID != nil {
		if i, ok := l.byID[id]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(l.owners, func(o Owner) bool { return o.ID == id })
}

func (l *ownerTable) add(o Owner) int {
	if l.byID != nil {
		l.byID[o.ID] = len(l.owners)
	}
	l.owners = append(l.owners, o)
	l.evidence = append(l.evidence, evidence{})
	return len(l.owners) - 1
}

// namespace returns the index of the owner for a namespace and adds it if it is new. If two agents
// see one namespace, the node that sorts first is shown.
func (l *ownerTable) namespace(ns *Namespace) int {
	i := l.indexOf(ns.ID)
	if i < 0 {
		return l.add(Owner{ID: ns.ID, Node: ns.Node, Namespace: ns})
	}
	if o := &l.owners[i]; !o.Node.Is(ns.Node) && compareNodes(ns.Node, o.Node) < 0 {
		o.Node, o.Namespace = ns.Node, ns
	}
	return i
}

// external returns the index of the owner for a hardware address outside of all nodes, and adds it
// if it is new.
func (l *ownerTable) external(c *Claim) int {
	n, name := c.Node(), linkName(c.Link)
	if c.Link != nil && c.Link.Domain != nil {
		n, name = c.Link.Domain.Node, c.Link.Domain.Name
	}
	id := n.Boot + "/" + n.Netns + "/" + name + "/" + c.MAC.String()
	if i := l.indexOf(id); i >= 0 {
		return i
	}
	return l.add(Owner{ID: id, Node: c.Node(), MAC: c.MAC})
}

// unsolicitedSender is a hardware address on a broadcast domain.
type unsolicitedSender struct {
	mac  MAC
	link extent
}

// manyClaims is the number of claims above which owners are found by a map.
const manyClaims = 16

func linkName(l *Link) string {
	if l == nil {
		return ""
	}
	return l.Name
}
