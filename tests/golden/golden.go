// Package golden compares the output of tests with files.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "update the golden files")

// Updating reports whether the flag -update is set.
func Updating() bool { return *update }

// Compare fails the test if got differs from the content of the file. With -update it writes the
// file. differs explains what to do about a difference.
func Compare(t testing.TB, file, got, differs string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: %s", err, differs)
	}
	if got != string(want) {
		t.Errorf("%s differs: %s; got\n%s\nwant\n%s", file, differs, got, want)
	}
}
