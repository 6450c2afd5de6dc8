package aggregator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/antrea"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/ovn"

	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/churn"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// resources has the custom resources of an IPAM, which the aggregator reads. Agents report the pods.
func (l *lab) resources(m *ipam.IPAM, kinds ...ipam.Kind) *ipamtest.Cluster {
	l.Helper()
	c := ipamtest.New(l.TB, m, kinds...)
	pools := make(map[string]*verdict.Pool)
	c.Published = func(p *ipam.Pool, al *ipam.Allocation, at int64, gone bool) {
		if al == nil {
			pools[p.Name] = &verdict.Pool{Pool: *p}
			l.ofCluster(kube.IPAMChange{Pool: pools[p.Name], Gone: gone})
			return
		}
		l.ofCluster(kube.IPAMChange{Allocation: &verdict.Allocation{Pool: pools[p.Name], Allocation: *al, AllocatedAt: verdict.Stamp(at)}, Gone: gone})
	}
	return c
}

// ovnPod returns a pod whose address is from a CNI network.
func ovnPod(record uint32, name, addr, network string) *pb.ReportRequest {
	m := kindPod(record, name, addr)
	m.Claims[0].Network = network
	m.Namespaces[0].Workload.ProcessId = 7
	return m
}

// underlay returns a pod on a node's eth0 whose first interface has an address from a CNI network.
func underlay(record uint32, name, addr string) *pb.ReportRequest {
	m := macvlan(record, name, addr, []byte{2, 3, 0, 0, byte(record >> 8), byte(record)})
	m.Interfaces[0].Name, m.Namespaces[0].Workload.ContainerId, m.Claims[0].Network = "eth0", "sandbox-"+name, "macvlan-conf"
	return m
}

// wantKept checks the cause of the only conflict, and that its remedy restarts or deletes only the
// other pod.
func (l *lab) wantKept(cause, keep, lose string) {
	l.Helper()
	c := l.conflict(pb.Conflict_SUSPECTED)
	remedy := fmt.Sprint(c.GetRemedy())
	if c.GetCause() != cause {
		l.Errorf("got cause %s because of %q, not %v, want %s", c.GetCause(), c.GetBecause(), c.GetExcluded(), cause)
	}
	if !strings.Contains(remedy, "kubectl delete pod -n default "+lose) || strings.Contains(remedy, "kubectl delete pod -n default "+keep) {
		l.Errorf("got remedy %s, want that %s keeps the address and %s is deleted", remedy, keep, lose)
	}
}

// Spiderpool's garbage collector frees the address of a pod of a StatefulSet that was recreated under
// its name, because the UID in the pool is that of the pod before (spidernet-io/spiderpool issue
// 2526). The next pod gets the address. Incident 30.
func TestGarbageCollectionOfSpiderpoolIsPredicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forget := "kubectl delete " + spiderpool.Endpoints.String() + " -n default --ignore-not-found --wait=false db-0"
		l := newLab(t, Config{Settle: time.Second})
		c := l.resources(&spiderpool.IPAM, spiderpool.Pools, spiderpool.Endpoints)
		full := strings.NewReplacer("default/web-7d4f8", "default/web", "net1", "eth0").Replace(ipamtest.SpiderPool)
		c.Apply(spiderpool.Pools, full)
		c.Apply(spiderpool.Endpoints, ipamtest.SpiderEndpoint("default", "db-0", "n2", "10.6.168.102", "StatefulSet"))
		one := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), underlay(2, "web", "10.6.168.101"))).sync()
		l.dial().send(snapshot(hello("n2", 1), uplink(nodeMAC(2)), underlay(2, "db-0", "10.6.168.102"))).sync()
		time.Sleep(time.Hour)
		l.wantFindings("all is well")

		c.Apply(spiderpool.Pools, strings.Replace(full, `,"10.6.168.102":{"interface":"eth0","pod":"default/db-0","podUid":"27c5f4a1"}`, "", 1))
		time.Sleep(time.Minute)
		all := l.wantFindings("the address of a running pod is free", "in-use-unallocated 10.6.168.102")
		if f := all[0]; f.GetSeverity() != pb.Finding_CRITICAL || f.GetPool().GetIpam() != spiderpool.IPAM.Name || f.GetOwners()[0].GetWorkload().GetName() != "db-0" ||
			!strings.Contains(fmt.Sprint(f.GetRemedy()), forget) {
			t.Errorf("got %v, want db-0 of Spiderpool, whose endpoint is deleted first", f)
		}

		c.Apply(spiderpool.Pools, strings.Replace(full, "default/db-0", "default/concurrency", 1))
		one.send(underlay(3, "concurrency", "10.6.168.102")).sync()
		time.Sleep(time.Minute)
		l.wantKept(verdict.CauseIPAMStateLost, "concurrency", "db-0")
		if remedy := fmt.Sprint(l.conflict(pb.Conflict_SUSPECTED).GetRemedy()); !strings.Contains(remedy, forget) || strings.Index(remedy, forget) > strings.Index(remedy, "kubectl delete pod") {
			t.Errorf("got remedy %s, want that the endpoint is deleted before the pod", remedy)
		}
	})
}

// kube-ovn-controller allocates the address of a pod again after an upgrade or a restart: two IP
// objects have it (kubeovn/kube-ovn issues 1840, 3181 and 4304). Incident 29.
func TestKubeOVNAllocatesAnAddressTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Settle: time.Second})
		c := l.resources(&ovn.KubeOVN, ovn.Subnets, ovn.IPs)
		c.Apply(ovn.Subnets, ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/28"))
		c.Apply(ovn.IPs, ipamtest.KubeOVNIP("pinger", "default", "10.16.0.6", "n1", ""))
		l.dial().send(snapshot(hello("n1", 1), ovnPod(2, "pinger", "10.16.0.6", "kube-ovn"))).sync()
		two := l.dial().send(snapshot(hello("n2", 1))).sync()
		time.Sleep(time.Hour)
		l.wantFindings("all is well")

		c.Apply(ovn.IPs, strings.Replace(ipamtest.KubeOVNIP("new", "default", "10.16.0.6", "n2", ""), "2023-01-08T03", "2023-01-08T04", 1))
		time.Sleep(time.Minute)
		f := l.wantFindings("before the second pod is up", "double-allocated 10.16.0.6")[0]
		if remedy := fmt.Sprint(f.GetRemedy()); f.GetSeverity() != pb.Finding_CRITICAL || !strings.Contains(remedy, "kubectl delete pod -n default new") || strings.Contains(remedy, "kubectl delete pod -n default pinger") {
			t.Errorf("got %v, want that the pod that runs keeps the address", f)
		}
		two.send(ovnPod(2, "new", "10.16.0.6", "kube-ovn")).sync()
		time.Sleep(time.Minute)
		l.wantKept(verdict.CauseIPAMAllocatedTwice, "pinger", "new")
	})
}

// The IP object of a running pod is deleted, which frees its address, and the next pod gets it.
func TestDeletedIPObjectOfKubeOVNIsPredicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Settle: time.Second})
		c := l.resources(&ovn.KubeOVN, ovn.Subnets, ovn.IPs)
		c.Apply(ovn.Subnets, ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/28"))
		c.Apply(ovn.IPs, ipamtest.KubeOVNIP("a", "default", "10.16.0.6", "n1", ""))
		n := l.dial().send(snapshot(hello("n1", 1), ovnPod(2, "a", "10.16.0.6", "kube-ovn"))).sync()
		c.Remove(ovn.IPs, ipam.Key{Name: "a.default"})
		time.Sleep(time.Minute)
		l.wantFindings("the address is free", "in-use-unallocated 10.16.0.6")
		c.Apply(ovn.IPs, ipamtest.KubeOVNIP("b", "default", "10.16.0.6", "n1", ""))
		time.Sleep(time.Minute)
		l.wantFindings("it is allocated to another pod", "booked-elsewhere 10.16.0.6")
		n.send(ovnPod(3, "b", "10.16.0.6", "kube-ovn")).sync()
		time.Sleep(time.Minute)
		l.wantKept(verdict.CauseIPAMStateLost, "b", "a")
	})
}

// Setups that look like defects: tenants with one range, pods and virtual machines that keep their
// addresses while they do not exist, and virtual addresses.
func TestHealthyResourcesHaveNoFindings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Settle: time.Second, LeakedAfter: time.Minute})
		c := l.resources(&ovn.KubeOVN, ovn.Subnets, ovn.IPs, ovn.VIPs)
		c.Apply(ovn.Subnets, ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/24"))
		c.Apply(ovn.Subnets, strings.Replace(ipamtest.KubeOVNSubnet("blue", "10.16.0.0/24"), "vpc: ovn-cluster", "vpc: blue", 1))
		c.Apply(ovn.IPs, ipamtest.KubeOVNIP("web", "default", "10.16.0.6", "n1", ""))
		c.Apply(ovn.IPs, strings.ReplaceAll(ipamtest.KubeOVNIP("tenant", "default", "10.16.0.6", "n2", ""), "subnet: ovn-default", "subnet: blue"))
		c.Apply(ovn.IPs, ipamtest.KubeOVNIP("stopped", "default", "10.16.0.7", "n1", "VirtualMachine"))
		c.Apply(ovn.IPs, ipamtest.KubeOVNIP("vip-user", "default", "10.16.0.8", "n1", ""))
		c.Apply(ovn.VIPs, "metadata: {name: keepalived}\nspec: {subnet: ovn-default}\nstatus: {v4ip: 10.16.0.8}")
		s := l.resources(&spiderpool.IPAM, spiderpool.Pools, spiderpool.Endpoints)
		s.Apply(spiderpool.Pools, strings.Replace(ipamtest.SpiderPool, "default/web-7d4f8", "default/under", 1))
		s.Apply(spiderpool.Endpoints, ipamtest.SpiderEndpoint("default", "db-0", "n2", "10.6.168.102", "StatefulSet"))
		a := l.resources(&antrea.IPAM, antrea.Pools)
		a.Apply(antrea.Pools, strings.Replace(ipamtest.AntreaPool, "name: standalone, namespace: shop", "name: standalone, namespace: default", 1))
		o := l.resources(&ovn.OVNKubernetes, ovn.Claims)
		o.Apply(ovn.Claims, ipamtest.IPAMClaim("default", "a.red", "red", "10.200.0.5/24", ""))
		o.Apply(ovn.Claims, ipamtest.IPAMClaim("default", "a.green", "green", "10.200.0.5/24", ""))
		standalone := ovnPod(4, "standalone", "192.168.240.132", "antrea")
		standalone.Namespaces[0].Workload.ContainerId = "c61f4b067978fbcc5f2197e328f8ed8319d8a4f5d19a16f4e8227c56f8b57373"
		n := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), ovnPod(2, "web", "10.16.0.6", "kube-ovn"), ovnPod(3, "vip-user", "10.16.0.8", "kube-ovn"),
			standalone, underlay(5, "under", "10.6.168.101"))).sync()
		// The port of the tenant's pod is one of Open vSwitch, with the name that Kube-OVN gives it.
		tenant := ovnPod(2, "tenant", "10.16.0.6", "kube-ovn")
		const port = "1a2b3c4d5e6f_h"
		tenant.Links[0].Kind, tenant.Links[0].Name = pb.LinkRecord_OVS_PORT, port
		tenant.Interfaces[0].HostInterface, tenant.Interfaces[0].Link = port, port
		tenant.Interfaces[1].Name, tenant.Interfaces[1].Link = port, port
		l.dial().send(snapshot(hello("n2", 1), uplink(nodeMAC(2)), tenant)).sync()
		time.Sleep(time.Hour)
		l.wantFindings("all is well")
		if all := l.conflicts(); len(all) != 0 {
			t.Errorf("got %v, want no conflict", all)
		}
		// The positive control.
		o.Apply(ovn.Claims, ipamtest.IPAMClaim("default", "b.red", "red", "10.200.0.5/24", ""))
		c.Apply(ovn.IPs, ipamtest.KubeOVNIP("gone", "default", "10.16.0.9", "n1", ""))
		n.send(records.Merge(ovnPod(6, "thief", "10.16.0.7", "kube-ovn"), ovnPod(7, "free", "192.168.240.133", "antrea"))).sync()
		time.Sleep(time.Hour)
		var got []string
		for _, f := range l.findings() {
			got = append(got, f.GetKind()+" "+f.GetAddress())
		}
		slices.Sort(got)
		if want := []string{"booked-elsewhere 10.16.0.7", "double-allocated 10.200.0.5", "in-use-unallocated 192.168.240.133", "leaked 10.16.0.9"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// Nodes of Cilium that get parts of two pools.
func TestPoolsOfCiliumThatOverlapAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		c := l.resources(&cilium.IPAM, cilium.Nodes, cilium.Endpoints, cilium.Pools)
		c.Apply(cilium.Pools, "metadata: {name: default}\nspec: {ipv4: {cidrs: [10.244.0.0/16], maskSize: 24}}")
		c.Apply(cilium.Pools, "metadata: {name: other}\nspec: {ipv4: {cidrs: [10.245.0.0/16], maskSize: 24}}")
		for i, node := range []string{"n1", "n2"} {
			c.Apply(cilium.Nodes, fmt.Sprintf("metadata: {name: %s}\nspec: {addresses: [{type: InternalIP, ip: 172.18.0.%d}], ipam: {pools: {allocated: [{pool: default, cidrs: [10.244.%[2]d.0/24]}]}}}", node, i+1))
		}
		c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("default", "web", "sandbox-web", "10.244.1.8", "172.18.0.1"))
		l.dial().send(snapshot(hello("n1", 1), ovnPod(2, "web", "10.244.1.8", "cilium"))).sync()
		time.Sleep(time.Hour)
		l.wantFindings("all is well")
		c.Apply(cilium.Pools, "metadata: {name: more}\nspec: {ipv4: {cidrs: [10.245.128.0/17], maskSize: 24}}")
		time.Sleep(time.Minute)
		l.wantFindings("a pool that overlaps", "ranges-overlap 10.245.128.0/17")
		c.Remove(cilium.Pools, ipam.Key{Name: "more"})
		time.Sleep(time.Minute)
		l.wantFindings("the pools do not overlap any more")
	})
}

// Pods come and go. Of their records and their addresses, either may be the first to come or to go.
func TestChurnOfResourcesHasNoFindings(t *testing.T) {
	pods := 500
	if testing.Short() {
		pods = 100
	}
	for _, k := range churn.Networks {
		t.Run(k.IPAM.Name, func(t *testing.T) {
			const seed, addresses, thief, leak = 17, 50, 51, 52
			t.Logf("seed %d", seed)
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{Settle: time.Second, LeakedAfter: time.Minute})
				c := l.resources(k.IPAM, k.Kinds...)
				k.Begin(c)
				n := l.dial().send(snapshot(hello("node1", 1), uplink(nodeMAC(1)))).sync()
				live := make(map[int]churn.Pod)
				record := func(pod string, address int, comes bool) {
					p := churn.Pod{Name: pod, Container: "sandbox-" + pod}
					if live[address] = p; !comes {
						delete(live, address)
					}
					k.Write(c, live, address, p, !comes)
				}
				address := func(id uint32, pod string, address int, comes bool) {
					m := &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: id, Gone: true}}}
					switch {
					case comes && k.Underlay:
						m = underlay(id, pod, k.Address(address))
					case comes:
						m = ovnPod(id, pod, k.Address(address), k.Name)
					}
					n.send(m).sync()
				}
				begin := time.Now()
				steps := churn.Steps(rand.New(rand.NewPCG(seed, 0)), pods, addresses, 10, 3*time.Second) //nolint:gosec // for a test
				for i, s := range steps {
					time.Sleep(time.Until(begin.Add(s.At)))
					if pod := fmt.Sprint("pod-", s.Pod); s.Record {
						record(pod, s.Address+1, s.Comes)
					} else {
						address(uint32(100+s.Pod), pod, s.Address+1, s.Comes) //nolint:gosec // small
					}
					c.Check()
					l.wantFindings(fmt.Sprintf("after step %d: %+v", i, s))
				}
				time.Sleep(time.Hour)
				l.wantFindings("all is well")
				if all := l.conflicts(); len(all) != 0 {
					t.Errorf("got %v, want no conflict", all)
				}
				// The positive control.
				address(99, "thief", thief, true)
				record("gone", leak, true)
				time.Sleep(time.Hour)
				l.wantFindings("the control", "in-use-unallocated "+k.Address(thief), "leaked "+k.Address(leak))
			})
		})
	}
}

// A CiliumEndpoint in an unknown format is a problem of its own. Its last known address is kept. An address
// without a record may be that of such an endpoint: it is reported once all can be read.
func TestEndpointOfCiliumInAnUnknownFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		c := l.resources(&cilium.IPAM, cilium.Nodes, cilium.Endpoints)
		c.Apply(cilium.Nodes, ipamtest.CiliumNode("n1", "172.18.0.1", "10.244.1.0/24", "10.244.1.250", ""))
		c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("default", "web", "sandbox-web", "10.244.1.8", "172.18.0.1"))
		n := l.dial().send(snapshot(hello("n1", 1), ovnPod(2, "web", "10.244.1.8", "cilium"), ovnPod(3, "thief", "10.244.1.9", "cilium"))).sync()
		time.Sleep(time.Hour)
		l.wantFindings("an address without an endpoint", "in-use-unallocated 10.244.1.9")
		const unreadable = "status: {networking: {addresses: 7, addressing: {newer: format}}}"
		c.Apply(cilium.Endpoints, "metadata: {namespace: default, name: web}\n"+unreadable)
		c.Apply(cilium.Endpoints, "metadata: {namespace: default, name: db}\n"+unreadable)
		n.send(ovnPod(4, "db", "10.244.1.10", "cilium")).sync()
		time.Sleep(time.Hour)
		all := l.wantFindings("two endpoints cannot be read, one of which never could", "in-use-unallocated 10.244.1.9", "ipam-unreadable ")
		if f := all[1]; f.GetPool().GetName() != "CiliumEndpoint objects" || f.GetSeverity() != pb.Finding_WARNING {
			t.Errorf("got %v, want a warning about CiliumEndpoints", f)
		}
		c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("default", "web", "sandbox-web", "10.244.1.8", "172.18.0.1"))
		time.Sleep(time.Hour)
		l.wantFindings("one can be read", "in-use-unallocated 10.244.1.9", "ipam-unreadable ")
		c.Remove(cilium.Endpoints, ipam.Key{Namespace: "default", Name: "db"})
		time.Sleep(time.Hour)
		l.wantFindings("all can be read", "in-use-unallocated 10.244.1.10", "in-use-unallocated 10.244.1.9")
	})
}

// OVN-Kubernetes overwrites the IPAM of a node and allocates the address of a running pod again: the
// annotations of two pods have it (openshift/ovn-kubernetes pull request 1132). Incident 28.
func TestOVNKubernetesAllocatesAnAddressTwice(t *testing.T) {
	api := newAPI(t)
	api.set("ADDED", apiNode("n1"))
	annotated := func(name string) *corev1.Pod {
		p := apiPod(name, "n1", "10.244.1.3")
		p.Annotations = map[string]string{ovn.Annotation: `{"default":{"ip_addresses":["10.244.1.3/24"],"gateway_ips":["10.244.1.1"]}}`}
		return p
	}
	api.set("ADDED", annotated("old"))
	l := newLab(t, Config{Kubeconfig: api.kubeconfig(), Settle: time.Millisecond})
	n := l.dial().send(snapshot(hello("n1", 1), ovnPod(2, "old", "10.244.1.3", "ovn-kubernetes"))).sync()
	wait.Until(t, "the pod to be known", func() bool { return l.owner("10.244.1.3", "n1").GetWorkload().GetPhase() == "Running" })
	findings := func() []*pb.Finding {
		out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return out.GetFindings()
	}
	if all := findings(); len(all) != 0 {
		t.Errorf("got %v of one pod", all)
	}

	next := annotated("new")
	next.Status = corev1.PodStatus{Phase: corev1.PodPending}
	api.set("ADDED", next)
	wait.Until(t, "the second allocation to be a finding", func() bool { return len(findings()) == 1 })
	if f := findings()[0]; f.GetKind() != verdict.FindingDoubleAllocated || f.GetPool().GetIpam() != ovn.OVNKubernetes.Name || f.GetSeverity() != pb.Finding_CRITICAL ||
		!strings.Contains(fmt.Sprint(f.GetRemedy()), "kubectl delete pod -n default new") {
		t.Errorf("got %v, want that OVN-Kubernetes has it for both, and that the pod that runs keeps it", f)
	}
	n.send(ovnPod(3, "new", "10.244.1.3", "ovn-kubernetes")).sync()
	wait.Until(t, "the cause to be known", func() bool { return len(l.conflicts()) == 1 && l.conflicts()[0].GetCause() != verdict.CauseUnknown })
	l.wantKept(verdict.CauseIPAMAllocatedTwice, "old", "new")
}
