// Package house tests which package may import which: the floors of the house, and its walls.
package house

import (
	"errors"
	"go/build"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ipwitness/ipwitness/"

// floors are the packages of the product, from top to bottom. A package imports only packages of lower
// floors. A name may be a pattern (path.Match) for all packages that have no line of their own.
var floors = []string{
	"cmd/ipwitness cmd/ipwitness-agent",
	"cmd/ipwitness/top",
	"cmd/ipwitness/show cmd/ipwitness/forward",
	"cmd/cli",

	"aggregator",
	"aggregator/fleet",
	"aggregator/api",
	"aggregator/live",
	"aggregator/export aggregator/casefile aggregator/web aggregator/report aggregator/stream aggregator/judge",
	"aggregator/journal aggregator/facts aggregator/incident",
	"aggregator/audit aggregator/explain aggregator/kube",
	"aggregator/verdict aggregator/access aggregator/apijson aggregator/episode aggregator/index",

	"agent agent/capture",
	"agent/allocations agent/report agent/workload agent/wire",
	"agent/kernel",
	"agent/rtnetlink agent/table",

	"ipam/registry",
	"ipam/*", // the IPAMs, which do not know each other
	"ipam/bolt",
	"ipam proto/form secure",
	"ipam/advice",

	"bpf proto/ipwitness/v1",
}

// A wall says which packages may import some packages, in the product.
type wall struct {
	packages string // and those below them
	only     string // the importers, and the packages below them
}

var walls = []wall{
	{"github.com/ipwitness/ipwitness/agent", "agent cmd"},
	{"github.com/ipwitness/ipwitness/aggregator", "aggregator cmd"},
	{"github.com/ipwitness/ipwitness/bpf github.com/cilium/ebpf github.com/vishvananda/netlink github.com/vishvananda/netns", "agent bpf"},
	{"github.com/nats-io", "aggregator/stream"},
	{"github.com/cockroachdb/pebble", "aggregator/journal"},
	{"github.com/ipwitness/ipwitness/ipam/registry", "agent aggregator/explain aggregator/facts aggregator/kube cmd"},
	// Package show uses JSONPath, which talks to nobody.
	{"k8s.io/api k8s.io/apimachinery k8s.io/client-go", "aggregator/kube cmd/ipwitness/forward cmd/ipwitness/show"},
	{"charm.land", "cmd/ipwitness/top"},
	{"github.com/gopacket/gopacket", "agent/capture"},
	// Package show measures texts with x/ansi.
	{"github.com/charmbracelet", "cmd/ipwitness/show cmd/ipwitness/top"},
}

// pure are the packages that only compute, with all that each may import besides lower floors. They make
// no text (package explain excepted), do no I/O, and take the time as an argument (forbidigo in .golangci.yml).
var pure = map[string]string{
	"aggregator/verdict": "cmp errors crypto/sha256 encoding/base32 encoding/binary encoding/hex encoding/json iter maps math math/bits net/netip path slices strconv strings time",
	"aggregator/audit":   "cmp maps net/netip slices strings time",
	"aggregator/explain": "cmp embed fmt maps net/netip slices strconv strings time",
}

// imports returns what each package of the product imports, without its tests. It reads the files itself,
// and does not ask go list, so that go test knows when its cached result is out of date.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, dir := range []string{"agent", "aggregator", "bpf", "cmd", "ipam", "proto", "secure"} {
		if err := filepath.WalkDir("../../"+dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if d.Name() == "testdata" || d.Name() == "node_modules" {
				return fs.SkipDir
			}
			p, err := build.ImportDir(path, 0)
			if _, none := errors.AsType[*build.NoGoError](err); none || err == nil && len(p.GoFiles) == 0 {
				return nil
			}
			all[strings.TrimPrefix(filepath.ToSlash(path), "../../")] = p.Imports
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// below reports whether a package is one of a list of packages, or below one of them.
func below(name, list string) bool {
	return slices.ContainsFunc(strings.Fields(list), func(of string) bool { return name == of || strings.HasPrefix(name, of+"/") })
}

func TestImportsPointDown(t *testing.T) {
	all := imports(t)
	floor, patterns := map[string]int{}, map[string]int{}
	for i, names := range floors {
		for name := range strings.FieldsSeq(names) {
			if strings.Contains(name, "*") {
				patterns[name] = i
				continue
			}
			floor[name] = i
			if _, exists := all[name]; !exists {
				t.Errorf("floors has the package %s, which does not exist: remove it", name)
			}
		}
	}
	for name := range all {
		for pattern, i := range patterns {
			if _, ok := floor[name]; !ok {
				if match, _ := path.Match(pattern, name); match {
					floor[name] = i
				}
			}
		}
		if _, ok := floor[name]; !ok {
			t.Errorf("the package %s is on no floor: add it to floors", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, imported := range all[name] {
			to, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if strings.HasPrefix(to, "tests/") {
				t.Errorf("%s imports %s, which is for tests", name, to)
			} else if floor[to] <= floor[name] {
				t.Errorf("%s imports %s, which is not on a lower floor", name, to)
			}
		}
	}
}

func TestWalls(t *testing.T) {
	all := imports(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, imported := range all[name] {
			if imported == "log" || imported == "os/exec" {
				t.Errorf("%s imports %s: log with log/slog, and ask the kernel instead of running commands", name, imported)
			}
			for _, w := range walls {
				if below(imported, w.packages) && !below(name, w.only) {
					t.Errorf("%s imports %s, which only these may: %s", name, imported, w.only)
				}
			}
			allowed, thinks := pure[name]
			if thinks && !strings.HasPrefix(imported, module) && !slices.Contains(strings.Fields(allowed), imported) {
				t.Errorf("%s imports %s: it only computes, from values", name, imported)
			}
		}
	}
}
