package ipam_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestTextsAreSingleLines(t *testing.T) {
	for from, want := range map[string]string{
		"a\x1b[31mb\tc\n\nd\r": "a [31mb c d", "bad \xff utf-8": "bad \uFFFD utf-8", "\u202eright to left\u200b": "right to left", "": "", "naïve": "naïve",
	} {
		if got := ipam.Plain(from); got != want {
			t.Errorf("%q: got %q, want %q", from, got, want)
		}
	}
	for _, s := range []string{strings.Repeat("é", 1000), strings.Repeat("x ", 10000), strings.Repeat("\x1b", 3000)} {
		if got := ipam.Shorten(s); len(got) > ipam.MaxMessage || !utf8.ValidString(got) {
			t.Errorf("got %q of %d bytes", got, len(got))
		}
	}
}

func TestCutTexts(t *testing.T) {
	for _, test := range []struct {
		text string
		size int
		want string
	}{
		{"abcdef", 6, "abcdef"},
		{"abcdef", 5, "ab…"},
		{"ab def", 5, "ab…"},
		{"a   ef", 5, "a…"},
		{"aédef", 5, "a…"},
		{"abcdef", 3, "…"},
		{"\x80\x80\x80\x80", 3, "…"},
	} {
		if got := ipam.Cut(test.text, test.size); got != test.want {
			t.Errorf("%q to %d bytes: got %q, want %q", test.text, test.size, got, test.want)
		}
	}
	if got := ipam.Shorten(strings.Repeat("\x1b", 4*ipam.MaxMessage) + "end"); got != "…" {
		t.Errorf("text behind many control characters: got %q, want only a mark that it is missing", got)
	}
}
