package situations

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/ipwitness/ipwitness/tests/golden"
)

// Attack is the observed result of an attack, for its row of docs/attacks.md.
type Attack struct {
	// Effect is the effect of the attack, as the test proved it.
	Effect string
	// Seen is how ipwitness reports the attack: one line of Markdown.
	Seen string
}

// CheckAttack fails the test if the observed attack differs from the text with its ID in a
// directory. tests/catalogue generates the table from these texts.
func CheckAttack(t testing.TB, dir, id string, a Attack) {
	t.Helper()
	got := fmt.Sprintf("test: %s\neffect: %s\n\n%s\n", testName(t), a.Effect, a.Seen)
	file := filepath.Join(dir, id+".txt")
	want, err := os.ReadFile(file)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		t.Fatal(err)
	case golden.Updating():
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	case err != nil:
		t.Errorf("no text for attack %s: run make update-situations and review it", id)
	case got != string(want):
		t.Errorf("attack %s: the text differs from %s (- want, + got); if the change is intended, run make update-situations:\n%s", id, file, diff(file, got))
	}
}
