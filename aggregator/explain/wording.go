package explain

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// wording is the context for sentences about one address: the operator's policy, and the owners
// that typed reasons refer to by id.
type wording struct {
	policy  *verdict.Policy
	address netip.Addr
	owners  []verdict.Owner
	// named are other owners that reasons refer to.
	named []verdict.Owner
}

// owner returns the owner with an id; nil if there is none.
func (w *wording) owner(id string) *verdict.Owner {
	for _, owners := range [][]verdict.Owner{w.owners, w.named} {
		if i := slices.IndexFunc(owners, func(o verdict.Owner) bool { return o.ID == id }); i >= 0 {
			return &owners[i]
		}
	}
	return nil
}

// unknownOwner stands for an owner that a reason refers to and that no longer exists.
const unknownOwner = "an owner that is gone"

// name returns the name of an owner.
func (w *wording) name(id string) string {
	if o := w.owner(id); o != nil {
		return OwnerName(o)
	}
	return unknownOwner
}

// names returns the names of owners.
func (w *wording) names(ids []string) []string {
	names := make([]string, 0, len(ids))
	for _, id := range ids {
		names = append(names, w.name(id))
	}
	return names
}

// placed returns the name of an owner and its location.
func (w *wording) placed(id string) string {
	if o := w.owner(id); o != nil {
		return placed(o)
	}
	return unknownOwner
}

// node returns the node of an owner.
func (w *wording) node(id string) string {
	if o := w.owner(id); o != nil {
		return o.Node.Name
	}
	return "(gone)"
}

// exactly returns the name of a pod and its uid, if known, because another pod may have the same
// name.
func exactly(o *verdict.Owner) string {
	if w := o.Workload(); w.UID != "" && w.Name != "" {
		return OwnerName(o) + " with uid " + w.UID
	}
	return OwnerName(o)
}

// phrase describes a scope for use in a sentence.
func phrase(kind verdict.ScopeKind, name string) string {
	switch kind {
	case verdict.LinkScope:
		return "on link " + name
	case verdict.NodeScope:
		return "on node " + name
	case verdict.NetworkScope:
		return "in network " + name
	}
	return "anywhere"
}

// poolTitle returns the name of a pool with its network and node.
func poolTitle(p verdict.PoolName) string {
	name := "IPAM " + p.IPAM + " (" + p.Name
	if p.Network != "" {
		name += ", network " + p.Network
	}
	if p.Node != "" {
		return name + ", node " + p.Node + ")"
	}
	return name + ")"
}

// poolShort returns a short name of a pool.
func poolShort(p verdict.PoolName) string {
	title := cmp.Or(registry.Of(p.IPAM).Title, p.IPAM)
	if p.Node != "" {
		return title + " on node " + p.Node
	}
	return title
}

// holderName returns the name of the workload or purpose that an allocation is for.
func holderName(h verdict.Holder) string {
	var who string
	switch {
	case h.Purpose != "":
		who = "the " + h.Purpose
	case h.Pod != "":
		who = "pod " + h.Namespace + "/" + h.Pod
	case h.ContainerID != "":
		who = "container " + advice.ShortID(h.ContainerID)
	case h.MAC != "":
		who = clientName(h.MAC, h.Hostname)
	default:
		who = "an unknown owner"
	}
	if h.Node != "" {
		who += " on node " + h.Node
	}
	return who
}

// rangesText lists ranges; it is empty if no range is known.
func rangesText(r verdict.Ranges) string {
	switch {
	case len(r.List) == 0:
		return ""
	case r.Bridge:
		return r.List[0].String()
	}
	return list(each(r.List, func(r *ipam.Range) string { return r.First.String() + " to " + r.Last.String() }))
}

// networkName returns the name of a CNI network, or of the bridge if there is no network.
func networkName(network, device string) string {
	if network != "" {
		return "network " + network
	}
	return "bridge " + device
}

// nodesText lists nodes.
func nodesText(names []string) string {
	if len(names) == 1 {
		return "node " + names[0]
	}
	return "nodes " + list(names)
}

// stampExact formats a time with milliseconds; it is empty for an unknown time.
func stampExact(s verdict.Stamp) string {
	if s == 0 {
		return ""
	}
	return s.Time().Format("2006-01-02 15:04:05.000")
}

// addrText formats an address.
func addrText(a *netip.Addr) string { return a.String() }

// scopesText lists the scopes in which an owner is compared.
func scopesText(scopes []verdict.Scope) string {
	if len(scopes) == 0 {
		return "on a link that is not yet known"
	}
	return list(each(scopes, scopeText))
}

func scopeText(s *verdict.Scope) string { return phrase(s.Kind, s.Text()) }

// placesText lists owners and their locations.
func (w *wording) placesText(owners []verdict.Compared) string {
	return list(each(owners, func(c *verdict.Compared) string { return w.placed(c.Owner) }))
}
