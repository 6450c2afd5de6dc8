package verdict

import "slices"

// checks returns the facts for those steps of a diagnosis by hand about which something is known. The steps are
// those that a person would take, as in the runbook for duplicate addresses.
func (q *inquiry) checks() (checks []Check) {
	if q.c.Expected() {
		return nil
	}
	var pods, routes, records []Fact
	ranges := Fact{Kind: SeenPodCIDRs}
	var nodes []*Node
	for _, o := range q.owners {
		if o.Pod != nil {
			pods = append(pods, Fact{Kind: SeenPod, Owners: ids(o)})
		}
		if o.Namespace == nil {
			continue
		}
		// To which of several owners on one node the node sends packets for the address.
		others := filterOwners(q.owners, func(p *Owner) bool { return p != o && p.Namespace != nil && p.Node.Is(o.Node) })
		if o.Routed() && len(others) > 0 && !slices.ContainsFunc(others, (*Owner).Routed) {
			routes = append(routes, Fact{Kind: SeenRoute, Owners: ids(append([]*Owner{o}, others...)...)})
		}
		if slices.ContainsFunc(nodes, o.Node.Is) {
			continue
		}
		if nodes = append(nodes, o.Node); q.in.node(o.Node).InPodCIDR {
			ranges.Nodes = append(ranges.Nodes, o.Node.Name)
		} else {
			ranges.Others = append(ranges.Others, o.Node.Name)
		}
	}
	for _, p := range q.pools {
		records = append(records, q.record(p))
	}
	if len(records) == 0 && len(nodes) > 0 {
		records = []Fact{{Kind: SeenNoRecords, Nodes: nodesOf(filterOwners(q.owners, func(o *Owner) bool { return o.Namespace != nil }))}}
	}
	add := func(step string, facts ...Fact) {
		if len(facts) > 0 {
			checks = append(checks, Check{step, facts})
		}
	}
	add(StepPods, pods...)
	add(StepRoutes, routes...)
	if q.pods() || q.inPodRange() {
		add(StepIPAM, records...)
		if q.in.InPodCIDR {
			add(StepPodCIDRs, ranges)
		}
	}
	return checks
}
