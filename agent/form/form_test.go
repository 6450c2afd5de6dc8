package form

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTextOfAnErrorIsShortAndPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                          "plain",
		"two\nlines":                     "two\nlines",
		"name \xff":                      "name \uFFFD",
		strings.Repeat("x", MaxLength):   strings.Repeat("x", MaxLength),
		strings.Repeat("y", 2*MaxLength): strings.Repeat("y", MaxLength),
		strings.Repeat("z", MaxLength-1) + "\u00e9": strings.Repeat("z", MaxLength-1) + "\uFFFD", // cut within a character
	} {
		if got := Short(errors.New(text)); got != want || !utf8.ValidString(got) {
			t.Errorf("short form of %.20q: got %q, want %q", text, got, want)
		}
	}
	if got := OneLine(errors.New("two\nlines\nmore")); got != "two; lines; more" {
		t.Errorf("one line: got %q", got)
	}
	if got := Printable("eth\xff0"); got != "eth\uFFFD0" {
		t.Errorf("printable form: got %q", got)
	}
}

func TestNamesOfNetworksAreThoseOfCNI(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "z": true, "A": true, "Z": true, "0": true, "9": true, "kind-net_1.x": true, strings.Repeat("a", 253): true, "a-": true,
		"": false, "-a": false, ".a": false, "_a": false, "a b": false, "a/b": false, "\u00e9": false, "a\u00e9": false, "`": false, "{": false, "@": false, "[": false, "/": false, ":": false,
		strings.Repeat("a", 254): false,
	} {
		if got := IsNetworkName(name); got != want {
			t.Errorf("name %.20q: got %v, want %v", name, got, want)
		}
	}
}
