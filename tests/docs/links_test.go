// Package docs tests that the targets of links and names in the documentation exist.
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

// pages returns all pages of the repository by path.
func pages(t *testing.T) map[string]page {
	t.Helper()
	all := map[string]page{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "bin" || d.Name() == "testdata" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".")): // .git, or caches
			return fs.SkipDir
		case filepath.Ext(path) != ".md" || d.IsDir():
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all[name] = parse(string(raw))
		return err
	})
	if err != nil {
		t.Fatal(err)
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

func TestLinksAreReadAsGitHubReadsThem(t *testing.T) {
	p := parse("# Why `-P`, and why not?\n## A_b  c\n## Same\n## Same\n<a id=\"x\"></a>\n" +
		"[a](b.md#c) ![p](i.png \"title\") `[no](link)`\n```\n[no](link)\n# no heading\n```\n## With a [link](t.md)\n")
	if want := []string{"b.md#c", "i.png", "t.md"}; !slices.Equal(p.links, want) {
		t.Errorf("links: got %q, want %q", p.links, want)
	}
	var got []string
	for anchor := range p.anchors {
		got = append(got, anchor)
	}
	slices.Sort(got)
	if want := []string{"a_b--c", "same", "same-1", "why--p-and-why-not", "with-a-link", "x"}; !slices.Equal(got, want) {
		t.Errorf("anchors: got %q, want %q", got, want)
	}
	all := map[string]page{"README.md": p, "docs/reference.md": p}
	for target, want := range map[string]string{
		"#same-1": "", "#none": "docs/reference.md has no heading #none", "../README.md#x": "", "none.md": "there is no docs/none.md",
		"https://example.net/none.md": "", "mailto:a@example.net": "", ours + "README.md#x": "", ours + "docs/none.md": "there is no docs/none.md",
	} {
		if got := broken(all, "docs/reference.md", target); got != want {
			t.Errorf("%s: got %q, want %q", target, got, want)
		}
	}
}
