package audit_test

import (
	"time"

	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

const start = verdicttest.Start

// world is a World with helpers for these tests.
type world struct {
	*verdicttest.World
	unfollowed bool // the Kubernetes API is not followed
	unread     bool // the Kubernetes API is not read yet
}

func newWorld(addr string) *world { return &world{World: verdicttest.New(addr)} }

// after advances the time.
func (w *world) after(d time.Duration) *world {
	w.After(d)
	return w
}
