package kube

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/antrea"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/vip"

	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// BenchmarkResources reads 10,240 allocations of each of several IPAMs, or as many addresses or
// virtual machines that controllers assign to nodes, and measures what the mirror keeps of them. The
// aggregator keeps the published allocations in addition, as those of nodes.
func BenchmarkResources(b *testing.B) {
	const pods, inPool = 10_240, 64 // as in the blocks of Calico
	address := func(i int) string { return fmt.Sprintf("10.%d.%d.%d", 1+i/65536, i/256%256, i%256) }
	pod := func(i int) string { return fmt.Sprintf("web-7d4f8c9b6d-%05d", i) }
	id := func(i int) string { return fmt.Sprintf("%064x", i) }
	node := func(i int) string { return fmt.Sprintf("node-%d", i/inPool) }
	// each returns the entries of a pool, separated by commas.
	each := func(p int, entry func(i int) string) string {
		var all []string
		for i := range inPool {
			all = append(all, entry(p*inPool+i))
		}
		return strings.Join(all, ", ")
	}
	for _, test := range []struct {
		name  string
		kinds []ipam.Kind
		// pool and pod create the objects of a pool and of a pod; nil if there are none.
		pool, pod func(f *fakeAPI, i int)
		// service returns a Service; nil if there are none.
		service func(i int) *corev1.Service
	}{
		{"kube-ovn", []ipam.Kind{ovn.Subnets, ovn.IPs, ovn.VIPs}, func(f *fakeAPI, p int) {
			if p == 0 {
				f.apply(ovn.Subnets, "metadata: {name: ovn-default}\nspec: {cidrBlock: 10.0.0.0/8, vpc: ovn-cluster}")
			}
		}, func(f *fakeAPI, i int) {
			f.apply(ovn.IPs, ipamtest.KubeOVNIP(pod(i), "shop", address(i), node(i), ""))
		}, nil},
		{"spiderpool", []ipam.Kind{spiderpool.Pools, spiderpool.Endpoints}, func(f *fakeAPI, p int) {
			f.apply(spiderpool.Pools, fmt.Sprintf("metadata: {name: pool-%d}\nspec: {ips: [%s-%s]}\nstatus: {allocatedIPs: '{%s}'}", p, address(p*inPool), address(p*inPool+inPool-1),
				each(p, func(i int) string {
					return fmt.Sprintf(`"%s":{"interface":"eth0","pod":"shop/%s","podUid":"18fd2a5d-40a4-4fd7-85e1-9fd8ba0bb3b1"}`, address(i), pod(i))
				})))
		}, func(f *fakeAPI, i int) {
			f.apply(spiderpool.Endpoints, strings.Replace(ipamtest.SpiderEndpoint("shop", pod(i), node(i), address(i), "Deployment"), "v4pool", fmt.Sprintf("pool-%d", i/inPool), 1))
		}, nil},
		{"antrea", []ipam.Kind{antrea.Pools}, func(f *fakeAPI, p int) {
			f.apply(antrea.Pools, fmt.Sprintf("metadata: {name: pool-%d}\nspec: {ipRanges: [{start: %s, end: %s}]}\nstatus: {ipAddresses: [%s]}", p, address(p*inPool), address(p*inPool+inPool-1),
				each(p, func(i int) string {
					return fmt.Sprintf("{ipAddress: %s, phase: Allocated, owner: {pod: {name: %s, namespace: shop, containerID: '%s'}}}", address(i), pod(i), id(i))
				})))
		}, nil, nil},
		{"ovn-kubernetes", []ipam.Kind{ovn.Claims}, nil, func(f *fakeAPI, i int) {
			f.apply(ovn.Claims, ipamtest.IPAMClaim("shop", fmt.Sprintf("vm-%d.blue", i), "blue", address(i)+"/8", "virt-launcher-"+pod(i)))
		}, nil},
		{"whereabouts", []ipam.Kind{whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks}, func(f *fakeAPI, p int) {
			f.apply(whereabouts.Pools, fmt.Sprintf("metadata: {name: %s-26, namespace: kube-system}\nspec: {range: %[1]s/26, allocations: {%s}}", address(p*inPool),
				each(p, func(i int) string {
					return fmt.Sprintf(`"%d": {id: '%s', podref: shop/%s, ifname: net1}`, i%inPool, id(i), pod(i))
				})))
		}, func(f *fakeAPI, i int) {
			f.apply(whereabouts.Reservations, ipamtest.WhereaboutsReservation(address(i), "shop/"+pod(i)))
		}, nil},
		{"calico", []ipam.Kind{calico.Pools, calico.Blocks, calico.Affinities, calico.Reservations}, func(f *fakeAPI, p int) {
			if p == 0 {
				f.apply(calico.Pools, strings.Replace(ipamtest.CalicoPool, "192.168.0.0/16", "10.0.0.0/8", 1))
			}
			var given []string
			for i := range inPool {
				given = append(given, ipamtest.CalicoPod(pod(p*inPool+i), node(p*inPool), id(p*inPool+i)))
			}
			cidr := address(p*inPool) + "/26"
			f.apply(calico.Blocks, ipamtest.CalicoBlock(strings.NewReplacer(".", "-", "/", "-").Replace(cidr), cidr, given...))
		}, nil, nil},
		{"cilium", []ipam.Kind{cilium.Nodes, cilium.Endpoints}, func(f *fakeAPI, p int) {
			f.apply(cilium.Nodes, ipamtest.CiliumNode(node(p*inPool), fmt.Sprintf("172.18.%d.%d", p/256, p%256), address(p*inPool)+"/26", address(p*inPool), ""))
		}, func(f *fakeAPI, i int) {
			f.apply(cilium.Endpoints, ipamtest.CiliumEndpoint("shop", pod(i), id(i), address(i), fmt.Sprintf("172.18.%d.%d", i/inPool/256, i/inPool%256)))
		}, nil},
		{"cilium's slices", []ipam.Kind{cilium.Nodes, cilium.Slices}, func(f *fakeAPI, p int) {
			f.apply(cilium.Nodes, ipamtest.CiliumNode(node(p*inPool), fmt.Sprintf("172.18.%d.%d", p/256, p%256), address(p*inPool)+"/26", address(p*inPool), ""))
			var pods []string
			for i := range inPool {
				pods = append(pods, fmt.Sprintf("%s %s 172.18.%d.%d", pod(p*inPool+i), address(p*inPool+i), p/256, p%256))
			}
			f.apply(cilium.Slices, ipamtest.CiliumEndpointSlice(fmt.Sprintf("ces-%d", p), "shop", pods...))
		}, nil, nil},
		{"kube-vip", nil, nil, nil, func(i int) *corev1.Service { return requested(balanced(pod(i), node(i), address(i))) }},
		{"metallb", []ipam.Kind{vip.ServiceL2Statuses}, nil, func(f *fakeAPI, i int) {
			f.apply(vip.ServiceL2Statuses, fmt.Sprintf("metadata: {namespace: metallb-system, name: l2-%05d}\nstatus: {node: %s, serviceName: %s, serviceNamespace: shop, interfaces: [{name: eth0}]}", i, node(i), pod(i)))
		}, func(i int) *corev1.Service { return requested(balanced(pod(i), "", address(i))) }},
		{"egressip", []ipam.Kind{vip.EgressIPs}, nil, func(f *fakeAPI, i int) {
			f.apply(vip.EgressIPs, fmt.Sprintf("metadata: {name: %s}\nspec: {egressIPs: [%s]}\nstatus: {items: [{node: %s, egressIP: %[2]s}]}", pod(i), address(i), node(i)))
		}, nil},
		{"kubevirt", []ipam.Kind{vip.Machines}, nil, func(f *fakeAPI, i int) {
			f.apply(vip.Machines, fmt.Sprintf("metadata: {namespace: shop, name: %s}\nstatus: {phase: Running, nodeName: %s, activePods: {6e3b2f0a-9c1d-4f7e-8a55-%012[3]x: %[2]s}}", pod(i), node(i), i))
		}, nil},
	} {
		b.Run(test.name, func(b *testing.B) {
			f := newFakeAPI(b)
			f.install(test.kinds...)
			for p := range pods / inPool {
				if test.pool != nil {
					test.pool(f, p)
				}
			}
			for i := range pods {
				if test.pod != nil {
					test.pod(f, i)
				}
			}
			var kept float64
			for b.Loop() {
				c := f.open()
				c.discovery.every = 20 * time.Millisecond
				var published atomic.Int64
				c.Notify(func(changes Changes) {
					for _, change := range changes.IPAM {
						if change.Allocation != nil && !change.Gone {
							published.Add(1)
						}
					}
				})
				before := heap()
				stop := run(c)
				live(b, c)
				for i := range pods {
					if test.service != nil {
						c.put(&c.services, test.service(i))
					}
				}
				wait.Until(b, "all allocations are published", func() bool { return published.Load() >= pods || machines(c) >= pods })
				kept += float64(heap() - before)
				stop()
				runtime.KeepAlive(c)
			}
			b.ReportMetric(kept/float64(b.N)/pods, "heap-B/allocation")
		})
	}
}

// requested returns a Service that requests the address that it has.
func requested(s *corev1.Service) *corev1.Service {
	s.Spec.LoadBalancerIP = s.Status.LoadBalancer.Ingress[0].IP
	return s
}

// machines returns the number of virtual machines that a mirror knows.
func machines(c *Cluster) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	i := slices.IndexFunc(c.ipams, func(m *publisher) bool { return m.name == vip.KubeVirt.Name })
	return len(c.ipams[i].objects.Resources[0].Store.(*ipam.Mirror[*ipam.Object, ipam.Machine]).Records)
}
