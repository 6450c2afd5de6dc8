package audit_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

func TestTheAuditHasNoFalsePositives(t *testing.T) {
	for _, test := range []struct {
		why   string
		world func(w *world)
		want  []string
	}{
		{"a tenant with the range of pods, in a VRF", func(w *world) {
			w.hostLocal("n1", "kind", "10.244.0.0/24")
			w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
			inside, _ := w.Veth(w.Namespace("n1", 2, "77", verdict.Workload{Kind: verdict.Unknown}), "m", w.Link("n1", "vethlab", verdict.PointToPoint, false))
			inside.VRF = "tenant"
			w.Assigned(inside)
		}, nil},
		{"libvirt's bridge in Calico's usual range", func(w *world) {
			w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "virbr0", Kind: "bridge", Attachment: verdict.Own, Link: w.Link("n1", "virbr0", verdict.Bridge, true)}))
		}, nil},
		{"a container on a bridge of docker's, in Calico's usual range", func(w *world) {
			w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
			inside, _ := w.Veth(w.Namespace("n1", 2, "77", verdict.Workload{Kind: verdict.Container, Name: "db", ContainerID: "c"}), "m", w.Link("n1", "docker0", verdict.Bridge, true))
			w.Assigned(inside)
		}, nil},
		{"the endpoint by which Cilium looks after itself", func(w *world) {
			w.allocate(w.ofCluster(cilium.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Purpose: "Cilium's health"}})
			inside, _ := w.Veth(w.Namespace("n1", 2, "77", verdict.Workload{Kind: verdict.Unknown, Name: "cilium-health", Source: "netns"}), "m", w.Link("n1", "lxc_health", verdict.PointToPoint, false))
			w.Assigned(inside)
		}, nil},
		{"a node in a range that Calico gives only to pods that ask for it", func(w *world) {
			w.ofCluster(calico.IPAM.Name, "10.244.0.0/16").Asked = true
			w.Device("n1", "eth0", "")
		}, nil},
		{"an address that a person reserved with a file, for a device of the node", func(w *world) {
			w.allocate(w.hostLocal("n1", "kind", "10.244.0.0/24"), verdict.Allocation{})
			w.Device("n1", "eth0", "")
		}, nil},
		{"the range of another network_name of whereabouts, for networks of one name", func(w *world) {
			red, blue := w.ofCluster(whereabouts.Name, "10.244.0.0/24"), w.ofCluster(whereabouts.Name, "10.244.0.0/24")
			red.Network, blue.Network, red.Realm, blue.Realm = "lan", "lan", "red", "blue"
			w.allocate(red, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}})
			w.kindPod("n1", "a", "lan", 2)
		}, nil},
		{"a pod in each of two realms of whereabouts", func(w *world) {
			red, blue := w.ofCluster(whereabouts.Name, "10.244.0.0/24"), w.ofCluster(whereabouts.Name, "10.244.0.0/24")
			red.Realm, blue.Realm = "red", "blue"
			w.allocate(red, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}})
			w.allocate(blue, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b"}})
			w.kindPod("n1", "a", "lan", 2)
		}, nil},
		{"a pod of a VPC with the range of others", func(w *world) {
			w.Policy.Networks = []verdict.Network{{Name: "vpc/blue", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}}}
			w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24")
			blue := w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24")
			blue.Realm, blue.Name = "vpc/blue", "blue"
			w.allocate(blue, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}})
			w.kindPod("n1", "a", "kube-ovn", 2)
		}, nil},
		{"a pod whose VPC is not known, with its allocation", func(w *world) {
			w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24")
			blue := w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24")
			blue.Realm, blue.Name = "vpc/blue", "blue"
			w.allocate(blue, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}})
			w.kindPod("n1", "a", "kube-ovn", 2)
		}, nil},
		{"a stopped virtual machine that keeps its address", func(w *world) {
			w.Node("n1")
			w.allocate(w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "vm", Kept: true}})
		}, nil},
		{"a virtual address that a pod uses as its own", func(w *world) {
			p := w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24")
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "a", Location: "1"}})
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Location: "2"}})
			w.kindPod("n1", "a", "kube-ovn", 2)
		}, nil},
		{"records left by Calico after a migration to Cilium with the same range", func(w *world) {
			w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
			w.allocate(w.ofCluster(cilium.IPAM.Name, "10.244.0.0/24"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "a"}})
			w.kindPod("n1", "a", "cilium", 2)
		}, nil},
		{"a record for a deleted pod, beside that of the owner", func(w *world) {
			w.Listed = true
			p := w.ofCluster(whereabouts.Name, "10.244.0.0/24")
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", Location: "1"}})
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "old", Location: "2"}})
			w.kindPod("n1", "a", "lan", 2)
			w.Pods = map[string]*verdict.PodObject{"uid-a": {Namespace: "default", Name: "a", Node: "n1", Phase: "Running"}}
		}, nil},
		{"the address of a silent virtual machine, which Calico has without a sandbox", func(w *world) {
			w.Node("n1")
			w.allocate(w.ofCluster(calico.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "virt-launcher-a"}})
			w.Pods = map[string]*verdict.PodObject{"a": {Namespace: "default", Name: "virt-launcher-a", Node: "n1", Phase: "Running", IPs: []netip.Addr{w.Addr}}}
		}, nil},
		// Situations that resemble these.
		{"a pod in a range that Calico allocates only on request", func(w *world) {
			w.ofCluster(calico.IPAM.Name, "10.244.0.0/16").Asked = true
			w.kindPod("n1", "a", "k8s-pod-network", 2)
		}, []string{verdict.FindingInUseUnallocated}},
		{"a pod of whereabouts that is in neither of two realms", func(w *world) {
			red, blue := w.ofCluster(whereabouts.Name, "10.244.0.0/24"), w.ofCluster(whereabouts.Name, "10.244.0.0/24")
			red.Network, blue.Network, red.Realm, blue.Realm, blue.Name = "lan", "lan", "red", "blue", "blue"
			w.kindPod("n1", "a", "lan", 2)
		}, []string{verdict.FindingInUseUnallocated, verdict.FindingInUseUnallocated}},
		{"two records of one realm", func(w *world) {
			one, two := w.ofCluster(whereabouts.Name, "10.244.0.0/24"), w.ofCluster(whereabouts.Name, "10.244.0.0/16")
			one.Realm, two.Realm = "red", "red"
			w.allocate(one, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a"}})
			w.allocate(two, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b"}})
			w.kindPod("n1", "a", "lan", 2)
		}, []string{verdict.FindingDoubleAllocated}},
		{"a pod of a VPC without an allocation, in the range of others", func(w *world) {
			w.Policy.Networks = []verdict.Network{{Name: "vpc/blue", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}}}
			w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24")
			blue := w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24")
			blue.Realm, blue.Name = "vpc/blue", "blue"
			w.kindPod("n1", "a", "kube-ovn", 2)
		}, []string{verdict.FindingInUseUnallocated}},
		{"the address of a stopped virtual machine, which Kube-OVN has given to a pod", func(w *world) {
			w.Listed = true
			p := w.ofCluster(ovn.KubeOVN.Name, "10.244.0.0/24")
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "vm", Kept: true, Location: "1"}})
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", Location: "2"}})
			w.kindPod("n1", "a", "kube-ovn", 2)
			w.Pods = map[string]*verdict.PodObject{"uid-a": {Namespace: "default", Name: "a", Node: "n1", Phase: "Running"}}
		}, []string{verdict.FindingDoubleAllocated}},
		{"the address of a pod that has ended", func(w *world) {
			w.Node("n1")
			w.allocate(w.ofCluster(calico.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "a"}})
			w.Pods = map[string]*verdict.PodObject{"a": {Namespace: "default", Name: "a", Node: "n1", Phase: "Succeeded", IPs: []netip.Addr{w.Addr}}}
		}, []string{verdict.FindingLeaked}},
	} {
		w := newWorld("10.244.0.7")
		test.world(w)
		w.wantFound(t, test.why, test.want...)
	}
}

// A CiliumEndpoint mirrors an address and does not allocate it: the Cilium agent may know better.
func TestFindingsAboutCiliumAreWarnings(t *testing.T) {
	w := newWorld("10.244.0.7")
	w.ofCluster(cilium.IPAM.Name, "10.244.0.0/24")
	w.kindPod("n1", "a", "cilium", 2)
	before := w.audit().Findings
	if out := w.after(4 * time.Minute).audit(before...).Findings; len(out) != 1 || !out[0].Waiting {
		t.Errorf("got %+v after 4 minutes, want nothing yet", out)
	}
	if out := w.after(time.Minute).audit(before...).Findings; len(out) != 1 || out[0].Waiting || out[0].Severity != verdict.Warning {
		t.Errorf("got %+v, want a warning", out)
	}
}

// After a node has rebooted, the kubelet updates the status of its pods one by one.
func TestAddressesOfPodsInTheAPICatchUp(t *testing.T) {
	w := newWorld("10.244.0.7")
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: podips.IPAM.Name, Traits: registry.Traits(podips.IPAM.Name), Name: "pods", State: ipam.Known}}
	w.Pools = append(w.Pools, p)
	w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "a", Location: "1"}})
	w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Namespace: "default", Pod: "b", Location: "2"}})
	found := func(before ...verdict.Finding) (reported []string, all []verdict.Finding) {
		all = w.audit(before...).Findings
		for _, f := range all {
			if !f.Waiting {
				reported = append(reported, f.Kind)
			}
		}
		return reported, all
	}
	_, before := found()
	w.after(20 * time.Second)
	reported, before := found(before...)
	if len(reported) > 0 {
		t.Errorf("got %v after 20 seconds, want nothing yet", reported)
	}
	w.after(10 * time.Second)
	if reported, _ := found(before...); !slices.Equal(reported, []string{verdict.FindingDoubleAllocated}) {
		t.Errorf("got %v, want that it lasts", reported)
	}
}

// Plugins free an address before they remove it, which may take a while if the API server is slow.
// This includes pods that end by themselves, such as those of a Job.
func TestPodsThatEndFreeTheirAddressesFirst(t *testing.T) {
	for why, p := range map[string]verdict.PodObject{
		"it is deleted": {Phase: "Running", DeletionTimestamp: start}, "it is completed": {Phase: "Succeeded"}, "it has failed": {Phase: "Failed"}, "it runs": {Phase: "Running"},
	} {
		w := newWorld("10.244.0.7")
		w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
		w.kindPod("n1", "a", "k8s-pod-network", 2)
		p.Namespace, p.Name, p.Node = "default", "a", "n1"
		w.Pods = map[string]*verdict.PodObject{"uid-a": &p}
		first := w.audit()
		w.after(5 * time.Second)
		if out := w.audit(first.Findings...); len(out.Findings) == 0 || len(reported(out.Findings)) > 0 != (why == "it runs") {
			t.Errorf("%s: got %+v after 5 seconds", why, out.Findings)
		}
		w.after(30 * time.Second)
		if out := w.audit(first.Findings...); len(out.Findings) == 0 || len(reported(out.Findings)) != len(out.Findings) {
			t.Errorf("%s: got %+v after 35 seconds, want that it holds the address still", why, out.Findings)
		}
	}
}

// The API server may lag behind the kernels.
func TestAuditWaitsForTheAPI(t *testing.T) {
	w := newWorld("10.244.0.7")
	w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
	w.kindPod("n1", "a", "k8s-pod-network", 2)
	w.Known = w.Now.Add(-time.Minute)
	first := w.audit()
	w.after(5 * time.Second)
	if out := w.audit(first.Findings...); len(out.Findings) > 0 && !out.Findings[0].Waiting || out.Again == 0 {
		t.Errorf("got %+v, want a waiting finding until the API has caught up", out)
	}
	w.Known = w.Now
	if out := w.audit(first.Findings...); len(out.Findings) != 1 || out.Findings[0].Waiting {
		t.Errorf("got %+v, want a finding", out.Findings)
	}
}

// The object of a pod that has ended may outlive it, and the object of the next pod may be late.
func TestCiliumsObjectsCatchUp(t *testing.T) {
	for _, test := range []struct {
		why   string
		world func(w *world)
		want  string
	}{
		{"the previous pod is still listed", func(w *world) {
			w.allocate(w.ofCluster(cilium.IPAM.Name, "10.244.0.0/16"), verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "old"}})
			w.kindPod("n1", "new", "cilium", 2)
		}, verdict.FindingBookedElsewhere},
		{"both are listed", func(w *world) {
			p := w.ofCluster(cilium.IPAM.Name, "10.244.0.0/16")
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "old", Location: "1"}})
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Node: "n1", Namespace: "default", Pod: "new", Location: "2"}})
			w.kindPod("n1", "new", "cilium", 2)
		}, verdict.FindingDoubleAllocated},
	} {
		w := newWorld("10.244.0.7")
		test.world(w)
		before := w.audit().Findings
		for _, f := range w.after(20 * time.Second).audit(before...).Findings {
			if !f.Waiting {
				t.Errorf("%s: got %s after 20 seconds, want nothing yet", test.why, f.Kind)
			}
		}
		out := w.after(10 * time.Second).audit(before...).Findings
		if len(out) != 1 || out[0].Waiting || out[0].Kind != test.want {
			t.Errorf("%s: got %+v, want %s", test.why, out, test.want)
		}
	}
}

// A pod may be seen before the record of its IPAM arrives through the API, even if the address was
// another pod's just before.
func TestRecordsInTheAPIMayBeLate(t *testing.T) {
	for _, test := range []struct {
		before string // the holder in the outdated record
		soon   bool   // whether the finding is reported after the settle time
		want   string
	}{
		{"", false, verdict.FindingInUseUnallocated},
		{"old", false, verdict.FindingBookedElsewhere},
		{"a", true, verdict.FindingBookedElsewhere},
	} {
		w := newWorld("10.244.0.7")
		p := w.ofCluster(calico.IPAM.Name, "10.244.0.0/16")
		if test.before != "" {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{Node: "n9", Namespace: "default", Pod: test.before}})
		}
		w.kindPod("n1", "a", "k8s-pod-network", 2)
		before := w.audit().Findings
		if out := w.after(2 * time.Second).audit(before...).Findings; len(out) != 1 || out[0].Waiting == test.soon {
			t.Errorf("allocated for %q: got %+v after 2 seconds, want reported %v", test.before, out, test.soon)
		}
		if out := w.after(4 * time.Second).audit(before...).Findings; len(out) != 1 || out[0].Waiting || out[0].Kind != test.want {
			t.Errorf("allocated for %q: got %+v after 6 seconds, want %s", test.before, out, test.want)
		}
	}
}
