package kube

import (
	"fmt"
	"maps"
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
		if m.definition != (ipam.Key{}) {
			switch of := c.definition(m.definition); {
			case of == nil:
			case m.OVS && of.Plugin == ovnPlugin:
				m.Network = form.Name.Correct("udn/" + of.Name)
			case m.OVS, of.IPAM == "": // nothing makes the address unique
			default:
				m.Network = verdict.DefinitionNetwork(m.definition.Namespace, m.definition.Name)
				m.PerNode = of.IPAM == hostlocal.Name // it allocates on each node without regard to the others
			}
		}
		all = append(all, m.Membership)
	}
	return all
}

// definition returns a NetworkAttachmentDefinition; nil if it is not known.
func (c *Cluster) definition(at ipam.Key) *ipam.Definition {
	for _, m := range c.ipams {
		if m.objects.Definition != nil {
			return m.objects.Definition(at)
		}
	}
	return nil
}

// resolveAgain updates the pods that are attached to a network whose definition has changed. The
// caller holds mu.
func (p *pods) resolveAgain(definition ipam.Key) {
	for _, r := range slices.Collect(maps.Keys(p.attached[definition])) {
		if at := (ipam.Key{Namespace: r.Namespace, Name: r.Name}); p.Records[at] == r {
			next := *r
			p.Records[at] = &next
			p.changed(r, &next)
		}
	}
}

// unreadProblem is the key of the problem that annotations about networks cannot be read.
const unreadProblem = "annotations"

// reportUnread reports the annotations that cannot be read, with one pod as an example. The caller
// holds mu.
func (p *pods) reportUnread() {
	text := ""
	for r := range p.unread[true] {
		text = fmt.Sprintf("cannot read annotation %s of pod %s/%s: its addresses are not compared in the networks that it names (the same for %d pods in total); "+
			"look for what wrote it, or report its format if its network plugin did", r.more.unread, r.Namespace, r.Name, len(p.unread[true]))
		break
	}
	p.cluster.problem(unreadProblem, text)
}
