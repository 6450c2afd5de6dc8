package situations

import (
	"os"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// cases is the path of the cases, relative to the directory of the texts.
const cases = "../../../aggregator/verdict/testdata/cases"

// writeCase writes the case of a row once its judgement is that of the row. It leaves an existing
// file as it is if the judgement of the case in it is that of the row, too.
func writeCase(t testing.TB, file, want string, ask func() Output) {
	t.Helper()
	want, err := row.OfCase(want)
	if err != nil {
		t.Fatal(err)
	}
	judged := func(data []byte) bool {
		f, err := casefile.Decode(data)
		if err != nil {
			return false
		}
		got, err := row.OfCase(rowOf(api.Judge(f)).Text())
		return err == nil && got == want
	}
	if old, err := os.ReadFile(file); err == nil && judged(old) {
		return
	}
	for range asks {
		data := []byte(ask().Case())
		if !judged(data) {
			continue // it has changed meanwhile
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("case of %s: its judgement differs from the one of the row", file)
}
