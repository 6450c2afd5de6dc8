package kube

import (
	"maps"
	"net/netip"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/vip"
)

// serviceRecord is the record of a service with addresses that move between nodes or that
// several nodes route to.
type serviceRecord struct {
	namespace, name string
	addresses       []serviceAddress
	// host is the node that holds the addresses according to kube-vip.
	host string
	// class is the load balancer class, if the service has one.
	class string
}

type serviceAddress struct {
	netip.Addr
	as string
}

// Roles of the addresses of services.
const (
	asIngress  = "the load balancer address"
	asAsked    = "the requested load balancer address"
	asExternal = "an external address (spec.externalIPs)"
)

// services has the services whose addresses explain conflicts.
type services struct {
	ipam.Mirror[*corev1.Service, serviceRecord]
	byAddress index[netip.Addr, serviceRecord]
}

func newServices(c *Cluster) services {
	return services{
		byAddress: index[netip.Addr, serviceRecord]{},
		Mirror: ipam.Mirror[*corev1.Service, serviceRecord]{
			Read: readService,
			Changed: func(at ipam.Key, before, after *serviceRecord) {
				c.services.byAddress.move(before, after, func(s *serviceRecord) (all []netip.Addr) {
					for _, a := range s.addresses {
						all = append(all, a.Addr)
					}
					return all
				})
				host := ""
				if after != nil {
					host = after.host
				}
				c.kubeVIP.Service(at, after.ingress(), host)
				for _, m := range c.ipams {
					if changed := m.objects.ServiceChanged; changed != nil {
						changed(at)
					}
				}
			},
		},
	}
}

// readService returns the record of a service: the addresses that clients outside the cluster
// use.
func readService(service *corev1.Service) (ipam.Key, *serviceRecord) {
	at := ipam.Key{Namespace: service.Namespace, Name: service.Name}
	r := &serviceRecord{namespace: at.Namespace, name: at.Name, host: ipam.Plain(service.Annotations[vip.HostAnnotation])}
	add := func(text, as string) {
		a, err := netip.ParseAddr(text)
		a = a.Unmap()
		if err == nil && !slices.ContainsFunc(r.addresses, func(known serviceAddress) bool { return known.Addr == a }) {
			r.addresses = append(r.addresses, serviceAddress{a, as})
		}
	}
	if service.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			add(ingress.IP, asIngress)
		}
		add(service.Spec.LoadBalancerIP, asAsked)
		if class := service.Spec.LoadBalancerClass; class != nil {
			r.class = ipam.Plain(*class)
		}
	}
	for _, ip := range service.Spec.ExternalIPs {
		add(ip, asExternal)
	}
	if len(r.addresses) == 0 {
		return at, nil
	}
	return at, r
}

// ingress returns the addresses of the load balancer. It returns none for nil.
func (r *serviceRecord) ingress() (addresses []netip.Addr) {
	if r == nil {
		return nil
	}
	for _, a := range r.addresses {
		if a.as == asIngress {
			addresses = append(addresses, a.Addr)
		}
	}
	return addresses
}

// controlPlaneChanged publishes the node that kube-vip elected for the addresses of the control
// plane.
func (c *Cluster) controlPlaneChanged() {
	at, holder := ipam.Key{Namespace: leaseNamespace, Name: controlPlaneLease}, ""
	if l := c.leases.of(controlPlaneLease); l != nil {
		holder = l.holder
	}
	c.kubeVIP.ControlPlane(at, slices.SortedFunc(maps.Keys(c.pods.vips), netip.Addr.Compare), holder)
}

type leaseRecord struct {
	namespace, name, holder string
	acquired, renewed       verdict.Stamp
}

// kube-vip uses these leases to elect the holder of an address: one for the control plane, and
// one for all services. kube-vip can also use one lease per service, but its holder is also in
// the service's annotation kube-vip.io/vipHost. MetalLB has no leases.
const (
	leaseNamespace    = "kube-system"
	controlPlaneLease = "plndr-cp-lock"
	servicesLease     = "plndr-svcs-lock"
)

// leases has the leases of kube-vip, by name. Each is followed by itself, because other leases, above all
// the node heartbeats, change every few seconds.
type leases map[string]*ipam.Mirror[*coordinationv1.Lease, leaseRecord]

func (all leases) of(name string) *leaseRecord {
	return all[name].Records[ipam.Key{Namespace: leaseNamespace, Name: name}]
}

func readLease(lease *coordinationv1.Lease) (ipam.Key, *leaseRecord) {
	at := ipam.Key{Namespace: lease.Namespace, Name: lease.Name}
	r := &leaseRecord{namespace: at.Namespace, name: at.Name}
	if lease.Spec.HolderIdentity != nil {
		r.holder = ipam.Plain(*lease.Spec.HolderIdentity)
	}
	if lease.Spec.AcquireTime != nil {
		r.acquired = verdict.At(lease.Spec.AcquireTime.Time)
	}
	if lease.Spec.RenewTime != nil {
		r.renewed = verdict.At(lease.Spec.RenewTime.Time)
	}
	return at, r
}
