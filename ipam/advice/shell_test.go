package advice_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

// FuzzQuote runs a shell on quoted words and compares its arguments with the originals.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a", "a b", "'", "$(reboot)", "`reboot`", `\`, "-rf", "--", "~", "*", "!", "\n", "\x1b", "\u202e", "\xff", "a\uFFFDb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ContainsRune(s, 0) {
			return
		}
		word := advice.Quote(s)
		readable := advice.Printable(s) && !strings.ContainsRune(s, advice.Replaced) && !strings.HasPrefix(s, "-")
		if advice.Withheld("rm "+word) == readable {
			t.Fatalf("got %q of %q withheld: %v", word, s, readable)
		}
		out, err := exec.Command("sh", "-c", `printf '[%s]' `+word).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if readable && string(out) != "["+s+"]" {
			t.Errorf("got %s of %q, want one word", out, word)
		}
		if !readable && !advice.Printable(strings.ReplaceAll(word, "\uFFFF", "")) {
			t.Errorf("got %q, want nothing that cannot be printed", word)
		}
	})
}

func TestWordsOfAShell(t *testing.T) {
	for word, want := range map[string]struct{ quoted, argument, file string }{
		"":        {`""`, `""`, "./"},
		"a-b":     {"a-b", "a-b", "./a-b"},
		"/etc/a":  {"/etc/a", "/etc/a", "/etc/a"},
		"a=b":     {"a=b", "a=b", "./a=b"},
		"=ls":     {"'=ls'", "'=ls'", "./=ls"},
		"a b":     {"'a b'", "'a b'", "'./a b'"},
		"it's":    {`'it'\''s'`, `'it'\''s'`, `'./it'\''s'`},
		"-f":      {"'\uFFFF-f'", "-- -f", "./-f"},
		"a\tb":    {"'a\uFFFFb'", "'a\uFFFFb'", "'./a\uFFFFb'"},
		"a\uFFFD": {"'a\uFFFF'", "'a\uFFFF'", "'./a\uFFFF'"},
		"é":       {"'é'", "'é'", "'./é'"},
	} {
		if got := advice.Quote(word); got != want.quoted {
			t.Errorf("%q: got word %s, want %s", word, got, want.quoted)
		}
		if got := advice.Argument(word); got != want.argument {
			t.Errorf("%q: got argument %s, want %s", word, got, want.argument)
		}
		if got := advice.File(word); got != want.file {
			t.Errorf("%q: got file %s, want %s", word, got, want.file)
		}
	}
}

func TestTextsThatAreNotShown(t *testing.T) {
	for text, want := range map[string]struct{ printable, withheld bool }{
		"":                           {true, false},
		" ~":                         {true, false},
		"é and \uFFFD":               {true, false},
		"\xff":                       {false, true},
		"a\x7f":                      {false, true},
		"é\u202e":                    {false, true},
		"\uFFFD\xff":                 {false, true},
		"one\ntwo":                   {false, false},
		"one\n\ttwo":                 {false, true},
		"rm " + advice.Quote("-rf"):  {false, true},
		"rm " + advice.Quote("a b"):  {true, false},
		"rm " + advice.Quote("a\nb"): {false, true},
	} {
		if got := advice.Printable(text); got != want.printable {
			t.Errorf("%q: got printable %t", text, got)
		}
		if got := advice.Withheld(text); got != want.withheld {
			t.Errorf("%q: got withheld %t", text, got)
		}
	}
}
