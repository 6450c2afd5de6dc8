package verdict

import (
	"net/netip"
	"path"
	"time"
)

// Shared declares that addresses are held by several owners on purpose.
type Shared struct {
	Prefix netip.Prefix
	Reason string
}

// Network is a declared network: each of its addresses may be held once in the
// whole cluster, whatever node and wire the holder is on.
type Network struct {
	Name     string
	Prefixes []netip.Prefix
}

// Policy is what the operator decides. No field has a default here.
type Policy struct {
	// Cluster keeps the conflict ids of clusters apart.
	Cluster string
	// Settle is how long two owners must live side by side to be confirmed.
	Settle time.Duration
	// StaleAfter is how long an owner that only the wire shows counts as alive.
	StaleAfter time.Duration
	// HandoverGrace is what Settle is where an address may be handed over: between
	// nodes that hold it themselves, or two sandboxes of one pod.
	HandoverGrace time.Duration
	// MigrationGrace is what Settle is between two pods that run one virtual machine.
	MigrationGrace time.Duration
	// NodeTimeout is only named in texts: nodes are timed out by the caller.
	NodeTimeout time.Duration
	// LeakedAfter is how long an allocation may be without a holder.
	LeakedAfter time.Duration
	Networks    []Network
	Shared      []Shared
	// Routers are declared to answer for addresses of others.
	Routers []Router
}

// A Router declares that a workload, given by name or hardware address, answers for addresses
// of others on purpose.
type Router struct {
	// Who is a pattern (path.Match) for NAMESPACE/POD, or for the name of a workload without a
	// namespace; empty if MAC is set.
	Who    string
	MAC    MAC
	Reason string
}

// names reports whether a declaration applies to the workload in a namespace.
func (r Router) names(ns *Namespace) bool {
	name := ns.Who.Name()
	if in := ns.Who.Namespace(); in != "" {
		name = in + "/" + name
	}
	matches, _ := path.Match(r.Who, name)
	return name != "" && matches
}
