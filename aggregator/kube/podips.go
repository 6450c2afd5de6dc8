package kube

import (
	"hash/maphash"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/podips"
)

// podIPsPool is the name of the pool of addresses that several pods have.
const podIPsPool = "pods"

// podAddresses has the addresses of running pods according to the API, except pods in the host
// network. It publishes only addresses that several pods have. The cluster's mu guards it.
type podAddresses struct {
	*publisher
	// one has the pod of each address with one pod, by a hash of the address to save memory.
	// several has the pods of each address with several pods.
	one     map[uint64]*podRecord
	seed    maphash.Seed
	several map[netip.Addr][]*podRecord
	told    int // number of published addresses
}

func newPodAddresses(c *Cluster) *publisher {
	c.shared = &podAddresses{
		publisher: newIPAM(c, podips.Name), seed: maphash.MakeSeed(),
		one: make(map[uint64]*podRecord), several: make(map[netip.Addr][]*podRecord),
	}
	c.shared.used = true
	return c.shared.publisher
}

// counted returns the addresses of a pod that no other pod may have.
func (r *podRecord) counted() []netip.Addr {
	if r == nil || r.HostNetwork || r.Phase != string(corev1.PodRunning) || r.DeletionTimestamp != 0 {
		return nil
	}
	return r.IPs
}

// changed updates the pods of each address, and publishes addresses that several pods have.
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

// enter records that a pod has an address. It replaces the previous record of the pod.
func (s *podAddresses) enter(a netip.Addr, before, after *podRecord) {
	at, several := maphash.Comparable(s.seed, a), s.several[a]
	switch one := s.one[at]; {
	case slices.Contains(several, after):
	case len(several) > 0:
		rest := slices.DeleteFunc(slices.Clone(several), func(r *podRecord) bool { return r == before })
		s.share(a, several, append(rest, after))
	case one == nil, one == before, one == after, !slices.Contains(one.IPs, a): // one of another address with the same hash is replaced
		s.one[at] = after
	default:
		delete(s.one, at)
		s.share(a, nil, []*podRecord{one, after})
	}
}

// leave records that a pod no longer has an address.
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

// share sets the pods that share an address and publishes the differences.
func (s *podAddresses) share(a netip.Addr, before, after []*podRecord) {
	s.several[a] = after
	was, is := rivals(before), rivals(after)
	if len(was) == 0 && len(is) > 0 {
		if s.told++; s.told == 1 {
			s.put(verdict.Pool{Pool: ipam.Pool{Name: podIPsPool}}, "", false)
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

// named reports whether both records are of a pod with the same name.
func (r *podRecord) named(other *podRecord) bool {
	return r.Name == other.Name && r.Namespace == other.Namespace
}

// rivals returns the pods that share an address, or nil if there is no conflict among them.
// The two pods of a migrating virtual machine are no conflict.
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

// allocation returns the allocation to publish for an address of a pod.
func (r *podRecord) allocation(a netip.Addr) verdict.Allocation {
	return verdict.Allocation{
		Allocation: ipam.Allocation{Address: a, Node: r.Node, Namespace: r.Namespace, Pod: r.Name, Location: "pods " + r.Namespace + "/" + r.Name + " /status/podIPs"},
	}
}
