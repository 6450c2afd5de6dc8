package model_test

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// namesakes returns the other nodes that are heard from by a name.
func (r *reference) namesakes(name string) (found []*node) {
	for _, n := range r.nodes {
		if n.name == name && n.live() {
			found = append(found, n)
		}
	}
	if len(found) < 2 {
		return nil
	}
	return found
}

// findings are what is found of addresses, by id.
func (r *reference) findings() map[string]*verdict.Finding {
	found := map[string]*verdict.Finding{}
	for _, m := range r.memory {
		for i := range m.found {
			if f := &m.found[i]; !f.Waiting {
				found[f.ID] = f
			}
		}
	}
	return found
}

// tell notes since when findings are told.
func (r *reference) tell() {
	found := r.findings()
	for id := range r.told {
		if found[id] == nil {
			delete(r.told, id)
		}
	}
	for id := range found {
		if r.told[id] == 0 {
			r.told[id] = r.now
		}
	}
}

var _ = slices.Contains[[]int]
