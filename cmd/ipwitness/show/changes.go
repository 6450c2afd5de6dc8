package show

import (
	"iter"
	"maps"
	"slices"
)

// Changes keeps the state that a watch has sent. If the state is sent again, because the watch was
// disconnected or too slow, only the differences are shown.
type Changes[T any] struct {
	key   func(T) string
	known map[string]T
	// missing contains the items that the state being sent has not contained so far; nil if no state
	// is being sent.
	missing map[string]T
}

// NewChanges returns an empty Changes; key returns the identity of an item.
func NewChanges[T any](key func(T) string) *Changes[T] {
	return &Changes[T]{key: key, known: map[string]T{}}
}

// Begin announces that the whole state follows. Items that it does not contain are gone.
func (c *Changes[T]) Begin() { c.missing = maps.Clone(c.known) }

// Put stores an item and returns the one that it replaces.
func (c *Changes[T]) Put(item T) (before T, had bool) {
	k := c.key(item)
	before, had = c.known[k]
	c.known[k] = item
	delete(c.missing, k)
	return before, had
}

// Drop removes an item and returns its previous value.
func (c *Changes[T]) Drop(item T) (before T, had bool) {
	k := c.key(item)
	before, had = c.known[k]
	delete(c.known, k)
	delete(c.missing, k)
	return before, had
}

// Complete announces that the whole state was sent, and returns the items that are gone, sorted by
// key.
func (c *Changes[T]) Complete() []T {
	var gone []T
	for _, k := range slices.Sorted(maps.Keys(c.missing)) {
		gone = append(gone, c.missing[k])
		delete(c.known, k)
	}
	c.missing = nil
	return gone
}

// All returns the items that are known, in no order.
func (c *Changes[T]) All() iter.Seq[T] { return maps.Values(c.known) }

// Len returns the number of items that are known.
func (c *Changes[T]) Len() int { return len(c.known) }
