package facts

import (
	"slices"
	"time"
)

// Skewed records how far the wall clock of a node is ahead, if known. The stream on which the agent
// has answered calls it; a call by a stream that was replaced has no effect.
func (f *streams) Skewed(p Peer, n *Node, skew time.Duration, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.Peer == p {
		n.Rec.Skew, n.Rec.SkewKnown = skew, known
		f.Listener.Answered(n)
	}
}

// Heard records that the agent of a node has sent something, even if it is never applied, or only
// later.
func (f *streams) Heard(p Peer, n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.Peer == p {
		f.Listener.Answered(n)
	}
}

// InOnePlace returns the names of the other nodes that report the same boot id and network
// namespace as a node, sorted; nil if there are none. The facts are held.
func (f *reader) InOnePlace(n *Node) (others []string) {
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
