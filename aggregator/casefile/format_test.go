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

// TestFormat compares the fields of a file with testdata/format.txt. If you change the fields,
// raise Format if a program for the previous format would misread new files.
func TestFormat(t *testing.T) {
	var lines []string
	for of, fields := range structs {
		for _, f := range fields {
			line := fmt.Sprintf("%s.%s %s", of.Name(), f.name, of.FieldByIndex(f.index).Type)
			if f.required {
				line += ", required"
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	got := fmt.Sprintf("Format %d\n%s\n", Format, strings.Join(lines, "\n"))
	golden.Compare(t, "testdata/format.txt", got, "raise Format if programs would misread the files of each other, and run this test with -update")
}

func TestEachFieldHasItsForm(t *testing.T) {
	missing := maps.Clone(required)
	for of := range structs {
		if of == reflect.TypeFor[File]() {
			continue
		}
		for _, f := range reflect.VisibleFields(of) {
			owner := of
			if len(f.Index) > 1 {
				owner = of.FieldByIndex(f.Index[:len(f.Index)-1]).Type
			}
			if owner.Kind() != reflect.Struct {
				continue // part of an embedded reference
			}
			delete(missing, owner.Name()+"."+nameOf(f.Name))
			kind := f.Type
			if kind.Kind() == reflect.Slice {
				kind = kind.Elem()
			}
			if kind.Kind() == reflect.Uint8 && kind.PkgPath() != "" && leaves[kind].text == nil {
				t.Errorf("%s.%s has no words: add them to leaves", owner.Name(), f.Name)
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("no case has the required fields %v", slices.Sorted(maps.Keys(missing)))
	}
}
