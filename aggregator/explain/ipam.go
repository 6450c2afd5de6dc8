package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// The names of pools and allocations, and the usage of pools.

// poolName returns the name of a pool for use in a sentence.
func poolName(p *verdict.Pool) string {
	switch {
	case p.IPAM == hostlocal.Name && p.Node != nil:
		return fmt.Sprintf("host-local on node %s (%s)", p.Node.Name, p.Name)
	case p.IPAM == whereabouts.Name:
		return "whereabouts (IPPool " + p.Name + ")"
	case p.IPAM == calico.Name:
		return "Calico (IPPool " + p.Name + ")"
	case p.IPAM == cilium.Name && p.Node != nil:
		return "Cilium on node " + p.Node.Name
	case p.IPAM == cilium.Name:
		return "Cilium (CiliumNode " + p.Name + ")"
	case p.IPAM == podips.Name:
		return "the Kubernetes API"
	case p.IPAM == "":
		return "IPAM"
	}
	return p.IPAM + " (" + p.Name + ")"
}

// poolBegin returns the name of a pool for the beginning of a sentence. Names of plugins stay in
// lower case.
func poolBegin(p *verdict.Pool) string {
	if p.IPAM == hostlocal.Name || p.IPAM == whereabouts.Name {
		return poolName(p)
	}
	return capital(poolName(p))
}

// poolNext says which workload will get a free address of the pool.
func poolNext(p *verdict.Pool) string {
	switch {
	case p.Node != nil:
		return "one of the next pods that start on that node"
	case p.IPAM == whereabouts.Name:
		return "one of the next pods of that network, on any node"
	}
	return "one of the next pods, most likely on the same node"
}

// poolLost returns the time when the pool's records were lost, after a preposition. It is empty if
// the time is not known.
func poolLost(preposition string, p *verdict.Pool) string {
	if p.LostAt == 0 {
		return ""
	}
	return " " + preposition + " " + stampText(p.LostAt)
}

// fullness describes the usage of a pool.
func fullness(u verdict.PoolUse, p *verdict.Pool) string {
	if u.Size == 0 {
		return fmt.Sprintf("%s has allocated %s.", poolBegin(p), plural(u.Allocated, "address", "addresses"))
	}
	s := fmt.Sprintf("%s has allocated %d of %s (%s)", poolBegin(p), u.Allocated, addressCount(u, u.Size), percent(u))
	if u.Leaked > 0 {
		s += fmt.Sprintf(", %d of which no owner holds", u.Leaked)
	}
	if u.ExhaustedIn > 0 {
		s += fmt.Sprintf("; at the rate of the last hour, it will have none left in %s", secondsText(u.ExhaustedIn))
	}
	return s + "."
}

// addressCount formats a number of addresses of a pool.
func addressCount(u verdict.PoolUse, n uint64) string {
	of := ""
	if u.Family != "" {
		of = u.Family + " "
	}
	return plural(n, of+"address", of+"addresses")
}

// percent formats the share of a pool that is allocated.
func percent(u verdict.PoolUse) string {
	p := float64(u.Allocated) / float64(u.Size) * 100
	if p > 0 && p < 1 {
		return "less than 1 %"
	}
	return fmt.Sprintf("%d %%", int(p))
}

// allocationName returns the name of the workload or purpose that an allocation is for.
func allocationName(al *verdict.Allocation) string {
	who := "an unknown owner"
	switch {
	case al.Purpose != "" && al.Node == "":
		who = "the " + al.Purpose
	case al.Purpose != "":
		who = "the node itself (" + al.Purpose + ")"
	case al.Pod != "":
		who = "pod " + al.Namespace + "/" + al.Pod
	case al.ContainerID != "":
		who = "container " + shortID(al.ContainerID)
		if al.Interface != "" {
			who += " (" + al.Interface + ")"
		}
	}
	if al.Node != "" {
		who += " on node " + al.Node
	}
	return who
}

// allocationPlace says where an allocation is recorded.
func allocationPlace(al *verdict.Allocation) string {
	switch {
	case al.Location != "":
		return al.Location
	case al.Pool != nil && al.Pool.IPAM == hostlocal.Name:
		return strings.TrimSuffix(al.Pool.Name, "/") + "/" + al.Address.String()
	case al.Pool != nil:
		return poolName(al.Pool)
	}
	return "IPAM"
}

// addressList lists addresses for use in a sentence; if there are many, it counts the rest.
func addressList(all []netip.Addr) string {
	return list(each(all, func(a *netip.Addr) string { return a.String() }))
}
