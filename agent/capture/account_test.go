package capture

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/agent/wire"
	"github.com/ipwitness/ipwitness/bpf"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// agent returns an agent, and what it has reported: each claim with its last message.
func agent(t *testing.T) (*Agent, map[string]*pb.ClaimRecord) {
	t.Helper()
	claims := make(map[string]*pb.ClaimRecord)
	sequence := uint64(0)
	a, err := NewAgent("capture", nil, begun, func(m *pb.ReportRequest, _ time.Time) error {
		if sequence++; m.GetSequence() != sequence {
			t.Errorf("got sequence %d, want %d", m.GetSequence(), sequence)
		}
		for _, c := range m.GetClaims() {
			claims[string(c.GetAddress())] = c
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, claims
}

func claim(addr netip.Addr, after time.Duration) Frame {
	mac := bpf.MAC{2, 0, 0, 0, 0, 1}
	return Frame{Binding: bpf.Binding{Addr: addr, Kind: bpf.Used, SHA: mac, Source: mac}, At: begun.Add(after), Interface: "eth0"}
}

// A claim that is repeated is gathered, and one that nobody repeats ends, by the clock of the capture.
func TestClaimsAreGatheredAndEnd(t *testing.T) {
	a, claims := agent(t)
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i := range 10 {
		if err := a.Add(claim(one, time.Duration(i)*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	if c := claims[string(one.AsSlice())]; c.GetCount() != 1 {
		t.Errorf("got %v at once, want the first frame", c)
	}
	if err := a.Add(claim(other, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if c := claims[string(one.AsSlice())]; c.GetCount() != 10 || !c.GetLastSeen().AsTime().Equal(begun.Add(9*time.Millisecond)) {
		t.Errorf("got %v, want ten frames", c)
	}
	if err := a.End(begun.Add(wire.Kept + time.Minute)); err != nil {
		t.Fatal(err)
	}
	if c := claims[string(one.AsSlice())]; !c.GetGone() {
		t.Errorf("got %v, want its end", c)
	}
	if c := claims[string(other.AsSlice())]; c.GetGone() || a.LeftOut() != 0 {
		t.Errorf("got %v and %d claims left out", c, a.LeftOut())
	}
}

func TestClaimsWithoutRoomAreCounted(t *testing.T) {
	a, _ := agent(t)
	addr := netip.MustParseAddr("10.0.0.0")
	for range 1<<16 + 1 {
		addr = addr.Next()
		if err := a.Add(claim(addr, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if a.LeftOut() != 1 {
		t.Errorf("got %d claims left out of one more than fit, want 1", a.LeftOut())
	}
}
