package verdict_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// world is a World with helpers for these tests.
type world struct{ *verdicttest.World }

func newWorld(addr string) *world { return &world{verdicttest.New(addr)} }

// after advances the time.
func (w *world) after(d time.Duration) *world {
	w.After(d)
	return w
}

// judge judges the address. Conflicts that have just ended, and have no next episode yet, are returned with the others.
func (w *world) judge() verdict.Judgement {
	out := w.Judge()
	for _, e := range out.Ended {
		if c := w.Conflict(e.ID); !c.Active() {
			out.Conflicts = append(out.Conflicts, *c)
		}
	}
	return out
}

// checked judges the address. It also checks that the case is judged the same after it was written
// to a file and read again.
func (w *world) checked(t *testing.T) verdict.Judgement {
	t.Helper()
	if in := w.Case(); len(in.Claims) < manyClaims {
		sameAgain(t, &w.Policy, in, w.Policy.Judge(in))
	}
	return w.judge()
}

// manyClaims is the number of claims from which the check with a file is skipped, because it would
// be slow and show nothing new.
const manyClaims = 100

// want judges the address and checks its only conflict.
func (w *world) want(t *testing.T, phase verdict.Phase, rule string, kind verdict.ScopeKind, scope string) verdict.Conflict {
	t.Helper()
	out := w.checked(t)
	if len(out.Conflicts) != 1 {
		t.Fatalf("got %d conflicts %+v, want one", len(out.Conflicts), out.Conflicts)
	}
	c := out.Conflicts[0]
	if c.Phase != phase || c.Rule != rule || c.Kind != kind || c.Scope != scope {
		t.Fatalf("got phase %d, rule %s, scope %s %s, want %d, %s, %s %s", c.Phase, c.Rule, c.Kind, c.Scope, phase, rule, kind, scope)
	}
	return c
}

// wantNone judges the address and checks that there is no conflict.
func (w *world) wantNone(t *testing.T) verdict.Judgement {
	t.Helper()
	out := w.checked(t)
	if len(out.Conflicts) != 0 {
		t.Fatalf("got conflict %+v, want none", out.Conflicts[0])
	}
	return out
}

// wantRule checks that the explanation names a rule, and returns its steps.
func (w *world) wantRule(t *testing.T, rule string) (steps []verdict.Step) {
	t.Helper()
	e := w.Policy.Explain(w.Case())
	for _, s := range e.Steps {
		if s.Rule == rule {
			steps = append(steps, s)
		}
	}
	if steps == nil {
		t.Errorf("got steps %+v, want one of rule %s", e.Steps, rule)
	}
	return steps
}

// has reports whether a conflict has a fact of a kind about the owner with a name, or about no
// owner if the name is empty.
func has(c *verdict.Conflict, kind verdict.FactKind, owner string) bool {
	return slices.ContainsFunc(c.Facts, func(f verdict.Fact) bool {
		return f.Kind == kind && (owner == "" && len(f.Owners) == 0 || len(f.Owners) > 0 && verdicttest.Name(c, f.Owners[0]) == owner)
	})
}
