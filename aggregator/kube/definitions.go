package kube

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/proto/form"
)

// ovnPlugin is the CNI plugin of OVN-Kubernetes. Its networks are one if their names are equal,
// whatever definitions they have: a ClusterUserDefinedNetwork has one in each of its namespaces.
const ovnPlugin = "ovn-k8s-cni-overlay"

// resolve returns the networks of a pod's addresses. The caller holds mu.
func (c *Cluster) resolve(r *podRecord) (all []verdict.Membership) {
	for _, m := range r.rare().memberships {
		if m.definition == (ipam.Key{}) {
			all = append(all, m.Membership)
			continue
		}
		var of *ipam.Definition // nil if it is not known
		if i := slices.IndexFunc(c.ipams, func(p *publisher) bool { return p.objects.Definition != nil }); i >= 0 {
			of = c.ipams[i].objects.Definition(m.definition)
		}
		switch {
		case of == nil:
		case m.OVS && of.Plugin == ovnPlugin:
			m.Network = form.Name.Correct("udn/" + of.Name)
		case m.OVS, of.IPAM == "": // nothing makes the address unique
		default:
			m.Network = verdict.DefinitionNetwork(m.definition.Namespace, m.definition.Name)
			m.PerNode = of.IPAM == hostlocal.Name // it allocates on each node without regard to the others
		}
		all = append(all, m.Membership)
	}
	for _, m := range c.ipams {
		if devices := m.objects.Devices; devices != nil {
			for _, d := range devices(r.UID) {
				correct(form.Interface, &d.Interface)
				all = append(all, verdict.Membership{Address: d.Address, Interface: d.Interface, Device: true})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b verdict.Membership) int { return a.Address.Compare(b.Address) })
	return all[:min(len(all), mostMemberships)]
}

// unreadProblem is the key of the problem that annotations about networks cannot be read.
const unreadProblem = "annotations"
