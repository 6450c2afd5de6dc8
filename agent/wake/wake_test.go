package wake

import "testing"

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
