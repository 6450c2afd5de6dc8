package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// kubevirt is a cluster whose nodes share a LAN, 192.0.2.0/24, on which a bridge of each node connects
// virtual machines. The test plays KubeVirt and whereabouts. The API has their objects.
type kubevirt struct {
	*cluster
	api *api
	// given are the allocations of whereabouts: the pod of each address.
	given map[string]string
}

// The guest of the virtual machine db has this address and this hardware address, wherever it runs.
const (
	guestAddress = "192.0.2.100"
	guestMAC     = "02:00:00:00:00:db"
)

func newKubeVirt(t *testing.T) *kubevirt {
	t.Helper()
	h := newHost(t)
	a, kubeconfig := serveAPI(t, h)
	k := &kubevirt{newAggregatorOn(t, h, "--kubeconfig", kubeconfig), a, map[string]string{}}
	k.attachment("")
	k.record()
	out := newLAN(t)
	for _, name := range []string{"node1", "node2"} {
		a.put(t, "nodes", "", name, "{}")
		n := k.addNode(name)
		addr := fmt.Sprintf("192.0.2.%d/24", n.number)
		out.join(n, addr)
		n.sh("ip addr del "+addr+" dev eth0", fmt.Sprintf("ip link add br1 address 02:00:00:00:0f:%02x type bridge", n.number), "ip link set eth0 master br1",
			"ip link set br1 up", "ip addr add "+addr+" dev br1")
	}
	k.awaitNodes(k.nodes...)
	wait.Until(t, "the nodes to receive each other's frames", func() bool {
		met := 0
		for i, n := range k.nodes {
			own, other := fmt.Sprintf("192.0.2.%d", n.number), k.nodes[1-i]
			n.announce("/br1", own)
			for _, o := range k.owners("?address=" + own) {
				for _, e := range o.GetEvidence() {
					if e.GetKind() != ipwitnessv1.Evidence_ASSIGNED && e.GetWitness() == other.name+"/eth0" {
						met++
					}
				}
			}
		}
		return met >= len(k.nodes)
	})
	return k
}

// attachment defines the network of the virtual machines. more are further fields of its IPAM.
func (k *kubevirt) attachment(more string) {
	k.t.Helper()
	k.api.apply(k.t, "network-attachment-definitions", `
metadata: {name: vms, namespace: default}
spec:
  config: '{"cniVersion": "0.3.1", "name": "vms", "type": "bridge", "bridge": "br1", "ipam": {"type": "whereabouts", "range": "192.0.2.0/24",
    "range_start": "192.0.2.100", "range_end": "192.0.2.120"`+more+`}}'
`)
}

// record replaces the records of whereabouts.
func (k *kubevirt) record() {
	k.t.Helper()
	var entries []string
	for addr, pod := range k.given {
		entries = append(entries, fmt.Sprintf(`"%s": {id: %s, podref: default/%s, ifname: net1}`, addr[strings.LastIndexByte(addr, '.')+1:], sandbox(pod), pod))
	}
	slices.Sort(entries)
	k.api.apply(k.t, "ippools.whereabouts.cni.cncf.io", "metadata: {name: 192.0.2.0-24, namespace: kube-system}\nspec: {range: 192.0.2.0/24, allocations: {"+strings.Join(entries, ", ")+"}}")
}

// allocate gives a pod an address, as an ADD of whereabouts does.
func (k *kubevirt) allocate(pod, addr string) {
	k.t.Helper()
	k.given[addr] = pod
	k.api.apply(k.t, "overlappingrangeipreservations", fmt.Sprintf("metadata: {name: %s, namespace: kube-system}\nspec: {containerid: %s, podref: default/%s, ifname: net1}", addr, sandbox(pod), pod))
	k.record()
}

// launch starts a pod of a virtual machine with an address of whereabouts, and connects it as KubeVirt
// does for the binding "bridge": the pod's interface becomes a port of a bridge, as does the tap of the
// machine, and a dummy device gets its name and addresses. Frames of the guest leave the pod through that
// bridge. The loopback device stands for the dummy, which the kernel of the tests may lack.
func (k *kubevirt) launch(n *lab, pod, addr string) {
	k.t.Helper()
	k.allocate(pod, addr)
	if err := n.Namespace(pod); err != nil {
		k.t.Fatal(err)
	}
	port := "v" + pod[strings.LastIndexByte(pod, '-')+1:]
	in := "ip -n " + pod + " "
	n.sh("ip link add "+port+" type veth peer name net1 netns "+pod, "ip link set "+port+" master br1", "ip link set "+port+" up",
		in+"link set net1 name nic1", in+"link set nic1 up",
		in+"link add k6t-net1 type bridge", in+"link set nic1 master k6t-net1", in+"link set k6t-net1 up",
		in+"addr add "+addr+"/32 dev lo", in+"link set lo up",
		"mkdir -p /var/lib/cni/results")
	write(k.t, n.Path(resultOf(pod)), strings.NewReplacer("$pod", pod, "$address", addr, "$sandbox", sandbox(pod)).Replace(
		`{"kind":"cniCacheV1","containerId":"$sandbox","ifName":"net1","networkName":"vms","netns":"/run/netns/$pod",
		"cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","$pod"],["K8S_POD_UID","uid-$pod"]],"result":{"cniVersion":"0.3.1",
		"interfaces":[{"name":"net1","sandbox":"/run/netns/$pod"}],"ips":[{"version":"4","address":"$address/24","interface":0}]}}`))
	k.pod(n, pod, "Running")
}

func resultOf(pod string) string { return "/var/lib/cni/results/vms-" + sandbox(pod) + "-net1" }

// known waits until a pod is known as one of the virtual machine. Names may be known later than addresses.
func (k *kubevirt) known(pod, addr string) {
	k.t.Helper()
	wait.Until(k.t, pod+" as a pod of the virtual machine", func() bool {
		return slices.ContainsFunc(k.owners("?address="+addr), func(o *ipwitnessv1.Owner) bool {
			return o.GetWorkload().GetName() == pod && o.GetWorkload().GetVirtualMachine() == "db"
		})
	})
}

// pod writes the object of a pod of the virtual machine db.
func (k *kubevirt) pod(n *lab, pod, phase string) {
	k.t.Helper()
	k.api.put(k.t, "pods", "default", pod, `{"metadata": {"labels": {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "db"},
		"ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "db", "uid": "uid-db", "controller": true}]},
		"spec": {"nodeName": "`+n.name+`"}, "status": {"phase": "`+phase+`"}}`)
}

// end ends a pod: whereabouts frees its address.
func (k *kubevirt) end(n *lab, pod, addr string) {
	k.t.Helper()
	n.sh("ip netns del "+pod, "rm "+resultOf(pod))
	delete(k.given, addr)
	k.api.drop("overlappingrangeipreservations", addr)
	k.record()
}

// machine writes the VirtualMachineInstance.
func (k *kubevirt) machine(node, pods, migration string) {
	k.t.Helper()
	k.api.apply(k.t, "virtualmachineinstances", fmt.Sprintf(`
metadata: {name: db, namespace: default}
status:
  phase: Running
  nodeName: %s
  activePods: {%s}
  interfaces: [{name: lan, interfaceName: eth0, ipAddress: %s, mac: '%s', infoSource: 'domain, guest-agent, multus-status'}]
  %s
`, node, pods, guestAddress, guestMAC, migration))
}

// speaks makes the guest announce its address from a pod.
func (k *kubevirt) speaks(n *lab, pod string) {
	k.t.Helper()
	n.arp(pod+"/k6t-net1", 1, guestMAC, guestAddress, guestAddress)
}

// newMigrated returns a cluster in which the virtual machine was migrated from node1 to node2. Its guest
// has the address of its former pod, which has ended, and there is a finding about it.
func newMigrated(t *testing.T) *kubevirt {
	t.Helper()
	k := newKubeVirt(t)
	one, two := k.nodes[0], k.nodes[1]
	const from, to = "virt-launcher-db-a", "virt-launcher-db-b"
	k.launch(one, from, guestAddress)
	k.machine("node1", "uid-"+from+": node1", "")
	k.known(from, guestAddress)
	k.speaks(one, from)
	k.awaitAllocations(1)
	k.awaitFindings()

	k.launch(two, to, "192.0.2.101")
	k.known(to, "192.0.2.101")
	const pods = "uid-" + from + ": node1, uid-" + to + ": node2"
	k.machine("node1", pods, "migrationState: {sourceNode: node1, targetNode: node2, sourcePod: "+from+", targetPod: "+to+", startTimestamp: '2026-01-02T12:00:00Z'}")
	k.awaitAllocations(2)
	k.speaks(two, to)
	k.machine("node2", pods, "migrationState: {sourceNode: node1, targetNode: node2, sourcePod: "+from+", targetPod: "+to+
		", startTimestamp: '2026-01-02T12:00:00Z', endTimestamp: '2026-01-02T12:00:02Z', completed: true}")
	// ipwitness knows that the guest has moved when the record of its former pod disappears.
	wait.Until(t, "the guest in its new pod for a while", func() bool {
		return slices.ContainsFunc(k.owners("?address="+guestAddress), func(o *ipwitnessv1.Owner) bool {
			return o.GetWorkload().GetName() == to && time.Since(o.GetFirstSeen().AsTime()) > 3*time.Second
		})
	})
	k.end(one, from, guestAddress)
	k.pod(one, from, "Succeeded")
	wait.Until(t, "the finding", func() bool {
		k.speaks(two, to)
		return slices.ContainsFunc(k.findings("?kind=in-use-unallocated"), func(f *ipwitnessv1.Finding) bool { return f.GetAddress() == guestAddress })
	})
	// Frames of the guest that arrive at node1 are those of its pod on node2, and its former pod is gone.
	k.wantNone(guestAddress)
	return k
}

// In kubevirt/kubevirt issue 13709, whereabouts gave the address of a migrated virtual machine to the next
// one, because it had recorded it for the pod of the machine before the migration.
func TestAddressOfAMigratedGuestIsForetold(t *testing.T) {
	t.Parallel()
	slow(t) // a frame of a known guest is reported again after 30 s
	k := newMigrated(t)
	i := k.incident(23)
	i.foretold("in-use-unallocated", guestAddress)
	i.found("in-use-unallocated", guestAddress)
	f := i.finding
	if f.GetSeverity() != ipwitnessv1.Finding_CRITICAL || len(f.GetOwners()) != 1 || f.GetOwners()[0].GetWorkload().GetName() != "virt-launcher-db-b" {
		t.Errorf("got %v, want it critical, of the pod that runs the machine now", f)
	}
	// The machine is started again in another pod, and requests its address.
	two := k.nodes[1]
	k.end(two, "virt-launcher-db-b", "192.0.2.101")
	k.api.drop("pods", "virt-launcher-db-b")
	const next = "virt-launcher-db-c"
	k.launch(two, next, guestAddress)
	k.known(next, guestAddress)
	k.machine("node2", "uid-"+next+": node2", "")
	i.remedied("kubectl delete pod -n default virt-launcher-db-b")
	k.speaks(two, next)
	k.wantOnlyPlanted()
	k.awaitFindings()
	k.wantNone(guestAddress)
}

func TestAddressOfAMigratedGuestIsExcluded(t *testing.T) {
	t.Parallel()
	slow(t)
	k := newMigrated(t)
	k.attachment(`, "exclude": ["` + guestAddress + `/32"]`)
	k.speaks(k.nodes[1], "virt-launcher-db-b")
	k.awaitFindings()
	k.awaitOwner(guestAddress, "virt-launcher-db-b")
}
