package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// traced is an error of a library that writes its stack with %+v.
type traced struct{ error }

func (e traced) Format(s fmt.State, verb rune) {
	_, _ = io.WriteString(s, e.Error())
	if verb == 'v' && s.Flag('+') {
		_, _ = io.WriteString(s, "\nstack trace")
	}
}

func TestLinesOfTheLogAreShort(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		(&Logging{Level: "info", format: format}).logger(&out).Info("m", "error", traced{errors.New("block is damaged")}, "n", 7, "none", error(nil), "long", strings.Repeat("x", 1<<20)+"end")
		got := out.String()
		for _, want := range []string{"block is damaged", "7", "xxx…"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %.300q, want %q in it", format, got, want)
			}
		}
		if strings.Contains(got, "stack") || len(got) > 2*longest {
			t.Errorf("%s: got %d bytes: %.300q, want no stack and no long value", format, len(got), got)
		}
	}
}
