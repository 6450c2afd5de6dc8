package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// crashBound is the time before a kill within which delivered changes may be missing in the history, on
// a machine that is not overloaded.
const crashBound = 100 * time.Millisecond

// crashCheck is what checkHistory has found.
type crashCheck struct {
	problems []string
	// happened, delivered, late and lost are numbers of changes: that happened, that a watch delivered
	// while the journal recorded, and those of them that the history has only as changes in a gap, or not
	// at all.
	happened, delivered, late, lost int
	// kills are those of an aggregator that had delivered something. slow are those in which changes were
	// missing for longer than crashBound because the machine was overloaded.
	kills, slow int
	// longest is the longest time before a kill at which a missing change was delivered.
	longest time.Duration
}

func (c crashCheck) String() string {
	return fmt.Sprintf("%d changes, %d delivered before %d kills: %d are not in the history, and %d only as changes in a gap; all of them were delivered at most %s before a kill (%d kills on an overloaded machine)",
		c.happened, c.delivered, c.kills, c.lost, c.late, c.longest, c.slow)
}

// changeOf returns the change that an event is about.
func changeOf(e *ipwitnessv1.Event) crashChange {
	return crashChange{e.GetOwner().GetAddress(), e.GetOwner().GetWorkload().GetName(), e.GetType() == ipwitnessv1.Watch_REMOVED}
}

// checkHistory compares the history with what has happened and with what was delivered. The changes that
// are missing of each life of the aggregator must be the last ones, shortly before the kill.
func checkHistory(history []*ipwitnessv1.Event, happened map[crashChange]int, lives []*life) (c crashCheck) {
	c.happened = len(happened)
	recorded := make(map[crashChange]bool) // by whether it was recorded when it happened
	for _, e := range history {
		one := changeOf(e)
		if _, known := happened[one]; !known && !e.GetPresent() {
			c.problems = append(c.problems, fmt.Sprintf("the history has %v, which did not happen", e))
		}
		recorded[one] = recorded[one] || e.GetNotBefore() == nil && e.GetType() != ipwitnessv1.Watch_UPDATED
	}
	for n, l := range lives {
		if len(l.told) > 0 {
			c.kills++
		}
		c.delivered += len(l.told)
		missing := false
		for _, one := range l.told {
			inTime, known := recorded[one.change]
			switch {
			case inTime && missing:
				c.problems = append(c.problems, fmt.Sprintf("the history has %+v before kill %d, but lacks earlier changes", one.change, n+1))
				missing = false
				continue
			case inTime:
				continue
			case known:
				c.late++
			default:
				c.lost++
			}
			before := l.killedAt.Sub(one.at)
			if !missing { // the first one
				c.longest = max(c.longest, before)
				if before > crashBound {
					c.slow++
				}
				// An overloaded machine delays the writes of the aggregator as it delays those of the test.
				if allowed := crashBound + 5*l.slowest; before > allowed {
					c.problems = append(c.problems, fmt.Sprintf("the history lacks %+v, which was delivered %s before kill %d, want at most %s (the slowest write of the test took %s)",
						one.change, before, n+1, allowed, l.slowest))
				}
			}
			missing = true
		}
	}
	return c
}

// A diskProbe measures how long small synchronous writes take.
type diskProbe struct {
	mu     sync.Mutex
	writes []probedWrite
}

type probedWrite struct {
	at   time.Time
	took time.Duration
}

// probedFor is the time before a kill whose writes count.
const probedFor = 2 * time.Second

// startDiskProbe writes until the test ends.
func startDiskProbe(t *testing.T) *diskProbe {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "probe"))
	if err != nil {
		t.Fatal(err)
	}
	p := &diskProbe{}
	ended := make(chan struct{})
	tick := time.NewTicker(50 * time.Millisecond)
	go func() {
		defer close(ended)
		for due := range tick.C {
			_, err := f.WriteAt([]byte("probe"), 0)
			if err != nil || f.Sync() != nil {
				return // the test has ended
			}
			p.add(probedWrite{due, time.Since(due)})
		}
	}()
	t.Cleanup(func() { _ = f.Close(); <-ended; tick.Stop() })
	return p
}

func (p *diskProbe) add(one probedWrite) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.writes) > 0 && one.at.Sub(p.writes[0].at) > probedFor {
		p.writes = p.writes[1:]
	}
	p.writes = append(p.writes, one)
}

// slowest returns how long the slowest of the latest writes took, with the delay before it.
func (p *diskProbe) slowest() (took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.writes {
		took = max(took, one.took)
	}
	return took
}
