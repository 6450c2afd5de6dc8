package show

import (
	"maps"
	"slices"
)

// Changes keeps the state that a watch has told of, so that a state that is
// sent again (by a watch that was cut, or was too slow) shows only what is new.
type Changes[T any] struct {
	key   func(T) string
	known map[string]T
	// missing has what a state that is being sent has not named yet; nil
	// where none is being sent.
	missing map[string]T
}

// NewChanges makes an empty one; key names what an item is about.
func NewChanges[T any](key func(T) string) *Changes[T] {
	return &Changes[T]{key: key, known: map[string]T{}}
}

// Begin says that the whole state comes now: what it does not name is gone.
func (c *Changes[T]) Begin() { c.missing = maps.Clone(c.known) }

// Put takes an item and gives the one it takes the place of.
func (c *Changes[T]) Put(item T) (before T, had bool) {
	k := c.key(item)
	before, had = c.known[k]
	c.known[k] = item
	delete(c.missing, k)
	return before, had
}

// Drop forgets an item and gives what was known of it.
func (c *Changes[T]) Drop(item T) (before T, had bool) {
	k := c.key(item)
	before, had = c.known[k]
	delete(c.known, k)
	delete(c.missing, k)
	return before, had
}

// Complete says that the whole state was sent, and gives what is gone, in order
// of the keys.
func (c *Changes[T]) Complete() []T {
	var gone []T
	for _, k := range slices.Sorted(maps.Keys(c.missing)) {
		gone = append(gone, c.missing[k])
		delete(c.known, k)
	}
	c.missing = nil
	return gone
}
