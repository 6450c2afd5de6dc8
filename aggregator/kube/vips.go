package kube

import (
	"net/netip"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// serviceRecord is what is kept of a service that has addresses which nodes hold in
// turn, or route to.
type serviceRecord struct {
	namespace, name string
	addresses       []serviceAddress
	// host is the node that kube-vip has written to hold it.
	host string
	// class is what announces it, where that is said.
	class string
}

// serviceAddress is an address of a service, and what of it.
type serviceAddress struct {
	netip.Addr
	as string
}

// What addresses of services are.
const (
	asIngress  = "the load balancer address"
	asAsked    = "the load balancer address that is asked for"
	asExternal = "an external address (spec.externalIPs)"
)

// services are those with addresses that explain something.
type services struct {
	mirror[serviceRecord]
	byAddress map[netip.Addr][]*serviceRecord
}

func newServices(c *Cluster) services {
	return services{
		byAddress: make(map[netip.Addr][]*serviceRecord),
		mirror: mirror[serviceRecord]{
			cluster: c, records: make(map[key]*serviceRecord),
			read: readService,
			same: func(a, b *serviceRecord) bool {
				return a.host == b.host && a.class == b.class && slices.Equal(a.addresses, b.addresses)
			},
			changed: func(_ key, before, after *serviceRecord) { c.services.changed(before, after) },
		},
	}
}

// readService keeps of a service the addresses that are not the cluster's own.
func readService(o runtime.Object) (key, *serviceRecord) {
	service, ok := o.(*corev1.Service)
	if !ok {
		return key{}, nil
	}
	at := key{service.Namespace, service.Name}
	r := &serviceRecord{namespace: at.namespace, name: at.name, host: plain(service.Annotations["kube-vip.io/vipHost"])}
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
			r.class = plain(*class)
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

// changed keeps the index. It is called under mu.
func (s *services) changed(before, after *serviceRecord) {
	if before != nil {
		for _, a := range before.addresses {
			rest := slices.DeleteFunc(s.byAddress[a.Addr], func(other *serviceRecord) bool { return other == before })
			if s.byAddress[a.Addr] = rest; len(rest) == 0 {
				delete(s.byAddress, a.Addr)
			}
		}
	}
	if after != nil {
		for _, a := range after.addresses {
			s.byAddress[a.Addr] = append(s.byAddress[a.Addr], after)
		}
	}
}

// leaseRecord is what is kept of a lease.
type leaseRecord struct {
	namespace, name, holder string
	acquired, renewed       verdict.Stamp
	transitions             int32
}

// Leases by which kube-vip agrees who holds addresses: that of the control plane,
// and that of all services (it can have one for each service instead, which says
// nothing that the service's annotation kube-vip.io/vipHost does not say). MetalLB
// has none.
const (
	leaseNamespace    = "kube-system"
	controlPlaneLease = "plndr-cp-lock"
	servicesLease     = "plndr-svcs-lock"
)

// leases are those of kube-vip. Each is followed by its name: others, above all
// the nodes' heartbeats, are renewed every few seconds each.
type leases struct{ mirror[leaseRecord] }

func newLeases(c *Cluster) leases {
	return leases{mirror[leaseRecord]{
		cluster: c, records: make(map[key]*leaseRecord),
		read:    readLease,
		same:    func(a, b *leaseRecord) bool { return *a == *b },
		changed: func(key, *leaseRecord, *leaseRecord) {},
	}}
}

func readLease(o runtime.Object) (key, *leaseRecord) {
	lease, ok := o.(*coordinationv1.Lease)
	if !ok {
		return key{}, nil
	}
	at := key{lease.Namespace, lease.Name}
	r := &leaseRecord{namespace: at.namespace, name: at.name}
	if lease.Spec.HolderIdentity != nil {
		r.holder = plain(*lease.Spec.HolderIdentity)
	}
	if lease.Spec.AcquireTime != nil {
		r.acquired = verdict.At(lease.Spec.AcquireTime.Time)
	}
	if lease.Spec.RenewTime != nil {
		r.renewed = verdict.At(lease.Spec.RenewTime.Time)
	}
	if lease.Spec.LeaseTransitions != nil {
		r.transitions = *lease.Spec.LeaseTransitions
	}
	return at, r
}

// one is the part of a mirror that a feed of one object keeps.
type one[R any] struct {
	*mirror[R]
	at key
}

// anew is for sink: what is not listed is gone, but nothing else is.
func (o one[R]) anew() listing {
	return &oneAnew[R]{of: o}
}

type oneAnew[R any] struct {
	of     one[R]
	object runtime.Object
}

func (a *oneAnew[R]) put(o runtime.Object)  { a.object = o }
func (a *oneAnew[R]) drop(_ runtime.Object) { a.object = nil }

func (a *oneAnew[R]) complete() {
	if a.object != nil {
		a.of.put(a.object)
		return
	}
	a.of.cluster.mu.Lock()
	defer a.of.cluster.mu.Unlock()
	a.of.set(a.of.at, nil)
}

// leaseFeeds follow one lease each.
func (c *Cluster) leaseFeeds() []*feed {
	var feeds []*feed
	for _, name := range []string{controlPlaneLease, servicesLease} {
		feeds = append(feeds, &feed{
			name: "lease " + name, lost: "it is not said which node kube-vip means to hold an address",
			client: c.clients.coordination, resource: "leases", namespace: leaseNamespace,
			fields: fields.OneTermEqualSelector("metadata.name", name).String(),
			into:   one[leaseRecord]{&c.leases.mirror, key{leaseNamespace, name}},
			list:   func() list { return &coordinationv1.LeaseList{} },
		})
	}
	return feeds
}
