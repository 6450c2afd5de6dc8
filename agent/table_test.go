package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func testClaim(i int) claimKey {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return claimKey{addr: addr, kind: ipwitnessv1.Evidence_ASSIGNED, at: interfaceKey{2, 2}}
}

func TestChangesOfOneClaimCoalesceUntilTheyAreTaken(t *testing.T) {
	tab := newTable()
	now := time.Now()
	for i := range 1000 {
		tab.update(func() { tab.seen(testClaim(1), claim{first: now, last: now.Add(time.Duration(i)), count: 1}, now) })
	}
	m, more := tab.take(now.Add(time.Millisecond))
	if len(m.GetClaims()) != 1 || more {
		t.Fatalf("claims taken: got %d, more %v, want one", len(m.GetClaims()), more)
	}
	c := m.GetClaims()[0]
	if c.GetCount() != 1000 || !c.GetFirstSeen().AsTime().Equal(now) || c.GetResidence().AsDuration() != time.Millisecond {
		t.Errorf("claim: got count %d, first %v, residence %v", c.GetCount(), c.GetFirstSeen().AsTime(), c.GetResidence().AsDuration())
	}
	if m, _ := tab.take(now); m != nil {
		t.Errorf("second take: got %v, want nothing", m)
	}
}

func TestEndOfAClaimIsToldEvenWhereItsBeginningWasNotTaken(t *testing.T) {
	tab := newTable()
	now := time.Now()
	tab.update(func() {
		tab.seen(testClaim(1), claim{count: 1}, now)
		tab.claims.remove(testClaim(1), now)
	})
	m, _ := tab.take(now)
	if len(m.GetClaims()) != 1 || !m.GetClaims()[0].GetGone() {
		t.Errorf("claims taken: got %v, want one that is gone", m.GetClaims())
	}
}

func TestSnapshotHasAllThatLivesAndNothingThatIsGone(t *testing.T) {
	tab := newTable()
	now := time.Now()
	const claims = 3*maxRecords + 7
	tab.update(func() {
		for i := range claims {
			tab.seen(testClaim(i), claim{count: 1}, now)
		}
		tab.checked = append(tab.checked, 1)
	})
	for more := true; more; {
		_, more = tab.take(now)
	}
	tab.update(func() { tab.claims.remove(testClaim(5), now) })
	tab.snapshot(now)
	got, messages := 0, 0
	for more := true; more; messages++ {
		var m *ipwitnessv1.ReportRequest
		if m, more = tab.take(now); len(m.GetClaims()) > maxRecords {
			t.Errorf("claims in one message: got %d, want at most %d", len(m.GetClaims()), maxRecords)
		}
		for _, c := range m.GetClaims() {
			if c.GetGone() {
				t.Error("a snapshot told of a claim that is gone")
			}
			got++
		}
	}
	if got != claims-1 || messages != 4 {
		t.Errorf("snapshot: got %d claims in %d messages, want %d in 4", got, messages, claims-1)
	}
}

func TestEndOfANamespaceIsTheEndOfAllInIt(t *testing.T) {
	tab := newTable()
	now := time.Now()
	tab.update(func() {
		tab.namespaces.put(2, &ipwitnessv1.NamespaceRecord{Id: 2}, now)
		tab.interfaces.put(interfaceKey{2, 2}, &ipwitnessv1.InterfaceRecord{Namespace: 2, Index: 2}, now)
		tab.seen(testClaim(1), claim{count: 1}, now)
	})
	tab.take(now)
	tab.update(func() {
		tab.claims.remove(testClaim(1), now)
		tab.interfaces.remove(interfaceKey{2, 2}, now)
		tab.removeNamespace(2, now)
	})
	m, _ := tab.take(now)
	if len(m.GetNamespaces()) != 1 || !m.GetNamespaces()[0].GetGone() || len(m.GetInterfaces())+len(m.GetClaims()) != 0 {
		t.Errorf("told: got %v, want only the end of the namespace", m)
	}
}

func TestOnePortCannotFillTheTable(t *testing.T) {
	tab := newTable()
	now := time.Now()
	frame := func(port, i int) claimKey {
		k := testClaim(i)
		k.kind, k.at = ipwitnessv1.Evidence_USED, interfaceKey{ownNamespace, int32(port)}
		return k
	}
	for i := range maxPerPort + 10 {
		if took, want := tab.seen(frame(7, i), claim{last: now, count: 1}, now), i < maxPerPort; took != want {
			t.Fatalf("claim %d of one port: got taken %v, want %v", i, took, want)
		}
	}
	if !tab.seen(frame(7, 1), claim{last: now, count: 1}, now) || !tab.seen(frame(8, 1), claim{last: now, count: 1}, now) || !tab.seen(testClaim(1), claim{count: 1}, now) {
		t.Error("a known claim, another port's and an assigned one: got one refused, want all taken")
	}
	if held, refused := tab.claimsNow(); held != maxPerPort+2 || refused != 10 {
		t.Errorf("claims: got %d held and %d refused, want %d and 10", held, refused, maxPerPort+2)
	}
	if got := len(tab.dropPort(7, now)); got != maxPerPort {
		t.Errorf("claims that ended with their port: got %d, want %d", got, maxPerPort)
	}
	if !tab.seen(frame(7, 1), claim{last: now, count: 1}, now) {
		t.Error("a claim by the port after it was emptied was refused")
	}
	if got := len(tab.dropOld(now.Add(time.Second), now)); got != 2 || len(tab.frames)+len(tab.perPort) != 0 {
		t.Errorf("old claims: got %d, want 2, and nothing left of %v, %v", got, tab.frames, tab.perPort)
	}
}

// BenchmarkChange is one change of a claim, put and taken, as the table grows.
func BenchmarkChange(b *testing.B) {
	for _, size := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			tab := newTable()
			now := time.Now()
			for i := range size {
				tab.seen(testClaim(i), claim{count: 1}, now)
			}
			for more := true; more; {
				_, more = tab.take(now)
			}
			b.ReportAllocs()
			for b.Loop() {
				tab.update(func() { tab.seen(testClaim(7), claim{count: 1}, now) })
				tab.take(now)
			}
		})
	}
}
