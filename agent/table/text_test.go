package table

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
	if got := Printable("eth\xff0"); got != "eth\uFFFD0" {
		t.Errorf("printable form: got %q", got)
	}
}

func TestSeveralPokesAreOneUntilItIsTaken(t *testing.T) {
	ch := make(chan struct{}, 1)
	for range 3 {
		Poke(ch)
	}
	<-ch
	if len(ch) != 0 {
		t.Errorf("tokens after one was taken: got %d, want none", len(ch))
	}
	Poke(ch)
	if len(ch) != 1 {
		t.Errorf("tokens after the next poke: got %d, want one", len(ch))
	}
}
