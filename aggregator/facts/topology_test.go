package facts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// TestDomainsAreWhatFramesOfTwoGenerationsConnect adds frames, ends links and begins generations at
// random, and compares the domains with those of a simple graph search. It also checks that each
// change of a link's domain is announced before it happens.
func TestDomainsAreWhatFramesOfTwoGenerationsConnect(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		notified := map[*Link]bool{}
		s := NewTopology(time.Minute, func(l *Link, _ []*Link) { notified[l] = true }, func(*Link) {})
		const count = 8
		var links []*Link
		for i := range count {
			links = append(links, &Link{Node: &verdict.Node{Boot: fmt.Sprint("boot", i), Netns: "1", Name: fmt.Sprint("n", i)}, Name: "eth0"})
		}
		var frames [2][][2]*Link // of the current and the previous generation
		for step := range 80 {
			before := map[*Link][layers]*domain{}
			for _, l := range links {
				before[l] = [layers]*domain{l.domain(BySight), l.domain(ByProof), l.domain(BothWays)}
			}
			clear(notified)
			switch a, b := r.IntN(count), r.IntN(count); r.IntN(10) {
			case 0:
				s.Rotate(1)
				frames[1], frames[0] = frames[0], nil
			case 1:
				s.Leave(links[a])
				links[a].Ended = true
				links[a] = &Link{Node: links[a].Node, Name: "eth0"}
			default:
				if a != b {
					s.Sighted(links[a], links[b], "\x02\x00\x00\x00\x00\x01", 1, 1)
					frames[0] = append(frames[0], [2]*Link{links[a], links[b]})
				}
			}
			for l, was := range before {
				if now := [layers]*domain{l.domain(BySight), l.domain(ByProof), l.domain(BothWays)}; now != was && !notified[l] {
					t.Fatalf("seed %d, step %d: the domain of %s changed without a notification", seed, step, l.Node.Name)
				}
			}
			edges := [layers][][2]*Link{BySight: slices.Concat(frames[0], frames[1])}
			for _, generation := range frames {
				for _, f := range generation {
					if slices.Contains(generation, [2]*Link{f[1], f[0]}) {
						edges[ByProof], edges[BothWays] = append(edges[ByProof], f), append(edges[BothWays], f)
					}
				}
			}
			for y, edges := range edges {
				y := Layer(y)
				for _, a := range links {
					for _, b := range links {
						want := a != b && connected(edges, a, b)
						if got := a != b && a.domain(y) != nil && a.domain(y) == b.domain(y); got != want {
							t.Fatalf("seed %d, step %d, layer %d: %s and %s are one: got %v, want %v", seed, step, y, a.Node.Name, b.Node.Name, got, want)
						}
					}
					if d := a.domain(y); (d == nil) != (a.Domain(y) == nil) || d != nil && (d.rec != a.Domain(y) || !slices.Contains(d.links, a)) {
						t.Fatalf("seed %d, step %d, layer %d: %s does not have the record of its domain", seed, step, y, a.Node.Name)
					}
				}
				for d := range s.domains[y] {
					first := slices.MinFunc(d.links, compare)
					if len(d.links) < 2 || d.layer != y || d.rec.Node != first.Node || d.rec.Name != first.Name {
						t.Fatalf("seed %d, step %d, layer %d: domain %v of %d links is not named by its first", seed, step, y, d.rec, len(d.links))
					}
				}
			}
		}
	}
}

// A repeater that replaces hardware addresses lets frames of a LAN enter, but never shows the addresses of
// those behind it.
func TestRepeatedFramesProveNoOtherDirection(t *testing.T) {
	s := NewTopology(time.Minute, func(*Link, []*Link) {}, func(*Link) {})
	a, b := &Link{Node: &verdict.Node{Name: "a"}, Name: "eth0"}, &Link{Node: &verdict.Node{Name: "b"}, Name: "eth0"}
	want := func(when string, proven, bothWays bool) {
		t.Helper()
		if got := [2]bool{a.Domain(ByProof) != nil, a.Domain(BothWays) != nil}; got != [2]bool{proven, bothWays} {
			t.Errorf("%s: got proven and in both directions %v, want %t and %t", when, got, proven, bothWays)
		}
	}
	now := verdict.Stamp(1)
	for range provenAfter {
		want("too few frames", false, false)
		s.Sighted(a, b, "b", now, now)
		now = now.Add(s.staleAfter / (provenAfter - 1))
	}
	want("frames in one direction", true, false)
	s.Sighted(a, b, "b", now, now)
	want("another one", true, false)
	s.Rotate(now)
	s.Sighted(a, b, "b", now, now)
	want("in the next generation", true, false)
	s.Sighted(b, a, "a", now, now)
	want("a frame in the other direction", true, true)
}

// A mirror port of a switch receives frames of two VLANs, whose nodes receive none of each other.
func TestCopiesOfFramesProveNothing(t *testing.T) {
	for _, test := range []struct {
		name                   string
		both, deafHome, repeat bool
		heard                  bool // frames of the link that they enter are received elsewhere
		want                   bool
	}{
		{name: "of two VLANs"},
		{name: "of two VLANs, for longer", repeat: true},
		{name: "that a host forges", heard: true, repeat: true, want: true},
		{name: "of one LAN", both: true, repeat: true, want: true},
		{name: "nodes that receive no frames", deafHome: true, want: true},
	} {
		s := NewTopology(time.Minute, func(*Link, []*Link) {}, func(*Link) {})
		link := func(node string) *Link { return &Link{Node: &verdict.Node{Name: node}, Name: "eth0"} }
		a, c, monitor := link("a"), link("c"), link("monitor")
		now := verdict.Stamp(1)
		if test.heard {
			neighbour := link("neighbour")
			s.Sighted(monitor, neighbour, "n", now, now)
			s.Sighted(neighbour, monitor, "m", now, now)
		}
		generations := 1
		if test.repeat {
			generations = 3
		}
		for g := range generations {
			if g > 0 {
				s.Rotate(now)
			}
			for range provenAfter {
				for _, l := range []*Link{a, c} {
					s.Sighted(monitor, l, verdict.MAC(l.Node.Name), now, now)
					if !test.deafHome {
						s.Received(l)
					}
				}
				if test.both {
					s.Sighted(a, c, "c", now, now)
					s.Sighted(c, a, "a", now, now)
				}
				now = now.Add(s.staleAfter / (provenAfter - 1))
			}
		}
		if got := a.Domain(ByProof) != nil && a.Domain(ByProof) == c.Domain(ByProof); got != test.want {
			t.Errorf("copies of frames %s: got one LAN %t, want %t", test.name, got, test.want)
		}
	}
}

func connected(edges [][2]*Link, from, to *Link) bool {
	reached := []*Link{from}
	for i := 0; i < len(reached); i++ {
		for _, e := range edges {
			for k := range e {
				if e[k] == reached[i] && !slices.Contains(reached, e[1-k]) {
					reached = append(reached, e[1-k])
				}
			}
		}
	}
	return slices.Contains(reached, to)
}

func BenchmarkRotate(b *testing.B) {
	for _, n := range []int{1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := NewTopology(time.Minute, func(*Link, []*Link) {}, func(*Link) {})
			var links []*Link
			for i := range n {
				links = append(links, &Link{Node: &verdict.Node{Boot: fmt.Sprint("boot", i), Netns: "1", Name: fmt.Sprint("n", i)}, Name: "eth0"})
			}
			for b.Loop() {
				b.StopTimer()
				s.present = [layers][]stitch{}
				for i := 1; i < n; i++ { // the first node and every other node see frames of each other
					s.Sighted(links[0], links[i], "", 1, 1)
					s.Sighted(links[i], links[0], "", 1, 1)
				}
				b.StartTimer()
				s.Rotate(1)
			}
		})
	}
}
