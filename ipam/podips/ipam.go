// Package podips describes the addresses of running pods in the Kubernetes API
// (Pod.status.podIPs). No IPAM keeps them, but two pods with one address are a duplicate.
package podips

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// IPAM describes the addresses of pods.
var IPAM = ipam.IPAM{
	Name: "kubernetes", Title: "the Kubernetes API",
	Traits: ipam.Traits{
		Status:   true,
		EndDelay: 30 * time.Second, // a pod that had the address before its node rebooted
	},
}

// Pool is the name of the pool of addresses that several pods have, and Status is where the API has
// them.
const (
	Pool   = "pods"
	Status = "/status/podIPs"
)

// NodePool is the name of the pool of addresses that several nodes have, and NodeStatus is where the API has them.
const (
	NodePool   = "nodes"
	NodeStatus = "/status/addresses"
)

// A Pod is the part of a pod that Addresses uses, or a node: it has no Name.
type Pod struct {
	// VirtualMachine is the name of the KubeVirt virtual machine that the pod runs; empty if it runs
	// none.
	Namespace, Name, Node, VirtualMachine string
	// IPs are the pod's addresses according to the API. Exclusive is set if no other pod may have
	// them.
	IPs       []netip.Addr
	Exclusive bool
}

// exclusive returns the addresses that no other pod may have.
func (p *Pod) exclusive() []netip.Addr {
	if p.Exclusive {
		return p.IPs
	}
	return nil
}

// A Record is the driver's record of a pod, which never changes. The zero record means that there is no pod.
type Record interface {
	comparable
	Pod() Pod
}

// Addresses has the addresses of running pods according to the API, except pods in the host network.
// It publishes only addresses that several pods have, and those that Compared selects. The driver's lock guards it.
type Addresses[R Record] struct {
	ipam.Publisher
	// Compared reports whether an address that only one pod has is published; nil for none.
	Compared func(r R, a netip.Addr) bool
	// pool is the name of the published pool, and place is where the addresses are in a pod.
	pool, place string
	// one has the pod of each address with one pod, by a hash of the address to save memory. several
	// has the pods of each address with several pods.
	one       map[uint64]R
	seed      maphash.Seed
	several   map[netip.Addr][]R
	published map[netip.Addr][]ipam.Record
}

// NewAddresses returns an empty Addresses. It publishes a pool of the given name; place is where the
// addresses are in a pod.
func NewAddresses[R Record](p ipam.Publisher, pool, place string) *Addresses[R] {
	return &Addresses[R]{
		Publisher: p, pool: pool, place: place, seed: maphash.MakeSeed(), one: make(map[uint64]R), several: make(map[netip.Addr][]R),
		published: make(map[netip.Addr][]ipam.Record),
	}
}

// Changed updates the pods of each address, and publishes what has changed. A record
// is zero if the pod did not exist before, or does not exist afterwards.
func (s *Addresses[R]) Changed(before, after R) {
	was, is := before.Pod(), after.Pod()
	for _, a := range is.exclusive() {
		s.enter(a, before, after)
		s.Publish(a)
	}
	for _, a := range was.exclusive() {
		if slices.Contains(is.exclusive(), a) {
			continue
		}
		at, several := maphash.Comparable(s.seed, a), s.several[a]
		switch rest := without(several, before); {
		case len(several) == 0 && s.one[at] == before:
			delete(s.one, at)
		case len(several) > 0 && len(rest) == 1:
			delete(s.several, a)
			s.one[at] = rest[0]
		case len(several) > 0:
			s.several[a] = rest
		}
		s.Publish(a)
	}
}

// enter records that a pod has an address. It replaces the previous record of the pod.
func (s *Addresses[R]) enter(a netip.Addr, before, after R) {
	var none R
	at, several := maphash.Comparable(s.seed, a), s.several[a]
	switch one := s.one[at]; {
	case slices.Contains(several, after):
	case len(several) > 0:
		s.several[a] = append(without(several, before), after)
	case one == none, one == before, one == after, !slices.Contains(one.Pod().IPs, a): // one of another address with the same hash is replaced
		s.one[at] = after
	default:
		delete(s.one, at)
		s.several[a] = []R{one, after}
	}
}

// without returns a copy of the records without one of them.
func without[R Record](all []R, less R) []R {
	return slices.DeleteFunc(slices.Clone(all), func(r R) bool { return r == less })
}

// Of returns the pods that have an address.
func (s *Addresses[R]) Of(a netip.Addr) []R {
	if several := s.several[a]; len(several) > 0 {
		return several
	}
	if one := s.one[maphash.Comparable(s.seed, a)]; slices.Contains(one.Pod().IPs, a) {
		return []R{one}
	}
	return nil
}

// Publish publishes what has changed about an address: its pods, or the result of Compared.
func (s *Addresses[R]) Publish(a netip.Addr) {
	all := s.Of(a)
	pods := rivals(all)
	if len(pods) == 0 && len(all) > 0 && s.Compared != nil && s.Compared(all[0], a) {
		pods = []Pod{all[0].Pod()}
	}
	was, is := s.published[a], s.records(a, pods)
	if len(is) > 0 && len(s.published) == 0 {
		s.Use()
		s.Put(ipam.Pool{Name: s.pool}, "", false)
	}
	ipam.Move(s, was, is)
	if s.published[a] = is; len(is) == 0 {
		delete(s.published, a)
	}
	if len(was) > 0 && len(s.published) == 0 {
		s.Drop(s.pool)
	}
}

// rivals returns the pods that share an address, or nil if there is no conflict among them. The two
// pods of a migrating virtual machine are no conflict.
func rivals[R Record](all []R) (pods []Pod) {
	conflict := false
	for _, r := range all {
		p := r.Pod()
		pods = append(pods, p)
		first := &pods[0]
		conflict = conflict || len(pods) > 1 && (p.Namespace != first.Namespace || p.VirtualMachine == "" || p.VirtualMachine != first.VirtualMachine)
	}
	if !conflict {
		return nil
	}
	return pods
}

func (s *Addresses[R]) records(a netip.Addr, pods []Pod) (all []ipam.Record) {
	for _, p := range pods {
		if p.Name == "" {
			all = append(all, ipam.Record{Pool: s.pool, Allocation: ipam.Allocation{
				Address: a, Node: p.Node, Purpose: "InternalIP", Location: "nodes " + p.Node + " " + s.place,
			}})
			continue
		}
		all = append(all, ipam.Record{Pool: s.pool, Allocation: ipam.Allocation{
			Address: a, Node: p.Node, Namespace: p.Namespace, Pod: p.Name, Location: "pods " + p.Namespace + "/" + p.Name + " " + s.place,
		}})
	}
	return all
}
