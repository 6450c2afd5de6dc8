package table

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// follow returns a reader that has taken everything in the table.
func follow(t *Table) *Reader {
	r := t.Attach()
	drain(r)
	return r
}

// drain takes all pending messages.
func drain(r *Reader) (all []*ipwitnessv1.ReportRequest) {
	for m := r.Take(time.Now()); m != nil; m = r.Take(time.Now()) {
		all = append(all, m)
	}
	return all
}

func TestChangesOfOneClaimCoalesceUntilTheyAreTaken(t *testing.T) {
	tab := New()
	r := follow(tab)
	now := time.Now()
	for i := range 1000 {
		at := now.Add(time.Duration(i))
		tab.Update(func() { tab.Add(testClaim(1), Claim{First: now, Last: at, Count: 1}, at) })
	}
	m := r.Take(now.Add(time.Millisecond))
	if len(m.GetClaims()) != 1 {
		t.Fatalf("claims taken: got %d, want one", len(m.GetClaims()))
	}
	c := m.GetClaims()[0]
	if c.GetCount() != 1000 || !c.GetFirstSeen().AsTime().Equal(now) || c.GetResidence().AsDuration() != time.Millisecond {
		t.Errorf("claim: got count %d, first %v, residence %v", c.GetCount(), c.GetFirstSeen().AsTime(), c.GetResidence().AsDuration())
	}
	if m := r.Take(now); m != nil {
		t.Errorf("second take: got %v, want nothing", m)
	}
}

func TestEndOfAClaimIsSentEvenIfItsBeginningWasNotTaken(t *testing.T) {
	tab := New()
	r := follow(tab)
	now := time.Now()
	tab.Update(func() {
		tab.Add(testClaim(1), Claim{Count: 1}, now)
		tab.claims.Remove(testClaim(1), now)
	})
	m := r.Take(now)
	if len(m.GetClaims()) != 1 || !m.GetClaims()[0].GetGone() {
		t.Errorf("claims taken: got %v, want one removed claim", m.GetClaims())
	}
}

func TestSnapshotHasAllLiveRecordsAndNoOthers(t *testing.T) {
	tab := New()
	now := time.Now()
	const claims = 3*maxRecords + 7
	tab.Update(func() {
		for i := range claims {
			tab.Add(testClaim(i), Claim{Count: 1}, now)
		}
	})
	r := follow(tab)
	tab.Update(func() { tab.claims.Remove(testClaim(5), now) })
	r.Resync()
	got := 0
	messages := drain(r)
	for i, m := range messages {
		if len(m.GetClaims()) > maxRecords {
			t.Errorf("claims in one message: got %d, want at most %d", len(m.GetClaims()), maxRecords)
		}
		if m.GetSnapshotBegin() != (i == 0) || m.GetSnapshotEnd() != (i == len(messages)-1) {
			t.Errorf("message %d: got begin %v and end %v", i, m.GetSnapshotBegin(), m.GetSnapshotEnd())
		}
		for _, c := range m.GetClaims() {
			if c.GetGone() {
				t.Error("a snapshot has a removed claim")
			}
			got++
		}
	}
	if got != claims-1 || len(messages) != 4 {
		t.Errorf("snapshot: got %d claims in %d messages, want %d in 4", got, len(messages), claims-1)
	}
}

func TestEndOfANamespaceImpliesTheEndOfItsRecords(t *testing.T) {
	tab := New()
	now := time.Now()
	tab.Update(func() {
		tab.Namespaces.Put(2, &ipwitnessv1.NamespaceRecord{Id: 2}, now)
		tab.Interfaces.Put(InterfaceKey{2, 2}, &ipwitnessv1.InterfaceRecord{Namespace: 2, Index: 2}, now)
		tab.Add(testClaim(1), Claim{Count: 1}, now)
	})
	r := follow(tab)
	tab.Update(func() {
		tab.claims.Remove(testClaim(1), now)
		tab.Interfaces.Remove(InterfaceKey{2, 2}, now)
		tab.RemoveNamespace(2, now)
	})
	m := r.Take(now)
	if len(m.GetNamespaces()) != 1 || !m.GetNamespaces()[0].GetGone() || len(m.GetInterfaces())+len(m.GetClaims()) != 0 {
		t.Errorf("changes: got %v, want only the end of the namespace", m)
	}
}

func TestReadersAreIndependent(t *testing.T) {
	tab := New()
	fast, slow := follow(tab), follow(tab)
	now := time.Now()
	for i := range 3 {
		tab.Update(func() { tab.Add(testClaim(1), Claim{Count: 1}, now) })
		if got := drain(fast); len(got) != 1 || got[0].GetClaims()[0].GetCount() != uint32(i+1) {
			t.Errorf("change %d: got %v, want one message with it", i, got)
		}
	}
	if got := drain(slow); len(got) != 1 || len(got[0].GetClaims()) != 1 || got[0].GetClaims()[0].GetCount() != 3 {
		t.Errorf("three changes for a slow reader: got %v, want one claim", got)
	}
	fast.Answer(Questions{Checks: []uint64{7}})
	if got := drain(slow); got != nil {
		t.Errorf("answer to another reader's check: got %v, want nothing", got)
	}
	if got := drain(fast); len(got) != 1 || len(got[0].GetChecked()) != 1 {
		t.Errorf("answer to a check: got %v, want one", got)
	}
}

// byAnotherWall returns the same moment as read after the wall clock was set by some seconds.
// It relies on how package time represents a time with both clocks.
func byAnotherWall(t *testing.T, at time.Time, seconds int) time.Time {
	t.Helper()
	set := at
	*(*uint64)(unsafe.Pointer(&set)) += uint64(seconds) << 30
	if set.Sub(at) != 0 || set.Unix()-at.Unix() != int64(seconds) {
		t.Fatalf("set the wall clock of %v: got %v", at, set)
	}
	return set
}

func TestAgeOfAClaimIsByTheMonotonicClock(t *testing.T) {
	for _, seconds := range []int{0, 3600, -3600} {
		tab := New()
		seen := time.Now()
		last := byAnotherWall(t, seen, seconds)
		tab.Add(testClaim(1), Claim{First: last, Last: last, Count: 1}, last)
		r := tab.Attach()
		for _, age := range []time.Duration{5 * time.Second, time.Minute} {
			r.Resync()
			c := r.Take(seen.Add(age)).GetClaims()[0]
			if got := c.GetAge().AsDuration(); got != age {
				t.Errorf("age in a snapshot, wall clock set by %d s: got %s, want %s", seconds, got, age)
			}
			if got := c.GetResidence().AsDuration(); got != 0 {
				t.Errorf("residence in a snapshot: got %s, want none", got)
			}
		}
		tab.Update(func() { tab.Add(testClaim(1), Claim{Last: last, Count: 1}, last) })
		c := r.Take(seen.Add(time.Second)).GetClaims()[0]
		if c.GetAge().AsDuration() != time.Second || c.GetResidence().AsDuration() != time.Second {
			t.Errorf("change, wall clock set by %d s: got age %v and residence %v, want 1s", seconds, c.GetAge(), c.GetResidence())
		}
	}
}

func TestNothingIsKeptForDetachedReaders(t *testing.T) {
	tab := New()
	r := follow(tab)
	r.Detach()
	tab.Update(func() { tab.Add(testClaim(1), Claim{Count: 1}, time.Now()) })
	if kept := len(tab.readers); kept != 0 {
		t.Errorf("kept for readers that left: got %d, want nothing", kept)
	}
	if len(r.claims.dirty) != 0 {
		t.Error("a detached reader got a change")
	}
}

func TestReaderThatFallsBehindGetsASnapshot(t *testing.T) {
	tab := New()
	r := follow(tab)
	now := time.Now()
	tab.Update(func() { tab.Add(testClaim(0), Claim{Count: 1}, now) })
	churn := func() {
		for i := 1; i < spareChanges+10; i++ {
			tab.Update(func() {
				tab.Add(testClaim(i), Claim{Count: 1}, now)
				tab.claims.Remove(testClaim(i), now)
			})
			if len(r.claims.dirty) > spareChanges+2 {
				t.Fatalf("waiting changes: got %d, want %d at most", len(r.claims.dirty), spareChanges+2)
			}
		}
	}
	churn()
	m := r.Take(now)
	if !m.GetSnapshotBegin() || !m.GetSnapshotEnd() || len(m.GetClaims()) != 1 {
		t.Fatalf("after too many changes: got %d claims, begin %v, end %v, want a snapshot of one", len(m.GetClaims()), m.GetSnapshotBegin(), m.GetSnapshotEnd())
	}

	// Again, during a snapshot.
	tab.Update(func() {
		for i := range maxRecords + 1 {
			tab.Add(testClaim(1<<20+i), Claim{Count: 1}, now)
		}
	})
	r.Resync()
	if m = r.Take(now); !m.GetSnapshotBegin() || m.GetSnapshotEnd() {
		t.Fatalf("first part of a snapshot: got begin %v and end %v", m.GetSnapshotBegin(), m.GetSnapshotEnd())
	}
	tab.Update(func() {
		for i := range maxRecords + 1 {
			tab.claims.Remove(testClaim(1<<20+i), now)
		}
	})
	churn()
	if m = r.Take(now); !m.GetSnapshotBegin() || !m.GetSnapshotEnd() || len(m.GetClaims()) != 1 {
		t.Errorf("after too many changes in a snapshot: got %d claims, begin %v, end %v, want another, of one", len(m.GetClaims()), m.GetSnapshotBegin(), m.GetSnapshotEnd())
	}
}

func TestSnapshotIsCompletedBeforeTheNextOne(t *testing.T) {
	tab := New()
	for i := range maxRecords + 1 {
		tab.Add(testClaim(i), Claim{Count: 1}, time.Now())
	}
	r := tab.Attach()
	var got []string
	for m := r.Take(time.Now()); m != nil && len(got) < 10; m = r.Take(time.Now()) {
		got = append(got, fmt.Sprint(m.GetSnapshotBegin(), m.GetSnapshotEnd()))
		if len(got) == 1 {
			r.Resync()
			r.Resync()
		}
	}
	if want := "[true false false true true false false true]"; fmt.Sprint(got) != want {
		t.Errorf("begins and ends: got %v, want %v", got, want)
	}
}

// In a flood, claims to an address of a kernel do not wait behind the flood's claims, whether
// they are in the same batch or snapshot or change while it is being sent.
func TestClaimsToImportantAddressesAreSentFirst(t *testing.T) {
	const flood = 5 * maxRecords
	now := time.Now()
	kernel := func(i int) ClaimKey {
		return ClaimKey{Address: wireClaim(1, i, 0).Address, Kind: ipwitnessv1.Evidence_ASSIGNED, At: InterfaceKey{OwnNamespace, 1}}
	}
	const atOnce, later = flood + 1, flood + 2
	tab := New()
	tab.Update(func() {
		tab.claims.Put(kernel(atOnce), &entry{Claim: Claim{Count: 1}}, now)
		tab.claims.Put(kernel(later), &entry{Claim: Claim{Count: 1}}, now)
	})
	has := func(m *ipwitnessv1.ReportRequest, i int) bool {
		addr := wireClaim(1, i, 7).Address
		return slices.ContainsFunc(m.GetClaims(), func(c *ipwitnessv1.ClaimRecord) bool {
			return string(c.GetAddress()) == string(addr.AsSlice()) && len(c.GetMac()) > 0 && !c.GetGone()
		})
	}
	r := follow(tab)
	for _, round := range []string{"batch", "snapshot"} {
		tab.Update(func() {
			for i := range flood {
				tab.took(t, wireClaim(1, i, 7), now)
			}
			tab.took(t, wireClaim(2, atOnce, 7), now)
		})
		if round == "snapshot" {
			r.Resync()
		}
		first := r.Take(now)
		if !has(first, atOnce) {
			t.Errorf("%s: the first of its messages has no claim to the address that a kernel has", round)
		}
		tab.Update(func() { tab.took(t, wireClaim(2, later, 7), now) })
		if second := r.Take(now); !has(second, later) || len(second.GetClaims()) != maxRecords {
			t.Errorf("%s: the message after the new claim has %d claims, but not that one", round, len(second.GetClaims()))
		}
		tab.Update(func() { tab.claims.Remove(wireClaim(2, later, 7), now) })
		drain(r)
	}
}

func TestAnswersAreSentWhileTheTableKeepsChanging(t *testing.T) {
	tab := New()
	r := follow(tab)
	const before = 2*maxRecords + 5
	change := func(from, to int) {
		tab.Update(func() {
			for i := from; i < to; i++ {
				tab.Add(testClaim(i), Claim{Count: 1}, time.Now())
			}
		})
	}
	change(0, before)
	r.Take(time.Now()) // a batch has begun
	change(0, before)
	r.Answer(Questions{Checks: []uint64{5}, Ping: 1})
	r.Answer(Questions{Checks: []uint64{6}, Ping: 2})
	sent := map[string]bool{}
	for i := range 10 {
		change(before, before+4*maxRecords) // more than fits into a message
		m := r.Take(time.Now())
		for _, c := range m.GetClaims() {
			sent[string(c.GetAddress())] = true
		}
		if m.GetPong() == nil {
			continue
		}
		for i := range before {
			if !sent[string(testClaim(i).Address.AsSlice())] {
				t.Fatalf("claim %d changed before the ping: it was not sent before the pong", i)
			}
		}
		if m.GetPong().GetId() != 2 || fmt.Sprint(m.GetChecked()) != "[5 6]" || m.GetPong().GetSentAt() == nil {
			t.Errorf("answers: got %v and %v, want pong 2, checks 5 and 6", m.GetPong(), m.GetChecked())
		}
		if i == 0 {
			t.Error("the answer came before what had changed")
		}
		return
	}
	t.Error("no answer in 10 messages")
}

// Repeated requests for snapshots do not prevent a question from being answered.
func TestAnswersAreSentDespiteRepeatedSnapshots(t *testing.T) {
	tab := New()
	for i := range 10 {
		tab.Add(testClaim(i), Claim{Count: 1}, time.Now())
	}
	r := follow(tab)
	r.Answer(Questions{Checks: []uint64{5}, Ping: 7})
	for range 10 {
		r.Resync()
		if m := r.Take(time.Now()); m.GetPong().GetId() == 7 {
			if len(m.GetChecked()) != 1 || !m.GetSnapshotEnd() {
				t.Errorf("answer: got %v, want both with the end of the snapshot", m)
			}
			return
		}
	}
	t.Error("no answer in 10 snapshots")
}

func TestWaitingChecksAreLimited(t *testing.T) {
	tab := New()
	r := follow(tab)
	for i := range uint64(3 * maxChecks) {
		r.Answer(Questions{Checks: []uint64{i}})
	}
	got := drain(r)
	if len(got) != 1 || len(got[0].GetChecked()) != maxChecks || got[0].GetChecked()[maxChecks-1] != 3*maxChecks-1 {
		t.Errorf("answers: got %d messages, want one with the last %d", len(got), maxChecks)
	}
}

// replica is the state of an aggregator according to the messages it received.
type replica struct {
	inside     bool
	namespaces map[uint32]bool
	interfaces map[InterfaceKey]bool
	claims     map[InterfaceKey]map[string]uint32
}

func replicaKey(addr, mac []byte) string { return fmt.Sprintf("%x %s", addr, mac) }

// apply applies a message. It returns an error for references to unknown records.
func (p *replica) apply(m *ipwitnessv1.ReportRequest) error {
	if m.GetSnapshotBegin() {
		*p = replica{true, map[uint32]bool{}, map[InterfaceKey]bool{}, map[InterfaceKey]map[string]uint32{}}
	}
	for _, r := range m.GetNamespaces() {
		if r.GetGone() {
			delete(p.namespaces, r.GetId())
			maps.DeleteFunc(p.interfaces, func(k InterfaceKey, _ bool) bool { return k.Namespace == r.GetId() })
			maps.DeleteFunc(p.claims, func(k InterfaceKey, _ map[string]uint32) bool { return k.Namespace == r.GetId() })
			continue
		}
		p.namespaces[r.GetId()] = true
	}
	for _, r := range m.GetInterfaces() {
		k := InterfaceKey{r.GetNamespace(), int32(r.GetIndex())}
		if r.GetGone() {
			delete(p.interfaces, k)
			delete(p.claims, k)
			continue
		}
		if !p.namespaces[k.Namespace] {
			return fmt.Errorf("interface %v of an unknown namespace", k)
		}
		p.interfaces[k] = true
	}
	for _, r := range m.GetClaims() {
		k := InterfaceKey{r.GetNamespace(), int32(r.GetIndex())}
		if r.GetGone() {
			delete(p.claims[k], replicaKey(r.GetAddress(), r.GetMac()))
			continue
		}
		if !p.interfaces[k] {
			return fmt.Errorf("claim on unknown interface %v", k)
		}
		if p.claims[k] == nil {
			p.claims[k] = map[string]uint32{}
		}
		p.claims[k][replicaKey(r.GetAddress(), r.GetMac())] = r.GetCount()
	}
	p.inside = p.inside && !m.GetSnapshotEnd()
	return nil
}

// check compares the replica with the table.
func (p *replica) check(t *Table) error {
	claims := 0
	for _, on := range p.claims {
		claims += len(on)
	}
	if p.inside || len(p.namespaces) != len(t.Namespaces.live) || len(p.interfaces) != len(t.Interfaces.live) || claims != len(t.claims.live) {
		return fmt.Errorf("got %d namespaces, %d interfaces, %d claims, inside %v, want %d, %d, %d, outside", len(p.namespaces), len(p.interfaces),
			claims, p.inside, len(t.Namespaces.live), len(t.Interfaces.live), len(t.claims.live))
	}
	for k, c := range t.claims.live {
		if got := p.claims[k.At][replicaKey(k.Address.AsSlice(), []byte(k.MAC))]; got != c.Count {
			return fmt.Errorf("claim %v: got count %d, want %d", k, got, c.Count)
		}
	}
	return nil
}

func TestReadersConvergeToTheTable(t *testing.T) {
	tab := New()
	random := rand.New(rand.NewPCG(3, 4))
	readers, replicas := []*Reader{tab.Attach(), tab.Attach()}, []*replica{{}, {}}
	put := func(id uint32, now time.Time) {
		if tab.Namespaces.live[id] == nil {
			tab.Namespaces.Put(id, &ipwitnessv1.NamespaceRecord{Id: id}, now)
		}
		at := InterfaceKey{id, int32(random.IntN(3))}
		if tab.Interfaces.live[at] == nil {
			tab.Interfaces.Put(at, &ipwitnessv1.InterfaceRecord{Namespace: id, Index: uint32(at.Index)}, now)
		}
		for range random.IntN(300) {
			k := testClaim(random.IntN(2000))
			if random.IntN(2) == 0 { // the address may or may not be a kernel's
				k = wireClaim(1, random.IntN(2000), 1)
			}
			k.At = at
			tab.Add(k, Claim{Count: 1}, now)
		}
	}
	drop := func(at InterfaceKey, now time.Time) {
		for k, c := range tab.claims.live {
			switch {
			case k.At != at:
			case IsWire(k.Kind):
				tab.dropFrame(c, now)
			default:
				tab.claims.Remove(k, now)
			}
		}
		tab.Interfaces.Remove(at, now)
	}
	ids, last := [20]uint32{}, uint32(0) // ids of ended namespaces are never used again
	for range 400 {
		now := time.Now()
		which := random.IntN(len(ids))
		if ids[which] == 0 {
			last++
			ids[which] = last
		}
		id := ids[which]
		one := random.IntN(2)
		tab.Update(func() {
			switch random.IntN(12) {
			case 0:
				drop(InterfaceKey{id, int32(random.IntN(3))}, now)
			case 1:
				for i := range int32(3) {
					drop(InterfaceKey{id, i}, now)
				}
				tab.RemoveNamespace(id, now)
				ids[which] = 0
			default:
				put(id, now)
			}
		})
		switch random.IntN(50) {
		case 0:
			readers[one].Resync()
		case 1:
			readers[one].Detach()
			readers[one], replicas[one] = tab.Attach(), &replica{}
		case 2:
			readers[one].claims.lost = true
		case 3:
			readers[one].urgent.lost = true
		}
		if m := readers[one].Take(now); m != nil {
			if err := replicas[one].apply(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, r := range readers {
		for _, m := range drain(r) {
			if err := replicas[i].apply(m); err != nil {
				t.Fatal(err)
			}
		}
		if err := replicas[i].check(tab); err != nil {
			t.Errorf("reader %d: %v", i, err)
		}
	}
}

// BenchmarkChange adds and takes one change of a claim, in tables of different sizes.
func BenchmarkChange(b *testing.B) {
	for _, size := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			tab := New()
			now := time.Now()
			for i := range size {
				tab.Add(testClaim(i), Claim{Count: 1}, now)
			}
			r := follow(tab)
			b.ReportAllocs()
			for b.Loop() {
				tab.Update(func() { tab.Add(testClaim(7), Claim{Count: 1}, now) })
				r.Take(now)
			}
		})
	}
}

// poolOf returns the key and record of a pool, and allocationOf those of an allocation.
func poolOf(name string) (PoolKey, *ipwitnessv1.PoolRecord) {
	return PoolKey{"host-local", name}, &ipwitnessv1.PoolRecord{Ipam: "host-local", Name: name}
}

func allocationOf(name string, i int) (AllocationKey, *ipwitnessv1.AllocationRecord) {
	pool, _ := poolOf(name)
	addr := testClaim(i).Address
	return AllocationKey{pool, addr}, &ipwitnessv1.AllocationRecord{Ipam: "host-local", Pool: name, Address: addr.AsSlice()}
}

func TestPoolsAreSentBeforeTheirAllocations(t *testing.T) {
	tab := New()
	now := time.Now()
	const allocations = 2*maxRecords + 5
	tab.Update(func() {
		for i := range allocations {
			k, a := allocationOf("a", i)
			tab.Allocations.Put(k, a, now)
		}
		k, p := poolOf("a")
		tab.Pools.Put(k, p, now)
		tab.Add(testClaim(1), Claim{Count: 1}, now)
	})
	r := tab.Attach()
	messages := drain(r)
	if len(messages) != 3 || len(messages[0].GetPools()) != 1 || len(messages[2].GetClaims()) != 1 {
		t.Errorf("snapshot: got %d messages, want three, the pool in the first and the claim in the last", len(messages))
	}
	got := 0
	for i, m := range messages {
		if m.GetSnapshotBegin() != (i == 0) || m.GetSnapshotEnd() != (i == len(messages)-1) || len(m.GetAllocations()) > maxRecords {
			t.Errorf("message %d: got begin %v, end %v, %d allocations", i, m.GetSnapshotBegin(), m.GetSnapshotEnd(), len(m.GetAllocations()))
		}
		got += len(m.GetAllocations())
	}
	if got != allocations {
		t.Errorf("snapshot: got %d allocations, want %d", got, allocations)
	}
	k, _ := allocationOf("a", 7)
	tab.Update(func() { tab.Allocations.Remove(k, now) })
	if m := drain(r); len(m) != 1 || len(m[0].GetAllocations()) != 1 || !m[0].GetAllocations()[0].GetGone() || len(m[0].GetPools()) != 0 {
		t.Errorf("a released allocation: got %v, want its end", m)
	}
}

func TestEndOfAPoolImpliesTheEndOfItsAllocations(t *testing.T) {
	tab := New()
	now := time.Now()
	put := func(name string, n int) {
		k, p := poolOf(name)
		tab.Pools.Put(k, p, now)
		for i := range n {
			k, a := allocationOf(name, i)
			tab.Allocations.Put(k, a, now)
		}
	}
	end := func(name string, n int) {
		for i := range n {
			k, _ := allocationOf(name, i)
			tab.Allocations.Remove(k, now)
		}
		k, _ := poolOf(name)
		tab.Pools.Remove(k, now)
	}
	tab.Update(func() { put("a", 3); put("b", 3) })
	r := follow(tab)
	tab.Update(func() { end("a", 3) })
	m := r.Take(now)
	if len(m.GetPools()) != 1 || !m.GetPools()[0].GetGone() || m.GetPools()[0].GetName() != "a" || len(m.GetAllocations()) != 0 {
		t.Errorf("changes: got %v, want only the end of the pool", m)
	}
	// If a pool comes back before its end was sent, the ends of its allocations must be sent.
	tab.Update(func() { end("b", 3); put("b", 1) })
	m = r.Take(now)
	gone := 0
	for _, a := range m.GetAllocations() {
		if a.GetGone() {
			gone++
		}
	}
	if len(m.GetPools()) != 1 || m.GetPools()[0].GetGone() || len(m.GetAllocations()) != 3 || gone != 2 {
		t.Errorf("changes: got %v, want the pool, one allocation and the end of two", m)
	}
	if m := r.Take(now); m != nil {
		t.Errorf("afterwards: got %v, want nothing", m)
	}
}

// Of answers about neighbour tables, the latest ones are sent, after what changed before.
func TestAnswersAboutBeliefsFollowChanges(t *testing.T) {
	tab := New()
	r := tab.Attach()
	r.Take(time.Now())
	tab.Update(func() { tab.Add(testClaim(1), Claim{Count: 1}, time.Now()) })
	for id := range uint64(maxBeliefs + 1) {
		r.Answer(Questions{Beliefs: []*ipwitnessv1.BeliefAnswer{{Id: id}}})
	}
	m := r.Take(time.Now())
	if len(m.GetClaims()) != 1 || len(m.GetAnswers()) != maxBeliefs || m.GetAnswers()[0].GetId() != 1 {
		t.Errorf("got %v, want the claim, and all answers but the first", m)
	}
	if m := r.Take(time.Now()); m != nil {
		t.Errorf("got %v, want nothing more", m)
	}
}
