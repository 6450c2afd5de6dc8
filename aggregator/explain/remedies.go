package explain

import "github.com/ipwitness/ipwitness/aggregator/verdict"

// remedies words how to put right what an IPAM says of an address.
type remedies interface {
	// reserve is for an address in use that the IPAM takes for free.
	reserve()
	// rebook is for an address in use that the IPAM has for another one.
	rebook()
	// release is for an address that the IPAM has for an owner that is gone.
	release()
}

// remediesOf returns the remedies for the address of a finding.
func remediesOf(t *telling) remedies {
	switch {
	case t.ofNode():
		return ownAddress{t}
	case t.pool.IPAM == verdict.HostLocal:
		return hostLocal{t, hostLocalFile{t.pool.Name, t.f.Address}}
	case t.pool.IPAM == verdict.Whereabouts:
		return whereabouts{t}
	case t.pool.IPAM == verdict.Calico:
		return calico{t}
	case t.pool.IPAM == verdict.Cilium:
		return cilium{t}
	}
	return otherIPAM{t}
}

// otherIPAM words the remedies of an IPAM without remedies of its own.
type otherIPAM struct{ *telling }

func (t otherIPAM) reserve() { t.restart("it asks for an address that is free") }
func (t otherIPAM) rebook()  { t.restart("it asks for an address that is free") }
func (t otherIPAM) release() {}
