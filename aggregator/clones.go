package aggregator

import (
	"cmp"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// cloneKey is a hardware address that enters by the port of a namespace that does not have it.
type cloneKey struct {
	node nodeID
	port ifaceKey
	mac  verdict.MAC
}

// clone collects the claims that show one cloned hardware address. All of them make one
// finding.
type clone struct {
	shown map[*entry]verdict.Spoof
	told  *verdict.Finding
}

func cloneKeyOf(spoof *verdict.Spoof) cloneKey {
	port := spoof.Port
	return cloneKey{idOf(port.Namespace.Node), ifaceKey{port.Namespace.Record, port.Index}, spoof.MACs[0]}
}

// noteClones records the cloned hardware addresses in claims to an address.
func (s *store) noteClones(e *entry, clones []verdict.Spoof) {
	if e.booking == nil && len(clones) == 0 {
		return
	}
	b := e.booked()
	before := b.clones
	b.clones = nil
	for i := range clones {
		key := cloneKeyOf(&clones[i])
		c := s.clones[key]
		if c == nil {
			c = &clone{shown: make(map[*entry]verdict.Spoof)}
			s.clones[key] = c
		}
		c.shown[e] = clones[i]
		b.clones = append(b.clones, key)
		s.tellClone(c, &clones[i])
	}
	for _, key := range before {
		if slices.Contains(b.clones, key) {
			continue
		}
		c := s.clones[key]
		if delete(c.shown, e); len(c.shown) == 0 {
			s.hidden = append(s.hidden, key)
		}
	}
	e.unbooked()
}

// endClones ends the findings about hardware addresses that no claim shows any more. That is known
// once all addresses are judged that something changed about.
func (s *store) endClones() {
	for _, key := range s.hidden {
		if c := s.clones[key]; c != nil && len(c.shown) == 0 {
			delete(s.clones, key)
			s.endFinding(nil, c.told)
		}
	}
	s.hidden = nil
}

// tellClone publishes the finding with the newest claim only. wholeSpoof adds up all claims.
func (s *store) tellClone(c *clone, newest *verdict.Spoof) {
	spoof := *newest
	f := s.policy.CloneFinding(&spoof)
	if c.told != nil && c.told.ID != f.ID {
		s.endFinding(nil, c.told) // its node or port has another name now
	}
	c.told = &f
	s.tellFinding(nil, c.told)
}

// wholeSpoof returns a finding about false claims with the namespaces that they may have
// deceived, and with all claims that show a cloned hardware address.
func (s *store) wholeSpoof(f *verdict.Finding) *verdict.Finding {
	spoof := *f.Spoof
	spoof.Exposed = s.onLink(spoof.Link, spoof.Sender)
	if f.Kind != verdict.FindingMACCloned {
		whole := *f
		whole.Spoof = &spoof
		return &whole
	}
	if c := s.clones[cloneKeyOf(&spoof)]; c != nil {
		spoof.Count, spoof.Addresses = 0, nil
		for _, one := range c.shown {
			spoof.Merge(&one)
		}
	}
	whole := *f
	whole.Spoof = &spoof
	return &whole
}

// onLink returns the records of the namespaces that have an interface on a link, without one
// namespace.
func (s *store) onLink(l *verdict.Link, except *verdict.Namespace) (found []*verdict.Namespace) {
	if l == nil {
		return nil
	}
	n := s.nodes[idOf(l.Node)]
	if n == nil {
		return nil
	}
	for i := range n.interfaces.all() {
		ns := i.namespace.rec
		port := i.rec.Peer != 0 && l.Kind != verdict.PointToPoint // the namespace behind it is on the link, not the port
		if i.link != nil && i.link.rec.Name == l.Name && !port && ns.ID != except.ID && !slices.Contains(found, ns) {
			found = append(found, ns)
		}
	}
	slices.SortFunc(found, func(a, b *verdict.Namespace) int { return cmp.Compare(a.Record, b.Record) })
	return found
}
