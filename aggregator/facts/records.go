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
	// number is the inode, the text that names it or, if it is not known, the epoch of the agent
	// that reported the namespace.
	number        uint64
	since         verdict.Stamp // when it was first heard of
	who, intended text
	record        uint32
	ifaces        uint32 // the first of its interfaces
	// alike and together are the next ones on this node with the same pod, and with the same
	// container id.
	alike, together uint32
	cost            int32
	sweep           uint8
	flags           flags
}

const (
	inode flags = 1 << iota // number is the inode
	named                   // number is the text that names the inode
)

// iface is one interface of a namespace.
type iface struct {
	namespace, index uint32
	link             uint32
	// far is the other end of a veth: the record of the namespace with the peer or, if hosted is
	// set, the text with the name of the peer on the host.
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

// setFar sets the other end of a veth, and returns the name on the host if that finds no room.
func (f *iface) setFar(peer uint32, host text) (left text) {
	if host == 0 || peer != 0 {
		f.far = peer
		return host
	}
	f.far = uint32(host)
	f.flags.set(hosted, true)
	return 0
}

// rare are the fields that few interfaces have. host is only here if the interface has a peer in
// another namespace, too.
type rare struct{ host, vrf text }

// lists are the links of a record in lists of its node: alike is the next record with the same key,
// before and after are the neighbours that belong to the same record.
type lists struct{ alike, before, after uint32 }

const (
	uplink flags = 1 << iota
	tapped
	hosted
)

// link is one broadcast domain as a node sees it.
type link struct {
	name  text
	users int32 // interfaces and wire claims on it
	cost  int32
	sweep uint8
	kind  verdict.LinkKind
	flags flags
}

const (
	routed flags = 1 << iota
	known        // false for a link that was only named so far
	joined       // the topology knows it
)

// claim is one way in which an address is held. There are more claims than other records, so rare
// fields are elsewhere.
type claim struct {
	addr index.Address
	// first and assigned are by the agent's clock.
	first, assigned, begun verdict.Stamp
	port                   uint32
	// more is the additional part: a wire of a wire claim, a history of a kernel claim.
	more uint32
	// before and after are the neighbours on the port; alike is the next claim to the address.
	lists
	network text
	cost    uint16
	flags   uint16 // the kernel uses 12 bits
	kind    verdict.Evidence
	prefix  uint8
	sweep   uint8
}

// wire returns the additional part of a wire claim; 0 for a kernel claim.
func (c *claim) wire() uint32 {
	if c.kind == verdict.Assigned || c.kind == verdict.DADFailed {
		return 0
	}
	return c.more
}

// history is what changes of a claim when it is seen again. A kernel claim has one only if it was:
// the kernel reports most addresses once.
type history struct {
	last  verdict.Stamp // by the agent's clock
	mark  verdict.Stamp // Read of a kernel claim, Before of a wire claim
	count uint32
}

// wire is the additional part of a wire claim.
type wire struct {
	history
	seen                    verdict.Stamp
	hardware, before, after uint32 // those of the hardware address
	link                    uint32
	vlan, inner             uint16
	source                  mac
	flags                   flags
	// judged says whether the address was judged with the claim, and whether it has one plain
	// owner, so that seeing the claim again changes nothing. It is only accessed atomically,
	// because it is set while others read it.
	judged uint32 //nolint:modernize // records are copied when a slab grows
}

const (
	noOverride flags = 1 << iota
	byNode           // the node itself routes the address to the port
)

// hardware is one MAC that claims of a node name.
type hardware struct {
	mac    mac
	claims uint32 // the first one
	count  uint32
}
