package kube

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ServicesTo returns the Services of which an address is an endpoint that gets packets, in order, and whether they are known.
func (c *Cluster) ServicesTo(a netip.Addr) (services []ipam.Key, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all, _, known := c.endpoints(a)
	for _, e := range all {
		if e = corrected(e); !slices.Contains(services, e.Service) {
			services = append(services, e.Service)
		}
	}
	slices.SortFunc(services, ipam.Key.Compare)
	return services, known
}

// FormerEndpoints returns the endpoints with an address that get packets and are for pods that do not have the address
// according to the API, in order, and whether they are known.
func (c *Cluster) FormerEndpoints(a netip.Addr) (former []ipam.Endpoint, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, all, known := c.endpoints(a)
	for _, e := range all {
		former = append(former, corrected(e))
	}
	return former, known && c.health.state == pb.Kubernetes_LIVE
}

// endpoints returns the endpoints with an address, those for pods that do not have it, and whether both are known.
func (c *Cluster) endpoints(a netip.Addr) (all, former []ipam.Endpoint, known bool) {
	i := slices.IndexFunc(c.ipams, func(m *publisher) bool { return m.objects.Endpoints != nil })
	return c.ipams[i].objects.Endpoints(a)
}

// corrected returns an endpoint with names in their forms: who may write EndpointSlices chooses them.
func corrected(e ipam.Endpoint) ipam.Endpoint {
	correct(form.Label, &e.Service.Namespace, &e.Pod.Namespace)
	correct(form.Subdomain, &e.Service.Name, &e.Slice, &e.Pod.Name)
	correct(form.ID, &e.UID)
	correct(form.Name, &e.Manager)
	return e
}

// podsChanged compares endpoints again: those with these addresses, or all if there are none.
func (c *Cluster) podsChanged(addresses []netip.Addr) {
	for _, m := range c.ipams {
		if m.objects.PodsChanged != nil {
			m.objects.PodsChanged(addresses)
		}
	}
}

// PodHas implements ipam.Publisher.
func (m *publisher) PodHas(uid string, a netip.Addr) bool {
	r := m.cluster.pods.byUID[uid]
	return m.cluster.health.state == pb.Kubernetes_SYNCING || r != nil && !r.Ended() && slices.Contains(r.IPs, a)
}

func (m *publisher) EndpointsChanged(a netip.Addr) {
	m.cluster.pending.addresses[a] = struct{}{}
	m.cluster.ring()
}
