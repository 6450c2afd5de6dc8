package table

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func testClaim(i int) ClaimKey {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return ClaimKey{Address: addr, Kind: ipwitnessv1.Evidence_ASSIGNED, At: InterfaceKey{2, 2}}
}

// took adds a claim or one more sighting of it, and fails the test if the table refuses it. It
// returns the key of the evicted claim, if any.
func (t *Table) took(tb testing.TB, k ClaimKey, at time.Time) (evicted ClaimKey) {
	tb.Helper()
	took, gone := t.Add(k, Claim{Last: at, Count: 1}, at)
	if !took {
		tb.Fatalf("claim %v was refused", k)
	}
	for _, evicted = range gone {
		if t.claims.live[evicted] != nil {
			tb.Fatalf("evicted claim %v is still in the table", evicted)
		}
	}
	return evicted
}

// wireClaim returns the key of a claim by a MAC to an address, seen on a port.
func wireClaim(port, addr, mac int) ClaimKey {
	k := testClaim(addr)
	k.Kind, k.At, k.MAC = ipwitnessv1.Evidence_USED, InterfaceKey{OwnNamespace, int32(port)}, fmt.Sprintf("%06d", mac)
	return k
}

var none ClaimKey

func TestFullPortEvictsOldClaimsThatWereSeenOnce(t *testing.T) {
	tab := New()
	now := time.Now()
	for i := range maxPerPort {
		tab.took(t, wireClaim(7, i, 1), now)
	}
	tab.took(t, wireClaim(7, 0, 1), now)
	for i := range 10 {
		if got, want := tab.took(t, wireClaim(7, maxPerPort+i, 1), now), wireClaim(7, 1+i, 1); got != want {
			t.Fatalf("evicted for new claim %d: got %v, want the oldest that was seen once, %v", i, got, want)
		}
	}
	if got := tab.took(t, wireClaim(8, 1, 1), now); got != none {
		t.Errorf("evicted for a claim by another port: got %v, want none", got)
	}
	if held, leftOut := tab.Size(); held != maxPerPort+1 || leftOut != 10 {
		t.Errorf("claims: got %d held and %d left out, want %d and 10", held, leftOut, maxPerPort+1)
	}
	if got := tab.LeftOut(); len(got) != 1 || got[7] != 10 {
		t.Errorf("left out by port: got %v, want 10 of port 7", got)
	}

	// If all claims were seen again, the claim whose last sighting is the oldest is evicted.
	for _, c := range slices.Collect(tab.byPort[7].all()) {
		tab.took(t, c.key, now)
	}
	tab.took(t, wireClaim(7, 0, 1), now)
	oldest := tab.byPort[7].queues[seenAgain].oldest.key
	if got := tab.took(t, wireClaim(7, maxPerPort+10, 1), now); got != oldest || got == wireClaim(7, 0, 1) {
		t.Errorf("evicted: got %v, want the one with the oldest last sighting, %v", got, oldest)
	}

	if got := len(tab.RemovePort(7, now)); got != maxPerPort {
		t.Errorf("claims that ended with their port: got %d, want %d", got, maxPerPort)
	}
	if got := len(tab.RemoveOld(now.Add(time.Second), now)); got != 1 || len(tab.byAddr)+tab.wire+tab.byPort[8].count(seenOnce, importantAgain) != 0 {
		t.Errorf("old claims: got %d, want 1, and no remains of %v, %d", got, tab.byAddr, tab.wire)
	}
}

// A speaker that announced an address once goes on to answer for it. The announcement is what tells it from a proxy.
func TestAnOldClaimOfASenderThatStillClaimsTheAddressIsKept(t *testing.T) {
	now := time.Now()
	announced := wireClaim(7, 1, 1)
	announced.Kind = ipwitnessv1.Evidence_ANNOUNCED
	for name, test := range map[string]struct {
		since func(*ClaimKey) // what differs in the claim since
		kept  bool
	}{
		"it answers":                     {func(k *ClaimKey) { k.Kind = ipwitnessv1.Evidence_ANSWERED }, true},
		"another sender answers":         {func(k *ClaimKey) { k.Kind, k.MAC = ipwitnessv1.Evidence_ANSWERED, "000002" }, false},
		"it answers for another address": {func(k *ClaimKey) { k.Kind, k.Address = ipwitnessv1.Evidence_ANSWERED, testClaim(2).Address }, false},
		"it answers in another VLAN":     {func(k *ClaimKey) { k.Kind, k.VLAN = ipwitnessv1.Evidence_ANSWERED, 9 }, false},
		"it answers on another port":     {func(k *ClaimKey) { k.Kind, k.At.Index = ipwitnessv1.Evidence_ANSWERED, 8 }, false},
		"a frame of another host names it": {func(k *ClaimKey) {
			k.Kind, k.Source = ipwitnessv1.Evidence_ANSWERED, "000003"
		}, false},
	} {
		tab := New()
		answered := announced
		test.since(&answered)
		tab.Add(announced, Claim{Last: now.Add(-time.Hour)}, now)
		tab.Add(answered, Claim{Last: now}, now)
		dropped := tab.RemoveOld(now.Add(-time.Minute), now)
		if slices.Contains(dropped, announced) == test.kept || slices.Contains(dropped, answered) {
			t.Errorf("%s: got %v dropped, want the announcement kept %t", name, dropped, test.kept)
		}
		if tab.RemoveOld(now.Add(time.Minute), now); tab.wire != 0 {
			t.Errorf("%s: got %d claims when both are old, want none", name, tab.wire)
		}
	}
}

func TestClaimsToImportantAddressesAreKept(t *testing.T) {
	const important = maxPerPort + 1
	for name, hold := range map[string]func(*Table, bool){
		"a kernel has it": func(tab *Table, on bool) {
			if k := testClaim(important); on {
				tab.Add(k, Claim{Count: 1}, time.Now())
			} else {
				tab.claims.Remove(k, time.Now())
			}
		},
		"an allocation has it": func(tab *Table, on bool) {
			if k := (AllocationKey{PoolKey{"host-local", "/pods"}, testClaim(important).Address}); on {
				tab.Allocations.Put(k, &ipwitnessv1.AllocationRecord{}, time.Now())
				tab.Allocations.Put(k, &ipwitnessv1.AllocationRecord{}, time.Now()) // the address changed
			} else {
				tab.Allocations.Remove(k, time.Now())
				tab.Allocations.Remove(k, time.Now())
			}
		},
		"it is contested": func(tab *Table, on bool) { tab.Contest(testClaim(important).Address, on) },
	} {
		t.Run(name, func(t *testing.T) {
			tab := New()
			woken := 0
			tab.FollowImportance(func() { woken++ })
			now := time.Now()
			hold(tab, true)
			if got := tab.TakeImportance(); len(got) != 1 || !got[testClaim(important).Address] || woken != 1 {
				t.Errorf("changed importance: got %v and %d calls, want the address once", got, woken)
			}
			tab.took(t, wireClaim(7, important, 1), now)
			// Claims of a flood that are seen again and again cannot evict a claim that was
			// seen once.
			for range 2 {
				for i := range maxPerPort {
					tab.took(t, wireClaim(7, i, 1), now)
				}
			}
			if tab.claims.live[wireClaim(7, important, 1)] == nil {
				t.Fatal("the claim to an important address made room for others")
			}
			if got := tab.took(t, wireClaim(7, important, 2), now); got == none || got.Address == testClaim(important).Address {
				t.Errorf("evicted for another claim to it: got %v, want one to another address", got)
			}

			hold(tab, false)
			if got := tab.TakeImportance(); len(got) != 1 || got[testClaim(important).Address] {
				t.Errorf("changed importance: got %v, want that the address is no longer important", got)
			}
			if len(tab.important.holders) != 0 {
				t.Errorf("important addresses: got %v, want none", tab.important.holders)
			}
			for i := range maxPerPort {
				tab.took(t, wireClaim(7, maxPerPort+10+i, 1), now)
			}
			if tab.claims.live[wireClaim(7, important, 1)] != nil {
				t.Error("a claim that was seen once stayed when its address was important no more")
			}
		})
	}
}

func TestClaimsToImportantAddressesAreLimitedPerPort(t *testing.T) {
	tab := New()
	now := time.Now()
	const addresses = 2 * maxImportantPerPort / maxPerAddress
	for i := range addresses {
		tab.Contest(testClaim(i).Address, true)
	}
	tab.took(t, wireClaim(7, maxPerPort, 1), now)
	for i := range addresses {
		for mac := range maxPerAddress {
			tab.took(t, wireClaim(7, i, mac), now)
		}
	}
	if got := tab.byPort[7].count(importantOnce, importantAgain); got != maxImportantPerPort {
		t.Errorf("claims to important addresses by one port: got %d, want %d", got, maxImportantPerPort)
	}
	if tab.claims.live[wireClaim(7, maxPerPort, 1)] == nil {
		t.Error("they drove out a claim to another address")
	}
}

func TestPortsThatFillTheTableLeaveOthersTheirShare(t *testing.T) {
	tab := New()
	now := time.Now()
	// One quiet port has claims that were seen once, and one of many ports has claims that
	// were seen again.
	for i := range portShare {
		tab.took(t, wireClaim(3, i, 1), now)
	}
	for range 2 {
		for i := range maxPerPort / 2 {
			tab.took(t, wireClaim(4, i, 1), now)
		}
	}
	for i := range 2 * maxWire {
		if got := tab.took(t, wireClaim(1+i%2, maxWire+i, 1), now); got != none && got.At.Index > 2 {
			t.Fatalf("evicted for a flood: got %v, a claim of a port that does not flood", got)
		}
	}
	if tab.wire != maxWire {
		t.Errorf("claims of the wire: got %d, want %d", tab.wire, maxWire)
	}
	for port, want := range map[int32]int{3: portShare, 4: maxPerPort / 2} {
		if got := tab.byPort[port].count(seenOnce, importantAgain); got != want {
			t.Errorf("claims of port %d: got %d, want %d", port, got, want)
		}
	}
	// Another quiet port gets room, although the addresses in its claims are not known.
	for i := range portShare {
		if got := tab.took(t, wireClaim(5, i, 1), now); got.At.Index != 1 && got.At.Index != 2 {
			t.Fatalf("evicted for a quiet port: got %v, want a claim of a flooding port", got)
		}
	}
	got := tab.LeftOut()
	if got[1]+got[2] != tab.leftOut || len(got) != 2 {
		t.Errorf("left out by port: got %v, want all %d of the flooding ports", got, tab.leftOut)
	}
	if got := tab.took(t, testClaim(1), now); got != none {
		t.Errorf("evicted for an assigned address: got %v, want none", got)
	}
}

func TestClaimsToOneAddressAreLimited(t *testing.T) {
	tab := New()
	now := time.Now()
	for i := range maxPerAddress + 1 {
		if took, _ := tab.Add(wireClaim(i%3, 7, i), Claim{Last: now}, now); took != (i < maxPerAddress) {
			want := i < maxPerAddress
			t.Fatalf("claimant %d: got accepted %v, want %v", i, took, want)
		}
	}
	tab.took(t, wireClaim(1, 8, 1), now) // a claim to another address is accepted
	for i := range addressShare + 1 {
		if took, _ := tab.Add(wireClaim(9, 7, i), Claim{Last: now}, now); took != (i < addressShare) {
			want := i < addressShare
			t.Fatalf("claimant %d by another port, which may be another tenant's: got accepted %v, want %v", i, took, want)
		}
	}
}

func TestClaimsOfTheWireAreListedOnceEach(t *testing.T) {
	tab := New()
	now := time.Now()
	random := rand.New(rand.NewPCG(1, 2))
	want := map[ClaimKey]bool{}
	took := func(dropped []ClaimKey) {
		for _, k := range dropped {
			if !want[k] {
				t.Fatalf("dropped %v, which was not there", k)
			}
			delete(want, k)
		}
	}
	for range 20_000 {
		k := wireClaim(random.IntN(5), random.IntN(20), random.IntN(20))
		switch random.IntN(32) {
		case 30, 31:
			tab.Contest(k.Address, tab.important.holders[k.Address] == 0)
		case 0:
			took(tab.RemovePort(k.At.Index, now))
		case 1:
			took(tab.RemoveWire(k.Address, func(c ClaimKey) bool { return c.MAC == k.MAC }, now))
		case 2:
			took(tab.RemoveOld(now.Add(time.Duration(random.IntN(10))), now))
		default:
			tab.Add(k, Claim{Last: now.Add(time.Duration(random.IntN(100)))}, now)
			want[k] = true
		}
		byPort, byAddr := 0, 0
		for _, p := range tab.byPort {
			listed := 0
			for c := range p.all() {
				if listed++; tab.claims.live[c.key] != c || (tab.important.holders[c.key.Address] > 0) != (c.inQueue >= importantOnce) {
					t.Fatalf("claim %v is not in its queue", c.key)
				}
			}
			if got := p.count(seenOnce, importantAgain); got != listed {
				t.Fatalf("claims in queues: got %d, counted %d", listed, got)
			}
			byPort += listed
		}
		for _, list := range tab.byAddr {
			byAddr += len(list)
		}
		if n := len(want); len(tab.claims.live) != n || byPort != n || byAddr != n || tab.wire != n {
			t.Fatalf("claims: got %d, %d by port, %d by address, counted %d, want %d", len(tab.claims.live), byPort, byAddr, tab.wire, n)
		}
	}
	for k := range want {
		if c := tab.claims.live[k]; c == nil || tab.byAddr[k.Address][c.atAddr] != c {
			t.Fatalf("claim %v is at the wrong index", k)
		}
	}
}

func TestFullTableEvictsOnlyClaimsOfPortsAboveTheirShare(t *testing.T) {
	now := time.Now()
	contest := func(tab *Table, addr int) int {
		tab.Contest(testClaim(addr).Address, true)
		return addr
	}
	const quiet, other = 1, 2
	important, unimportant := 1<<20, 1<<21

	// Each port has many claims to important addresses and a few others.
	tab := New()
	const few, mac = 10, 1
	for i := range maxWire {
		port, addr := other+i/(few+maxImportantPerPort), i
		if i%(few+maxImportantPerPort) >= few {
			addr = contest(tab, i)
		}
		tab.took(t, wireClaim(port, addr, mac), now)
	}
	if took, _ := tab.Add(wireClaim(quiet, unimportant, mac), Claim{}, now); took {
		t.Error("full of claims to important addresses: got another claim accepted, want it refused")
	}
	if got := tab.LeftOut(); len(got) != 1 || got[quiet] != 1 {
		t.Errorf("left out by port: got %v, want 1 of the port of the refused claim", got)
	}
	if got := tab.took(t, wireClaim(quiet, contest(tab, important), mac), now); got.At.Index < other {
		t.Errorf("evicted for a claim to an important address: got %v, want a claim by another port", got)
	}

	// No port has more than its share.
	tab = New()
	for i := range maxWire {
		tab.took(t, wireClaim(other+i/portShare, i, mac), now)
	}
	for _, addr := range []int{unimportant, contest(tab, important)} {
		if took, _ := tab.Add(wireClaim(quiet, addr, mac), Claim{}, now); took {
			t.Errorf("full of shares: got a claim to %s accepted, want it refused", testClaim(addr).Address)
		}
	}
	if got := tab.took(t, wireClaim(other, unimportant, mac), now); got != wireClaim(other, 0, mac) {
		t.Errorf("evicted for a claim by a port with its share: got %v, want its oldest", got)
	}
}
