package verdict

import "time"

// ReusedFor is how long the early reuse of an address remains a finding. By then, neighbour tables and
// the half-open connections of NAT have usually forgotten the former owner.
const ReusedFor = 10 * time.Minute

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

// handedOver reports whether the former owner is another node than that of an owner, and gave the address up before the owner
// got it, or within the grace after that.
func (f *Former) handedOver(o *Owner, grace time.Duration) bool {
	return f.Until != 0 && f.Owner.Kind() == Host && o.Node.Name != f.Owner.Node.Name && o.Begun().Add(grace) >= f.Until
}

// Gap returns how long the address was unused; 0 if the next owner began before the former one left.
func (f *Former) Gap() time.Duration { return max(0, f.Since.Sub(f.Until)) }
