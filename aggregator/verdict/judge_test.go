package verdict_test

import (
	"reflect"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestJudgeReusesItsMemory(t *testing.T) {
	w := newWorld("10.244.0.5")
	judge := verdict.NewJudge(&w.Policy)
	var kept []verdict.Judgement
	var cases []*verdict.Case
	for range 2 {
		for _, s := range verdicttest.Situations {
			other, _ := s.Judge()
			in := other.Case()
			if got, want := judge.Judge(in), w.Policy.Judge(in); !reflect.DeepEqual(got, want) {
				t.Fatalf("got %+v, want %+v like another judge", got, want)
			}
		}
		one, port := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
		w.Assigned(one)
		w.Wire(port, "baaaaa")
		in := w.Case()
		first := judge.Judge(in)
		if again := judge.Judge(in); &again.Owners[0] != &first.Owners[0] {
			t.Fatal("the memory of a judgement that is not kept is not reused")
		}
		judge.Keep()
		cases, kept = append(cases, in), append(kept, first)
	}
	for i, in := range cases {
		if want := w.Policy.Judge(in); !reflect.DeepEqual(kept[i], want) {
			t.Errorf("got %+v after other judgements, want %+v", kept[i], want)
		}
	}
}
