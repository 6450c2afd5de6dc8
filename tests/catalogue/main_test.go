package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPagesAreUpToDate(t *testing.T) {
	t.Chdir("../..")
	pages, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range pages {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is out of date: run make generate", path)
		}
	}
	all, err := filepath.Glob(filepath.Join(pagesDir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if _, ok := pages[path]; !ok {
			t.Errorf("%s is of no situation: run make generate; there are %v", path, slices.Sorted(maps.Keys(pages)))
		}
	}
}
