package verdict_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// unshared returns a copy of a value in which no two pointers are to one record.
func unshared(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(unshared(v.Elem()))
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				out.Index(i).Set(unshared(v.Index(i)))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if out.Field(i).CanSet() {
				out.Field(i).Set(unshared(v.Field(i)))
			}
		}
	}
	return out
}

// A case that was written to a file and read again has a record of its own at each place.
func TestACaseIsJudgedByItsValues(t *testing.T) {
	check := func(t *testing.T, w *world) {
		t.Helper()
		// Indexes of interfaces are those of their namespaces.
		next := map[*verdict.Namespace]uint32{}
		for _, i := range w.interfaces {
			i.Index = 2 + next[i.Namespace]
			next[i.Namespace]++
		}
		in := w.input()
		copied := unshared(reflect.ValueOf(in)).Interface().(*verdict.Case)
		got, want := w.policy.Judge(copied), w.policy.Judge(in)
		if a, b := describeJudgement(got), describeJudgement(want); !reflect.DeepEqual(a, b) {
			t.Fatalf("got\n%q, want\n%q", a, b)
		}
		if len(got.Spoofs) != len(want.Spoofs) || len(got.Clones) != len(want.Clones) {
			t.Fatalf("got %d spoofs and %d clones, want %d and %d", len(got.Spoofs), len(got.Clones), len(want.Spoofs), len(want.Clones))
		}
		for i := range want.Conflicts {
			if g, w := &got.Conflicts[i], &want.Conflicts[i]; g.Cause != w.Cause || g.Keeper != w.Keeper || g.Right != w.Right || !slices.Equal(g.Order, w.Order) {
				t.Fatalf("got cause %s, keeper %q, right %d, order %v, want %s, %q, %d, %v", g.Cause, g.Keeper, g.Right, g.Order, w.Cause, w.Keeper, w.Right, w.Order)
			}
		}
		if a, b := told(w.policy.Audit(copied, &got).Findings), told(w.policy.Audit(in, &want).Findings); !slices.Equal(a, b) {
			t.Fatalf("got findings %q, want %q", a, b)
		}
	}
	for seed := range uint64(100) {
		check(t, randomWorld(rand.New(rand.NewPCG(seed, 17))))
	}
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld("10.244.1.5")
			s.build(w)
			check(t, w)
			w.judge()
			w.after(time.Minute)
			check(t, w)
		})
	}
}
