package facts

import (
	"slices"
	"time"
)

// Skewed records how far the clock of a node is ahead, if that is known. A call for a stream that
// was replaced has no effect.
func (f *Facts) Skewed(p Peer, n *Node, skew time.Duration, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.Peer == p {
		n.Rec.Skew, n.Rec.SkewKnown = skew, known
		f.Listener.Answered(n)
	}
}

// Heard records that the agent of a node has sent a message, even if the message is applied later
// or not at all.
func (f *Facts) Heard(p Peer, n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.Peer == p {
		f.Listener.Answered(n)
	}
}

// InOnePlace returns the names of the other nodes that report the same boot ID and network
// namespace as a node, sorted; nil if there are none. The caller holds the lock.
func (f *Facts) InOnePlace(n *Node) (others []string) {
	for _, other := range f.At(n.ID.Place()) {
		if other != n && !other.Rec.Unheard && !n.Rec.Unheard {
			others = append(others, other.Rec.Name)
		}
	}
	slices.Sort(others)
	return others
}

// RecordKinds are the kinds of records, as metrics name them.
var RecordKinds = [...]string{"namespace", "link", "interface", "claim", "pool", "allocation"}
