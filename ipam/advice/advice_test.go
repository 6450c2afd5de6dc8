package advice_test

import (
	"reflect"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

func TestAdviceKeepsTheOrderOfItsParts(t *testing.T) {
	var got advice.Advice
	got.State("%d of %d", 1, 2)
	got.State("100%%")
	got.Act(advice.Action{Text: "Look at it."})
	got.Act(
		advice.Action{Text: "Run it.", Node: "n1", Command: "ls"},
		advice.Action{Text: "Decide.", Choice: []advice.Alternative{advice.Either("it is old", advice.Action{Text: "Wait."}, advice.Action{Text: "Look again."}), advice.Either("it is new")}})
	got.Fix(advice.Fix{Node: "n1", What: "List.", Command: "ls\nls -l"})
	got.Add(advice.Advice{Fixes: []advice.Fix{{Node: "n2", What: "Remove x.", Command: "rm x", Manual: true}}})
	want := advice.Advice{
		Evidence: []string{"1 of 2", "100%"},
		Remedy: []advice.Action{
			{Text: "Look at it."},
			{Text: "Run it.", Node: "n1", Command: "ls"},
			{Text: "Decide.", Choice: []advice.Alternative{{When: "it is old", Actions: []advice.Action{{Text: "Wait."}, {Text: "Look again."}}}, {When: "it is new"}}},
		},
		Fixes: []advice.Fix{{Node: "n1", What: "List.", Command: "ls\nls -l"}, {Node: "n2", What: "Remove x.", Command: "rm x", Manual: true}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestStepsOfSeveralRemedies(t *testing.T) {
	steps := func(key string, words map[string]any) []advice.Action {
		return advice.Filler{Texts: advice.ReadTexts(nil), Value: func(name string) any { return words[name] }}.Steps(key)
	}
	for _, test := range []struct {
		got  []advice.Action
		want []advice.Action
	}{
		{steps("plan", map[string]any{"node": ""}), []advice.Action{
			{Text: "Generate the repair plan.", Command: "ipwitness audit --fix-plan > plan.sh"},
			{Text: "Review plan.sh, then run its part for the cluster.", Command: "sh plan.sh cluster"},
		}},
		{steps("plan", map[string]any{"node": "n 1"}), []advice.Action{
			{Text: "Generate the repair plan.", Command: "ipwitness audit --fix-plan > plan.sh"},
			{Text: "Review plan.sh, then run its part for node n 1.", Node: "n 1", Command: "sh plan.sh node 'n 1'"},
		}},
		{append(steps("cordon", map[string]any{"knode": "n1"}), steps("uncordon", map[string]any{"knode": "-n1"})...), []advice.Action{
			{Text: "Start no pods on node n1 until this is repaired. DaemonSet pods still start on a cordoned node.", Command: "kubectl cordon n1"},
			{Text: "Allow pods on node -n1 again.", Command: "kubectl uncordon -- -n1"},
		}},
	} {
		if !reflect.DeepEqual(test.got, test.want) {
			t.Errorf("got %+v, want %+v", test.got, test.want)
		}
	}
	for id, want := range map[string]string{"0123456789abcdef": "0123456789ab", "0123": "0123", "": ""} {
		if got := advice.ShortID(id); got != want {
			t.Errorf("%q: got %q, want %q", id, got, want)
		}
	}
}
