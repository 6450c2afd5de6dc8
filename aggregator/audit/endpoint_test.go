package audit_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// listed is pod c with the address that pod b had, and an endpoint of a Service for b.
type listed struct {
	*world
	owner     *verdict.Claim
	endpoints []ipam.Endpoint
	unknown   bool
	before    []verdict.Finding
}

func newListed() *listed {
	s := &listed{world: newWorld("10.244.0.7"), endpoints: []ipam.Endpoint{endpointFor("b", "web")}}
	s.owner = s.Within("n1", "cni0", "kindnet", verdicttest.Pod("c"))
	s.says(verdict.PodObject{})
	return s
}

// says sets what the API says about pod c, which runs and has the address unless its addresses are given.
func (s *listed) says(p verdict.PodObject) {
	if p.Namespace, p.Name, p.Phase = "default", "c", "Running"; p.IPs == nil {
		p.IPs = []netip.Addr{s.Addr}
	}
	s.Says("uid-c", p)
}

func endpointFor(pod, service string) ipam.Endpoint {
	return ipam.Endpoint{
		Service: ipam.Key{Namespace: "default", Name: service}, Slice: service + "-x", Manager: ipam.EndpointController,
		Pod: ipam.Key{Namespace: "default", Name: pod}, UID: "uid-" + pod,
	}
}

// look returns what is reported.
func (s *listed) look() (reported []string) {
	out, in := s.Judge(), s.Case()
	in.Endpoints, in.EndpointsKnown, in.Before = s.endpoints, !s.unknown, s.before
	s.before = audit.Address(&s.Policy, in, &out).Findings
	for _, f := range s.before {
		if f.Kind == verdict.FindingEndpointOfFormerOwner && !f.Waiting {
			reported = append(reported, fmt.Sprint(f.Severity, " ", f.Owners[0].Workload().Name, " ", f.Endpoints[0].Pod.Name, " ", len(f.Endpoints)))
		}
	}
	return reported
}

func TestEndpointsOfFormerOwners(t *testing.T) {
	const grace = 10 * time.Second
	for _, test := range []struct {
		name   string
		change func(s *listed)
		want   []string
	}{
		{"another pod has the address", func(*listed) {}, []string{"3 c b 1"}},
		{"two Services", func(s *listed) { s.endpoints = append(s.endpoints, endpointFor("b", "web2")) }, []string{"3 c b 2"}},
		{"two former pods", func(s *listed) { s.endpoints = append(s.endpoints, endpointFor("bb", "web")) }, []string{"3 c b 1", "3 c bb 1"}},
		{"its successor of the same name, in a StatefulSet", func(s *listed) { s.endpoints[0].Pod.Name = "c" }, nil},
		{"no endpoint", func(s *listed) { s.endpoints = nil }, nil},
		{"endpoints are not known", func(s *listed) { s.unknown = true }, nil},
		{"the pod of the endpoint has it", func(s *listed) { s.endpoints[0].UID = "uid-c" }, nil},
		{"the pod of the endpoint has it, and the node knows only its name", func(s *listed) {
			s.owner.Interface.Namespace.Who = verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: "b"}.Who()
		}, nil},
		{"a static pod, of which the node knows another uid", func(s *listed) {
			s.Pods["uid-c"].UID = "uid-b"
		}, nil},
		{"nobody has the address", func(s *listed) { s.Drop(s.owner) }, nil},
		{"a node has it", func(s *listed) {
			s.Drop(s.owner)
			s.Assigned(s.Interface(s.Host("n1"), verdict.Interface{Name: "eth0", MAC: "\x02\x00\x00\x00\x01\x01", Attachment: verdict.Own}))
		}, nil},
		{"a pod in the network of its node", func(s *listed) { s.says(verdict.PodObject{HostNetwork: true}) }, nil},
		{"a device outside has it", func(s *listed) {
			s.Drop(s.owner)
			s.Wire(s.Uplink("n1"), "\x02\x00\x00\x00\x09\x09")
		}, nil},
		{"in another network of the pod", func(s *listed) { s.says(verdict.PodObject{IPs: []netip.Addr{netip.MustParseAddr("10.244.0.9")}}) }, nil},
		{"a pod that has ended", func(s *listed) { s.Pods["uid-c"].Phase = "Failed" }, nil},
		{"the API does not know the pod", func(s *listed) { s.Pods = nil }, nil},
		{"a virtual machine, which may have been migrated", func(s *listed) { s.says(verdict.PodObject{VirtualMachine: "vm"}) }, nil},
		{"the node is disconnected", func(s *listed) { s.owner.Node().Unheard = true }, nil},
	} {
		s := newListed()
		test.change(s)
		s.look()
		s.after(grace - 1)
		if got := s.look(); len(got) > 0 {
			t.Errorf("%s: got %q within the grace", test.name, got)
		}
		s.after(1)
		if got := s.look(); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// The finding lasts while nothing contradicts it, and ends with the endpoint or with the owner.
func TestTheEndOfAnEndpointOfAFormerOwner(t *testing.T) {
	const reported = "3 c b 1"
	for _, test := range []struct {
		name   string
		change func(s *listed)
		want   []string
	}{
		{"nothing", func(*listed) {}, []string{reported}},
		{"EndpointSlices cannot be read any more", func(s *listed) { s.unknown, s.endpoints = true, nil }, []string{reported}},
		{"and nobody has the address", func(s *listed) { s.unknown = true; s.Drop(s.owner) }, nil},
		{"the node is disconnected", func(s *listed) { s.owner.Node().Unheard = true }, []string{reported}},
		{"the endpoint is gone", func(s *listed) { s.endpoints = nil }, nil},
		{"the address is gone", func(s *listed) { s.Drop(s.owner) }, nil},
	} {
		s := newListed()
		s.look()
		s.after(10 * time.Second)
		if got := s.look(); !slices.Equal(got, []string{reported}) {
			t.Fatalf("got %q", got)
		}
		test.change(s)
		s.after(time.Minute)
		if got := s.look(); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
