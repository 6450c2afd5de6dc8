package ipam_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// Each IPAM has kinds of its own, which can be listed without a publisher.
func TestKinds(t *testing.T) {
	by := make(map[ipam.Kind]string)
	for _, m := range registry.All {
		kinds := m.Kinds()
		if (m.Objects != nil) != (len(kinds) > 0) {
			t.Errorf("%s: got kinds %v", m.Name, kinds)
		}
		for _, k := range kinds {
			if k.Group == "" || k.Version == "" || k.Resource != strings.ToLower(k.Resource) || k.Name == "" || by[k] != "" {
				t.Errorf("%s: got kind %+v, which %q has", m.Name, k, by[k])
			}
			by[k] = m.Name
		}
		if m.Objects == nil {
			continue
		}
		for _, r := range m.Objects(nil).Resources {
			if r.Store == nil || r.Lost == "" || r.Decided || r.Followed {
				t.Errorf("%s: got resource %+v", m.Name, r)
			}
			if r.Older != "" && !slices.Contains(kinds, r.Kind.In(r.Older)) {
				t.Errorf("%s: got kinds %v, want %s in version %s", m.Name, kinds, r.Kind, r.Older)
			}
			if !slices.Contains(kinds, r.Kind) || (r.Alternative != ipam.Kind{}) != slices.Contains(kinds, r.Alternative) {
				t.Errorf("%s: got kinds %v, want %s and its alternative", m.Name, kinds, r.Kind)
			}
		}
	}
	if len(by) < 10 {
		t.Errorf("got only %d kinds", len(by))
	}
}

func TestPart(t *testing.T) {
	var into struct {
		List []struct{ N int }
	}
	for raw, want := range map[string]string{
		`{"List":[{"N":1}],"other":{}}`: "<nil>", `null`: "<nil>", "": "it has no spec",
		`{"List":{}}`: "its spec has an unexpected format: /List is a JSON object",
		`[]`:          "its spec has an unexpected format: / is a JSON array",
	} {
		if got := fmt.Sprint(ipam.Part([]byte(raw), "spec", &into)); got != want {
			t.Errorf("%s: got %s, want %s", raw, got, want)
		}
	}
	// The rest of these texts is of encoding/json, and differs between versions of Go.
	for _, raw := range []string{"{", `{"List":[{"N":"x"}]}`} {
		if err := ipam.Part([]byte(raw), "spec", &into); err == nil || !strings.HasPrefix(err.Error(), "its spec has an unexpected format: ") {
			t.Errorf("%s: got %v", raw, err)
		}
	}
}

// Mirrors report differences only: a deleted object once, and an equal one not at all.
func TestMirror(t *testing.T) {
	var got []string
	show := func(r *int) string {
		if r == nil {
			return "-"
		}
		return fmt.Sprint(*r)
	}
	m := ipam.Mirror[string, int]{
		Read: func(text string) (ipam.Key, *int) {
			name, number, kept := strings.Cut(text, "=")
			if !kept {
				return ipam.Key{Name: name}, nil
			}
			n := int(number[0] - '0')
			return ipam.Key{Name: name}, &n
		},
		Same: func(a, b *int) bool { return *a == *b },
		Changed: func(at ipam.Key, before, after *int) {
			got = append(got, at.Name+" "+show(before)+" "+show(after))
		},
		Settled: func() { got = append(got, "settled") },
		Limit:   2,
	}
	list := func(objects ...string) {
		var reduced []any
		for _, o := range objects {
			reduced = append(reduced, m.Reduce(o))
		}
		pauses, before := 0, len(m.Records)
		m.Replace(reduced, func() { pauses++ })
		if want := len(objects) + before + len(m.Records); pauses != want {
			t.Errorf("got %d pauses, want %d: one for each object, and for each record before and after", pauses, want)
		}
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { m.Put(m.Reduce("a=1")) }, "a - 1, settled"},
		{func() { m.Put(m.Reduce("a=1")) }, "settled"},
		{func() { m.Put(m.Reduce("a=2")) }, "a 1 2, settled"},
		{func() { m.Put(m.Reduce("b")) }, "settled"},
		{func() { m.Put(m.Reduce(7)) }, "settled"}, // an object of another type
		{func() { list("b=1", "a=2", "c=3") }, "b - 1, settled"},
		{func() { list("b=1", "d") }, "a 2 -, settled"},
		{func() { m.Drop(m.Reduce("b=5")) }, "b 1 -, settled"},
		{func() { m.Drop(m.Reduce("b=5")) }, "settled"},
		{func() { list() }, "settled"},
	} {
		got = nil
		if step.do(); strings.Join(got, ", ") != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
}

// Without functions, a mirror compares the contents of records, and reports nothing.
func TestMirrorWithoutFunctions(t *testing.T) {
	m := ipam.Mirror[string, []string]{Read: func(text string) (ipam.Key, *[]string) { return ipam.Key{Name: "a"}, &[]string{text} }}
	at := ipam.Key{Name: "a"}
	m.Put(m.Reduce("one"))
	first := m.Records[at]
	if m.Put(m.Reduce("one")); m.Records[at] != first {
		t.Error("an equal record replaced the first one")
	}
	if m.Put(m.Reduce("two")); (*m.Records[at])[0] != "two" {
		t.Errorf("got %v, want the new record", *m.Records[at])
	}
	// The key of the first record is not kept alive.
	again := ipam.Key{Name: strings.Clone("a")}
	m.Set(again, &[]string{"three"})
	for key := range m.Records {
		if unsafe.StringData(key.Name) != unsafe.StringData(again.Name) {
			t.Error("the map has the key of the first record, want the one of the last")
		}
	}
}

// What is new comes before what is gone, so that an address that only moved was never free.
func TestDifferences(t *testing.T) {
	type e struct{ at, is int }
	for _, test := range []struct {
		was, is []e
		want    string
	}{
		{nil, nil, ""},
		{[]e{{1, 1}, {2, 1}, {4, 1}}, []e{{2, 1}, {3, 1}, {4, 2}}, "+3 +4 -1"},
		{[]e{{1, 1}, {2, 1}}, nil, "-1 -2"},
		{nil, []e{{1, 1}}, "+1"},
	} {
		var got []string
		ipam.Differences(test.was, test.is, func(a, b *e) int { return a.at - b.at },
			func(x *e) { got = append(got, fmt.Sprint("+", x.at)) }, func(x *e) { got = append(got, fmt.Sprint("-", x.at)) })
		if strings.Join(got, " ") != test.want {
			t.Errorf("%v to %v: got %q, want %q", test.was, test.is, got, test.want)
		}
	}
}

func TestInternedStrings(t *testing.T) {
	first, second := ipam.Interned("node"), ipam.Interned(strings.Clone("node"))
	if first != "node" || unsafe.StringData(first) != unsafe.StringData(second) || ipam.Interned("") != "" {
		t.Errorf("got %q and %q, want one copy", first, second)
	}
}
