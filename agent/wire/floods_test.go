package wire

import (
	"log/slog"
	"testing"
	"time"
)

func TestFloodIsReportedUntilItEnds(t *testing.T) {
	f := floods{log: slog.New(slog.DiscardHandler)}
	begin := time.Now()
	type want struct {
		news          bool
		leftOut, rate uint64 // no flood if leftOut is 0
		since         int
	}
	for _, step := range []struct {
		at    int // seconds
		ports []counted
		want  want
	}{
		{0, []counted{{index: 7, name: "va"}}, want{}},
		{1, []counted{{index: 7, name: "va"}}, want{}},
		{2, []counted{{index: 7, name: "va", limited: 100, leftOut: 20}}, want{true, 120, 120, 2}},
		{4, []counted{{index: 7, name: "va", limited: 300, leftOut: 20}}, want{true, 320, 100, 2}},
		{5, []counted{{index: 7, name: "va", limited: 300, leftOut: 20}}, want{true, 320, 0, 2}},
		{6, []counted{{index: 7, name: "va", limited: 300, leftOut: 20}}, want{false, 320, 0, 2}},
		// The observer was attached again, and the port's claims ended.
		{33, []counted{{index: 7, name: "va", limited: 5, leftOut: 1}}, want{true, 326, 0, 2}},
		{62, []counted{{index: 7, name: "va", limited: 5, leftOut: 1}}, want{false, 326, 0, 2}},
		{63, []counted{{index: 7, name: "va", limited: 5, leftOut: 1}}, want{news: true}},
		{64, []counted{{index: 7, name: "va", limited: 6, leftOut: 1}}, want{true, 1, 1, 64}},
		// Another interface with the same index.
		{65, []counted{{index: 7, gen: 1, name: "vb", limited: 2}}, want{true, 2, 2, 65}},
		{66, nil, want{news: true}},
		{67, nil, want{}},
	} {
		now := begin.Add(time.Duration(step.at) * time.Second)
		got := want{news: f.look(step.ports, now)}
		records := f.records()
		for _, r := range records {
			got.leftOut, got.rate = r.GetLeftOut(), r.GetRate()
			got.since = int(r.GetSince().AsTime().Sub(begin).Round(time.Second).Seconds())
			if r.GetIndex() != 7 || r.GetInterface() != step.ports[0].name {
				t.Errorf("after %d s: got interface %d %s, want 7 %s", step.at, r.GetIndex(), r.GetInterface(), step.ports[0].name)
			}
		}
		if got != step.want || len(records) != f.count() {
			t.Errorf("after %d s: got %+v of %d, want %+v", step.at, got, f.count(), step.want)
		}
	}
}
