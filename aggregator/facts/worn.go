package facts

import (
	"maps"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A program that announces addresses, such as keepalived, may have read the MAC of an interface before the interface got another
// one, as a bond does when it gets its first card. It then announces a MAC that no interface has.

// maxWorn is the largest number of former MACs that are remembered.
const maxWorn = 1024

// worn is the interface that had a MAC, and until when.
type worn struct {
	node             *Node
	namespace, index uint32
	until            verdict.Stamp
}

// wore records that an interface is about to get another MAC.
func (f *Facts) wore(n *Node, i uint32) {
	one := n.interfaces.at(i)
	if !f.reachesOthers(n, i) {
		return
	}
	for m := range f.worn {
		if len(f.worn) < maxWorn {
			break
		}
		delete(f.worn, m)
	}
	f.worn[one.mac.bytes] = worn{n, n.namespaces.at(one.namespace).record, one.index, f.now()}
}

// forgetWorn removes the former MACs of a node.
func (f *Facts) forgetWorn(n *Node) {
	maps.DeleteFunc(f.worn, func(_ [6]byte, by worn) bool { return by.node == n })
}
