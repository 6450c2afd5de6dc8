package verdict_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func BenchmarkJudgeOneOwner(b *testing.B) {
	w := newWorld("10.244.0.5")
	one, port := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
	w.Assigned(one)
	w.Wire(port, "baaaaa")
	in := w.Case()
	judge := verdict.NewJudge(&w.Policy)
	b.ReportAllocs()
	for b.Loop() {
		judge.Judge(in)
	}
}

func BenchmarkJudgeConflict(b *testing.B) {
	w := newWorld("10.244.0.5")
	twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	in := w.Case()
	b.ReportAllocs()
	for b.Loop() {
		w.Policy.Judge(in)
	}
}
