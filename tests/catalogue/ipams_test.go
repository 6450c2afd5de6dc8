package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

func TestPagesHaveTheTextsOfTheIPAMs(t *testing.T) {
	t.Chdir("../..")
	texts, blocks := newIPAMTexts(registry.All), 0
	for _, pattern := range ipamPages {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("got %d files of %s (%v), want some", len(paths), pattern, err)
		}
		for _, path := range paths {
			page, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			blocks += len(marked.FindAllString(string(page), -1))
			text, err := texts.fill(string(page))
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if text != string(page) {
				t.Errorf("%s is out of date: run 'make generate'", path)
			}
			if begins := strings.Count(string(page), "<!-- ipam: "); begins != len(marked.FindAllString(string(page), -1)) {
				t.Errorf("%s: got %d markers, and not as many ends", path, begins)
			}
		}
	}
	if err := texts.unused(); err != nil {
		t.Error(err)
	}
	if blocks < 40 {
		t.Errorf("got %d texts, want those of the pages: are they read?", blocks)
	}
}

func TestTextsOfIPAMsAreFilledIn(t *testing.T) {
	one := &ipam.IPAM{Name: "one", Title: "the One", Docs: ipam.Docs{Runbooks: "# T\n\n## a: fix\n\nfirst [l](../../docs/runbooks/x.md)\n\n```\ncode\n```\n\n## a: rest\n\nsecond\n"}}
	two := &ipam.IPAM{Name: "two", Title: "Two", Docs: ipam.Docs{Runbooks: "## a: fix\n\nof [two](../../docs/y.md)\n"}}
	texts := newIPAMTexts([]*ipam.IPAM{one, two})
	page := "1. do\n   <!-- ipam: a: fix -->\n   old\n   <!-- end of ipam -->\nnames: <!-- ipam: names -->none<!-- end of ipam -->.\n"
	want := "1. do\n   <!-- ipam: a: fix -->\n   - One: first [l](x.md)\n\n     ```\n     code\n     ```\n   - Two: of [two](../y.md)\n   <!-- end of ipam -->\n" +
		"names: <!-- ipam: names -->`one`, `two`<!-- end of ipam -->.\n"
	got, err := texts.fill(page)
	if err != nil || got != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
	if again, err := texts.fill(got); err != nil || again != want {
		t.Errorf("filled twice: got %q (%v), want %q", again, err, want)
	}
	if err := texts.unused(); err == nil || !strings.Contains(err.Error(), `["a: rest"]`) {
		t.Errorf("got %v, want an error about the paragraph that is in no page", err)
	}
	if _, err := texts.fill("<!-- ipam: a: gone -->\n<!-- end of ipam -->\n"); err == nil || !strings.Contains(err.Error(), `"a: gone"`) {
		t.Errorf("got %v, want an error about a paragraph that no IPAM has", err)
	}
}

func TestResourcesOfIPAMsAreListed(t *testing.T) {
	x, y, z := ipam.Kind{Group: "a", Resource: "x"}, ipam.Kind{Group: "a", Resource: "y"}, ipam.Kind{Group: "a", Resource: "z"}
	objects := func(all ...*ipam.Resource) func(ipam.Publisher) *ipam.Objects {
		return func(ipam.Publisher) *ipam.Objects { return &ipam.Objects{Resources: all} }
	}
	texts := newIPAMTexts([]*ipam.IPAM{
		{Title: "Files"},
		{Title: "One", Objects: objects(&ipam.Resource{Kind: x, Role: ipam.Needed, Lost: "all is lost"})},
		{Title: "Three", Objects: objects(&ipam.Resource{Kind: x, Alternative: ipam.Kind{Group: "b", Resource: "x"}, Role: ipam.Extra, Lost: "little is lost"},
			&ipam.Resource{Kind: y}, &ipam.Resource{Kind: z})},
	})
	const may = "`kubectl auth can-i list x.a -A --as=system:serviceaccount:NAMESPACE:NAME`"
	want := "- One: " + may + ".\n- Three: " + may + ", and the same for `y.a`, `z.a`. Where `a` is not served, it is `b` instead.\n"
	if got := texts.mayList(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got := texts.permissions()
	for _, row := range []string{"| One | `x.a` | all is lost; its pools are `UNREADABLE` |\n", "| Three | `x.a`, or `x.b` | little is lost |\n"} {
		if !strings.Contains(got, row) {
			t.Errorf("got %s, want the row %s", got, row)
		}
	}
}
