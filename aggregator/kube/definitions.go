package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/form"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// definitions has the NetworkAttachmentDefinitions, which configure the networks of further
// interfaces of pods.
type definitions struct {
	ipam.Mirror[*ipam.Object, definition]
}

// definition is the record of a NetworkAttachmentDefinition.
type definition struct {
	// name is the name of the CNI network, and plugin is the type of its first plugin.
	name, plugin string
	// ipam is the IPAM that the configuration names; empty if it names none.
	ipam string
}

// ovnPlugin is the CNI plugin of OVN-Kubernetes. Its networks are one if their names are equal,
// whatever definitions they have: a ClusterUserDefinedNetwork has one in each of its namespaces.
const ovnPlugin = "ovn-k8s-cni-overlay"

// newDefinitions returns the source of the definitions. It publishes no pools.
func (c *Cluster) newDefinitions() *publisher {
	c.definitions.Read = readDefinition
	c.definitions.Changed = func(at ipam.Key, _, _ *definition) { c.pods.resolveAgain(at) }
	p := newPublisher(c, "networks")
	r := &ipam.Resource{
		Kind: whereabouts.Networks, Role: ipam.Extra, Store: &c.definitions,
		Lost: "pods of one secondary or user-defined network are compared on common links only",
	}
	p.objects.Resources = []*ipam.Resource{r}
	s := newSource(p, r)
	s.feed.name = "networks of pods" // whereabouts has a feed of the same resource
	p.sources = []*source{s}
	return p
}

// readDefinition returns the record of a NetworkAttachmentDefinition. The record is nil if its
// configuration is on the nodes, or cannot be read.
func readDefinition(o *ipam.Object) (ipam.Key, *definition) {
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var spec struct {
		Config string `json:"config"`
	}
	var config struct {
		Name string `json:"name"`
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if ipam.Part(o.Spec, "spec", &spec) != nil || json.Unmarshal([]byte(spec.Config), &config) != nil {
		return o.Key(), nil
	}
	d := &definition{name: cmp.Or(config.Name, o.Name)} // as in Multus
	for _, p := range append([]plugin{config.plugin}, config.Plugins...) {
		d.plugin, d.ipam = cmp.Or(d.plugin, p.Type), cmp.Or(d.ipam, p.IPAM.Type)
	}
	d.plugin, d.ipam = strings.Clone(d.plugin), strings.Clone(d.ipam)
	return o.Key(), d
}

// resolve returns the networks of a pod's addresses.
func (d *definitions) resolve(r *podRecord) []verdict.Membership {
	if r.more == nil || len(r.more.memberships) == 0 {
		return nil
	}
	all := make([]verdict.Membership, 0, len(r.more.memberships))
	for _, m := range r.more.memberships {
		if m.definition != (ipam.Key{}) {
			m.Network, m.PerNode = d.network(m)
		}
		all = append(all, m.Membership)
	}
	return all
}

// network returns the network of an address that a definition configures; empty if it is not known,
// or if nothing makes the address unique. perNode is set if the IPAM allocates on each node without
// regard to the others.
func (d *definitions) network(m membership) (name string, perNode bool) {
	of := d.Records[m.definition]
	switch {
	case of == nil:
		return "", false
	case m.OVS && of.plugin == ovnPlugin:
		return form.Name.Correct("udn/" + of.name), false
	case m.OVS, of.ipam == "":
		return "", false
	}
	return verdict.DefinitionNetwork(m.definition.Namespace, m.definition.Name), of.ipam == hostlocal.Name
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
	for r := range p.unread {
		text = fmt.Sprintf("cannot read annotation %s of pod %s/%s: its addresses are not compared in the networks that it names (the same for %d pods in total); "+
			"look for what wrote it, or report its format if its network plugin did", r.more.unread, r.Namespace, r.Name, len(p.unread))
		break
	}
	p.cluster.problem(unreadProblem, text)
}
