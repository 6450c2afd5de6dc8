// This file describes the addresses of Services. kube-proxy, or what takes its place, redirects packets for them to
// the endpoints of the Service on each node, whoever has the address.
//
// The format of EndpointSlices is that of discovery.k8s.io/v1, as in Kubernetes 1.21 and newer.

package vip

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// EndpointSlices are the objects with the endpoints of Services.
var EndpointSlices = ipam.Kind{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices", Name: "EndpointSlice"}

// ServiceCIDRs are the ranges of cluster IPs, in Kubernetes 1.33 and newer.
var ServiceCIDRs = ipam.Kind{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs", Name: "ServiceCIDR"}

// IPAddresses are the cluster IPs that are taken, in Kubernetes 1.33 and newer. The API server makes one for each cluster IP
// of a Service. It gives no Service the address of one that somebody else made.
var IPAddresses = ipam.Kind{Group: "networking.k8s.io", Version: "v1", Resource: "ipaddresses", Name: "IPAddress"}

// The label of an IPAddress that names its maker, and its value for the API server.
const (
	makerLabel = "ipaddress.kubernetes.io/managed-by"
	apiServer  = "ipallocator.k8s.io"
)

// serverRange is the name of the pool with the range of cluster IPs according to the flag of an API server.
const serverRange = "--service-cluster-ip-range"

// KubeProxy describes the addresses of Services.
var KubeProxy = ipam.IPAM{
	Name: "kube-proxy", Title: "kube-proxy",
	Traits: ipam.Traits{Status: true},
	Pooled: func(p *ipam.Pool, _ string) string {
		if p.Services != "" {
			return "the API server (" + p.Name + ")"
		}
		return "kube-proxy"
	},
	Objects: newKubeProxy,
	Repair:  ipam.Repair{Texts: ipam.ReadTexts("vip/kubeproxy.txt")},
}

// The labels of an EndpointSlice with the name of its Service, and of what maintains it.
const (
	serviceLabel = "kubernetes.io/service-name"
	managerLabel = "endpointslice.kubernetes.io/managed-by"
)

// endpointSlice is the record of an EndpointSlice: the addresses of endpoints that get packets.
type endpointSlice struct {
	service   ipam.Key
	addresses []netip.Addr
	// endpoints are those with these addresses.
	endpoints []ipam.Endpoint
}

// redirects publishes the addresses of Services.
type redirects struct {
	*ipam.Assignments
	slices          ipam.Mirror[*ipam.Object, endpointSlice]
	resource, cidrs *ipam.Resource
	// kept has the addresses that IPAddresses keep from Services.
	kept ipam.Mirror[*ipam.Object, ipam.Range]
	// flags are the values of the flag --service-cluster-ip-range of API servers that run as pods.
	flags []string
	// of has the EndpointSlices of each Service.
	of map[ipam.Key][]ipam.Key
	// at has the endpoints with each address. former has those for pods that do not have it, where there are any.
	at, former map[netip.Addr][]ipam.Endpoint
	// published has what was published of each Service.
	published map[ipam.Key][]ipam.Allocation
	// followed is set if the published allocations are those of EndpointSlices that are followed.
	followed bool
}

func newKubeProxy(p ipam.Publisher) *ipam.Objects {
	r := &redirects{
		Assignments: ipam.NewAssignments(p, "services"), of: make(map[ipam.Key][]ipam.Key), published: make(map[ipam.Key][]ipam.Allocation),
		at: make(map[netip.Addr][]ipam.Endpoint), former: make(map[netip.Addr][]ipam.Endpoint),
	}
	r.slices = ipam.Mirror[*ipam.Object, endpointSlice]{
		Parse: readEndpointSlice, Unread: &ipam.Unread{Publisher: p, Kind: EndpointSlices}, Changed: r.changed,
	}
	r.resource = &ipam.Resource{Kind: EndpointSlices, Role: ipam.Extra, Store: &r.slices, Lost: "whether Services have endpoints, and which of these are for former owners, is unknown"}
	ranges := ipam.NewServiceRanges(p, ServiceCIDRs, ipam.ClusterIP, readServiceCIDR, func() (all []ipam.Range) {
		for _, a := range r.kept.Records {
			all = append(all, *a)
		}
		return all
	})
	r.cidrs = &ipam.Resource{
		Kind: ServiceCIDRs, Role: ipam.Extra, Lost: "addresses in use that Services may get as cluster IPs are not detected", Store: ranges,
	}
	r.kept = ipam.Mirror[*ipam.Object, ipam.Range]{
		Read: readIPAddress, Changed: func(ipam.Key, *ipam.Range, *ipam.Range) { ranges.Republish() },
	}
	kept := &ipam.Resource{
		Kind: IPAddresses, Role: ipam.Extra, Lost: "addresses that are kept from Services count as if a Service may get them", Store: &r.kept,
	}
	return &ipam.Objects{
		Resources:      []*ipam.Resource{r.resource, r.cidrs, kept},
		ServiceChanged: r.publish,
		Endpoints: func(a netip.Addr) (all, former []ipam.Endpoint, known bool) {
			return r.at[a], r.former[a], r.resource.Followed
		},
		PodsChanged: func(addresses []netip.Addr) {
			if len(addresses) == 0 {
				addresses = slices.Collect(maps.Keys(r.at))
			}
			r.review(addresses...)
		},
		ServerFlags: func(values []string) {
			r.flags = values
			r.publishFlags()
		},
		Settle: func() {
			r.publishFlags()
			if r.followed != r.resource.Followed {
				r.followed = r.resource.Followed
				for _, at := range slices.Collect(maps.Keys(r.published)) {
					r.publish(at)
				}
			}
		},
	}
}

// readServiceCIDR returns the ranges of a ServiceCIDR. No addresses are allocated from one that is being deleted.
func readServiceCIDR(o *ipam.Object) ([]ipam.Range, error) {
	var spec struct {
		CIDRs []string `json:"cidrs"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil || o.Deleted {
		return nil, err
	}
	return ipam.CIDRs(spec.CIDRs...)
}

// readIPAddress returns the address of an IPAddress that the API server did not make. It is the name, as the API server
// ensures.
func readIPAddress(o *ipam.Object) (ipam.Key, *ipam.Range) {
	a, err := netip.ParseAddr(o.Name)
	if err != nil || o.Labels[makerLabel] == apiServer {
		return o.Key(), nil
	}
	return o.Key(), &ipam.Range{First: a, Last: a}
}

// publishFlags publishes the ranges in the flags of API servers, unless ServiceCIDRs are served or may be.
func (r *redirects) publishFlags() {
	var ranges []ipam.Range
	problem := ""
	for _, value := range r.flags {
		if some, err := ipam.CIDRs(strings.Split(value, ",")...); err == nil {
			ranges = append(ranges, some...)
		} else {
			problem = "flag " + serverRange + " of an API server: " + err.Error()
		}
	}
	switch {
	case r.cidrs.Decided && !r.cidrs.Followed && len(r.flags) > 0:
		r.Use()
		r.Put(ipam.Pool{Name: serverRange, Config: "flag " + serverRange + " of the API server", Services: ipam.ClusterIP, Ranges: ipam.Union(ranges)}, problem, false)
	case r.Pool(serverRange) != nil:
		r.Drop(serverRange)
	}
}

// readEndpointSlice returns the record of an EndpointSlice; nil if it belongs to no Service or has no endpoint that gets
// packets.
func readEndpointSlice(o *ipam.Object) (at ipam.Key, _ *endpointSlice, problem string) {
	at = o.Key()
	name := o.Labels[serviceLabel]
	if name == "" || o.AddressType == "FQDN" || len(o.Endpoints) == 0 {
		return at, nil, ""
	}
	var endpoints []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready   *bool `json:"ready"`
			Serving *bool `json:"serving"`
		} `json:"conditions"`
		TargetRef struct {
			Kind, Namespace, Name, UID string
		} `json:"targetRef"`
	}
	if err := ipam.Part(o.Endpoints, "endpoints", &endpoints); err != nil {
		return at, nil, o.Invalid(EndpointSlices.Name, err.Error())
	}
	r := &endpointSlice{service: ipam.Key{Namespace: at.Namespace, Name: name}}
	for _, e := range endpoints {
		// Endpoints that terminate get packets if there are no others.
		if ready, serving := e.Conditions.Ready, e.Conditions.Serving; ready != nil && !*ready && (serving == nil || !*serving) {
			continue
		}
		to := ipam.Endpoint{Service: r.service, Slice: at.Name, Manager: ipam.Interned(o.Labels[managerLabel])}
		if ref := e.TargetRef; ref.Kind == "Pod" {
			to.Pod, to.UID = ipam.Key{Namespace: ipam.Interned(ref.Namespace), Name: ref.Name}, ref.UID
		}
		for _, text := range e.Addresses {
			a, err := ipam.ParseAddress(text)
			if err != nil {
				problem = o.Invalid(EndpointSlices.Name, "it has the endpoint "+text+", which is no address")
				continue
			}
			r.addresses, r.endpoints = append(r.addresses, a), append(r.endpoints, to)
		}
	}
	if len(r.addresses) == 0 && problem == "" {
		return at, nil, ""
	}
	return at, r, problem
}

// changed updates the EndpointSlices of Services, and publishes these.
func (r *redirects) changed(at ipam.Key, before, after *endpointSlice) {
	r.locate(at, before, after)
	if before != nil && (after == nil || before.service != after.service) {
		if rest := slices.DeleteFunc(r.of[before.service], func(other ipam.Key) bool { return other == at }); len(rest) > 0 {
			r.of[before.service] = rest
		} else {
			delete(r.of, before.service)
		}
		r.publish(before.service)
	}
	if after != nil {
		if !slices.Contains(r.of[after.service], at) {
			r.of[after.service] = append(r.of[after.service], at)
		}
		r.publish(after.service)
	}
}

// publish publishes the addresses of a Service for which nodes redirect packets.
func (r *redirects) publish(at ipam.Key) {
	s := cmp.Or(r.Service(at), &ipam.Service{})
	var now []ipam.Allocation
	for _, field := range []ipam.ServiceField{ipam.ClusterIP, ipam.ExternalIP, ipam.Ingress} {
		for _, a := range s.Addresses {
			if s.Unproxied || a.Field != field || slices.ContainsFunc(now, func(al ipam.Allocation) bool { return al.Address == a.Addr }) {
				continue
			}
			to := &ipam.Redirect{Namespace: s.Namespace, Name: s.Name, Field: field, Ports: s.Ports, Sharing: s.Sharing, Endpoints: r.endpoints(at, a.Addr)}
			// An unchanged redirect keeps its pointer, by which allocations are compared.
			if i := slices.IndexFunc(r.published[at], func(al ipam.Allocation) bool { return *al.Service == *to }); i >= 0 {
				to = r.published[at][i].Service
			}
			now = append(now, ipam.Allocation{
				Address: a.Addr, Service: to, Purpose: "Service " + at.Namespace + "/" + at.Name,
				Location: "services " + at.Namespace + "/" + at.Name + " " + string(field),
			})
		}
	}
	if r.published[at] = now; len(now) == 0 {
		delete(r.published, at)
	}
	r.Set(at, now, "")
}

// locate updates the endpoints with each address of an EndpointSlice.
func (r *redirects) locate(slice ipam.Key, before, after *endpointSlice) {
	before, after = cmp.Or(before, &endpointSlice{}), cmp.Or(after, &endpointSlice{})
	for _, a := range before.addresses {
		r.at[a] = slices.DeleteFunc(r.at[a], func(e ipam.Endpoint) bool {
			return e.Slice == slice.Name && e.Service.Namespace == slice.Namespace
		})
		if len(r.at[a]) == 0 {
			delete(r.at, a)
		}
	}
	for i, a := range after.addresses {
		r.at[a] = append(r.at[a], after.endpoints[i])
	}
	r.review(before.addresses...)
	r.review(after.addresses...)
}

// review compares the endpoints with addresses with the pods that have them.
func (r *redirects) review(addresses ...netip.Addr) {
	for _, a := range addresses {
		var now []ipam.Endpoint
		for _, e := range r.at[a] {
			if e.UID != "" && !r.PodHas(e.UID, a) && !slices.ContainsFunc(r.at[a], func(other ipam.Endpoint) bool {
				return other.Service == e.Service && (other.UID == "" || r.PodHas(other.UID, a))
			}) {
				now = append(now, e)
			}
		}
		slices.SortFunc(now, ipam.Endpoint.Compare)
		if slices.Equal(now, r.former[a]) {
			continue
		}
		if r.former[a] = now; len(now) == 0 {
			delete(r.former, a)
		}
		r.EndpointsChanged(a)
	}
}

func (r *redirects) endpoints(service ipam.Key, a netip.Addr) ipam.Endpoints {
	if !r.resource.Followed {
		return ipam.EndpointsUnknown
	}
	found := ipam.NoEndpoints
	for _, at := range r.of[service] {
		switch all := r.slices.Records[at].addresses; {
		case slices.Contains(all, a):
			return ipam.OwnEndpoint
		case len(all) > 0:
			found = ipam.SomeEndpoints
		}
	}
	return found
}
