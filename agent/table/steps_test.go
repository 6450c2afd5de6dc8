package table

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestReaderIsWokenForEverythingThatItCanTake(t *testing.T) {
	tab := New()
	r := tab.Attach()
	for name, change := range map[string]func(){
		"update": func() { tab.Update(func() {}) },
		"resync": r.Resync,
		"answer": func() { r.Answer(Questions{Ping: 1}) },
	} {
		change()
		select {
		case <-r.Wake():
		default:
			t.Errorf("%s: the reader is not woken", name)
		}
	}
	if tab.Attached() != 1 {
		t.Errorf("readers: got %d, want 1", tab.Attached())
	}
	r.Detach()
	tab.Update(func() {})
	if len(r.Wake()) != 0 || tab.Attached() != 0 {
		t.Errorf("reader that was detached: got woken, or %d readers attached", tab.Attached())
	}
}

// putAll puts one record of each kind.
func putAll(tab *Table, now time.Time) {
	tab.Namespaces.Put(2, &ipwitnessv1.NamespaceRecord{Id: 2}, now)
	tab.Links.Put("l", &ipwitnessv1.LinkRecord{Name: "l"}, now)
	tab.Interfaces.Put(InterfaceKey{2, 2}, &ipwitnessv1.InterfaceRecord{Namespace: 2, Index: 2}, now)
	tab.Pools.Put(PoolKey{"i", "p"}, &ipwitnessv1.PoolRecord{Ipam: "i", Name: "p"}, now)
	tab.Allocations.Put(AllocationKey{PoolKey{"i", "p"}, netip.MustParseAddr("10.0.0.1")}, &ipwitnessv1.AllocationRecord{Ipam: "i", Pool: "p"}, now)
	tab.Add(testClaim(1), Claim{Count: 1}, now)
	tab.Add(wireClaim(7, 1, 1), Claim{Count: 1}, now)
}

func removeAll(tab *Table, now time.Time) {
	tab.Allocations.Remove(AllocationKey{PoolKey{"i", "p"}, netip.MustParseAddr("10.0.0.1")}, now)
	tab.Pools.Remove(PoolKey{"i", "p"}, now)
	tab.RemoveClaim(testClaim(1), now)
	tab.RemovePort(7, now)
	tab.Interfaces.Remove(InterfaceKey{2, 2}, now)
	tab.Links.Remove("l", now)
	tab.Namespaces.Remove(2, now)
}

func counts(m *ipwitnessv1.ReportRequest) string {
	return fmt.Sprint(len(m.GetNamespaces()), len(m.GetLinks()), len(m.GetInterfaces()), len(m.GetPools()), len(m.GetAllocations()), len(m.GetClaims()))
}

func TestChangesBeforeTheFirstMessageAreInTheSnapshot(t *testing.T) {
	tab := New()
	now := time.Now()
	r := tab.Attach()
	putAll(tab, now)
	m := r.Take(now)
	if !m.GetSnapshotBegin() || !m.GetSnapshotEnd() || counts(m) != "1 1 1 1 1 2" {
		t.Errorf("first message: got %v, want a snapshot with a record of each kind", m)
	}
	if m := r.Take(now); m != nil {
		t.Errorf("second message: got %v, want none", m)
	}
	removeAll(tab, now)
	m = r.Take(now)
	if m.GetSnapshotBegin() || m.GetSnapshotEnd() || counts(m) != "1 1 1 1 0 2" { // the end of the pool is that of its allocations
		t.Errorf("ends: got %v, want one of each kind", m)
	}
	for _, gone := range []bool{
		m.GetNamespaces()[0].GetGone(), m.GetLinks()[0].GetGone(), m.GetInterfaces()[0].GetGone(), m.GetPools()[0].GetGone(), m.GetClaims()[0].GetGone(), m.GetClaims()[1].GetGone(),
	} {
		if !gone {
			t.Errorf("ends: got %v, want all gone", m)
		}
	}
	removeAll(tab, now)
	if m := r.Take(now); m != nil {
		t.Errorf("ends of what has ended: got %v, want none", m)
	}
	r.Detach()
	putAll(tab, now)
	if len(r.namespaces.dirty)+len(r.links.dirty)+len(r.interfaces.dirty)+len(r.pools.dirty)+len(r.allocated.dirty)+len(r.claims.dirty)+len(r.urgent.dirty) != 0 {
		t.Error("changes after the reader was detached are kept for it")
	}
}

func TestPortThatEndsTakesItsCountersWithIt(t *testing.T) {
	tab := New()
	now := time.Now()
	for mac := range maxPerAddress {
		tab.took(t, wireClaim(7, 1, mac), now)
	}
	tab.took(t, wireClaim(8, 2, 1), now)
	if took, _ := tab.Add(wireClaim(7, 1, maxPerAddress), Claim{}, now); took {
		t.Fatal("claim beyond the limit of an address was taken")
	}
	if held, leftOut := tab.Size(); held != maxPerAddress+1 || leftOut != 1 || len(tab.LeftOut()) != 1 || tab.LeftOut()[7] != 1 {
		t.Errorf("after one refusal: got %d held, %d left out, by port %v", held, leftOut, tab.LeftOut())
	}
	if got := tab.RemovePort(7, now); len(got) != maxPerAddress {
		t.Errorf("ended claims: got %d, want %d", len(got), maxPerAddress)
	}
	if held, leftOut := tab.Size(); held != 1 || leftOut != 1 || len(tab.LeftOut()) != 0 || !slices.Equal(tab.WirePorts(), []int32{8}) {
		t.Errorf("after the end of the port: got %d held, %d left out, by port %v, ports %v", held, leftOut, tab.LeftOut(), tab.WirePorts())
	}
	if got := tab.RemovePort(7, now); got != nil {
		t.Errorf("end of a port that has ended: got %v", got)
	}
	for range tab.WireClaims(7) {
		t.Error("claims of a port that has ended: got one")
	}
	// A port may always have a few claims to an address that others claim, too.
	for mac := range maxPerAddress {
		tab.took(t, wireClaim(9, 1, mac), now)
	}
	for mac := range addressShare {
		tab.took(t, wireClaim(10, 1, mac), now)
	}
	if took, _ := tab.Add(wireClaim(10, 1, addressShare), Claim{}, now); took {
		t.Error("claim beyond the share of a port was taken")
	}
}

func TestProblemsAreCounted(t *testing.T) {
	tab := New()
	if got := tab.Problems(); got != 0 {
		t.Errorf("problems without a status: got %d", got)
	}
	for want, s := range []*ipwitnessv1.StatusRecord{
		{Unparsed: &ipwitnessv1.Unparsed{}},
		{Unparsed: &ipwitnessv1.Unparsed{Tags: 3}},
		{Problems: []string{"a"}, Unparsed: &ipwitnessv1.Unparsed{Extensions: 1}},
		{Problems: []string{"a"}, Flooding: []*ipwitnessv1.FloodingRecord{{}}, Unparsed: &ipwitnessv1.Unparsed{Options: 1}},
		{Problems: []string{"a", "b"}, Flooding: []*ipwitnessv1.FloodingRecord{{}, {}}},
	} {
		tab.Update(func() { tab.SetStatus(s) })
		if got := tab.Problems(); got != want {
			t.Errorf("problems of %v: got %d, want %d", s, got, want)
		}
	}
}

func TestImportanceThatChangesIsReportedOnce(t *testing.T) {
	tab := New()
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	tab.Contest(a, true)
	if got := tab.TakeImportance(); got != nil {
		t.Errorf("importance that nobody follows: got %v", got)
	}
	woken := 0
	tab.FollowImportance(func() { woken++ })
	if got := tab.TakeImportance(); len(got) != 1 || !got[a] || woken != 1 {
		t.Errorf("importance from before: got %v, woken %d times", got, woken)
	}
	tab.Contest(a, true) // a second reason
	tab.Contest(a, false)
	if got := tab.TakeImportance(); got != nil || woken != 1 {
		t.Errorf("second reason: got %v, woken %d times, want no change", got, woken-1)
	}
	tab.Contest(a, false)
	tab.Contest(b, true)
	tab.Contest(b, false)
	if got := tab.TakeImportance(); len(got) != 2 || got[a] || got[b] || woken != 4 {
		t.Errorf("end of importance: got %v, woken %d times", got, woken-1)
	}
	if len(tab.important.holders) != 0 {
		t.Errorf("important addresses: got %v, want none", tab.important.holders)
	}
}

func TestNetworkOfAClaimIsSentWhenItChanges(t *testing.T) {
	tab := New()
	now := time.Now()
	tab.Add(testClaim(1), Claim{Count: 3, Network: Network{Name: "pods"}}, now)
	r := follow(tab)
	tab.Describe(testClaim(1), Network{Name: "pods"}, false, now)
	tab.Describe(testClaim(2), Network{Name: "pods"}, true, now)
	if m := r.Take(now); m != nil {
		t.Errorf("same network, and a claim that is not known: got %v, want no change", m)
	}
	tab.Describe(testClaim(1), Network{Name: "storage"}, false, now)
	if m := r.Take(now); len(m.GetClaims()) != 1 || m.GetClaims()[0].GetNetwork() != "storage" || m.GetClaims()[0].GetCount() != 3 {
		t.Errorf("another network: got %v, want the claim with it, and with the same count", m)
	}
}

func TestStatusIsSentOnceToEachReader(t *testing.T) {
	tab := New()
	now := time.Now()
	a, b := follow(tab), follow(tab)
	tab.SetStatus(&ipwitnessv1.StatusRecord{Wire: "tcx"})
	for _, r := range []*Reader{a, b} {
		if m := r.Take(now); m.GetStatus().GetWire() != "tcx" {
			t.Errorf("status: got %v, want it", m)
		}
		if m := r.Take(now); m != nil {
			t.Errorf("second message: got %v, want none", m)
		}
	}
}

func TestChangeOfAClaimThatWaitsInABatchIsSentOnce(t *testing.T) {
	now := time.Now()
	for _, important := range []bool{false, true} {
		tab := New()
		r := follow(tab)
		const waiting = maxRecords - maxRecords/urgentShare
		for i := range maxRecords + waiting {
			tab.took(t, wireClaim(7, i, 1), now)
		}
		r.Take(now)
		if len(r.batch) != waiting {
			t.Fatalf("claims that wait in the batch: got %d, want %d", len(r.batch), waiting)
		}
		want := waiting
		if important {
			want = maxRecords // those that were sent early are still in the batch
		}
		for _, c := range slices.Clone(r.batch) {
			if important {
				tab.Contest(c.key.Address, true)
			}
			tab.took(t, c.key, now)
		}
		sent := 0
		for _, m := range drain(r) {
			sent += len(m.GetClaims())
		}
		if sent != want {
			t.Errorf("claims to important addresses %v: got %d claims sent, want %d", important, sent, want)
		}
	}
}

func TestClaimToAnImportantAddressThatWaitsInABatchIsSentOnce(t *testing.T) {
	tab := New()
	r := follow(tab)
	now := time.Now()
	const claims = 100
	for i := range claims {
		tab.Contest(testClaim(i).Address, true)
		tab.took(t, wireClaim(7, i, 1), now)
	}
	for i := range maxRecords - 1 { // leaves room for one claim
		k, a := allocationOf("a", claims+i)
		tab.Allocations.Put(k, a, now)
	}
	sent := []int{}
	for _, m := range drain(r) {
		sent = append(sent, len(m.GetClaims()))
	}
	if !slices.Equal(sent, []int{1, claims - 1}) {
		t.Errorf("claims sent, by message: got %d, want 1 and %d", sent, claims-1)
	}
}

func TestLargeMapOfChangesIsNotReused(t *testing.T) {
	for changed, want := range map[int]bool{large: true, large + 1: false} {
		var c changes[int]
		c.reset()
		first := reflect.ValueOf(c.dirty).UnsafePointer()
		for k := range changed {
			c.mark(k, time.Time{}, changed)
		}
		room := changed
		var taken []int
		take(&taken, &c, nil, &room, func(k int) int { return k })
		if got := len(taken); got != changed {
			t.Errorf("changes taken: got %d, want %d", got, changed)
		}
		if got := reflect.ValueOf(c.dirty).UnsafePointer() == first; got != want || c.grown {
			t.Errorf("after %d changes: got the same map %v, want %v", changed, got, want)
		}
	}
}
