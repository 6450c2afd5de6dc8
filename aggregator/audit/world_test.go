package audit_test

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict/verdicttest"
)

const start = verdicttest.Start

// world is a world with what these tests ask of it.
type world struct{ *verdicttest.World }

func newWorld(addr string) *world { return &world{verdicttest.New(addr)} }

// after lets time pass.
func (w *world) after(d time.Duration) *world {
	w.After(d)
	return w
}
