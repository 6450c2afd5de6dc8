// Package model_test checks the aggregator against a reference. The reference is a few hundred
// lines that keep every claim in plain maps and judge every address from scratch after each change.
// Random histories run through both, and their results must be equal after every step.
package model_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	steps    = flag.Int("steps", 2000, "number of steps to run; 0 runs for -for")
	duration = flag.Duration("for", time.Minute, "how long to run random histories if -steps is 0")
	procs    = flag.Int("procs", 1, "number of processors: with several, histories take longer and fail only occasionally")
	seed     = flag.Uint64("seed", 1000, "seed of the first history; 0 takes one from the clock")
)

// stepsOfOne is the number of steps of one history. logEvery is the interval at which the test
// logs its progress.
const (
	stepsOfOne = 200
	logEvery   = 10_000
)

// A random history leads to the same owners, conflicts and findings in the aggregator and in the
// reference, after every step. A failing history is shortened as far as possible and printed.
func TestRandomHistories(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	// Each step wakes many goroutines in sequence. More processors would only add contention,
	// although they reveal dependencies on the order. Most of the heap is garbage.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(*procs))
	defer debug.SetGCPercent(debug.SetGCPercent(4000))
	began, done := time.Now(), 0
	for number := first; *steps > 0 && done < *steps || *steps == 0 && time.Since(began) < *duration; number++ {
		setting := int(18 + number%6)
		s := settingOf(setting)
		g := &generator{Rand: rand.New(rand.NewPCG(number, 2)), left: stepsOfOne}
		history, difference := play(t, s, g.next)
		done += len(history)
		if difference != "" {
			t.Logf("seed %d fails; shortening its history: go test ./tests/model -run Random -args -seed %d -steps %d", number, number, stepsOfOne)
			history, difference = shrink(t, s, history, difference)
			t.Fatalf("seed %d, a file of testdata/histories that fails:\n\tsetting %d\n%s\n%s", number, setting, lines(history), difference)
		}
		if done/logEvery > (done-len(history))/logEvery { // the last logged step helps to locate a panic of the aggregator
			t.Logf("%d steps to seed %d", done, number)
		}
	}
	t.Logf("%d steps from seed %d in %s: %.0f a second", done, first, time.Since(began).Round(time.Millisecond), float64(done)/time.Since(began).Seconds())
}

func lines(history []step) string {
	var b strings.Builder
	for _, s := range history {
		fmt.Fprintln(&b, "\t"+s.String())
	}
	return b.String()
}

// replay runs the steps of a history.
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

// Histories that once revealed errors of the aggregator now lead to the results of the reference.
func TestKnownHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/histories/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("there are no histories: ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			number, history := 0, []step(nil)
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSpace(line)
				if rest, ok := strings.CutPrefix(line, "setting "); ok {
					number, err = strconv.Atoi(rest)
				} else if line != "" && !strings.HasPrefix(line, "#") {
					var s step
					s, err = parse(line)
					history = append(history, s)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if difference := replay(t, settingOf(number), history); difference != "" {
				t.Error(difference)
			}
		})
	}
}
