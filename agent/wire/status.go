package wire

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// AddStatus adds the state of the wire to the agent's status.
func (w *Wire) AddStatus(s *ipwitnessv1.StatusRecord, now time.Time) {
	var problems []string
	s.Wire = w.mode.String()
	s.Ports, problems = w.Ports()
	s.UnwatchedPorts = uint32(len(problems))
	s.Problems = slices.Concat(s.Problems, problems, w.untold(now))
	others := 0
	for _, p := range s.Ports {
		if p.GetMode() != s.Wire {
			others++
		}
	}
	if others > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf(
			"%d interfaces are watched by clsact instead of tcx, so filters before it may drop frames: raise the number of files that this process may open", others))
	}
	s.Unparsed = &ipwitnessv1.Unparsed{
		Tags:       w.frames(bpf.ResultUnparsedTags),
		Extensions: w.frames(bpf.ResultUnparsedExtensions),
		Options:    w.frames(bpf.ResultUnparsedOptions),
	}
	if all := s.Unparsed; !w.unparsed.recent(uint32(min(all.Tags+all.Extensions+all.Options, math.MaxUint32)), now) {
		s.Unparsed = &ipwitnessv1.Unparsed{}
	}
	s.Flooding = w.floods.records()
	lost := uint32(min(w.Lost(), math.MaxUint32))
	s.LostEvents += lost
	if w.lostFrames.recent(lost, now) {
		s.Problems = append(s.Problems, fmt.Sprintf(
			"%d frames arrived faster than they could be processed: a binding that was lost is unknown until its next frame", lost))
	}
}

// Ports returns the interfaces that the observer is attached to, by name, and
// one problem for each interface that could not be watched.
func (w *Wire) Ports() (out []*ipwitnessv1.Node_Port, problems []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.attached {
		if p.err != nil {
			problems = append(problems, fmt.Sprintf("frames on %s are not seen: %v", p.name, p.err))
			continue
		}
		out = append(out, &ipwitnessv1.Node_Port{Interface: p.name, Mode: p.att.Mode().String()})
	}
	slices.SortFunc(out, func(a, b *ipwitnessv1.Node_Port) int {
		return cmp.Compare(a.GetInterface(), b.GetInterface())
	})
	slices.Sort(problems)
	return out, problems
}

// untold returns one problem for each interface through which frames of several networks entered lately, if nothing tells them
// apart.
func (w *Wire) untold(now time.Time) (problems []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.attached {
		if p.untold && now.Sub(p.seen) < Kept {
			problems = append(problems, fmt.Sprintf("frames of several networks enter %s and are not told apart: duplicates behind it are not known", p.name))
		}
	}
	slices.Sort(problems)
	return problems
}

func (w *Wire) frames(result bpf.Result) uint64 {
	frames, err := w.obs.Frames(result)
	if err != nil {
		w.log.Debug("cannot read the observer's counters", "error", err)
	}
	return frames
}

// rising is a counter of frames that may be missing from the table, and when it last rose.
type rising struct {
	count uint32
	at    time.Time
}

// recent updates the counter, and reports whether claims may still be missing. Claims of older
// frames would have expired by now.
func (r *rising) recent(count uint32, now time.Time) bool {
	if count != r.count {
		r.count, r.at = count, now
	}
	return count > 0 && now.Sub(r.at) < Kept
}

// Flooding returns the number of flooding ports.
func (w *Wire) Flooding() int { return w.floods.count() }

// Lost returns the number of frames that found no room in the ring.
func (w *Wire) Lost() uint64 { return w.frames(bpf.ResultLost) }

// Counters returns the observer's counters of frames, or none if they cannot be read.
func (w *Wire) Counters() []bpf.Counter {
	counters, err := w.obs.Counters()
	if err != nil {
		w.log.Debug("cannot read the observer's counters", "error", err)
	}
	return counters
}

// frameClock converts the monotonic time of the kernel into wall time.
type frameClock struct {
	now       time.Time
	monotonic time.Duration
}

// at returns the time of a frame. It compares the two clocks once a second, because comparing
// them for each frame would cost a system call per frame.
func (c *frameClock) at(ktime time.Duration) time.Time {
	if c.now.IsZero() || (ktime-c.monotonic).Abs() > time.Second {
		for range 4 { // until both were read without an interruption in between
			begin := time.Now()
			var ts unix.Timespec
			if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
				return begin
			}
			c.now, c.monotonic = begin, time.Duration(ts.Nano())
			if time.Since(begin) < 100*time.Microsecond {
				break
			}
		}
	}
	return c.now.Add(ktime - c.monotonic)
}
