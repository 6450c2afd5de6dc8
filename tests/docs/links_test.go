// Package docs tests that the targets of links in the documentation and the tests that it names exist, and
// that tests run its commands.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// ours is the published location of the documentation. Links to it are checked as links to local
// files.
const ours = "https://github.com/ipwitness/ipwitness/blob/main/"

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)[^)]*\)`)
	heading = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	named   = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	code    = regexp.MustCompile("`[^`]*`")
	url     = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
)

// page is a Markdown file.
type page struct {
	links   []string
	anchors map[string]bool
}

// parse parses a page by GitHub's rules.
func parse(text string) page {
	p := page{anchors: map[string]bool{}}
	fence := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		if opens := strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~"); opens && fence == "" {
			fence = trimmed[:3]
			continue
		}
		if fence != "" {
			if trimmed == fence {
				fence = ""
			}
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			p.anchor(m[1])
		}
		for _, m := range named.FindAllStringSubmatch(line, -1) {
			p.anchors[m[1]] = true
		}
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(line, "`"), -1) {
			p.links = append(p.links, m[1])
		}
	}
	return p
}

// anchor adds the anchor of a heading: its letters and digits, with dashes for spaces, and a number
// if the anchor already exists.
func (p page) anchor(title string) {
	title = link.ReplaceAllString(title, "]")
	var b strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	slug := b.String()
	for n := 1; p.anchors[slug]; n++ {
		slug = fmt.Sprint(b.String(), "-", n)
	}
	p.anchors[slug] = true
}

// files returns the paths of the files of the repository whose names end with suffix.
func files(t *testing.T, suffix string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "bin" || d.Name() == "testdata" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".")): // .git, or caches
			return fs.SkipDir
		case !strings.HasSuffix(path, suffix) || d.IsDir():
			return nil
		}
		name, err := filepath.Rel(root, path)
		all = append(all, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// pages returns all pages of the repository by path.
func pages(t *testing.T) map[string]page {
	t.Helper()
	all := map[string]page{}
	for _, name := range files(t, ".md") {
		all[name] = parse(read(t, name))
	}
	if len(all) < 20 {
		t.Fatalf("got %d pages, want those of the repository", len(all))
	}
	return all
}

// broken returns the reason why a link of a page is broken. It returns an empty string if the link
// works or leads to another site.
func broken(all map[string]page, name, target string) string {
	if rest, is := strings.CutPrefix(target, ours); is {
		name, target = "README.md", rest
	}
	if url.MatchString(target) {
		return ""
	}
	path, anchor, _ := strings.Cut(target, "#")
	if path == "" {
		path = name
	} else {
		path = filepath.Join(filepath.Dir(name), path)
	}
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		return "there is no " + path
	}
	if p, is := all[path]; anchor != "" && (!is || !p.anchors[anchor]) {
		return path + " has no heading #" + anchor
	}
	return ""
}

func TestLinksAreNotBroken(t *testing.T) {
	all := pages(t)
	links := 0
	for name, p := range all {
		for _, target := range p.links {
			links++
			if why := broken(all, name, target); why != "" {
				t.Errorf("%s links to %s: %s", name, target, why)
			}
		}
	}
	if links < 50 {
		t.Errorf("got %d links, want all of the documentation: does the parser find them?", links)
	}
}

// The index must link to every page, and so must the index of each directory of pages.
func TestTheIndexHasEveryPage(t *testing.T) {
	all := pages(t)
	index := all["docs/README.md"]
	for name := range all {
		if file, is := strings.CutPrefix(name, "docs/"); is && !strings.Contains(file, "/") && file != "README.md" && !slices.Contains(index.links, file) {
			t.Errorf("docs/README.md has no link to %s", file)
		}
	}
	for dir, list := range map[string]string{"runbooks": "docs/runbooks/README.md", "situations": "docs/situations.md"} {
		listed := 0
		for name := range all {
			if filepath.Dir(name) != "docs/"+dir || name == list {
				continue
			}
			listed++
			if target, err := filepath.Rel(filepath.Dir(list), name); err != nil || !slices.Contains(all[list].links, target) {
				t.Errorf("%s has no link to %s (%v)", list, name, err)
			}
		}
		if listed < 10 {
			t.Errorf("got %d pages in docs/%s, want all", listed, dir)
		}
	}
	for _, other := range []string{"runbooks/README.md", "../README.md", "../CONTRIBUTING.md"} {
		if !slices.Contains(index.links, other) {
			t.Errorf("docs/README.md has no link to %s", other)
		}
	}
}
