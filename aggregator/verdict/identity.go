package verdict

import "github.com/ipwitness/ipwitness/ipam"

// The keys that identify records.
type (
	// NodeKey is the identity of a node together with its name.
	NodeKey struct{ Name, Boot, Netns, Vouched string }
	// LinkKey is the identity of a link.
	LinkKey struct {
		Node NodeKey
		Name string
	}
	// PoolKey is the identity of a pool; Node is empty for a pool of the whole cluster.
	PoolKey struct {
		Node       NodeKey
		IPAM, Name string
	}
)

// Key returns the identity of the node; the zero key for nil.
func (n *Node) Key() NodeKey {
	if n == nil {
		return NodeKey{}
	}
	return NodeKey{n.Name, n.Boot, n.Netns, n.Vouched}
}

// Is reports whether two records are of one node, or both are nil.
func (n *Node) Is(other *Node) bool {
	return n == other || n != nil && other != nil &&
		n.Boot == other.Boot && n.Netns == other.Netns && n.Vouched == other.Vouched
}

// Is reports whether two records are of one namespace as one node sees it.
func (ns *Namespace) Is(other *Namespace) bool {
	return ns == other || ns != nil && other != nil && ns.Record == other.Record && ns.Node.Is(other.Node)
}

// Is reports whether two records are of one interface.
func (i *Interface) Is(other *Interface) bool {
	return i == other || i != nil && other != nil && i.Index == other.Index && i.Namespace.Is(other.Namespace)
}

// Key returns the identity of the link; the zero key for nil.
func (l *Link) Key() LinkKey {
	if l == nil {
		return LinkKey{}
	}
	return LinkKey{l.Node.Key(), l.Name}
}

// Is reports whether two records are of one link, or both are nil.
func (l *Link) Is(other *Link) bool {
	return l == other || l != nil && other != nil && l.Name == other.Name && l.Node.Is(other.Node)
}

// Key returns the identity of the domain: its first link. It is the zero key for nil.
func (d *Domain) Key() LinkKey {
	if d == nil {
		return LinkKey{}
	}
	return LinkKey{d.Node.Key(), d.Name}
}

// Is reports whether two records are of one domain. A nil domain equals no domain.
func (d *Domain) Is(other *Domain) bool {
	return d != nil && other != nil && (d == other || d.Name == other.Name && d.Node.Is(other.Node))
}

// Key returns the identity of the pool; the zero key for nil.
func (p *Pool) Key() PoolKey {
	if p == nil {
		return PoolKey{}
	}
	return PoolKey{p.Node.Key(), p.IPAM, p.Name}
}

// Is reports whether two records are of one pool, or both are nil.
func (p *Pool) Is(other *Pool) bool {
	return p == other || p != nil && other != nil && p.IPAM == other.IPAM && p.Name == other.Name && p.Node.Is(other.Node)
}

// redirect returns what nodes do with packets for the address; zero for an address of no Service.
func redirect(al *Allocation) ipam.Redirect {
	if al.Service == nil {
		return ipam.Redirect{}
	}
	return *al.Service
}

// Is reports whether two records are of one allocation and have equal contents.
func (al *Allocation) Is(other *Allocation) bool {
	return al.Pool.Is(other.Pool) && al.Address == other.Address && al.Node == other.Node && al.Namespace == other.Namespace && al.Pod == other.Pod &&
		al.ContainerID == other.ContainerID && al.Interface == other.Interface && al.Purpose == other.Purpose && al.Kept == other.Kept && redirect(al) == redirect(other) && al.Location == other.Location &&
		al.MAC == other.MAC && al.FormerMAC == other.FormerMAC && al.FixedIn == other.FixedIn && al.ReservedFor == other.ReservedFor && al.Hostname == other.Hostname && al.AllocatedAt == other.AllocatedAt && al.KeptUntil == other.KeptUntil && al.Heard == other.Heard
}
