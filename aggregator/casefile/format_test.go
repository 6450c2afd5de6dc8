package casefile

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/golden"
)

// structs adds the struct types that values of a type contain, by name.
func structs(all map[string]reflect.Type, t reflect.Type) map[string]reflect.Type {
	switch {
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice, t.Kind() == reflect.Array:
		return structs(all, t.Elem())
	case t.Kind() != reflect.Struct || t.PkgPath() == "net/netip" || all[t.String()] != nil:
		return all
	}
	all[t.String()] = t
	for field := range t.Fields() {
		structs(all, field.Type)
	}
	return all
}

// TestFormat compares the fields of a file with testdata/format.txt. If you change the fields,
// raise Format if a program for the previous format would misread new files.
func TestFormat(t *testing.T) {
	var lines []string
	left := maps.Clone(required)
	for name, of := range structs(map[string]reflect.Type{}, reflect.TypeFor[File]()) {
		for f := range of.Fields() {
			line := fmt.Sprintf("%s.%s %s", name, f.Name, f.Type)
			if slices.Contains(strings.Fields(required[name]), f.Name) {
				line += ", required"
				left[name] = strings.TrimSpace(strings.Replace(left[name]+" ", f.Name+" ", "", 1))
			}
			lines = append(lines, line)
		}
	}
	for name, fields := range left {
		if fields != "" {
			t.Errorf("no case has the required fields %s of %s", fields, name)
		}
	}
	slices.Sort(lines)
	got := fmt.Sprintf("Format %d\n%s\n", Format, strings.Join(lines, "\n"))
	golden.Compare(t, "testdata/format.txt", got, "raise Format if programs would misread the files of each other, and run this test with -update")
}
