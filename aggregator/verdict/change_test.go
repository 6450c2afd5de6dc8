package verdict_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// A subscriber is sent a conflict if its contents change, and not otherwise.
func TestConflictsAreComparedForSubscribers(t *testing.T) {
	_, c := verdicttest.Situations[0].Judge()
	_, same := verdicttest.Situations[0].Judge()
	if !c.Same(same) || len(c.Facts) == 0 || len(c.RuledOut) == 0 || len(c.Checks) == 0 || len(c.Allocations) == 0 {
		t.Fatalf("got a change of %+v to %+v, want no change, and reasons of each kind", c, same)
	}
	for name, change := range map[string]func(c *verdict.Conflict){
		"phase":                func(c *verdict.Conflict) { c.Phase = verdict.Resolved },
		"episode":              func(c *verdict.Conflict) { c.Episode++ },
		"rule":                 func(c *verdict.Conflict) { c.Rule = verdict.RuleSplitBrain },
		"that it moves":        func(c *verdict.Conflict) { c.Moves = true },
		"link proof":           func(c *verdict.Conflict) { c.LinkProof = verdict.OneWay },
		"cause":                func(c *verdict.Conflict) { c.Cause = unknown },
		"headline":             func(c *verdict.Conflict) { c.Headline.Owners = nil },
		"a fact":               func(c *verdict.Conflict) { c.Facts[0].Network = "other" },
		"a record":             func(c *verdict.Conflict) { c.Facts[2].Records = nil },
		"the number of facts":  func(c *verdict.Conflict) { c.Facts = c.Facts[1:] },
		"a cause ruled out":    func(c *verdict.Conflict) { c.RuledOut[0].Fact.Kind = verdict.NotTwoPools },
		"an open cause":        func(c *verdict.Conflict) { c.RuledOut[0].Open = true },
		"the rightful owner":   func(c *verdict.Conflict) { c.Keeper = "" },
		"the right":            func(c *verdict.Conflict) { c.Right = verdict.RightIntent },
		"the ending":           func(c *verdict.Conflict) { c.Ending.Kind = verdict.EndOneOwner },
		"the ending's owner":   func(c *verdict.Conflict) { c.Ending.Owner = "x" },
		"the ending's reason":  func(c *verdict.Conflict) { c.Ending.Excluded = &verdict.Exclusion{} },
		"a check":              func(c *verdict.Conflict) { c.Checks[0].Facts[0].State++ },
		"allocations":          func(c *verdict.Conflict) { c.Allocations = nil },
		"bystanders":           func(c *verdict.Conflict) { c.Bystanders = c.Owners },
		"an owner":             func(c *verdict.Conflict) { c.Owners = c.Owners[1:] },
		"an owner's state":     func(c *verdict.Conflict) { c.Owners[0].State = verdict.Unheard },
		"an owner's MAC":       func(c *verdict.Conflict) { c.Owners[0].MAC = "othero" },
		"an owner's exclusion": func(c *verdict.Conflict) { c.Owners[0].Excluded = &verdict.Exclusion{Rule: verdict.RuleStale} },
		"an owner's pod":       func(c *verdict.Conflict) { c.Owners[0].Pod = &verdict.PodObject{Phase: "Running"} },
		"an owner's claims":    func(c *verdict.Conflict) { c.Owners[0].Claims = nil },
		"an owner's interface": func(c *verdict.Conflict) { i := *c.Owners[0].Interface; i.Name = "eth7"; c.Owners[0].Interface = &i },
		"workload of an owner": func(c *verdict.Conflict) { ns := *c.Owners[0].Namespace; ns.Who = "x"; c.Owners[0].Namespace = &ns },
		"intended addresses of an owner": func(c *verdict.Conflict) {
			ns := *c.Owners[0].Namespace
			ns.Intended = "x"
			c.Owners[0].Namespace = &ns
		},
	} {
		_, changed := verdicttest.Situations[0].Judge()
		if change(changed); c.Same(changed) {
			t.Errorf("got no change of %s", name)
		}
	}
	for name, change := range map[string]func(c *verdict.Conflict){
		"one more frame":     func(c *verdict.Conflict) { c.Owners[0].Claims[0].Count++ },
		"another copy":       func(c *verdict.Conflict) { ns := *c.Owners[0].Namespace; c.Owners[0].Namespace = &ns },
		"a question":         func(c *verdict.Conflict) { c.Asked++ },
		"a clock":            func(c *verdict.Conflict) { c.Owners[0].Node.Skew++ },
		"a copy of a record": func(c *verdict.Conflict) { al := *c.Allocations[0]; c.Allocations[0] = &al },
	} {
		_, changed := verdicttest.Situations[0].Judge()
		if change(changed); !c.Same(changed) {
			t.Errorf("got a change by %s", name)
		}
	}
}

// setOther changes a value.
func setOther(v reflect.Value) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("10.0.0.9")))
		return
	case *verdict.Node:
		v.Set(reflect.ValueOf(&verdict.Node{Boot: "other"}))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("other")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		setOther(v.Field(0))
	default:
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	}
}

// eachField checks that changing any field makes two records differ, apart from the given fields.
func eachField[T any](t *testing.T, same func(a, b *T) bool, except ...string) {
	t.Helper()
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		var a, b T
		if !same(&a, &b) {
			t.Errorf("%T: got two empty values that differ", a)
		}
		setOther(reflect.ValueOf(&b).Elem().FieldByIndex(f.Index))
		if want := slices.Contains(except, f.Name); same(&a, &b) != want || same(&b, &a) != want {
			t.Errorf("%T: with a different %s: got equal %t, want %t", a, f.Name, !want, want)
		}
	}
}

func TestEachFieldIsCompared(t *testing.T) {
	eachField(t, (*verdict.Pool).Same, "LostHeard")
	eachField(t, (*verdict.Exclusion).Same)
	eachField(t, func(a, b *verdict.Fact) bool { return a.Equal(*b) })
	eachField(t, func(a, b *verdict.PodObject) bool { return (&verdict.Owner{Pod: a}).Same(&verdict.Owner{Pod: b}) }, "Heard", "MachineSince")
}
