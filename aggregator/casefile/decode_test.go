package casefile

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/audit"
)

// recorded returns cases that were recorded in tests.
func recorded(t testing.TB) (files [][]byte) {
	t.Helper()
	names, err := filepath.Glob("testdata/cases/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("got %d recorded cases (%v), want some", len(names), err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, data)
	}
	return files
}

func TestFilesThatAreNotCases(t *testing.T) {
	const good = `{
  "ipwitnessCase": 1,
  "ipwitnessVersion": "v9.9.9",
  "policy": {"settle": "1s"},
  "case": {"address": "10.0.0.1", "now": "2026-01-02T12:00:00Z", "claims": ["c1"], "stations": ["i1"]},
  "claims": {"c1": {"interface": "i1", "kind": "ASSIGNED", "count": 1}},
  "interfaces": {"i1": {"namespace": "ns1", "mac": "02:00:00:00:00:01", "index": 2}},
  "namespaces": {"ns1": {"node": "n1", "who": {"kind": "POD"}}},
  "nodes": {"n1": {"name": "node1", "epoch": "18446744073709551615", "skew": "-1.5ms"}}
}`
	if _, err := Decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	const newer = "; use ipwitness v9.9.9, which wrote the file"
	for _, test := range []struct{ old, new, want string }{
		{good, "", "line 1: invalid JSON: "},
		{good, "[]", "got [], expected an object"},
		{good, "{}", "no \"ipwitnessCase\": this is not a case file; write one with `ipwitness explain ADDRESS -o case`"},
		{`"claims": [`, `claims: [`, "line 5: invalid JSON: "},
		{`"ipwitnessCase": 1`, `"ipwitnessCase": 2`, "format 2 is not supported, only format 1 is: use ipwitness v9.9.9, which wrote the file"},
		{`"ipwitnessCase": 1`, `"ipwitnessCase": "1"`, `ipwitnessCase: invalid value "1"`},
		{`"policy"`, `"politics": {}, "policy"`, "politics: unknown key" + newer},
		{`"policy": {"settle": "1s"},`, "", "policy: missing"},
		{`"case": {`, `"claims": {`, "claims: duplicate key"},
		{`"settle"`, `"unsettle"`, "policy.unsettle: unknown key" + newer},
		{`"settle": "1s"`, `"settle": "soon"`, `policy.settle: got "soon", expected a value like "1.5s"` + newer},
		{`"count": 1`, `"count": 4294967296`, "claims.c1.count: got 4294967296, expected a value like 0x0"},
		{`"count": 1`, `"count": null`, "claims.c1.count: got null, expected a value like 0x0"},
		{`"ASSIGNED"`, `"WISHED"`, `claims.c1.kind: got "WISHED", expected a value like "ASSIGNED"` + newer},
		{`"interface": "i1"`, `"interface": "i2"`, `claims.c1.interface: interfaces has no "i2": the file may have been edited or truncated`},
		{`"interface": "i1"`, `"interface": 1`, "claims.c1.interface: got 1, expected the ID of a record in interfaces"},
		{`"interface": "i1", `, "", "claims.c1.interface: missing"},
		{`["c1"]`, `["c1", "c2"]`, `case.claims[1]: claims has no "c2": the file may have been edited or truncated`},
		{`["c1"]`, `{"c1": "c1"}`, `case.claims: got {"c1": "c1"}, expected a list`},
		{`"address": "10.0.0.1", `, "", "case.address: missing"},
		{"2026-01-02", "9026-01-02", `case.now: got "9026-01-02T12:00:00Z", expected a value like "2026-01-02T12:00:00.000000000Z"` + newer},
		{"02:00:00:00:00:01", "02:00:00:00:00:0", `interfaces.i1.mac: got "02:00:00:00:00:0", expected a value like "02:00:00:00:00:01"` + newer},
		{`"18446744073709551615"`, `"-1"`, `nodes.n1.epoch: got "-1", expected a number in quotes`},
		{`"nodes": {"n1": {`, `"nodes": {"n2": {"speed": 1}, "n1": {`, "nodes.n2.speed: unknown key" + newer},
		{
			`"stations"`, `"conflicts": [{"id": "a", "phase": "SUSPECTED", "owners": [{"mac": "02:00:00:00:00:01"}]}], "stations"`,
			"case.conflicts[0].owners[0].id: missing",
		},
	} {
		text := strings.Replace(good, test.old, test.new, 1)
		if text == good {
			t.Fatalf("%q is not in the file", test.old)
		}
		_, err := Decode([]byte(text))
		want := "read case: " + test.want
		syntax := strings.HasSuffix(want, "JSON: ") // what follows is the text of encoding/json
		if err == nil || !strings.HasPrefix(err.Error(), want) || !syntax && err.Error() != want {
			t.Errorf("%q: got %v, want %s", test.new, err, want)
		}
	}
}

func TestAFileThatIsTooLarge(t *testing.T) {
	_, err := Read(strings.NewReader(strings.Repeat(" ", MaxSize+1)))
	if err == nil || !strings.Contains(err.Error(), "this is not a case file") {
		t.Errorf("got %v, want it to be too large", err)
	}
}

var mutations = flag.Int("mutations", 300, "how many changed cases TestChangedCasesAreRefusedOrJudged tries")

// TestChangedCasesAreRefusedOrJudged changes recorded cases at random. An edited file must be
// either refused or judged; the judgement must not panic.
func TestChangedCasesAreRefusedOrJudged(t *testing.T) {
	files := recorded(t)
	random := rand.New(rand.NewPCG(1, 2))
	judged := 0
	for range *mutations {
		var value any
		if err := json.Unmarshal(files[random.IntN(len(files))], &value); err != nil {
			t.Fatal(err)
		}
		for range 1 + random.IntN(3) {
			mutate(random, value)
		}
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if judge(t, data) {
			judged++
		}
	}
	if judged < *mutations/10 {
		t.Errorf("got %d of %d changed cases judged, want more: the others show nothing", judged, *mutations)
	}
}

// judge judges a file, and reports whether it could be decoded.
func judge(t testing.TB, data []byte) bool {
	t.Helper()
	f, err := Decode(data)
	if err != nil {
		return false
	}
	defer func() {
		if r := recover(); r != nil {
			t.Fatalf("the judgement panics: %v\n%s", r, data)
		}
	}()
	judgement := f.Policy.Judge(f.Case)
	audit.Address(f.Policy, f.Case, &judgement)
	f.Policy.Explain(f.Case)
	return true
}

// mutate changes one value somewhere in a value.
func mutate(random *rand.Rand, value any) {
	type place struct {
		get func() any
		set func(any)
		del func()
	}
	var places []place
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				places = append(places, place{func() any { return v[key] }, func(n any) { v[key] = n }, func() { delete(v, key) }})
				walk(v[key])
			}
		case []any:
			for i := range v {
				places = append(places, place{func() any { return v[i] }, func(n any) { v[i] = n }, func() {}})
				walk(v[i])
			}
		}
	}
	walk(value)
	at, other := places[random.IntN(len(places))], places[random.IntN(len(places))]
	switch random.IntN(3) {
	case 0:
		at.del()
	case 1:
		if fmt.Sprintf("%T", at.get()) == fmt.Sprintf("%T", other.get()) {
			var clone any
			if text, err := json.Marshal(other.get()); err == nil && json.Unmarshal(text, &clone) == nil {
				at.set(clone)
			}
		}
	case 2:
		switch v := at.get().(type) {
		case float64:
			at.set(float64(random.IntN(4)))
		case bool:
			at.set(!v)
		case string:
			at.set("")
		case []any:
			at.set([]any{})
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, data := range recorded(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { judge(t, data) })
}
