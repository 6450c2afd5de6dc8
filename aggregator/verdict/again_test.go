package verdict_test

import (
	"reflect"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// sameAgain checks that a case is judged the same if all of its references point to separate
// records, and after it was written to a file and read again.
func sameAgain(t *testing.T, p *verdict.Policy, c *verdict.Case, want verdict.Judgement) {
	t.Helper()
	check := func(how string, got verdict.Judgement) {
		t.Helper()
		if !same(reflect.ValueOf(got), reflect.ValueOf(want)) {
			t.Fatalf("the case %s: got\n%+v\nwant\n%+v", how, got, want)
		}
	}
	check("without shared records", p.Judge(unshared(reflect.ValueOf(c)).Interface().(*verdict.Case)))
	data, err := casefile.Encode(&casefile.File{Version: "test", Policy: p, Case: c})
	if err != nil {
		t.Fatal(err)
	}
	f, err := casefile.Decode(data)
	if err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	if again, err := casefile.Encode(f); err != nil || string(again) != string(data) {
		t.Fatalf("got (%v)\n%s\nwant\n%s", err, again, data)
	}
	check("from a file", f.Policy.Judge(f.Case))
}

// unshared returns a deep copy of a value in which no two references point to the same record.
func unshared(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		out.Set(reflect.New(v.Type().Elem()))
		out.Elem().Set(unshared(v.Elem()))
	case v.Kind() == reflect.Slice && !v.IsNil():
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(unshared(v.Index(i)))
		}
	case v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[verdict.Case]().PkgPath():
		for i := range v.NumField() {
			out.Field(i).Set(unshared(v.Field(i)))
		}
	default:
		out.Set(v)
	}
	return out
}

// same reports whether two values are equal, regardless of pointers. Empty and nil slices are
// equal.
func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || same(a.Elem(), b.Elem()))
	case reflect.Slice:
		for i := 0; i < a.Len() && i < b.Len(); i++ {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return a.Len() == b.Len()
	case reflect.Struct:
		if a.Comparable() && a.Interface() == b.Interface() {
			return true
		}
		for i := range a.NumField() {
			if !a.Type().Field(i).IsExported() {
				return false // a type of another package, which == compares
			}
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return a.Interface() == b.Interface()
}
