package audit

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Nodes returns the names of the nodes that a finding is about.
func Nodes(f *verdict.Finding) (names []string) {
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i := range f.Owners {
		add(f.Owners[i].Node.Name)
	}
	for _, b := range f.Beliefs {
		if b.Count > 0 {
			add(b.Link.Node.Name)
		}
	}
	for _, t := range f.Translations {
		add(t.Node.Name)
	}
	if f.Former != nil {
		add(f.Former.Owner.Node.Name)
	}
	if f.Pool != nil && f.Pool.Node != nil {
		add(f.Pool.Node.Name)
	}
	if f.Namesakes != nil {
		for _, m := range f.Namesakes.Machines {
			add(m.Name)
		}
	}
	if f.Overlap != nil {
		return f.Overlap.Nodes
	}
	return names
}

// Addresses returns the addresses that a finding about several addresses concerns.
func Addresses(f *verdict.Finding) (addresses []netip.Addr) {
	addresses = append(addresses, f.Addresses...)
	if f.Spoof != nil {
		addresses = append(addresses, f.Spoof.Addresses...)
	}
	if f.Stock != nil {
		for _, h := range f.Stock.AtRisk {
			addresses = append(addresses, h.Address)
		}
	}
	return addresses
}
