package facts

import (
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Records have no pointers, so that the garbage collector does not scan them. They refer to each
// other by index.

// flags are the boolean properties of a record.
type flags uint8

func (f flags) has(one flags) bool { return f&one != 0 }

func (f *flags) set(one flags, is bool) {
	if is {
		*f |= one
	} else {
		*f &^= one
	}
}

// namespace is one network namespace.
type namespace struct {
	// number is the inode, a text with the inode or, if it is not known, the epoch of the agent
	// that reported the namespace. The flags tell which one.
	number        uint64
	since         verdict.Stamp // when it was first reported
	who, intended text
	record        uint32
	ifaces        uint32 // the first interface
	// alike and together are the next namespaces on this node with the same pod and with the same
	// container ID.
	alike, together uint32
	cost            int32
	sweep           uint8
	flags           flags
}

const (
	inode flags = 1 << iota // number is the inode
	named                   // number is a text with the inode
)

// iface is one interface of a namespace.
type iface struct {
	namespace, index uint32
	link             uint32
	// far is the other end of a veth: the record number of the namespace with the peer or, if
	// hosted is set, a text with the name of the peer on the host.
	far        uint32
	name, kind text
	mac        mac
	sweep      uint8
	// alike is the next interface with the same MAC; before and after are neighbours in the
	// namespace.
	lists
	claims     uint32 // the first one
	cost       uint16
	attachment verdict.Attachment
	flags      flags
}

// peer returns the record of the namespace with the veth peer; 0 for none.
func (f *iface) peer() uint32 {
	if f.flags.has(hosted) {
		return 0
	}
	return f.far
}

// setFar sets the other end of a veth. It returns the name on the host if far has no room for it.
func (f *iface) setFar(peer uint32, host text) (left text) {
	if host == 0 || peer != 0 {
		f.far = peer
		return host
	}
	f.far = uint32(host)
	f.flags.set(hosted, true)
	return 0
}

// rare are the fields that few interfaces have. host is only used if the interface has a peer in
// another namespace, too.
type rare struct{ host, vrf text }

// lists links records into lists of the node: alike is the next record with the same key.
type lists struct {
	alike uint32
	neighbours
}

// neighbours are those in the list of the record that a record belongs to.
type neighbours struct{ before, after uint32 }

// enter adds a record to the beginning of a list.
func enter(first *uint32, i uint32, of func(uint32) *neighbours) {
	one := of(i)
	if one.after = *first; one.after != 0 {
		of(one.after).before = i
	}
	*first = i
}

// leave removes a record from a list.
func leave(first *uint32, i uint32, of func(uint32) *neighbours) {
	one := of(i)
	if one.before != 0 {
		of(one.before).after = one.after
	} else {
		*first = one.after
	}
	if one.after != 0 {
		of(one.after).before = one.before
	}
}

func (t *tables) interfaceLists(i uint32) *neighbours { return &t.interfaces.at(i).neighbours }
func (t *tables) claimLists(c uint32) *neighbours     { return &t.claims.at(c).neighbours }
func (t *tables) wireLists(c uint32) *neighbours {
	return &t.wires.at(t.claims.at(c).wire()).neighbours
}

const (
	uplink flags = 1 << iota
	tapped
	macvtap
	hosted
	hairpin
	noARP
	pvlan
)

// link is a broadcast domain as a node sees it.
type link struct {
	lost  verdict.Stamp // when its uplinks lost their carrier; 0 if they have one
	name  text
	users int32 // number of interfaces and wire claims on it
	cost  int32
	sweep uint8
	kind  verdict.LinkKind
	flags flags
}

const (
	routed flags = 1 << iota
	distributed
	known  // false for a link that has only been named by other records
	joined // it is in the topology
)

// claim is evidence that an address is held. There are more claims than other records, so rare
// fields are stored elsewhere.
type claim struct {
	addr index.Address
	// first and assigned are by the agent's clock.
	first, assigned, begun verdict.Stamp
	port                   uint32
	// more is the index of the additional part: a wire of a wire claim, or a history of a kernel
	// claim.
	more uint32
	// before and after are the neighbours on the port; alike is the next claim to the address.
	lists
	network text
	cost    uint16
	flags   uint16 // the kernel uses 12 bits; ours are the others
	kind    verdict.Evidence
	prefix  uint8
	sweep   uint8
	answer  uint8 // verdict.KernelAnswer: By, and Filter << 4
}

// leadsHere is set in the flags of a kernel claim if the node routes the address to the interface.
const leadsHere = 1 << 15

// takenAlong is set if the interface had the address as a device of the node (ClaimRecord.taken_along).
const takenAlong = 1 << 14

// former is set if only a former agent of the node has reported the claim.
const former = 1 << 13

// hasPeer is set if an IPv4 address has a peer (ClaimRecord.peer).
const hasPeer = 1 << 12

// continued is set if first and assigned are from a former agent or the journal. The present agent does not know better,
// unless the kernel got the address again. It takes the place of IFA_F_MCAUTOJOIN, on which nothing depends.
const continued = 1 << 10

// ours are the flags of a claim that do not come from the kernel.
const ours = leadsHere | takenAlong | former | hasPeer | continued

// wire returns the index of a wire claim's additional part; 0 for a kernel claim.
func (c *claim) wire() uint32 {
	if c.kind.Kernel() {
		return 0
	}
	return c.more
}

// history is the part of a claim that changes when it is seen again. Most kernel claims have none,
// because the kernel reports most addresses only once.
type history struct {
	last  verdict.Stamp // by the agent's clock
	mark  verdict.Stamp // Read of a kernel claim, Before of a wire claim
	count uint32
}

// wire is the additional part of a wire claim.
type wire struct {
	history
	seen     verdict.Stamp
	hardware uint32 // the index of the hardware address
	neighbours
	link        uint32
	vlan, inner uint16
	source      mac
	flags       flags
	// judged tells whether the address has been judged with the claim, and whether it has one
	// undisputed owner, so that another sighting changes nothing. It is only accessed atomically,
	// because it is written while others read it.
	judged uint32 //nolint:modernize // records are copied when a slab grows
}

const (
	noOverride flags = 1 << iota
	byNode           // the node itself routes the address to the port
)

// hardware is a MAC that is named by claims of a node.
type hardware struct {
	mac    mac
	claims uint32 // the first claim
	count  uint32
}
