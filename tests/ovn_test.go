package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// ovn is a running OVN: its databases and northd on the aggregator's host, and a chassis on each node.
// The chassis are connected by Geneve tunnels on a LAN, which Open vSwitch itself builds, because the
// userspace datapath needs no kernel module.
type ovn struct {
	*cluster
	chassis []ovs
	lan     *lan
}

// startOVN starts OVN on two nodes of a cluster whose aggregator follows an API with these objects.
// Frames between the nodes leave them through br-ex, which has the node's address.
func startOVN(t *testing.T, objects kubernetesAPI) (*ovn, *api) {
	t.Helper()
	c, api, chassis := ovsCluster(t, objects)
	o := &ovn{c, chassis, newLAN(t)}
	o.sh("mkdir -p " + ovsDir)
	for _, db := range []string{"nb", "sb"} {
		file := ovsDir + "/" + db
		o.sh("ovsdb-tool create " + file + ".db /usr/share/ovn/ovn-" + db + ".ovsschema")
		o.ovsDaemon(db+".sock", "/usr/sbin/ovsdb-server", file+".db", "--remote=punix:"+file+".sock", "--remote=ptcp:"+map[string]string{"nb": "6641", "sb": "6642"}[db], "--unixctl="+file+".ctl")
	}
	o.ovsDaemon("northd.ctl", "ovn-northd", "--ovnnb-db=unix:"+ovsDir+"/nb.sock", "--ovnsb-db=unix:"+ovsDir+"/sb.sock", "--unixctl="+ovsDir+"/northd.ctl")
	for _, n := range chassis {
		o.lan.cable(n.lab, "eth0")
		// A bridge takes over the MAC of its port only if that is globally unique.
		n.sh(fmt.Sprintf("ip link set eth0 address 00:16:3e:00:0e:%02x", n.number))
		n.vsctl("add-br br-ex -- set bridge br-ex datapath_type=netdev -- add-port br-ex eth0")
		n.sh(fmt.Sprintf("ip addr add 192.0.2.%d/24 dev br-ex", n.number), "ip link set br-ex up")
		n.vsctl(fmt.Sprintf("set open . external_ids:system-id=%s external_ids:ovn-remote=tcp:%s:6642 external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=192.0.2.%d "+
			"external_ids:ovn-bridge-datapath-type=netdev external_ids:ovn-bridge-mappings=external:br-ex", n.name, n.managed(c), n.number))
		n.ovsDaemon("br-int.mgmt", "ovn-controller", "unix:"+ovsDir+"/db.sock")
		wait.Until(t, "the chassis "+n.name, func() bool {
			out, err := o.Run("ovn-sbctl --db=unix:%s/sb.sock --bare --columns=name list chassis", ovsDir)
			return err == nil && slices.Contains(strings.Fields(out), n.name)
		})
	}
	return o, api
}

// nb changes the northbound database.
func (o *ovn) nb(words ...string) {
	o.t.Helper()
	if _, err := o.Output(o.Command("ovn-nbctl", append([]string{"--timeout=60", "--db=unix:" + ovsDir + "/nb.sock"}, words...)...)); err != nil {
		o.t.Fatal(err)
	}
}

// network creates the logical switch of a network, and a router with its gateway.
func (o *ovn) network(vpc, gateway, mac string) {
	o.t.Helper()
	subnet := "subnet-of-" + vpc
	o.nb("lr-add", vpc, "--", "ls-add", subnet,
		"--", "lrp-add", vpc, vpc+"-"+subnet, mac, gateway+"/24",
		"--", "lsp-add", subnet, subnet+"-"+vpc, "--", "lsp-set-type", subnet+"-"+vpc, "router", "--", "lsp-set-addresses", subnet+"-"+vpc, "router",
		"--", "lsp-set-options", subnet+"-"+vpc, "router-port="+vpc+"-"+subnet)
}

// bind creates a pod on a chassis, and its logical port, with the identifiers that Kube-OVN writes.
func (o *ovn) bind(chassis int, vpc, name, port, addr string) {
	o.t.Helper()
	o.nb("lsp-add", "subnet-of-"+vpc, name+".default", "--", "set", "logical_switch_port", name+".default", `addresses="`+macOf(addr)+" "+addr+`"`)
	o.start(chassis, name, port, addr)
}

// start creates a pod on a chassis, whose logical port exists.
func (o *ovn) start(chassis int, name, port, addr string) {
	o.t.Helper()
	n := o.chassis[chassis]
	n.attach(name, port, addr, fmt.Sprintf("-- set interface %s external_ids:iface-id=%s.default external_ids:vendor=kube-ovn external_ids:pod_name=%s external_ids:pod_namespace=default external_ids:ip=%s",
		port, name, name, addr))
	n.given(name, "kube-ovn", addr)
}

// reaches waits until a pod on a chassis gets an answer from an address.
func (o *ovn) reaches(chassis int, pod, addr string) {
	o.t.Helper()
	wait.Until(o.t, pod+" to reach "+addr, func() bool {
		_, err := o.chassis[chassis].Run("ip netns exec %s busybox ping -c 1 -W 1 %s", pod, addr)
		return err == nil
	})
}

// ip returns the IP object of a pod in the subnet of a VPC.
func (o *ovn) ip(pod, node, vpc, addr string) string {
	return strings.ReplaceAll(ipamtest.KubeOVNIP(pod, "default", addr, node, ""), "ovn-default", "subnet-of-"+vpc)
}

// OVN with two chassis, as Kube-OVN uses it: a logical switch on both nodes, whose gateway and proxy for
// ARP are on each of them, and a tenant with the same addresses.
func TestPodsOfARealOVN(t *testing.T) {
	slow(t)
	t.Parallel()
	const one, two, gateway = "10.16.0.7", "10.16.0.8", "10.16.0.1"
	o, api := startOVN(t, kubernetesAPI{nodes: map[string]string{"node1": "", "node2": ""}})
	for _, vpc := range []string{"ovn-cluster", "red"} {
		api.apply(t, "subnets", strings.Replace(ipamtest.KubeOVNSubnet("subnet-of-"+vpc, "10.16.0.0/24"), "vpc: ovn-cluster", "vpc: "+vpc, 1))
	}
	gateways := map[string]string{"ovn-cluster": "00:00:00:aa:aa:01", "red": "00:00:00:aa:aa:02"}
	for vpc, mac := range gateways {
		o.network(vpc, gateway, mac)
	}
	pods := []struct {
		name, vpc, addr, other string
		chassis                int
	}{
		{"one", "ovn-cluster", one, two, 0},
		{"two", "ovn-cluster", two, one, 1},
		{"red1", "red", two, one, 0},
		{"red2", "red", one, two, 1},
	}
	for i, pod := range pods {
		node := o.chassis[pod.chassis].name
		kubernetesAPI{pods: []apiPod{kubeOVNPod(pod.name, node, pod.vpc, pod.addr)}}.fill(t, api)
		api.apply(t, "ips", o.ip(pod.name, node, pod.vpc, pod.addr))
		o.bind(pod.chassis, pod.vpc, pod.name, fmt.Sprintf("4f3a0d5b1c%02d_h", i), pod.addr)
	}
	o.nb("--wait=hv", "sync")
	for range 2 { // again after the settle time, so that it is more than one event
		for _, pod := range pods {
			n := o.chassis[pod.chassis]
			n.announce(pod.name, pod.addr)
			o.reaches(pod.chassis, pod.name, pod.other)
			o.reaches(pod.chassis, pod.name, gateway)
			// OVN answers on every chassis for the gateway, and for the pods of the other one.
			for addr, mac := range map[string]string{pod.other: macOf(pod.other), gateway: gateways[pod.vpc]} {
				n.resolve(pod.name, "eth0", addr)
				n.knows(pod.name, addr, mac)
			}
		}
		o.plant()
	}
	o.evidence(one, "one", "ASSIGNED eth0", "ANNOUNCED node1/4f3a0d5b1c00_h")
	o.evidence(two, "two", "ASSIGNED eth0", "ANNOUNCED node2/4f3a0d5b1c01_h")
	o.awaitScopes(one, "NETWORK pods", "NETWORK vpc/red")
	o.awaitScopes(two, "NETWORK pods", "NETWORK vpc/red")
	o.awaitAllocations(4)
	o.wantConfirmed()
	o.wantNone(one, two, gateway, "192.0.2.1", "192.0.2.2")
	o.awaitFindings()

	// A router with an address outside, and one that it translates to that of a pod, answers for both on
	// one chassis. The other one takes over.
	const outside, translated, mac = "192.0.2.200", "192.0.2.77", "00:16:3e:00:ee:01"
	o.nb("ls-add", "external", "--", "lsp-add", "external", "localnet", "--", "lsp-set-type", "localnet", "localnet",
		"--", "lsp-set-addresses", "localnet", "unknown", "--", "lsp-set-options", "localnet", "network_name=external",
		"--", "lrp-add", "ovn-cluster", "ovn-cluster-external", mac, outside+"/24",
		"--", "lsp-add", "external", "external-ovn-cluster", "--", "lsp-set-type", "external-ovn-cluster", "router",
		"--", "lsp-set-addresses", "external-ovn-cluster", "router", "--", "lsp-set-options", "external-ovn-cluster", "router-port=ovn-cluster-external", "nat-addresses=router",
		"--", "lr-nat-add", "ovn-cluster", "dnat_and_snat", translated, one)
	o.lan.machine("client", "02:00:00:00:00:20", "192.0.2.20/24")
	for i, priority := range []string{"20", "30"} {
		o.nb("--wait=hv", "lrp-set-gateway-chassis", "ovn-cluster-external", o.chassis[i].name, priority)
		for _, addr := range []string{outside, translated} {
			o.lan.knowsAfter(func() { o.lan.resolve("client", "eth0", addr) }, "client", addr, mac)
			o.seen(addr, o.chassis[1-i].name+"/eth0") // OVN announces it on the LAN
		}
		o.plant()
	}
	o.wantConfirmed()
	o.wantNone(outside, translated)
	o.awaitFindings()

	// A pod of the default VPC on the other node gets the address of a running one.
	kubernetesAPI{pods: []apiPod{kubeOVNPod("again", "node2", "ovn-cluster", one)}}.fill(t, api)
	api.apply(t, "ips", o.ip("again", "node2", "ovn-cluster", one))
	o.awaitFindings("double-allocated " + one)
	o.bind(1, "ovn-cluster", "again", "4f3a0d5b1c09_h", one)
	o.wantConflict(one, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/again | default/one", "NETWORK pods")
	o.wantNone(two, gateway)

	// A pod that was started on another node again, with its logical port, has left a sandbox behind.
	o.start(0, "two", "4f3a0d5b1c08_h", two)
	o.wantConflict(two, ipwitnessv1.Conflict_CONFIRMED, "same-pod", "default/two | default/two", "NETWORK pods")
	o.wantNone(gateway)
}
