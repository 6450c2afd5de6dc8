package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// TestSeriesAreBounded adds the addresses of 10,000 pods.
func TestSeriesAreBounded(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	a, err := New(Config{Node: "node1"}, slog.New(slog.DiscardHandler), registry)
	if err != nil {
		t.Fatal(err)
	}
	series := func() (n int) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	before := series()
	now := time.Now()
	for i := range 10_000 {
		a.table.Update(func() {
			a.table.Add(table.ClaimKey{
				Address: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), Kind: ipwitnessv1.Evidence_ANNOUNCED,
				At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: int32(i)}, MAC: fmt.Sprintf("pod%03d", i%1000),
			}, table.Claim{First: now, Last: now}, now)
		})
	}
	if held, _ := a.table.Size(); held != 10_000 {
		t.Fatalf("got %d claims, want 10,000", held)
	}
	if got := series(); got != before {
		t.Errorf("got %d series with 10,000 claims, want %d as before", got, before)
	}
}
