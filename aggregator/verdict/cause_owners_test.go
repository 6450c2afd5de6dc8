package verdict_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestAllocationsAreInOneOrder(t *testing.T) {
	w := newWorld("10.244.1.5")
	verdicttest.Twins(w.World)
	whole := func(name, by string) *verdict.Pool {
		return &verdict.Pool{Pool: ipam.Pool{IPAM: by, Traits: registry.Traits(by), Name: name, State: ipam.Known}}
	}
	of := func(node, name, by string) *verdict.Pool {
		p := whole(name, by)
		p.Node = w.Node(node)
		return p
	}
	al := func(p *verdict.Pool, al verdict.Allocation) *verdict.Allocation {
		al.Pool, al.Address = p, w.Addr
		return &al
	}
	want := []*verdict.Allocation{
		al(whole("z", calico.IPAM.Name), verdict.Allocation{}),
		al(whole("a", podips.IPAM.Name), verdict.Allocation{}),
		al(whole("b", podips.IPAM.Name), verdict.Allocation{}),
		al(of("n1", "z", calico.IPAM.Name), verdict.Allocation{}),
		al(of("n1", "a", hostlocal.Name), verdict.Allocation{Allocation: ipam.Allocation{Location: "1", Node: "z", Pod: "z"}}),
		al(of("n1", "a", hostlocal.Name), verdict.Allocation{Allocation: ipam.Allocation{Location: "2", Node: "a", Namespace: "z"}}),
		al(of("n1", "a", hostlocal.Name), verdict.Allocation{Allocation: ipam.Allocation{Location: "2", Node: "b", Namespace: "a", Pod: "z"}}),
		al(of("n1", "a", hostlocal.Name), verdict.Allocation{Allocation: ipam.Allocation{Location: "2", Node: "b", Namespace: "b", Pod: "a", ContainerID: "z"}}),
		al(of("n1", "a", hostlocal.Name), verdict.Allocation{Allocation: ipam.Allocation{Location: "2", Node: "b", Namespace: "b", Pod: "b", ContainerID: "a", Interface: "z"}}),
		al(of("n1", "a", hostlocal.Name), verdict.Allocation{Allocation: ipam.Allocation{Location: "2", Node: "b", Namespace: "b", Pod: "b", ContainerID: "b", Interface: "a"}}),
		al(of("n1", "a", hostlocal.Name), verdict.Allocation{Allocation: ipam.Allocation{Location: "2", Node: "b", Namespace: "b", Pod: "b", ContainerID: "b", Interface: "b"}}),
		al(of("n2", "a", calico.IPAM.Name), verdict.Allocation{}),
	}
	w.Allocations = slices.Clone(want)
	for range 3 { // repeated, so that remembered state is used as well
		slices.Reverse(w.Allocations)
		if got := w.judge().Conflicts[0].Allocations; !slices.Equal(got, want) {
			t.Errorf("got allocations %+v, want %+v", got, want)
		}
	}
}

func TestAKeeperThatIsNoLongerKnownIsForgotten(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.Within("n1", "", "kindnet", verdicttest.Who("a"))
	w.Within("n1", "", "kindnet", verdicttest.Who("b"))
	w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "a")
	if c := w.judge().Conflicts[0]; keeper(&c) != "a" || c.Right != verdict.RightAllocation {
		t.Fatalf("got %q by %d, want a by its allocation", keeper(&c), c.Right)
	}
	w.Allocations = nil
	if c := w.judge().Conflicts[0]; c.Keeper != "" || c.Right != verdict.RightUndecided {
		t.Errorf("got %q by %d, want no owner", keeper(&c), c.Right)
	}
}

// A cause is sought for every pair of owners.
func TestCausesOfSeveralOwners(t *testing.T) {
	// pool adds a pool of a node that has an allocation for a pod there.
	pool := func(w *world, node string) {
		w.Within(node, "", "pods", verdicttest.Who("web"+node))
		w.Books(w.Pool(hostlocal.Name, node, "pods"), "web"+node)
	}
	for _, test := range []struct {
		name     string
		build    func(w *world)
		cause    string
		excluded []string
	}{
		{"two of one node and one of another, in the ranges of pods of both", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, name := range []string{"a", "b"} {
				w.Within("n1", "", "pods", verdicttest.Who(name))
			}
			w.Within("n2", "", "pods", verdicttest.Who("c"))
		}, overlap, []string{networks, static}},
		{"one of a pool of the cluster, and two of ranges of pods", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2", "n3"} {
				w.Within(node, "", "pods", verdicttest.Who("web"+node))
			}
			w.Books(w.Pool(whereabouts.Name, "", "lan"), "webn1")
		}, overlap, []string{elsewhere, lost, static}},
		{"the first of two has it from a pool of the cluster, in the ranges of pods", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2"} {
				w.Within(node, "", "pods", verdicttest.Who("web"+node))
			}
			w.Books(w.Pool(whereabouts.Name, "", "lan"), "webn1")
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"the second of two has it from a pool of the cluster, in the ranges of pods", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			for _, node := range []string{"n1", "n2"} {
				w.Within(node, "", "pods", verdicttest.Who("web"+node))
			}
			w.Books(w.Pool(whereabouts.Name, "", "lan"), "webn2")
		}, unknown, []string{elsewhere, overlap, lost, static}},
		{"one of no known range, and two of pools", func(w *world) {
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			pool(w, "n2")
			pool(w, "n3")
		}, overlap, []string{lost, static}},
		{"one of no known range, and two of pools, in the range of pods of another node", func(w *world) {
			w.PodCIDR, w.PodCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n9"
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			pool(w, "n2")
			pool(w, "n3")
		}, overlap, []string{lost, static}},
		{"two of no known range, and two of pools", func(w *world) {
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "pods", verdicttest.Who("b"))
			pool(w, "n3")
			pool(w, "n4")
		}, overlap, []string{lost, static}},
		{"two without a source, and two of pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			w.Within("n1", "", "", verdicttest.Who("a"))
			w.Within("n2", "", "", verdicttest.Who("b"))
			pool(w, "n3")
			pool(w, "n4")
		}, overlap, []string{lost}},
		{"pools of two nodes that have it outside of their ranges", func(w *world) {
			for _, node := range []string{"n1", "n2"} {
				w.Within(node, "", "pods", verdicttest.Who("web"+node))
				w.Books(w.Pool(hostlocal.Name, node, "lab", "10.9.0.1-10.9.0.9"), "web"+node)
			}
		}, overlap, []string{lost, static}},
		{"bridges of two nodes with an address of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.Device(node, "cni0", "bridge")
				w.Pool(hostlocal.Name, node, "pods").Device = "cni0"
			}
		}, overlap, []string{split}},
		{"devices of two nodes that are no bridges, with an address of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.Device(node, "cni0", "dummy")
				w.Pool(hostlocal.Name, node, "pods").Device = "cni0"
			}
		}, static, []string{split}},
		{"bridges of two nodes with an address outside of their pools", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.Device(node, "cni0", "bridge")
				w.Pool(hostlocal.Name, node, "pods", "10.9.0.1-10.9.0.9").Device = "cni0"
			}
		}, unknown, []string{split}},

		{"one of another node, and two networks of one node", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n2", "", "net0", verdicttest.Who("b"))
			w.Within("n2", "", "net1", verdicttest.Who("c"))
		}, networks, []string{static}},
		{"one without a source, and two networks", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Within("n1", "", "", blue("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			w.Within("n1", "", "net1", verdicttest.Who("c"))
		}, networks, nil},
		{"two of one network, and one of another", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			w.Within("n1", "", "net1", verdicttest.Who("c"))
		}, networks, []string{static}},
		{"two containers of one bridge, and a network", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Bridge("n1", "br0", "10.244.0.1/16")
			for _, id := range []string{"c1", "c2"} {
				w.Within("n1", "br0", "", verdict.Workload{Kind: verdict.Container, ContainerID: id, Source: "cgroup"})
			}
			w.Within("n1", "", "net1", verdicttest.Who("c"))
		}, networks, nil},
		{"a network and a container of one bridge, and another network", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Bridge("n1", "cni0", "10.244.0.1/16")
			w.Within("n1", "cni0", "net0", verdicttest.Who("a"))
			w.Within("n1", "cni0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c2", Source: "cgroup"})
			w.Within("n1", "", "net1", verdicttest.Who("c"))
		}, networks, nil},
		{"two networks of one pool, and another network", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net1", verdicttest.Who("b"))
			w.Within("n1", "", "net2", verdicttest.Who("c"))
			w.Pool(hostlocal.Name, "n1", "").Networks = []string{"net0", "net1"}
		}, networks, []string{static}},
		{"a network, and a bridge of the node with a prefix that has it", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Subnet(w.Device("n1", "br0", "bridge"), "10.244.0.1/16")
		}, static, []string{tunnel}},

		{"a node whose device is no tunnel, and one whose device is", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Device("n1", "eth0", "")
			w.Device("n2", "vxlan0", "vxlan")
			w.Within("n3", "", "net0", verdicttest.Who("a"))
		}, tunnel, nil},
		{"two pods and a tunnel", func(w *world) {
			w.declare("all 10.0.0.0/8")
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			w.Device("n1", "vxlan0", "vxlan")
		}, tunnel, []string{networks}},

		{"it was allocated for another node, and the rival came first", func(w *world) {
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "web", Node: "n9"}})
		}, elsewhere, []string{overlap, static}},
		{"nodename is wrong, and the pod's own record vanished", func(w *world) {
			w.Node("n1").IPAMName = ipam.NodeName{Name: "n9", Source: ipam.FileName, File: "/var/lib/calico/nodename"}
			a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "web", Node: "n1"}})
		}, lost, []string{elsewhere, overlap, static}},
		{"two sandboxes of one pod, one of them allocated elsewhere", func(w *world) {
			a := w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			second := verdicttest.Who("a")
			second.ContainerID = "container-b"
			w.Within("n1", "", "kindnet", second)
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: w.Pool(calico.IPAM.Name, "", ""), Allocation: ipam.Allocation{Namespace: "default", Pod: "x", Node: "n9"}})
		}, unknown, nil},
		{"two owners that match one record equally well", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Pod("a"))
			w.Within("n1", "", "kindnet", verdicttest.Pod("b"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "x")
		}, lost, []string{networks, static}},
		{"two owners that match two records equally well", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Pod("a"))
			w.Within("n1", "", "kindnet", verdicttest.Pod("b"))
			p := w.Pool(hostlocal.Name, "n1", "kindnet")
			w.Books(p, "x")
			w.Books(p, "y")
		}, unknown, []string{networks, lost, static}},
		{"one with a record, and one that cannot be identified", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n1", "", "kindnet", verdicttest.Pod("b"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "a")
		}, lost, []string{networks, static}},
		{"a possible pool without records, and one of another IPAM with records for both", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Books(p, "a")
			w.Books(p, "b")
			w.Pool(hostlocal.Name, "n1", "")
		}, verdict.CauseIPAMAllocatedTwice, []string{elsewhere, networks, lost, static}},
		{"a possible pool without records, and one of another realm with records for both", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			p, q := w.Pool(whereabouts.Name, "", "net0"), w.Pool(whereabouts.Name, "", "net0")
			p.Realm, q.Realm, q.Name = "red", "blue", "q"
			w.Books(p, "a")
			w.Books(p, "b")
		}, verdict.CauseIPAMAllocatedTwice, []string{elsewhere, networks, lost, static}},
		{"a pool without records whose range does not have it", func(w *world) {
			w.Within("n1", "", "net0", verdicttest.Who("a"))
			w.Within("n1", "", "net0", verdicttest.Who("b"))
			w.Pool(hostlocal.Name, "n1", "net0", "10.9.0.1-10.9.0.9")
		}, unknown, []string{networks, static}},
		{"IPAM has it for one, and another record without a holder", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Within("n1", "", "", blue("blue"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "").ContainerID = ""
		}, unknown, []string{lost, static}},
		{"IPAM has it for one, and of the other one, a pod, no CNI result is known", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			mad := verdicttest.Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		}, unknown, []string{lost, static}},
		{"a container known from a CNI result", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Within("n1", "", "", verdict.Workload{Kind: verdict.Container, Name: "c", Source: "cni-result"})
		}, unknown, []string{static}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.wantCause(t, test.name, test.cause, test.excluded...)
	}
}

// sourced sets the source of a namespace's workload.
func sourced(ns *verdict.Namespace, source, sources string) {
	who := ns.Who.Workload()
	who.Source, who.Sources = source, sources
	ns.Who = who.Who()
}

// A cause has a headline and, if it is certain, the owners that should give the address up.
func TestHeadlinesOfCauses(t *testing.T) {
	for name, want := range map[string]struct{ headline, wrong string }{
		"T1 the record of the first pod is gone":                                          {"record-lost-given-again owners=old pool=host-local|n1|kindnet", ""},
		"T1 all records are gone":                                                         {"record-lost-given-again pool=host-local|n1|kindnet", ""},
		"T3 booked for another node":                                                      {"freed-with-other-owner owners=web record=default|web||n9", "web"},
		"T3 nodename is another node's":                                                   {"freed-with-other-node owners=web called=n9@/var/lib/calico/nodename", "web"},
		"T3 the CNI configuration has the name of another node":                           {"freed-with-other-node owners=web called=n9@/etc/cni/net.d/10-calico.conflist", "web"},
		"T5 each node's own IPAM has it for its own pod":                                  {"nodes-with-one-range nodes=n1,n2 ranges=10.244.0.1-10.244.255.254", ""},
		"T5 the ranges of pods of both nodes have it":                                     {"nodes-with-one-range nodes=n1,n2", ""},
		"T14 two CNI networks":                                                            {"networks-overlap nodes=n1", ""},
		"T6 on the node":                                                                  {"not-given owners=n1", "n1"},
		"a pod on the LAN of its node gets the address that the node had first":           {"node-had-it-first owners=n1,web pool=host-local|n1|lan", "web"},
		"a pod on the LAN of its node had the address before somebody set it on the node": {"not-given owners=n1", "n1"},
		"T6 in a pod whose CNI result does not have it":                                   {"not-given owners=mad", "mad"},
		"T7 a machine outside has the node's address":                                     {"owners-outside owners=" + verdict.MAC(externalMAC).String(), verdict.MAC(externalMAC).String()},
		"T10 the pod is deleted, and IPAM has allocated its address again":                {"sandbox-left owners=old", "old"},
		"T11 a tunnel":                    {"tunnel-has-address owners=n1,web device=vxlan.calico text=vxlan", "web"},
		"T11 the bridge that pods are on": {"not-given-gateway owners=web device=cni0", "web"},
	} {
		i := slices.IndexFunc(verdicttest.Situations, func(s verdicttest.Situation) bool { return s.Name == name })
		if i < 0 {
			t.Errorf("%s: no situation has this name", name)
			continue
		}
		_, c := verdicttest.Situations[i].Judge()
		if c == nil || c.Headline == nil {
			t.Errorf("%s: got conflict %+v, want one with a headline", name, c)
			continue
		}
		var wrong []string
		for _, id := range c.Wrong {
			wrong = append(wrong, verdicttest.Name(c, id))
		}
		if got := verdicttest.Words(c, *c.Headline)[0]; got != want.headline || strings.Join(wrong, " ") != want.wrong {
			t.Errorf("%s: got %s, wrong %q, want %s, wrong %q", name, got, wrong, want.headline, want.wrong)
		}
	}
}

// A cause names the wrong owners, the pools involved, and the networks or nodes whose ranges
// overlap.
func TestOperandsOfCauses(t *testing.T) {
	for _, test := range []struct {
		name     string
		build    func(w *world)
		wrong    []string
		from     []string
		networks []string
	}{
		{"a tunnel, and a pod with the address from a pool", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Device("n1", "vxlan0", "vxlan")
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
			w.Pool(hostlocal.Name, "n9", "kindnet")
		}, []string{"web"}, []string{"host-local kindnet n1"}, nil},
		{"a tunnel, and a pod for which calico.IPAM.Name has it", func(w *world) {
			w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Device("n1", "vxlan.calico", "vxlan")
			w.Calico(w.Pool(calico.IPAM.Name, "", ""), "web", "n1")
		}, []string{"n1"}, []string{"calico "}, nil},
		{"a tunnel that calico.IPAM.Name has it for, and a pod", func(w *world) {
			w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
			w.Device("n1", "vxlan.calico", "vxlan")
			al := w.Calico(w.Pool(calico.IPAM.Name, "", ""), "", "n1")
			al.Purpose, al.ContainerID, al.Namespace = "VXLAN tunnel", "", ""
		}, []string{"web"}, []string{"calico "}, nil},
		{"bridges of two nodes", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "cni0", "pods", verdicttest.Who(n)).PrefixLength = 32
				w.Bridge(n, "cni0", "10.244.0.1/16")
			}
		}, nil, nil, []string{"n1 n1  cni0 10.244.0.0/16", "n2 n2  cni0 10.244.0.0/16"}},
		{"ranges of pods, of which one node has a pool", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Within("n1", "", "pods", verdicttest.Who("a"))
			w.Within("n2", "", "pods", verdicttest.Who("b"))
			w.Books(w.Pool(hostlocal.Name, "n2", "pods"), "b")
		}, nil, []string{"host-local pods n2"}, []string{"a n1  ", "b n2   10.244.0.1-10.244.255.254 host-local pods n2"}},
		{"pools of two nodes", func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", verdicttest.Who("web"+n))
				w.Books(w.Pool(hostlocal.Name, n, "pods"), "web"+n)
			}
		}, nil, []string{"host-local pods n1", "host-local pods n2"}, []string{"webn1 n1   10.244.0.1-10.244.255.254 host-local pods n1", "webn2 n2   10.244.0.1-10.244.255.254 host-local pods n2"}},
		{"two networks with pools", func(w *world) {
			w.Within("n1", "cni0", "net0", verdicttest.Who("a"))
			w.Within("n1", "cni1", "net1", verdicttest.Who("b"))
			w.Books(w.Pool(hostlocal.Name, "n1", "net0", "10.244.1.1-10.244.1.9"), "a")
			w.Books(w.Pool(hostlocal.Name, "n1", "net1", "10.244.1.2-10.244.1.8"), "b")
		}, nil, []string{"host-local net0 n1", "host-local net1 n1"}, []string{"a n1 net0 cni0 10.244.1.1-10.244.1.9 host-local net0 n1", "b n1 net1 cni1 10.244.1.2-10.244.1.8 host-local net1 n1"}},
		{"a network with a pool, and a bridge", func(w *world) {
			w.Bridge("n1", "br0", "10.244.0.1/16")
			w.Within("n1", "br0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c", Source: "cgroup"})
			w.Within("n1", "cni1", "net1", verdicttest.Who("b"))
			w.Pool(hostlocal.Name, "n1", "net1", "10.244.1.2-10.244.1.8")
		}, nil, []string{"host-local net1 n1"}, []string{"c n1  br0 10.244.0.0/16", "b n1 net1 cni1 10.244.1.2-10.244.1.8 host-local net1 n1"}},
		{"a record that is lost", func(w *world) {
			verdicttest.Twins(w.World)
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
			w.Pool(hostlocal.Name, "n1", "other", "10.9.0.1-10.9.0.9")
		}, nil, []string{"host-local kindnet n1"}, nil},
		{"in a pod, and in a range of IPAM", func(w *world) {
			w.Within("n1", "", "", verdicttest.Who("mad"))
			w.Within("n1", "", "", blue("blue"))
			w.Pool(hostlocal.Name, "n1", "lab")
			w.Pool(hostlocal.Name, "n1", "far", "10.9.0.1-10.9.0.9")
		}, []string{"mad"}, []string{"host-local lab n1"}, nil},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		c := w.judge().Conflicts[0]
		var wrong, from, networks []string
		for _, id := range c.Wrong {
			wrong = append(wrong, verdicttest.Name(&c, id))
		}
		for _, p := range c.From {
			from = append(from, p.Subject())
		}
		for _, n := range c.Networks {
			text := strings.Join([]string{verdicttest.Name(&c, n.Owner), n.Node.Name, n.Network, n.Device}, " ")
			for _, r := range n.Ranges.List {
				text += " " + r.String()
			}
			if n.Pool != nil {
				text += " " + n.Pool.Subject()
			}
			networks = append(networks, text)
		}
		for _, all := range [][]string{from, networks} {
			for i := range all {
				all[i] = strings.ReplaceAll(all[i], "/var/lib/cni/networks/", "")
			}
		}
		if !slices.Equal(wrong, test.wrong) || !slices.Equal(from, test.from) || !slices.Equal(networks, test.networks) {
			t.Errorf("%s: got wrong %q, from %q, networks %q, want %q, %q, %q", test.name, wrong, from, networks, test.wrong, test.from, test.networks)
		}
	}
}
