package house

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.String("update", "", "write the sum of this group of generated files: only make generate does")

// sums has a line for each group: its name, and one hash of its sources and results. One hash, because
// a merge of two changes that each have the right results does not have them.
const sums = "../../generated.sums"

// generated are the groups of files that programs other than Go generate: patterns (filepath.Glob, and
// all files below a directory) of the sources and the results.
var generated = map[string]string{
	"bpf":   "bpf/*.[ch] bpf/*.o bpf/*_bpfel.go",
	"proto": "buf.gen.yaml buf.yaml tools/buf/go.mod tools/protoc/go.mod tests/openapi proto/ipwitness",
	"web":   "proto/ipwitness/v1/openapi.json aggregator/web/ui aggregator/web/dist",
}

// options are the lines of other files that decide about the results of a group.
var options = map[string]*regexp.Regexp{
	"Makefile":        regexp.MustCompile(`(?m)^export BPF2GO_.*$`),
	"bpf/generate.go": regexp.MustCompile(`(?m)^//go:generate.*$`),
	"go.mod":          regexp.MustCompile(`(?m)^\s*github.com/cilium/ebpf .*$`),
}

func sum(t *testing.T, group string) string {
	t.Helper()
	read := func(name string) []byte {
		data, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	hash := sha256.New()
	for pattern := range strings.FieldsSeq(generated[group]) {
		paths, err := filepath.Glob("../../" + pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: no file, %v", pattern, err)
		}
		for _, path := range paths {
			if err := filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
				switch {
				case err != nil:
					return err
				case d.Name() == "node_modules": // these two are in aggregator/web/ui/.gitignore
					return fs.SkipDir
				case d.IsDir() || d.Name() == "types.ts":
					return nil
				}
				name := strings.TrimPrefix(filepath.ToSlash(path), "../../")
				_, _ = fmt.Fprintf(hash, "%s %x\n", name, sha256.Sum256(read(name)))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if group == "bpf" {
		for _, name := range []string{"Makefile", "bpf/generate.go", "go.mod"} {
			lines := options[name].FindAll(read(name), -1)
			if len(lines) == 0 {
				t.Fatalf("%s has no line %s", name, options[name])
			}
			_, _ = fmt.Fprintf(hash, "%s %q\n", name, lines)
		}
	}
	return fmt.Sprintf("%s %x", group, hash.Sum(nil))
}

// TestGeneratedFilesAreUpToDate compares the sums of the groups. make test-all generates the files again.
func TestGeneratedFilesAreUpToDate(t *testing.T) {
	data, err := os.ReadFile(sums)
	if err != nil && *update == "" {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for group := range generated {
		line := sum(t, group)
		switch {
		case group == *update:
			lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" || strings.HasPrefix(l, group+" ") })
			lines = append(lines, line)
			slices.Sort(lines)
			if err := os.WriteFile(sums, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		case *update == "" && !slices.Contains(lines, line):
			t.Errorf("a source of generated files has changed, or a file was edited: run make generate-%s", group)
		}
	}
}
