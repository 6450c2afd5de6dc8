package audit_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/azure"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// auditAll judges and audits the address with all pools.
func (w *world) auditAll(before ...verdict.Finding) audit.Result {
	w.Policy.LeakedAfter = 5 * time.Minute
	out := w.Judge()
	in := w.Case()
	in.Before, in.Unread = before, w.unread
	if w.unfollowed {
		in.PodsKnownUntil = 0
	}
	return audit.Address(&w.Policy, in, &out)
}

// reported returns the findings that are not waiting, each as KIND POOL.
func reported(findings []verdict.Finding) (kinds []string) {
	for _, f := range findings {
		if f.Waiting {
			continue
		}
		name := ""
		if f.Pool != nil {
			name = " " + f.Pool.Name
		}
		kinds = append(kinds, f.Kind+name)
	}
	return kinds
}

// wantReported waits until no finding is waiting, and checks the reported findings.
func (w *world) wantReported(t *testing.T, why string, want ...string) {
	t.Helper()
	before := w.auditAll().Findings
	w.after(10 * time.Minute)
	if got := reported(w.auditAll(before...).Findings); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", why, got, want)
	}
}

const (
	unallocated = verdict.FindingInUseUnallocated
	bookedElse  = verdict.FindingBookedElsewhere
	leaked      = verdict.FindingLeaked
	double      = verdict.FindingDoubleAllocated
)

// pooled adds a pool of one node, or of the cluster if node is empty, whose range contains the
// address.
func (w *world) pooled(name, of, node string) *verdict.Pool {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: name, State: ipam.Known, Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.244.0.0/24"))}}}
	if node != "" {
		p.Node = w.Node(node)
	}
	w.Pools = append(w.Pools, p)
	return p
}

// byHand adds a namespace created by hand, on a point-to-point veth of n1.
func (w *world) byHand() *verdict.Interface {
	inside, _ := w.Veth(w.Namespace("n1", 2, "77", blue("lab")), "baaaaa", w.Link("n1", "vlab", verdict.PointToPoint, false))
	w.Assigned(inside)
	return inside
}

// A pool matters only if its addresses and the owner share a scope.
func TestWhichPoolsAnAddressIsCheckedAgainst(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world)
		want  []string
	}{
		{"a pool of the cluster, and an owner that the node routes to", func(w *world) {
			w.byHand()
			w.pooled("p", calico.IPAM.Name, "")
		}, []string{unallocated + " p"}},
		{"a pool of the cluster, and an owner that the node does not route to", func(w *world) {
			w.byHand().Link = w.Link("n1", "br0", verdict.Bridge, false)
			w.pooled("p", calico.IPAM.Name, "")
		}, nil},
		{"a cluster-wide pool that allocates on request only, and a pod", func(w *world) {
			w.byHand()
			w.pooled("p", calico.IPAM.Name, "").Asked = true
		}, []string{unallocated + " p"}},
		{"a pool of the cluster, and the bridge of docker", func(w *world) {
			i := w.Interface(w.Host("n1"), verdict.Interface{Name: "docker0", Attachment: verdict.Own, Link: w.Link("n1", "br0", verdict.Bridge, true)})
			w.Assigned(i)
			w.pooled("p", calico.IPAM.Name, "")
		}, nil},
		{"a pool of the cluster, and an interface of the node without a link", func(w *world) {
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "tun0", Attachment: verdict.Own}))
			w.pooled("p", calico.IPAM.Name, "")
		}, []string{unallocated + " p"}},
		{"a pool of whereabouts, and a child of an uplink", func(w *world) {
			i := w.byHand()
			i.Attachment, i.Link = verdict.Lower, w.Link("n1", "eth0", verdict.Uplink, false)
			w.pooled("p", whereabouts.Name, "")
		}, []string{unallocated + " p"}},
		{"a pool of whereabouts, and a veth", func(w *world) {
			w.byHand()
			w.pooled("p", whereabouts.Name, "")
		}, nil},
		{"a pool of whereabouts, and a child of an uplink that is the node's own", func(w *world) {
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "mac0", Attachment: verdict.Lower, Link: w.Link("n1", "eth0", verdict.Uplink, false)}))
			w.pooled("p", whereabouts.Name, "")
		}, nil},
		{"a pool of a bridge, and an owner on it", func(w *world) {
			w.byHand().Link = w.Link("n1", "br0", verdict.Bridge, false)
			w.pooled("p", hostlocal.Name, "n1").Device = "br0"
		}, []string{unallocated + " p"}},
		{"a pool of a bridge, and an owner on another one", func(w *world) {
			w.byHand().Link = w.Link("n1", "br1", verdict.Bridge, false)
			w.pooled("p", hostlocal.Name, "n1").Device = "br0"
		}, nil},
		{"a pool of an uplink, and a child of it", func(w *world) {
			i := w.byHand()
			i.Attachment, i.Link, i.HostInterface = verdict.Lower, w.Link("n1", "lan", verdict.Uplink, false), "eth0"
			w.pooled("p", hostlocal.Name, "n1").Device = "eth0"
		}, []string{unallocated + " p"}},
		{"a pool of an uplink, and an interface without a link", func(w *world) {
			i := w.Interface(w.Host("n1"), verdict.Interface{Name: "tun0", Attachment: verdict.Own})
			w.Assigned(i)
			w.pooled("p", hostlocal.Name, "n1").Device = "eth0"
		}, nil},
		{"a pool whose device is not known, and an interface without a host interface", func(w *world) {
			i := w.Interface(w.Host("n1"), verdict.Interface{Name: "tun0", Attachment: verdict.Own})
			w.Assigned(i)
			w.pooled("p", hostlocal.Name, "n1")
		}, nil},
		{"a pool whose device is not known, and a link without a name", func(w *world) {
			w.byHand().Link = w.Link("n1", "", verdict.Bridge, false)
			w.pooled("p", hostlocal.Name, "n1")
		}, nil},
		{"a routed pool, and an owner that the node does not route to", func(w *world) {
			w.byHand().Link = w.Link("n1", "br0", verdict.Bridge, false)
			w.pooled("p", hostlocal.Name, "n1").Routed = true
		}, nil},
		{"a routed pool, and an owner in a VRF", func(w *world) {
			w.byHand().VRF = "red"
			w.pooled("p", hostlocal.Name, "n1").Routed = true
		}, nil},
		{"a pool that is not routed, and an owner that the node routes to", func(w *world) {
			w.byHand()
			w.pooled("p", hostlocal.Name, "n1")
		}, nil},
		{"a routed pool of another node", func(w *world) {
			w.byHand()
			w.pooled("p", hostlocal.Name, "n2").Routed = true
		}, nil},
		{"a routed pool with another range", func(w *world) {
			w.byHand()
			p := w.pooled("p", hostlocal.Name, "n1")
			p.Routed, p.Ranges = true, []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.9.0.0/24"))}
		}, nil},
		{"a routed pool with another range that has allocated it", func(w *world) {
			w.byHand()
			p := w.pooled("p", hostlocal.Name, "n1")
			p.Routed, p.Ranges = true, []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.9.0.0/24"))}
			lab := verdicttest.Pod("lab")
			lab.ContainerID = "container-lab"
			w.Namespaces[0].Who = lab.Who()
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "container-other"}})
		}, []string{bookedElse + " p"}},
		{"a pool of no known range", func(w *world) {
			w.byHand()
			p := w.pooled("p", hostlocal.Name, "n1")
			p.Routed, p.Ranges = true, nil
		}, nil},
		{"a pool of no known range, and a pod of its network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			p := w.pooled("p", hostlocal.Name, "n1")
			p.Network, p.Ranges = "kind", nil
		}, []string{unallocated + " p"}},
		{"a routed pool of another network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			p := w.pooled("p", hostlocal.Name, "n1")
			p.Network, p.Routed = "lab", true
		}, []string{unallocated + " p"}},
		{"a pool of Cilium of another network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.pooled("p", cilium.IPAM.Name, "").Network = "lab"
		}, nil},
		{"a pool of Cilium of no known network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.pooled("p", cilium.IPAM.Name, "")
		}, []string{unallocated + " p"}},
		{"a pool of Cilium of another network, and an owner of no known network", func(w *world) {
			w.byHand()
			w.pooled("p", cilium.IPAM.Name, "").Network = "lab"
		}, []string{unallocated + " p"}},
		{"a pool of the owner's network, and another one", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.pooled("p", calico.IPAM.Name, "")
			w.pooled("q", hostlocal.Name, "n1").Network = "kind"
		}, []string{unallocated + " q"}},
		{"a pool of one of the owner's networks", func(w *world) {
			c := w.kindPod("n1", "a", "kind", 2)
			w.Assigned(w.Interface(c.Interface.Namespace, verdict.Interface{Name: "net1", Attachment: verdict.Lower, Link: w.Link("n1", "eth0", verdict.Uplink, false)})).Network = "lan"
			w.pooled("p", hostlocal.Name, "n1").Network = "lan"
			w.pooled("q", hostlocal.Name, "n1").Network = "lab"
		}, []string{unallocated + " p"}},
		{"of pools, one has it for the owner", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.allocate(w.pooled("gave", calico.IPAM.Name, ""), verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}})
			w.pooled("ofNode", hostlocal.Name, "n1").Routed = true
			w.pooled("otherIPAM", cilium.IPAM.Name, "")
			w.pooled("sameIPAM", calico.IPAM.Name, "")
			w.pooled("otherRealm", calico.IPAM.Name, "").Realm = "red"
		}, []string{unallocated + " ofNode", unallocated + " sameIPAM"}},
	} {
		w := newWorld("10.244.0.7")
		test.build(w)
		w.wantReported(t, test.name, test.want...)
	}
}

// A network has a new name, so that its pool has no records of the addresses that pods got under the former name.
func TestRenamedNetworks(t *testing.T) {
	record := func(w *world, p *verdict.Pool) {
		w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
	}
	onDevice := func(w *world, c *verdict.Claim, device string, former, renamed *verdict.Pool) {
		c.Interface.Link = w.Link("n1", device, verdict.Bridge, true)
		for _, p := range []*verdict.Pool{former, renamed} {
			p.Plugin, p.Device = "bridge", device
		}
	}
	for _, test := range []struct {
		name   string
		change func(w *world, c *verdict.Claim, former, renamed *verdict.Pool)
		want   bool
	}{
		{"on the same bridge", nil, true},
		{"on the same bridge, without a range of the former network", func(_ *world, _ *verdict.Claim, former, _ *verdict.Pool) {
			former.Ranges, former.Gateways, former.Wiring = nil, nil, ipam.Wiring{}
		}, true},
		{"on the same bridge, which the node does not route", func(w *world, c *verdict.Claim, former, renamed *verdict.Pool) {
			c.Interface.Link = w.Link("n1", "br0", verdict.Bridge, false)
			former.Device, former.Routed, renamed.Device, renamed.Routed = "br0", false, "br0", false
		}, true},
		{"on the same master of macvlan", func(w *world, c *verdict.Claim, former, renamed *verdict.Pool) {
			c.Interface.Attachment, c.Interface.Link, c.Interface.HostInterface = verdict.Lower, w.Link("n1", "eth0", verdict.Uplink, false), "eth0"
			former.Wiring, renamed.Wiring = ipam.Wiring{Plugin: "macvlan", Device: "eth0"}, ipam.Wiring{Plugin: "macvlan", Device: "eth0"}
		}, true},
		{"with point-to-point veths", func(w *world, c *verdict.Claim, former, renamed *verdict.Pool) {
			c.Interface.Link = w.Link("n1", "vetha", verdict.PointToPoint, false)
			former.Wiring, renamed.Wiring = ipam.Wiring{Plugin: "ptp", Routed: true}, ipam.Wiring{Plugin: "ptp", Routed: true}
		}, true},
		{"the former network is configured with another range", func(w *world, _ *verdict.Claim, former, _ *verdict.Pool) {
			former.Config, former.Ranges = "/etc/cni/net.d/10-former.conflist", []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.245.0.0/24"))}
		}, true},
		{"it was not renamed", func(w *world, _ *verdict.Claim, former, renamed *verdict.Pool) {
			former.Config = renamed.Config
			w.Pools = w.Pools[:1]
		}, false},
		{"the records of the former network were copied", func(w *world, _ *verdict.Claim, _, renamed *verdict.Pool) {
			record(w, renamed)
		}, false},
		{"an administrator has reserved the address", func(w *world, _ *verdict.Claim, _, renamed *verdict.Pool) {
			w.allocate(renamed, verdict.Allocation{})
		}, false},
		{"the other network has a divided range on the same bridge", func(_ *world, _ *verdict.Claim, _, renamed *verdict.Pool) {
			renamed.Ranges = []ipam.Range{{First: netip.MustParseAddr("10.244.0.128"), Last: netip.MustParseAddr("10.244.0.254")}}
		}, false},
		{"both networks are configured, which is another finding", func(_ *world, _ *verdict.Claim, former, _ *verdict.Pool) {
			former.Config = "/etc/cni/net.d/10-former.conflist"
		}, false},
		{"the other network has a bridge of its own", func(_ *world, _ *verdict.Claim, _, renamed *verdict.Pool) { renamed.Device = "cni1" }, false},
		{"the other network has point-to-point veths", func(_ *world, _ *verdict.Claim, _, renamed *verdict.Pool) {
			renamed.Wiring = ipam.Wiring{Plugin: "ptp", Routed: true}
		}, false},
		{"the other network is on another node", func(w *world, _ *verdict.Claim, _, renamed *verdict.Pool) { renamed.Node = w.Node("n2") }, false},
		{"it is not known whether the other network is configured", func(_ *world, _ *verdict.Claim, _, renamed *verdict.Pool) { renamed.Config = "" }, false},
		{"the network has an IPAM of the cluster, and another configuration was left behind", func(_ *world, _ *verdict.Claim, former, _ *verdict.Pool) {
			former.IPAM, former.Traits, former.Node = calico.IPAM.Name, registry.Traits(calico.IPAM.Name), nil
		}, false},
	} {
		w := newWorld("10.244.0.7")
		former, renamed := w.hostLocal("n1", "former", "10.244.0.0/24"), w.hostLocal("n1", "pods", "10.244.0.0/24")
		former.Config, renamed.State = "", ipam.Missing
		record(w, former)
		c := w.kindPod("n1", "a", "former", 2)
		onDevice(w, c, "cni0", former, renamed)
		if test.change != nil {
			test.change(w, c, former, renamed)
		}
		w.Pools = slices.DeleteFunc(w.Pools, func(p *verdict.Pool) bool { // those that concern the address
			return !p.Contains(w.Addr) && !slices.ContainsFunc(w.Allocations, func(al *verdict.Allocation) bool { return al.Pool == p })
		})
		var want []string
		if test.want {
			want = []string{unallocated + " /var/lib/cni/networks/pods"}
		}
		w.wantReported(t, test.name, want...)
	}
}

func TestLeakedAllocations(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, p *verdict.Pool, al *verdict.Allocation)
		want  bool
	}{
		{"no owner has it", nil, true},
		{"an owner on its node has it", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.byHand() }, false},
		{"an owner on another node has it", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.kindPod("n2", "b", "kind", 2) }, true},
		{"an owner on another node has it, and the pool is cluster-wide", func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
			w.kindPod("n2", "x", "", 2)
		}, false},
		{"somebody had it", func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
			w.Wire(w.Uplink("n1"), "\x02\x00\x00\x00\x00\x99").Seen = start.Add(-w.Policy.StaleAfter)
		}, true},
		{"the API has it of no pod", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.Listed = true }, true},
		{"it is for a tunnel", func(_ *world, _ *verdict.Pool, al *verdict.Allocation) { al.Purpose = "tunnel" }, false},
		{"it has no holder", func(_ *world, _ *verdict.Pool, al *verdict.Allocation) { al.ContainerID = "" }, false},
		{"the Kubernetes API has it for a pod", func(_ *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.IPAM, p.Traits = podips.IPAM.Name, registry.Traits(podips.IPAM.Name)
		}, false},
		{"the pool is not known", func(_ *world, p *verdict.Pool, _ *verdict.Allocation) { p.State = ipam.Stale }, false},
		{"its node is silent", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.Node("n1").Unheard = true }, false},
		{"an agent of its node does not see its pods", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.Uncovered = []string{"n1"} }, false},
		{"an agent of another node does not see its pods", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.Uncovered = []string{"n2"} }, true},
		{"an agent of another node does not see its pods, and the pool is the cluster's", func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
			w.Uncovered = []string{"n2"}
		}, false},
	} {
		w := newWorld("10.244.0.7")
		p := w.pooled("p", hostlocal.Name, "n1")
		al := w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-x"}})
		if test.build != nil {
			test.build(w, p, al)
		}
		before := w.auditAll()
		w.after(10 * time.Minute)
		out := w.auditAll(before.Findings...)
		if got := slices.Contains(reported(out.Findings), leaked+" p"); got != test.want {
			t.Errorf("%s: got %+v, want it leaked: %t", test.name, out.Findings, test.want)
		}
	}
}

// An IPAM may have several records of one allocation, and records of different allocations.
func TestRecordsOfOneLeakedAllocationAreOneFinding(t *testing.T) {
	for other, want := range map[string][]string{"sandbox-x": {leaked + " p"}, "sandbox-y": {leaked + " p", leaked + " q"}} {
		w := newWorld("10.244.0.7")
		for i, container := range []string{"sandbox-x", other} {
			p := w.pooled([]string{"p", "q"}[i], azure.Name, "n1")
			p.Routed = true
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: container}})
		}
		before := w.auditAll()
		out := w.after(10 * time.Minute).auditAll(before.Findings...)
		got := slices.DeleteFunc(reported(out.Findings), func(f string) bool { return !strings.HasPrefix(f, leaked) })
		if !slices.Equal(got, want) {
			t.Errorf("container %s: got %q, want %q", other, got, want)
		}
	}
}

// onBridges puts the address of nodes on bridges of their own, for which their kernels answer on the LAN.
func onBridges(w *world, wire []*verdict.Claim) {
	for _, c := range w.Claims {
		if i := c.Interface; !c.Wire() {
			i.Name, i.Kind, i.Attachment = "docker0", "bridge", verdict.Own
			i.Link = w.Link(i.Namespace.Node.Name, "docker0", verdict.Bridge, true)
		}
	}
	for _, c := range wire {
		c.Kind = verdict.Answered
	}
}

// Several nodes answer for the address of a service.
func TestASharedAddressIsAnswered(t *testing.T) {
	would := func(w *world, wire *verdict.Claim) *verdict.Claim {
		w.Drop(wire)
		return w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: wire.Interface, Network: "dummy0", Answer: verdict.KernelAnswer{By: verdict.ByAddress}})
	}
	proxy := func(w *world, wire *verdict.Claim, by verdict.AnswerSource) {
		w.Drop(w.Claims[slices.IndexFunc(w.Claims, func(c *verdict.Claim) bool { return c.Kind == verdict.Assigned && c.Node().Is(wire.Node()) })])
		w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: wire.Interface, Network: "ppp0", Answer: verdict.KernelAnswer{By: by}})
	}
	for _, test := range []struct {
		name   string
		change func(w *world, wire []*verdict.Claim)
		want   bool
	}{
		{"by two nodes", nil, true},
		{"by one node", func(w *world, wire []*verdict.Claim) { w.Drop(wire[1]) }, false},
		{"by one node, and the kernel of another one would answer", func(w *world, wire []*verdict.Claim) { would(w, wire[1]) }, true},
		{"by one node, and another one has rules about ARP", func(w *world, wire []*verdict.Claim) {
			would(w, wire[1]).Answer.Filter = verdict.FilterRules
		}, false},
		{"by no node, although the kernels of two would answer", func(w *world, wire []*verdict.Claim) {
			would(w, wire[0])
			would(w, wire[1])
		}, false},
		{"by no node, but one uses it, and the kernel of another one would answer", func(w *world, wire []*verdict.Claim) {
			wire[0].Kind = verdict.Used
			would(w, wire[1])
		}, false},
		{"by two nodes on two LANs", func(_ *world, wire []*verdict.Claim) {
			for _, c := range wire {
				c.Link.Domain = nil
			}
		}, false},
		{"by two nodes that have it on bridges of their own", onBridges, true},
		{"by one such node, and the kernel of another one would answer", func(w *world, wire []*verdict.Claim) {
			onBridges(w, wire)
			would(w, wire[1])
		}, true},
		{"by one such node only", func(w *world, wire []*verdict.Claim) {
			onBridges(w, wire)
			w.Drop(wire[1])
		}, false},
		{"by such a node, and one that has it on a loopback device", func(w *world, wire []*verdict.Claim) {
			onBridges(w, wire)
			w.Claims[0].Interface.Attachment = verdict.Local
		}, true},
		{"by such nodes, and a third one has it on the LAN", func(w *world, wire []*verdict.Claim) {
			onBridges(w, wire)
			third := w.Uplink("n3")
			third.Link.Domain = wire[0].Link.Domain
			w.Assigned(third)
		}, false},
		{"by such nodes, of which one has announced it", func(w *world, wire []*verdict.Claim) {
			onBridges(w, wire)
			wire[0].Kind = verdict.Announced
		}, false},
		{"by such a node, and a proxy", func(w *world, wire []*verdict.Claim) {
			proxy(w, wire[0], verdict.ByProxyEntry)
		}, true},
		{"by two proxies with an entry for it", func(w *world, wire []*verdict.Claim) {
			proxy(w, wire[0], verdict.ByProxyEntry)
			proxy(w, wire[1], verdict.ByProxyEntry)
		}, true},
		{"by two routers with proxy_arp", func(w *world, wire []*verdict.Claim) {
			proxy(w, wire[0], verdict.ByProxyARP)
			proxy(w, wire[1], verdict.ByProxyARP)
		}, false},
		{"by a proxy with an entry for it, and a router with proxy_arp", func(w *world, wire []*verdict.Claim) {
			proxy(w, wire[0], verdict.ByProxyEntry)
			proxy(w, wire[1], verdict.ByProxyARP)
		}, false},
		{"by one proxy", func(w *world, wire []*verdict.Claim) {
			proxy(w, wire[0], verdict.ByProxyEntry)
			w.Drop(wire[1])
		}, false},
		{"by two proxies, and somebody behind one of them has it", func(w *world, wire []*verdict.Claim) {
			proxy(w, wire[0], verdict.ByProxyEntry)
			proxy(w, wire[1], verdict.ByProxyEntry)
			w.Assigned(w.Uplink("n3"))
		}, false},
		{"by one, and the other one speaks for others", func(_ *world, wire []*verdict.Claim) { wire[1].Source = "\x02\x00\x00\x00\x00\x98" }, false},
		{"by one, and the other one has timed out", func(w *world, _ []*verdict.Claim) { w.Node("n2").TimedOut = true }, false},
		{"by two that have it for themselves", func(w *world, _ []*verdict.Claim) {
			for _, c := range w.Claims {
				if !c.Wire() {
					c.Interface.Attachment = verdict.Own
				}
			}
		}, false},
	} {
		w := newWorld("10.96.0.1")
		var wire []*verdict.Claim
		for _, port := range verdicttest.OnLAN(w.World, "n1", "n2") {
			w.Assigned(w.Interface(port.Namespace, verdict.Interface{Name: "dummy0", Attachment: verdict.Local}))
			wire = append(wire, w.Wire(port, string(port.MAC)))
		}
		if test.change != nil {
			test.change(w, wire)
		}
		first := w.auditAll()
		for _, c := range w.Claims {
			c.Before, c.Seen = c.Seen, w.Now
		}
		out := w.after(w.Policy.Settle).auditAll(first.Findings...)
		if got := slices.Equal(reported(out.Findings), []string{verdict.FindingSharedAddressAnswered}); got != test.want || len(reported(first.Findings)) != 0 {
			t.Errorf("%s: got %+v, then %+v, want it: %t", test.name, first.Findings, out.Findings, test.want)
		}
		if test.want && (len(out.Findings[0].Owners) != 2 || out.Findings[0].Severity != verdict.Warning || len(out.Past) != 0) {
			t.Errorf("%s: got %+v, want a warning about both", test.name, out)
		}
	}
}

// A reported finding that turns into another critical one is reported at once.
func TestAFindingTurnsIntoAnotherOne(t *testing.T) {
	for _, test := range []struct {
		name   string
		before func(f *verdict.Finding)
		soon   bool
	}{
		{"of this pool and owner", func(*verdict.Finding) {}, true},
		{"a waiting one", func(f *verdict.Finding) { f.Waiting = true }, false},
		{"of another owner", func(f *verdict.Finding) { f.Owners = []verdict.Owner{{ID: "other"}} }, false},
		{"of no owner", func(f *verdict.Finding) { f.Owners = nil }, true},
		{"of another pool", func(f *verdict.Finding) { f.Pool = &verdict.Pool{Pool: ipam.Pool{Name: "other"}} }, false},
		{"that was only a warning", func(f *verdict.Finding) { f.Severity = verdict.Warning }, false},
	} {
		w := newWorld("10.244.0.7")
		w.kindPod("n1", "a", "kind", 2)
		p := w.pooled("p", hostlocal.Name, "n1")
		p.Network = "kind"
		first := w.auditAll().Findings
		before := w.after(time.Minute).auditAll(first...).Findings
		test.before(&before[0])
		w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-x"}})
		out := w.after(time.Minute).auditAll(before...).Findings
		if got := reported(out); (len(got) == 1) != test.soon || len(out) != 1 || out[0].Kind != bookedElse || out[0].Since != w.Now {
			t.Errorf("%s: got %+v, want it reported at once: %t", test.name, out, test.soon)
		}
	}

	// A finding about the same owner keeps its start time.
	w := newWorld("10.244.0.7")
	c := w.kindPod("n1", "a", "kind", 2)
	w.pooled("p", hostlocal.Name, "n1").Network = "kind"
	first := w.auditAll().Findings
	before := w.after(time.Minute).auditAll(first...).Findings
	if before[0].Since != start || len(before[0].Past) != 1 {
		t.Errorf("got since %d, past %+v, want it since the beginning, and remembered", before[0].Since, before[0].Past)
	}
	w.Drop(c)
	w.kindPod("n1", "b", "kind", 3)
	if out := w.auditAll(before...).Findings; len(out) != 1 || !out[0].Waiting || out[0].Since != w.Now {
		t.Errorf("got %+v of another pod, want it to wait", out)
	}

	// A finding about Cilium stays a warning.
	w = newWorld("10.244.0.7")
	w.kindPod("n1", "a", "kind", 2)
	w.pooled("p", cilium.IPAM.Name, "")
	first = w.auditAll().Findings
	before = w.after(5 * time.Minute).auditAll(first...).Findings
	if out := w.after(time.Second).auditAll(before...).Findings; len(reported(out)) != 1 {
		t.Errorf("got %+v, want it to stay reported", out)
	}
}

func TestFindingsHaveIDsOfTheirPools(t *testing.T) {
	a, b, c := verdict.Pool{Pool: ipam.Pool{IPAM: "i", Name: "p"}}, verdict.Pool{Pool: ipam.Pool{IPAM: "i", Name: "p"}, Node: &verdict.Node{Name: "n1"}}, verdict.Pool{Pool: ipam.Pool{IPAM: "i", Name: "q"}}
	if a.Subject() == b.Subject() || a.Subject() == c.Subject() || b.Subject() != "i p n1" {
		t.Errorf("got %q, %q and %q, want them to differ by node and name", a.Subject(), b.Subject(), c.Subject())
	}
}

func TestOwnersThatAreNotComparedHoldNothing(t *testing.T) {
	for name, change := range map[string]func(w *world, i *verdict.Interface){
		"it does":                     nil,
		"it is known by frames alone": func(w *world, i *verdict.Interface) { w.Claims[0].Kind, w.Claims[0].MAC = verdict.Announced, i.MAC },
		"it has timed out":            func(w *world, _ *verdict.Interface) { w.Node("n1").TimedOut = true },
		"it is shared": func(w *world, _ *verdict.Interface) {
			w.Policy.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix("10.244.0.0/16")}}
		},
		"it is a service's": func(_ *world, i *verdict.Interface) { i.Attachment = verdict.Local },
		"it is on no link":  func(_ *world, i *verdict.Interface) { i.Link, i.Attachment = nil, verdict.Peer },
	} {
		w := newWorld("10.244.0.7")
		i := w.byHand()
		w.pooled("p", hostlocal.Name, "n1").Network = "kind"
		w.Claims[0].Network = "kind"
		if change != nil {
			change(w, i)
		}
		if out := w.auditAll(); (len(out.Findings) == 1) != (change == nil) {
			t.Errorf("%s: got %+v", name, out.Findings)
		}
	}
}

// The finding ends when no kernel answers any longer, and no answer was seen for --stale-after.
func TestAnswersForASharedAddressEnd(t *testing.T) {
	w := newWorld("172.17.0.1")
	var wire []*verdict.Claim
	for _, port := range verdicttest.OnLAN(w.World, "n1", "n2") {
		w.Assigned(w.Interface(port.Namespace, verdict.Interface{Name: "docker0"}))
		wire = append(wire, w.Wire(port, string(port.MAC)))
	}
	onBridges(w, wire)
	first := w.auditAll()
	out := w.after(w.Policy.StaleAfter - time.Second).auditAll(first.Findings...)
	if len(out.Findings) != 1 || out.Findings[0].Waiting || out.Again != w.Now.Add(time.Second) {
		t.Fatalf("got %+v before --stale-after, want the finding until then", out)
	}
	if out = w.after(time.Second).auditAll(out.Findings...); len(out.Findings) != 0 {
		t.Errorf("got %+v after --stale-after, want none", out.Findings)
	}
	would := w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: wire[0].Interface, Network: "docker0", Answer: verdict.KernelAnswer{By: verdict.ByAddress}})
	w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: wire[1].Interface, Network: "docker0", Answer: verdict.KernelAnswer{By: verdict.ByAddress}})
	if out = w.auditAll(); len(out.Findings) != 1 {
		t.Errorf("got %+v while the kernels would still answer, want the finding", out.Findings)
	}
	w.Drop(would)
	if out = w.auditAll(); len(out.Findings) != 0 {
		t.Errorf("got %+v once a kernel does not answer any longer, want none", out.Findings)
	}
}
