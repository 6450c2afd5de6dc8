package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// The names of pools and allocations, and how full a pool is.

// poolName names a pool in a sentence.
func poolName(p *verdict.Pool) string {
	switch {
	case p.IPAM == verdict.HostLocal && p.Node != nil:
		return fmt.Sprintf("host-local on node %s (%s)", p.Node.Name, p.Name)
	case p.IPAM == verdict.Whereabouts:
		return "whereabouts (IPPool " + p.Name + ")"
	case p.IPAM == verdict.Calico:
		return "Calico (IPPool " + p.Name + ")"
	case p.IPAM == verdict.Cilium && p.Node != nil:
		return "Cilium on node " + p.Node.Name
	case p.IPAM == verdict.Cilium:
		return "Cilium (CiliumNode " + p.Name + ")"
	case p.IPAM == verdict.KubernetesAPI:
		return "the Kubernetes API"
	case p.IPAM == "":
		return "its IPAM"
	}
	return p.IPAM + " (" + p.Name + ")"
}

// poolBegin names a pool at the beginning of a sentence: names of plugins stay as they are.
func poolBegin(p *verdict.Pool) string {
	if p.IPAM == verdict.HostLocal || p.IPAM == verdict.Whereabouts {
		return poolName(p)
	}
	return capital(poolName(p))
}

// poolNext says who will be given a free address of the pool.
func poolNext(p *verdict.Pool) string {
	switch {
	case p.Node != nil:
		return "one of the next pods that start there"
	case p.IPAM == verdict.Whereabouts:
		return "one of the next pods of that network, on whatever node"
	}
	return "one of the next pods, most likely on the same node"
}

// poolLost says when the pool's records were lost.
func poolLost(p *verdict.Pool) string {
	if p.LostAt == 0 {
		return ""
	}
	return ": they were lost at " + stampText(p.LostAt)
}

// fullness says how full a pool is.
func fullness(u verdict.PoolUse, p *verdict.Pool) string {
	if u.Size == 0 {
		return fmt.Sprintf("%s has given %s.", poolBegin(p), plural(u.Allocated, "address", "addresses"))
	}
	s := fmt.Sprintf("%s has given %d of %s (%s)", poolBegin(p), u.Allocated, addressCount(u, u.Size), percent(u))
	if u.Leaked > 0 {
		s += fmt.Sprintf(", %d of which nobody holds", u.Leaked)
	}
	if u.ExhaustedIn > 0 {
		s += fmt.Sprintf("; at the rate of the last hour it has none left in %s", secondsText(u.ExhaustedIn))
	}
	return s + "."
}

// addressCount returns a number of addresses of a pool in words.
func addressCount(u verdict.PoolUse, n uint64) string {
	of := ""
	if u.Family != "" {
		of = u.Family + " "
	}
	return plural(n, of+"address", of+"addresses")
}

// percent says how much of a pool is given.
func percent(u verdict.PoolUse) string {
	p := float64(u.Allocated) / float64(u.Size) * 100
	if p > 0 && p < 1 {
		return "less than 1 %"
	}
	return fmt.Sprintf("%d %%", int(p))
}

// allocationName names the workload or purpose that an allocation is for.
func allocationName(al *verdict.Allocation) string {
	who := "somebody"
	switch {
	case al.Purpose != "" && al.Node == "":
		who = "the " + al.Purpose // of no node
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

// allocationPlace says where an allocation is written.
func allocationPlace(al *verdict.Allocation) string {
	switch {
	case al.Location != "":
		return al.Location
	case al.Pool != nil && al.Pool.IPAM == verdict.HostLocal:
		return strings.TrimSuffix(al.Pool.Name, "/") + "/" + al.Address.String()
	case al.Pool != nil:
		return poolName(al.Pool)
	}
	return "IPAM"
}

// addressList lists addresses as people do; many are only counted.
func addressList(all []netip.Addr) string {
	return list(each(all, func(a *netip.Addr) string { return a.String() }))
}
