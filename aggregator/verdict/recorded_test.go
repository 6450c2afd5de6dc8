package verdict_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// rowsDir has the verdicts on the rows of docs/situations.md; casesDir has the case of each row.
const (
	rowsDir  = "../../tests/testdata/situations"
	casesDir = "testdata/cases"
)

// TestEachRowHasACase judges the recorded case of each row. The expected verdict is
// the one that was reached in real network namespaces.
func TestEachRowHasACase(t *testing.T) {
	rows, err := filepath.Glob(filepath.Join(rowsDir, "*.json"))
	if err != nil || len(rows) < 60 {
		t.Fatalf("got %d rows (%v), want all", len(rows), err)
	}
	for _, file := range rows {
		id := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(id, func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(casesDir, filepath.Base(file)))
			if err != nil {
				t.Fatalf("%v: make update-situations records it", err)
			}
			f, err := casefile.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			of, err := row.OfCase(string(want))
			if err != nil {
				t.Fatal(err)
			}
			if got := row.Stable(rowOf(f).Text()); got != of {
				t.Errorf("got\n%s\nwant\n%s", got, of)
			}
			sameAgain(t, f.Policy, f.Case, f.Policy.Judge(f.Case))
		})
	}
	recorded, err := filepath.Glob(filepath.Join(casesDir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range recorded {
		if !slices.Contains(rows, filepath.Join(rowsDir, filepath.Base(file))) {
			t.Errorf("%s is the case of no row: delete it", file)
		}
	}
}

// rowOf judges a case and returns the verdict as a row.
func rowOf(f *casefile.File) (r row.Row) {
	why := f.Policy.Explain(f.Case)
	r.Scope = scopeText(why.Kind, why.Scope)
	for i := range why.Owners {
		o := &why.Owners[i]
		owner := row.Owner{
			Name: nameOf(o), Node: o.Node.Name, State: ipwitnessv1.Owner_State(o.State).String(), Excluded: o.Excluded != nil,
		}
		for _, c := range o.Claims {
			owner.Evidence = append(owner.Evidence, ipwitnessv1.Evidence_Kind(c.Kind).String())
		}
		r.Owners = append(r.Owners, owner)
	}
	conflicts := f.Policy.Judge(f.Case).Conflicts
	for _, m := range f.Case.Conflicts {
		if !slices.ContainsFunc(conflicts, func(judged verdict.Conflict) bool { return judged.ID == m.ID }) {
			conflicts = append(conflicts, verdict.Conflict{Identity: m.Identity, Course: m.Course})
		}
	}
	for _, c := range conflicts {
		conflict := row.Conflict{
			State: ipwitnessv1.Conflict_State(c.Phase).String(), Scope: scopeText(c.Kind, c.Scope), Rule: c.Rule, Cause: c.Cause,
		}
		if c.LinkProof != 0 {
			conflict.LinkProof = ipwitnessv1.LinkProof_Kind(c.LinkProof).String()
		}
		for i := range c.Owners {
			conflict.Owners = append(conflict.Owners, nameOf(&c.Owners[i]))
		}
		r.Conflicts = append(r.Conflicts, conflict)
	}
	for _, s := range why.Steps {
		if step := strings.TrimSpace(s.Rule + " " + scopeText(s.Scope.Kind, s.Scope.Text())); s.Applied {
			r.Applied = append(r.Applied, step)
		} else {
			r.NotApplied = append(r.NotApplied, step)
		}
	}
	return r
}

// nameOf returns the kind and the name of an owner. An external device is named by its hardware
// address.
func nameOf(o *verdict.Owner) string {
	w := o.Workload()
	name := w.Name
	switch {
	case w.Kind == verdict.External:
		name = o.MAC.String()
	case w.Namespace != "":
		name = w.Namespace + "/" + name
	}
	return strings.TrimSpace(ipwitnessv1.Workload_Kind(w.Kind).String() + " " + name)
}

func scopeText(kind verdict.ScopeKind, name string) string {
	if kind == 0 {
		return ""
	}
	return strings.TrimSpace(kind.String() + " " + name)
}

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
