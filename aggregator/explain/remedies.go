package explain

import (
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// remedies builds the steps that repair the record of an address in an IPAM.
type remedies interface {
	// reserve is for an address in use that the IPAM considers free.
	reserve()
	// reassign is for an address in use that the IPAM has allocated to another owner.
	reassign()
	// release is for an address that the IPAM has allocated to an owner that is gone.
	release()
}

// remediesOf returns the remedies for the address of a finding.
func remediesOf(t *telling) remedies {
	switch {
	case t.ofNode():
		return ownAddress{t}
	case t.pool.IPAM == hostlocal.Name:
		return hostLocal{t, hostLocalFile{t.pool.Name, t.f.Address}}
	case t.pool.IPAM == whereabouts.Name:
		return whereaboutsRemedies{t}
	case t.pool.IPAM == calico.Name:
		return calicoRemedies{t}
	case t.pool.IPAM == cilium.Name:
		return ciliumRemedies{t}
	}
	return otherIPAM{t}
}

// otherIPAM builds the remedies of an IPAM without specific remedies.
type otherIPAM struct{ *telling }

func (t otherIPAM) reserve()  { t.restart("it requests a free address") }
func (t otherIPAM) reassign() { t.restart("it requests a free address") }
func (t otherIPAM) release()  {}
