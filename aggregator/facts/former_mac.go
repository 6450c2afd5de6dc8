package facts

import (
	"maps"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A program that announces addresses, such as keepalived, may have read the MAC of an interface before the interface got another
// one, as a bond does when it gets its first card. It then announces a MAC that no interface has.

// maxFormerMACs is the largest number of former MACs that are remembered.
const maxFormerMACs = 1024

// formerMAC is the interface that had a MAC, and until when.
type formerMAC struct {
	node             *Node
	namespace, index uint32
	until            verdict.Stamp
}

// rememberMAC records that an interface is about to get another MAC.
func (f *Facts) rememberMAC(n *Node, i uint32) {
	one := n.interfaces.at(i)
	if !f.reachesOthers(n, i) {
		return
	}
	for m := range f.formerMACs {
		if len(f.formerMACs) < maxFormerMACs {
			break
		}
		delete(f.formerMACs, m)
	}
	f.formerMACs[one.mac.bytes] = formerMAC{n, n.namespaces.at(one.namespace).record, one.index, f.now()}
}

// forgetMACs removes the former MACs of a node.
func (f *Facts) forgetMACs(n *Node) {
	maps.DeleteFunc(f.formerMACs, func(_ [6]byte, by formerMAC) bool { return by.node == n })
}
