package vip_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestServices(t *testing.T) {
	c := ipamtest.New(t, &vip.KubeProxy, vip.EndpointSlices)
	published := map[string]ipam.Redirect{}
	c.Published = func(_ *ipam.Pool, al *ipam.Allocation, _ int64, gone bool) {
		switch {
		case al == nil:
		case gone:
			delete(published, al.Address.String()+" "+al.Location)
		default:
			published[al.Address.String()+" "+al.Location] = *al.Service
		}
	}
	want := func(when string, want ...string) {
		t.Helper()
		var got []string
		for at, s := range published {
			a, _, _ := strings.Cut(at, " ")
			got = append(got, fmt.Sprint(a, " ", s.Namespace, "/", s.Name, " ", s.Field, " ", s.Ports, " ", s.Endpoints))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	addresses := func(of ...string) (all []ipam.ServiceAddress) {
		for _, text := range of {
			field, a, _ := strings.Cut(text, " ")
			all = append(all, ipam.ServiceAddress{Addr: netip.MustParseAddr(a), Field: ipam.ServiceField(field)})
		}
		return all
	}
	const cluster, external, ingress = string(ipam.ClusterIP), string(ipam.ExternalIP), string(ipam.Ingress)
	web := &ipam.Service{Namespace: "shop", Name: "web", Ports: "80/TCP", Addresses: addresses(
		cluster+" 10.96.0.7", external+" 192.0.2.7", ingress+" 192.0.2.7", string(ipam.ProxiedIngress)+" 192.0.2.8", string(ipam.RequestedIP)+" 192.0.2.9")}
	c.PutService(web)
	want("a Service without endpoints", "10.96.0.7 shop/web "+cluster+" 80/TCP 1", "192.0.2.7 shop/web "+external+" 80/TCP 1")
	c.PutService(&ipam.Service{Namespace: "shop", Name: "headless", Unproxied: true, Addresses: addresses(external + " 192.0.2.6")})
	c.Changes()
	slice := func(name, of, endpoints string) {
		c.Apply(vip.EndpointSlices, "metadata: {namespace: shop, name: "+name+", labels: {kubernetes.io/service-name: "+of+"}}\naddressType: IPv4\nendpoints: "+endpoints)
	}
	slice("web-1", "web", "[{addresses: [10.0.0.1], conditions: {ready: false}}, {addresses: [10.0.0.2], conditions: {ready: false, serving: false}}]")
	slice("other", "other", "[{addresses: [10.0.0.1]}]")
	want("endpoints that are not ready", "10.96.0.7 shop/web "+cluster+" 80/TCP 1", "192.0.2.7 shop/web "+external+" 80/TCP 1")
	if n := c.Changes(); n != 0 {
		t.Errorf("a Service that is the same: got %d changes, want none", n)
	}
	slice("web-2", "web", "[{addresses: [010.000.000.3], conditions: {ready: false, serving: true}}]")
	want("an endpoint that terminates", "10.96.0.7 shop/web "+cluster+" 80/TCP 2", "192.0.2.7 shop/web "+external+" 80/TCP 2")
	slice("web-1", "web", "[{addresses: [192.0.2.007]}]")
	want("an endpoint with the address, in another form", "10.96.0.7 shop/web "+cluster+" 80/TCP 2", "192.0.2.7 shop/web "+external+" 80/TCP 3")
	slice("web-2", "other", "[{addresses: [10.0.0.3]}]")
	c.Remove(vip.EndpointSlices, ipam.Key{Namespace: "shop", Name: "web-1"})
	want("its endpoints are those of another Service", "10.96.0.7 shop/web "+cluster+" 80/TCP 1", "192.0.2.7 shop/web "+external+" 80/TCP 1")
	slice("web-1", "web", "[{addresses: [10.0.0.x]}]")
	if all := c.Problems(); len(all) != 1 || !strings.Contains(all[0], "10.0.0.x") {
		t.Errorf("an endpoint that is no address: got problems %q, want one", all)
	}
	slice("web-1", "web", "[{addresses: [10.0.0.3]}, {addresses: [10.0.0.4], conditions: {ready: false}}]")
	slice("web-3", "web", "[{addresses: [10.0.0.3]}]")
	to := func(addr string) string {
		all, _, known := c.Endpoints(netip.MustParseAddr(addr))
		var services []ipam.Key
		for _, e := range all {
			services = append(services, e.Service)
		}
		return fmt.Sprint(services, " ", known)
	}
	if got := to("10.0.0.3"); got != "[{shop other} {shop web} {shop web}] true" {
		t.Errorf("Services with an endpoint: got %s", got)
	}
	if got := to("10.0.0.4"); got != "[] true" {
		t.Errorf("Services with an endpoint that gets no packets: got %s", got)
	}
	c.Remove(vip.EndpointSlices, ipam.Key{Namespace: "shop", Name: "web-1"})
	c.Remove(vip.EndpointSlices, ipam.Key{Namespace: "shop", Name: "web-3"})
	c.Resource(vip.EndpointSlices).Followed = false
	c.Settle()
	if got := to("10.0.0.9"); got != "[] false" {
		t.Errorf("EndpointSlices cannot be read: got %s", got)
	}
	want("EndpointSlices cannot be read", "10.96.0.7 shop/web "+cluster+" 80/TCP 0", "192.0.2.7 shop/web "+external+" 80/TCP 0")
	c.PutService(&ipam.Service{Namespace: "shop", Name: "web", Ports: "80/TCP", Addresses: addresses(ingress + " 192.0.2.7")})
	want("it has one address left", "192.0.2.7 shop/web "+ingress+" 80/TCP 0")
	c.PutService(&ipam.Service{Namespace: "shop", Name: "web", Ports: "80/TCP", Sharing: "key", Addresses: addresses(ingress + " 192.0.2.7")})
	if s := published["192.0.2.7 services shop/web "+ingress]; s.Sharing != "key" {
		t.Errorf("got %+v, want the key by which it shares the address", s)
	}
	c.PutService(&ipam.Service{Namespace: "shop", Name: "web"})
	want("it has none")
}

// An endpoint is that of a former pod if the API has no such pod with its address, and no other pod of the Service has it.
func TestEndpointsOfFormerPods(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	c := ipamtest.New(t, &vip.KubeProxy, vip.EndpointSlices)
	want := func(when string, known bool, want ...string) {
		t.Helper()
		var got []string
		_, former, is := c.Endpoints(a)
		for _, e := range former {
			got = append(got, fmt.Sprint(e.UID, " ", e.Pod.Name, " ", e.Service.Name, "/", e.Slice, " ", e.Manager))
		}
		if !slices.Equal(got, want) || is != known {
			t.Errorf("%s: got %q, known %t, want %q, known %t", when, got, is, want, known)
		}
	}
	slice := func(name, of, more, endpoints string) {
		c.Apply(vip.EndpointSlices, "metadata: {namespace: shop, name: "+name+", labels: {kubernetes.io/service-name: "+of+more+"}}\naddressType: IPv4\nendpoints: ["+endpoints+"]")
	}
	endpoint := func(uid, more string) string {
		return "{addresses: [10.0.0.1]" + more + ", targetRef: {kind: Pod, namespace: shop, name: " + uid + "-0, uid: " + uid + "}}"
	}
	const byKubernetes = ", endpointslice.kubernetes.io/managed-by: " + ipam.EndpointController
	c.SetPod("u", a)
	slice("web-1", "web", byKubernetes, endpoint("u", ""))
	if want("the pod has it", true); len(c.Misdirected) > 0 {
		t.Errorf("got changes of %v in a healthy cluster, want none", c.Misdirected)
	}
	const former = "u u-0 web/web-1 " + ipam.EndpointController
	c.SetPod("u", netip.Addr{})
	want("the pod has ended", true, former)
	if !slices.Equal(c.Misdirected, []netip.Addr{a}) {
		t.Errorf("got changes of %v, want one of %s", c.Misdirected, a)
	}
	c.SetPod("u", a)
	want("it has it again", true)
	c.SetPod("u", b)
	want("it has another address", true, former)
	slice("db-1", "db", "", endpoint("u", ""))
	want("an endpoint of another Service, by nobody known", true, "u u-0 db/db-1 ", former)
	slice("db-1", "db", "", endpoint("x", ""))
	want("an endpoint of another pod", true, former, "x x-0 db/db-1 ")
	c.SetPod("x", a)
	want("the other pod has the address, for another Service", true, former)
	slice("db-1", "web", "", endpoint("x", ""))
	want("the other pod has the address, for the same Service", true)
	slice("db-1", "web", "", endpoint("x", ", conditions: {ready: false}"))
	want("but it is not ready", true, former)
	slice("db-1", "web", "", "{addresses: [10.0.0.1]}")
	want("an endpoint of the Service for the address itself", true)
	c.Remove(vip.EndpointSlices, ipam.Key{Namespace: "shop", Name: "db-1"})
	want("it is gone", true, former)
	slice("web-1", "web", byKubernetes, endpoint("u", ", conditions: {ready: false, serving: true}"))
	want("it terminates", true, former)
	for _, silent := range []string{
		endpoint("u", ", conditions: {ready: false}"), endpoint("u", ", conditions: {ready: false, serving: false}"), "{addresses: [10.0.0.1]}",
		"{addresses: [10.0.0.1], targetRef: {kind: Node, name: n1, uid: u}}", "{addresses: [10.0.0.1], targetRef: {kind: Pod, namespace: shop, name: u-0}}",
	} {
		slice("web-1", "web", byKubernetes, silent)
		want(silent, true)
	}
	slice("web-1", "web", byKubernetes, endpoint("u", ""))
	c.Resource(vip.EndpointSlices).Followed = false
	c.Settle()
	want("EndpointSlices cannot be read any more", false, former)
}

// The ranges of cluster IPs are those of ServiceCIDRs, or else in the flags of API servers.
func TestRangesOfClusterIPs(t *testing.T) {
	c := ipamtest.New(t, &vip.KubeProxy, vip.EndpointSlices, vip.ServiceCIDRs, vip.IPAddresses)
	c.Apply(vip.ServiceCIDRs, "metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/12, 'fd00:96::/112']}")
	const cidr = "kube-proxy ServiceCIDR kubernetes known 10.96.0.0-10.111.255.255 fd00:96::-fd00:96::ffff"
	c.Want("a ServiceCIDR", cidr)
	if p := c.Pool("ServiceCIDR kubernetes"); p.Services != ipam.ClusterIP || p.Config != "servicecidrs kubernetes" {
		t.Errorf("got %+v, want a pool of cluster IPs", p)
	}
	c.Apply(vip.ServiceCIDRs, "metadata: {name: more}\nspec: {cidrs: [10.200.0.0/16]}")
	c.Apply(vip.ServiceCIDRs, "metadata: {name: more, deletionTimestamp: '2026-01-01T00:00:00Z'}\nspec: {cidrs: [10.200.0.0/16]}")
	c.ServerFlags("10.96.0.0/16")
	c.Want("one that is being deleted, and a flag", cidr)
	// Who made an IPAddress decides whether it keeps the address, not what it is for.
	c.Apply(vip.IPAddresses, "metadata: {name: 10.96.0.1, labels: {ipaddress.kubernetes.io/managed-by: ipallocator.k8s.io}}\nspec: {parentRef: {resource: services, namespace: default, name: kubernetes}}")
	c.Want("an IPAddress of a Service", cidr)
	c.Apply(vip.IPAddresses, "metadata: {name: 10.96.0.0}\nspec: {parentRef: {resource: pods, namespace: shop, name: db}}")
	c.Apply(vip.IPAddresses, "metadata: {name: 'fd00:96::2'}\nspec: {parentRef: {resource: services, namespace: shop, name: later}}")
	c.Want("IPAddresses of somebody else", "kube-proxy ServiceCIDR kubernetes known 10.96.0.1-10.111.255.255 fd00:96::-fd00:96::1 fd00:96::3-fd00:96::ffff")
	c.Remove(vip.IPAddresses, ipam.Key{Name: "10.96.0.0"})
	c.Remove(vip.IPAddresses, ipam.Key{Name: "fd00:96::2"})
	c.Want("they are gone", cidr)
	for _, spec := range []string{"7", "{cidrs: [10.96.0.0]}", "{cidrs: 7}"} {
		c.Apply(vip.ServiceCIDRs, "metadata: {name: kubernetes}\nspec: "+spec)
		if p := c.Pool("ServiceCIDR kubernetes"); p.State != ipam.Unreadable || p.Problem == "" || len(p.Ranges) != 2 {
			t.Errorf("%s: got %+v, want an unreadable pool with its last ranges", spec, p)
		}
	}
	c.Remove(vip.ServiceCIDRs, ipam.Key{Name: "kubernetes"})
	c.Resource(vip.ServiceCIDRs).Followed = false
	c.Settle()
	const flag = "kube-proxy --service-cluster-ip-range known "
	c.Want("ServiceCIDRs are not served", flag+"10.96.0.0-10.96.255.255")
	c.ServerFlags("10.96.0.0/16,fd00:96::/112", "10.96.0.0/12")
	c.Want("two API servers", flag+"10.96.0.0-10.111.255.255 fd00:96::-fd00:96::ffff")
	c.ServerFlags("10.96.0.0/16", "nonsense")
	if p := c.Pool("--service-cluster-ip-range"); !strings.Contains(p.Problem, "nonsense") || len(p.Ranges) != 1 {
		t.Errorf("got %+v, want a problem beside the other range", p)
	}
	c.ServerFlags()
	c.Want("the API servers run as no pods", "")
}
