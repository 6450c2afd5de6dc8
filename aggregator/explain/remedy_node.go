package explain

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// ownAddress words the remedies for an address of a node itself, by whatever IPAM: to restart the
// node would change nothing.
type ownAddress struct{ *telling }

func (t ownAddress) reserve() { t.leaveOut() }
func (t ownAddress) rebook()  { t.leaveOut() }
func (t ownAddress) release() {}

// leaveOut has the pool leave the address out, or Calico book it for its tunnel.
func (t ownAddress) leaveOut() {
	node, name := t.owner.Node.Name, kubernetesName(t.owner)
	if t.pool.IPAM == verdict.Calico && t.owner.Interface != nil && t.owner.Interface.Tunnel() != "" {
		t.act(say("Restart Calico on node %s: it looks then whether the address of its tunnel is booked, and has it booked.", node).by("", restartCalicoNode(name)))
		t.byHand("", restartCalicoNode(name), "Restart calico-node on node %s: it has an address booked for its %s.", node, t.owner.Interface.Name)
		return
	}
	how := "give it a range that has no address of a node"
	switch t.pool.IPAM {
	case verdict.HostLocal:
		how = "set rangeStart and rangeEnd in " + cmp.Or(t.pool.Config, "its CNI configuration") + " so that it is outside"
	case verdict.Whereabouts:
		how = "write it into exclude of its NetworkAttachmentDefinition"
	case verdict.Calico:
		how = fmt.Sprintf("make an IPReservation with it (reservedCIDRs: [%s])", netip.PrefixFrom(t.f.Address, t.f.Address.BitLen()))
	}
	t.advise("The address is node %s's own: no restart changes that. Have %s leave it out: %s. A range in which the nodes themselves are should be another one.", node, poolName(t.pool), how)
	t.byHand(t.node(), "", "Have %s leave out %s, which is node %s's own: %s.", poolName(t.pool), t.f.Address, node, how)
	if al := t.booked; al.Pod != "" {
		t.act(say("Delete pod %s/%s, for which the address is booked: its successor gets another one.", al.Namespace, al.Pod).by("", deletePod(al.Namespace, al.Pod)))
	}
}
