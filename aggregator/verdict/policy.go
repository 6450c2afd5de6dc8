package verdict

import (
	"net/netip"
	"path"
	"time"
)

// Shared declares that several owners hold the addresses of a prefix on purpose.
type Shared struct {
	Prefix netip.Prefix
	Reason string
}

// Network is a declared network: each of its addresses must be unique in the whole cluster, on
// whichever node and link it is.
type Network struct {
	Name     string
	Prefixes []netip.Prefix
}

// Policy is the configuration of verdicts. No field has a default here.
type Policy struct {
	// Cluster is part of conflict IDs, so that those of different clusters differ.
	Cluster string
	// Settle is how long two owners must coexist before a conflict is confirmed.
	Settle time.Duration
	// StaleAfter is how long an owner that is only seen on the wire counts as live after its last
	// frame.
	StaleAfter time.Duration
	// HandoverGrace replaces Settle where an address may be handed over: between nodes that have it
	// themselves, or between two sandboxes of one pod.
	HandoverGrace time.Duration
	// MigrationGrace replaces Settle for two pods that run one virtual machine.
	MigrationGrace time.Duration
	// NodeTimeout is used in texts only; the caller times nodes out.
	NodeTimeout time.Duration
	// LeakedAfter is how long an allocation may be unused before it is reported as leaked.
	LeakedAfter time.Duration
	// ReusedWithin is the time after its former owner left within which an address is reported as reused
	// too soon; 0 if it is never reported.
	ReusedWithin time.Duration
	Networks     []Network
	Shared       []Shared
	// Routers are declared to answer for addresses of others.
	Routers []Router
}

// A Router declares that a workload answers on purpose for addresses of others. It is identified by
// name or hardware address.
type Router struct {
	// Who is a pattern (path.Match) for NAMESPACE/POD, or for the name of a workload without a
	// namespace; empty if MAC is set.
	Who    string
	MAC    MAC
	Reason string
}

// names reports whether the declaration applies to the workload in a namespace.
func (r Router) names(ns *Namespace) bool {
	name := ns.Who.Name()
	if in := ns.Who.Namespace(); in != "" {
		name = in + "/" + name
	}
	matches, _ := path.Match(r.Who, name)
	return name != "" && matches
}
