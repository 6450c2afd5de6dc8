package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// The address of a pod or of a node is that of a Service.
func TestTheAddressOfAServiceIsHeld(t *testing.T) {
	const critical, warning = verdict.Critical, verdict.Warning
	for _, test := range []struct {
		name      string
		field     ipam.ServiceField
		endpoints ipam.Endpoints
		node      bool
		change    func(w *world, c *verdict.Claim)
		want      []verdict.Severity
		after     time.Duration
	}{
		{"a cluster IP is that of a pod", ipam.ClusterIP, ipam.SomeEndpoints, false, nil, []verdict.Severity{critical}, 0},
		{"a cluster IP is that of one of its endpoints", ipam.ClusterIP, ipam.OwnEndpoint, false, nil, []verdict.Severity{critical}, 0},
		{"an external IP is that of a pod", ipam.ExternalIP, ipam.SomeEndpoints, false, nil, []verdict.Severity{critical}, 0},
		{"an external IP without endpoints is that of a pod", ipam.ExternalIP, ipam.NoEndpoints, false, nil, []verdict.Severity{critical}, 0},
		{"a load balancer has the address of a pod", ipam.Ingress, ipam.EndpointsUnknown, false, nil, []verdict.Severity{critical}, 0},
		{"a load balancer has the address of an endpoint", ipam.Ingress, ipam.OwnEndpoint, false, nil, nil, 0},
		{"a cluster IP is that of a node", ipam.ClusterIP, ipam.SomeEndpoints, true, nil, []verdict.Severity{critical}, 0},
		{"a gateway by external IPs of a node", ipam.ExternalIP, ipam.SomeEndpoints, true, nil, nil, 0},
		{"the same, and the endpoints are those of the node", ipam.ExternalIP, ipam.OwnEndpoint, true, nil, nil, 0},
		{"the same, and EndpointSlices are not known", ipam.ExternalIP, ipam.EndpointsUnknown, true, nil, nil, 0},
		{"it has no endpoints for a while", ipam.ExternalIP, ipam.NoEndpoints, true, nil, nil, 0},
		{"it has no endpoints for longer", ipam.ExternalIP, ipam.NoEndpoints, true, nil, []verdict.Severity{warning}, time.Minute},
		{"the load balancer of k3s has the address of a node", ipam.Ingress, ipam.NoEndpoints, true, nil, nil, time.Minute},
		{"kube-proxy has a cluster IP on a device", ipam.ClusterIP, ipam.SomeEndpoints, true, func(w *world, c *verdict.Claim) {
			c.Interface = w.Interface(w.Host("n1"), verdict.Interface{Name: "kube-ipvs0", Attachment: verdict.Local})
		}, nil, 0},
		{"a container that is no pod", ipam.ExternalIP, ipam.SomeEndpoints, false, func(_ *world, c *verdict.Claim) {
			c.Interface.Namespace.Who = verdict.Workload{Kind: verdict.Container, Name: "db"}.Who()
		}, nil, 0},
		{"the node of the pod has timed out", ipam.ExternalIP, ipam.SomeEndpoints, false, func(_ *world, c *verdict.Claim) { c.Node().TimedOut = true }, nil, 0},
	} {
		w := newWorld("10.244.1.5")
		var c *verdict.Claim
		if test.node {
			w.Device("n1", "eth0", "")
			c = w.Claims[0]
		} else {
			c = w.kindPod("n1", "web", "pods", 2)
			w.Says("uid-web", verdict.PodObject{Namespace: "default", Name: "web", Phase: "Running"})
		}
		if test.change != nil {
			test.change(w, c)
		}
		w.allocate(w.Pool(vip.KubeProxy.Name, "", ""), verdict.Allocation{Allocation: ipam.Allocation{
			Purpose: "Service shop/api", Location: "services shop/api " + string(test.field),
			Service: &ipam.Redirect{Namespace: "shop", Name: "api", Field: test.field, Ports: "80/TCP", Endpoints: test.endpoints},
		}})
		w.Pools[0].Ranges = nil
		first := w.auditAll()
		out := w.after(w.Policy.Settle + test.after).auditAll(first.Findings...)
		var got []verdict.Severity
		for _, f := range out.Findings {
			if f.Kind == verdict.FindingAnsweredByAnother && !f.Waiting {
				got = append(got, f.Severity)
			}
		}
		if !slices.Equal(got, test.want) || len(reported(first.Findings)) != 0 {
			t.Errorf("%s: got severities %v of %+v, want %v", test.name, got, out.Findings, test.want)
		}
		// It ends with the Service.
		w.Allocations = nil
		if end := w.auditAll(out.Findings...); len(end.Findings) != 0 {
			t.Errorf("%s: got %+v without the Service, want none", test.name, end.Findings)
		}
		if n := len(w.Judge().Conflicts); n != 0 {
			t.Errorf("%s: got %d conflicts", test.name, n)
		}
	}
}

// Two Node objects have one InternalIP.
func TestTwoNodesHaveOneInternalIP(t *testing.T) {
	for _, test := range []struct {
		name  string
		nodes []string
		after time.Duration
		want  []verdict.Severity
	}{
		{"one of them has no agent", []string{"n1", "n9"}, time.Minute, []verdict.Severity{verdict.Warning}},
		{"none has an agent", []string{"n8", "n9"}, time.Minute, []verdict.Severity{verdict.Warning}},
		{"one of them is deleted soon", []string{"n1", "n9"}, 20 * time.Second, nil},
	} {
		w := newWorld("10.0.2.15")
		w.Device("n1", "eth0", "")
		p := w.Pool(podips.IPAM.Name, "", "")
		p.Name, p.Ranges = podips.NodePool, nil
		for _, n := range test.nodes {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Node: n, Purpose: "InternalIP", Location: "nodes " + n + " " + podips.NodeStatus}})
		}
		first := w.auditAll()
		var got []verdict.Severity
		for _, f := range w.after(test.after).auditAll(first.Findings...).Findings {
			if f.Kind == verdict.FindingDoubleAllocated && !f.Waiting {
				got = append(got, f.Severity)
			}
		}
		if !slices.Equal(got, test.want) || len(reported(first.Findings)) != 0 {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// ofServices adds a pool of which Services get the addresses, or one of owners without a field.
func (w *world) ofServices(field ipam.ServiceField) *verdict.Pool {
	p := w.ofCluster(calico.IPAM.Name, "192.0.2.0/28")
	p.Services = field
	return p
}

// given records that the address is one of a Service, or assigned by a controller.
func (w *world) given(of string, al ipam.Allocation) {
	w.allocate(&verdict.Pool{Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: "services", State: ipam.Known}}, verdict.Allocation{Allocation: al})
}

var balanced = ipam.Allocation{
	Purpose: "Service shop/api", Location: "services shop/api /status/loadBalancer/ingress", Service: &ipam.Redirect{Namespace: "shop", Name: "api", Field: ipam.Ingress},
}

// A Service may get the address of an owner.
func TestAServiceMayGetTheAddress(t *testing.T) {
	pod := func(w *world) { w.kindPod("n1", "web", "pods", 2) }
	node := func(w *world) { w.Device("n1", "eth0", "") }
	machine := func(kind verdict.Evidence) func(*world) {
		return func(w *world) { w.Wire(w.Uplink("n1"), "\x02\x00\x00\x00\x00\x99").Kind = kind }
	}
	critical, warning := []verdict.Severity{verdict.Critical}, []verdict.Severity{verdict.Warning}
	for _, test := range []struct {
		name   string
		field  ipam.ServiceField
		holder func(*world)
		change func(w *world, p *verdict.Pool)
		kind   string
		want   []verdict.Severity
	}{
		{"a pod in the range of cluster IPs", ipam.ClusterIP, pod, nil, unallocated, critical},
		{"a node in the range of cluster IPs", ipam.ClusterIP, node, nil, unallocated, critical},
		{"a pod in the range of a load balancer", ipam.Ingress, pod, nil, unallocated, critical},
		{"a node in the range of a load balancer", ipam.Ingress, node, nil, unallocated, warning},
		{"a machine without an agent", ipam.Ingress, machine(verdict.Used), nil, unallocated, critical},
		{"a speaker without an agent still answers", ipam.Ingress, machine(verdict.Answered), nil, "", nil},
		{"the Service has it, whose virtual address it is", ipam.Ingress, node, func(w *world, _ *verdict.Pool) { w.given(vip.KubeProxy.Name, balanced) }, "", nil},
		{"kube-vip assigns it to the node", ipam.Ingress, node, func(w *world, _ *verdict.Pool) {
			w.given(vip.KubeVIP.Name, ipam.Allocation{Node: "n1", Purpose: "control plane"})
		}, "", nil},
		{"Calico has allocated it to a Service", ipam.Ingress, pod, func(w *world, p *verdict.Pool) {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Purpose: "load balancer of Service shop/api"}})
		}, bookedElse, critical},
		{"kube-proxy has a former cluster IP on a device", ipam.ClusterIP, func(w *world) { w.Device("n1", "kube-ipvs0", "").Attachment = verdict.Local }, nil, "", nil},
		{"the Kubernetes API is not followed", ipam.ClusterIP, pod, func(w *world, _ *verdict.Pool) { w.unfollowed = true }, "", nil},
		{"the pool cannot be read", ipam.ClusterIP, pod, func(_ *world, p *verdict.Pool) { p.State = ipam.Unreadable }, "", nil},
	} {
		w := newWorld("192.0.2.5")
		test.holder(w)
		p := w.ofServices(test.field)
		if test.change != nil {
			test.change(w, p)
		}
		first := w.auditAll()
		w.after(time.Minute)
		for _, c := range w.Claims {
			w.Seen(c)
		}
		out := w.auditAll(first.Findings...)
		kind, got := "", []verdict.Severity(nil)
		for _, f := range out.Findings {
			if !f.Waiting {
				kind, got = f.Kind, append(got, f.Severity)
			}
		}
		if !slices.Equal(got, test.want) || kind != test.kind || len(reported(first.Findings)) != 0 || len(out.Past) != 0 {
			t.Errorf("%s: got %q with severities %v, past %+v, want %q with %v", test.name, kind, got, out.Past, test.kind, test.want)
		}
		// A failure of the Kubernetes API ends nothing, and the end of the pool does.
		p.State = ipam.Stale
		if n := len(reported(w.auditAll(out.Findings...).Findings)); n != len(test.want) {
			t.Errorf("%s: got %d findings while the pool is stale, want %d", test.name, n, len(test.want))
		}
		w.Pools, w.Allocations = nil, nil
		if end := w.auditAll(out.Findings...); len(end.Findings) != 0 {
			t.Errorf("%s: got %+v without the pool, want none", test.name, end.Findings)
		}
	}
}

// A load balancer has given a Service the address of a device without an agent, such as the router.
func TestALoadBalancerHasTheAddressOfADevice(t *testing.T) {
	for _, test := range []struct {
		name   string
		kind   verdict.Evidence
		pooled bool
		later  time.Duration // until its next frame after the Service got the address
		want   []string
	}{
		{"that uses it", verdict.Used, true, time.Second, []string{verdict.FindingAnsweredByAnother + " services"}},
		{"that has not used it since", verdict.Used, true, 0, nil},
		{"a speaker that only answers", verdict.Answered, true, time.Second, nil},
		{"the load balancer itself, outside of the cluster", verdict.Used, false, time.Second, nil},
	} {
		w := newWorld("192.0.2.1")
		c := w.Wire(w.Uplink("n1"), "\x02\x00\x00\x00\x00\x99")
		if c.Kind = test.kind; test.pooled {
			w.ofServices(ipam.Ingress)
		}
		w.after(time.Minute)
		w.given(vip.KubeProxy.Name, balanced)
		for _, al := range w.Allocations {
			al.Heard = w.Now
		}
		if test.later > 0 {
			w.after(test.later)
			w.Seen(c)
		}
		first := w.auditAll()
		w.after(2 * w.Policy.Settle)
		if test.later > 0 {
			w.Seen(c)
		}
		out := w.auditAll(first.Findings...).Findings
		if got := reported(out); !slices.Equal(got, test.want) || len(got) > 0 && out[0].Severity != verdict.Warning {
			t.Errorf("%s: got %+v, want warnings %q", test.name, out, test.want)
		}
	}
}

// A load balancer has given a Service the address of a node.
func TestALoadBalancerHasTheAddressOfANode(t *testing.T) {
	for _, test := range []struct {
		name, internal string
		pooled         bool
		assigned       string // the node that kube-vip assigns it to
		want           []string
	}{
		{"from its pool", "n1", true, "", []string{verdict.FindingAnsweredByAnother + " services"}},
		{"a virtual address that the node has", "", true, "", nil},
		{"the load balancer of k3s", "n1", false, "", nil},
		{"the load balancer of k3s, and kube-vip assigns it to another node", "n1", false, "n2", []string{verdict.FindingAnsweredByAnother + " services"}},
		{"the load balancer of k3s, and kube-vip assigns it to this node", "n1", false, "n1", nil},
	} {
		w := newWorld("192.0.2.5")
		w.Device("n1", "eth0", "")
		if w.Internal = test.internal; test.pooled {
			w.ofServices(ipam.Ingress)
		}
		w.given(vip.KubeProxy.Name, balanced)
		if test.assigned != "" {
			w.assigned(vip.KubeVIP.Name, test.assigned, "services shop/api")
		}
		first := w.auditAll()
		out := w.after(w.Policy.Settle).auditAll(first.Findings...).Findings
		if got := reported(out); !slices.Equal(got, test.want) || len(got) > 0 && out[0].Severity != verdict.Warning {
			t.Errorf("%s: got %+v, want warnings %q", test.name, out, test.want)
		}
	}
}

// Two Services have one address and a common port.
func TestTwoServicesHaveOneAddress(t *testing.T) {
	type service struct{ name, field, ports, sharing string }
	const external, ingress, cluster = string(ipam.ExternalIP), string(ipam.Ingress), string(ipam.ClusterIP)
	for _, test := range []struct {
		name string
		has  []service
		want bool
	}{
		{"by externalIPs", []service{{"a", external, "80/TCP", ""}, {"b", external, "53/UDP,80/TCP", ""}}, true},
		{"by a load balancer and externalIPs", []service{{"a", ingress, "80/TCP", "key"}, {"b", external, "80/TCP", ""}}, true},
		{"by two load balancers with different keys", []service{{"a", ingress, "80/TCP", "one"}, {"b", ingress, "80/TCP", "two"}}, true},
		{"the external IP of one is the cluster IP of the other", []service{{"a", cluster, "80/TCP", ""}, {"b", external, "80/TCP", ""}}, true},
		{"they have one key to share it", []service{{"a", ingress, "80/TCP", "key"}, {"b", ingress, "80/TCP", "key"}}, false},
		{"they have different ports", []service{{"a", external, "80/TCP", ""}, {"b", external, "80/UDP,8080/TCP", ""}}, false},
		{"more ports are not known", []service{{"a", external, "80/TCP,...", ""}, {"b", external, "81/TCP,...", ""}}, false},
		{"one Service has it twice", []service{{"a", external, "80/TCP", ""}, {"a", ingress, "80/TCP", ""}}, false},
		{"one Service has it", []service{{"a", external, "80/TCP", ""}}, false},
	} {
		w := newWorld("192.0.2.80")
		p := &verdict.Pool{Pool: ipam.Pool{IPAM: vip.KubeProxy.Name, Traits: registry.Traits(vip.KubeProxy.Name), Name: "services", State: ipam.Known}}
		for _, s := range test.has {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{
				Purpose: "Service shop/" + s.name, Location: "services shop/" + s.name + " " + s.field,
				Service: &ipam.Redirect{Namespace: "shop", Name: s.name, Field: ipam.ServiceField(s.field), Ports: s.ports, Sharing: s.sharing},
			}})
		}
		first := w.auditAll()
		out := w.after(w.Policy.Settle).auditAll(first.Findings...).Findings
		if found := len(out) == 1 && out[0].Kind == verdict.FindingDoubleAllocated && out[0].Severity == verdict.Warning && !out[0].Waiting && len(out[0].Allocations) == 2; found != test.want || len(out) > 1 {
			t.Errorf("%s: got %+v, want a warning: %v", test.name, out, test.want)
		}
		w.Allocations = w.Allocations[:1]
		if end := w.auditAll(out...).Findings; len(end) != 0 {
			t.Errorf("%s: got %+v when one Service has it, want none", test.name, end)
		}
	}
}

// Only the Kubernetes API knows the pod or node that has the address of a Service, or one that a Service may get.
func TestTheKubernetesAPIListsAnAddressOfServices(t *testing.T) {
	pod := ipam.Allocation{Namespace: "shop", Pod: "far", Node: "n9", Location: "pods shop/far " + podips.Status}
	node := ipam.Allocation{Node: "n9", Purpose: "InternalIP", Location: "nodes n9 " + podips.NodeStatus}
	service := func(field ipam.ServiceField, to ipam.Endpoints) func(*world) {
		return func(w *world) {
			w.given(vip.KubeProxy.Name, ipam.Allocation{
				Purpose: "Service shop/api", Location: "services shop/api " + string(field), Service: &ipam.Redirect{Namespace: "shop", Name: "api", Field: field, Endpoints: to},
			})
		}
	}
	pool := func(field ipam.ServiceField) func(*world) { return func(w *world) { w.ofServices(field) } }
	both := func(do ...func(*world)) func(*world) {
		return func(w *world) {
			for _, one := range do {
				one(w)
			}
		}
	}
	const answered = verdict.FindingAnsweredByAnother
	critical, warning := verdict.Critical, verdict.Warning
	for _, test := range []struct {
		name     string
		listed   ipam.Allocation
		do       func(*world)
		kind     string
		severity verdict.Severity
	}{
		{"a cluster IP is that of a node", node, service(ipam.ClusterIP, ipam.SomeEndpoints), answered, critical},
		{"a cluster IP is on a device of kube-proxy on another node", node, both(service(ipam.ClusterIP, ipam.SomeEndpoints), func(w *world) {
			w.Device("n1", "kube-ipvs0", "").Attachment = verdict.Local
		}), answered, critical},
		{"an external IP is that of a pod", pod, service(ipam.ExternalIP, ipam.SomeEndpoints), answered, critical},
		{"an external IP is that of its endpoint", pod, service(ipam.ExternalIP, ipam.OwnEndpoint), "", 0},
		{"a gateway by external IPs of a node", node, service(ipam.ExternalIP, ipam.SomeEndpoints), "", 0},
		{"the load balancer of k3s", node, service(ipam.Ingress, ipam.SomeEndpoints), "", 0},
		{"a load balancer has given it from its pool", node, both(pool(ipam.Ingress), service(ipam.Ingress, ipam.SomeEndpoints)), answered, warning},
		{"a node in the range of a load balancer", node, pool(ipam.Ingress), unallocated, warning},
		{"a pod in the range of a load balancer", pod, pool(ipam.Ingress), unallocated, critical},
		{"a node in the range of cluster IPs", node, pool(ipam.ClusterIP), unallocated, critical},
		{"no Service may get it", node, func(*world) {}, "", 0},
	} {
		w := newWorld("192.0.2.5")
		test.do(w)
		w.given(podips.IPAM.Name, test.listed)
		first := w.auditAll()
		early := w.after(podips.IPAM.EndDelay - time.Second).auditAll(first.Findings...)
		out := w.after(time.Second).auditAll(early.Findings...)
		kind, severity := "", verdict.Severity(0)
		for _, f := range out.Findings {
			if !f.Waiting {
				kind, severity = f.Kind, f.Severity
			}
		}
		if kind != test.kind || severity != test.severity || len(reported(early.Findings)) != 0 {
			t.Errorf("%s: got %q with severity %v, want %q with %v", test.name, kind, severity, test.kind, test.severity)
		}
		w.Allocations = w.Allocations[:len(w.Allocations)-1]
		if end := w.auditAll(out.Findings...); len(end.Findings) != 0 {
			t.Errorf("%s: got %+v when the Kubernetes API lists it no longer, want none", test.name, end.Findings)
		}
	}
}

// A node without an agent is seen on a LAN with its own address, from which a load balancer may give addresses.
func TestANodeWithoutAnAgentIsSeenInARange(t *testing.T) {
	for internal, want := range map[bool]verdict.Severity{true: verdict.Warning, false: verdict.Critical} {
		w := newWorld("192.0.2.5")
		w.ofServices(ipam.Ingress)
		w.Wire(verdicttest.OnLAN(w.World, "n1", "n2")[0], "52:54:00:00:00:09").Kind = verdict.Used
		if internal {
			w.given(podips.IPAM.Name, ipam.Allocation{Node: "n9", Purpose: "InternalIP", Location: "nodes n9 " + podips.NodeStatus})
		}
		first := w.auditAll()
		out := w.after(podips.IPAM.EndDelay).auditAll(first.Findings...).Findings
		if len(out) != 1 || out[0].Kind != verdict.FindingInUseUnallocated || out[0].Severity != want {
			t.Errorf("the address is that of a node: %t: got %+v, want severity %v", internal, out, want)
		}
	}
}

// A pod has the InternalIP of another node, according to the Kubernetes API.
func TestAPodHasTheAddressOfANode(t *testing.T) {
	w := newWorld("10.244.0.5")
	w.given(podips.IPAM.Name, ipam.Allocation{Namespace: "shop", Pod: "far", Node: "n8", Location: "pods shop/far " + podips.Status})
	w.given(podips.IPAM.Name, ipam.Allocation{Node: "n9", Purpose: "InternalIP", Location: "nodes n9 " + podips.NodeStatus})
	first := w.auditAll()
	out := w.after(podips.IPAM.EndDelay).auditAll(first.Findings...).Findings
	if len(out) != 1 || out[0].Kind != verdict.FindingDoubleAllocated || out[0].Severity != verdict.Warning || out[0].Waiting {
		t.Errorf("got %+v, want a warning", out)
	}
}
