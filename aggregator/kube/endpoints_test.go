package kube

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// Endpoints are compared with the pods in the API, once these are known, and judged again after one of them has changed.
func TestEndpointsOfFormerPodsAreReported(t *testing.T) {
	a := netip.MustParseAddr("10.244.0.7")
	f := newFakeAPI(t)
	f.install(vip.EndpointSlices)
	pod := testPod("b", "n1", a.String())
	f.put(pod)
	f.apply(vip.EndpointSlices, `
metadata: {namespace: shop, name: web-x, labels: {kubernetes.io/service-name: web, endpointslice.kubernetes.io/managed-by: "`+strings.Repeat("x", 300)+`"}}
addressType: IPv4
endpoints:
- {addresses: [10.244.0.7], targetRef: {kind: Pod, namespace: default, name: b, uid: `+string(pod.UID)+`}}
- {addresses: [10.244.0.8], targetRef: {kind: Pod, namespace: --all, name: $(x), uid: nobody}}`)
	c := f.open()
	c.discovery.every, c.discovery.check = 20*time.Millisecond, 0
	var told atomic.Int64
	c.Notify(func(changes Changes) {
		if slices.Contains(changes.Addresses, a) {
			told.Add(1)
		}
	})
	t.Cleanup(run(c))
	former := func(a netip.Addr) (all []ipam.Endpoint) {
		all, _ = c.FormerEndpoints(a)
		return all
	}
	known := func() bool { _, known := c.FormerEndpoints(a); return known }
	wait.Until(t, "endpoints are known", known)
	if got, n := former(a), told.Load(); len(got) > 0 || n > 0 {
		t.Errorf("got %v, %d changes, want none while the pod has the address", got, n)
	}
	odd := former(netip.MustParseAddr("10.244.0.8"))
	if len(odd) != 1 || odd[0].UID != "nobody" || strings.HasPrefix(odd[0].Pod.Namespace, "-") || strings.Contains(odd[0].Pod.Name, "$") || len(odd[0].Manager) > 253 {
		t.Errorf("got %q, want an endpoint with names in their forms", odd)
	}
	if got, known := c.ServicesTo(a); !known || !slices.Equal(got, []ipam.Key{{Namespace: "shop", Name: "web"}}) {
		t.Errorf("got Services %v, known %t, want web", got, known)
	}
	f.drop(pod)
	wait.Until(t, "the pod is deleted", func() bool { return len(former(a)) == 1 && told.Load() == 1 })
	f.set(func() { f.forbidden[vip.EndpointSlices.String()] = true })
	f.cut()
	wait.Until(t, "EndpointSlices cannot be read", func() bool { return !known() })
	if got := former(a); len(got) != 1 {
		t.Errorf("got %v, want the last known one", got)
	}
}
