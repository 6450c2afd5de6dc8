package facts

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
)

// claimsAtOnce is the number of claims that a reader looks at before it releases the lock for
// writers.
const claimsAtOnce = 4096

// AddressesOn returns the addresses that may have an owner on a node, given by its displayed name,
// in order: those that the node itself claims, and those that frames from its interfaces claim on
// other nodes of the same domain. The caller does not hold the lock.
func (f *Facts) AddressesOn(name string) (all []index.Address) {
	f.mu.RLock()
	nodes := slices.Clone(f.shown[name])
	f.mu.RUnlock()
	for _, n := range nodes {
		for from, more := uint32(1), true; more; from += claimsAtOnce {
			all, more = f.claimedOn(n, from, all)
		}
		for i, more := uint32(1), true; more; i++ {
			all, more = f.claimedOnOtherNodes(n, i, all)
		}
	}
	slices.SortFunc(all, index.Address.Compare)
	return slices.Compact(all)
}

// claimedOn appends the addresses of some claims of a node, starting at an index. It reports
// whether there are more.
func (f *Facts) claimedOn(n *Node, from uint32, into []index.Address) (all []index.Address, more bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	end := min(int(from)+claimsAtOnce, len(n.claims.items))
	for c := from; int(c) < end; c++ {
		if n.claims.has(c) {
			into = append(into, n.claims.at(c).addr)
		}
	}
	return into, end < len(n.claims.items)
}

// claimedOnOtherNodes appends the addresses that other nodes claim with the hardware address of
// interface i of a node, if there is such an interface. It reports whether there are more
// interfaces.
func (f *Facts) claimedOnOtherNodes(n *Node, i uint32, into []index.Address) (all []index.Address, more bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if int(i) >= len(n.interfaces.items) {
		return into, false
	}
	if !n.interfaces.has(i) {
		return into, true
	}
	one := n.interfaces.at(i)
	j := n.joints[one.link]
	if j == nil {
		return into, true
	}
	mac := n.texts.macOf(one.mac)
	for l := range j.Links {
		other := f.byID[IDOf(l.Node)]
		if hw := other.hardwareNamed(mac); hw != 0 {
			for c := range other.by(hw) {
				into = append(into, other.claims.at(c).addr)
			}
		}
	}
	return into, true
}
