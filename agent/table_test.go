package agent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func testClaim(i int) claimKey {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return claimKey{addr: addr, kind: ipwitnessv1.Evidence_ASSIGNED, at: interfaceKey{2, 2}}
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
	if got := len(tab.dropOld(now.Add(time.Second), now)); got != 2 || len(tab.byAddr)+len(tab.byPort)+tab.wire != 0 {
		t.Errorf("old claims: got %d, want 2, and nothing left of %v, %v, %d", got, tab.byAddr, tab.byPort, tab.wire)
	}
}

// wireClaim is the claim of a MAC to an address, by a port.
func wireClaim(port, addr, mac int) claimKey {
	k := testClaim(addr)
	k.kind, k.at, k.mac = ipwitnessv1.Evidence_USED, interfaceKey{ownNamespace, int32(port)}, fmt.Sprintf("%06d", mac)
	return k
}

func TestPortsThatFillTheTableLeaveTheOthersTheirShare(t *testing.T) {
	tab := newTable()
	now := time.Now()
	for port := 1; port <= 2; port++ {
		for i := range maxWire / 2 {
			if !tab.seen(wireClaim(port, i, 1), claim{last: now}, now) {
				t.Fatalf("claim %d of port %d was refused: there was room", i, port)
			}
		}
	}
	for i := range portShare + 1 {
		if took, want := tab.seen(wireClaim(3, i, 1), claim{last: now}, now), i < portShare; took != want {
			t.Fatalf("claim %d of another port: got taken %v, want %v", i, took, want)
		}
	}
	if !tab.seen(testClaim(1), claim{}, now) {
		t.Error("an assigned address was refused: it needs no room of the wire's")
	}
	tab.dropPort(1, now)
	if !tab.seen(wireClaim(3, portShare, 1), claim{last: now}, now) {
		t.Error("a claim was refused when there was room again")
	}
}

func TestOneAddressIsNotWorthMoreThanAFewClaimants(t *testing.T) {
	tab := newTable()
	now := time.Now()
	for i := range maxPerAddress + 1 {
		if took, want := tab.seen(wireClaim(i%3, 7, i), claim{last: now}, now), i < maxPerAddress; took != want {
			t.Fatalf("claimant %d: got taken %v, want %v", i, took, want)
		}
	}
	if !tab.seen(wireClaim(1, 8, 1), claim{last: now}, now) {
		t.Error("another address was refused")
	}
	for i := range addressShare + 1 {
		if took, want := tab.seen(wireClaim(9, 7, i), claim{last: now}, now), i < addressShare; took != want {
			t.Fatalf("claimant %d by another port, which may be another tenant's: got taken %v, want %v", i, took, want)
		}
	}
}

func TestClaimsOfTheWireAreListedOnceEach(t *testing.T) {
	tab := newTable()
	now := time.Now()
	random := rand.New(rand.NewPCG(1, 2))
	want := map[claimKey]bool{}
	took := func(dropped []claimKey) {
		for _, k := range dropped {
			if !want[k] {
				t.Fatalf("dropped %v, which was not there", k)
			}
			delete(want, k)
		}
	}
	for range 20_000 {
		k := wireClaim(random.IntN(5), random.IntN(20), random.IntN(20))
		switch random.IntN(30) {
		case 0:
			took(tab.dropPort(k.at.index, now))
		case 1:
			took(tab.dropFrames(k.addr, func(c claimKey) bool { return c.mac == k.mac }, now))
		case 2:
			took(tab.dropOld(now.Add(time.Duration(random.IntN(10))), now))
		default:
			tab.seen(k, claim{last: now.Add(time.Duration(random.IntN(100)))}, now)
			want[k] = true
		}
		byPort, byAddr := 0, 0
		for _, list := range tab.byPort {
			byPort += len(list)
		}
		for _, list := range tab.byAddr {
			byAddr += len(list)
		}
		if n := len(want); len(tab.claims.live) != n || byPort != n || byAddr != n || tab.wire != n {
			t.Fatalf("claims: got %d, %d by port, %d by address, counted %d, want %d", len(tab.claims.live), byPort, byAddr, tab.wire, n)
		}
	}
	for k := range want {
		if c := tab.claims.live[k]; c == nil || tab.byPort[k.at.index][c.atPort] != c || tab.byAddr[k.addr][c.atAddr] != c {
			t.Fatalf("claim %v is not in its places", k)
		}
	}
}
