package facts

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// NodeID is the identity of a node; its name is only a label. It includes the name under which the
// agent authenticated, so an agent that claims to run on another agent's machine is a separate node
// and locks no other agent out.
type NodeID struct{ Boot, Netns, Vouched string }

// IDOf returns the identity of a node from its record.
func IDOf(rec *verdict.Node) NodeID { return NodeID{rec.Boot, rec.Netns, rec.Vouched} }

// Place returns the boot ID and network namespace of a node, which no other node should report.
func (id NodeID) Place() NodeID { return NodeID{Boot: id.Boot, Netns: id.Netns} }

// Compare orders identities.
func (id NodeID) Compare(other NodeID) int {
	return cmp.Or(strings.Compare(id.Boot, other.Boot), strings.Compare(id.Netns, other.Netns), strings.Compare(id.Vouched, other.Vouched))
}

// A Peer is the open stream of a node's agent.
type Peer interface {
	// End ends the stream with an error.
	End(err error)
	// Contest asks the agent to watch an address more closely, or to stop doing so.
	Contest(a netip.Addr, contested bool)
	// Check asks the agent to read an address again.
	Check(a netip.Addr)
	// Departed tells the agent that an owner on another node does not have an address with a hardware address any more.
	Departed(a netip.Addr, mac verdict.MAC)
	// AskResync asks the agent for a snapshot.
	AskResync()
	// Ping pings the agent, unless a ping is unanswered.
	Ping(now verdict.Stamp)
	// Lag returns how far the aggregator lags behind the agent, if that is known.
	Lag(now verdict.Stamp) (lag time.Duration, known bool)
}

// Node holds the tables that one agent has reported. Its fields are guarded by the lock of the
// facts.
type Node struct {
	ID NodeID
	// Rec is the node's record in cases. It may change.
	Rec *verdict.Node
	Agent
	// Peer is the open stream; nil if there is none.
	Peer Peer
	// Shared is set if a disconnected node shared its name with another one while both were
	// connected. The other node is then not its successor after a reboot.
	Shared bool
	Pools  []*Pool
	// Corrections counts strings that were corrected since the last snapshot, by field.
	Corrections map[string]int

	tables
	counts
	charges
	number uint32
	// due is when the node times out or is forgotten; 0 for never.
	due verdict.Stamp
	// former is set if another agent has reported the records, until the snapshot of the present one is complete.
	// formerUntil is when the first claim ends that only a former agent has reported; 0 for never.
	former      bool
	formerUntil verdict.Stamp
	// outsideAfter is when frames with the MACs of the node that enter it begin to count as those of machines outside.
	outsideAfter verdict.Stamp
	// stepped is the part of Rec.ClockStep by which times of former agents have been corrected.
	stepped time.Duration
	beliefs map[beliefKey]*belief
	// believed counts them by link and hardware address.
	believed map[beliefKey]int
	// joints are the node's links in the topology.
	joints map[uint32]*Link
	// writer is held during a change of the node that takes several pieces.
	writer sync.Mutex
}

// Agent is what an agent reports about itself.
type Agent struct {
	// Name is the name that the agent reports; Rec.Name may be longer.
	Name            string
	Version, Kernel string
	Status          *pb.StatusRecord
	// Ports is the number of ports that the observer is attached to.
	Ports                  int
	ConnectedAt, LastHeard verdict.Stamp
	// JudgedAt is when the report with which the agent connected was judged; 0 until then.
	JudgedAt verdict.Stamp
	// ReadableAt is when records of an IPAM of the node could last be read again; 0 for never.
	ReadableAt verdict.Stamp
}

// counts are counts of the records of a node.
type counts struct {
	// wireClaims is the number of wire claims.
	wireClaims int
	// Excess is the number of wire claims above the limit since the last snapshot.
	Excess int
	// allocated is the number of allocations in the node's pools.
	allocated int
	// sweep numbers the snapshots, so that records that the last one did not contain can be
	// removed. Applying is set while a snapshot is being applied, so that only a part of the node is known.
	sweep    uint8
	Applying bool
}

// Claims returns the number of claims of the node.
func (n *Node) Claims() int { return n.claims.count }

// Namespaces returns the number of namespaces of the node.
func (n *Node) Namespaces() int { return n.namespaces.count }

// PrivateInterfaces returns the number of interfaces whose addresses, other than link-local ones, are
// compared with no others.
func (n *Node) PrivateInterfaces() (private int) {
	for i := range n.interfaces.all {
		if n.interfaces.at(i).attachment != verdict.Private {
			continue
		}
		for c := range n.on(i) {
			if !n.claims.at(c).addr.Addr().IsLinkLocalUnicast() {
				private++
				break
			}
		}
	}
	return private
}

// Covers reports whether an agent reports for a node and can see into its pods.
func (n *Node) Covers() bool { return n.Peer != nil && !n.Rec.Unheard && !n.Blind() }

// Blind reports whether a node may have addresses that are not known. The absence of an owner then
// proves nothing.
func (n *Node) Blind() bool { return n.Status.GetBlind() || n.LeftOut.Records > 0 }

// registry finds nodes.
type registry struct {
	nodes []*Node // by number; nodes[0] is never used
	byID  map[NodeID]*Node
	// places has the nodes by boot ID and network namespace, called has them by the name that they
	// report, and shown has them by the name under which they are displayed.
	places        map[NodeID][]*Node
	called, shown map[string][]*Node
	// next is when the first node is due; 0 for never.
	next verdict.Stamp
	wake chan struct{}
	// ringing is set while due work is running.
	ringing bool
}

func newRegistry() registry {
	return registry{
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
	if free := slices.Index(r.nodes[1:], nil); free >= 0 {
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

// Node returns the node with a record; nil if it no longer exists. The caller holds the lock.
func (r *registry) Node(rec *verdict.Node) *Node { return r.byID[IDOf(rec)] }

// Nodes yields all nodes. The caller holds the lock.
func (r *registry) Nodes(yield func(*Node) bool) {
	for _, n := range r.nodes {
		if n != nil && !yield(n) {
			return
		}
	}
}

// NodeCount returns the number of nodes. The caller holds the lock.
func (r *registry) NodeCount() int { return len(r.byID) }

// At returns the nodes with a boot ID and network namespace. The caller holds the lock.
func (r *registry) At(place NodeID) []*Node { return r.places[place] }

// Called returns the nodes that report a name. The caller holds the lock.
func (r *registry) Called(name string) []*Node { return r.called[name] }

// Reported returns a node of before the start that has reported since; nil if it has not. was has its boot ID, and the name with
// which it was shown, while several nodes may have had the same one.
func (r *registry) Reported(was *verdict.Node) *Node {
	own, _, cloned := strings.Cut(was.Name, "@")
	for _, n := range r.called[own] {
		if (!cloned || n.ID.Boot == was.Boot) && !n.Rec.Unheard && !n.Applying {
			return n
		}
	}
	return nil
}

func newNode(id NodeID) *Node {
	return &Node{
		ID: id, charges: charges{account: &account{}},
		Rec: &verdict.Node{Boot: id.Boot, Netns: id.Netns, Vouched: id.Vouched, Unheard: true},
	}
}

// hasRecords reports whether the node has any records.
func (n *Node) hasRecords() bool { return n.namespaces.count+n.links.count+len(n.Pools) > 0 }

// reset drops all records.
func (n *Node) reset() { n.tables = tables{} }

// arm schedules work on a node, unless earlier work is scheduled.
func (f *Facts) arm(n *Node, at verdict.Stamp) {
	n.due = soonest(n.due, at)
	f.ringAt(at)
}

// ringAt requests a call of Ring at a time, unless it is called earlier.
func (f *Facts) ringAt(at verdict.Stamp) {
	if next := soonest(f.next, at); next != f.next {
		f.next = next
		f.Wake()
	}
}

// soonest returns the earlier one of two times; 0 stands for never.
func soonest(a, b verdict.Stamp) verdict.Stamp {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Wake requests a call of Ring.
func (f *Facts) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Woken returns a channel that is signalled when Ring must be called earlier than it returned.
func (f *Facts) Woken() <-chan struct{} { return f.wake }

// label sets the name under which a node is displayed to the name that its agent reports. If two
// nodes share a name, one of them gets a longer one. This is the disconnected node (after a reboot,
// a machine is a new node with the same name) or otherwise the one with the greater identity, so
// that names are the same after every restart.
func (f *Facts) label(n *Node) {
	before, name := n.Rec.Name, n.Name
	// No two nodes may have the same name at any time, because it is part of the IDs of findings.
	for _, other := range slices.Clone(f.shown[n.Name]) {
		switch {
		case other == n:
		case other.Peer == nil || n.ID.Compare(other.ID) < 0:
			f.rename(other, f.longName(other))
			f.changes.node(other)
		default:
			name = f.longName(n)
		}
	}
	f.rename(n, name)
	if before != "" && before != n.Rec.Name {
		f.changes.node(n)
	}
	f.changes.name(n)
}

// rename renames a node. It touches everything on the node and on the links that are ordered by the
// names of their nodes.
func (f *Facts) rename(n *Node, name string) {
	if n.Rec.Name == name {
		return
	}
	f.changes.Ended = append(f.changes.Ended, n.Pools...)
	for _, p := range n.Pools {
		delete(f.changes.Pools, p)
	}
	f.tell() // under its previous name
	f.changes.ranges(n)
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
	f.changes.name(n)
	for _, p := range n.Pools {
		f.changes.pool(p)
	}
}

// unlabel gives the name of a removed node to the connected node with the smallest identity that had to take a longer one.
func (f *Facts) unlabel(n *Node) {
	if n.Rec.Name != n.Name {
		return
	}
	var heir *Node
	for _, other := range f.called[n.Name] {
		if other != n && !other.Rec.Unheard && (heir == nil || other.ID.Compare(heir.ID) < 0) {
			heir = other
		}
	}
	if heir != nil {
		f.rename(n, f.longName(n))
		f.rename(heir, heir.Name)
		f.changes.node(heir)
	}
}

// longName returns a node's name with enough of its identity to make it unique.
func (f *Facts) longName(n *Node) string {
	name := n.Name + "@" + n.ID.Boot[:min(len(n.ID.Boot), 8)]
	if slices.ContainsFunc(f.shown[name], func(other *Node) bool { return other != n }) {
		return name + "." + n.ID.Netns
	}
	return name
}

// rebootedAs reports whether now is what a disconnected node with the same name has become after a
// reboot: it has another boot ID and the hardware address of one of the old uplinks.
func (n *Node) rebootedAs(now *Node) bool {
	if n == now || n.Shared || n.ID.Boot == now.ID.Boot {
		return false
	}
	old := n.uplinks() // a cloned machine has the same ones
	return slices.ContainsFunc(now.uplinks(), func(mac verdict.MAC) bool { return slices.Contains(old, mac) })
}

// uplinks returns the hardware addresses of a node's uplinks, except those that several devices
// share by design.
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
