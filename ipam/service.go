package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Service is what the Kubernetes API says about a Service with addresses. It never changes.
type Service struct {
	Namespace, Name string
	// Addresses are its addresses. The same address may be in several fields.
	Addresses []ServiceAddress
	// Ports are its ports in the form of kubectl, such as "80/TCP,53/UDP".
	Ports string
	// Sharing is the key by which several Services may have one address; empty for none.
	Sharing string
	// Unproxied is set if nodes redirect no packets for it: it is headless, an alias of a name, or left to a proxy of
	// its own.
	Unproxied bool
}

// A ServiceAddress is an address of a Service.
type ServiceAddress struct {
	netip.Addr
	Field ServiceField
}

// A ServiceField is the field of a Service with an address. The value is its path.
type ServiceField string

// The fields, in the order in which nodes compare them.
const (
	ClusterIP   ServiceField = "/spec/clusterIPs"
	ExternalIP  ServiceField = "/spec/externalIPs"
	Ingress     ServiceField = "/status/loadBalancer/ingress"
	RequestedIP ServiceField = "/spec/loadBalancerIP"
	// ProxiedIngress is an ingress address with ipMode Proxy: its packets reach the load balancer.
	ProxiedIngress ServiceField = "/status/loadBalancer/ingress/ipMode"
)

// serviceRanges is the record of an object with ranges of addresses for Services.
type serviceRanges struct {
	ranges  []Range
	problem string
}

// ServiceRanges is a store of objects with ranges of addresses that Services get in a field.
type ServiceRanges struct{ Mirror[*Object, serviceRanges] }

// NewServiceRanges returns a store that publishes each object as a pool, without the addresses that kept returns; nil for
// none. read returns the ranges of an object.
func NewServiceRanges(p Publisher, k Kind, field ServiceField, read func(*Object) ([]Range, error), kept func() []Range) *ServiceRanges {
	return &ServiceRanges{Mirror[*Object, serviceRanges]{
		Read: func(o *Object) (Key, *serviceRanges) {
			ranges, err := read(o)
			switch {
			case err != nil:
				return o.Key(), &serviceRanges{problem: o.Invalid(k.Name, err.Error())}
			case len(ranges) == 0:
				return o.Key(), nil
			}
			return o.Key(), &serviceRanges{ranges: Union(ranges)}
		},
		Changed: func(at Key, _, after *serviceRanges) {
			name := strings.TrimPrefix(at.Namespace+"/"+at.Name, "/")
			next := Pool{Name: k.Name + " " + name, Config: k.Resource + " " + name, Services: field}
			if after == nil {
				p.Drop(next.Name)
				return
			}
			next.Ranges = after.ranges
			if kept != nil {
				for _, r := range kept() {
					next.Ranges = Without(next.Ranges, r)
				}
			}
			p.Use()
			Publish(p, next, after.problem, after.problem != "")
		},
	}}
}

// Republish publishes all objects after other addresses are kept from Services.
func (s *ServiceRanges) Republish() {
	for at, r := range s.Records {
		s.Changed(at, r, r)
	}
}

// CIDRs returns the ranges of CIDRs.
func CIDRs(texts ...string) (ranges []Range, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a CIDR", Shorten(text))
		}
		ranges = append(ranges, RangeOf(p))
	}
	return ranges, nil
}

// Ingress returns the addresses of the load balancer. It returns none for nil.
func (s *Service) Ingress() (addresses []netip.Addr) {
	if s == nil {
		return nil
	}
	for _, a := range s.Addresses {
		if (a.Field == Ingress || a.Field == ProxiedIngress) && !slices.Contains(addresses, a.Addr) {
			addresses = append(addresses, a.Addr)
		}
	}
	return addresses
}

// A Redirect is what nodes do with packets for an address of a Service. It never changes.
type Redirect struct {
	Namespace, Name string
	Field           ServiceField
	Ports, Sharing  string
	Endpoints       Endpoints
}

// Clashes reports whether two Services with one address have a common port and no common key to share the address, so that nodes
// send the packets for it to one of them by chance.
func (r *Redirect) Clashes(other *Redirect) bool {
	if r.Namespace == other.Namespace && r.Name == other.Name || r.Sharing != "" && r.Sharing == other.Sharing {
		return false
	}
	theirs := strings.Split(other.Ports, ",")
	return slices.ContainsFunc(strings.Split(r.Ports, ","), func(port string) bool {
		return port != "" && port != MorePorts && slices.Contains(theirs, port)
	})
}

// MorePorts is the end of the ports of a Service with more of them.
const MorePorts = "..."

// An Endpoint is an address to which nodes send packets for a Service, and the pod that it is meant for.
type Endpoint struct {
	// Service is the Service, and Slice is the name of the EndpointSlice, in the same namespace.
	Service Key
	Slice   string
	// Manager is what maintains the EndpointSlice, according to its label; empty if it has none.
	Manager string
	// Pod is the pod that the endpoint names, with its UID; empty if it names none.
	Pod Key
	UID string
}

// EndpointController is the Manager of the EndpointSlices that Kubernetes itself makes for Services with a selector. It
// makes a slice again that was deleted.
const EndpointController = "endpointslice-controller.k8s.io"

// Compare orders endpoints: those for one pod follow each other.
func (e Endpoint) Compare(other Endpoint) int {
	return cmp.Or(strings.Compare(e.UID, other.UID), e.Pod.Compare(other.Pod), e.Service.Compare(other.Service), strings.Compare(e.Slice, other.Slice), strings.Compare(e.Manager, other.Manager))
}

// Endpoints says which endpoints a Service has that get packets.
type Endpoints uint8

// The values of Endpoints.
const (
	EndpointsUnknown Endpoints = iota
	NoEndpoints                // nodes refuse the packets
	SomeEndpoints
	OwnEndpoint // the address is that of one of the endpoints
)
