package kube

import (
	"hash/maphash"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// podIPsPool is the name of the pool of addresses that several pods have.
const podIPsPool = "pods"

// podAddresses are the addresses that the API says pods have: told of are those that
// several have that run, in a network of their own. It is behind the cluster's mu.
type podAddresses struct {
	*ipam
	// one has the pod of each address, by a hash of that: there are many. several has
	// those of one that several have.
	one     map[uint64]*podRecord
	seed    maphash.Seed
	several map[netip.Addr][]*podRecord
	told    int // how many addresses
}

func newPodAddresses(c *Cluster) *ipam {
	c.shared = &podAddresses{
		ipam: newIPAM(c, verdict.KubernetesAPI), seed: maphash.MakeSeed(),
		one: make(map[uint64]*podRecord), several: make(map[netip.Addr][]*podRecord),
	}
	c.shared.used = true
	return c.shared.ipam
}

// counted are the addresses of a pod that nobody else may have.
func (r *podRecord) counted() []netip.Addr {
	if r == nil || r.HostNetwork || r.Phase != string(corev1.PodRunning) || r.DeletionTimestamp != 0 {
		return nil
	}
	return r.IPs
}

// changed notes who has addresses, and tells of those that several have.
func (s *podAddresses) changed(before, after *podRecord) {
	had, has := before.counted(), after.counted()
	for _, a := range has {
		s.enter(a, before, after)
	}
	for _, a := range had {
		if !slices.Contains(has, a) {
			s.leave(a, before)
		}
	}
}

// enter notes that a pod has an address: in the place of what it was before.
func (s *podAddresses) enter(a netip.Addr, before, after *podRecord) {
	at, several := maphash.Comparable(s.seed, a), s.several[a]
	switch one := s.one[at]; {
	case slices.Contains(several, after):
	case len(several) > 0:
		rest := slices.DeleteFunc(slices.Clone(several), func(r *podRecord) bool { return r == before })
		s.share(a, several, append(rest, after))
	case one == nil, one == before, one == after, !slices.Contains(one.IPs, a): // or another address of that hash
		s.one[at] = after
	default:
		delete(s.one, at)
		s.share(a, nil, []*podRecord{one, after})
	}
}

// leave notes that a pod has an address no more.
func (s *podAddresses) leave(a netip.Addr, before *podRecord) {
	at, several := maphash.Comparable(s.seed, a), s.several[a]
	if len(several) == 0 {
		if s.one[at] == before {
			delete(s.one, at)
		}
		return
	}
	rest := slices.DeleteFunc(slices.Clone(several), func(r *podRecord) bool { return r == before })
	s.share(a, several, rest)
	if len(rest) == 1 {
		delete(s.several, a)
		s.one[at] = rest[0]
	}
}

// share notes who shares an address, and tells what differs.
func (s *podAddresses) share(a netip.Addr, before, after []*podRecord) {
	s.several[a] = after
	was, is := rivals(before), rivals(after)
	if len(was) == 0 && len(is) > 0 {
		if s.told++; s.told == 1 {
			s.put(verdict.Pool{Name: podIPsPool}, "", false)
		}
	}
	for _, r := range is {
		if i := slices.IndexFunc(was, r.named); i < 0 || was[i].Node != r.Node {
			s.allocate(podIPsPool, r.allocation(a), false)
		}
	}
	for _, r := range was {
		if !slices.ContainsFunc(is, r.named) {
			s.allocate(podIPsPool, r.allocation(a), true)
		}
	}
	if len(was) > 0 && len(is) == 0 {
		if s.told--; s.told == 0 {
			s.drop(podIPsPool)
		}
	}
}

// named tells whether another is of the same name.
func (r *podRecord) named(other *podRecord) bool {
	return r.Name == other.Name && r.Namespace == other.Namespace
}

// rivals are those who share an address, if that are several: a virtual machine that
// moves is two pods.
func rivals(all []*podRecord) []*podRecord {
	same := func(r *podRecord) bool {
		first := all[0]
		return r == first || r.Namespace == first.Namespace && r.VirtualMachine != "" && r.VirtualMachine == first.VirtualMachine
	}
	if len(all) < 2 || !slices.ContainsFunc(all, func(r *podRecord) bool { return !same(r) }) {
		return nil
	}
	return all
}

// allocation is what is told of an address of a pod.
func (r *podRecord) allocation(a netip.Addr) verdict.Allocation {
	return verdict.Allocation{
		Address: a, Node: r.Node, Namespace: r.Namespace, Pod: r.Name, Location: "pods " + r.Namespace + "/" + r.Name + " /status/podIPs",
	}
}
