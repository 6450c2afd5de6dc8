package docs

import (
	"regexp"
	"strings"
	"testing"
)

// measured matches the row of a part of make bench.
var measured = regexp.MustCompile("(?m)^\\| `(?:make )?([a-z]+)`(?: |:)")

func TestPartsOfMeasurementsExist(t *testing.T) {
	parts, makefile := read(t, "tests/bench/main.go"), read(t, "Makefile")
	rows := measured.FindAllStringSubmatch(read(t, "docs/sizing.md"), -1)
	for _, m := range rows {
		if !strings.Contains(parts, `{"`+m[1]+`", `) && !strings.Contains(makefile, "\n"+m[1]+":") {
			t.Errorf("docs/sizing.md has measurements of %s, which is no part of make bench", m[1])
		}
	}
	if len(rows) < 15 {
		t.Errorf("got %d parts, want those of docs/sizing.md", len(rows))
	}
}
