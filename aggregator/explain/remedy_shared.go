package explain

import (
	"slices"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

// buildShared builds the text of the finding that several owners have the address on a loopback or
// dummy device and answer for it on a link.
func buildShared(t *findingBuilder) {
	owners := t.f.Owners
	addr := t.f.Address
	t.Summary = "Several owners have " + addr.String() + " on a loopback or dummy device and answer for it on a link: " +
		list(each(owners, placed)) + ". Which of them a client reaches is arbitrary."
	for i := range owners {
		for _, c := range owners[i].Claims {
			if c.Wire() && !c.Weak() {
				t.State("%s was seen with it on %s, most recently at %s by the clock of that node.", capital(OwnerName(&owners[i])), witness(c), stampText(c.Last))
				break
			}
		}
	}
	var silent []advice.Action
	choice := []advice.Alternative{advice.Either("all of them intentionally answer for it (anycast)", advice.Say("Declare this to the aggregator: --shared %s=REASON.", addr)), {}}
	var nodes []string
	for i := range owners {
		if node := owners[i].Node.Name; !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
			silent = append(silent, advice.Say("On node %s, configure Linux to answer only for addresses of the interface that receives the request. In IPVS mode, kube-proxy does this itself with `strictARP: true`, which MetalLB needs in that mode.", node).
				By(node, "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"))
		}
	}
	choice[1] = advice.Either("none of them should answer for it on a link, as with the address of a Service in IPVS mode", silent...)
	for i, node := range nodes[:min(len(nodes), mostKept)] {
		choice = append(choice, advice.Either("only node "+node+" should answer for it", slices.Delete(slices.Clone(silent), i, i+1)...))
	}
	t.Act(advice.Say("Decide which owner should answer for the address on that link: by default, Linux answers on every interface for any address that it has.").Or(choice...))
	t.closing()
}
