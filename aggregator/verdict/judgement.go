package verdict

// Judgement is what follows from a Case.
type Judgement struct {
	// Owners are all who hold the address or are seen with it, ordered by node,
	// namespace and interface.
	Owners []Owner
	// Conflicts are those that are active, Ended are those that ended just now.
	Conflicts []Conflict
	Ended     []Ended
	// Check are the nodes that must read the address again, now.
	Check []*Node
	// Again is when to judge again though nothing is received; 0 for never.
	Again Stamp
	// Contested tells that the address is worth a closer look on the wire.
	Contested bool
	// Expired are wire claims that are too old to be kept.
	Expired []*Claim
	// Spoofs are claims to the address by senders other than its owner. Clones are claims in
	// frames with the hardware address of another namespace.
	Spoofs, Clones []Spoof
}
