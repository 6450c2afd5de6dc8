package verdict_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func BenchmarkJudgeOneOwner(b *testing.B) {
	w := newWorld("10.244.0.5")
	one, port := w.veth(w.namespace("n1", 2, "102", pod("a")), "baaaaa", w.link("n1", "v1", verdict.PointToPoint, false))
	w.assigned(one)
	w.wire(port, "baaaaa")
	in := w.input()
	b.ReportAllocs()
	for b.Loop() {
		w.policy.Judge(in)
	}
}

func BenchmarkJudgeConflict(b *testing.B) {
	w := newWorld("10.244.0.5")
	twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	in := w.input()
	b.ReportAllocs()
	for b.Loop() {
		w.policy.Judge(in)
	}
}
