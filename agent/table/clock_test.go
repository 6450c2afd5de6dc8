package table

import (
	"testing"
	"time"
	"unsafe"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// set returns a moment as a wall clock shows it that is ahead by whole seconds. Its monotonic reading stays: the first word
// of a time.Time has the seconds of the wall clock from bit 30 on.
func set(t time.Time, ahead time.Duration) time.Time {
	*(*int64)(unsafe.Pointer(&t)) += int64(ahead/time.Second) << 30
	return t
}

// stampsOf returns when claims were assigned, as a message has it, by the last byte of their addresses.
func stampsOf(messages []*ipwitnessv1.ReportRequest) map[byte]time.Time {
	at := map[byte]time.Time{}
	for _, m := range messages {
		for _, c := range m.GetClaims() {
			at[c.GetAddress()[3]] = c.GetAssignedAt().AsTime()
		}
	}
	return at
}

func TestTheClockIsSet(t *testing.T) {
	const much = 2 * time.Hour
	for name, test := range map[string]struct {
		slept time.Duration
		wall  time.Duration // how far the wall clock is ahead in the end
		first time.Duration // and how much later the first claim is said to have begun
		again bool
	}{
		"forward":                          {wall: much, first: much, again: true},
		"backward":                         {wall: -much, first: -much, again: true},
		"not at all":                       {},
		"the machine was suspended":        {slept: much, wall: much, again: true},
		"suspended, and its clock was set": {slept: much, wall: much - time.Hour, first: -time.Hour, again: true},
	} {
		tab := New()
		start := time.Now()
		r := follow(tab)
		tab.Update(func() { tab.Add(testClaim(1), Claim{First: start, Last: start, Assigned: start, Count: 1}, start) })
		if at := stampsOf(drain(r))[1]; !at.Equal(start) {
			t.Fatalf("%s: got %v before, want %v", name, at, start)
		}
		slept := tab.clock.slept + test.slept
		tab.clock.asleep = func() time.Duration { return slept }
		later := set(time.Now(), test.wall)
		r.Answer(Questions{Ping: 7})
		m := r.Take(later)
		if m.GetSnapshotBegin() != test.again || m.GetPong() == nil && !test.again {
			t.Errorf("%s: got %v, want everything again before the answer: %v", name, m, test.again)
		}
		if at := stampsOf([]*ipwitnessv1.ReportRequest{m})[1]; test.again && !at.Equal(start.Add(test.first)) {
			t.Errorf("%s: got the first claim at %v, want %v", name, at, start.Add(test.first))
		}
		tab.Update(func() { tab.Add(testClaim(2), Claim{First: later, Last: later, Assigned: later, Count: 1}, later) })
		var all []*ipwitnessv1.ReportRequest
		for m := r.Take(later); m != nil; m = r.Take(later) {
			all = append(all, m)
		}
		if at := stampsOf(all)[2]; at.Sub(later).Abs() > time.Millisecond {
			t.Errorf("%s: got the second claim at %v, want %v", name, at, later)
		}
		// What the agent read by the former clock, such as the time at which stamps of addresses began.
		if at := tab.clock.stamp(start.Add(-time.Minute)).AsTime(); !at.Equal(start.Add(test.first - time.Minute)) {
			t.Errorf("%s: got %v, want %v", name, at, start.Add(test.first-time.Minute))
		}
	}
}

func TestSmallChangesOfTheClock(t *testing.T) {
	tab := New()
	r := follow(tab)
	tab.clock.ahead[0].by = leastStep / 2
	if m := r.Take(time.Now()); m != nil {
		t.Errorf("got %v, want nothing", m)
	}
}
