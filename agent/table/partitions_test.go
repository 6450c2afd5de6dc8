package table

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// sharer is an aggregator that serves some partitions. Messages in both directions are late.
type sharer struct {
	gained   [ipwitnessv1.Partitions]uint64 // the revision since which a partition is served; 0 if it is not
	revision uint64
	complete uint64
	claims   map[string]uint32
	toReader []*ipwitnessv1.PartitionSet
	toItself []*ipwitnessv1.ReportRequest
}

// serve changes the partitions, and forgets those that are lost.
func (s *sharer) serve(served func(int) bool) {
	s.revision++
	set := &ipwitnessv1.PartitionSet{Revision: s.revision, Served: make([]byte, ipwitnessv1.Partitions/8)}
	for p := range s.gained {
		switch {
		case !served(p):
			s.gained[p] = 0
		case s.gained[p] == 0:
			s.gained[p] = s.revision
			fallthrough
		default:
			set.Served[p/8] |= 1 << (p % 8)
		}
	}
	for key := range s.claims {
		var address string
		_, _ = fmt.Sscan(key, &address)
		if s.gained[ipwitnessv1.Partition(netip.MustParseAddr(address))] == 0 {
			delete(s.claims, key)
		}
	}
	s.toReader = append(s.toReader, set)
}

func (s *sharer) apply(m *ipwitnessv1.ReportRequest) {
	if m.GetSnapshotBegin() {
		clear(s.claims)
	}
	for _, c := range m.GetClaims() {
		address, _ := netip.AddrFromSlice(c.GetAddress())
		if since := s.gained[ipwitnessv1.Partition(address)]; since == 0 || m.GetPartitions() < since {
			continue
		}
		if key := fmt.Sprintf("%s %x", address, c.GetMac()); c.GetGone() {
			delete(s.claims, key)
		} else {
			s.claims[key] = c.GetCount()
		}
	}
	s.complete = max(s.complete, m.GetComplete())
}

func TestAReaderSendsTheClaimsOfSomePartitions(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 9))
	tab := New()
	now := time.Now()
	at := InterfaceKey{2, 2}
	tab.Namespaces.Put(2, &ipwitnessv1.NamespaceRecord{Id: 2}, now)
	tab.Interfaces.Put(at, &ipwitnessv1.InterfaceRecord{Namespace: 2, Index: 2}, now)
	s := &sharer{claims: map[string]uint32{}}
	r := tab.Attach()
	s.serve(func(p int) bool { return p < 100 })
	r.Serve(s.toReader[0])
	s.toReader = nil
	deliver := func() {
		switch {
		case len(s.toReader) > 0 && random.IntN(3) == 0:
			r.Serve(s.toReader[0])
			s.toReader = s.toReader[1:]
		case len(s.toItself) > 0 && random.IntN(2) == 0:
			s.apply(s.toItself[0])
			s.toItself = s.toItself[1:]
		default:
			if m := r.Take(now); m != nil {
				s.toItself = append(s.toItself, m)
			}
		}
	}
	key := func() ClaimKey {
		k := testClaim(random.IntN(3000))
		if random.IntN(2) == 0 {
			k = wireClaim(1, random.IntN(3000), 1)
		}
		k.At = at
		return k
	}
	for range 3000 {
		tab.Update(func() {
			for range random.IntN(20) {
				tab.Add(key(), Claim{Count: 1}, now)
			}
			for range random.IntN(10) {
				if k := key(); tab.claims.live[k] != nil && IsWire(k.Kind) {
					tab.dropFrame(tab.claims.live[k], now)
				} else {
					tab.claims.Remove(k, now)
				}
			}
		})
		switch random.IntN(60) {
		case 0:
			r.Resync()
		case 1, 2:
			from := random.IntN(ipwitnessv1.Partitions)
			s.serve(func(p int) bool { return p >= from && p < from+100 })
		}
		deliver()
	}
	for range 10_000 {
		deliver()
	}
	if s.complete != s.revision {
		t.Errorf("complete: got revision %d, want %d", s.complete, s.revision)
	}
	served := 0
	for k, c := range tab.claims.live {
		if s.gained[ipwitnessv1.Partition(k.Address)] == 0 {
			continue
		}
		served++
		if got := s.claims[fmt.Sprintf("%s %x", k.Address, k.MAC)]; got != c.Count {
			t.Errorf("claim %v: got count %d, want %d", k, got, c.Count)
		}
	}
	if served == 0 || len(s.claims) != served {
		t.Errorf("got %d claims, want the %d in the served partitions", len(s.claims), served)
	}
}

func TestWhatTheKernelSaysOfTheAgentsOwnNamespaceGoesToAll(t *testing.T) {
	tab := New()
	now := time.Now()
	own, other, wire := testClaim(1), testClaim(2), wireClaim(1, 3, 1)
	own.At.Namespace = OwnNamespace
	for _, k := range []ClaimKey{own, other, wire} {
		tab.Add(k, Claim{Count: 1}, now)
	}
	r := tab.Attach()
	r.Serve(&ipwitnessv1.PartitionSet{Revision: 1, Served: make([]byte, ipwitnessv1.Partitions/8)})
	m := r.Take(now)
	if len(m.GetClaims()) != 1 || m.GetClaims()[0].GetNamespace() != OwnNamespace || m.GetPartitions() != 1 || m.GetComplete() != 1 {
		t.Errorf("got %v, want only the claim of the agent's own namespace, and revision 1 complete", m)
	}
}
