package facts

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/topology"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// NodeID is the identity of a node; its name is a label. What its agent is vouched for
// is part of it: an agent that says that it is on another one's machine is one more node, and
// keeps nobody out.
type NodeID struct{ Boot, Netns, Vouched string }

// IDOf returns the identity of a node's record.
func IDOf(rec *verdict.Node) NodeID { return NodeID{rec.Boot, rec.Netns, rec.Vouched} }

// Place is where a node says that it is; it is to be alone there.
func (id NodeID) Place() NodeID { return NodeID{Boot: id.Boot, Netns: id.Netns} }

// Compare orders identities.
func (id NodeID) Compare(other NodeID) int {
	return cmp.Or(strings.Compare(id.Boot, other.Boot), strings.Compare(id.Netns, other.Netns), strings.Compare(id.Vouched, other.Vouched))
}

// A Peer is the open stream of a node's agent.
type Peer interface {
	// End ends the stream with an error.
	End(err error)
	// Contest tells the agent to look closely at an address, or no longer.
	Contest(a netip.Addr, contested bool)
	// Check has the agent read an address again.
	Check(a netip.Addr)
	// AskResync asks for a snapshot.
	AskResync()
	// Ping asks the agent whether it is there, unless it is asked already.
	Ping(now verdict.Stamp)
	// Lag returns how far we are behind the agent, if that is known.
	Lag(now verdict.Stamp) (lag time.Duration, known bool)
}

// Node is one agent's tables, as far as it has reported them. Its fields are behind the lock of
// the facts.
type Node struct {
	ID NodeID
	// Rec is its record in cases. What it says may change.
	Rec *verdict.Node
	Agent
	// Peer is the open stream; nil while there is none.
	Peer Peer
	// Shared tells of a silent node that another one had its name while both were
	// there: that one is not what it became.
	Shared bool
	Pools  []*Pool
	// Corrections counts strings that were corrected since the last snapshot, by field.
	Corrections map[string]int

	tables
	counts
	charges
	number uint32
	// due is when it times out or is forgotten; 0 for never.
	due verdict.Stamp
	// joints are its links that the topology knows.
	joints map[uint32]*topology.Link
	// writer is held by what changes the node in several pieces.
	writer sync.Mutex
}

// Agent is what an agent says of itself.
type Agent struct {
	// Name is what the agent calls itself; Rec.Name may have more to it.
	Name            string
	Version, Kernel string
	Status          *pb.StatusRecord
	// Ports is the number of ports that the observer is attached to.
	Ports                  int
	ConnectedAt, LastHeard verdict.Stamp
}

// counts are of a node's records.
type counts struct {
	// wireClaims are the claims that no kernel told of.
	wireClaims int
	// excess is the number of these that had no room since the last snapshot.
	excess int
	// allocated is the number of addresses that its pools have given.
	allocated int
	// sweep counts snapshots: what the last one did not have is swept out. applying is set while
	// one is applied.
	sweep    uint8
	applying bool
}

// Claims returns the number of claims of the node.
func (n *Node) Claims() int { return n.claims.count }

// Namespaces returns the number of namespaces of the node.
func (n *Node) Namespaces() int { return n.namespaces.count }

// Excess returns the number of claims of the wire that had no room since the last snapshot.
func (n *counts) Excess() int { return n.excess }

// Applying reports whether a snapshot of the node is being applied: some of it is not known yet.
func (n *counts) Applying() bool { return n.applying }

// Given returns the number of addresses that the node's own pools have given.
func (n *counts) Given() int { return n.allocated }

// Covers reports whether an agent reports for a node, and sees what is in its pods.
func (n *Node) Covers() bool { return n.Peer != nil && !n.Rec.Unheard && !n.Blind() }

// Blind reports whether a node may have addresses that are not known. The absence of an owner
// proves nothing then.
func (n *Node) Blind() bool { return n.Status.GetBlind() || n.leftOut.Records > 0 }

// registry finds nodes.
type registry struct {
	nodes []*Node // by number; nodes[0] is never used
	byID  map[NodeID]*Node
	// places has all nodes that say that they are in one place, called those that call
	// themselves the same, and shown those that are shown by one name.
	places        map[NodeID][]*Node
	called, shown map[string][]*Node
	// next is when the first node is due; 0 for never.
	next verdict.Stamp
	wake chan struct{}
	// ringing is set while something that was due is under way.
	ringing bool
}

func newRegistry() *registry {
	return &registry{
		nodes: make([]*Node, 1), byID: make(map[NodeID]*Node), places: make(map[NodeID][]*Node),
		called: make(map[string][]*Node), shown: make(map[string][]*Node), wake: make(chan struct{}, 1),
	}
}

func list1[K comparable](m map[K][]*Node, k K, n *Node) { m[k] = append(m[k], n) }

func unlist1[K comparable](m map[K][]*Node, k K, n *Node) {
	left := slices.DeleteFunc(m[k], func(other *Node) bool { return other == n })
	if m[k] = left; len(left) == 0 {
		delete(m, k)
	}
}

func (r *registry) add(n *Node) {
	if free := slices.Index(r.nodes[1:], nil); free >= 0 && len(r.nodes) > 1 {
		n.number = uint32(free + 1) //nolint:gosec // there are few nodes
		r.nodes[n.number] = n
	} else {
		n.number = uint32(len(r.nodes)) //nolint:gosec // likewise
		r.nodes = append(r.nodes, n)
	}
	r.byID[n.ID] = n
	list1(r.places, n.ID.Place(), n)
	list1(r.called, n.Name, n)
	list1(r.shown, n.Rec.Name, n)
}

func (r *registry) drop(n *Node) {
	r.nodes[n.number] = nil
	delete(r.byID, n.ID)
	unlist1(r.places, n.ID.Place(), n)
	unlist1(r.called, n.Name, n)
	unlist1(r.shown, n.Rec.Name, n)
}

// Node returns the node of a record; nil if it is no more. Its caller holds the lock.
func (r *registry) Node(rec *verdict.Node) *Node { return r.byID[IDOf(rec)] }

// Nodes yields all nodes. Its caller holds the lock.
func (r *registry) Nodes(yield func(*Node) bool) {
	for _, n := range r.nodes {
		if n != nil && !yield(n) {
			return
		}
	}
}

// NodeCount returns the number of nodes. Its caller holds the lock.
func (r *registry) NodeCount() int { return len(r.byID) }

// At returns the nodes that say that they are in one place. The caller holds the lock.
func (r *registry) At(place NodeID) []*Node { return r.places[place] }

// Called returns the nodes that call themselves the same. The caller holds the lock.
func (r *registry) Called(name string) []*Node { return r.called[name] }

func newNode(id NodeID) *Node {
	return &Node{
		ID: id, charges: charges{account: &account{}},
		Rec: &verdict.Node{Boot: id.Boot, Netns: id.Netns, Vouched: id.Vouched, Unheard: true},
	}
}

// reset forgets all records.
func (n *Node) reset() { n.tables = tables{} }

// arm has something done about a node at a time, or sooner where that is set already.
func (f *streams) arm(n *Node, at verdict.Stamp) {
	if n.due == 0 || at < n.due {
		n.due = at
	}
	if f.next == 0 || n.due < f.next {
		f.next = n.due
		f.Wake()
	}
}

// Wake has Ring called anew.
func (f *streams) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Woken has a token when Ring may have something to do sooner than it said.
func (f *streams) Woken() <-chan struct{} { return f.wake }

// label gives a node the name that its agent calls itself. Of two with one name
// one has more to it: the one that is silent (a node whose machine was rebooted is
// another node, with the same name), or else the one with the later identity, so
// that each has the same name after every restart.
func (f *streams) label(n *Node) {
	before, name := n.Rec.Name, n.Name
	// No two have one name for a moment: findings are known by it.
	for _, other := range slices.Clone(f.shown[n.Name]) {
		switch {
		case other == n:
		case other.Peer == nil || n.ID.Compare(other.ID) < 0:
			f.rename(other, f.longName(other))
			f.Listener.NodeChanged(other)
		default:
			name = f.longName(n)
		}
	}
	f.rename(n, name)
	if before != "" && before != n.Rec.Name {
		f.Listener.NodeChanged(n)
	}
	f.Listener.NamesChanged(n)
}

// rename gives a node another name, and has all looked at that it has, and that is on the links that
// are in order of the names of their nodes.
func (f *streams) rename(n *Node, name string) {
	if n.Rec.Name == name {
		return
	}
	for _, p := range n.Pools {
		f.Listener.PoolEnded(p) // by the name of before
	}
	f.Listener.RangesChanged(n)
	f.touchNode(n)
	for _, j := range n.joints {
		f.topology.Renaming(j)
	}
	unlist1(f.shown, n.Rec.Name, n)
	n.Rec.Name = name
	list1(f.shown, name, n)
	for _, j := range n.joints {
		f.topology.Renamed(j)
	}
	f.Listener.NamesChanged(n)
	for _, p := range n.Pools {
		f.Listener.PoolChanged(p)
	}
}

// unlabel gives the name of a node that is given up to one that is heard from and
// had to have a longer one.
func (f *streams) unlabel(n *Node) {
	if n.Rec.Name != n.Name {
		return
	}
	for _, other := range f.called[n.Name] {
		if other != n && !other.Rec.Unheard {
			f.rename(n, f.longName(n))
			f.rename(other, other.Name)
			f.Listener.NodeChanged(other)
			f.Listener.NamesChanged(other)
			return
		}
	}
}

// longName is a node's name with as much of its identity as it takes.
func (f *streams) longName(n *Node) string {
	name := n.Name + "@" + n.ID.Boot[:min(len(n.ID.Boot), 8)]
	if slices.ContainsFunc(f.shown[name], func(other *Node) bool { return other != n }) {
		return name + "." + n.ID.Netns
	}
	return name
}

// rebootedAs reports whether a node is what a silent one of its name became when its
// machine was rebooted: it has a hardware address of an uplink, and another boot id.
func (n *Node) rebootedAs(now *Node) bool {
	if n == now || n.Shared || n.ID.Boot == now.ID.Boot {
		return false
	}
	old := n.uplinks() // of a clone, they are the same, too
	return slices.ContainsFunc(now.uplinks(), func(mac verdict.MAC) bool { return slices.Contains(old, mac) })
}

// uplinks are the hardware addresses of a node's uplinks, but for those that
// several may have by design.
func (n *Node) uplinks() (macs []verdict.MAC) {
	own := n.own()
	if own == 0 {
		return nil
	}
	for i := range n.inside(own) {
		one := n.interfaces.at(i)
		if mac := n.texts.macOf(one.mac); one.flags.has(uplink) && mac != "" && !mac.Shared() {
			macs = append(macs, mac)
		}
	}
	return macs
}
