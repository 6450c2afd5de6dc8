package verdict

import "slices"

// The steps that a person would take, as in the runbook for duplicate addresses.

// checks returns the facts for those steps of a diagnosis by hand about which something is known.
func (q *inquiry) checks() (checks []Check) {
	if q.c.Expected() {
		return nil
	}
	add := func(step string, facts []Fact) {
		if len(facts) > 0 {
			checks = append(checks, Check{step, facts})
		}
	}
	add(StepPods, q.seenPods())
	add(StepRoutes, q.seenRoutes())
	if q.pods() || q.inPodRange() {
		add(StepIPAM, q.seenRecords())
		add(StepPodCIDRs, q.seenPodCIDRs())
	}
	return checks
}

// seenPods returns what the Kubernetes API says about the owners.
func (q *inquiry) seenPods() (facts []Fact) {
	for _, o := range q.owners {
		if o.Pod != nil {
			facts = append(facts, Fact{Kind: SeenPod, Owners: ids(o)})
		}
	}
	return facts
}

// seenRoutes returns to which of several owners on one node the node sends packets for the address.
func (q *inquiry) seenRoutes() (facts []Fact) {
	for _, o := range q.owners {
		if o.Namespace == nil || !o.Routed() {
			continue
		}
		others := filterOwners(q.owners, func(p *Owner) bool { return p != o && p.Namespace != nil && p.Node.Is(o.Node) })
		if len(others) > 0 && !slices.ContainsFunc(others, (*Owner).Routed) {
			facts = append(facts, Fact{Kind: SeenRoute, Owners: ids(append([]*Owner{o}, others...)...)})
		}
	}
	return facts
}

// seenRecords returns the IPAM records of the address.
func (q *inquiry) seenRecords() (facts []Fact) {
	for _, p := range q.pools {
		facts = append(facts, q.record(p))
	}
	if len(facts) > 0 {
		return facts
	}
	if nodes := nodesOf(filterOwners(q.owners, func(o *Owner) bool { return o.Namespace != nil })); len(nodes) > 0 {
		return []Fact{{Kind: SeenNoRecords, Nodes: nodes}}
	}
	return nil
}

// seenPodCIDRs returns which nodes have the address in their pod ranges.
func (q *inquiry) seenPodCIDRs() []Fact {
	if !q.in.InPodCIDR {
		return nil
	}
	f := Fact{Kind: SeenPodCIDRs}
	var nodes []*Node
	for _, o := range q.owners {
		if o.Namespace == nil || slices.ContainsFunc(nodes, o.Node.Is) {
			continue
		}
		nodes = append(nodes, o.Node)
		if q.in.node(o.Node).InPodCIDR {
			f.Nodes = append(f.Nodes, o.Node.Name)
		} else {
			f.Others = append(f.Others, o.Node.Name)
		}
	}
	return []Fact{f}
}
