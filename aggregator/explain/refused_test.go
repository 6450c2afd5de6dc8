package explain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// A rival that has left has no claims any more, so its owner is made of what the conflict remembers.
func TestFindingAboutARivalThatHasLeft(t *testing.T) {
	for name, test := range map[string]struct {
		rival        func(w *verdicttest.World) *verdict.Claim
		want, source string
	}{
		"a pod": {func(w *verdicttest.World) *verdict.Claim {
			i, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("old")), "bbbbbb", w.Link("n1", "br1", verdict.Bridge, false))
			return w.Assigned(i)
		}, "pod default/old", audit.SourceRivalLeft},
		"a node itself": {func(w *verdicttest.World) *verdict.Claim {
			i := w.Interface(w.Host("n1"), verdict.Interface{Name: "br1", MAC: "bridge", Attachment: verdict.Own, Link: w.Link("n1", "br1", verdict.Bridge, false)})
			return w.Assigned(i)
		}, "node n1 itself", audit.SourceRivalLeft},
		"a device outside": {func(w *verdicttest.World) *verdict.Claim {
			i := w.Interface(w.Host("n1"), verdict.Interface{Name: "tap0", Tap: true, MAC: "thetap", Attachment: verdict.Own, Link: w.Link("n1", "br1", verdict.Bridge, false)})
			return w.Wire(i, "\x02\x00\x00\x00\x00\x99")
		}, "MAC 02:00:00:00:00:99", audit.SourceRivalSilent},
	} {
		w := verdicttest.New("fd00::5")
		rival := test.rival(w)
		i, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("new")), "baaaaa", w.Link("n1", "br1", verdict.Bridge, false))
		w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed | verdict.FlagPermanent, Interface: i, PrefixLength: 64})
		w.Judge()
		w.After(time.Minute).Drop(rival)
		out := w.Judge()
		found := audit.Address(&w.Policy, w.Case(), &out).Findings
		if len(found) != 1 || found[0].Source != test.source {
			t.Errorf("%s: got findings %+v, want one of source %s", name, found, test.source)
			continue
		}
		if text := explain.Finding(&found[0], verdict.PoolUse{}); !strings.Contains(text.Summary, test.want) {
			t.Errorf("%s: got %q, want %q", name, text.Summary, test.want)
		}
	}
}
