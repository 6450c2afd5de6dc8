package kube

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// This file finds the addresses of pods and nodes that Kubernetes itself gives away, also of nodes without an agent: as
// the address of a Service, or as that of a pod and of a node.

// podCompared reports whether an address of a pod is also that of a Service or of another node, or one that a Service may
// get. Simulated and virtual nodes have pods of others.
func (c *Cluster) podCompared(p *podRecord, a netip.Addr) bool {
	if c.simulated(p.Node) {
		return false
	}
	return c.ofService(a, ipam.ClusterIP, ipam.ExternalIP, ipam.Ingress) || c.servicesMayGet(a) ||
		slices.ContainsFunc(c.nodeAddresses.Of(a), func(n nodeAddresses) bool { return n.name != p.Node })
}

// nodeCompared reports whether the own address of a node is also a cluster IP or the address of a pod elsewhere, or one that
// a Service may get. As an external or load balancer address, it is intended.
func (c *Cluster) nodeCompared(n nodeAddresses, a netip.Addr) bool {
	if !n.own(a) {
		return false
	}
	return c.ofService(a, ipam.ClusterIP) || c.servicesMayGet(a) ||
		slices.ContainsFunc(c.addresses.Of(a), func(p *podRecord) bool { return p.Node != n.name && !c.simulated(p.Node) })
}

// simulated reports whether a node is known to be simulated or virtual.
func (c *Cluster) simulated(node string) bool {
	n := c.nodes.of(node)
	return n != nil && n.simulated
}

// ofService reports whether nodes redirect packets for an address, as one of these fields of a Service.
func (c *Cluster) ofService(a netip.Addr, fields ...ipam.ServiceField) bool {
	for s := range c.services.byAddress[a] {
		if !s.Unproxied && slices.ContainsFunc(s.Addresses, func(of ipam.ServiceAddress) bool { return of.Addr == a && slices.Contains(fields, of.Field) }) {
			return true
		}
	}
	return false
}

func (c *Cluster) servicesMayGet(a netip.Addr) bool {
	for p := range c.servicePools {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// compare compares addresses again.
func (c *Cluster) compare(addresses ...netip.Addr) {
	for _, a := range addresses {
		c.addresses.Publish(a)
		c.nodeAddresses.Publish(a)
	}
}

// compareAll compares the addresses of all pods and nodes again that a change concerns.
func (c *Cluster) compareAll(concerned func(netip.Addr) bool) {
	compare := func(addresses []netip.Addr) {
		for _, a := range addresses {
			if concerned(a) {
				c.compare(a)
			}
		}
	}
	for _, p := range c.pods.Records {
		compare(p.IPs)
	}
	for _, n := range c.nodes.Records {
		compare(n.addresses)
	}
}

// servicePoolChanged compares addresses again after a pool of which Services get addresses has changed. A pool is nil if
// there was none, or is none any more.
func (c *Cluster) servicePoolChanged(before, after *verdict.Pool) {
	var was, is []ipam.Range
	if before != nil && before.Services != "" {
		delete(c.servicePools, before)
		was = before.Ranges
	}
	if after != nil && after.Services != "" {
		c.servicePools[after] = struct{}{}
		is = after.Ranges
	}
	if !slices.Equal(was, is) {
		changed := ipam.Union(slices.Concat(was, is))
		c.compareAll(func(a netip.Addr) bool { return ipam.Contain(changed, a) }) // there may be many pools, and many pods
	}
}
