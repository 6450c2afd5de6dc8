package explain

import (
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// ipamOf returns the IPAM of a pool.
func ipamOf(p *verdict.Pool) *ipam.IPAM { return registry.Of(p.IPAM) }

// remediesOf returns the remedies for the address of a finding.
func remediesOf(t *findingBuilder) ipam.Remedies {
	if t.ofNode() {
		return ownAddress{t}
	}
	if t.owner != nil && t.owner.InGuest() && !ipamOf(t.pool).Leases {
		return guest{t}
	}
	if of := ipamOf(t.pool).Remedies; of != nil {
		return of(t.remedyCase(), t)
	}
	return otherIPAM{t}
}

// remedyCase describes the address to the remedies of an IPAM.
func (t *findingBuilder) remedyCase() ipam.Case {
	c := ipam.Case{Address: t.f.Address, Pool: &t.pool.Pool, Node: nodeOf(t.pool), Allocation: t.allocation.Allocation}
	o := t.owner
	if o == nil {
		return c
	}
	w := o.Workload()
	c.Holder = &ipam.Holder{
		Name: OwnerName(o), IsPod: o.Kind() == verdict.Pod, UID: w.UID, Sandbox: w.Sandbox(),
		Place: ipam.Place{Node: o.Node.Name, OfAllocation: o.OnNode(t.allocation.Node)},
	}
	if namespace, name := o.Named(); c.Holder.IsPod && namespace != "" && name != "" {
		c.Holder.Namespace, c.Holder.Pod = namespace, name
	}
	if i := o.Interface; i != nil && i.Namespace.ID == o.ID {
		c.Holder.Interface = i.Name
	}
	if o.Namespace != nil {
		c.Holder.Netns = o.Namespace.Netns
	}
	if o.Pod != nil {
		c.Holder.KubernetesNode = o.Pod.Node
	}
	if name := o.Node.IPAMName; !o.OnNode(name.Name) {
		c.Holder.WrongName = name
	}
	return c
}

// otherIPAM builds the remedies of an IPAM without specific remedies.
type otherIPAM struct{ *findingBuilder }

func (t otherIPAM) Reserve()  { t.Restart("it requests a free address") }
func (t otherIPAM) Reassign() { t.Restart("it requests a free address") }
func (t otherIPAM) Release()  {}
