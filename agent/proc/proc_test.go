package proc

import (
	"strings"
	"testing"
)

func TestStatusOfAProcessWithAnyName(t *testing.T) {
	const rest = " S 7 1 1 0 -1 4194304 84 0 0 0 0 0 0 0 20 0 1 0 12345 2314240 128 18446744073709551615\n"
	for _, name := range []string{"nginx", "a b", "a) S 99 (b", "(sd-pam)", ")", "", "a\nb", "runc:[2:INIT]"} {
		got, err := parseStat("42 (" + name + ")" + rest)
		if want := (Process{PID: 42, Parent: 7, Name: name, Start: 12345}); err != nil || got != want {
			t.Errorf("status of %q: got %+v and error %v, want %+v", name, got, err, want)
		}
	}
	if got, err := parseStat("42 (nginx)" + strings.Replace(rest, "S", "Z", 1)); err != nil || !got.Ended {
		t.Errorf("zombie: got %+v and error %v, want that it has ended", got, err)
	}
	for _, junk := range []string{"", "42", "42 (", "42 )(" + rest, "42 (a) S 7", "(a)" + rest, "x (a)" + rest, "42 (a) S x" + rest} {
		if got, err := parseStat(junk); err == nil {
			t.Errorf("status %q: got %+v, want an error", junk, got)
		}
	}
	if got, err := parseStat("42 (\xff)" + rest); err != nil || got.Name != "\uFFFD" {
		t.Errorf("name that is not UTF-8: got %q and error %v", got.Name, err)
	}
}
