package facts

import (
	"cmp"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Tenure is since when an owner of an address has had it, as the journal has it from before the start.
type Tenure struct {
	Address index.Address
	// Boot is the boot ID of the owner's node, Owner is the owner's ID, and MAC its hardware address.
	Boot, Owner string
	MAC         verdict.MAC
	// Assigned is when its kernel began to use the address; 0 if only frames show the owner. First is when it was first
	// seen.
	Assigned, First verdict.Stamp
}

// RecallTenures takes over since when owners have had their addresses, for as long as their kernels do not report that
// they were set again. It replaces what was recalled before.
func (f *Facts) RecallTenures(all []Tenure) *Batch {
	b := newBatch()
	f.piece(b, func() { f.tenures = make(map[index.Address][]Tenure) })
	inPieces(f, b, all, func(t Tenure) {
		f.tenures[t.Address] = append(f.tenures[t.Address], t)
		f.touch(t.Address)
		for n, c := range f.claimsTo(t.Address) {
			f.resume(n, c)
		}
	})
	f.close(b)
	return b
}

// resume gives a claim the times of the recalled tenure that it continues.
func (f *Facts) resume(n *Node, c uint32) {
	one := n.claims.at(c)
	for _, t := range f.tenures[one.addr] {
		switch at := n.interfaces.at(one.port); {
		case t.Boot != n.ID.Boot:
			continue
		case one.wire() != 0:
			if n.texts.macOf(n.hardware.at(n.wires.at(one.wire()).hardware).mac) != t.MAC {
				continue
			}
		case n.texts.macOf(at.mac) != t.MAC, n.idOf(at.namespace) != t.Owner:
			continue
		case one.kind != verdict.Assigned: // only its first sight
		case t.Assigned == 0, one.assigned > t.Assigned.Add(sameAssignment):
			continue
		default:
			one.assigned = t.Assigned
		}
		one.flags |= continued
		if t.First != 0 && t.First < one.first {
			h := n.history(one)
			one.first = t.First
			n.setHistory(one, h)
		}
	}
}

// A Departure is the end of an address of an owner's kernel, as the journal has it from before the start.
type Departure struct {
	Address index.Address
	// Node is the name of the owner's node, and MAC is the owner's hardware address.
	Node string
	MAC  verdict.MAC
	// At is when the owner left; 0 if it had the address at the end of the journal, and has left if its node does not
	// report it again.
	At verdict.Stamp
}

// RecallDepartures takes over which owners have left, in addition to those that are known: once a snapshot of its node
// confirms it, earlier frames of an owner do not show that it has the address. Without departures, it forgets those of nodes
// that have not reported.
func (f *Facts) RecallDepartures(all []Departure) *Batch {
	b := newBatch()
	f.piece(b, func() {
		if f.departures == nil || all == nil {
			f.departures = make(map[string][]Departure)
		}
	})
	inPieces(f, b, all, func(d Departure) { f.departures[d.Node] = append(f.departures[d.Node], d) })
	for _, n := range f.allNodes() {
		f.piece(b, func() {
			if !n.Rec.Unheard {
				f.buryDeparted(n)
			}
		})
	}
	f.close(b)
	return b
}

// buryDeparted buries what owners on a node gave up before the start, and removes their earlier frames. The node is listed.
func (f *Facts) buryDeparted(n *Node) {
	if n.Blind() {
		return
	}
	for _, d := range f.departures[n.Rec.Name] {
		at := cmp.Or(d.At, n.Rec.Listed)
		if f.holderWith(n, d.Address, n.texts.mac(d.MAC)) != "" || f.tombstones[tombstone{d.Address, d.MAC}].at >= at {
			continue
		}
		f.bury(nil, d.Address, d.MAC, f.now().Sub(at))
		var frames []ref
		for by, c := range f.claimsTo(d.Address) {
			w := by.claims.at(c).wire()
			if w != 0 && by.texts.macOf(by.hardware.at(by.wires.at(w).hardware).mac) == d.MAC && f.isBuried(by, d.Address, d.MAC, by.wires.at(w).seen) {
				frames = append(frames, refOf(by.number, c))
			}
		}
		for _, r := range frames {
			f.touch(d.Address)
			f.removeFromIndexes(f.nodes[r.node()], r.index())
			f.nodes[r.node()].departed(d.Address, d.MAC)
		}
	}
	delete(f.departures, n.Rec.Name)
}

// RecallPrograms takes over the programs that moved virtual addresses on nodes before the start, by the boot ID and the
// network namespace of the node.
func (f *Facts) RecallPrograms(programs map[NodeID]string) *Batch {
	b := newBatch()
	f.piece(b, func() {
		f.programs = programs
		for n := range f.Nodes {
			if program := programs[n.ID.Place()]; program != "" && n.Rec.VIPProgram == "" {
				n.Rec.VIPProgram, n.Rec.VIPProgramEnded = program, n.Rec.SeesProcesses
				f.touchNode(n)
			}
		}
	})
	f.close(b)
	return b
}
