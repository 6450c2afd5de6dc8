package explain

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// ownAddress builds the remedies for an address of a node itself, for every IPAM. Restarting the
// node would change nothing.
type ownAddress struct{ *telling }

func (t ownAddress) reserve()  { t.exclude() }
func (t ownAddress) reassign() { t.exclude() }
func (t ownAddress) release()  {}

// exclude advises to exclude the address from the pool, or to have Calico allocate it to its tunnel.
func (t ownAddress) exclude() {
	node, name := t.owner.Node.Name, kubernetesName(t.owner)
	if t.pool.IPAM == calico.Name && t.owner.Interface != nil && t.owner.Interface.Tunnel() != "" {
		t.act(say("Restart Calico on node %s: it then checks whether the address of its tunnel is allocated, and allocates it if necessary.", node).by("", restartCalicoNode(name)))
		t.byHand("", restartCalicoNode(name), "Restart calico-node on node %s: it then allocates an address for its %s.", node, t.owner.Interface.Name)
		return
	}
	how := "configure a range without addresses of nodes"
	switch t.pool.IPAM {
	case hostlocal.Name:
		how = "set rangeStart and rangeEnd in " + cmp.Or(t.pool.Config, "its CNI configuration") + " so that it is outside the range"
	case whereabouts.Name:
		how = "add it to exclude in its NetworkAttachmentDefinition"
	case calico.Name:
		how = fmt.Sprintf("create an IPReservation that contains it (reservedCIDRs: [%s])", netip.PrefixFrom(t.f.Address, t.f.Address.BitLen()))
	}
	t.advise("The address belongs to node %s itself, so a restart changes nothing. Exclude it from %s: %s. It is better to use a range that contains no nodes.", node, poolName(t.pool), how)
	t.byHand(t.node(), "", "Exclude %s, which belongs to node %s itself, from %s: %s.", t.f.Address, node, poolName(t.pool), how)
	if al := t.allocation; al.Pod != "" {
		t.act(say("Delete pod %s/%s, to which the address is allocated: its successor gets a different address.", al.Namespace, al.Pod).by("", deletePod(al.Namespace, al.Pod)))
	}
}
