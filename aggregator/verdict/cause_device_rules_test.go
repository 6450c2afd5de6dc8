package verdict_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestCausesOfDevices(t *testing.T) {
	// web adds a pod that a CNI network gave the address.
	web := func(w *world) { w.Within("n1", "", "kindnet", verdicttest.Who("web")) }
	// gateway adds a bridge of the node with the address, and a pod on it.
	gateway := func(w *world, change func(i *verdict.Interface)) {
		w.Addr = netip.MustParseAddr("10.244.0.1")
		w.Within("n1", "cni0", "", verdicttest.Who("web"))
		i := w.Device("n1", "cni0", "bridge")
		if change != nil {
			change(i)
		}
	}
	for _, test := range []struct {
		name     string
		build    func(w *world)
		cause    string
		excluded []string
	}{
		// External devices.
		{"two devices outside", func(w *world) {
			port := w.Uplink("n1")
			a := w.Wire(port, externalMAC)
			w.after(time.Millisecond).Wire(port, other)
			w.after(time.Millisecond).Seen(a)
		}, unknown, nil},
		{"a device outside", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Wire(port, externalMAC)
		}, outside, nil},
		{"a device outside with a MAC of Calico's", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Wire(port, calicoMAC)
		}, unknown, []string{outside}},
		{"a device behind a port that is no uplink", func(w *world) {
			port := w.Uplink("n1")
			port.Uplink = false
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Wire(port, externalMAC)
		}, unknown, nil},
		{"a device outside, and IPAM has it for a node with an agent", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, externalMAC)
			w.Calico(w.Pool(whereabouts.Name, "", "lan"), "x", "n1")
		}, outside, []string{elsewhere, lost}},
		{"a device outside, and IPAM has it for a node without an agent", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, externalMAC)
			w.Uncovered = []string{"n9"}
			w.Calico(w.Pool(whereabouts.Name, "", "lan"), "x", "n9")
		}, unknown, []string{outside, elsewhere, lost}},
		{"a device outside, and IPAM has it for no node", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, externalMAC)
			w.Uncovered = []string{"n9"}
			w.Calico(w.Pool(whereabouts.Name, "", "lan"), "x", "")
		}, outside, []string{elsewhere, lost}},
		{"a device outside, and IPAM has it for the pod, on a node without an agent", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link)).Network = "lan"
			w.Wire(port, externalMAC)
			w.Uncovered = []string{"n1"}
			w.Calico(w.Pool(whereabouts.Name, "", "lan"), "a", "n1")
		}, outside, []string{elsewhere, lost}},

		// Tunnels.
		{"a tunnel", func(w *world) { web(w); w.Device("n1", "vxlan0", "vxlan") }, tunnel, nil},
		{"Cilium's own device", func(w *world) {
			web(w)
			w.Device("n1", "cilium_host", "").Link.Kind = verdict.PointToPoint
		}, tunnel, nil},
		{"two addresses of the node, of which the second is a tunnel's", func(w *world) {
			web(w)
			w.Device("n1", "dev0", "dummy")
			w.Device("n1", "vxlan0", "vxlan")
		}, tunnel, nil},
		{"a tunnel's name on a service address", func(w *world) {
			web(w)
			w.Device("n1", "eth0", "")
			w.Device("n1", "vxlan0", "vxlan").Attachment = verdict.Local
		}, static, []string{tunnel}},
		{"tunnels of two nodes", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Device("n1", "vxlan0", "vxlan")
			w.Device("n2", "vxlan0", "vxlan")
		}, unknown, []string{split}},
		{"a tunnel, and a device outside", func(w *world) {
			i := w.Device("n1", "vxlan0", "vxlan")
			i.Uplink = true
			w.Wire(i, externalMAC)
		}, outside, nil},

		// Addresses configured by hand.
		{"on a device of the node", func(w *world) { web(w); w.Device("n1", "eth0", "") }, static, []string{tunnel}},
		{"on a port of a pod", func(w *world) {
			web(w)
			i := w.Device("n1", "dev0", "veth")
			i.Peer = 7
		}, unknown, []string{tunnel}},
		{"on a bridge that pods are on", func(w *world) { gateway(w, nil) }, static, []string{tunnel}},
		{"on a bridge whose kind is not known", func(w *world) { gateway(w, func(i *verdict.Interface) { i.Kind = "" }) }, static, []string{tunnel}},
		{"on a device of another kind with the name of a bridge", func(w *world) { gateway(w, func(i *verdict.Interface) { i.Kind = "dummy" }) }, unknown, []string{tunnel}},
		{"on a port of the bridge, whose kind is not known", func(w *world) {
			gateway(w, func(i *verdict.Interface) { i.Kind, i.Name = "", "port" })
		}, unknown, []string{tunnel}},
		{"on an uplink with the name of a bridge, whose kind is not known", func(w *world) {
			gateway(w, func(i *verdict.Interface) { i.Kind, i.Uplink = "", true })
		}, unknown, []string{tunnel}},
		{"on a device without a link, whose kind is not known", func(w *world) {
			gateway(w, func(i *verdict.Interface) { i.Kind, i.Link = "", nil })
		}, unknown, []string{tunnel}},
		{"on a link of that name that is no bridge, of no known kind", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "", "", verdicttest.Who("web"))
			i := w.Device("n1", "cni0", "")
			i.Kind = ""
		}, unknown, []string{tunnel}},
		{"on the bridge, and the pod is on another one", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "cni1", "", verdicttest.Who("web"))
			w.Device("n1", "cni0", "bridge")
		}, unknown, []string{tunnel}},
		{"on the bridge, and the pod is on a bridge of that name of another node", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n2", "cni0", "", verdicttest.Who("web"))
			w.Device("n1", "cni0", "bridge")
		}, unknown, []string{tunnel, overlap}},
		{"on a bridge of a pool, and the pod is elsewhere", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "", "", verdicttest.Who("web"))
			w.Device("n1", "cni0", "bridge")
			w.Pool(hostlocal.Name, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "cni0"
		}, static, []string{tunnel}},
		{"on a bridge of another pool, and the pod is elsewhere", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "", "", verdicttest.Who("web"))
			w.Device("n1", "cni0", "bridge")
			w.Pool(hostlocal.Name, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "cni1"
		}, unknown, []string{tunnel}},
		{"on a device of a pool that is no bridge, and the pod is elsewhere", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "", "", verdicttest.Who("web"))
			w.Device("n1", "dev0", "dummy")
			w.Pool(hostlocal.Name, "n1", "pods", "10.9.0.1-10.9.0.9").Device = "dev0"
		}, unknown, []string{tunnel}},
		{"on a bridge of docker", func(w *world) { web(w); w.Device("n1", "docker0", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge of docker's with a name of digits", func(w *world) { web(w); w.Device("n1", "br-0123456789ab", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge with a shorter name", func(w *world) { web(w); w.Device("n1", "br-0123456789a", "bridge") }, static, []string{tunnel}},
		{"on a bridge with a name of other letters", func(w *world) { web(w); w.Device("n1", "br-0123456789xy", "bridge") }, static, []string{tunnel}},
		{"on a bridge with a name of digits alone", func(w *world) { web(w); w.Device("n1", "0123456789ab", "bridge") }, static, []string{tunnel}},
		{"on a bridge of libvirt", func(w *world) { web(w); w.Device("n1", "virbr7", "bridge") }, unknown, []string{tunnel, static}},
		{"on a bridge of podman", func(w *world) { web(w); w.Device("n1", "podman1", "bridge") }, unknown, []string{tunnel, static}},
		{"in a container without a name", func(w *world) {
			web(w)
			w.Within("n1", "", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"in a namespace with a name in which a container is", func(w *world) {
			web(w)
			w.Within("n1", "", "", verdict.Workload{Kind: verdict.Container, Name: "blue", ContainerID: "c1", Source: "netns"})
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		}, static, []string{lost}},
		{"in a container on a bridge of docker's", func(w *world) {
			web(w)
			w.Within("n1", "docker0", "", blue("blue"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"in a namespace that IPAM may have it for", func(w *world) {
			web(w)
			w.Within("n1", "", "", blue("blue"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "x")
		}, unknown, []string{lost, static}},
		{"in a namespace, and IPAM's record has no holder", func(w *world) {
			web(w)
			w.Within("n1", "", "", blue("blue"))
			w.Pool(hostlocal.Name, "n1", "kindnet")
		}, unknown, []string{lost, static}},
		{"in a pod of which the CNI result does not have it", func(w *world) { web(w); w.Within("n1", "", "", verdicttest.Who("mad")) }, static, nil},
		{"in a pod of which no CNI result is known", func(w *world) {
			web(w)
			mad := verdicttest.Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
		}, unknown, []string{static}},
		{"in a pod of which no CNI result is known, and the API has it for the pod", func(w *world) {
			web(w)
			mad := verdicttest.Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
			w.Says("uid-mad", verdict.PodObject{Namespace: "default", Name: "mad", Phase: "Running", IPs: []netip.Addr{w.Addr}})
		}, unknown, []string{static}},
		{"in a pod of which no CNI result is known, and the API has no address of the pod", func(w *world) {
			web(w)
			mad := verdicttest.Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
			w.running("mad")
		}, unknown, []string{static}},
		{"on a further interface of a pod", func(w *world) {
			web(w)
			w.Within("n1", "", "", verdicttest.Who("mad")).Interface.Name = "net1"
		}, unknown, []string{static}},
		{"in a pod, and the other one is an unidentified namespace", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
		}, unknown, []string{static}},
		{"in a pod, and the other one is an unidentified namespace, in a range of pods", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
			w.PodCIDR = netip.MustParsePrefix("10.244.0.0/16")
		}, static, nil},
		{"in a pod, and the other one is an unidentified namespace, in a range of IPAM", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
			w.Pool(hostlocal.Name, "n1", "lab")
		}, static, nil},
		{"in a pod, and the other one is an unidentified namespace, in no range of IPAM", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
			w.Pool(hostlocal.Name, "n1", "lab", "10.9.0.1-10.9.0.9")
		}, unknown, []string{static}},
		{"two unidentified namespaces, in a range of IPAM", func(w *world) {
			w.Within("n1", "", "", blue("red"))
			w.Within("n1", "", "", blue("blue"))
			w.Pool(hostlocal.Name, "n1", "lab")
		}, unknown, nil},
		{"behind a pod with another address from CNI", func(w *world) {
			w.Within("n1", "br0", "kindnet", verdicttest.Who("web"))
			_, port := w.guestOf("n1", "vm")
			w.Wire(port, externalMAC)
		}, static, []string{outside}},
		{"behind a pod whose addresses from CNI are not known", func(w *world) {
			w.Within("n1", "br0", "kindnet", verdicttest.Who("web"))
			inside, port := w.guestOf("n1", "vm")
			sourced(inside.Namespace, "cri", "")
			w.Wire(port, externalMAC)
		}, unknown, []string{outside, static}},
		{"behind a pod that the API has with another address", func(w *world) {
			w.Within("n1", "br0", "kindnet", verdicttest.Who("web"))
			inside, port := w.guestOf("n1", "vm")
			sourced(inside.Namespace, "cri", "")
			w.Says("uid-vm", verdict.PodObject{Namespace: "default", Name: "vm", Phase: "Running", IPs: []netip.Addr{netip.MustParseAddr("10.9.9.9")}})
			w.Wire(port, externalMAC)
		}, static, []string{outside}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}
