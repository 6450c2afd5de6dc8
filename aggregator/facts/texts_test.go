package facts

import (
	"strings"
	"testing"
)

// The length of a text is stored in front of it, in one or more bytes.
func TestTextsOfAnyLength(t *testing.T) {
	var all texts
	kept := map[text]string{}
	for _, length := range []int{1, 2, 126, 127, 128, 129, 255, 256, 1 << 14, 1<<14 - 1, 1<<14 + 1} {
		for _, c := range []string{"a", "b"} {
			s := strings.Repeat(c, length)
			kept[all.put(s)] = s
		}
	}
	for id, want := range kept {
		if got := all.get(id); got != want {
			t.Errorf("got a text of %d bytes, want %d", len(got), len(want))
		}
		if again := all.put(want); again != id {
			t.Errorf("got a new number for a known text of %d bytes", len(want))
		}
	}
}
