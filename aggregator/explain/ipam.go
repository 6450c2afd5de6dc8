package explain

import (
	"fmt"
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// The names of pools and allocations, and the usage of pools.

// nodeOf returns the name of the node that a pool belongs to; it is empty for a pool of the whole
// cluster.
func nodeOf(p *verdict.Pool) string {
	if p.Node == nil {
		return ""
	}
	return p.Node.Name
}

// poolName returns the name of a pool for use in a sentence.
func poolName(p *verdict.Pool) string {
	if p.IPAM == "" {
		return "IPAM"
	}
	if p.Unread != "" {
		return ipamOf(p).Title + " (" + p.Unread + ")"
	}
	if title := ipamOf(p).PoolTitle; title != nil {
		return title(&p.Pool, nodeOf(p))
	}
	return p.IPAM + " (" + p.Name + ")"
}

// poolBegin returns the name of a pool for the beginning of a sentence. Names of plugins stay in
// lower case.
func poolBegin(p *verdict.Pool) string {
	if m := ipamOf(p); m.Title == m.Name {
		return poolName(p)
	}
	return capital(poolName(p))
}

// poolNext says which workload will get a free address of the pool.
func poolNext(p *verdict.Pool) string {
	switch {
	case p.Node != nil:
		return "one of the next pods that start on that node"
	case ipamOf(p).Secondary:
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
	case al.MAC != "":
		who = clientName(al.MAC, al.Hostname)
	case al.ContainerID != "":
		who = "container " + advice.ShortID(al.ContainerID)
		if al.Interface != "" {
			who += " (" + al.Interface + ")"
		}
	}
	if al.Node != "" {
		who += " on node " + al.Node
	}
	return who
}

// clientName returns the name of a DHCP client in a sentence.
func clientName(mac, hostname string) string {
	if hostname == "" {
		return "the DHCP client with MAC " + mac
	}
	return "the DHCP client with MAC " + mac + " (" + hostname + ")"
}

// allocationPlace says where an allocation is recorded.
func allocationPlace(al *verdict.Allocation) string {
	switch {
	case al.Location != "":
		return al.Location
	case al.Pool == nil:
		return "IPAM"
	}
	if location := ipamOf(al.Pool).Location; location != nil {
		return location(&al.Pool.Pool, al.Address)
	}
	return poolName(al.Pool)
}

// addressList lists addresses for use in a sentence; if there are many, it counts the rest.
func addressList(all []netip.Addr) string {
	return list(each(all, func(a *netip.Addr) string { return a.String() }))
}
