package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Limits for the words of a paragraph or item, and of a cell of a table.
const (
	wordsOfParagraph = 120
	wordsOfCell      = 40
)

// madePages matches the pages that a program makes from the code, or whose text is a record.
var madePages = regexp.MustCompile(`^(CHANGELOG\.md|docs/attacks\.md|docs/incidents\.md|docs/metrics\.md|docs/situations\.md|docs/situations/.*)$`)

var (
	item  = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	pipe  = regexp.MustCompile(`(^|[^\\])\|`)
	label = regexp.MustCompile(`\]\([^)]*\)`)
)

// longest returns the number of words and the beginning of the longest paragraph and of the longest cell of a
// page, without what fences contain. The target of a link is no word.
func longest(text string) (paragraph, cell string, ofParagraph, ofCell int) {
	var lines []string
	end := func() {
		all := strings.Join(lines, " ")
		if n := len(strings.Fields(all)); n > ofParagraph {
			paragraph, ofParagraph = all, n
		}
		lines = nil
	}
	fence := ""
	for line := range strings.Lines(text) {
		line = label.ReplaceAllString(strings.TrimRight(line, "\n"), "]")
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if trimmed == fence {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
			end()
			fence = trimmed[:3]
		case strings.HasPrefix(trimmed, "|"):
			end()
			for _, c := range pipe.Split(trimmed, -1) {
				if n := len(strings.Fields(c)); n > ofCell {
					cell, ofCell = strings.TrimSpace(c), n
				}
			}
		case trimmed == "", strings.HasPrefix(trimmed, "#"):
			end()
		case item.MatchString(line):
			end()
			lines = append(lines, trimmed)
		default:
			lines = append(lines, trimmed)
		}
	}
	end()
	return paragraph, cell, ofParagraph, ofCell
}

func TestParagraphsAndCellsAreShort(t *testing.T) {
	checked := 0
	for _, name := range files(t, ".md") {
		if madePages.MatchString(filepath.ToSlash(name)) {
			continue
		}
		checked++
		paragraph, cell, ofParagraph, ofCell := longest(read(t, name))
		if ofParagraph > wordsOfParagraph {
			t.Errorf("%s: a paragraph has %d words, at most %d are allowed: %.80s …", name, ofParagraph, wordsOfParagraph, paragraph)
		}
		if ofCell > wordsOfCell {
			t.Errorf("%s: a cell has %d words, at most %d are allowed: %.80s …", name, ofCell, wordsOfCell, cell)
		}
	}
	if checked < 20 {
		t.Errorf("checked %d pages, want all", checked)
	}
}

func TestLongParagraphsAndCellsAreFound(t *testing.T) {
	words := strings.Repeat("word ", 50)
	_, _, paragraph, cell := longest("# Title\n\nOne [link](../a/b.md).\n- " + words + "\n  " + words + "\n\n```\n" + strings.Repeat(words, 9) +
		"\n```\n| a | " + words + " | c |\n|---|---|---|\n| a \\| b | " + words + "two |\n")
	if paragraph != 101 || cell != 51 {
		t.Errorf("got %d and %d words, want 101 and 51", paragraph, cell)
	}
}
