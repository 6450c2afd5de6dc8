package top

import (
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
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
			got := show.Fit(test.text, test.columns)
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

func TestALineIsWrapped(t *testing.T) {
	tests := map[string]struct {
		line string
		want []string
	}{
		"prose":           {"the kernels were asked again and still have it", []string{"the kernels were", "asked again and", "still have it"}},
		"a long word":     {"see https://example.com/a/very/long/path", []string{"see", "https://example.co", "m/a/very/long/path"}},
		"wide characters": {"日本語 日本語 日本語 日本語", []string{"日本語 日本語", "日本語 日本語"}},
		"a colour":        {"\x1b[1ma line that has a colour\x1b[m", []string{"a line that has a", "colour"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := wrap(18, test.line); !slices.Equal(got, test.want) {
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
