package tests

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// ovs is a running Open vSwitch of a host, with the userspace datapath, which needs no kernel module.
type ovs struct{ *lab }

// openVSwitch starts Open vSwitch on the host, with a bridge br-int.
func (l *lab) openVSwitch() ovs {
	l.t.Helper()
	l.sh("mkdir -p "+ovsDir, "ovsdb-tool create "+ovsDir+"/conf.db /usr/share/openvswitch/vswitch.ovsschema")
	l.ovsDaemon("db.sock", "/usr/sbin/ovsdb-server", ovsDir+"/conf.db", "--remote=punix:"+ovsDir+"/db.sock", "--unixctl="+ovsDir+"/db.ctl")
	o := ovs{l}
	o.vsctl("--no-wait init")
	l.ovsDaemon("vswitchd.ctl", "/usr/sbin/ovs-vswitchd", "unix:"+ovsDir+"/db.sock", "--unixctl="+ovsDir+"/vswitchd.ctl")
	o.vsctl("add-br br-int -- set bridge br-int datapath_type=netdev")
	return o
}

// ovsDir contains the files of Open vSwitch and OVN on a host.
const ovsDir = "/run/openvswitch"

// ovsDaemon starts a daemon of Open vSwitch or OVN, and waits for a socket in ovsDir.
func (l *lab) ovsDaemon(socket string, words ...string) {
	l.t.Helper()
	cmd := l.Command(words[0], words[1:]...)
	cmd.Env = append(cmd.Env, "OVS_RUNDIR="+ovsDir, "OVS_DBDIR="+ovsDir, "OVS_LOGDIR="+ovsDir, "OVN_RUNDIR="+ovsDir)
	if err := l.Start(cmd); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	wait.Until(l.t, words[0]+" to run", func() bool { _, err := l.Run("test -S %s/%s", ovsDir, socket); return err == nil })
}

func (o ovs) vsctl(line string) {
	o.t.Helper()
	o.sh("ovs-vsctl --timeout=60 --db=unix:" + ovsDir + "/db.sock " + line)
}

// pod creates a pod with an address on a port in a VLAN, as a network plugin does.
func (o ovs) pod(name, port, network, addr string, vlan int) {
	o.t.Helper()
	o.attach(name, port, addr, fmt.Sprintf("tag=%d", vlan))
	o.given(name, network, addr)
}

// attach creates a namespace with an address on a port, whose record in the database has these
// columns. Its MAC is derived from the address.
func (o ovs) attach(name, port, addr, columns string) {
	o.t.Helper()
	if err := o.Namespace(name); err != nil {
		o.t.Fatal(err)
	}
	o.sh(
		fmt.Sprintf("ip link add %s type veth peer name eth0 address %s netns %s", port, macOf(addr), name),
		fmt.Sprintf("ip link set %s up", port),
		fmt.Sprintf("ip -n %s link set eth0 addrgenmode none", name), // several pods have one MAC
		fmt.Sprintf("ip -n %s link set eth0 up", name))
	o.vsctl(fmt.Sprintf("add-port br-int %s %s", port, columns))
	wait.Until(o.t, port+" to be a port", func() bool {
		out, err := o.Run("ip -d link show %s", port)
		return err == nil && strings.Contains(out, "PROMISC")
	})
	o.assign(name, addr+"/24")
}

// macOf returns the MAC that OVN-Kubernetes derives from an IPv4 address.
func macOf(addr string) string {
	b := netip.MustParseAddr(addr).As4()
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// given writes the CNI result of a pod, as libcni does.
func (l *lab) given(name, network, addr string) {
	l.t.Helper()
	l.sh("mkdir -p /var/lib/cni/results")
	write(l.t, l.Path("/var/lib/cni/results/"+network+"-c"+name+"-eth0"), strings.NewReplacer("$pod", name, "$address", addr, "$network", network).Replace(
		`{"kind":"cniCacheV1","containerId":"c$pod","ifName":"eth0","networkName":"$network","netns":"/run/netns/$pod",
		"cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","$pod"],["K8S_POD_UID","uid-$pod"]],"result":{"cniVersion":"0.4.0",
		"interfaces":[{"name":"eth0","sandbox":"/run/netns/$pod"}],"ips":[{"address":"$address/24","interface":0}]}}`))
}

// kubeOVNPod returns a pod with the annotations of Kube-OVN.
func kubeOVNPod(name, node, vpc, addr string) apiPod {
	return apiPod{name, node, addr, map[string]string{
		"ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/logical_switch": "subnet-of-" + vpc, "ovn.kubernetes.io/logical_router": vpc,
		"ovn.kubernetes.io/ip_address": addr,
	}}
}

func TestT9PodsOnPortsOfOpenVSwitch(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	o := l.openVSwitch()
	const addr, other = "10.244.1.5", "10.244.1.6"
	o.pod("a", "7c5e0d1f2a3b4c5", "ovn-kubernetes", addr, 1)
	o.pod("healthy", "1c5e0d1f2a3b4c5", "ovn-kubernetes", other, 1)
	l.awaitPod(addr, "a")
	l.awaitPod(other, "healthy")
	o.pod("b", "9d0e1f2a3b4c5d6", "ovn-kubernetes", addr, 1)
	l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
	l.awaitScopes(addr, "NETWORK pods", "NETWORK pods")
	// Open vSwitch forwards the frames of one pod to the others, so each answers for the address.
	l.resolve("healthy", "eth0", addr)
	for _, owner := range l.owners("?address=" + addr) {
		if owner.GetMac() != "0a:58:0a:f4:01:05" {
			t.Errorf("MAC of %s: got %s", owner.GetWorkload().GetName(), owner.GetMac())
		}
	}
	for _, pod := range []string{"a", "b"} {
		l.evidence(addr, pod, "ASSIGNED", "ANSWERED")
	}
	l.row("T9-ovs", addr, "assigned-twice")
	l.sh("ip netns del b")
	l.awaitNoConflict(addr)
	l.wantNone(other)
}

func TestL17TenantsOnPortsOfOpenVSwitch(t *testing.T) {
	t.Parallel()
	const addr = "10.16.0.7"
	h := newHost(t)
	h.InOrder = true
	api := kubernetesAPI{nodes: map[string]string{"node1": ""}, pods: []apiPod{
		kubeOVNPod("red", "node1", "red", addr), kubeOVNPod("blue", "node1", "blue", addr), kubeOVNPod("default", "node1", "ovn-cluster", addr),
		kubeOVNPod("blue2", "node1", "blue", addr),
		{name: "unknown", node: "node1", ip: addr},
	}}
	l := startLab(t, h, "--kubeconfig", api.serve(t, h))
	o := l.openVSwitch()
	for i, pod := range []string{"red", "blue", "default"} {
		o.pod(pod, fmt.Sprintf("4f3a0d5b1c%02d_h", i), "kube-ovn", addr, i+1)
	}
	l.awaitScopes(addr, "NETWORK pods", "NETWORK vpc/blue", "NETWORK vpc/red")
	l.wantOnlyPlanted()
	l.wantNone(addr)
	l.row("L17-ovs", addr, "different-links")

	// Which tenant this pod belongs to is not known, which is a problem of the node and no conflict.
	o.pod("unknown", "4f3a0d5b1c09_h", "kube-ovn", addr, 9)
	l.awaitOwners(addr, 4)
	wait.Until(t, "the node's problem about the unknown tenant", func() bool { return tenantProblem(l) })
	l.wantNone(addr)
	l.sh("ip netns del unknown")
	wait.Until(t, "the end of the problem", func() bool { return !tenantProblem(l) })

	// Two pods of one tenant are a conflict.
	o.pod("blue2", "4f3a0d5b1c08_h", "kube-ovn", addr, 2)
	l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/blue | default/blue2", "NETWORK vpc/blue")
}

// tenantProblem reports whether the node has the problem that tenants of pods are not known.
func tenantProblem(l *lab) bool {
	for _, problem := range l.node().GetProblems() {
		if strings.Contains(problem, "ports of Kube-OVN") {
			return true
		}
	}
	return false
}

// Without the Kubernetes API, the tenants of Kube-OVN cannot be told apart.
func TestTenantsWithoutTheKubernetesAPI(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	o := l.openVSwitch()
	const addr = "10.16.0.7"
	o.pod("red", "4f3a0d5b1c00_h", "kube-ovn", addr, 1)
	o.pod("blue", "4f3a0d5b1c01_h", "kube-ovn", addr, 2)
	l.awaitOwners(addr, 2)
	wait.Until(t, "the node's problem", func() bool { return tenantProblem(l) })
	out, err := l.Stdout(l.Command(binary, "doctor"))
	if err != nil || !strings.Contains(out, "2 of them Kube-OVN's") {
		t.Errorf("doctor: got %v, %s", err, out)
	}
	l.wantOnlyPlanted()
	l.wantNone(addr)
}

// Pods that come and go, and take over the addresses of those before them, are no conflict.
func TestChurnOnOpenVSwitchIsSilent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	o := l.openVSwitch()
	const live = 5
	pods := churned(25)
	name := func(i int) string { return fmt.Sprintf("p%d", i) }
	address := func(i int) string { return fmt.Sprintf("10.244.1.%d", i%live+5) }
	for i := range pods {
		if i >= live {
			l.sh("ip netns del "+name(i-live), "rm /var/lib/cni/results/antrea-c"+name(i-live)+"-eth0")
		}
		o.pod(name(i), fmt.Sprintf("p%d-1a2b3c", i), "antrea", address(i), 1)
	}
	for i := pods - live; i < pods; i++ {
		l.awaitPod(address(i), name(i))
	}
	l.wantOnlyPlanted()
	l.awaitFindings()
}

// Pods that are attached to one NetworkAttachmentDefinition are one network, unless its IPAM allocates
// on each node.
func TestSecondaryNetworksAreThoseOfTheirDefinitions(t *testing.T) {
	t.Parallel()
	const wide, local = "192.168.7.7", "192.168.8.8"
	at := func(name, node, network, addr string) apiPod {
		return apiPod{name, node, "", map[string]string{"k8s.v1.cni.cncf.io/network-status": fmt.Sprintf(`[{"name":"default/%s","interface":"eth0","ips":["%s"]}]`, network, addr)}}
	}
	h := newHost(t)
	api := kubernetesAPI{
		nodes: map[string]string{"node1": "", "node2": ""},
		pods:  []apiPod{at("w1", "node1", "wide", wide), at("w2", "node2", "wide", wide), at("l1", "node1", "local", local), at("l2", "node2", "local", local)},
		definitions: map[string]string{
			"wide":  `{"name":"wide","type":"macvlan","master":"eth1","ipam":{"type":"whereabouts","range":"192.168.7.0/24"}}`,
			"local": `{"name":"local","type":"bridge","bridge":"br-local","ipam":{"type":"host-local","subnet":"192.168.8.0/24"}}`,
		},
	}
	c := newAggregatorOn(t, h, "--kubeconfig", api.serve(t, h))
	for i := range 2 {
		n := c.addNode(fmt.Sprintf("node%d", i+1))
		for _, pod := range []struct{ name, addr string }{{"l", local}, {"w", wide}} {
			name := fmt.Sprintf("%s%d", pod.name, i+1)
			n.pod(name, pod.addr+"/24")
			// This names the pod, and no network of the address.
			n.sh("mkdir -p /var/lib/cni/results")
			write(t, n.Path("/var/lib/cni/results/x-c"+name+"-net9"), strings.ReplaceAll(
				`{"kind":"cniCacheV1","containerId":"c$pod","ifName":"net9","networkName":"x","netns":"/run/netns/$pod",
				"cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","$pod"],["K8S_POD_UID","uid-$pod"]],"result":{}}`, "$pod", name))
		}
	}
	c.awaitNodes(c.nodes...)
	c.wantConflict(wide, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/w1 | default/w2", "NETWORK nad/default/wide")
	c.awaitScopes(local, "NODE node1", "NODE node2")
	c.wantNone(local)
}

// kubernetesAPI is a part of the Kubernetes API.
type kubernetesAPI struct {
	nodes map[string]string // the pod CIDR of each node
	pods  []apiPod
	// definitions are the configurations of NetworkAttachmentDefinitions in namespace default, by name.
	definitions map[string]string
}

type apiPod struct {
	name, node  string
	ip          string // in its status
	annotations map[string]string
}

// serve serves the API on a host, and returns a kubeconfig.
func (a kubernetesAPI) serve(t *testing.T, h *netlab.Host) string {
	t.Helper()
	served, kubeconfig := serveAPI(t, h)
	a.fill(t, served)
	return kubeconfig
}

// fill creates the objects in an API.
func (a kubernetesAPI) fill(t *testing.T, served *api) {
	t.Helper()
	put := func(resource, namespace, name string, parts map[string]any) {
		raw, err := json.Marshal(parts)
		if err != nil {
			t.Fatal(err)
		}
		served.put(t, resource, namespace, name, string(raw))
	}
	for name, cidr := range a.nodes {
		put("nodes", "", name, map[string]any{"spec": map[string]any{"podCIDR": cidr}})
	}
	for _, pod := range a.pods {
		status := map[string]any{"phase": "Running"}
		if pod.ip != "" {
			status["podIPs"] = []map[string]string{{"ip": pod.ip}}
		}
		put("pods", "default", pod.name, map[string]any{
			"metadata": map[string]any{"annotations": pod.annotations}, "spec": map[string]any{"nodeName": pod.node}, "status": status,
		})
	}
	for name, config := range a.definitions {
		put("network-attachment-definitions", "default", name, map[string]any{"spec": map[string]any{"config": config}})
	}
}
