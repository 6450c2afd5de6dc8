package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/azure"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// azureNode is a host on which the test plays Azure CNI: it writes its state files and libcni's
// results, in the order of ADD and DEL.
type azureNode struct {
	*lab
	endpoints map[string]ipamtest.AzurePod // the state of azure-cns, by container
}

// newAzureNode returns a node whose network "azure" gets its addresses from an IPAM plugin.
func newAzureNode(t *testing.T, plugin string, args ...string) *azureNode {
	t.Helper()
	n := &azureNode{newLab(t, args...), map[string]ipamtest.AzurePod{}}
	n.write("/etc/cni/net.d/10-azure.conflist", `{"cniVersion":"0.3.0","name":"azure","plugins":[{"type":"azure-vnet","mode":"transparent","ipam":{"type":"`+plugin+`"}}]}`)
	return n
}

// write writes a file of the host.
func (n *azureNode) write(path, content string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.Path(path)), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.Path(path), []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// save replaces a state file.
func (n *azureNode) save(name string, data []byte) {
	n.t.Helper()
	if err := ipamtest.WriteAzure(n.Path("/run/"+name), data); err != nil {
		n.t.Fatal(err)
	}
}

// saveEndpoints replaces the state file of azure-cns.
func (n *azureNode) saveEndpoints(more ...ipamtest.AzurePod) {
	n.t.Helper()
	n.save("azure-cns/azure-endpoints.json", ipamtest.AzureEndpoints(append(slices.Collect(maps.Values(n.endpoints)), more...)...))
}

// sandbox returns the container of a pod.
func sandbox(pod string) string { return fmt.Sprintf("%064x", pod) }

// record adds the record of a pod to the state of azure-cns.
func (n *azureNode) record(pod, addr string) {
	n.t.Helper()
	n.endpoints[sandbox(pod)] = ipamtest.AzurePod{
		Namespace: "default", Name: pod, Container: sandbox(pod), Addresses: []netip.Addr{netip.MustParseAddr(addr)}, NICType: "InfraNIC",
	}
	n.saveEndpoints()
}

// forget removes the record of a pod from the state of azure-cns.
func (n *azureNode) forget(pod string) {
	n.t.Helper()
	delete(n.endpoints, sandbox(pod))
	n.saveEndpoints()
}

// played starts a pod with an address, as a plugin of a network would.
func (l *lab) played(network, pod string, addresses ...string) {
	l.t.Helper()
	l.pod(pod)
	var prefixes []string
	for _, a := range addresses {
		prefixes = append(prefixes, fmt.Sprintf("%s/%d", a, netip.MustParseAddr(a).BitLen()))
	}
	l.assign(pod, prefixes...)
	l.named(network, pod, prefixes...)
}

// named writes the CNI result of a pod, with its addresses.
func (l *lab) named(network, pod string, prefixes ...string) {
	l.t.Helper()
	var ips []map[string]any
	for _, p := range prefixes {
		ips = append(ips, map[string]any{"interface": 0, "address": p})
	}
	result, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": sandbox(pod), "ifName": "eth0", "networkName": network, "netns": "/run/netns/" + pod,
		"cniArgs": [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", pod}, {"K8S_POD_UID", "uid-" + pod}},
		"result":  map[string]any{"interfaces": []map[string]string{{"name": "eth0", "sandbox": "/run/netns/" + pod}}, "ips": ips},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := os.MkdirAll(l.Path("/var/lib/cni/results"), 0o755); err != nil {
		l.t.Fatal(err)
	}
	write(l.t, l.Path("/var/lib/cni/results/"+network+"-"+sandbox(pod)+"-eth0"), string(result))
}

// add does what an ADD of azure-cns does, and del what its DEL does.
func (n *azureNode) add(pod, addr string) {
	n.t.Helper()
	n.record(pod, addr)
	n.played("azure", pod, addr)
}

func (n *azureNode) del(pod string) {
	n.t.Helper()
	n.forget(pod)
	n.sh("ip netns del "+pod, "rm /var/lib/cni/results/azure-"+sandbox(pod)+"-eth0")
}

func TestAzureCNSThatRestartsGivesAddressesOfRunningPods(t *testing.T) {
	t.Parallel()
	n := newAzureNode(t, "azure-cns")
	i := n.incident(8)
	n.add("web", "10.241.0.5")
	n.add("db", "10.241.0.6")
	n.awaitAllocations(2)
	n.awaitPod("10.241.0.5", "web")
	if err := os.Remove(n.Path("/run/azure-cns/azure-endpoints.json")); err != nil {
		t.Fatal(err)
	}
	i.foretold("in-use-unallocated", "10.241.0.5")
	clear(n.endpoints)
	n.add("new", "10.241.0.5")
	i.conflicted("10.241.0.5", "ipam-state-lost")
	n.sh("ip netns del web") // a DEL finds no record
	i.remedied("kubectl delete pod -n default web")
}

func TestAzureCNSThatHandlesADELBeforeItsADD(t *testing.T) {
	t.Parallel()
	n := newAzureNode(t, "azure-cns", "--leaked-after", "1s")
	i := n.incident(10)
	n.record("gone", "10.241.0.5") // the ADD writes the record after the DEL
	i.await("leaked", "10.241.0.5")
	n.add("web", "10.241.0.5") // in the memory of azure-cns, the address is free
	i.found("double-allocated", "10.241.0.5")
	i.foretold("double-allocated", "10.241.0.5")

	// The pod of the other record does not exist. After the reboot, /run is empty, and the controller of
	// the drained pod has created another one.
	n.del("web")
	if err := os.Remove(n.Path("/run/azure-cns/azure-endpoints.json")); err != nil {
		t.Fatal(err)
	}
	clear(n.endpoints)
	n.add("next", "10.241.0.5")
	n.awaitPod("10.241.0.5", "next")
	n.awaitFindings()
	i.remedied("kubectl get pod -n default --ignore-not-found gone", "kubectl drain --ignore-daemonsets node1", "systemctl reboot", "kubectl uncordon node1")
}

func TestAzureCNSThatForgetsPodsIsPredicted(t *testing.T) {
	t.Parallel()
	n := newAzureNode(t, "azure-cns")
	found := n.follow()
	address := func(i int) string { return fmt.Sprintf("10.241.0.%d", 10+i) }
	name := func(i int) string { return fmt.Sprintf("p%d", i) }
	const pods, live = 20, 5
	for i := range pods {
		if n.add(name(i), address(i)); i >= live {
			n.del(name(i - live))
		}
	}
	n.awaitAllocations(live)
	for i := pods - live; i < pods; i++ {
		n.awaitPod(address(i), name(i))
	}

	// A DEL by the name of a pod removes the record of its successor. Nothing was found about the pods
	// before, which came and went.
	const pod, next, last = pods - 1, pods - 2, pods - 3
	i := n.incident(9)
	n.forget(name(pod))
	f := n.awaitFindings("in-use-unallocated " + address(pod))[0]
	wait.Until(t, "the finding as the first one of the watch", func() bool { return len(found.all()) > 0 })
	if got, want := found.all(), []string{"in-use-unallocated " + address(pod)}; !slices.Equal(got, want) {
		t.Errorf("got findings %q, want only %q", got, want)
	}
	if f.GetSeverity() != ipwitnessv1.Finding_CRITICAL || f.GetPool().GetIpam() != azure.Name || f.GetPool().GetName() != "/run/azure-cns/azure-endpoints.json" || f.GetRunbook() == "" {
		t.Errorf("got %v, want it critical, of azure-cns's file, with a runbook", f)
	}
	got := situations.Commands(f.GetRemedy())
	want := []string{
		"kubectl cordon node1", "ipwitness audit --kind in-use-unallocated node1", "kubectl delete pod -n default " + name(pod),
		"kubectl drain --ignore-daemonsets node1", "systemctl reboot", "kubectl uncordon node1", "ipwitness audit " + address(pod),
	}
	if !slices.Equal(got, want) {
		t.Errorf("remedy: got commands %q, want %q", got, want)
	}
	i.foretold(f.GetKind(), f.GetAddress())
	i.found(f.GetKind(), f.GetAddress())
	n.del(name(pod)) // its successor is on another node
	n.awaitFindings()
	i.remedied("kubectl delete pod -n default " + name(pod))

	// Without that remedy, a restarted azure-cns gives the address to the next pod.
	n.forget(name(next))
	n.awaitFindings("in-use-unallocated " + address(next))
	n.add("stranger", address(next))
	n.watch.await("the predicted duplicate", inState(address(next), ipwitnessv1.Conflict_CONFIRMED))
	wait.Until(t, "its cause", func() bool { return n.watch.find(address(next))[0].GetCause() == "ipam-state-lost" })
	n.del("stranger")
	n.forget(name(next))
	n.awaitFindings("in-use-unallocated " + address(next))

	// All records are lost.
	if err := os.Remove(n.Path("/run/azure-cns/azure-endpoints.json")); err != nil {
		t.Fatal(err)
	}
	want = []string{"ipam-state-lost"}
	for i := pods - live; i < pod; i++ {
		want = append(want, "in-use-unallocated "+address(i))
	}
	for _, f := range n.awaitFindings(want...) {
		// No step may start a pod on the node before all of its addresses are free.
		want := []string{"kubectl cordon node1", "kubectl drain --ignore-daemonsets node1", "systemctl reboot", "kubectl uncordon node1", "ipwitness audit", "ipwitness conflicts"}
		if got := situations.Commands(f.GetRemedy()); f.GetKind() == "ipam-state-lost" && !slices.Equal(got, want) {
			t.Errorf("remedy of the loss: got commands %q, want %q", got, want)
		}
	}
	n.saveEndpoints()
	n.record(name(next), address(next))
	n.awaitFindings()
	n.wantConfirmed(address(next))

	// A record that the file has twice: azure-cns does not start with it.
	n.saveEndpoints(ipamtest.AzurePod{Namespace: "default", Name: "ghost", Container: sandbox("ghost"), Addresses: []netip.Addr{netip.MustParseAddr(address(last))}})
	wait.Until(t, "both records", func() bool {
		for _, f := range n.findings("?kind=double-allocated") {
			return f.GetAddress() == address(last) && len(f.GetAllocations()) == 2
		}
		return false
	})
}

func TestAzureVnetIPAMAndAnotherIPAMOfTheNodeAreCompared(t *testing.T) {
	t.Parallel()
	n := newAzureNode(t, "azure-vnet-ipam")
	i := n.incident(11)
	n.save("azure-vnet-ipam.json", ipamtest.AzureIPAM(map[string]string{"10.240.0.5": sandbox("old"), "10.240.0.6": "", "10.240.0.7": sandbox("web")}))
	n.save("azure-vnet.json", ipamtest.AzureVnet(ipamtest.AzurePod{Namespace: "default", Name: "web", Container: sandbox("web"), Addresses: []netip.Addr{netip.MustParseAddr("10.240.0.7")}}))
	n.played("azure", "web", "10.240.0.7")
	n.awaitPod("10.240.0.7", "web")
	n.awaitAllocations(3)
	n.plant()
	n.awaitFindings()

	// Another IPAM, which knows nothing of these records, gives pods two of the addresses. It has
	// moved Azure's configuration away, as Cilium does.
	n.sh("mv /etc/cni/net.d/10-azure.conflist /etc/cni/net.d/10-azure.conflist.cilium_bak")
	n.played("cilium", "late", "10.240.0.5")
	n.played("cilium", "early", "10.240.0.6")
	for _, f := range n.awaitFindings("booked-elsewhere 10.240.0.5", "in-use-unallocated 10.240.0.6") {
		if f.GetSeverity() != ipwitnessv1.Finding_CRITICAL || f.GetPool().GetName() != "/run/azure-vnet-ipam.json" || len(f.GetRemedy()) == 0 {
			t.Errorf("got %v, want it critical, of azure-vnet-ipam's file, with a remedy", f)
		}
	}
	i.foretold("booked-elsewhere", "10.240.0.5")
	n.played("cilium", "wrong", "10.240.0.7")
	i.conflicted("10.240.0.7", "overlapping-networks")
	n.wantConfirmed("10.240.0.7")

	// The other network gets a range of its own, and its pods are restarted.
	for k, pod := range []string{"wrong", "late", "early"} {
		n.sh("ip netns del "+pod, "rm /var/lib/cni/results/cilium-"+sandbox(pod)+"-eth0")
		n.played("cilium", pod+"-n", fmt.Sprintf("10.250.0.%d", k+5))
	}
	i.remedied("kubectl delete pod -n default wrong")
	n.awaitPod("10.240.0.7", "web")
	n.awaitFindings()
}
