package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/kubernetes"
)

// crds installs the custom resource definitions of IPAMs until the test ends.
func (l *lab) crds(ipams ...string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.DeleteCRDs(ctx, ipams...); err != nil {
			l.Error(err)
		}
	})
	if err := l.ApplyCRDs(ctx, ipams...); err != nil {
		l.Fatal(err)
	}
}

// custom creates a custom resource.
func (l *lab) custom(k ipam.Kind, text string) {
	l.Helper()
	l.apply("%s", "apiVersion: "+k.Group+"/"+k.Version+"\nkind: "+k.Name+"\n"+strings.TrimPrefix(text, "\n"))
}

// The IPAMs are read from a real API server with their definitions: while they are installed,
// changed and removed, and while the API server is down.
func TestIPAMsOfARealAPI(t *testing.T) {
	l := newLab(t)
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	l.crds(kubernetes.IPAMs...)
	l.custom(calico.Pools, ipamtest.CalicoPool)
	l.custom(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel, ipamtest.CalicoPod("nginx", "node1", ipamtest.ContainerID)))
	l.custom(calico.Affinities, `
metadata: {name: node1-192-168-0-192-26}
spec: {cidr: 192.168.0.192/26, deleted: "false", node: node1, state: confirmed}
`)
	l.custom(calico.Reservations, "metadata: {name: edge}\nspec: {reservedCIDRs: [192.168.255.0/24]}")
	l.custom(whereabouts.Pools, ipamtest.WhereaboutsPool)
	l.custom(whereabouts.Reservations, ipamtest.WhereaboutsReservation("192.168.2.1", "test/test-648b75d6fc-f56cp"))
	l.custom(whereabouts.Networks, ipamtest.WhereaboutsNetwork)
	l.custom(cilium.Nodes, ipamtest.CiliumNode("n1", "172.18.0.2", "10.0.2.0/24", "10.0.2.236", ""))
	l.custom(cilium.Endpoints, strings.Replace(ipamtest.CiliumEndpoint("NAMESPACE", "web", "1e4101a4e7b1", "10.0.2.163", "172.18.0.2"), `, creationTimestamp: "2023-01-08T03:17:22Z"`, "", 1))
	l.custom(cilium.Slices, ipamtest.CiliumEndpointSlice("ces-1", "NAMESPACE", "db 10.0.2.164 172.18.0.2"))
	l.custom(cilium.Pools, "metadata: {name: default}\nspec: {ipv4: {cidrs: [{cidr: 10.0.0.0/16}], maskSize: 24}}")

	// Lines in the order of the ledger: pools, then allocations.
	text := func(state, nginx, where string) string {
		problem := ""
		if state == "stale" {
			problem = ": the Kubernetes API does not respond"
		}
		lines := []string{
			"calico default-ipv4-ippool " + state + " 192.168.0.0-192.168.254.255" + problem,
			"cilium CiliumPodIPPool default " + state + " 10.0.0.0-10.0.255.255" + problem,
			"cilium n1 " + state + " 10.0.2.1-10.0.2.254" + problem,
			"whereabouts kube-system/192.168.2.0-24 " + state + " 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20" + problem,
			"192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0",
			nginx,
			"10.0.2.163 " + l.namespace + "/web 1e4101a4e7b1 n1 at ciliumendpoints " + l.namespace + "/web /status/networking/addressing",
			"10.0.2.164 " + l.namespace + "/db n1 at ciliumendpointslices ces-1 /endpoints of " + l.namespace + "/db",
			"192.168.2.1 test/test-648b75d6fc-f56cp 0c85206ce40fd429c62d1499c91f0fd5cb183fd610db3c4c458f167eaa0ee190 net1 at " + where,
			"192.168.2.2 test/test-648b75d6fc-sdbbm 6442798c086abdad4c636b7c8e51f427511076a250e5434889b675c9e60bca06 at ippools kube-system/192.168.2.0-24 /spec/allocations/2",
		}
		return strings.Join(slices.DeleteFunc(lines, func(line string) bool { return line == "" }), "\n")
	}
	const (
		pooled = "ippools kube-system/192.168.2.0-24 /spec/allocations/1"
		both   = pooled + "; overlappingrangeipreservations kube-system/192.168.2.1"
	)
	nginx := func(node string) string {
		return "192.168.0.193 default/nginx " + ipamtest.ContainerID + " " + node + " at ipamblocks 192-168-0-192-26 /spec/allocations/1"
	}
	// node1 is not a node of the cluster, which may have no nodes at all in this test.
	m.ipam.await("all pools and allocations are known", text("known", nginx("node1"), both))

	l.kube("delete", "--namespace", "kube-system", whereabouts.Reservations.String(), "192.168.2.1")
	m.ipam.await("a reservation is lost", text("known", nginx("node1"), pooled))

	// Calico changes a block while the API server is down.
	l.KillAPI()
	m.awaitState(pb.Kubernetes_STALE)
	m.ipam.await("the API is unreachable", text("stale", nginx("node1"), pooled))
	l.restart()
	l.custom(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel, ipamtest.CalicoPod("nginx", "node2", ipamtest.ContainerID)))
	m.awaitState(pb.Kubernetes_LIVE)
	m.ipam.await("the server is back", text("known", nginx("node2"), pooled))
	l.custom(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	m.ipam.await("an address is freed", text("known", "", pooled))
	m.ipam.countChanges()
	l.kube("label", calico.Blocks.String(), "192-168-0-192-26", "nothing=new")

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.DeleteCRDs(ctx, kubernetes.IPAMs...); err != nil {
		t.Fatal(err)
	}
	m.ipam.await("all pools and allocations are removed", "")
	m.until("there is no problem", func() bool { return len(m.Status().GetProblems()) == 0 })
	if err := l.ApplyCRDs(ctx, "calico"); err != nil {
		t.Fatal(err)
	}
	l.custom(calico.Pools, ipamtest.CalicoPool)
	l.custom(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	m.ipam.await("Calico is back", "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0")
}

// The same with Calico in its newer API group.
func TestNativeCalicoOfARealAPI(t *testing.T) {
	l := newLab(t)
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	l.crds(kubernetes.NativeCalico)
	l.custom(native(calico.Pools), ipamtest.CalicoPool)
	l.custom(native(calico.Blocks), ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	l.custom(native(calico.Reservations), "metadata: {name: edge}\nspec: {reservedCIDRs: [192.168.255.0/24]}")
	m.ipam.await("all pools and allocations are known", "calico default-ipv4-ippool known 192.168.0.0-192.168.254.255\n"+
		"192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0")
	m.until("there is no problem", func() bool { return len(m.Status().GetProblems()) == 0 })
}

// Installed IPAMs cannot be read without rights, but everything else can.
func TestIPAMsWithoutReadPermission(t *testing.T) {
	l := newLab(t)
	m := l.mirror("poor")
	m.awaitState(pb.Kubernetes_LIVE)
	for _, p := range m.Status().GetProblems() {
		if strings.Contains(p, "cni.cncf.io") {
			t.Errorf("missing resource: got problem %s", p)
		}
	}
	l.crds("whereabouts")
	want := fmt.Sprintf("no permission to list and watch %s: the allocations of whereabouts are unknown; grant ipwitness's ClusterRole list and watch of %[1]s", whereabouts.Pools)
	m.until("the problem is reported", func() bool { return slices.Contains(m.Status().GetProblems(), want) })
	m.ipam.await("an unreadable pool stands for all", "whereabouts whereabouts.cni.cncf.io unreadable: "+want)
	if s := m.Status().GetState(); s != pb.Kubernetes_LIVE {
		t.Errorf("the state is %s", s)
	}
	l.kube("create", "clusterrolebinding", "poor-reads-ipam", "--clusterrole="+rich, "--serviceaccount="+kubernetes.Outside+":poor")
	l.Cleanup(func() { l.kube("delete", "clusterrolebinding", "poor-reads-ipam") })
	l.custom(whereabouts.Pools, ipamtest.WhereaboutsPool)
	m.until("the pool is known", func() bool { return strings.HasPrefix(m.ipam.text(), "whereabouts kube-system/192.168.2.0-24 known") })
}
