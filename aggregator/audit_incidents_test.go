package aggregator

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/azure"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// A node was created from a disk image with a CNI configuration that names another node, so that
// Calico's garbage collector frees addresses in use (projectcalico/calico issue 12257).
func TestIncident15TheCNIConfigurationNamesAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		const addr, conflist = "10.244.0.2", "/etc/cni/net.d/10-calico.conflist"
		pod := func(record uint32, name string) *pb.ReportRequest {
			m := kindPod(record, name, addr)
			m.Claims[0].Network = "k8s-pod-network"
			return m
		}
		status := &pb.ReportRequest{Status: &pb.StatusRecord{NodeName: &pb.NodeName{Name: "template-0", Source: pb.NodeName_CONFIGURATION, File: conflist}}}
		l.dial().send(snapshot(hello("n1", 1), pod(2, "web"))).send(status).sync()
		p := &verdict.Pool{Pool: ipam.Pool{
			IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "default-ipv4-ippool", State: ipam.Known, Wiring: ipam.Wiring{Plugin: "calico", Routed: true},
			Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.244.0.0/16"))},
		}}
		al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{
			Address: netip.MustParseAddr(addr), Node: "template-0", Namespace: "default", Pod: "web", Location: "ipamblocks 10-244-0-0-26 /spec/allocations/2",
		}}
		l.ofCluster(kube.IPAMChange{Pool: p}, kube.IPAMChange{Allocation: al})
		time.Sleep(time.Minute)
		corrects := func(remedy []*pb.Action) bool {
			restart := slices.IndexFunc(remedy, func(a *pb.Action) bool { return strings.Contains(a.GetCommand(), "k8s-app=calico-node") })
			check := slices.IndexFunc(remedy, func(a *pb.Action) bool { return strings.Contains(a.GetCommand(), conflist) })
			return 0 <= restart && restart < check
		}
		f := l.wantFindings("before the garbage collector frees it", "booked-elsewhere "+addr)[0]
		if f.GetSeverity() != pb.Finding_CRITICAL || !corrects(f.GetRemedy()) {
			t.Errorf("got %v, want it critical, and the name corrected", f)
		}

		// The garbage collector frees it, and a pod of another node gets it.
		l.ofCluster(kube.IPAMChange{Allocation: al, Gone: true})
		next := *al
		next.Node, next.Pod = "n2", "late"
		l.ofCluster(kube.IPAMChange{Allocation: &next})
		l.dial().send(snapshot(hello("n2", 2), pod(2, "late"))).sync()
		time.Sleep(time.Minute)
		c := l.conflict(pb.Conflict_SUSPECTED) // the agents of this test answer no checks
		if c.GetCause() != verdict.CauseIPAMBookedElsewhere || !slices.ContainsFunc(c.GetBecause(), func(s string) bool { return strings.HasPrefix(s, conflist+" on node n1") }) {
			t.Errorf("got cause %s, %q, want the CNI configuration", c.GetCause(), c.GetBecause())
		}
		if !corrects(c.GetRemedy()) || !slices.ContainsFunc(c.GetRemedy(), func(a *pb.Action) bool { return strings.HasPrefix(a.GetText(), "Leave pod default/late") }) {
			t.Errorf("got %v, want the name corrected, and the pod with the record left", c.GetRemedy())
		}
	})
}

// Calico's garbage collector frees the address of a tunnel that is in use, such as after the node was
// deleted and created again (projectcalico/calico issue 3589), and then gives it to a pod.
func TestIncident19CalicoFreesTheAddressOfATunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		const addr = "100.66.141.153"
		own := assigned(1, addr)
		own.PrefixLength = 32
		a := l.dial().send(snapshot(hello("n1", 1), &pb.ReportRequest{
			Links: []*pb.LinkRecord{{Name: "tunl0", Kind: pb.LinkRecord_UPLINK}},
			Interfaces: []*pb.InterfaceRecord{{
				Namespace: 1, Index: 2, Name: "tunl0", Kind: "ipip", Attachment: pb.InterfaceRecord_OWN, Link: "tunl0", HostInterface: "tunl0", Uplink: true,
			}},
			Claims: []*pb.ClaimRecord{own},
		}))
		a.sync()
		p := &verdict.Pool{Pool: ipam.Pool{
			IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "default-ipv4-ippool", State: ipam.Known, Wiring: ipam.Wiring{Plugin: "calico", Routed: true},
			Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("100.66.0.0/16"))},
		}}
		al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr(addr), Node: "n1", Purpose: "IP-in-IP tunnel", Location: "ipamblocks 100-66-141-128-26 /spec/allocations/25"}}
		l.ofCluster(kube.IPAMChange{Pool: p}, kube.IPAMChange{Allocation: al})
		time.Sleep(time.Hour)
		l.wantFindings("Calico has the address for the tunnel")
		l.ofCluster(kube.IPAMChange{Allocation: al, Gone: true})
		time.Sleep(time.Minute)
		f := l.wantFindings("the garbage collector has freed it", "in-use-unallocated "+addr)[0]
		if f.GetSeverity() != pb.Finding_CRITICAL || !slices.ContainsFunc(f.GetRemedy(), func(a *pb.Action) bool {
			return strings.Contains(a.GetCommand(), "kubectl delete pods -A -l k8s-app=calico-node")
		}) {
			t.Errorf("got %v, want it critical, and calico-node restarted", f)
		}

		// It gives the address to a pod of the same node.
		next := *al
		next.Purpose, next.Namespace, next.Pod = "", "default", "late"
		l.ofCluster(kube.IPAMChange{Allocation: &next})
		time.Sleep(time.Minute)
		l.wantFindings("it is for a pod", "booked-elsewhere "+addr)
		pod := kindPod(2, "late", addr)
		pod.Claims[0].Network = "k8s-pod-network"
		a.send(pod).sync()
		time.Sleep(time.Minute)
		c := l.conflict(pb.Conflict_SUSPECTED) // the agent of this test answers no checks
		if c.GetCause() != verdict.CauseTunnelAddress {
			t.Errorf("got cause %s, want the tunnel", c.GetCause())
		}
		remedy := c.GetRemedy()
		if !strings.Contains(remedy[0].GetText(), "default/late") || !slices.ContainsFunc(remedy, func(a *pb.Action) bool {
			return strings.Contains(a.GetCommand(), "kubectl delete pods -A -l k8s-app=calico-node")
		}) {
			t.Errorf("got %v, want the pod to keep the address, and the tunnel to get another one", remedy)
		}
	})
}

// azure-vnet has given a pod an address before Cilium was installed in its Azure mode, which considers
// the addresses of the node's interface free (cilium/cilium issue 14655).
func TestIncident11CiliumListsAnAddressThatAzureHasGivenToAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const finding = "in-use-unallocated 10.240.0.56"
		file := &pb.PoolRecord{Ipam: azure.Name, Name: "/run/azure-vnet-ipam.json", Network: "azure", State: pb.Pool_KNOWN}
		for what, test := range map[string]struct {
			node, pool string // of the CiliumNode
			used       bool
			want       []string
		}{
			"Cilium may give it to a pod of the node": {"n1", "10.240.0.56: {resource: eth0}", false, []string{finding}},
			"Cilium has it for the pod":               {"n1", "10.240.0.56: {resource: eth0}", true, nil},
			"Cilium has another address":              {"n1", "10.240.0.57: {resource: eth0}", false, nil},
			"it is another node's":                    {"n2", "10.240.0.56: {resource: eth0}", false, nil},
		} {
			l := newLab(t, Config{})
			pod := kindPod(2, "autoscaler", "10.240.0.56")
			pod.Claims[0].Network = "azure"
			l.dial().send(snapshot(hello("n1", 1), pod, poolOf(file), given(allocatedToPod(file, "10.240.0.56", "autoscaler")))).sync()
			cluster := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Endpoints)
			cluster.Apply(cilium.Nodes, "metadata: {name: "+test.node+"}\nspec: {ipam: {pool: {"+test.pool+"}}}\nstatus: {ipam: {used: {}}}")
			p := &verdict.Pool{Pool: *cluster.Pool(test.node)}
			p.State = ipam.Known
			l.ofCluster(kube.IPAMChange{Pool: p})
			if test.used {
				al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr("10.240.0.56"), Node: "n1", Namespace: "default", Pod: "autoscaler"}}
				l.ofCluster(kube.IPAMChange{Allocation: al})
			}
			time.Sleep(time.Minute)
			l.wantFindings(what + ", but its records may be late")
			time.Sleep(time.Hour)
			l.wantFindings(what, test.want...)
		}
	})
}

// Cilium's multi-pool IPAM has assigned a range to several nodes (cilium/cilium issue 41986). The
// finding comes before any pod has an address of it, and ends when the operator, after a restart, has
// assigned another range to one of the nodes.
func TestIncident13OneRangeOfAMultiPoolOnTwoNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		cluster := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Endpoints)
		apply := func(name, cidrs string) {
			cluster.Apply(cilium.Nodes, "metadata: {name: "+name+"}\nspec: {ipam: {pools: {requested: [{pool: default, needed: {ipv4-addrs: 16}}], allocated: [{pool: default, cidrs: ["+cidrs+"]}]}}}")
			l.ofCluster(kube.IPAMChange{Pool: &verdict.Pool{Pool: *cluster.Pool(name)}})
			time.Sleep(time.Second)
		}
		apply("n1", "10.207.0.0/28, 10.207.0.32/28")
		apply("n2", "10.207.0.16/28")
		l.wantFindings("each has its own")
		apply("n2", "10.207.0.16/28, 10.207.0.32/28")
		l.wantFindings("both have one", "pod-cidr-overlap 10.207.0.33-10.207.0.46")
		i := slices.IndexFunc(l.findings(), func(f *pb.Finding) bool { return f.GetKind() == verdict.FindingPodCIDROverlap })
		var verbs []string
		for _, a := range l.findings()[i].GetRemedy() {
			for _, verb := range []string{"uncordon", "cordon", "rollout restart deployment cilium-operator", "delete node", "drain"} {
				if strings.Contains(a.GetCommand(), " "+verb+" ") {
					verbs = append(verbs, verb)
				}
			}
		}
		if want := []string{"cordon", "cordon", "rollout restart deployment cilium-operator", "uncordon", "uncordon"}; !slices.Equal(verbs, want) {
			t.Errorf("got remedy %q, want %q", verbs, want)
		}
		apply("n2", "10.207.0.16/28, 10.207.0.48/28")
		l.wantFindings("the operator was restarted")
	})
}
