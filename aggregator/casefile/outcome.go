package casefile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// outcome judges a case and returns the judgement without names, so that cases with different names
// can be compared.
func outcome(f *File) string {
	judged := f.Policy.Judge(f.Case)
	found := audit.Address(f.Policy, f.Case, &judged).Findings
	var all []string
	add := func(what string, values ...any) { all = append(all, what+fmt.Sprintf(" %v", values)) }
	add("judgement", judged.Again, judged.Contested, len(judged.Check), len(judged.Expired))
	for i := range judged.Owners {
		add("owner", ownerOutcome(&judged.Owners[i]))
	}
	for i := range judged.Conflicts {
		c := &judged.Conflicts[i]
		var owners, causes []string
		for k := range c.Owners {
			o := &c.Owners[k]
			owners = append(owners, fmt.Sprint(ownerOutcome(o), o.ID == c.Keeper))
		}
		for _, r := range c.RuledOut {
			causes = append(causes, fmt.Sprint(r.Cause, r.Open))
		}
		slices.Sort(owners)
		add("conflict", c.Episode, c.Kind, c.Phase, c.Rule, c.Cause, c.LinkProof, c.Right, c.DetectedAt, c.ConfirmedAt, c.ResolvedAt, c.Asked, owners, causes)
	}
	for _, e := range judged.Ended {
		add("ended", e.At, e.Kind)
	}
	for _, s := range slices.Concat(judged.Spoofs, judged.Clones) {
		add("spoof", ownerOutcome(&s.Owner), len(s.MACs), len(s.Victims), s.Count)
	}
	for i := range found {
		f := &found[i]
		add("finding", f.Kind, f.Severity, f.Waiting, f.Since, len(f.Owners), len(f.Allocations), len(f.Past))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func ownerOutcome(o *verdict.Owner) string {
	return fmt.Sprint(o.State, o.Scope.Kind, o.Assigned, exclusion(o), o.Orphaned, len(o.Claims))
}

func exclusion(o *verdict.Owner) string {
	if o.Excluded == nil {
		return ""
	}
	return o.Excluded.Rule
}
