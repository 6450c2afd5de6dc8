package explain

import "github.com/ipwitness/ipwitness/ipam/advice"

// ownAddress builds the remedies for an address of a node itself, for every IPAM. Restarting the
// node would change nothing.
type ownAddress struct{ *findingBuilder }

func (t ownAddress) Reserve()  { t.exclude() }
func (t ownAddress) Reassign() { t.exclude() }
func (t ownAddress) Release()  {}

// exclude advises to exclude the address from the pool, or to have the IPAM allocate it to its tunnel.
func (t ownAddress) exclude() {
	node, m := t.owner.Node.Name, ipamOf(t.pool)
	if m.Daemon.Name != "" && t.owner.Interface != nil && t.owner.Interface.Tunnel() != "" {
		restart := m.Daemon.Restart(kubernetesName(t.owner))
		t.Act(advice.Say("Restart %s on node %s: it then checks whether the address of its tunnel is allocated, and allocates it if necessary.", m.Title, node).By("", restart))
		t.ByHand("", restart, "Restart %s on node %s: it then allocates an address for its %s.", m.Daemon.Name, node, t.owner.Interface.Name)
		return
	}
	how := exclusion(t.pool, t.f.Address).How
	t.Advise("The address belongs to node %s itself, so a restart changes nothing. Exclude it from %s: %s. It is better to use a range that contains no addresses of nodes.", node, poolName(t.pool), how)
	t.ByHand(nodeOf(t.pool), "", "Exclude %s, which belongs to node %s itself, from %s: %s.", t.f.Address, node, poolName(t.pool), how)
	if al := t.allocation; al.Pod != "" {
		t.Act(advice.Say("Delete pod %s/%s, to which the address is allocated: its successor gets a different address.", al.Namespace, al.Pod).By("", deletePod(al.Namespace, al.Pod)))
	}
}
