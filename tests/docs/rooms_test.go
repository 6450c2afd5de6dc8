package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rooms returns the directories of packages in agent, aggregator and bpf.
func rooms(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"agent/*", "aggregator/*", "bpf"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if found, _ := filepath.Glob(path + "/*.go"); len(found) > 0 {
				name, err := filepath.Rel(root, path)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, name)
			}
		}
	}
	if len(all) < 25 {
		t.Fatalf("got %d rooms, want those of agent and aggregator", len(all))
	}
	return all
}

// unnamed are rooms that the diagram leaves out, because no record of the path of a frame passes them.
var unnamed = []string{
	"agent/doctor", "agent/files", "agent/form", "agent/wake",
	"aggregator/acknowledge", "aggregator/apijson", "aggregator/casefile", "aggregator/coverage", "aggregator/episode", "aggregator/form", "aggregator/metrics",
}

func TestTheDiagramOfTheArchitectureHasTheRooms(t *testing.T) {
	_, diagram, _ := strings.Cut(read(t, "docs/architecture.md"), "```mermaid\nflowchart")
	diagram, _, _ = strings.Cut(diagram, "\n```")
	_, aggregator, _ := strings.Cut(diagram, "subgraph aggregator")
	aggregator, _, _ = strings.Cut(aggregator, "\n  end")
	// A node of the diagram begins with its room in bold type; more rooms may follow in its text.
	node := regexp.MustCompile(`\["<b>([a-z/]+)</b>([^"]*)"\]`)
	drawn := map[string]bool{}
	for _, m := range node.FindAllStringSubmatch(diagram, -1) {
		name, parent := m[1], ""
		if strings.Contains(aggregator, m[0]) {
			parent = "aggregator/"
		}
		if _, err := os.Stat(filepath.Join(root, parent+name)); err != nil {
			t.Errorf("the diagram has the room %s%s, which does not exist", parent, name)
		}
		drawn[parent+name] = true
		for _, word := range regexp.MustCompile(`[a-z]+`).FindAllString(m[2], -1) {
			drawn["aggregator/"+word], drawn["agent/"+word] = true, true
		}
	}
	for _, name := range rooms(t) {
		if !drawn[name] && !slices.Contains(unnamed, name) {
			t.Errorf("the diagram of docs/architecture.md lacks the room %s", name)
		}
		if drawn[name] && slices.Contains(unnamed, name) {
			t.Errorf("the diagram has the room %s: it is not left out any more", name)
		}
	}
}

func TestTheTableOfRoomsIsComplete(t *testing.T) {
	page := read(t, "CONTRIBUTING.md")
	listed := regexp.MustCompile("`((?:agent|aggregator|bpf)[a-z/]*?)/?`")
	names := map[string]bool{}
	for _, m := range listed.FindAllStringSubmatch(page, -1) {
		names[m[1]] = true
	}
	for _, name := range rooms(t) {
		if !names[name] {
			t.Errorf("the table of rooms in CONTRIBUTING.md lacks %s", name)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z/]+)/`").FindAllStringSubmatch(page, -1) {
		if found, _ := filepath.Glob(filepath.Join(root, m[1], "*")); len(found) == 0 {
			t.Errorf("CONTRIBUTING.md has the room %s, which does not exist", m[1])
		}
	}
}
