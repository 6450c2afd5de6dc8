package top

import (
	"slices"
	"strings"
	"testing"
)

func TestATextThatDoesNotFitLosesItsMiddle(t *testing.T) {
	tests := map[string]struct {
		text    string
		columns int
		want    string
	}{
		"fits":                 {"web-1", 5, "web-1"},
		"names of pods":        {"default/web-7d9f8b6c5d-abcde", 15, "default…d-abcde"},
		"wide characters":      {"日本語のポッド", 8, "日本…ド"},
		"combining characters": {"e\u0301e\u0301e\u0301e\u0301e\u0301", 3, "e\u0301…e\u0301"},
		"one column":           {"web", 1, "…"},
		"no room":              {"web", 0, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := fit(test.text, test.columns)
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if width(got) > test.columns {
				t.Errorf("got %d columns, want at most %d", width(got), test.columns)
			}
			if padded := pad(test.text, test.columns); width(padded) != test.columns {
				t.Errorf("pad: got %q with %d columns, want %d", padded, width(padded), test.columns)
			}
		})
	}
}

func TestALineIsWrappedBelowItsLastColumn(t *testing.T) {
	tests := map[string]struct {
		line string
		want []string
	}{
		"prose":              {"the kernels were asked again and still have it", []string{"the kernels were", "asked again and", "still have it"}},
		"a bullet":           {"  - web-1 got the address at noon", []string{"  - web-1 got the", "    address at", "    noon"}},
		"a number":           {"2. delete the second pod of both", []string{"2. delete the", "   second pod of", "   both"}},
		"a field":            {"  where  on node-1 of the cluster", []string{"  where  on node-1", "         of the", "         cluster"}},
		"a late column":      {"  a long first cell  and more", []string{"  a long first", "  cell  and more"}},
		"a long word":        {"see https://example.com/a/very/long/path", []string{"see", "https://example.com", "/a/very/long/path"}},
		"a space at the end": {"exactly eighteen c and more", []string{"exactly eighteen c", "and more"}},
		"wide characters":    {"日本語 日本語 日本語 日本語", []string{"日本語 日本語", "日本語 日本語"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			columns := 18
			if name == "a long word" {
				columns = 19
			}
			got := wrap(test.line, columns)
			if !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestTextIsTypedAndRemovedByCharacter(t *testing.T) {
	e := &editor{}
	for _, s := range []string{"a", " ", "日", "e\u0301", "\n\x1b[2J"} {
		e.insert(s)
	}
	if want := "a 日e\u0301 \ufffd[2J"; e.text != want {
		t.Errorf("got %q, want %q", e.text, want)
	}
	for _, step := range []struct{ key, want string }{
		{"ctrl+w", "a 日e\u0301 "}, {"backspace", "a 日e\u0301"}, {"backspace", "a 日"}, {"backspace", "a "}, {"ctrl+u", ""}, {"backspace", ""},
	} {
		if e.key(step.key); e.text != step.want {
			t.Errorf("after %s: got %q, want %q", step.key, e.text, step.want)
		}
	}
	e.insert(strings.Repeat("x", 1000))
	if width(e.text) != mostTyped {
		t.Errorf("got %d columns, want %d", width(e.text), mostTyped)
	}
}
