package casefile

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
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
  "ipwitnessCase": 2,
  "ipwitnessVersion": "v9.9.9",
  "policy": {"Settle": 1000000000},
  "case": {"Address": "10.0.0.1", "Now": "2026-01-02T12:00:00Z", "Claims": [{
    "Kind": 1, "Count": 1, "Interface": {"MAC": "02:00:00:00:00:01", "Index": 2, "Namespace": {
      "Who": {"Kind": 1}, "Node": {"Name": "node1", "Epoch": "18446744073709551615", "Skew": -1500000}
    }}
  }]}
}`
	if _, err := Decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	const newer = "; use ipwitness v9.9.9, which wrote the file"
	for _, test := range []struct{ old, new, want string }{
		{good, "", "unexpected end of JSON input"},
		{good, "[]", "json: cannot unmarshal array"},
		{good, "{}", "no \"ipwitnessCase\": this is not a case file; write one with `ipwitness explain ADDRESS -o case`"},
		{`"ipwitnessCase": 2`, `"ipwitnessCase": 1`, "format 1 is not supported, only format 2 is: use ipwitness v9.9.9, which wrote the file"},
		{`"policy"`, `"politics": {}, "policy"`, `json: unknown field "politics"` + newer},
		{`"policy": {"Settle": 1000000000}`, `"policy": null`, "Policy: missing"},
		{`"Settle"`, `"Unsettle"`, `json: unknown field "Unsettle"` + newer},
		{`"Count": 1`, `"Count": 4294967296`, "json: cannot unmarshal number 4294967296"},
		{`"Claims": [`, `"Claims": [null, `, "Case.Claims[0]: missing"},
		{`"Kind": 1, "Count"`, `"Count"`, "Case.Claims[0].Kind: missing"},
		{`, "Node": {`, `, "Nodes": {`, `json: unknown field "Nodes"`},
		{`, "Node": {"Name": "node1", "Epoch": "18446744073709551615", "Skew": -1500000}`, ``, "Case.Claims[0].Interface.Namespace.Node: missing"},
		{`"Address": "10.0.0.1", `, "", "Case.Address: missing"},
		{"2026-01-02", "9026-01-02", "time 9026-01-02T12:00:00Z is out of range" + newer},
		{"02:00:00:00:00:01", "02:00:00:00:00:0", "invalid hardware address 02:00:00:00:00:0" + newer},
		{`"18446744073709551615"`, `"-1"`, "json: cannot unmarshal number -1"},
		{`"Claims"`, `"Conflicts": [{"ID": "a", "Phase": 1, "Owners": [{"MAC": "02:00:00:00:00:01"}]}], "Claims"`, "Case.Conflicts[0].Owners[0].ID: missing"},
		{`"Claims"`, `"Before": [{"Kind": "mac-cloned"}], "Claims"`, "Case.IPAM.Before[0].Spoof: missing"},
	} {
		text := strings.Replace(good, test.old, test.new, 1)
		if text == good {
			t.Fatalf("%q is not in the file", test.old)
		}
		_, err := Decode([]byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), "read case: "+test.want) {
			t.Errorf("%q: got %v, want read case: %s", test.new, err, test.want)
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

// A file of 30 MB takes no multiple of its size before it is refused.
func TestDenseFilesAreRefusedCheaply(t *testing.T) {
	for _, dense := range []string{`{}`, `null`, `""`, `[]`} {
		data := []byte(`{"ipwitnessCase": 2, "case": {"Claims": [` + strings.Repeat(dense+",", 30<<20/(len(dense)+1)) + dense + `]}}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(data)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "this is not a case file") {
			t.Errorf("%s: got %v, want a refusal", dense, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
			t.Errorf("%s: got %d bytes allocated, want none to speak of", dense, got)
		}
	}
}
