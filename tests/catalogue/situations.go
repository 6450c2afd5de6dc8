package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const header = "<!-- Made by make generate from the texts of the tests: do not edit. -->\n\n"

const intro = header + `# Situations

What is a conflict, what only looks like one, and what ipwitness says about each. The page of a situation has the output of ` + "`ipwitness explain`" + ` in the test that proves it. The test builds the situation from network namespaces, real CNI plugins and real frames, or in a real Kubernetes cluster, and fails if the verdict differs in its rule, state, scope, owners, evidence or cause. In the outputs, values that differ between runs are replaced by fixed ones: times, ages, numbers of frames, and the inodes, MACs, ids and names that the kernel, a plugin or Kubernetes chose. [verdicts.md](verdicts.md) says how ipwitness judges.
`

// part is a table of the index: the rows whose ids begin with a letter.
type part struct {
	letter byte
	title  string
}

var parts = []part{{'T', "True conflicts"}, {'L', "Look-alikes: never an alert"}}

// situations adds the index and the pages of the rows.
func (c *catalogue) situations() {
	for i, r := range rows {
		c.pages[filepath.Join(pagesDir, r.id+".md")] = c.situation(i)
	}
	c.pages[index] = c.index()
}

// index returns the text of the index.
func (c *catalogue) index() string {
	var b strings.Builder
	b.WriteString(intro)
	for _, part := range parts {
		fmt.Fprintf(&b, "\n## %s\n\n| | Situation | Verdict | Rule |\n|---|---|---|---|\n", part.title)
		for _, r := range rows {
			if r.id[0] == part.letter {
				fmt.Fprintf(&b, "| [%s](situations/%[1]s.md) | %s | %s | %s |\n", r.id, r.situation, c.property(r, "", "verdict"), c.property(r, "`", "rule"))
			}
		}
	}
	return b.String()
}

// property returns a value of the texts of a row, quoted, without repetition.
func (c *catalogue) property(r row, quote, name string) string {
	var out []string
	for _, s := range r.shown {
		if w := quote + c.texts[s.text].Values[name] + quote; !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return strings.Join(out, "; ")
}

// situation returns the text of the page of a row.
func (c *catalogue) situation(i int) string {
	r := rows[i]
	var b strings.Builder
	fmt.Fprintf(&b, "%s# Situation %s\n\n", header, r.id)
	if i > 0 {
		fmt.Fprintf(&b, "[← %s](%[1]s.md) · ", rows[i-1].id)
	}
	b.WriteString("[all situations](../situations.md)")
	if i+1 < len(rows) {
		fmt.Fprintf(&b, " · [%s →](%[1]s.md)", rows[i+1].id)
	}
	fmt.Fprintf(&b, "\n\n%s\n", r.situation)
	for _, s := range r.shown {
		t := c.texts[s.text]
		what := s.what
		if what != "" {
			what += " "
		}
		fmt.Fprintf(&b, "\n%sVerdict: **%s**, by rule `%s`. Proven by %s.\n\n```\n$ %s\n%s```\n", what, t.Values["verdict"], t.Values["rule"], c.proof(t.Values["test"], "../../"), t.Values["command"], t.Text)
	}
	if len(r.pure)+len(r.devices) > 0 {
		b.WriteString("\n## Variants with other devices\n\nNot every kernel has these devices. The verdict is tested without a kernel, with real devices by `make test-kernels`, which boots Linux 6.1 and 6.12, or in both ways.\n\n")
		for _, p := range r.pure {
			fmt.Fprintf(&b, "- Without a kernel: %s; %s.\n", p.what, c.proof(p.test, "../../"))
		}
		for _, test := range r.devices {
			fmt.Fprintf(&b, "- With real devices: %s.\n", c.proof(test, "../../"))
		}
	}
	return b.String()
}

// proof names a test and links its file; up leads from the page to the root of the repository.
func (c *catalogue) proof(test, up string) string {
	return fmt.Sprintf("`%s` ([%s](%s%s))", test, c.tests[test], up, c.tests[test])
}
