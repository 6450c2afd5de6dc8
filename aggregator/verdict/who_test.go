package verdict_test

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestWhoIsTheWorkload(t *testing.T) {
	for _, text := range []string{
		"", "web", "0123456789abcdef", strings.Repeat("0123456789abcdef", 4), strings.Repeat("0123456789ABCDEF", 4),
		"2d1f8a3c-9f64-4e6b-8d0c-0b7f5a1c2d3e", "2D1F8A3C-9f64-4e6b-8d0c-0b7f5a1c2d3e", "2d1f8a3c9f64-4e6b-8d0c-0b7f-5a1c2d3e",
		"2d1f8a3c-9f64-4e6b-8d0c-0b7f5a1c2d3e2d1f8a3c", "----2d1f8a3c9f644e6b8d0c0b7f5a1c2d3e",
		strings.Repeat("a", 33), strings.Repeat("x", 1024), "nerdctl (1)", strings.Repeat("ä", 64),
	} {
		for _, w := range []verdict.Workload{
			{Kind: verdict.Pod, Namespace: text, Name: "name", UID: text, ContainerID: "id", Source: text},
			{Kind: verdict.Unknown, Namespace: "namespace", Name: text, UID: "uid", ContainerID: text, Source: "source", Process: text, PID: 1<<32 - 1, Ended: true},
		} {
			who := w.Who()
			if got := who.Workload(); got != w || who.Kind() != w.Kind || who.Namespace() != w.Namespace || who.Name() != w.Name {
				t.Errorf("got %+v, want %+v", got, w)
			}
			if who.UID() != verdict.Pack(w.UID) || who.ContainerID() != verdict.Pack(w.ContainerID) {
				t.Errorf("%+v: got uid %q and container id %q, packed", w, who.UID(), who.ContainerID())
			}
		}
	}
	if got := verdict.Who("").Workload(); got != (verdict.Workload{}) {
		t.Errorf("got %+v, want an empty workload", got)
	}
	if id := verdict.Who("").ContainerID(); id != "" {
		t.Errorf("got container id %q, want none", id)
	}
}

func TestIDsArePacked(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "web": 4, strings.Repeat("0123456789abcdef", 4): 34, "2d1f8a3c-9f64-4e6b-8d0c-0b7f5a1c2d3e": 17,
		"2d1f8a3c9f64-4e6b-8d0c-0b7f-5a1c2d3e": 38, "2d1f8a3c-9f644-e6b-8d0c-0b7f5a1c2d3e": 38, strings.Repeat("0123456789ABCDEF", 2): 34,
	} {
		if got := len(verdict.Pack(text)); got != want {
			t.Errorf("%q: got %d bytes, want %d", text, got, want)
		}
	}
}
