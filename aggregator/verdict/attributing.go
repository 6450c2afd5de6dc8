package verdict

import "slices"

// attributing finds the owners of an address.
type attributing struct {
	*judging
	// assigned are the claims by which kernels have the address, listed once the
	// wire shows somebody: of many claims on a LAN they are few.
	assigned []*Claim
	// spoken is who claimed it unasked, listed when that is asked for.
	spoken map[speaker]struct{}
}

// evidence is what speaks for one owner, gathered while claims are attributed.
type evidence struct {
	assigned, failed, local, private bool  // by the kernel
	strong, old, weak                bool  // by the wire; old is what was strong
	until                            Stamp // when strong becomes old, if nothing is heard until then; 0 for never
	proxied                          Proxy // why what it says on the wire does not make it the holder
	plugin, cloned                   MAC   // that a plugin answers with, that is another owner's
	claims                           int
}

// configured tells whether a kernel has the address for the owner, wherever.
func (e *evidence) configured() bool { return e.assigned || e.failed || e.local || e.private }

// ledger collects claims by owner.
type ledger struct {
	owners   []Owner
	evidence []evidence
	byID     map[string]int // only where there are many claims
}

// at is the position of the owner with an id; -1 where it is new.
func (l *ledger) at(id string) int {
	if l.byID != nil {
		if i, ok := l.byID[id]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(l.owners, func(o Owner) bool { return o.ID == id })
}

func (l *ledger) enter(o Owner) int {
	if l.byID != nil {
		l.byID[o.ID] = len(l.owners)
	}
	l.owners = append(l.owners, o)
	l.evidence = append(l.evidence, evidence{})
	return len(l.owners) - 1
}

// namespace is the position of the owner that a namespace is. Of two agents
// that see one namespace, the first by name is shown.
func (l *ledger) namespace(ns *Namespace) int {
	i := l.at(ns.ID)
	if i < 0 {
		return l.enter(Owner{ID: ns.ID, Node: ns.Node, Namespace: ns})
	}
	if o := &l.owners[i]; !o.Node.Is(ns.Node) && compareNodes(ns.Node, o.Node) < 0 {
		o.Node, o.Namespace = ns.Node, ns
	}
	return i
}

// external is the position of the owner that a foreign MAC on a link is.
func (l *ledger) external(c *Claim) int {
	n, name := c.Node(), linkName(c.Link)
	if c.Link != nil && c.Link.Domain != nil {
		n, name = c.Link.Domain.Node, c.Link.Domain.Name
	}
	id := n.Boot + "/" + n.Netns + "/" + name + "/" + c.MAC.String()
	if i := l.at(id); i >= 0 {
		return i
	}
	return l.enter(Owner{ID: id, Node: c.Node(), MAC: c.MAC})
}

// speaker is a MAC on a link, whichever node's.
type speaker struct {
	mac  MAC
	link extent
}

// manyClaims is from when on owners are found by a map.
const manyClaims = 16

func linkName(l *Link) string {
	if l == nil {
		return ""
	}
	return l.Name
}
