package verdict_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

var dumpTo *os.File

func dumpJudgement(w *world, in *verdict.Case, out verdict.Judgement) {
	path := os.Getenv("DUMP")
	if path == "" {
		return
	}
	if dumpTo == nil {
		f, err := os.Create(path)
		if err != nil {
			panic(err)
		}
		dumpTo = f
	}
	var b strings.Builder
	for i := range out.Owners {
		fmt.Fprintf(&b, "owner %s %s %s\n", out.Owners[i].ID, out.Owners[i].Rule, out.Owners[i].Excluded)
	}
	for _, c := range out.Conflicts {
		fmt.Fprintf(&b, "conflict %s %d %s %s keeper %s %d\n%s\n", c.ID, c.Phase, c.Rule, c.Cause, c.Keeper, c.Right, c.Summary)
		fmt.Fprintf(&b, "because %q\n", c.Because)
		for _, e := range c.Excluded {
			fmt.Fprintf(&b, "not %s: %s\n", e.Cause, e.Reason)
		}
		if c.Active() {
			for _, d := range c.Diagnosis {
				fmt.Fprintf(&b, "see %s: %s\n", d.Step, d.Answer)
			}
		}
		fmt.Fprintf(&b, "do %s\n", strings.Join(flat(c.Remedy), "\n"))
	}
	e := w.policy.Explain(in)
	fmt.Fprintf(&b, "explained %d %s %s\n", e.Kind, e.Scope, e.Summary)
	for _, s := range e.Steps {
		fmt.Fprintf(&b, "step %s %d %s %v %s\n", s.Rule, s.Kind, s.Scope, s.Applied, s.Reason)
	}
	line, _ := json.Marshal(b.String())
	fmt.Fprintf(dumpTo, "%s\n", line)
}
