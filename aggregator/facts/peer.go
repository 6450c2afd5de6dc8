package facts

import (
	"slices"
	"time"
)

// Skewed notes how much the wall clock of a node is ahead, once that is known. A stream says it that
// its agent has just answered on; one that another stream has taken over from says nothing.
func (f *streams) Skewed(p Peer, n *Node, skew time.Duration, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.Peer == p {
		n.Rec.Skew, n.Rec.SkewKnown = skew, known
		f.Listener.Answered(n)
	}
}

// Heard notes that the agent of a node has sent something, also if nothing of it is applied, or only
// later.
func (f *streams) Heard(p Peer, n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.Peer == p {
		f.Listener.Answered(n)
	}
}

// InOnePlace returns the names of the other nodes that report the place of a node, as its boot id and
// network namespace: sorted, and nil for a node that is alone there. The facts are held.
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
