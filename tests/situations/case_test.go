package situations

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/casefile"
)

// TestRecordedCaseHasNoVolatileValues changes a recorded case, first as another run would and then as
// another verdict would.
func TestRecordedCaseHasNoVolatileValues(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("../testdata/situations", cases, "T1.json"))
	if err != nil {
		t.Fatal(err)
	}
	stable := func(text string) string {
		t.Helper()
		f, err := casefile.Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if f, err = stableCase(f); err != nil {
			t.Fatal(err)
		}
		data, err := casefile.Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		return lasting(string(data))
	}
	changed := func(pairs ...string) string {
		t.Helper()
		for i := 0; i < len(pairs); i += 2 {
			if !strings.Contains(string(raw), pairs[i]) {
				t.Fatalf("the case has no %s", pairs[i])
			}
		}
		return strings.NewReplacer(pairs...).Replace(string(raw))
	}
	want := stable(string(raw))
	if want != lasting(string(raw)) {
		t.Errorf("got\n%s\nwant the recorded case:\n%s", want, raw)
	}
	for name, text := range map[string]string{
		"inodes":     changed("4026532002", "4026533107", "4026532003", "4026533001"),
		"MACs":       changed("5e:00:00:00:00:01", "a6:9f:e1:00:00:01"),
		"interfaces": changed("veth00000001", "vethfedcba98"),
		"a boot":     changed("b0070000-0000-4000-8000-000000000001", "6f1cbd62-9e5c-4c0c-9f4e-0c9ad0b36f0d"),
		"a count":    changed(`"count": 2`, `"count": 7`),
		"the day":    changed("2026-01-02T", "2027-03-04T"),
	} {
		if got := stable(text); got != want {
			t.Errorf("other %s: got\n%s\nwant\n%s", name, got, want)
		}
	}
	for name, text := range map[string]string{
		"evidence": changed("ASSIGNED", "USED"),
		"a name":   changed("old1", "old2"),
		"a pool":   changed(`"state": "KNOWN"`, `"state": "STALE"`),
	} {
		if got := stable(text); got == want {
			t.Errorf("different %s: got an equal case", name)
		}
	}
}
