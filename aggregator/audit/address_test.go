package audit_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// hostLocal adds a host-local pool of a network on a node.
func (w *world) hostLocal(node, network, cidr string) *verdict.Pool {
	r := ipam.RangeOf(netip.MustParsePrefix(cidr))
	p := &verdict.Pool{
		Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: "/var/lib/cni/networks/" + network, Served: ipam.Served{Network: network}, State: ipam.Known, Ranges: []ipam.Range{{First: r.First.Next(), Last: r.Last.Prev()}}, Gateways: []netip.Addr{r.First.Next()}, Wiring: ipam.Wiring{Plugin: "ptp", Routed: true}, Config: "/etc/cni/net.d/10-" + network + ".conflist"}, Node: w.Node(node),
	}
	w.Pools = append(w.Pools, p)
	return p
}

// ofCluster adds a cluster-wide pool.
func (w *world) ofCluster(of, cidr string) *verdict.Pool {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: "pool", State: ipam.Known, Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix(cidr))}}}
	w.Pools = append(w.Pools, p)
	return p
}

// allocate adds an allocation of the address.
func (w *world) allocate(p *verdict.Pool, al verdict.Allocation) *verdict.Allocation {
	al.Pool, al.Address, al.Heard = p, w.Addr, w.Now
	w.Allocations = append(w.Allocations, &al)
	return &al
}

// kindPod adds a pod with a sandbox that a CNI network gave the address.
func (w *world) kindPod(node, name, network string, record uint32) *verdict.Claim {
	who := verdicttest.Pod(name)
	who.ContainerID = "sandbox-" + name
	ns := w.Namespace(node, record, node+name, who)
	inside, _ := w.Veth(ns, "mac"+name, w.Link(node, "veth"+name, verdict.PointToPoint, false))
	c := w.Assigned(inside)
	c.Network = network
	return c
}

// audit judges and audits the address.
func (w *world) audit(before ...verdict.Finding) audit.Result {
	out := w.Judge()
	in := w.Case()
	in.Pools, in.Before = nil, before
	for _, p := range w.Pools {
		if p.Contains(w.Addr) || slices.ContainsFunc(w.Allocations, func(al *verdict.Allocation) bool { return al.Pool == p }) {
			in.Pools = append(in.Pools, p)
		}
	}
	return audit.Address(&w.Policy, in, &out)
}

// wantFound audits the address, waits until no finding is waiting, and checks the findings.
func (w *world) wantFound(t *testing.T, why string, want ...string) {
	t.Helper()
	w.Policy.LeakedAfter = 5 * time.Minute
	waiting := w.audit()
	w.after(10 * time.Minute)
	for _, c := range w.Claims {
		w.Seen(c)
	}
	var got []string
	for _, f := range w.audit(waiting.Findings...).Findings {
		if !f.Waiting {
			got = append(got, f.Kind)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", why, got, want)
	}
}

// The record of a pod vanishes, and the kernel of the pod does not have the address.
func TestTheRecordOfAServedAddressIsRemembered(t *testing.T) {
	for kind, want := range map[verdict.Evidence]int{verdict.Answered: 1, verdict.Used: 0} {
		w := newWorld("10.244.0.7")
		p := w.hostLocal("n1", "kind", "10.244.0.0/24")
		verdicttest.Sandbox(w.World, "n1", "cni0", "kind", verdicttest.Who("a")).Kind = kind
		in := w.Case()
		in.Vanished = []*verdict.Allocation{{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, ContainerID: "container-a"}}}
		judged := w.Policy.Judge(in)
		if past := audit.Address(&w.Policy, in, &judged).Past; len(past) != want || want > 0 && past[0].Owner != judged.Owners[0].ID {
			t.Errorf("evidence %d: got %+v, want %d", kind, past, want)
		}
	}
}

// A pod whose kernel no longer has the address may go on to serve it. Its silence does not say that it has left.
func TestAServedAddressIsNotLeft(t *testing.T) {
	w := newWorld("10.244.0.7")
	c := verdicttest.Sandbox(w.World, "n1", "cni0", "kind", verdicttest.Who("a"))
	kernel := w.Assigned(w.Interfaces[0])
	before := slices.Clone(w.Judge().Owners)
	w.Drop(kernel)
	now := slices.Clone(w.Judge().Owners)
	if former := audit.Departed(nil, before, now, w.Now); len(former) != 0 {
		t.Errorf("got %+v, want none: the pod answers", former)
	}
	w.Drop(c)
	if former := audit.Departed(nil, now, w.Judge().Owners, w.Now); len(former) != 0 {
		t.Errorf("got %+v, want none: the pod may only be silent", former)
	}
	if former := audit.Departed(nil, before, w.Judge().Owners, w.Now); len(former) != 1 {
		t.Errorf("got %+v, want the pod: its kernel had the address", former)
	}
}

func TestAuditOfOneAddress(t *testing.T) {
	for _, test := range []struct {
		why   string
		world func(w *world)
		want  []string
	}{
		{"host-local and the kernel agree", func(w *world) {
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
			w.kindPod("n1", "a", "kind", 2)
		}, nil},
		{"host-local has lost the record of a pod", func(w *world) {
			w.hostLocal("n1", "kind", "10.244.0.0/24")
			w.kindPod("n1", "a", "kind", 2)
		}, []string{verdict.FindingInUseUnallocated}},
		{"host-local has lost the record of a pod whose kernel does not have the address", func(w *world) {
			w.hostLocal("n1", "kind", "10.244.0.0/24")
			verdicttest.Sandbox(w.World, "n1", "cni0", "kind", verdicttest.Who("a"))
		}, []string{verdict.FindingInUseUnallocated}},
		{"host-local has the record of a pod whose kernel does not have the address", func(w *world) {
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "container-a"}})
			verdicttest.Sandbox(w.World, "n1", "cni0", "kind", verdicttest.Who("a"))
		}, nil},
		{"a pod whose kernel does not have the address only uses it", func(w *world) {
			w.hostLocal("n1", "kind", "10.244.0.0/24")
			verdicttest.Sandbox(w.World, "n1", "cni0", "kind", verdicttest.Who("a")).Kind = verdict.Used
		}, nil},
		{"host-local of another node knows nothing of it", func(w *world) {
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
			w.hostLocal("n2", "kind", "10.244.0.0/24")
			w.kindPod("n1", "a", "kind", 2)
		}, nil},
		{"it is from another network, whose pods never meet these", func(w *world) {
			w.hostLocal("n1", "lab", "10.244.0.0/24").Routed = false
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
			w.kindPod("n1", "a", "kind", 2)
		}, nil},
		{"it was configured by hand inside the range", func(w *world) {
			w.hostLocal("n1", "kind", "10.244.0.0/24")
			ns := w.Namespace("n1", 2, "77", verdict.Workload{Kind: verdict.Unknown, Name: "lab", Source: "netns"})
			inside, _ := w.Veth(ns, "m", w.Link("n1", "vethlab", verdict.PointToPoint, false))
			w.Assigned(inside)
		}, []string{verdict.FindingInUseUnallocated}},
		{"it is the gateway of the range, and the node's own", func(w *world) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.hostLocal("n1", "kind", "10.244.0.0/24")
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "cni0", Kind: "bridge", Attachment: verdict.Own, Link: w.Link("n1", "cni0", verdict.Bridge, true)}))
		}, nil},
		{"the record names another sandbox", func(w *world) {
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-of-old"}})
			w.kindPod("n1", "a", "kind", 2)
		}, []string{verdict.FindingBookedElsewhere}},
		{"the container is known from a cgroup only, which may be another one of the pod", func(w *world) {
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
			who := verdicttest.Pod("a")
			who.ContainerID, who.Source = "app-a", "cgroup"
			inside, _ := w.Veth(w.Namespace("n1", 2, "77", who), "m", w.Link("n1", "vetha", verdict.PointToPoint, false))
			w.Assigned(inside).Network = "kind"
		}, nil},
		{"no owner has it", func(w *world) {
			w.Node("n1")
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
		}, []string{verdict.FindingLeaked}},
		{"no owner has it, on a node without an agent", func(w *world) {
			w.Uncovered = []string{"n1"}
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
		}, nil},
		{"no owner has it, but its sandbox exists", func(w *world) {
			who := verdicttest.Pod("a")
			who.ContainerID = "sandbox-a"
			w.Namespace("n1", 2, "77", who)
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-a"}})
		}, nil},
		{"Calico and the kernel agree", func(w *world) {
			w.allocate(w.ofCluster(calico.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "N1", Namespace: "default", Pod: "a", ContainerID: "sandbox-a"}})
			w.kindPod("n1", "a", "k8s-pod-network", 2)
		}, nil},
		{"Calico has it for the pod, and for another node", func(w *world) {
			w.allocate(w.ofCluster(calico.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n9", Namespace: "default", Pod: "a", ContainerID: "sandbox-a"}})
			w.kindPod("n1", "a", "k8s-pod-network", 2)
		}, []string{verdict.FindingBookedElsewhere}},
		{"Calico has the node by its full name", func(w *world) {
			w.allocate(w.ofCluster(calico.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1.example.org", Namespace: "default", Pod: "a"}})
			w.kindPod("n1", "a", "k8s-pod-network", 2)
		}, nil},
		{"Calico has the tunnel's address for the node", func(w *world) {
			w.allocate(w.ofCluster(calico.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Purpose: "VXLAN tunnel"}})
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "vxlan.calico", Kind: "vxlan", Attachment: verdict.Own, Link: w.Link("n1", "vxlan.calico", verdict.Uplink, false)}))
		}, nil},
		{"Calico has a pod's address for a tunnel", func(w *world) {
			w.allocate(w.ofCluster(calico.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Purpose: "VXLAN tunnel"}})
			w.kindPod("n1", "a", "k8s-pod-network", 2)
		}, []string{verdict.FindingBookedElsewhere}},
		{"Calico is not read just now", func(w *world) {
			w.ofCluster(calico.IPAM.Name, "10.244.0.0/16").State = ipam.Stale
			w.kindPod("n1", "a", "k8s-pod-network", 2)
		}, nil},
		{"an agent is missing somewhere, and the address may be there", func(w *world) {
			w.Uncovered = []string{"n5"}
			w.Node("n1")
			w.allocate(w.ofCluster(calico.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "a"}})
		}, nil},
		{"whereabouts has lost the record of a pod of its network", func(w *world) {
			w.ofCluster(whereabouts.Name, "10.244.0.0/24").Networks = []string{"mac"}
			w.kindPod("n1", "a", "mac", 2)
		}, []string{verdict.FindingInUseUnallocated}},
		{"whereabouts serves another network with that range", func(w *world) {
			w.ofCluster(whereabouts.Name, "10.244.0.0/24").Networks = []string{"mac"}
			w.kindPod("n1", "a", "other", 2)
		}, nil},
		{"IPAM has allocated it twice", func(w *world) {
			p := w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", Location: "1"}})
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b", Location: "2"}})
			w.kindPod("n1", "a", "k8s-pod-network", 2)
		}, []string{verdict.FindingDoubleAllocated}},
		{"two sandboxes of one pod are one", func(w *world) {
			p := w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", ContainerID: "sandbox-a", Location: "1"}})
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", ContainerID: "sandbox-b", Location: "2"}})
			w.kindPod("n1", "a", "k8s-pod-network", 2)
		}, nil},
		{"two owners are a conflict, which replaces findings", func(w *world) {
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-b"}})
			w.kindPod("n1", "a", "kind", 2)
			w.kindPod("n1", "b", "kind", 3)
		}, nil},
	} {
		w := newWorld("10.244.0.7")
		test.world(w)
		w.wantFound(t, test.why, test.want...)
	}
}

// Findings about one pool and owner are reported together and not one audit later.
func TestFindingsOfOnePoolAreReportedTogether(t *testing.T) {
	w := newWorld("10.244.0.7")
	p := w.Pool(hostlocal.Name, "n1", "lan")
	w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "container-b"}})
	w.kindPod("n1", "a", "lan", 2).Begun = start.Add(-time.Hour)
	before := w.audit().Findings
	w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "container-c"}})
	before = w.after(w.Policy.Settle / 2).audit(before...).Findings
	if got, want := kinds(before), []string{"(" + verdict.FindingBookedElsewhere + ")", "(" + verdict.FindingDoubleAllocated + ")"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	want := []string{verdict.FindingBookedElsewhere, verdict.FindingDoubleAllocated}
	w.after(w.Policy.Settle / 2)
	for range 2 {
		if before = w.audit(before...).Findings; !slices.Equal(kinds(before), want) {
			t.Errorf("got %v reported of %+v, want %v", kinds(before), before, want)
		}
	}
}

// If IPAM allocated an address to two pods, the one that has it should keep it.
func TestTheOwnerOfADoubleAllocationIsNamed(t *testing.T) {
	w := newWorld("10.244.0.7")
	p := w.ofCluster(whereabouts.Name, "10.244.0.0/24")
	w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b", Location: "1"}})
	w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", Location: "2"}})
	w.kindPod("n1", "a", "lan", 2)
	before := w.audit().Findings
	out := w.after(time.Minute).audit(before...)
	if len(out.Findings) != 1 || out.Findings[0].Kind != verdict.FindingDoubleAllocated || len(out.Findings[0].Owners) != 1 || len(out.Past) != 0 {
		t.Fatalf("got %+v, want one finding with the owner, and nothing remembered", out)
	}
	if o := out.Findings[0].Owners[0]; o.Workload().Name != "a" {
		t.Errorf("got %+v, want a, the holder", o)
	}
}

func TestPastIsKeptWhileItsOwnerLives(t *testing.T) {
	w := newWorld("10.244.0.7")
	p := w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
	al := w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Node: "n9", Namespace: "default", Pod: "a", ContainerID: "sandbox-a"}})
	c := w.kindPod("n1", "a", "k8s-pod-network", 2)
	first := w.audit()
	w.after(time.Second)
	second := w.audit(first.Findings...)
	if len(second.Past) != 1 || second.Past[0].Kind != verdict.FindingBookedElsewhere || second.Past[0].Allocation != al {
		t.Fatalf("got past %+v, want an allocation for n9", second.Past)
	}
	w.Past, w.Allocations = second.Past, nil
	if out := w.audit(second.Findings...); len(out.Past) == 0 || out.Past[0].Allocation != al {
		t.Errorf("got past %+v after it was freed, want it kept", out.Past)
	}
	w.Drop(c)
	if out := w.audit(); len(out.Past) != 0 {
		t.Errorf("got past %+v of an owner that is gone, want none", out.Past)
	}
}
