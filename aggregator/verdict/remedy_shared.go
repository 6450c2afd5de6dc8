package verdict

import "slices"

// sharedAnswered: several have the address on a loopback or dummy device, and answer
// for it on a wire.
func (t *telling) sharedAnswered() {
	owners := t.f.Owners
	addr := t.f.Address
	t.told.Summary = addr.String() + " stands on a loopback or dummy device of several, and they answer for it on a wire: " +
		list(each(owners, (*Owner).placed)) + ". Who asks there gets any one of them, by chance."
	for i := range owners {
		for _, c := range owners[i].Claims {
			if c.Wire() && !c.Weak() {
				t.evidence("%s was seen with it on %s, last at %s, by the clock of that node.", capital(owners[i].name()), witness(c), stampText(c.Last))
				break
			}
		}
	}
	silent := either("one of them alone is to answer for it, or none")
	var nodes []string
	for i := range owners {
		if node := owners[i].Node.Name; !slices.Contains(nodes, node) && len(nodes) < mostKept {
			nodes = append(nodes, node)
			silent.Actions = append(silent.Actions, say("On node %s, have Linux answer only for addresses of the interface that is asked, unless that node is the one that is to answer. kube-proxy does so itself in IPVS mode with `strictARP: true`, which MetalLB needs in that mode.", node).
				by(node, "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"))
		}
	}
	if more := len(owners) - len(nodes); more > 0 {
		silent.Actions = append(silent.Actions, say("Do the same on the other nodes that have it (%d more).", more))
	}
	t.act(say("Decide whether several are to answer for the address: Linux answers for any address that it has, on every interface, unless it is told not to.").or(
		silent,
		either("all are to answer for it on purpose (anycast)", say("Say so to the aggregator: --shared %s=REASON.", addr)),
	))
	t.closing()
}
