// Package model_test checks the aggregator against a reference: a few hundred lines that keep every
// claim in plain maps, and judge every address from scratch after each change. Random histories run
// through both. What both say must be equal after every step.
package model_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var (
	steps    = flag.Int("steps", 0, "number of steps to run; 0 runs for -for")
	duration = flag.Duration("for", 3*time.Second, "how long to run random histories")
	seed     = flag.Uint64("seed", 0, "seed of the first history; 0 takes one from the clock")
)

// stepsOfOne is the number of steps of one history.
const stepsOfOne = 400

// A random history leads to the same owners, conflicts and findings in the aggregator and in the
// reference, after every step. The history that does not is printed, as short as it can be made.
func TestRandomHistories(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	began := time.Now()
	done := 0
	for number := first; ; number++ {
		if *steps > 0 && done >= *steps || *steps == 0 && time.Since(began) > *duration {
			break
		}
		s := settingOf(int(number % 6))
		g := &generator{Rand: rand.New(rand.NewPCG(number, 2)), left: stepsOfOne}
		history, difference := play(t, s, g.next)
		done += len(history)
		if difference != "" {
			history, difference = shrink(t, s, history, difference)
			t.Fatalf("seed %d, setting %d, %d steps:\n%s\n%s", number, number%6, len(history), lines(history), difference)
		}
	}
	t.Logf("%d steps in %s: %.0f a second", done, time.Since(began).Round(time.Millisecond), float64(done)/time.Since(began).Seconds())
}

func lines(history []step) string {
	var b strings.Builder
	for _, s := range history {
		fmt.Fprintln(&b, "\t"+s.String())
	}
	return b.String()
}

// replay runs steps.
func replay(t *testing.T, s setting, steps []step) string {
	at := 0
	_, difference := play(t, s, func(*run) (step, bool) {
		if at == len(steps) {
			return step{}, false
		}
		at++
		return steps[at-1], true
	})
	return difference
}

// shrink removes steps for as long as the rest fails, too.
func shrink(t *testing.T, s setting, history []step, difference string) ([]step, string) {
	for size := len(history) / 2; size > 0; {
		removed := false
		for at := 0; at+size <= len(history); {
			some := append(append([]step{}, history[:at]...), history[at+size:]...)
			if d := replay(t, s, some); d != "" {
				history, difference, removed = some, d, true
			} else {
				at += size
			}
		}
		if !removed || size > 1 {
			size /= 2
		}
	}
	return history, difference
}
