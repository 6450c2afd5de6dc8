package sample

import "testing"

func TestClamp(t *testing.T) {
	if got := Clamp(3, 2); got != 2 {
		t.Errorf("got %d, want 2", got)
	}
	if got := Clamp(1, 2); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
}

func TestDown(t *testing.T) {
	if got := Down(3); got != 3 {
		t.Errorf("got %d, want 3", got)
	}
}
