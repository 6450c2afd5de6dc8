package aggregator

import (
	"math/rand/v2"
	"testing"
)

// Whatever is entered and taken out: a lookup finds what a map finds.
func TestLookupFindsWhatAMapFinds(t *testing.T) {
	type record struct{ key, value int }
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		x := newLookup(func(v *record) int { return v.key })
		want := map[int]*record{}
		keys := 1 + r.IntN(100)
		for step := range 1000 {
			if k := r.IntN(keys); r.IntN(2) == 0 {
				want[k] = &record{k, step}
				x.put(want[k])
			} else {
				delete(want, k)
				x.remove(k)
			}
			if x.len() != len(want) {
				t.Fatalf("seed %d step %d: got %d records, want %d", seed, step, x.len(), len(want))
			}
		}
		for k := range keys {
			if got := x.get(k); got != want[k] {
				t.Fatalf("seed %d: got %v for key %d, want %v", seed, got, k, want[k])
			}
		}
		all := 0
		for v := range x.all() {
			if all++; want[v.key] != v {
				t.Fatalf("seed %d: got %v, want %v", seed, v, want[v.key])
			}
		}
		if all != len(want) {
			t.Fatalf("seed %d: got %d records in all, want %d", seed, all, len(want))
		}
	}
}

// chained is a record of which several have one key.
type chained struct {
	key  int
	next *chained
}

func TestChainsHaveAllRecordsOfAKey(t *testing.T) {
	x := newChains(func(c *chained) int { return c.key }, func(c *chained) **chained { return &c.next })
	r := rand.New(rand.NewPCG(1, 2))
	in := map[*chained]bool{}
	for range 5000 {
		if c := (&chained{key: r.IntN(40)}); r.IntN(2) == 0 {
			x.enter(c)
			in[c] = true
		} else if len(in) > 0 {
			for c = range in {
				break
			}
			x.leave(c)
			delete(in, c)
			if c.next != nil {
				t.Fatal("a record that left leads to another one")
			}
		}
		found := 0
		for key := range 40 {
			for c := x.get(key); c != nil; c = c.next {
				if found++; c.key != key || !in[c] {
					t.Fatalf("got a record of key %d for %d, or one that left", c.key, key)
				}
			}
		}
		if found != len(in) {
			t.Fatalf("got %d records, want %d", found, len(in))
		}
	}
}
