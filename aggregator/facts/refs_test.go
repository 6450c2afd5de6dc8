package facts

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestRefsAreLikeAMapOfLists(t *testing.T) {
	keys := map[ref]uint64{}
	x := newRefs(func(k uint64) uint64 { return hashNumbers(k%7, 0) }, func(r ref) uint64 { return keys[r] })
	want := map[uint64]map[uint32]ref{}
	r := rand.New(rand.NewPCG(4, 2))
	for step := range 20_000 {
		k, node := r.Uint64N(40), 1+r.Uint32N(5)
		if r.IntN(2) == 0 {
			x.remove(k, node)
			delete(want[k], node)
		} else {
			one := refOf(node, r.Uint32N(1<<20))
			if _, taken := keys[one]; taken && keys[one] != k {
				continue
			}
			keys[one] = k
			if x.set(k, one); want[k] == nil {
				want[k] = map[uint32]ref{}
			}
			want[k][node] = one
		}
		got := map[uint32]ref{}
		for one := range x.all(k) {
			got[one.node()] = one
		}
		if fmt.Sprint(got) != fmt.Sprint(want[k]) {
			t.Fatalf("step %d: got %v, want %v", step, got, want[k])
		}
	}
}
