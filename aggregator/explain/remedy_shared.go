package explain

import (
	"slices"
)

// tellShared words the finding that several have the address on a loopback or dummy device, and answer
// for it on a wire.
func tellShared(t *telling) {
	owners := t.f.Owners
	addr := t.f.Address
	t.told.Summary = addr.String() + " stands on a loopback or dummy device of several, and they answer for it on a wire: " +
		list(each(owners, placed)) + ". Who asks there gets any one of them, by chance."
	for i := range owners {
		for _, c := range owners[i].Claims {
			if c.Wire() && !c.Weak() {
				t.evidence("%s was seen with it on %s, last at %s, by the clock of that node.", capital(OwnerName(&owners[i])), witness(c), stampText(c.Last))
				break
			}
		}
	}
	var silent []Action
	choice := []Alternative{either("all are to answer for it on purpose (anycast)", say("Say so to the aggregator: --shared %s=REASON.", addr)), {}}
	var nodes []string
	for i := range owners {
		if node := owners[i].Node.Name; !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
			silent = append(silent, say("On node %s, have Linux answer only for addresses of the interface that is asked. kube-proxy does so itself in IPVS mode with `strictARP: true`, which MetalLB needs in that mode.", node).
				by(node, "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"))
		}
	}
	choice[1] = either("none is to answer for it on a wire, as of the address of a Service in IPVS mode", silent...)
	for i, node := range nodes[:min(len(nodes), mostKept)] {
		choice = append(choice, either("node "+node+" alone is to answer for it", slices.Delete(slices.Clone(silent), i, i+1)...))
	}
	t.act(say("Decide whose the address is to be on that wire: Linux answers for any address that it has, on every interface, unless it is told not to.").or(choice...))
	t.closing()
}
