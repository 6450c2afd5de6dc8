package audit_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
)

// identified is pod c with the address that pod b had, and a CiliumEndpoint of b that has it.
type identified struct {
	*world
	pool   *verdict.Pool
	record *verdict.Allocation
	owner  *verdict.Claim
	before []verdict.Finding
}

func newIdentified() *identified {
	s := &identified{world: newWorld("10.244.0.7")}
	s.pool = s.ofCluster(cilium.IPAM.Name, "10.244.0.0/16")
	s.record = s.endpoint("b", "n1")
	s.owner = s.kindPod("n1", "c", "cilium", 2)
	s.says("c", verdict.PodObject{IPs: []netip.Addr{s.Addr}})
	s.Listed = true // and there is no pod b
	return s
}

// endpoint adds the CiliumEndpoint of a pod.
func (s *identified) endpoint(pod, node string) *verdict.Allocation {
	return s.allocate(s.pool, verdict.Allocation{Allocation: ipam.Allocation{
		Node: node, Namespace: "default", Pod: pod, Identity: 23407, Location: "ciliumendpoints default/" + pod + " /status/networking/addressing",
	}})
}

// says sets what the API says about a pod, which runs.
func (s *identified) says(pod string, p verdict.PodObject) {
	p.Namespace, p.Name, p.Phase = "default", pod, "Running"
	s.Says("uid-"+pod, p)
}

// look returns what is reported.
func (s *identified) look() (reported []string) {
	s.before = s.audit(s.before...).Findings
	for _, f := range s.before {
		if !f.Waiting {
			who := ""
			if len(f.Owners) > 0 {
				who = f.Owners[0].Workload().Name
			}
			reported = append(reported, fmt.Sprint(f.Kind, " ", f.Severity, " ", who))
			for _, al := range f.Allocations {
				reported = append(reported, al.Pod)
			}
		}
	}
	return reported
}

func TestIdentitiesOfOtherPods(t *testing.T) {
	const mismatch = "identity-mismatch 3 c"
	for _, test := range []struct {
		name   string
		change func(s *identified)
		want   []string
	}{
		{"of a pod that is gone", func(*identified) {}, []string{mismatch, "b"}},
		{"of a pod that has ended", func(s *identified) {
			s.says("b", verdict.PodObject{IPs: []netip.Addr{s.Addr}})
			s.Pods["uid-b"].Phase = "Succeeded"
		}, []string{mismatch, "b"}},
		{"of a pod with another address", func(s *identified) {
			s.says("b", verdict.PodObject{IPs: []netip.Addr{netip.MustParseAddr("10.244.0.9")}})
		}, []string{mismatch, "b"}},
		{"of a pod of another node", func(s *identified) { s.record.Node = "n2" }, []string{mismatch, "b"}},
		{"beside the right one", func(s *identified) { s.endpoint("c", "n1") }, []string{mismatch, "b"}},
		{"beside the right one, of a pod with another address", func(s *identified) {
			s.endpoint("c", "n1")
			s.says("b", verdict.PodObject{IPs: []netip.Addr{netip.MustParseAddr("10.244.0.9")}})
		}, []string{mismatch, "b"}},
		{"of two pods", func(s *identified) {
			s.endpoint("bb", "n1")
		}, []string{mismatch, "b", "bb"}},
		{"the right one", func(s *identified) { s.record.Pod = "c" }, nil},
		{"none, or a reserved one", func(s *identified) { s.record.Identity = 0 }, []string{"booked-elsewhere 2 c", "b"}},
		{"of a pod that has the address, too", func(s *identified) { s.says("b", verdict.PodObject{IPs: []netip.Addr{s.Addr}}) }, []string{"booked-elsewhere 2 c", "b"}},
		{"of a pod that the API is not known to lack", func(s *identified) { s.Listed = false }, []string{"booked-elsewhere 2 c", "b"}},
		{"nobody has the address", func(s *identified) { s.Drop(s.owner) }, []string{"leaked 2 ", "b"}},
		{"a node has it", func(s *identified) {
			s.Drop(s.owner)
			s.Assigned(s.Interface(s.Host("n1"), verdict.Interface{Name: "eth0", MAC: "\x02\x00\x00\x00\x01\x01", Attachment: verdict.Own}))
		}, []string{"booked-elsewhere 2 n1", "b"}},
		{"a pod in the network of its node", func(s *identified) {
			s.says("c", verdict.PodObject{HostNetwork: true, IPs: []netip.Addr{s.Addr}})
		}, []string{"booked-elsewhere 2 c", "b"}},
		{"a virtual machine", func(s *identified) {
			s.says("c", verdict.PodObject{VirtualMachine: "vm", IPs: []netip.Addr{s.Addr}})
		}, []string{"booked-elsewhere 2 c", "b"}},
		{"in another network of the pod", func(s *identified) {
			s.says("c", verdict.PodObject{IPs: []netip.Addr{netip.MustParseAddr("10.244.0.9")}})
		}, []string{"booked-elsewhere 2 c", "b"}},
		{"the node is disconnected", func(s *identified) { s.owner.Node().Unheard = true }, nil},
		{"the records cannot be read", func(s *identified) { s.pool.State = ipam.Unreadable }, nil},
		{"a record of an IPAM without identities", func(s *identified) {
			s.record.Identity, s.pool.IPAM, s.pool.Traits = 0, calico.IPAM.Name, calico.IPAM.Traits
		}, []string{"booked-elsewhere 3 c", "b"}},
	} {
		s := newIdentified()
		test.change(s)
		s.look()
		s.after(30*time.Second - 1)
		if got := s.look(); len(got) > 0 && got[0] == mismatch {
			t.Errorf("%s: got %q within the grace", test.name, got)
		}
		s.after(1)
		if got := s.look(); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// The finding lasts while nothing contradicts it, and ends with the record or with the owner.
func TestTheEndOfAnIdentityOfAnotherPod(t *testing.T) {
	reported := []string{"identity-mismatch 3 c", "b"}
	for _, test := range []struct {
		name   string
		change func(s *identified)
		want   []string
	}{
		{"nothing", func(*identified) {}, reported},
		{"the records cannot be read any more", func(s *identified) { s.pool.State = ipam.Unreadable }, reported},
		{"the API does not say anything any more", func(s *identified) { clear(s.Pods) }, reported},
		{"the node is disconnected", func(s *identified) { s.owner.Node().Unheard = true }, reported},
		{"the API does not say anything any more, and another pod has the address", func(s *identified) {
			clear(s.Pods)
			s.Drop(s.owner)
			s.kindPod("n1", "d", "cilium", 3)
		}, nil},
		{"the record is that of the owner", func(s *identified) { s.record.Pod = "c" }, nil},
		{"the record is gone", func(s *identified) {
			s.Allocations = nil
			s.endpoint("c", "n1")
		}, nil},
		{"the address is gone", func(s *identified) { s.Drop(s.owner) }, []string{"leaked 2 ", "b"}},
	} {
		s := newIdentified()
		s.look()
		s.after(30 * time.Second)
		if got := s.look(); !slices.Equal(got, reported) {
			t.Fatalf("got %q", got)
		}
		test.change(s)
		s.after(time.Second)
		if got := s.look(); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
