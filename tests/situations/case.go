package situations

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// cases is the path of the cases, relative to the directory of the texts.
const cases = "../../../aggregator/verdict/testdata/cases"

// writeCase writes the case of a row once its judgement is that of the row. It does not write a
// case that differs from the existing one only in values that vary between runs.
func writeCase(t testing.TB, file, want string, ask func() Output) {
	t.Helper()
	want, err := row.OfCase(want)
	if err != nil {
		t.Fatal(err)
	}
	for range asks {
		f, err := casefile.Decode([]byte(ask().Case()))
		if err != nil {
			t.Fatal(err)
		}
		if f, err = stableCase(f); err != nil {
			t.Fatal(err)
		}
		judged, err := row.OfCase(rowOf(api.Judge(f)).Text())
		if err != nil {
			t.Fatal(err)
		}
		if judged != want {
			continue // it has changed meanwhile
		}
		data, err := casefile.Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		old, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if lasting(string(old)) == lasting(string(data)) {
			return
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("case of %s: its judgement differs from the one of the row", file)
}

// stableCase returns a case without most values that vary between runs: the order of events, the
// time of day, and the names, MACs and IDs that the kernel, a plugin or Kubernetes generated.
func stableCase(f *casefile.File) (*casefile.File, error) {
	sortCase(f.Case)
	f, err := casefile.PseudonymiseSome(f, func(class, name string) bool {
		switch class {
		case "boot", "uuid", "container", "netns":
			return true
		case "veth":
			return row.GeneratedVeth(name)
		}
		return strings.HasPrefix(class, "mac") && !row.ChosenMAC(verdict.MAC(name).String())
	})
	if err != nil {
		return nil, err
	}
	f.Version = ""
	noon := verdict.At(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	shift(reflect.ValueOf(f.Case), noon.Sub(f.Case.Now))
	return f, nil
}

// sortCase sorts the lists whose order depends on the order of events.
func sortCase(c *verdict.Case) {
	interfaces := func(a, b *verdict.Interface) int {
		return cmp.Or(cmp.Compare(a.Namespace.Node.Name, b.Namespace.Node.Name), cmp.Compare(a.Namespace.Record, b.Namespace.Record), cmp.Compare(a.Index, b.Index))
	}
	slices.SortStableFunc(c.Claims, func(a, b *verdict.Claim) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), interfaces(a.Interface, b.Interface), cmp.Compare(a.MAC, b.MAC), cmp.Compare(a.Source, b.Source))
	})
	slices.SortStableFunc(c.Stations, interfaces)
	slices.SortStableFunc(c.Namespaces, func(a, b verdict.NamespaceFacts) int {
		return cmp.Or(cmp.Compare(a.Node.Name, b.Node.Name), cmp.Compare(a.Record, b.Record))
	})
	slices.SortStableFunc(c.Nodes, func(a, b verdict.NodeFacts) int { return cmp.Compare(a.Node.Name, b.Node.Name) })
	slices.SortStableFunc(c.Pools, func(a, b *verdict.Pool) int { return cmp.Compare(a.Subject(), b.Subject()) })
	slices.SortStableFunc(c.Allocations, func(a, b verdict.AllocationFacts) int {
		return cmp.Or(cmp.Compare(a.Pool.Subject(), b.Pool.Subject()), cmp.Compare(a.Location, b.Location))
	})
}

// shift moves all times. Each record may be referenced only once in the value.
func shift(v reflect.Value, by time.Duration) {
	switch {
	case v.Type() == reflect.TypeFor[verdict.Stamp]():
		if v.Int() != 0 {
			v.SetInt(v.Int() + int64(by))
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		shift(v.Elem(), by)
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			shift(v.Index(i), by)
		}
	case v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[verdict.Case]().PkgPath():
		for _, field := range v.Fields() {
			shift(field, by)
		}
	}
}

// passingFields matches fields that vary between runs.
var passingFields = regexp.MustCompile(`"(count|pid|process|epoch|skew|record|peer)": ?("[^"]*"|\d+)|"\d{4}-\d\d-\d\dT[^"]*"|\s`)

// lasting returns the text of a case without values that vary between runs.
func lasting(text string) string { return passingFields.ReplaceAllString(text, "") }
