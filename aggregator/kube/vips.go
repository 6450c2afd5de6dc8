package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/proto/form"
)

type serviceRecord struct {
	ipam.Service
	// host is the node that holds the addresses according to kube-vip.
	host string
	// class is the load balancer class, if the service has one.
	class string
}

var addressRoles = map[ipam.ServiceField]string{
	ipam.ClusterIP:      "the cluster IP",
	ipam.Ingress:        "the load balancer address",
	ipam.ProxiedIngress: "the load balancer address",
	ipam.RequestedIP:    "the requested load balancer address",
	ipam.ExternalIP:     "an external address (spec.externalIPs)",
}

// services has the services whose addresses explain conflicts.
type services struct {
	ipam.Mirror[*corev1.Service, serviceRecord]
	byAddress index[netip.Addr, serviceRecord]
}

func newServices(c *Cluster) services {
	return services{
		byAddress: index[netip.Addr, serviceRecord]{},
		Mirror: ipam.Mirror[*corev1.Service, serviceRecord]{
			Parse: readService,
			Changed: func(at ipam.Key, before, after *serviceRecord) {
				c.services.byAddress.move(before, after, func(s *serviceRecord) (all []netip.Addr) {
					for _, a := range s.Addresses {
						if !slices.Contains(all, a.Addr) {
							all = append(all, a.Addr)
						}
					}
					return all
				})
				now := ptr.Deref(after, serviceRecord{})
				named := at.Namespace + "/" + at.Name
				c.kubeVIP.Set(at, vip.Elected(now.host, "Service "+named, "services "+named+" /metadata/annotations/"+vip.HostAnnotation, now.Ingress()), "")
				for _, m := range c.ipams {
					if changed := m.objects.ServiceChanged; changed != nil {
						changed(at)
					}
				}
				for _, s := range []*serviceRecord{before, after} {
					if s != nil {
						for _, a := range s.Addresses {
							c.compare(a.Addr)
						}
					}
				}
			},
		},
	}
}

// sharingKeys are the annotations with the key by which several Services may have one address, those of MetalLB and Cilium
// and their former names.
var sharingKeys = []string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip", "lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"}

// serviceProxyName is the label of a service that is left to a proxy of its own.
const serviceProxyName = "service.kubernetes.io/service-proxy-name"

// readService returns the record of a service; nil if it has no addresses.
func readService(service *corev1.Service) (at ipam.Key, _ *serviceRecord, problem string) {
	at = ipam.Key{Namespace: service.Namespace, Name: service.Name}
	spec := &service.Spec
	r := &serviceRecord{Service: ipam.Service{Namespace: at.Namespace, Name: at.Name}, host: ipam.Plain(service.Annotations[vip.HostAnnotation])}
	correct(form.Label, &r.Namespace)
	correct(form.Subdomain, &r.Name)
	r.Unproxied = spec.ClusterIP == "" || spec.ClusterIP == corev1.ClusterIPNone || spec.Type == corev1.ServiceTypeExternalName || service.Labels[serviceProxyName] != ""
	add := func(text string, field ipam.ServiceField) {
		a := ipam.ServiceAddress{Field: field}
		var err error
		switch a.Addr, err = ipam.ParseAddress(text); {
		case text == "" || text == corev1.ClusterIPNone:
		case err != nil:
			problem = unreadAddress("Service "+at.Namespace+"/"+at.Name, string(field), text)
		case !slices.Contains(r.Addresses, a):
			r.Addresses = append(r.Addresses, a)
		}
	}
	for _, ip := range append([]string{spec.ClusterIP}, spec.ClusterIPs...) {
		add(ip, ipam.ClusterIP)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			field := ipam.Ingress
			if mode := ingress.IPMode; mode != nil && *mode == corev1.LoadBalancerIPModeProxy {
				field = ipam.ProxiedIngress
			}
			add(ingress.IP, field)
		}
		add(spec.LoadBalancerIP, ipam.RequestedIP)
		if spec.LoadBalancerClass != nil {
			r.class = ipam.Plain(*spec.LoadBalancerClass)
		}
	}
	for _, ip := range spec.ExternalIPs {
		add(ip, ipam.ExternalIP)
	}
	if len(r.Addresses) == 0 {
		return at, nil, problem
	}
	const mostPorts = 8
	for i, port := range spec.Ports {
		if i == mostPorts {
			r.Ports += "," + ipam.MorePorts
			break
		}
		if i > 0 {
			r.Ports += ","
		}
		r.Ports += fmt.Sprintf("%d/%s", port.Port, cmp.Or(port.Protocol, corev1.ProtocolTCP))
	}
	correct(form.Text(128), &r.Ports)
	for _, name := range sharingKeys {
		r.Sharing = ipam.Plain(cmp.Or(r.Sharing, service.Annotations[name]))
	}
	return at, r, problem
}

// unreadAddress describes a text in place of an address of an object.
func unreadAddress(object, field, text string) string {
	return fmt.Sprintf("%s is invalid: %q in %s is not an address", object, ipam.Shorten(text), field)
}

// controlPlaneChanged publishes the node that kube-vip elected for the addresses of the control
// plane.
func (c *Cluster) controlPlaneChanged() {
	// The slash keeps the key apart from those of Services.
	at, holder := ipam.Key{Namespace: "leases/" + leaseNamespace, Name: controlPlaneLease}, ""
	if l := c.leases.of(controlPlaneLease); l != nil {
		holder = l.holder
	}
	addresses := slices.SortedFunc(maps.Keys(c.pods.vips), netip.Addr.Compare)
	c.kubeVIP.Set(at, vip.Elected(holder, "control plane", "leases "+leaseNamespace+"/"+controlPlaneLease+" /spec/holderIdentity", addresses), "")
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
