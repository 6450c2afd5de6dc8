package audit_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// auditAll judges and audits with all pools.
func (w *world) auditAll(before ...verdict.Finding) audit.Result {
	w.policy.LeakedAfter = 5 * time.Minute
	out := w.judge()
	in := w.input()
	in.Before = before
	return audit.Address(&w.policy, in, &out)
}

// told returns the findings that do not wait, each as KIND POOL.
func told(findings []verdict.Finding) (kinds []string) {
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

// wantTold waits as long as nothing may be told, and checks what is told then.
func (w *world) wantTold(t *testing.T, why string, want ...string) {
	t.Helper()
	before := w.auditAll().Findings
	w.after(10 * time.Minute)
	if got := told(w.auditAll(before...).Findings); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", why, got, want)
	}
}

const (
	unallocated = verdict.FindingInUseUnallocated
	bookedElse  = verdict.FindingBookedElsewhere
	leaked      = verdict.FindingLeaked
	double      = verdict.FindingDoubleAllocated
)

// pooled is a pool of one node, or of the cluster if node is empty, that has the address in its
// range.
func (w *world) pooled(name, ipam, node string) *verdict.Pool {
	p := &verdict.Pool{IPAM: ipam, Name: name, State: verdict.PoolKnown, Ranges: []verdict.Range{verdict.RangeOf(netip.MustParsePrefix("10.244.0.0/24"))}}
	if node != "" {
		p.Node = w.node(node)
	}
	w.pools = append(w.pools, p)
	return p
}

// byHand is a namespace that somebody made, on a point-to-point veth of n1.
func (w *world) byHand() *verdict.Interface {
	inside, _ := w.veth(w.namespace("n1", 2, "77", blue("lab")), "baaaaa", w.link("n1", "vlab", verdict.PointToPoint, false))
	w.assigned(inside)
	return inside
}

// A pool is only concerned if what gets an address of it meets the owner.
func TestWhichPoolsAnAddressIsCheckedAgainst(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world)
		want  []string
	}{
		{"a pool of the cluster, and an owner that the node routes to", func(w *world) {
			w.byHand()
			w.pooled("p", verdict.Calico, "")
		}, []string{unallocated + " p"}},
		{"a pool of the cluster, and an owner that the node does not route to", func(w *world) {
			w.byHand().Link = w.link("n1", "br0", verdict.Bridge, false)
			w.pooled("p", verdict.Calico, "")
		}, nil},
		{"a pool of the cluster that gives only what is asked for, and a pod", func(w *world) {
			w.byHand()
			w.pooled("p", verdict.Calico, "").Asked = true
		}, []string{unallocated + " p"}},
		{"a pool of the cluster, and the bridge of docker", func(w *world) {
			i := w.iface(w.host("n1"), verdict.Interface{Name: "docker0", Attachment: verdict.Own, Link: w.link("n1", "br0", verdict.Bridge, true)})
			w.assigned(i)
			w.pooled("p", verdict.Calico, "")
		}, nil},
		{"a pool of the cluster, and an interface of the node without a link", func(w *world) {
			w.assigned(w.iface(w.host("n1"), verdict.Interface{Name: "tun0", Attachment: verdict.Own}))
			w.pooled("p", verdict.Calico, "")
		}, []string{unallocated + " p"}},
		{"a pool of whereabouts, and a child of an uplink", func(w *world) {
			i := w.byHand()
			i.Attachment, i.Link = verdict.Lower, w.link("n1", "eth0", verdict.Uplink, false)
			w.pooled("p", verdict.Whereabouts, "")
		}, []string{unallocated + " p"}},
		{"a pool of whereabouts, and a veth", func(w *world) {
			w.byHand()
			w.pooled("p", verdict.Whereabouts, "")
		}, nil},
		{"a pool of whereabouts, and a child of an uplink that is the node's own", func(w *world) {
			w.assigned(w.iface(w.host("n1"), verdict.Interface{Name: "mac0", Attachment: verdict.Lower, Link: w.link("n1", "eth0", verdict.Uplink, false)}))
			w.pooled("p", verdict.Whereabouts, "")
		}, nil},
		{"a pool of a bridge, and an owner on it", func(w *world) {
			w.byHand().Link = w.link("n1", "br0", verdict.Bridge, false)
			w.pooled("p", verdict.HostLocal, "n1").Device = "br0"
		}, []string{unallocated + " p"}},
		{"a pool of a bridge, and an owner on another one", func(w *world) {
			w.byHand().Link = w.link("n1", "br1", verdict.Bridge, false)
			w.pooled("p", verdict.HostLocal, "n1").Device = "br0"
		}, nil},
		{"a pool of an uplink, and a child of it", func(w *world) {
			i := w.byHand()
			i.Attachment, i.Link, i.HostInterface = verdict.Lower, w.link("n1", "lan", verdict.Uplink, false), "eth0"
			w.pooled("p", verdict.HostLocal, "n1").Device = "eth0"
		}, []string{unallocated + " p"}},
		{"a pool of an uplink, and an interface without a link", func(w *world) {
			i := w.iface(w.host("n1"), verdict.Interface{Name: "tun0", Attachment: verdict.Own})
			w.assigned(i)
			w.pooled("p", verdict.HostLocal, "n1").Device = "eth0"
		}, nil},
		{"a pool whose device is not known, and an interface without a host interface", func(w *world) {
			i := w.iface(w.host("n1"), verdict.Interface{Name: "tun0", Attachment: verdict.Own})
			w.assigned(i)
			w.pooled("p", verdict.HostLocal, "n1")
		}, nil},
		{"a pool whose device is not known, and a link without a name", func(w *world) {
			w.byHand().Link = w.link("n1", "", verdict.Bridge, false)
			w.pooled("p", verdict.HostLocal, "n1")
		}, nil},
		{"a routed pool, and an owner that the node does not route to", func(w *world) {
			w.byHand().Link = w.link("n1", "br0", verdict.Bridge, false)
			w.pooled("p", verdict.HostLocal, "n1").Routed = true
		}, nil},
		{"a routed pool, and an owner in a VRF", func(w *world) {
			w.byHand().VRF = "red"
			w.pooled("p", verdict.HostLocal, "n1").Routed = true
		}, nil},
		{"a pool that is not routed, and an owner that the node routes to", func(w *world) {
			w.byHand()
			w.pooled("p", verdict.HostLocal, "n1")
		}, nil},
		{"a routed pool of another node", func(w *world) {
			w.byHand()
			w.pooled("p", verdict.HostLocal, "n2").Routed = true
		}, nil},
		{"a routed pool with another range", func(w *world) {
			w.byHand()
			p := w.pooled("p", verdict.HostLocal, "n1")
			p.Routed, p.Ranges = true, []verdict.Range{verdict.RangeOf(netip.MustParsePrefix("10.9.0.0/24"))}
		}, nil},
		{"a routed pool with another range that has given it to somebody", func(w *world) {
			w.byHand()
			p := w.pooled("p", verdict.HostLocal, "n1")
			p.Routed, p.Ranges = true, []verdict.Range{verdict.RangeOf(netip.MustParsePrefix("10.9.0.0/24"))}
			lab := pod("lab")
			lab.ContainerID = "container-lab"
			w.namespaces[0].Who = lab.Who()
			w.allocate(p, verdict.Allocation{ContainerID: "container-other"})
		}, []string{bookedElse + " p"}},
		{"a pool of no known range", func(w *world) {
			w.byHand()
			p := w.pooled("p", verdict.HostLocal, "n1")
			p.Routed, p.Ranges = true, nil
		}, nil},
		{"a pool of no known range, and a pod of its network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			p := w.pooled("p", verdict.HostLocal, "n1")
			p.Network, p.Ranges = "kind", nil
		}, []string{unallocated + " p"}},
		{"a routed pool of another network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			p := w.pooled("p", verdict.HostLocal, "n1")
			p.Network, p.Routed = "lab", true
		}, []string{unallocated + " p"}},
		{"a pool of Calico of another network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.pooled("p", verdict.Calico, "").Network = "lab"
		}, []string{unallocated + " p"}},
		{"a pool of Cilium of another network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.pooled("p", verdict.Cilium, "").Network = "lab"
		}, nil},
		{"a pool of Cilium of no known network", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.pooled("p", verdict.Cilium, "")
		}, []string{unallocated + " p"}},
		{"a pool of Cilium of another network, and an owner of no known network", func(w *world) {
			w.byHand()
			w.pooled("p", verdict.Cilium, "").Network = "lab"
		}, []string{unallocated + " p"}},
		{"a pool of the owner's network, and another one", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.pooled("p", verdict.Calico, "")
			w.pooled("q", verdict.HostLocal, "n1").Network = "kind"
		}, []string{unallocated + " q"}},
		{"a pool of one of the owner's networks", func(w *world) {
			c := w.kindPod("n1", "a", "kind", 2)
			w.assigned(w.iface(c.Interface.Namespace, verdict.Interface{Name: "net1", Attachment: verdict.Lower, Link: w.link("n1", "eth0", verdict.Uplink, false)})).Network = "lan"
			w.pooled("p", verdict.HostLocal, "n1").Network = "lan"
			w.pooled("q", verdict.HostLocal, "n1").Network = "lab"
		}, []string{unallocated + " p"}},
		{"of pools, one has it for the owner", func(w *world) {
			w.kindPod("n1", "a", "kind", 2)
			w.allocate(w.pooled("gave", verdict.Calico, ""), verdict.Allocation{Namespace: "default", Pod: "a"})
			w.pooled("ofNode", verdict.HostLocal, "n1").Routed = true
			w.pooled("otherIPAM", verdict.Cilium, "")
			w.pooled("sameIPAM", verdict.Calico, "")
			w.pooled("otherRealm", verdict.Calico, "").Realm = "red"
		}, []string{unallocated + " ofNode", unallocated + " sameIPAM"}},
	} {
		w := newWorld("10.244.0.7")
		test.build(w)
		w.wantTold(t, test.name, test.want...)
	}
}

// An allocation is the owner's own, or it is somebody else's.
func TestForWhomAnAllocationIs(t *testing.T) {
	podObject := func(node string) *verdict.PodObject {
		return &verdict.PodObject{Namespace: "default", Name: "a", Node: node, Phase: "Running"}
	}
	for _, test := range []struct {
		name  string
		al    verdict.Allocation
		build func(w *world, c *verdict.Claim)
		mine  bool
	}{
		{"for its container", verdict.Allocation{ContainerID: "sandbox-a"}, nil, true},
		{"for another container", verdict.Allocation{ContainerID: "sandbox-b"}, nil, false},
		{"for its container, in the name of another pod", verdict.Allocation{ContainerID: "sandbox-a", Namespace: "default", Pod: "b"}, nil, true},
		{"for its name, and another container", verdict.Allocation{ContainerID: "sandbox-b", Namespace: "default", Pod: "a"}, nil, true},
		{"for its name in another namespace", verdict.Allocation{Namespace: "kube-system", Pod: "a"}, nil, false},
		{"for another name", verdict.Allocation{Namespace: "default", Pod: "b"}, nil, false},
		{"for another container than the one that a cgroup tells", verdict.Allocation{ContainerID: "sandbox-b"}, func(_ *world, c *verdict.Claim) {
			sourced(c.Interface.Namespace, "cgroup", "")
		}, true},
		{"for another container than the one that a process tells", verdict.Allocation{ContainerID: "sandbox-b"}, func(_ *world, c *verdict.Claim) {
			sourced(c.Interface.Namespace, "process", "")
		}, true},
		{"for another container than the one that only a cgroup tells", verdict.Allocation{ContainerID: "sandbox-b"}, func(_ *world, c *verdict.Claim) {
			sourced(c.Interface.Namespace, "cri", "name=kubernetes,containerId=cgroup")
		}, true},
		{"for another container than the one that the runtime tells", verdict.Allocation{ContainerID: "sandbox-b"}, func(_ *world, c *verdict.Claim) {
			sourced(c.Interface.Namespace, "cgroup", "name=kubernetes,containerId=cri")
		}, false},
		{"for its node", verdict.Allocation{Node: "n1", ContainerID: "sandbox-a"}, nil, true},
		{"for another node", verdict.Allocation{Node: "n2", ContainerID: "sandbox-a"}, nil, false},
		{"for its node by a longer name", verdict.Allocation{Node: "N1.example.org", ContainerID: "sandbox-a"}, nil, true},
		{"for a node whose name begins as its node's", verdict.Allocation{Node: "n10", ContainerID: "sandbox-a"}, nil, false},
		{"for what Kubernetes calls its node", verdict.Allocation{Node: "ip-10-0-0-1", ContainerID: "sandbox-a"}, func(w *world, _ *verdict.Claim) {
			w.pods = map[string]*verdict.PodObject{"uid-a": podObject("ip-10-0-0-1")}
		}, true},
		{"for another node than Kubernetes has the pod on", verdict.Allocation{Node: "ip-10-0-0-2", ContainerID: "sandbox-a"}, func(w *world, _ *verdict.Claim) {
			w.pods = map[string]*verdict.PodObject{"uid-a": podObject("ip-10-0-0-1")}
		}, false},
		{"for a pod that Kubernetes has on no node yet", verdict.Allocation{Node: "n1", ContainerID: "sandbox-a"}, func(w *world, _ *verdict.Claim) {
			w.pods = map[string]*verdict.PodObject{"uid-a": podObject("")}
		}, true},
		{"for nobody in particular", verdict.Allocation{}, nil, true},
		{"for a tunnel", verdict.Allocation{Purpose: "VXLAN tunnel"}, nil, false},
		{"for a container, and the owner is a namespace without one", verdict.Allocation{ContainerID: "sandbox-b"}, func(_ *world, c *verdict.Claim) {
			c.Interface.Namespace.Who = blue("lab").Who()
		}, true},
		{"for a pod, and the owner is a namespace that nobody knows", verdict.Allocation{Namespace: "default", Pod: "b"}, func(_ *world, c *verdict.Claim) {
			c.Interface.Namespace.Who = blue("b").Who()
		}, true},
		{"for Calico's own purpose, and the owner is a namespace that nobody knows", verdict.Allocation{Purpose: "health"}, func(_ *world, c *verdict.Claim) {
			c.Interface.Namespace.Who = blue("health").Who()
		}, false},
	} {
		w := newWorld("10.244.0.7")
		c := w.kindPod("n1", "a", "kind", 2)
		if test.build != nil {
			test.build(w, c)
		}
		w.allocate(w.pooled("p", verdict.Calico, ""), test.al)
		want := []string{bookedElse + " p"}
		if test.mine {
			want = nil
		}
		w.wantTold(t, test.name, want...)
	}
}

// sourced sets what tells of the container in a namespace.
func sourced(ns *verdict.Namespace, source, sources string) {
	who := ns.Who.Workload()
	who.Source, who.Sources = source, sources
	ns.Who = who.Who()
}

func TestANodeIsCalledByOtherNames(t *testing.T) {
	for _, test := range []struct {
		node, name string
		want       bool
	}{
		{"n1", "n1", true},
		{"n1", "N1", true},
		{"n1.example.org", "n1", true},
		{"n1", "n1.example.org", true},
		{"n1", "n10", false},
		{"n10", "n1", false},
		{"n1", "", false},
		{"", "n1", false},
		{"n1@boot", "n1.example.org", true},
		{"n1", "n2", false},
		{"n1.example.org", "n1.example.com", false},
		{"n2", "n1", false},
	} {
		n := verdict.Node{Name: test.node}
		if got := n.Called(test.name); got != test.want {
			t.Errorf("%q for %q: got %t, want %t", test.name, test.node, got, test.want)
		}
	}
}

func TestWhatIsLeaked(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, p *verdict.Pool, al *verdict.Allocation)
		want  bool
	}{
		{"nobody has it", nil, true},
		{"somebody on its node has it", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.byHand() }, false},
		{"somebody on another node has it", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.kindPod("n2", "b", "kind", 2) }, true},
		{"somebody on another node has it, and the pool is the cluster's", func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
			w.kindPod("n2", "x", "", 2)
		}, false},
		{"somebody had it", func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
			w.wire(w.uplink("n1"), "\x02\x00\x00\x00\x00\x99").Seen = start.Add(-w.policy.StaleAfter)
		}, true},
		{"the API has it of no pod", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.listed = true }, true},
		{"it is for a tunnel", func(_ *world, _ *verdict.Pool, al *verdict.Allocation) { al.Purpose = "tunnel" }, false},
		{"it is for nobody in particular", func(_ *world, _ *verdict.Pool, al *verdict.Allocation) { al.ContainerID = "" }, false},
		{"the Kubernetes API has it for a pod", func(_ *world, p *verdict.Pool, _ *verdict.Allocation) { p.IPAM = verdict.KubernetesAPI }, false},
		{"the pool is not known", func(_ *world, p *verdict.Pool, _ *verdict.Allocation) { p.State = verdict.PoolStale }, false},
		{"its node is silent", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.node("n1").Unheard = true }, false},
		{"an agent of its node does not see its pods", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.uncovered = []string{"n1"} }, false},
		{"an agent of another node does not see its pods", func(w *world, _ *verdict.Pool, _ *verdict.Allocation) { w.uncovered = []string{"n2"} }, true},
		{"an agent of another node does not see its pods, and the pool is the cluster's", func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
			w.uncovered = []string{"n2"}
		}, false},
	} {
		w := newWorld("10.244.0.7")
		p := w.pooled("p", verdict.HostLocal, "n1")
		al := w.allocate(p, verdict.Allocation{ContainerID: "sandbox-x"})
		if test.build != nil {
			test.build(w, p, al)
		}
		before := w.auditAll()
		w.after(10 * time.Minute)
		out := w.auditAll(before.Findings...)
		if got := slices.Contains(told(out.Findings), leaked+" p"); got != test.want {
			t.Errorf("%s: got %+v, want it leaked: %t", test.name, out.Findings, test.want)
		}
	}
}

func TestWhatIsFoundIsKeptWhileNothingCanBeKnown(t *testing.T) {
	type step struct {
		name   string
		change func(w *world, p *verdict.Pool)
		want   []string
	}
	const inUse = unallocated + " p"
	for _, test := range []step{
		{"its node is silent", func(w *world, _ *verdict.Pool) { w.node("n1").Unheard = true }, []string{inUse}},
		{"the pool is being read", func(_ *world, p *verdict.Pool) { p.State = verdict.PoolReading }, []string{inUse}},
		{"the pool cannot be read", func(_ *world, p *verdict.Pool) { p.State = verdict.PoolUnreadable }, []string{inUse}},
		{"its records are gone", func(_ *world, p *verdict.Pool) { p.State = verdict.PoolMissing }, []string{inUse}},
		{"it is another pool that is being read", func(w *world, p *verdict.Pool) {
			other := *p
			other.Name, other.State = "other", verdict.PoolReading
			w.pools = []*verdict.Pool{&other}
		}, nil},
		{"there is a conflict, and the pool is being read", func(w *world, p *verdict.Pool) {
			p.State = verdict.PoolReading
			inside, _ := w.veth(w.namespace("n1", 9, "n19", pod("b")), "bbbbbb", w.link("n1", "v9", verdict.PointToPoint, false))
			w.assigned(inside)
		}, nil},
	} {
		w := newWorld("10.244.0.7")
		w.kindPod("n1", "a", "kind", 2)
		p := w.pooled("p", verdict.HostLocal, "n1")
		p.Network = "kind"
		waiting := w.auditAll().Findings
		if len(waiting) != 1 || !waiting[0].Waiting {
			t.Fatalf("got %+v at once, want one that waits", waiting)
		}
		before := w.after(time.Second).auditAll(waiting...).Findings
		test.change(w, p)
		if got := told(w.auditAll(before...).Findings); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		// What was not told before is not kept.
		if p.State != verdict.PoolMissing {
			if got := w.auditAll(waiting...).Findings; len(got) != 0 && test.want != nil {
				t.Errorf("%s: got %+v kept that was never told", test.name, got)
			}
		}
		// Nor is what another rule found.
		other := before[0]
		other.Kind, other.ID = leaked, "other"
		if got := told(w.auditAll(other).Findings); slices.Contains(got, leaked+" p") {
			t.Errorf("%s: got %q, which is nothing about an owner", test.name, got)
		}
	}

	// A leak, too: its pool, and the node of the pool.
	for name, change := range map[string]func(w *world, p *verdict.Pool){
		"its node is silent": func(w *world, _ *verdict.Pool) { w.node("n1").Unheard = true },
		"it is being read":   func(_ *world, p *verdict.Pool) { p.State = verdict.PoolReading },
	} {
		w := newWorld("10.244.0.7")
		p := w.pooled("p", verdict.HostLocal, "n1")
		w.allocate(p, verdict.Allocation{ContainerID: "x"})
		first := w.auditAll().Findings
		before := w.after(5 * time.Minute).auditAll(first...).Findings
		change(w, p)
		out := w.auditAll(before...)
		if got := told(out.Findings); !slices.Equal(got, []string{leaked + " p"}) || out.Again != w.now.Add(5*time.Minute) {
			t.Errorf("%s: got %q, again %d, want it kept, and looked at again", name, got, out.Again)
		}
	}

	// One finding is kept once, though two allocations keep it.
	w := newWorld("10.244.0.7")
	p := w.pooled("p", verdict.HostLocal, "n1")
	w.allocate(p, verdict.Allocation{ContainerID: "x", Location: "1"})
	w.allocate(p, verdict.Allocation{ContainerID: "x", Location: "2"})
	first := w.auditAll().Findings
	before := w.after(5 * time.Minute).auditAll(first...).Findings
	p.State = verdict.PoolReading
	if got := told(w.auditAll(before...).Findings); !slices.Equal(got, []string{leaked + " p"}) {
		t.Errorf("got %q, want it once", got)
	}
}

func TestHowLongAnOwnerMayHoldWhatIsFree(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, p *verdict.Pool, c *verdict.Claim)
		want  time.Duration
	}{
		{"a pool of its node", nil, time.Second},
		{"its pod is deleted", func(w *world, _ *verdict.Pool, _ *verdict.Claim) {
			w.pods = map[string]*verdict.PodObject{"uid-a": {Namespace: "default", Name: "a", Phase: "Running", DeletionTimestamp: start}}
		}, 30 * time.Second},
		{"Cilium", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.IPAM = verdict.Cilium }, 5 * time.Minute},
		{"the records of the pool are gone", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.State = verdict.PoolMissing }, 0},
		{"the records were lost after it began", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.LostHeard = start + 1 }, 0},
		{"the records were lost when it began", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.LostHeard = start }, time.Second},
		{"the records were lost before it began", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.LostHeard = start - 1 }, time.Second},
		{"a pool of the cluster", func(_ *world, p *verdict.Pool, _ *verdict.Claim) { p.Node = nil }, 5 * time.Second},
		{"a pool of the cluster, and an owner of five seconds", func(_ *world, p *verdict.Pool, c *verdict.Claim) {
			p.Node = nil
			c.Begun = start.Add(-5 * time.Second)
		}, time.Second},
		{"a pool of its node, while the API is not heard from", func(w *world, _ *verdict.Pool, _ *verdict.Claim) { w.known = start - 1 }, time.Second},
		{"a pool of the cluster, while the API has not been heard from since the owner settled", func(w *world, p *verdict.Pool, c *verdict.Claim) {
			p.Node = nil
			c.Begun = start.Add(-5 * time.Second)
			w.known = c.Begun.Add(time.Second) - 1
		}, -1},
		{"a pool of the cluster, while the API has not been heard from since long after", func(w *world, p *verdict.Pool, c *verdict.Claim) {
			p.Node = nil
			c.Begun = start.Add(-5 * time.Second)
			w.known = c.Begun.Add(time.Second)
		}, time.Second},
	} {
		w := newWorld("10.244.0.7")
		c := w.kindPod("n1", "a", "kind", 2)
		p := w.pooled("p", verdict.HostLocal, "n1")
		p.Network = "kind"
		if test.build != nil {
			test.build(w, p, c)
		}
		first := w.auditAll()
		if test.want == 0 {
			if got := told(first.Findings); len(got) != 1 {
				t.Errorf("%s: got %+v, want it told at once", test.name, first.Findings)
			}
			continue
		}
		if test.want < 0 { // as long as the API is not heard from
			out := w.after(time.Hour).auditAll(first.Findings...)
			if len(told(out.Findings)) != 0 || out.Again != w.now.Add(time.Second) {
				t.Errorf("%s: got %+v, again %d, want to wait for a second each time", test.name, out.Findings, out.Again)
			}
			continue
		}
		if len(told(first.Findings)) != 0 || first.Again != start.Add(test.want) {
			t.Errorf("%s: got %+v, again after %s, want after %s", test.name, first.Findings, first.Again.Sub(start), test.want)
		}
		if out := w.after(test.want - 1).auditAll(first.Findings...); len(told(out.Findings)) != 0 {
			t.Errorf("%s: got %+v after less than %s", test.name, out.Findings, test.want)
		}
		out := w.after(1).auditAll(first.Findings...)
		if len(told(out.Findings)) != 1 || out.Findings[0].Since != start {
			t.Errorf("%s: got %+v after %s, want it told, since then", test.name, out.Findings, test.want)
		}
	}
}

// What is written for an owner may be on its way for five seconds from when the owner began.
func TestAnOwnerOfNearlyFiveSecondsIsWaitedFor(t *testing.T) {
	w := newWorld("10.244.0.7")
	w.kindPod("n1", "a", "kind", 2).Begun = start.Add(1 - 5*time.Second)
	w.pooled("p", verdict.Calico, "")
	if out := w.auditAll(); len(out.Findings) != 1 || out.Again != start.Add(5*time.Second) {
		t.Errorf("got %+v, again after %s, want after 5s", out.Findings, out.Again.Sub(start))
	}
}

func TestWhatIsGivenTwice(t *testing.T) {
	for _, test := range []struct {
		name     string
		one, two verdict.Allocation
		change   func(w *world, p, q *verdict.Pool)
		want     bool
	}{
		{name: "two pods", one: verdict.Allocation{Namespace: "default", Pod: "a"}, two: verdict.Allocation{Namespace: "default", Pod: "b"}, want: true},
		{name: "two pods of one name", one: verdict.Allocation{Namespace: "default", Pod: "a"}, two: verdict.Allocation{Namespace: "other", Pod: "a"}, want: true},
		{name: "one pod", one: verdict.Allocation{Namespace: "default", Pod: "a", ContainerID: "1"}, two: verdict.Allocation{Namespace: "default", Pod: "a", ContainerID: "2"}},
		{name: "one container", one: verdict.Allocation{ContainerID: "1", Pod: "a"}, two: verdict.Allocation{ContainerID: "1", Pod: "b"}},
		{name: "two containers", one: verdict.Allocation{ContainerID: "1"}, two: verdict.Allocation{ContainerID: "2"}, want: true},
		{name: "two containers of one node", one: verdict.Allocation{ContainerID: "1", Node: "n1"}, two: verdict.Allocation{ContainerID: "2", Node: "n1"}, want: true},
		{name: "a container and a pod of one node", one: verdict.Allocation{ContainerID: "1", Node: "n1"}, two: verdict.Allocation{Pod: "a", Node: "n1"}},
		{name: "a container and a pod of two nodes", one: verdict.Allocation{ContainerID: "1", Node: "n1"}, two: verdict.Allocation{Pod: "a", Node: "n2"}, want: true},
		{name: "a pod and nobody in particular", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{}},

		{name: "two pools of one IPAM", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(_ *world, _, q *verdict.Pool) { q.Name = "q" }, want: true},
		{name: "pools of two IPAMs", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(_ *world, _, q *verdict.Pool) { q.IPAM = verdict.Cilium }},
		{name: "pools of two realms", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(_ *world, _, q *verdict.Pool) { q.Realm = "red" }},
		{name: "pools of two nodes", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(w *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, p.Node, q.Node = verdict.HostLocal, verdict.HostLocal, w.node("n1"), w.node("n2")
		}},
		{name: "two pools of one node and network", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network = "lan", "lan"
		}, want: true},
		{name: "two pools of one node of no known network", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: ofOneNode},
		{name: "two pools of one node and two networks", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network = "lan", "wan"
		}},
		{name: "two pools of one node and two networks, both routed", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network, p.Routed, q.Routed = "lan", "wan", true, true
		}, want: true},
		{name: "two pools of one node and two networks, the first routed", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network, p.Routed = "lan", "wan", true
		}},
		{name: "two pools of one node and two networks, the second routed", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(w *world, p, q *verdict.Pool) {
			ofOneNode(w, p, q)
			p.Network, q.Network, q.Routed = "lan", "wan", true
		}},
		{name: "two pools of whereabouts of no known network", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, q.Name = verdict.Whereabouts, verdict.Whereabouts, "q"
		}, want: true},
		{name: "two pools of whereabouts, of which one's network is known", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, q.Name, p.Network = verdict.Whereabouts, verdict.Whereabouts, "q", "lan"
		}},
		{name: "two pools of whereabouts, of which the other one's network is known", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, q.Name, q.Network = verdict.Whereabouts, verdict.Whereabouts, "q", "lan"
		}},
		{name: "two pools of whereabouts of one network", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, q.Name, p.Network, q.Network = verdict.Whereabouts, verdict.Whereabouts, "q", "lan", "lan"
		}, want: true},
		{name: "one pool of whereabouts", one: verdict.Allocation{Pod: "a"}, two: verdict.Allocation{Pod: "b"}, change: func(_ *world, p, q *verdict.Pool) {
			p.IPAM, q.IPAM, p.Network, q.Network = verdict.Whereabouts, verdict.Whereabouts, "lan", "wan"
		}, want: true},

		{name: "the API has had one of the pods no more for long enough", one: verdict.Allocation{Namespace: "default", Pod: "a"}, two: verdict.Allocation{Namespace: "default", Pod: "b"}, change: func(w *world, _, _ *verdict.Pool) {
			w.listed = true
			w.pods = map[string]*verdict.PodObject{"uid-a": {Namespace: "default", Name: "a", Phase: "Running"}}
			w.known = start.Add(w.policy.Settle) + 1
		}},
		{name: "the API may not have had one of the pods yet", one: verdict.Allocation{Namespace: "default", Pod: "a"}, two: verdict.Allocation{Namespace: "default", Pod: "b"}, change: func(w *world, _, _ *verdict.Pool) {
			w.listed = true
			w.pods = map[string]*verdict.PodObject{"uid-a": {Namespace: "default", Name: "a", Phase: "Running"}}
			w.known = start.Add(w.policy.Settle)
		}, want: true},
	} {
		for range 2 {
			w := newWorld("10.244.0.7")
			p, q := w.pooled("p", verdict.Calico, ""), w.pooled("p", verdict.Calico, "")
			if test.change != nil {
				test.change(w, p, q)
			}
			w.allocate(p, test.one)
			w.allocate(q, test.two)
			before := w.auditAll()
			waiting := slices.ContainsFunc(before.Findings, func(f verdict.Finding) bool { return f.Kind == double && f.Waiting })
			out := w.after(time.Minute).auditAll(before.Findings...)
			if got := slices.ContainsFunc(out.Findings, func(f verdict.Finding) bool { return f.Kind == double && !f.Waiting }); got != test.want || waiting != got {
				t.Errorf("%s: got %+v, want it given twice: %t", test.name, out.Findings, test.want)
			}
			if test.want && (out.Again == 0 || out.Again > w.now.Add(30*time.Second)) {
				t.Errorf("%s: got again %d, want it in half a minute: nothing changes when one of the pods ends", test.name, out.Again)
			}
			if test.name == "the API has had one of the pods no more for long enough" || test.name == "the API may not have had one of the pods yet" {
				break // the objects are of one order
			}
			test.one, test.two = test.two, test.one
		}
	}
}

// ofOneNode makes two pools of host-local on n1.
func ofOneNode(w *world, p, q *verdict.Pool) {
	p.IPAM, q.IPAM, p.Node, q.Node, q.Name = verdict.HostLocal, verdict.HostLocal, w.node("n1"), w.node("n1"), "q"
}

func TestOfSeveralAllocationsTwoAreToldAndTheOwner(t *testing.T) {
	w := newWorld("10.244.0.7")
	p := w.pooled("p", verdict.Calico, "")
	w.kindPod("n1", "c", "kind", 2)
	w.kindPod("n2", "gone", "kind", 3).Node().TimedOut = true
	for _, pod := range []string{"a", "a", "c", "d"} {
		w.allocate(p, verdict.Allocation{Namespace: "default", Pod: pod, Location: fmt.Sprint(len(w.allocations))})
	}
	var found []verdict.Finding
	for _, f := range w.auditAll().Findings {
		if f.Kind == double {
			found = append(found, f)
		}
	}
	if len(found) != 1 || !slices.Equal(found[0].Allocations, []*verdict.Allocation{w.allocations[0], w.allocations[2]}) {
		t.Fatalf("got %+v, want one about the first two that differ", found)
	}
	if o := found[0].Owners; len(o) != 1 || o[0].Workload().Name != "c" || found[0].Severity != verdict.Critical {
		t.Errorf("got owners %+v, severity %d, want c, which has it", o, found[0].Severity)
	}
}

// Several nodes answer for a service's address.
func TestASharedAddressIsAnswered(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(w *world, wire []*verdict.Claim)
		want   bool
	}{
		{"by two nodes", nil, true},
		{"by one node", func(w *world, wire []*verdict.Claim) { w.drop(wire[1]) }, false},
		{"by one, and the other one speaks for others", func(_ *world, wire []*verdict.Claim) { wire[1].Source = "\x02\x00\x00\x00\x00\x98" }, false},
		{"by one, and the other one has timed out", func(w *world, _ []*verdict.Claim) { w.node("n2").TimedOut = true }, false},
		{"by two that have it for themselves", func(w *world, _ []*verdict.Claim) {
			for _, c := range w.claims {
				if !c.Wire() {
					c.Interface.Attachment = verdict.Own
				}
			}
		}, false},
	} {
		w := newWorld("10.96.0.1")
		var wire []*verdict.Claim
		for _, n := range []string{"n1", "n2"} {
			port := w.uplink(n)
			w.assigned(w.iface(w.host(n), verdict.Interface{Name: "dummy0", Attachment: verdict.Local}))
			wire = append(wire, w.wire(port, string(port.MAC)))
		}
		if test.change != nil {
			test.change(w, wire)
		}
		first := w.auditAll()
		for _, c := range w.claims {
			c.Before, c.Seen = c.Seen, w.now
		}
		out := w.after(w.policy.Settle).auditAll(first.Findings...)
		if got := slices.Equal(told(out.Findings), []string{verdict.FindingSharedAddressAnswered}); got != test.want || len(told(first.Findings)) != 0 {
			t.Errorf("%s: got %+v, then %+v, want it: %t", test.name, first.Findings, out.Findings, test.want)
		}
		if test.want && (len(out.Findings[0].Owners) != 2 || out.Findings[0].Severity != verdict.Warning || len(out.Past) != 0) {
			t.Errorf("%s: got %+v, want a warning about both", test.name, out)
		}
	}
}

// What was told becomes the next worse thing at once.
func TestAFindingTurnsIntoAnotherOne(t *testing.T) {
	for _, test := range []struct {
		name   string
		before func(f *verdict.Finding)
		soon   bool
	}{
		{"of this pool and owner", func(*verdict.Finding) {}, true},
		{"that was not told yet", func(f *verdict.Finding) { f.Waiting = true }, false},
		{"of another owner", func(f *verdict.Finding) { f.Owners = []verdict.Owner{{ID: "other"}} }, false},
		{"of no owner", func(f *verdict.Finding) { f.Owners = nil }, true},
		{"of another pool", func(f *verdict.Finding) { f.Pool = &verdict.Pool{Name: "other"} }, false},
		{"that was only a warning", func(f *verdict.Finding) { f.Severity = verdict.Warning }, false},
	} {
		w := newWorld("10.244.0.7")
		w.kindPod("n1", "a", "kind", 2)
		p := w.pooled("p", verdict.HostLocal, "n1")
		p.Network = "kind"
		first := w.auditAll().Findings
		before := w.after(time.Minute).auditAll(first...).Findings
		test.before(&before[0])
		w.allocate(p, verdict.Allocation{ContainerID: "sandbox-x"})
		out := w.after(time.Minute).auditAll(before...).Findings
		if got := told(out); (len(got) == 1) != test.soon || len(out) != 1 || out[0].Kind != bookedElse || out[0].Since != w.now {
			t.Errorf("%s: got %+v, want it told at once: %t", test.name, out, test.soon)
		}
	}

	// The same finding goes on since it began, of the same owner.
	w := newWorld("10.244.0.7")
	c := w.kindPod("n1", "a", "kind", 2)
	w.pooled("p", verdict.HostLocal, "n1").Network = "kind"
	first := w.auditAll().Findings
	before := w.after(time.Minute).auditAll(first...).Findings
	if before[0].Since != start || len(before[0].Past) != 1 {
		t.Errorf("got since %d, past %+v, want it since the beginning, and remembered", before[0].Since, before[0].Past)
	}
	w.drop(c)
	w.kindPod("n1", "b", "kind", 3)
	if out := w.auditAll(before...).Findings; len(out) != 1 || !out[0].Waiting || out[0].Since != w.now {
		t.Errorf("got %+v of another pod, want it to wait", out)
	}

	// A warning of Cilium's goes on as such.
	w = newWorld("10.244.0.7")
	w.kindPod("n1", "a", "kind", 2)
	w.pooled("p", verdict.Cilium, "")
	first = w.auditAll().Findings
	before = w.after(5 * time.Minute).auditAll(first...).Findings
	if out := w.after(time.Second).auditAll(before...).Findings; len(told(out)) != 1 {
		t.Errorf("got %+v, want it to stay told", out)
	}
}

func TestFindingsHaveIDsOfTheirPools(t *testing.T) {
	a, b, c := verdict.Pool{IPAM: "i", Name: "p"}, verdict.Pool{IPAM: "i", Name: "p", Node: &verdict.Node{Name: "n1"}}, verdict.Pool{IPAM: "i", Name: "q"}
	if a.Subject() == b.Subject() || a.Subject() == c.Subject() || b.Subject() != "i p n1" {
		t.Errorf("got %q, %q and %q, want them to differ by node and name", a.Subject(), b.Subject(), c.Subject())
	}
}

func TestWhatVanishedIsRemembered(t *testing.T) {
	for _, test := range []struct {
		name   string
		al     verdict.Allocation
		change func(w *world, p *verdict.Pool, al *verdict.Allocation)
		want   string
	}{
		{"it was the owner's", verdict.Allocation{ContainerID: "sandbox-a"}, nil, unallocated},
		{"it was the owner's, and all records are gone", verdict.Allocation{ContainerID: "sandbox-a"}, func(_ *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.State = verdict.PoolMissing
		}, unallocated},
		{"it was somebody else's", verdict.Allocation{ContainerID: "sandbox-x"}, nil, bookedElse},
		{"it was somebody else's, of whom had it before", verdict.Allocation{ContainerID: "sandbox-x"}, func(w *world, _ *verdict.Pool, _ *verdict.Allocation) {
			w.now--
		}, ""},
		{"it was somebody else's, and was heard of late", verdict.Allocation{ContainerID: "sandbox-x", Heard: start.Add(1)}, nil, ""},
		{"its pool is being read", verdict.Allocation{ContainerID: "sandbox-a"}, func(_ *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.State = verdict.PoolReading
		}, ""},
		{"it is written elsewhere", verdict.Allocation{ContainerID: "sandbox-a"}, func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			w.allocate(p, verdict.Allocation{ContainerID: "sandbox-a", Location: "elsewhere"})
		}, ""},
		{"another one is there", verdict.Allocation{ContainerID: "sandbox-a"}, func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			w.allocate(p, verdict.Allocation{ContainerID: "sandbox-x"})
		}, unallocated},
		{"it was another node's", verdict.Allocation{ContainerID: "sandbox-a"}, func(w *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = w.node("n2")
		}, ""},
		{"it was the cluster's", verdict.Allocation{ContainerID: "sandbox-a"}, func(_ *world, p *verdict.Pool, _ *verdict.Allocation) {
			p.Node = nil
		}, unallocated},
		{"the owner is gone", verdict.Allocation{ContainerID: "sandbox-a"}, func(w *world, _ *verdict.Pool, _ *verdict.Allocation) {
			w.node("n1").TimedOut = true
		}, ""},
	} {
		w := newWorld("10.244.0.7")
		w.kindPod("n1", "a", "kind", 2)
		p := &verdict.Pool{IPAM: verdict.HostLocal, Name: "p", Node: w.node("n1"), State: verdict.PoolKnown}
		al := test.al
		al.Pool, al.Address = p, w.addr
		w.after(w.policy.Settle)
		if test.change != nil {
			test.change(w, p, &al)
		}
		out := w.judge()
		in := w.input()
		in.Vanished = []*verdict.Allocation{&al}
		past := audit.Address(&w.policy, in, &out).Past
		if test.want == "" {
			if len(past) != 0 {
				t.Errorf("%s: got %+v, want nothing", test.name, past)
			}
			continue
		}
		if len(past) != 1 || past[0].Kind != test.want || past[0].Allocation != &al || past[0].Since != w.now || past[0].Owner != "boot-n1/n1a" {
			t.Errorf("%s: got %+v, want %s", test.name, past, test.want)
		}
	}
}

func TestHowMuchIsRemembered(t *testing.T) {
	w := newWorld("10.244.0.7")
	w.kindPod("n1", "a", "kind", 2)
	w.kindPod("n2", "b", "kind", 2).Node().TimedOut = true
	remember := func(owner, kind string, al *verdict.Allocation) {
		w.past = append(w.past, verdict.Past{Owner: owner, Kind: kind, Allocation: al})
	}
	remember("boot-n1/n1a", bookedElse, nil)
	remember("boot-n2/n2b", bookedElse, nil) // gone
	remember("boot-n3/n3c", bookedElse, nil) // never there
	p := &verdict.Pool{IPAM: verdict.HostLocal, Name: "p", Node: w.node("n1"), State: verdict.PoolKnown}
	first := &verdict.Allocation{Pool: p, Address: w.addr, ContainerID: "sandbox-x"}
	second := &verdict.Allocation{Pool: p, Address: w.addr, ContainerID: "sandbox-y"}
	mine := &verdict.Allocation{Pool: p, Address: w.addr, ContainerID: "sandbox-a"}
	w.after(w.policy.Settle)
	audit := func(vanished ...*verdict.Allocation) []verdict.Past {
		out := w.judge()
		in := w.input()
		in.Vanished = vanished
		return audit.Address(&w.policy, in, &out).Past
	}
	past := audit(first, second, mine)
	if len(past) != 2 || past[0].Kind != bookedElse || past[0].Allocation != first || past[1].Kind != unallocated || past[1].Allocation != mine {
		t.Errorf("got %+v, want the first of each kind", past)
	}

	w.past = nil
	for i := range 7 {
		remember("boot-n1/n1a", fmt.Sprint(i), nil)
	}
	if past := audit(first, mine); len(past) != 8 || past[7].Kind != bookedElse {
		t.Errorf("got %d remembered, want 8 at most, the first ones", len(past))
	}
}

func TestAnAuditRunsAgainAsSoonAsItMust(t *testing.T) {
	w := newWorld("10.244.0.7")
	w.policy.LeakedAfter = 5 * time.Minute
	c := w.kindPod("n1", "a", "kind", 2)
	w.pooled("p", verdict.HostLocal, "n1").Network = "kind"
	w.allocate(w.pooled("q", verdict.HostLocal, "n2"), verdict.Allocation{ContainerID: "x"})
	if out := w.auditAll(); out.Again != start.Add(w.policy.Settle) || len(out.Findings) != 2 {
		t.Errorf("got again %d for %+v, want after the settle time", out.Again, out.Findings)
	}
	w.drop(c)
	w.allocate(w.pools[0], verdict.Allocation{ContainerID: "y"})
	w.uncovered = []string{"n1"}
	if out := w.auditAll(); out.Again != start.Add(5*time.Minute) {
		t.Errorf("got again %d, want after five minutes", out.Again)
	}
}

func TestOwnersThatAreNotComparedHoldNothing(t *testing.T) {
	for name, change := range map[string]func(w *world, i *verdict.Interface){
		"it does":                     nil,
		"it is known by frames alone": func(w *world, i *verdict.Interface) { w.claims[0].Kind, w.claims[0].MAC = verdict.Announced, i.MAC },
		"it has timed out":            func(w *world, _ *verdict.Interface) { w.node("n1").TimedOut = true },
		"it is shared": func(w *world, _ *verdict.Interface) {
			w.policy.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix("10.244.0.0/16")}}
		},
		"it is a service's": func(_ *world, i *verdict.Interface) { i.Attachment = verdict.Local },
		"it is on no link":  func(_ *world, i *verdict.Interface) { i.Link, i.Attachment = nil, verdict.Peer },
	} {
		w := newWorld("10.244.0.7")
		i := w.byHand()
		w.pooled("p", verdict.HostLocal, "n1").Network = "kind"
		w.claims[0].Network = "kind"
		if change != nil {
			change(w, i)
		}
		if out := w.auditAll(); (len(out.Findings) == 1) != (change == nil) {
			t.Errorf("%s: got %+v", name, out.Findings)
		}
	}
}

// blue returns a network namespace that was made by hand.
func blue(name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Unknown, Name: name, Source: "netns"}
}

// wire has a frame enter by a port.
func (w *world) wire(port *verdict.Interface, mac string) *verdict.Claim {
	return w.claim(verdict.Claim{Kind: verdict.Announced, Interface: port, Frame: verdict.Frame{Link: port.Link, MAC: verdict.MAC(mac)}})
}

// uplink is the uplink of a node.
func (w *world) uplink(node string) *verdict.Interface {
	return w.iface(w.host(node), verdict.Interface{
		Name: "eth0", MAC: verdict.MAC("vplk" + node), Attachment: verdict.Own,
		Link: w.link(node, "eth0", verdict.Uplink, false), Uplink: true,
	})
}
