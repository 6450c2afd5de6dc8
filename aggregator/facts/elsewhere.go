package facts

import (
	"maps"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/topology"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// If replicas share the addresses, each gets only some of the claims with a hardware address. What
// follows from all of them, the replicas tell each other: which links are one, and for how many addresses
// a host answers.

// A LinkID identifies a link of a node.
type LinkID struct {
	Node NodeID
	Name string
}

// A Sighting is a frame from a link that entered another one.
type Sighting struct {
	Entered, Home LinkID
	MAC           verdict.MAC
	Seen          verdict.Stamp
}

// A Host is a hardware address in frames on a link.
type Host struct {
	Link LinkID
	MAC  verdict.MAC
}

// Answers are the addresses for which a host answers, among those that a replica serves.
type Answers struct {
	// Addresses is their number, at most verdict.ManyAnswers.
	Addresses int
	// Owners are the IDs of owners that have one of them, at most verdict.SeveralOwned.
	Owners []string
}

func (a *Answers) equal(b Answers) bool {
	return a.Addresses == b.Addresses && slices.Equal(a.Owners, b.Owners)
}

// elsewhere is what replicas tell each other. It is guarded by the lock of the facts.
type elsewhere struct {
	*Facts
	// told are the answers of other replicas, by their names.
	told map[Host]map[string]Answers
	// changed has the hosts whose own answers may have changed, and own are the last ones that were
	// told to others.
	changed map[Host]struct{}
	own     map[Host]Answers
}

func newElsewhere(f *Facts) *elsewhere {
	return &elsewhere{Facts: f, told: make(map[Host]map[string]Answers), changed: make(map[Host]struct{}), own: make(map[Host]Answers)}
}

// sighted reports a frame that joined two links to the other replicas.
func (f *elsewhere) sighted(entered, home *topology.Link, mac verdict.MAC, seen verdict.Stamp) {
	if f.revision != 0 {
		f.Listener.Sighted(Sighting{linkID(entered), linkID(home), mac, seen})
	}
}

func linkID(l *topology.Link) LinkID { return LinkID{IDOf(l.Node), l.Name} }

// Sighted joins links that another replica has found to be one.
func (f *elsewhere) Sighted(all []Sighting) *Batch {
	b := newBatch()
	for some := range slices.Chunk(all, piece) {
		f.piece(b, func() {
			now := f.now()
			for i := range some {
				one := &some[i]
				entered, home := f.linkNamed(one.Entered), f.linkNamed(one.Home)
				if seen := min(one.Seen, now); entered != nil && home != nil && seen.Add(f.topology.Generation()) > now {
					f.topology.Sighted(entered, home, one.MAC, seen, now)
				}
			}
			if f.topology.Due() != 0 {
				f.Wake()
			}
		})
	}
	f.close(b)
	return b
}

// linkNamed returns a link in the topology; nil if this replica does not know it.
func (f *elsewhere) linkNamed(id LinkID) *topology.Link {
	n := f.byID[id.Node]
	if n == nil {
		return nil
	}
	l := n.link(id.Name)
	if l == 0 {
		return nil
	}
	return n.joint(l)
}

// answersChanged notes that a host may answer for other addresses than before.
func (f *elsewhere) answersChanged(n *Node, link, hw uint32) {
	if f.revision != 0 && link != 0 {
		h := f.host(n, link, hw)
		f.elsewhere.changed[Host{LinkID{n.ID, strings.Clone(h.Link.Name)}, verdict.MAC(strings.Clone(string(h.MAC)))}] = struct{}{}
	}
}

// add adds the answers of a host that other replicas know.
func (f *elsewhere) add(n *Node, link, hw uint32, addresses int, owners []string) (int, []string) {
	if len(f.told) == 0 {
		return addresses, owners
	}
	for _, a := range f.told[f.host(n, link, hw)] {
		addresses += a.Addresses
		for _, id := range a.Owners {
			if !slices.Contains(owners, id) {
				owners = append(owners, id)
			}
		}
	}
	return addresses, owners
}

func (f *elsewhere) host(n *Node, link, hw uint32) Host {
	return Host{LinkID{n.ID, n.texts.get(n.links.at(link).name)}, n.texts.macOf(n.hardware.at(hw).mac)}
}

// TakeAnswers returns the hosts whose answers have changed since the last call, as far as other replicas
// need them. A host that answers only for its own addresses is not among them.
func (f *elsewhere) TakeAnswers() map[Host]Answers {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[Host]Answers)
	for h := range f.elsewhere.changed {
		var now Answers
		if n := f.byID[h.Link.Node]; n != nil {
			if l, hw := n.link(h.Link.Name), n.hardwareNamed(h.MAC); l != 0 && hw != 0 {
				if addresses, owners, others := f.answered(n, l, hw); others {
					now = Answers{addresses, owners}
				}
			}
		}
		if before := f.own[h]; before.equal(now) {
			continue
		}
		out[h] = now
		if f.own[h] = now; now.Addresses == 0 {
			delete(f.own, h)
		}
	}
	clear(f.elsewhere.changed)
	return out
}

// AllAnswers returns the answers that other replicas need.
func (f *elsewhere) AllAnswers() map[Host]Answers {
	f.RLock()
	defer f.RUnlock()
	return maps.Clone(f.own)
}

// Answered takes the answers that another replica has told. If all is set, it has no others.
func (f *elsewhere) Answered(replica string, answers map[Host]Answers, all bool) *Batch {
	b := newBatch()
	f.piece(b, func() {
		if all {
			for h, by := range f.told {
				if _, still := answers[h]; !still {
					if _, had := by[replica]; had {
						f.setTold(h, replica, Answers{})
					}
				}
			}
		}
		for h, a := range answers {
			f.setTold(h, replica, a)
		}
	})
	f.close(b)
	return b
}

func (f *elsewhere) setTold(h Host, replica string, a Answers) {
	by := f.told[h]
	if before := by[replica]; before.equal(a) {
		return
	}
	if a.Addresses == 0 {
		if delete(by, replica); len(by) == 0 {
			delete(f.told, h)
		}
	} else {
		if by == nil {
			by = make(map[string]Answers)
			f.told[h] = by
		}
		by[replica] = a
	}
	n := f.byID[h.Link.Node]
	if n == nil {
		return
	}
	if hw := n.hardwareNamed(h.MAC); hw != 0 {
		f.touchBy(n, hw)
	}
}
