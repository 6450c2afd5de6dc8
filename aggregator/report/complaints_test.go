package report

import (
	"strconv"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestComplaintsAreLoggedOnceAMinute(t *testing.T) {
	s := newService(t)
	for _, step := range []struct {
		peer, reason string
		at           time.Duration
		want         bool
	}{
		{"192.0.2.1:1000", "no hello", 0, true},
		{"192.0.2.1:2000", "no hello", time.Second, false},
		{"192.0.2.2:1000", "no hello", time.Second, true},
		{"192.0.2.1:3000", "too many", time.Second, true},
		{"192.0.2.1:4000", "no hello", time.Minute, true},
		{"bufconn", "no hello", time.Minute, true},
	} {
		if got := s.shouldLog(step.peer, step.reason, verdict.Stamp(1).Add(step.at)); got != step.want {
			t.Errorf("%v: got %v", step, got)
		}
	}
}

// A peer with a different complaint each time must not fill the log either.
func TestComplaintsOfOneHostAreLimited(t *testing.T) {
	s := newService(t)
	logged := func(host string, at time.Duration) (n int) {
		for i := range 1000 {
			if s.shouldLog(host+":1000", "you are not "+strconv.Itoa(i), verdict.Stamp(1).Add(at)) {
				n++
			}
		}
		return n
	}
	if n := logged("192.0.2.1", 0); n != complaintsOfHost {
		t.Errorf("the log has %d complaints of one host in a minute, want %d", n, complaintsOfHost)
	}
	if n := logged("192.0.2.2", 0); n != complaintsOfHost {
		t.Errorf("and %d of another one, want %d", n, complaintsOfHost)
	}
	if n := logged("192.0.2.1", time.Minute); n != complaintsOfHost {
		t.Errorf("and %d a minute later, want %d", n, complaintsOfHost)
	}
}
