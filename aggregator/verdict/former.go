package verdict

import "time"

// A Former is an owner that has left an address. It is immutable.
type Former struct {
	// Owner is the owner as it last was, without its claims.
	Owner Owner
	// Until is when it was found to have left.
	Until Stamp
	// Next is the ID of the owner that took the address over too soon, and Since is when that owner
	// began. They are empty if there is no such owner.
	Next  string
	Since Stamp
}

// Gap returns how long the address was unused; 0 if the next owner began before the former one left.
func (f *Former) Gap() time.Duration { return max(0, f.Since.Sub(f.Until)) }
