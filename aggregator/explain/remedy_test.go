package explain_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/awsvpc"
	"github.com/ipwitness/ipwitness/ipam/azure"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/containers"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"

	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

const (
	sandboxID = "199dc89a88c2f1d3a0f2b5a0c4f6e3f1b7a9d8c7e6f5a4b3c2d1e0f9a8b7c6d5"
	otherID   = "0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f6"
)

// holder returns a pod with an address, as the audit reports it.
func holder(w *verdicttest.Network, node, name string, claimed string) verdict.Owner {
	ns := w.Namespace(node, 2, "4026532397", verdict.Workload{
		Kind: verdict.Pod, Namespace: "shop", Name: name, UID: "4203561e-1821-45b6-a68a-d4619be90320", ContainerID: sandboxID, Source: "cri",
	})
	inside, _ := w.Veth(ns, "\x0a\x58\x0a\xf4\x00\x05", w.Link(node, "cni0", verdict.Bridge, true))
	inside.Name = claimed
	c := assigned(inside)
	return verdict.Owner{
		ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: inside, MAC: inside.MAC, Assigned: true, State: verdict.Live, Claims: []*verdict.Claim{c},
		Pod: &verdict.PodObject{Namespace: "shop", Name: name, UID: "4203561e-1821-45b6-a68a-d4619be90320", Node: node, ControllerKind: "Deployment", Controller: "web"},
	}
}

// hostLocal returns a pool of host-local.
func hostLocal(w *verdicttest.Network, node, dir string) *verdict.Pool {
	return &verdict.Pool{
		Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: dir, Served: ipam.Served{Network: "cbr0"}, State: ipam.Known, Config: "/etc/cni/net.d/10-flannel.conflist", Ranges: []ipam.Range{{First: netip.MustParseAddr("10.244.0.2"), Last: netip.MustParseAddr("10.244.0.254")}}}, Node: w.Node(node),
	}
}

// whereaboutsPool returns a pool of whereabouts.
func whereaboutsPool(name, base string) *verdict.Pool {
	return &verdict.Pool{
		Pool: ipam.Pool{
			IPAM: whereabouts.Name, Traits: registry.Traits(whereabouts.Name), Name: name, Served: ipam.Served{Network: "lan"}, State: ipam.Known, Base: netip.MustParseAddr(base), Config: "NetworkAttachmentDefinition shop/lan",
			Ranges: []ipam.Range{{First: netip.MustParseAddr("192.0.2.1"), Last: netip.MustParseAddr("192.0.2.5")}},
		},
	}
}

// findings returns one finding of each kind and IPAM, by name.
func findings() map[string]verdict.Finding {
	w := verdicttest.NewNetwork()
	owner := holder(w, "node-a", "web-5d", "eth0")
	lan := holder(w, "node-b", "cam-0", "net1")
	lan.ID, lan.Namespace.ID = "b/1", "b/1"
	unknown := holder(w, "node-c", "plain", "eth0")
	unknown.Namespace.Who = verdict.Workload{Kind: verdict.Unknown}.Who()
	unknown.Pod = nil
	pool := hostLocal(w, "node-a", "/var/lib/cni/networks/cbr0")
	lostPool := hostLocal(w, "node-a", "/var/lib/cni/networks/cbr0")
	lostPool.State, lostPool.LostAt, lostPool.Lost = ipam.Missing, start.Add(-1e9), 12
	renamed := hostLocal(w, "node-a", "/var/lib/cni/networks/pods")
	renamed.Network, renamed.Config, renamed.State = "pods", "/etc/cni/net.d/10-pods.conflist", ipam.Missing
	ofFormer := owner
	ofFormer.Claims = []*verdict.Claim{assigned(owner.Interface)}
	ofFormer.Claims[0].Network = "cbr0"
	lans := whereaboutsPool("kube-system/192.0.2.0-29", "192.0.2.0")
	lans6 := whereaboutsPool("kube-system/blue-fd00---64", "fd00::")
	lans6.Realm = "blue"
	slice := whereaboutsPool("kube-system/node-b-192.0.2.0-29", "192.0.2.0")
	overlay := &verdict.Pool{Pool: ipam.Pool{IPAM: ovn.KubeOVN.Name, Traits: registry.Traits(ovn.KubeOVN.Name), Name: "ovn-default", State: ipam.Known}}
	calico := &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "default-ipv4-ippool", State: ipam.Known}}
	cilium := &verdict.Pool{Pool: ipam.Pool{IPAM: cilium.IPAM.Name, Traits: registry.Traits(cilium.IPAM.Name), Name: "node-a", State: ipam.Known}, Node: w.Node("node-a")}
	azureFile := &verdict.Pool{Pool: ipam.Pool{IPAM: azure.Name, Traits: registry.Traits(azure.Name), Name: "/run/azure-cns/azure-endpoints.json", State: ipam.Known}, Node: w.Node("node-a")}
	api := &verdict.Pool{Pool: ipam.Pool{IPAM: podips.IPAM.Name, Traits: registry.Traits(podips.IPAM.Name), State: ipam.Known}}
	stale := holder(w, "node-d", "web-5d", "eth0")
	stale.Node.IPAMName = ipam.NodeName{Name: "template-0", Source: ipam.FileName, File: "/var/lib/calico/nodename"}
	find := func(kind string, p *verdict.Pool, address string, owners []verdict.Owner, allocations ...*verdict.Allocation) verdict.Finding {
		for _, al := range allocations {
			al.Pool, al.Address = p, netip.MustParseAddr(address)
		}
		return verdict.Finding{
			ID: "x", Kind: kind, Severity: verdict.Critical, Address: netip.MustParseAddr(address), Owners: owners, Allocations: allocations, Pool: p, Since: start,
		}
	}
	remembers := find(verdict.FindingInUseUnallocated, lans, "192.0.2.3", []verdict.Owner{lan})
	remembers.Past = []verdict.Past{{Owner: lan.ID, Kind: verdict.FindingInUseUnallocated, Since: start, Allocation: &verdict.Allocation{
		Pool: lans, Allocation: ipam.Allocation{Namespace: "shop", Pod: "cam-0", Location: "ippools kube-system/192.0.2.0-29 /spec/allocations/3"},
	}}}
	intended := find(verdict.FindingIntendedNotObserved, nil, "10.244.0.5", []verdict.Owner{owner})
	intended.Source = "cri"
	looped := find(verdict.FindingIntendedNotObserved, nil, "fd00::5", []verdict.Owner{holder(w, "node-e", "vlan-0", "net1.5")})
	looped.Source = audit.SourceLooped
	looped.Addresses = []netip.Addr{looped.Address, netip.MustParseAddr("fe80::5")}
	host := []verdict.Owner{owner}
	local := func(node string, on verdict.Claim) verdict.Owner {
		ns := w.Host(node)
		i := w.Interface(ns, verdict.Interface{Name: "kube-ipvs0", Attachment: verdict.Local})
		on.Interface = w.Interface(ns, verdict.Interface{Name: "eth0", Attachment: verdict.Own})
		return verdict.Owner{ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: i, State: verdict.Live, Claims: []*verdict.Claim{assigned(i), &on}}
	}
	bridged := func(node string) verdict.Owner {
		o := local(node, verdict.Claim{Kind: verdict.Answered})
		o.Interface = w.Interface(o.Namespace, verdict.Interface{Name: "docker0", Kind: "bridge", Attachment: verdict.Own})
		o.Assigned, o.Claims[0].Interface = true, o.Interface
		return o
	}
	proxy := func(node string) verdict.Owner {
		o := local(node, verdict.Claim{Kind: verdict.Answered})
		o.Excluded = &verdict.Exclusion{Rule: verdict.RuleReachableVia}
		on := w.Interface(o.Namespace, verdict.Interface{Name: "eth0", Kind: "veth", Attachment: verdict.Own})
		o.Claims = append(o.Claims[1:], &verdict.Claim{Kind: verdict.WouldAnswer, Interface: on, Answer: verdict.KernelAnswer{By: verdict.ByProxyEntry}})
		return o
	}
	self := func(device, kind string) []verdict.Owner {
		ns := w.Host("node-a")
		i := w.Interface(ns, verdict.Interface{Name: device, Kind: kind, Attachment: verdict.Own})
		return []verdict.Owner{{ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: i, State: verdict.Live, Assigned: true, Claims: []*verdict.Claim{assigned(i)}}}
	}
	// node-a answers on its LAN for an address that node-b has.
	answers := func(device, on string, answer verdict.KernelAnswer) verdict.Finding {
		lan := map[string]*verdict.Interface{}
		for _, n := range []string{"node-a", "node-b"} {
			lan[n] = w.Interface(w.Host(n), verdict.Interface{Name: "eth0", MAC: verdict.MAC("uplink" + n), Attachment: verdict.Own, Link: w.Link(n, "eth0", verdict.Uplink, false)})
			lan[n].Link.Domain = &verdict.Domain{Node: w.Node("node-a"), Name: "eth0"}
		}
		owner := func(i *verdict.Interface, claims ...*verdict.Claim) verdict.Owner {
			return verdict.Owner{ID: i.Namespace.ID, Node: i.Namespace.Node, Namespace: i.Namespace, Interface: i, MAC: i.MAC, State: verdict.Live, Assigned: true, Claims: claims}
		}
		var claims []*verdict.Claim
		if device != "" {
			attachment := verdict.Own
			if device == "lo" || device == "kube-ipvs0" {
				attachment = verdict.Local
			}
			claims = append(claims, assigned(w.Interface(w.Host("node-a"), verdict.Interface{Name: device, Attachment: attachment})))
		}
		claims = append(claims, &verdict.Claim{Kind: verdict.WouldAnswer, Interface: lan["node-a"], Network: on, PrefixLength: 29, Answer: answer})
		if answer.By == 0 {
			w.Node("node-a").SkewKnown, w.Node("node-b").SkewKnown = true, true
			seen := start.Add(time.Hour)
			claims[len(claims)-1] = &verdict.Claim{Kind: verdict.Used, Interface: lan["node-b"], Frame: verdict.Frame{MAC: lan["node-a"].MAC, Link: lan["node-b"].Link}, Times: verdict.Times{First: seen, Last: seen, Seen: seen}}
			o := owner(lan["node-a"], claims...)
			o.Assigned, o.Excluded = false, &verdict.Exclusion{Rule: verdict.RuleLoopbackOrDummy}
			return find(verdict.FindingAnsweredByAnother, nil, "192.0.2.12", []verdict.Owner{o, owner(lan["node-b"], assigned(lan["node-b"]))})
		}
		return find(verdict.FindingAnsweredByAnother, nil, "192.0.2.12", []verdict.Owner{owner(lan["node-a"], claims...), owner(lan["node-b"], assigned(lan["node-b"]))})
	}
	// A container on node-a answers on the LAN for the address on its lo.
	inside := answers("lo", "", verdict.KernelAnswer{})
	real := w.Interface(w.Namespace("node-a", 9, "9", verdicttest.Pod("real")), verdict.Interface{Name: "lo", Attachment: verdict.Local})
	inside.Owners[0].Namespace, inside.Owners[0].Interface, inside.Owners[0].ID = real.Namespace, real, real.Namespace.ID
	inside.Owners[0].Claims[0].Interface, inside.Owners[0].Claims[1].Kind = real, verdict.Announced
	// node-a, or a device without an agent, answers on the LAN although no kernel would.
	responds := func(outside bool) verdict.Finding {
		f := answers("", "", verdict.KernelAnswer{})
		o, has := &f.Owners[0], &f.Owners[1]
		o.Excluded, o.Claims[0].Kind = &verdict.Exclusion{Rule: verdict.RuleReachableVia, Proxy: verdict.ByOwnMAC}, verdict.Answered
		if outside {
			o.Namespace, o.MAC, o.Excluded.Proxy, o.Claims[0].MAC = nil, "\x02\x00\x00\x00\x00\x99", verdict.BySeveralOwners, "\x02\x00\x00\x00\x00\x99"
		}
		has.Node.Listed, o.Node.Listed = start, start
		return f
	}
	// node-a does so because of proxy_arp_pvlan.
	private := responds(false)
	private.Owners[0].Interface.PVLAN, private.Owners[0].Claims[0].MAC = true, private.Owners[0].MAC
	ipv6Route := answers("", "lo", verdict.KernelAnswer{By: verdict.ByRoute})
	ipv6Route.Address, ipv6Route.Owners[0].Claims[0].PrefixLength = netip.MustParseAddr("2001:db8::12"), 64
	fromBridge := answers("", "br10", verdict.KernelAnswer{By: verdict.ByNeighbour})
	fromBridge.Owners[0].Claims[0].Interface.Kind = "bridge"
	ruled := answers("", "lo", verdict.KernelAnswer{By: verdict.ByRule})
	ruled.Owners[0].Claims[0].PrefixLength = 0
	defaultRoute := answers("", "lo", verdict.KernelAnswer{By: verdict.ByRoute})
	defaultRoute.Owners[0].Claims[0].PrefixLength = 0
	// node-a answers as a proxy for an address that a container behind node-b has.
	behind := func(addr string, by verdict.AnswerSource) verdict.Finding {
		f := answers("", "veth7", verdict.KernelAnswer{By: by})
		f.Address, f.Owners[1] = netip.MustParseAddr(addr), holder(w, "node-b", "guest", "eth0")
		f.Owners[0].Claims[0].PrefixLength = uint8(f.Address.BitLen()) //nolint:gosec // 128 at most
		return f
	}
	// node-a has one subnet on two links.
	straddling := func(device string) verdict.Finding {
		prefix := netip.MustParsePrefix("10.244.0.0/24")
		side := func(device string) verdict.Side {
			return verdict.Side{Node: "node-a", Range: ipam.RangeOf(prefix), Device: device, Prefixes: []netip.Prefix{prefix}, Source: verdict.SideAddress}
		}
		port := w.Interface(w.Host("node-a"), verdict.Interface{Name: "wlan0", Attachment: verdict.Own, Uplink: true, Link: w.Link("node-a", "wlan0", verdict.Uplink, false)})
		guest := verdict.Owner{ID: "guest", Node: w.Node("node-a"), MAC: "\x02\x00\x00\x00\x00\x63", State: verdict.Live, Claims: []*verdict.Claim{{Kind: verdict.Announced, Interface: port, Frame: verdict.Frame{MAC: "\x02\x00\x00\x00\x00\x63", Link: port.Link}}}}
		f := find(verdict.FindingRangesOverlap, nil, "10.244.0.5", []verdict.Owner{owner, guest})
		f.Overlap = &verdict.Overlap{Range: ipam.RangeOf(prefix), Sides: [2]verdict.Side{side(device), side("wlan0")}, Nodes: []string{"node-a"}}
		return f
	}
	// The address is that of a Service, too.
	taken := func(owners []verdict.Owner, field ipam.ServiceField, endpoints ipam.Endpoints) verdict.Finding {
		services := &verdict.Pool{Pool: ipam.Pool{IPAM: vip.KubeProxy.Name, Traits: registry.Traits(vip.KubeProxy.Name), Name: "services", State: ipam.Known}}
		return find(verdict.FindingAnsweredByAnother, services, "10.244.0.5", owners, &verdict.Allocation{Allocation: ipam.Allocation{
			Purpose: "Service shop/api", Location: "services shop/api " + string(field),
			Service: &ipam.Redirect{Namespace: "shop", Name: "api", Field: field, Ports: "80/TCP,53/UDP", Endpoints: endpoints},
		}})
	}
	ranges := func(of, name, config string, field ipam.ServiceField) *verdict.Pool {
		return &verdict.Pool{Pool: ipam.Pool{
			IPAM: of, Traits: registry.Traits(of), Name: name, State: ipam.Known, Config: config, Services: field,
			Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.96.0.0/16"))},
		}}
	}
	// Another Service has the address and a common port.
	clash := func(f verdict.Finding, ports string) verdict.Finding {
		f.Kind = verdict.FindingDoubleAllocated
		f.Allocations = append(f.Allocations, &verdict.Allocation{Pool: f.Pool, Allocation: ipam.Allocation{
			Address: f.Address, Purpose: "Service shop/other", Location: "services shop/other " + string(ipam.Ingress),
			Service: &ipam.Redirect{Namespace: "shop", Name: "other", Field: ipam.Ingress, Ports: ports},
		}})
		return f
	}
	// Only the Kubernetes API knows the pod or node that has the address.
	listed := func(f verdict.Finding, al ipam.Allocation) verdict.Finding {
		al.Address = f.Address
		f.Allocations = append(f.Allocations, &verdict.Allocation{Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: podips.IPAM.Name, Traits: registry.Traits(podips.IPAM.Name), Name: podips.Pool}}, Allocation: al})
		return f
	}
	listedPod := ipam.Allocation{Namespace: "shop", Pod: "far", Node: "node-y", Location: "pods shop/far /status/podIPs"}
	listedNode := ipam.Allocation{Node: "node-z", Purpose: "InternalIP", Location: "nodes node-z /status/addresses"}
	orphan := func(phase string) verdict.Owner {
		o := holder(w, "node-h", "web-6c", "eth0")
		o.Orphaned, o.Pod = true, &verdict.PodObject{Namespace: "shop", Name: "web-6c", Node: "node-h", Phase: phase, Absent: phase == ""}
		return o
	}
	static := holder(w, "node-e", "proxy-node-e", "eth0")
	static.Pod = &verdict.PodObject{ControllerKind: "Node", Controller: "node-e", Node: "node-e"}
	machine := holder(w, "node-f", "virt-launcher-db", "eth0")
	machine.Pod = &verdict.PodObject{ControllerKind: "VirtualMachineInstance", Controller: "db", Node: "node-f"}
	guest := holder(w, "node-g", "virt-launcher-queue", "eth0")
	guest.Assigned, guest.MAC = false, "\x02\x00\x00\x00\x00\x0c"
	guest.Pod = &verdict.PodObject{ControllerKind: "VirtualMachineInstance", Controller: "queue", Node: "node-g", Namespace: "shop", Name: "virt-launcher-queue", VirtualMachine: "queue"}
	guest.Interface = w.Interface(w.Host("node-g"), verdict.Interface{Name: "vguest", Attachment: verdict.Own, Peer: guest.Namespace.Record})
	guest.Claims = []*verdict.Claim{{Kind: verdict.Announced, Interface: guest.Interface, Frame: verdict.Frame{MAC: guest.MAC}}}
	moved := find(verdict.FindingInUseUnallocated, lans, "192.0.2.3", []verdict.Owner{guest})
	moved.Past = []verdict.Past{{Owner: guest.ID, Kind: verdict.FindingBookedElsewhere, Since: start, Allocation: &verdict.Allocation{
		Pool: lans, Allocation: ipam.Allocation{Namespace: "shop", Pod: "virt-launcher-queue-before", Location: "ippools kube-system/192.0.2.0-29 /spec/allocations/3"},
	}}}
	uplink := w.Interface(w.Host("node-a"), verdict.Interface{Name: "eth0", Attachment: verdict.Own, Link: w.Link("node-a", "eth0", verdict.Uplink, false)})
	printer := verdict.Owner{ID: "52:54:00:00:00:09", Node: w.Node("node-a"), Interface: uplink, MAC: "\x52\x54\x00\x00\x00\x09", State: verdict.Live}
	printer.Claims = []*verdict.Claim{{Kind: verdict.Used, Interface: uplink, Frame: verdict.Frame{MAC: printer.MAC, Link: uplink.Link}}}
	onLAN := &verdict.Pool{Pool: ipam.Pool{IPAM: containers.DockerName, Traits: registry.Traits(containers.DockerName), Name: "/var/lib/docker/network/files/local-kv.db#lan", Served: ipam.Served{Network: "docker:lan"}, State: ipam.Known, Wiring: ipam.Wiring{Plugin: "macvlan", Device: "eth0"}}, Node: w.Node("node-a")}
	outside := find(verdict.FindingInUseUnallocated, onLAN, "192.168.1.9", []verdict.Owner{printer})
	outside.Severity = verdict.Warning
	kea := &verdict.Pool{Pool: ipam.Pool{IPAM: dhcp.KeaName, Traits: registry.Traits(dhcp.KeaName), Name: "/var/lib/kea/kea-leases4.csv#eth0", State: ipam.Known, Config: "/etc/kea/kea-dhcp4.conf"}, Node: w.Node("node-a")}
	declined := find(verdict.FindingInUseUnallocated, kea, "192.168.1.10", []verdict.Owner{machine}, &verdict.Allocation{KeptUntil: start.Add(24 * time.Hour)})
	declined.Severity = verdict.Warning
	return map[string]verdict.Finding{
		"in-use-unallocated kea, declined":             declined,
		"in-use-unallocated docker, of a machine":      outside,
		"in-use-unallocated whereabouts, of a guest":   moved,
		"booked-elsewhere whereabouts, of a guest":     find(verdict.FindingBookedElsewhere, lans, "192.0.2.3", []verdict.Owner{guest}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cam-1", ContainerID: otherID, Interface: "net1", Location: "ippools kube-system/192.0.2.0-29 /spec/allocations/3"}}),
		"double-allocated azure":                       find(verdict.FindingDoubleAllocated, azureFile, "10.241.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "web-5d"}}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "gone"}}),
		"booked-elsewhere calico, for a pod elsewhere": find(verdict.FindingBookedElsewhere, calico, "10.244.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cart-0", Node: "node-b", Location: "ipamblocks 10-244-0-0-26 /spec/allocations/5"}}),
		"booked-elsewhere calico, for a Service":       find(verdict.FindingBookedElsewhere, calico, "10.244.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{Purpose: "load balancer of Service shop/web", Location: "ipamblocks 10-244-0-0-26 /spec/allocations/5"}}),
		"in-use-unallocated calico, of a machine":      find(verdict.FindingInUseUnallocated, calico, "10.244.0.5", []verdict.Owner{machine}),
		"in-use-unallocated calico, of a static pod":   find(verdict.FindingInUseUnallocated, calico, "10.244.0.5", []verdict.Owner{static}),
		"in-use-unallocated calico, of a node":         find(verdict.FindingInUseUnallocated, calico, "192.168.1.10", self("eth0", "")),
		"in-use-unallocated calico, of a tunnel":       find(verdict.FindingInUseUnallocated, calico, "10.244.0.5", self("vxlan.calico", "vxlan")),
		"in-use-unallocated host-local, of a node":     find(verdict.FindingInUseUnallocated, pool, "10.244.0.5", self("eth0", "")),
		"booked-elsewhere calico, for another pod":     find(verdict.FindingBookedElsewhere, calico, "10.244.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cart-0", Node: "node-a", Location: "ipamblocks 10-244-0-0-26 /spec/allocations/5"}}),
		"booked-elsewhere calico, of a node":           find(verdict.FindingBookedElsewhere, calico, "192.168.1.10", self("eth0", ""), &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "web-5d", Node: "node-b", Location: "ipamblocks 192-168-1-0-26 /spec/allocations/10"}}),
		"booked-elsewhere calico, on two nodes":        find(verdict.FindingBookedElsewhere, calico, "192.168.1.10", append(self("eth0", ""), holder(w, "node-b", "web-5d", "eth0")), &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "web-5d", Node: "node-b", Location: "ipamblocks 192-168-1-0-26 /spec/allocations/10"}}),
		"in-use-unallocated host-local":                find(verdict.FindingInUseUnallocated, pool, "10.244.0.5", host),
		"in-use-unallocated host-local renamed":        find(verdict.FindingInUseUnallocated, renamed, "10.244.0.5", []verdict.Owner{ofFormer}),
		"in-use-unallocated host-local lost":           find(verdict.FindingInUseUnallocated, lostPool, "10.244.0.5", host),
		"in-use-unallocated host-local unknown":        find(verdict.FindingInUseUnallocated, pool, "10.244.0.5", []verdict.Owner{unknown}),
		"in-use-unallocated whereabouts":               remembers,
		"in-use-unallocated whereabouts, of a slice":   find(verdict.FindingInUseUnallocated, slice, "192.0.2.3", []verdict.Owner{lan}),
		"in-use-unallocated calico":                    find(verdict.FindingInUseUnallocated, calico, "10.244.0.5", host),
		"in-use-unallocated cilium":                    find(verdict.FindingInUseUnallocated, cilium, "10.244.0.5", host),
		"booked-elsewhere host-local":                  find(verdict.FindingBookedElsewhere, pool, "10.244.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{ContainerID: otherID, Interface: "eth0"}}),
		"booked-elsewhere whereabouts":                 find(verdict.FindingBookedElsewhere, lans, "192.0.2.3", []verdict.Owner{lan}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cam-1", ContainerID: otherID, Interface: "net1", Location: "ippools kube-system/192.0.2.0-29 /spec/allocations/3; overlappingrangeipreservations kube-system/192.0.2.3"}}),
		"booked-elsewhere calico":                      find(verdict.FindingBookedElsewhere, calico, "10.244.0.5", []verdict.Owner{stale}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "web-5d", Node: "template-0", Location: "ipamblocks 10-244-0-0-26 /spec/allocations/5"}, AllocatedAt: start}),
		"booked-elsewhere calico, nodename mended":     find(verdict.FindingBookedElsewhere, calico, "10.244.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "web-5d", Node: "template-0", Location: "ipamblocks 10-244-0-0-26 /spec/allocations/5"}}),
		"booked-elsewhere cilium":                      find(verdict.FindingBookedElsewhere, cilium, "10.244.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "old", Node: "node-a", Location: "ciliumendpoints shop/old /status/networking/addressing"}}),
		"leaked host-local":                            find(verdict.FindingLeaked, pool, "10.244.0.5", nil, &verdict.Allocation{Allocation: ipam.Allocation{ContainerID: otherID, Interface: "eth0"}, AllocatedAt: start}),
		"identity-mismatch":                            find(verdict.FindingIdentityMismatch, cilium, "10.244.0.5", host, &verdict.Allocation{Pool: cilium, Allocation: ipam.Allocation{Namespace: "shop", Pod: "old", Node: "node-b", Identity: 23407, Location: "ciliumendpoints shop/old /status/networking/addressing"}}),
		"identity-mismatch, of two":                    find(verdict.FindingIdentityMismatch, cilium, "10.244.0.5", host, &verdict.Allocation{Pool: cilium, Allocation: ipam.Allocation{Namespace: "shop", Pod: "db-0", Node: "node-b", Identity: 23407, Location: "ciliumendpoints shop/db-0 /status/networking/addressing"}}, &verdict.Allocation{Pool: cilium, Allocation: ipam.Allocation{Namespace: "shop", Pod: "old", Node: "node-b", Identity: 40001, Location: "ciliumendpointslices ces-x /endpoints of shop/old"}}),
		"leaked whereabouts":                           find(verdict.FindingLeaked, lans, "192.0.2.3", nil, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cam-1", ContainerID: otherID, Interface: "net1", Location: "ippools kube-system/192.0.2.0-29 /spec/allocations/3; overlappingrangeipreservations kube-system/192.0.2.3"}}),
		"leaked whereabouts of a named network":        find(verdict.FindingLeaked, lans6, "fd00::1:0", nil, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cam-1", Location: "ippools kube-system/blue-fd00---64 /spec/allocations/65536"}}),
		"in-use-unallocated whereabouts, far off":      find(verdict.FindingInUseUnallocated, lans6, "fd00:0:0:1::5", []verdict.Owner{lan}),
		"in-use-unallocated whereabouts, farthest":     find(verdict.FindingInUseUnallocated, whereaboutsPool("kube-system/wide---0", "::"), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", []verdict.Owner{lan}),
		"leaked calico":                                find(verdict.FindingLeaked, calico, "10.244.0.5", nil, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "old", Node: "node-a", Location: "ipamblocks 10-244-0-0-26 /spec/allocations/5"}}),
		"leaked cilium":                                find(verdict.FindingLeaked, cilium, "10.244.0.5", nil, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "old", Node: "node-a", Location: "ciliumendpoints shop/old /status/networking/addressing"}}),
		"double-allocated whereabouts":                 find(verdict.FindingDoubleAllocated, lans, "192.0.2.3", []verdict.Owner{lan}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cam-0", Location: "ippools kube-system/192.0.2.0-29 /spec/allocations/3"}}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cam-1", Location: "ippools kube-system/192.0.2.0-28 /spec/allocations/3"}}),
		"double-allocated kubernetes":                  find(verdict.FindingDoubleAllocated, api, "10.244.0.5", nil, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "a", Node: "node-a", Location: "pods shop/a /status/podIPs"}}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "b", Node: "node-b", Location: "pods shop/b /status/podIPs"}}),
		"leaked kube-ovn":                              find(verdict.FindingLeaked, overlay, "10.16.0.5", nil, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cart-0", Node: "node-a", Location: "ips cart-0.shop"}}),
		"in-use-unallocated kube-ovn":                  find(verdict.FindingInUseUnallocated, overlay, "10.16.0.5", host),
		"booked-elsewhere kube-ovn":                    find(verdict.FindingBookedElsewhere, overlay, "10.16.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "cart-0", Node: "node-a", Location: "ips cart-0.shop"}}),
		"in-use-unallocated spiderpool":                find(verdict.FindingInUseUnallocated, &verdict.Pool{Pool: ipam.Pool{IPAM: spiderpool.IPAM.Name, Traits: registry.Traits(spiderpool.IPAM.Name), Name: "v4pool", State: ipam.Known}}, "10.6.168.101", []verdict.Owner{lan}),
		"double-allocated kube-ovn, for a machine":     find(verdict.FindingDoubleAllocated, overlay, "10.16.0.5", host, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "web-5d", Location: "ips web-5d.shop"}}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "db", Kept: true, Location: "ips db.shop"}}),
		"double-allocated kube-ovn, for two machines":  find(verdict.FindingDoubleAllocated, overlay, "10.16.0.5", nil, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "db", Kept: true, Location: "ips db.shop"}}, &verdict.Allocation{Allocation: ipam.Allocation{Namespace: "shop", Pod: "queue", Kept: true, Location: "ips queue.shop"}}),
		"intended-not-observed":                        intended,
		"intended-not-observed, looped":                looped,
		"address-spoofed":                              spoofed(w, verdict.FindingAddressSpoofed),
		"mac-cloned":                                   spoofed(w, verdict.FindingMACCloned),
		"mac-cloned, a machine outside":                copied(w),
		"mac-cloned, one machine on two nodes":         copies(w),
		"mac-cloned, two machines":                     twins(w, "\x52\x54\x00\xaa\xbb\xcc", "eth0", ""),
		"mac-cloned, two VXLAN devices":                twins(w, "\xfe\x22\x77\xeb\x2f\xa1", "flannel.1", "vxlan"),
		"mac-cloned, two virtual routers":              twins(w, "\x00\x00\x5e\x00\x01\x33", "eth0", ""),
		"reused-too-soon":                              reusedAddress(find(verdict.FindingReusedTooSoon, nil, "10.244.0.5", host), holder(w, "node-b", "cart-0", "eth0"), 4*time.Second),
		"reused-too-soon aws-vpc, at once":             reusedAddress(find(verdict.FindingReusedTooSoon, &verdict.Pool{Pool: ipam.Pool{IPAM: awsvpc.Name, Traits: registry.Traits(awsvpc.Name), Name: "/var/run/aws-node/ipam.json"}, Node: owner.Node}, "10.244.0.5", host), holder(w, "node-a", "cart-0", "eth0"), -time.Millisecond),
		"answered-by-another lo":                       answers("lo", "lo", verdict.KernelAnswer{By: verdict.ByAddress}),
		"answered-by-another kube-ipvs0":               answers("kube-ipvs0", "kube-ipvs0", verdict.KernelAnswer{By: verdict.ByAddress}),
		"answered-by-another docker0":                  answers("docker0", "docker0", verdict.KernelAnswer{By: verdict.ByAddress}),
		"answered-by-another virbr0":                   answers("virbr0", "virbr0", verdict.KernelAnswer{By: verdict.ByAddress}),
		"answered-by-another eth1":                     answers("eth1", "eth1", verdict.KernelAnswer{By: verdict.ByAddress}),
		"answered-by-another route":                    answers("", "eth0", verdict.KernelAnswer{By: verdict.ByRoute}),
		"answered-by-another requests":                 answers("lo", "", verdict.KernelAnswer{}),
		"answered-by-another container":                inside,
		"answered-by-another program":                  responds(false),
		"answered-by-another outside":                  responds(true),
		"answered-by-another IPv6 route":               ipv6Route,
		"answered-by-another default route":            defaultRoute,
		"answered-by-another pvlan":                    private,
		"answered-by-another rule":                     ruled,
		"answered-by-another proxy":                    answers("", "eth0", verdict.KernelAnswer{By: verdict.ByProxyARP}),
		"answered-by-another behind":                   behind("10.0.3.7", verdict.ByProxyARP),
		"answered-by-another behind, by an entry":      behind("fd00::7", verdict.ByProxyEntry),
		"stale-belief":                                 believed(find(verdict.FindingStaleBelief, nil, "10.244.0.5", host), holder(w, "node-a", "front-0", "eth0"), verdict.EntryInUse, true),
		"stale-belief, relayed":                        relayed(believed(find(verdict.FindingStaleBelief, nil, "10.244.0.5", host), holder(w, "node-a", "front-0", "eth0"), verdict.EntryInUse, true)),
		"stale-belief, permanent":                      believed(find(verdict.FindingStaleBelief, nil, "10.244.0.5", host), holder(w, "node-a", "front-0", "eth0"), verdict.EntryPermanent, false),
		"stale-belief, IPv6":                           ofCard(believed(find(verdict.FindingStaleBelief, nil, "fd00::5", self("eth0", "")), holder(w, "node-b", "front-0", "eth0"), verdict.EntryInUse, true)),
		"stale-belief, announced":                      announcing(find(verdict.FindingStaleBelief, nil, "192.0.2.50", self("eth0", ""))),
		"stale-belief, of a tunnel":                    tunnelled(believed(find(verdict.FindingStaleBelief, nil, "10.244.2.0", self("flannel.1", "vxlan")), self("flannel.1", "vxlan")[0], verdict.EntryPermanent, true)),
		"endpoint-of-former-owner":                     misdirected(find(verdict.FindingEndpointOfFormerOwner, nil, "10.244.0.5", host), ipam.EndpointController, ipam.EndpointController),
		"endpoint-of-former-owner, by others":          misdirected(find(verdict.FindingEndpointOfFormerOwner, nil, "10.244.0.5", host), "", "linkerd-failover.example"),
		"nat-to-former-owner":                          translated(find(verdict.FindingNATToFormerOwner, nil, "10.244.0.5", host), holder(w, "node-b", "front-0", "eth0"), true),
		"nat-to-former-owner, unknown":                 translated(find(verdict.FindingNATToFormerOwner, nil, "fd00::5", host), holder(w, "node-b", "front-0", "eth0"), false),
		"ranges-overlap of a hotspot":                  straddling("cni0"),
		"ranges-overlap of docker":                     straddling("docker0"),
		"answered-by-another cluster IP":               taken(host, ipam.ClusterIP, ipam.SomeEndpoints),
		"answered-by-another external IP":              taken(self("eth0", ""), ipam.ExternalIP, ipam.NoEndpoints),
		"answered-by-another load balancer":            taken(host, ipam.Ingress, ipam.EndpointsUnknown),
		"double-allocated services":                    clash(taken(nil, ipam.ExternalIP, ipam.SomeEndpoints), "80/TCP"),
		"answered-by-another listed pod":               listed(taken(nil, ipam.ExternalIP, ipam.SomeEndpoints), listedPod),
		"answered-by-another listed node":              listed(taken(nil, ipam.ClusterIP, ipam.SomeEndpoints), listedNode),
		"in-use-unallocated listed node":               listed(find(verdict.FindingInUseUnallocated, ranges(vip.MetalLB.Name, "IPAddressPool metallb-system/first", "ipaddresspools metallb-system/first", ipam.Ingress), "10.96.3.5", nil), listedNode),
		"double-allocated node":                        listed(listed(find(verdict.FindingDoubleAllocated, api, "10.0.2.15", nil), listedPod), listedNode),
		"answered-by-another neigh":                    answers("", "eth0", verdict.KernelAnswer{By: verdict.ByProxyEntry}),
		"answered-by-another neigh_suppress":           fromBridge,
		"answered-by-another vxlan":                    answers("", "vx10", verdict.KernelAnswer{By: verdict.ByNeighbour}),
		"answered-by-another filtered":                 answers("lo", "lo", verdict.KernelAnswer{By: verdict.ByAddress, Filter: verdict.FilterRules}),
		"answered-by-another unreadable filter":        answers("lo", "lo", verdict.KernelAnswer{By: verdict.ByAddress, Filter: verdict.FilterUnreadable}),
		"in-use-unallocated by a cluster IP":           find(verdict.FindingInUseUnallocated, ranges(vip.KubeProxy.Name, "ServiceCIDR kubernetes", "servicecidrs kubernetes", ipam.ClusterIP), "10.96.3.5", host),
		"in-use-unallocated by MetalLB":                find(verdict.FindingInUseUnallocated, ranges(vip.MetalLB.Name, "IPAddressPool metallb-system/first", "ipaddresspools metallb-system/first", ipam.Ingress), "10.96.3.5", self("eth0", "")),
		"in-use-unallocated by a load balancer cilium": find(verdict.FindingInUseUnallocated, ranges("cilium", "CiliumLoadBalancerIPPool blue", "ciliumloadbalancerippools blue", ipam.Ingress), "10.96.3.5", host),
		"in-use-unallocated by a load balancer calico": find(verdict.FindingInUseUnallocated, ranges("calico", "BGPConfiguration default", "bgpconfigurations default", ipam.Ingress), "10.96.3.5", host),
		"double-allocated nodes": find(verdict.FindingDoubleAllocated, api, "10.0.2.15", self("eth0", ""), &verdict.Allocation{Allocation: ipam.Allocation{Node: "node-a", Purpose: "InternalIP", Location: "nodes node-a /status/addresses"}},
			&verdict.Allocation{Allocation: ipam.Allocation{Node: "node-z", Purpose: "InternalIP", Location: "nodes node-z /status/addresses"}}),
		"orphaned-sandbox":                          find(verdict.FindingOrphanedSandbox, nil, "10.244.0.5", []verdict.Owner{orphan("")}),
		"orphaned-sandbox, whose address is free":   find(verdict.FindingOrphanedSandbox, &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: "/var/lib/cni/networks/cbr0", State: ipam.Known}, Node: w.Node("node-h")}, "10.244.0.5", []verdict.Owner{orphan("")}),
		"orphaned-sandbox, of a pod that has ended": find(verdict.FindingOrphanedSandbox, nil, "10.244.0.5", []verdict.Owner{orphan("Succeeded")}),
		"shared-address-answered":                   find(verdict.FindingSharedAddressAnswered, nil, "10.96.0.10", []verdict.Owner{local("node-a", verdict.Claim{Kind: verdict.Answered}), local("node-b", verdict.Claim{Kind: verdict.WouldAnswer})}),
		"shared-address-answered of proxies":        find(verdict.FindingSharedAddressAnswered, nil, "192.0.2.200", []verdict.Owner{proxy("node-a"), proxy("node-b")}),
		"shared-address-answered of bridges":        find(verdict.FindingSharedAddressAnswered, nil, "172.17.0.1", []verdict.Owner{bridged("node-a"), bridged("node-b")}),
		"vip-held-elsewhere kube-vip":               virtual(w, vip.KubeVIP.Name, true, true),
		"vip-held-elsewhere kube-vip, by it alone":  virtual(w, vip.KubeVIP.Name, true, false),
		"vip-held-elsewhere metallb":                virtual(w, vip.MetalLB.Name, false, true),
		"vip-held-elsewhere egressip":               virtual(w, vip.EgressIP.Name, true, false),
		"vip-held-elsewhere of two controllers":     ofTwoControllers(w),
		"in-use-unallocated of an unknown owner":    find(verdict.FindingInUseUnallocated, nil, "10.244.0.5", nil),
	}
}

// translated completes a finding about connections that nodes send to an address. known is set if the former owner is known.
func translated(f verdict.Finding, sender verdict.Owner, known bool) verdict.Finding {
	at := func(text string) netip.AddrPort {
		if f.Address.Is6() {
			text = "[fd00::" + strings.ReplaceAll(text, ":", "]:")
		}
		return netip.MustParseAddrPort(text)
	}
	from, to := "10.244.0.9:4000", "10.96.0.10:80"
	if f.Address.Is6() {
		from, to = "9:4000", "10:80"
	}
	one := verdict.Translation{Node: f.Owners[0].Node, Protocol: "tcp", From: at(from), To: at(to), Port: 8080, Existed: start, Sender: &sender}
	f.Translations = []verdict.Translation{one}
	if known {
		was := sender
		was.Claims, was.Interface = nil, &verdict.Interface{Name: "eth0", Namespace: was.Namespace}
		f.Former = &verdict.Former{Owner: was, Until: start}
		other := one
		other.Protocol, other.Zone, other.Sender = "udp", 7, nil
		f.Translations = append(f.Translations, other)
		other.Node = sender.Node
		f.Translations = append(f.Translations, other)
	}
	return f
}

// reusedAddress completes a finding about an address that another owner had before. gap is the time
// between the two.
func reusedAddress(f verdict.Finding, was verdict.Owner, gap time.Duration) verdict.Finding {
	was.Claims = nil
	if was.Node.Name == f.Owners[0].Node.Name {
		was.MAC = f.Owners[0].MAC
	}
	f.Severity = verdict.Warning
	f.Former = &verdict.Former{Owner: was, Until: start, Next: f.Owners[0].ID, Since: start.Add(gap)}
	return f
}

// virtual returns a finding about a virtual address that a controller assigns to node-b, and that
// node-a holds in its kernel or on the wire only. both is set if node-b holds it, too.
func virtual(w *verdicttest.Network, of string, kernel, both bool) verdict.Finding {
	held := func(node string) verdict.Owner {
		ns := w.Host(node)
		i := w.Interface(ns, verdict.Interface{Name: "eth0", Attachment: verdict.Own, MAC: verdict.MAC("uplink" + node), Link: w.Link(node, "eth0", verdict.Uplink, false)})
		c := assigned(i)
		if !kernel {
			c.Kind, c.Frame = verdict.Announced, verdict.Frame{MAC: i.MAC, Link: i.Link}
		}
		return verdict.Owner{ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: i, MAC: i.MAC, State: verdict.Live, Assigned: kernel, Claims: []*verdict.Claim{c}}
	}
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: "addresses", State: ipam.Known}}
	f := verdict.Finding{
		ID: "x", Kind: verdict.FindingVIPHeldElsewhere, Severity: verdict.Critical, Address: netip.MustParseAddr("192.0.2.50"), Pool: p,
		Allocations: []*verdict.Allocation{{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr("192.0.2.50"), Node: "node-b", Purpose: "Service shop/web", Location: "services shop/web"}}},
		Owners:      []verdict.Owner{held("node-a")}, Since: start,
	}
	if both {
		f.Owners = append(f.Owners, held("node-b"))
	}
	return f
}

// ofTwoControllers returns a finding about a virtual address that another controller assigns to the node that holds it.
func ofTwoControllers(w *verdicttest.Network) verdict.Finding {
	f := virtual(w, vip.KubeVIP.Name, true, true)
	f.Allocations = append(f.Allocations, &verdict.Allocation{
		Pool:       &verdict.Pool{Pool: ipam.Pool{IPAM: vip.MetalLB.Name, Traits: registry.Traits(vip.MetalLB.Name), Name: "services", State: ipam.Known}},
		Allocation: ipam.Allocation{Address: f.Address, Node: "node-a", Purpose: "Service shop/web", Location: "servicel2statuses metallb-system/l2-x /status/node"},
	})
	return f
}

// misdirected adds an endpoint for the former pod with each manager of its slice.
func misdirected(f verdict.Finding, managers ...string) verdict.Finding {
	for i, manager := range managers {
		f.Endpoints = append(f.Endpoints, ipam.Endpoint{
			Service: ipam.Key{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Slice: fmt.Sprint("web-", i, "-x7k2p"), Manager: manager,
			Pod: ipam.Key{Namespace: "shop", Name: "cart-0"}, UID: "4203561e-1821-45b6-a68a-d4619be90320",
		})
	}
	return f
}

// spoofed returns a finding about frames that a pod sends with the address of another pod.
func spoofed(w *verdicttest.Network, kind string) verdict.Finding {
	victim, sender := holder(w, "node-a", "web-5d", "eth0"), holder(w, "node-a", "evil", "eth0")
	sender.Namespace.ID, sender.ID = "evil", "evil"
	port := w.Interface(w.Host("node-a"), verdict.Interface{Name: "veth7", Attachment: verdict.Own, Link: w.Link("node-a", "cni0", verdict.Bridge, true), Peer: 3})
	port.Index = 7
	s := &verdict.Spoof{
		Port: port, Link: port.Link, Sender: sender.Namespace, Owner: sender, Victims: []verdict.Owner{victim}, MACs: []verdict.MAC{victim.MAC},
		First: start, Last: start.Add(time.Minute), Count: 7, Exposed: []*verdict.Namespace{w.Namespace("node-a", 4, "4026532400", verdict.Workload{Kind: verdict.Pod, Namespace: "shop", Name: "cart-0"})},
	}
	f := verdict.Finding{ID: "x", Kind: kind, Severity: verdict.Critical, Owners: append([]verdict.Owner{s.Owner}, s.Victims...), Spoof: s, Since: start}
	if kind == verdict.FindingMACCloned {
		s.Addresses = []netip.Addr{netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("10.244.0.9")}
	} else {
		f.Address, s.MACs = netip.MustParseAddr("10.244.0.5"), []verdict.MAC{"\x02\x00\x00\x00\x00\x07"}
	}
	return f
}

// copied returns a finding about frames of a machine outside with the MAC of a pod.
func copied(w *verdicttest.Network) verdict.Finding {
	victim := holder(w, "node-a", "web-5d", "net1")
	eth0 := w.Uplink("node-a")
	frame := &verdict.Claim{Kind: verdict.Used, Interface: eth0, Frame: verdict.Frame{MAC: victim.MAC, Link: eth0.Link, FromOutside: true}}
	s := &verdict.Spoof{
		Port: eth0, Link: eth0.Link, Owner: verdict.Owner{ID: "outside", Node: victim.Node, Interface: eth0, MAC: victim.MAC, Claims: []*verdict.Claim{frame}},
		Victims: []verdict.Owner{victim}, MACs: []verdict.MAC{victim.MAC}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")},
		First: start, Last: start.Add(time.Minute), Count: 7,
	}
	f := audit.Clone(&verdict.Policy{}, s)
	f.ID, f.Since = "x", start
	return f
}

// copies returns the finding about a virtual machine that runs on two nodes.
func copies(w *verdicttest.Network) verdict.Finding {
	f := verdict.Finding{Kind: verdict.FindingMACCloned, Severity: verdict.Critical, Address: netip.MustParseAddr("192.0.2.80"), Since: start}
	for i, node := range []string{"node-a", "node-b"} {
		port := w.Interface(w.Host(node), verdict.Interface{Name: "vnet0", Kind: "tun", Tap: true, Attachment: verdict.Own, Link: w.Link(node, "br0", verdict.Bridge, false)})
		c := &verdict.Claim{Kind: verdict.Used, Interface: port, Frame: verdict.Frame{MAC: "\x52\x54\x00\x00\x00\x80", Link: port.Link, Alone: true}}
		c.Last = start.Add(time.Duration(i) * time.Second)
		f.Owners = append(f.Owners, verdict.Owner{ID: "52:54:00:00:00:80", Node: w.Node(node), Interface: port, MAC: c.MAC, State: verdict.Live, Claims: []*verdict.Claim{c}})
	}
	f.Spoof = &verdict.Spoof{Port: f.Owners[0].Interface, Link: f.Owners[0].Interface.Link, Owner: f.Owners[0], Victims: f.Owners[1:], MACs: []verdict.MAC{f.Owners[0].MAC}, Addresses: []netip.Addr{f.Address}}
	return f
}

// twins returns a finding about one MAC on two nodes.
func twins(w *verdicttest.Network, mac verdict.MAC, name, kind string) verdict.Finding {
	var all []audit.MACHolder
	for i, node := range []string{"node-a", "node-b"} {
		on := w.Interface(w.Host(node), verdict.Interface{Name: name, Kind: kind, Attachment: verdict.Own, MAC: mac, Link: w.Link("node-a", name, verdict.Uplink, false)})
		all = append(all, audit.MACHolder{Interface: on, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(11 + i)})}})
	}
	f := audit.Twins(&verdict.Policy{}, mac, all)[0]
	f.ID, f.Since = "x", start
	return f
}

// TestFindingTexts compares the texts of findings with testdata/texts; -update writes them.
func TestFindingTexts(t *testing.T) {
	for name, f := range findings() {
		t.Run(name, func(t *testing.T) {
			use := verdict.PoolUse{}
			if f.Kind == verdict.FindingLeaked {
				use = verdict.PoolUse{Size: 5, Allocated: 4, Leaked: 3, ExhaustedIn: 5400}
			}
			wantText(t, name, explain.Finding(&f, use))
		})
	}
}

// ofPool returns the text of a finding about a pool.
func ofPool(kind string, p *verdict.Pool, use verdict.PoolUse, atRisk []verdict.Held) explain.FindingText {
	return explain.Finding(&verdict.Finding{ID: "x", Kind: kind, Pool: p, Stock: &verdict.Stock{Use: use, AtRisk: atRisk}}, verdict.PoolUse{})
}

func TestTextsOfPoolFindings(t *testing.T) {
	w := verdicttest.NewNetwork()
	pool := hostLocal(w, "node-a", "/var/lib/cni/networks/cbr0")
	pool.State, pool.LostAt, pool.Lost = ipam.Missing, start, 12
	var atRisk []verdict.Held
	for i := range 60 {
		o := holder(w, "node-a", fmt.Sprintf("web-%d", i), "eth0")
		atRisk = append(atRisk, verdict.Held{Address: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 2)}), Owner: &o})
	}
	wantText(t, "ipam-state-lost host-local", ofPool(verdict.FindingIPAMStateLost, pool, verdict.PoolUse{}, atRisk))
	lans := whereaboutsPool("kube-system/192.0.2.0-29", "192.0.2.0")
	bridge := &verdict.Pool{Pool: ipam.Pool{IPAM: containers.DockerName, Traits: registry.Traits(containers.DockerName), Name: "/var/lib/docker/network/files/local-kv.db#bridge", Served: ipam.Served{Network: "docker:bridge"}, State: ipam.Missing}, Node: w.Node("node-a")}
	box := holder(w, "node-a", "web", "eth0")
	box.Namespace.Who, box.Pod = verdict.Workload{Kind: verdict.Container, Name: "web", ContainerID: otherID}.Who(), nil
	wantText(t, "ipam-state-lost docker", ofPool(verdict.FindingIPAMStateLost, bridge, verdict.PoolUse{}, []verdict.Held{{Address: netip.MustParseAddr("172.17.0.2"), Owner: &box}}))
	wantText(t, "ipam-state-lost whereabouts", ofPool(verdict.FindingIPAMStateLost, lans, verdict.PoolUse{}, atRisk[:1]))
	lans.State, lans.Problem = ipam.Missing, "IPPool kube-system/192.0.2.0-29 is gone"
	wantText(t, "ipam-state-lost whereabouts, the IPPool is gone", ofPool(verdict.FindingIPAMStateLost, lans, verdict.PoolUse{}, atRisk[:1]))
	lans.State, lans.Problem = ipam.Known, ""
	wantText(t, "pool-exhaustion whereabouts", ofPool(verdict.FindingPoolExhaustion, lans, verdict.PoolUse{Size: 5, Allocated: 5, Leaked: 3}, nil))
	pool.State, pool.Problem = ipam.Unreadable, "permission denied"
	wantText(t, "ipam-unreadable host-local", ofPool(verdict.FindingIPAMUnreadable, pool, verdict.PoolUse{}, nil))
	invalid := &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "default-ipv4-ippool", State: ipam.Known, Problem: "block 10.244.0.0/26 is bound to node old-1, which does not exist"}}
	wantText(t, "ipam-unreadable calico, invalid", ofPool(verdict.FindingIPAMUnreadable, invalid, verdict.PoolUse{}, nil))
}

// overlap returns the text of an overlap.
func overlap(kind string, a, b verdict.Side, nodes ...string) explain.FindingText {
	return explain.Finding(&verdict.Finding{ID: "x", Kind: kind, Overlap: &verdict.Overlap{Sides: [2]verdict.Side{a, b}, Nodes: nodes}}, verdict.PoolUse{})
}

func TestTextsOfOverlaps(t *testing.T) {
	wantText(t, "pod-cidr-overlap", overlap(verdict.FindingPodCIDROverlap,
		verdict.Side{Node: "node-a", Prefixes: verdicttest.Prefixes("10.244.1.0/24"), Source: verdict.SideNodeSpec},
		verdict.Side{Node: "node-b", Prefixes: verdicttest.Prefixes("10.244.0.0/16"), Source: verdict.SideAddress, Device: "cni0", MadeByPlugin: true, Config: "/etc/cni/net.d/10-containerd-net.conflist"},
		"node-a", "node-b"))
	pool := verdict.Side{Node: "node-b", Network: "cbr0", Config: "/etc/cni/net.d/10-a.conflist", Ranges: []ipam.Range{{First: netip.MustParseAddr("10.244.7.2"), Last: netip.MustParseAddr("10.244.7.254")}}, Source: verdict.SidePool, IPAM: hostlocal.Name}
	held := verdict.Side{Node: "node-a", Device: "eth0", Range: ipam.Range{First: netip.MustParseAddr("10.244.7.9")}, Prefixes: verdicttest.Prefixes("10.244.7.9/32"), Source: verdict.SideHeld}
	wantText(t, "pod-cidr-overlap, outside of its range", overlap(verdict.FindingPodCIDROverlap, pool,
		verdict.Side{Node: "node-b", Prefixes: verdicttest.Prefixes("10.244.9.0/24"), Source: verdict.SideNodeSpec}, "node-b"))
	wantText(t, "pod-cidr-overlap with an address of a node", overlap(verdict.FindingPodCIDROverlap, pool, held, "node-a", "node-b"))
	held.Network, held.Device = "cbr0", ""
	wantText(t, "pod-cidr-overlap with an address of a pod", overlap(verdict.FindingPodCIDROverlap, held, pool, "node-a", "node-b"))
	held.Network = ""
	wantText(t, "pod-cidr-overlap with an address of a node without an agent", overlap(verdict.FindingPodCIDROverlap, pool, held, "node-a", "node-b"))
	lan := verdict.LinkKey{Node: verdict.NodeKey{Name: "node-a"}, Name: "eth0"}
	macvlan := func(node, device string) verdict.Side {
		return verdict.Side{Node: node, Network: "lan", Device: device, LAN: lan, Config: "/etc/cni/net.d/20-lan.conf", Ranges: []ipam.Range{{First: netip.MustParseAddr("192.0.2.100"), Last: netip.MustParseAddr("192.0.2.254")}}, Source: verdict.SidePool, IPAM: hostlocal.Name}
	}
	wantText(t, "pod-cidr-overlap on a LAN", overlap(verdict.FindingPodCIDROverlap, macvlan("node-a", "eth0"), macvlan("node-b", "ens3"), "node-a", "node-b", "node-c"))
	one, two := macvlan("node-a", "eth0"), macvlan("node-b", "ens3")
	one.Unused, two.Unused = true, true
	wantText(t, "pod-cidr-overlap on a LAN, not used yet", overlap(verdict.FindingPodCIDROverlap, one, two, "node-a", "node-b"))
	onLAN := verdict.Side{Node: "node-a", Device: "eth0", LAN: lan, Range: ipam.Range{First: netip.MustParseAddr("192.0.2.111")}, Prefixes: verdicttest.Prefixes("192.0.2.111/32"), Source: verdict.SideHeld}
	wantText(t, "pod-cidr-overlap on a LAN with an address of a node", overlap(verdict.FindingPodCIDROverlap, macvlan("node-b", "ens3"), onLAN, "node-a", "node-b"))
	wantText(t, "pod-cidr-overlap cilium", overlap(verdict.FindingPodCIDROverlap,
		verdict.Side{Node: "node-a", Prefixes: verdicttest.Prefixes("10.0.1.0/24"), Config: "ciliumnodes node-a", Source: verdict.SideNodeObject, IPAM: cilium.IPAM.Name},
		verdict.Side{Node: "node-b", Prefixes: verdicttest.Prefixes("10.0.1.0/24"), Config: "ciliumnodes node-b", Source: verdict.SideNodeObject, IPAM: cilium.IPAM.Name},
		"node-a", "node-b", "node-c"))
	r := func(first, last string) ipam.Range {
		return ipam.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	}
	multi := func(node string) verdict.Side {
		return verdict.Side{Node: node, Ranges: []ipam.Range{r("10.0.1.1", "10.0.1.254")}, Config: "ciliumnodes " + node, Source: verdict.SideNodeObject, IPAM: cilium.IPAM.Name, Grows: true}
	}
	wantText(t, "pod-cidr-overlap cilium multi-pool", overlap(verdict.FindingPodCIDROverlap, multi("node-a"), multi("node-b"), "node-a", "node-b"))
	wantText(t, "ranges-overlap", overlap(verdict.FindingRangesOverlap,
		verdict.Side{Node: "node-a", Network: "cbr0", Config: "/etc/cni/net.d/10-a.conflist", Device: "cni0", Ranges: []ipam.Range{r("10.88.0.2", "10.88.0.254")}, Source: verdict.SidePool, IPAM: hostlocal.Name},
		verdict.Side{Node: "node-a", Network: "podman", Config: "/etc/cni/net.d/87-podman.conflist", Device: "cni-podman0", Ranges: []ipam.Range{r("10.88.0.128", "10.88.255.254")}, Source: verdict.SidePool, IPAM: hostlocal.Name},
		"node-a"))
	onBridge := func(network string) verdict.Side {
		return verdict.Side{Node: "node-a", Network: network, Config: "/etc/cni/net.d/10-" + network + ".conflist", Device: "cni0", Ranges: []ipam.Range{r("10.88.0.2", "10.88.0.254")}, Source: verdict.SidePool, IPAM: hostlocal.Name}
	}
	wantText(t, "ranges-overlap on one bridge", overlap(verdict.FindingRangesOverlap, onBridge("cbr0"), onBridge("pods"), "node-a"))
	divided := func(name string, ranges ...ipam.Range) verdict.Side {
		return verdict.Side{Pool: "CiliumPodIPPool " + name, Ranges: ranges, Config: "ciliumpodippools " + name, Source: verdict.SideDivided, IPAM: cilium.IPAM.Name}
	}
	wantText(t, "ranges-overlap of pools that nodes get ranges from", overlap(verdict.FindingRangesOverlap,
		divided("blue", r("10.20.0.0", "10.20.255.255"), r("10.30.0.0", "10.30.255.255")), divided("green", r("10.20.128.0", "10.20.255.255"))))
}

func TestTextsOfNodesWithTheSameName(t *testing.T) {
	two := func(boot string) explain.FindingText {
		return explain.Finding(&verdict.Finding{ID: "x", Kind: verdict.FindingDuplicateNodeName, Namesakes: &verdict.Namesakes{Name: "node-a", Machines: []verdict.Machine{
			{Name: "node-a", Boot: "b1", Netns: "1", Kernel: "6.12", Version: "1.0", Since: start},
			{Name: "node-a@b2", Boot: boot, Netns: "2", Kernel: "6.1", Version: "1.0", Since: start},
		}}}, verdict.PoolUse{})
	}
	wantText(t, "duplicate-node-name", two("b2"))
	wantText(t, "duplicate-node-name of one machine", two("b1"))
}

// Each problem of a node has a text.
func TestProblemsOfNodes(t *testing.T) {
	ns := verdicttest.NewNetwork().Namespace("node-a", 2, "4026532397", verdict.Workload{Kind: verdict.Pod, Namespace: "shop", Name: "cart-0"})
	text := explain.FindingText{Summary: "The problems of nodes.", Advice: advice.Advice{Evidence: []string{
		explain.Text("shared-name", "name", "node-a", "others", explain.Names([]string{"node-a@b2", "node-a@b3"}), "finding", "abc"),
		explain.Text("shared-place", "others", "node-b"),
		explain.Flood("veth7", ns, 5, start, 3),
		explain.Flood("veth7", nil, 5, start, 3),
		explain.Unparsed(1, 2, 3),
		explain.Text("no-memory", "records", 1, "sightings", 2, "used", 3, "limit", 4),
		explain.Text("too-many-claims", "dropped", 1, "limit", 250_000),
		explain.Text("corrected", "fields", explain.Fields(map[string]int{"Workload.name": 1})),
		explain.Unparsed(0, 0, 0),
	}}}
	wantText(t, "problems of nodes", text)
}

// written appends actions as text and has a shell parse each command.
func written(t *testing.T, b []byte, margin string, actions []advice.Action) []byte {
	t.Helper()
	for i, a := range actions {
		b = fmt.Appendf(b, "%s%d. %s\n", margin, i+1, a.Text)
		if a.Command != "" {
			b = fmt.Appendf(b, "%s   [%s] %s\n", margin, a.Node, a.Command)
			if out, err := exec.Command("sh", "-n", "-c", a.Command).CombinedOutput(); err != nil {
				t.Errorf("the shell cannot read the command: %v: %s\n%s", err, out, a.Command)
			}
		}
		for k, alternative := range a.Choice {
			b = fmt.Appendf(b, "%s   %c) %s:\n", margin, 'a'+rune(k), alternative.When)
			b = written(t, b, margin+"      ", alternative.Actions)
		}
	}
	return b
}

// wantText compares a text with its file, and has a shell parse each command.
// condition is how a line of a text says when it applies.
var condition = regexp.MustCompile(`(?m)(^|\. )\[!?[a-z0-9]+\] `)

func wantText(t *testing.T, name string, text explain.FindingText) {
	t.Helper()
	var b []byte
	if condition.MatchString(text.Summary + "\n" + strings.Join(text.Evidence, "\n")) {
		t.Errorf("%s: a condition was taken for a part of the text: %s %q", name, text.Summary, text.Evidence)
	}
	b = fmt.Appendf(b, "%s\n\nEvidence:\n", text.Summary)
	for _, e := range text.Evidence {
		b = fmt.Appendf(b, "- %s\n", e)
	}
	b = append(b, "\nRemedy:\n"...)
	b = written(t, b, "", text.Remedy)
	for _, f := range text.Fixes {
		b = fmt.Appendf(b, "\nFix (node %q, by hand %v): %s\n%s\n", f.Node, f.Manual, f.What, f.Command)
		if out, err := exec.Command("sh", "-n", "-c", f.Command).CombinedOutput(); err != nil {
			t.Errorf("the shell cannot read the command: %v: %s\n%s", err, out, f.Command)
		}
	}
	compare(t, "texts/"+strings.NewReplacer(" ", "-", ",", "").Replace(name)+".txt", b)
}

// believed returns the finding that a pod and others send packets for an address elsewhere.
func believed(f verdict.Finding, by verdict.Owner, state verdict.EntryState, former bool) verdict.Finding {
	b := verdict.Belief{
		Link: by.Interface.Link, MAC: "\x02\x00\x00\x00\x00\x63", State: state, Count: 3, Since: start, Holders: []*verdict.Interface{by.Interface},
	}
	if former {
		b.Left, b.Former = start, &verdict.Namespace{Node: by.Node, Who: verdict.Workload{Kind: verdict.Pod, Namespace: "shop", Name: "old"}.Who()}
	} else {
		b.Count, b.Receivers = 1, []*verdict.Interface{by.Interface}
	}
	f.Beliefs = []verdict.Belief{b}
	return f
}

// announcing returns the finding about an owner that announces the address with a MAC that its interface had before.
func announcing(f verdict.Finding) verdict.Finding {
	i := f.Owners[0].Interface
	f.Owners[0].MAC = "\x02\x00\x00\x00\x00\x11"
	f.Beliefs = []verdict.Belief{{Link: i.Link, MAC: "\x02\x00\x00\x00\x00\x63", State: verdict.EntryInUse, Left: start, HadMAC: i}}
	return f
}

// relayed returns the finding with an access point that answers with the former MAC.
func relayed(f verdict.Finding) verdict.Finding {
	f.Beliefs[0].RelayedBy = []verdict.MAC{"\x02\x00\x00\x00\x00\x0a"}
	return f
}

// ofCard returns the finding with a MAC that the owner has on another interface.
func ofCard(f verdict.Finding) verdict.Finding {
	card := *f.Owners[0].Interface
	card.Name, card.MAC = "eth1", f.Beliefs[0].MAC
	f.Beliefs[0].Cards = []*verdict.Interface{&card}
	return f
}

// tunnelled returns the finding about packets that a VXLAN device of another node sends to the node of the owner.
func tunnelled(f verdict.Finding) verdict.Finding {
	o, b := &f.Owners[0], &f.Beliefs[0]
	node := *o.Node
	node.Name, node.Boot = "node-c", "other"
	ns, card := *o.Namespace, *o.Interface
	ns.Node, ns.ID, card.Namespace = &node, "other", &ns
	b.Count, b.Link, b.Holders = 1, &verdict.Link{Node: &node, Name: o.Interface.Name}, []*verdict.Interface{&card}
	b.Tunnel, b.Far = netip.MustParseAddr("192.0.2.12"), o.Node
	o.MAC = "\x02\xff\x00\x00\x00\x22"
	return f
}
