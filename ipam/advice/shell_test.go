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
