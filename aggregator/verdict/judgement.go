package verdict

// Judgement is the result of judging a Case.
type Judgement struct {
	// Owners are all owners and other senders of claims to the address, ordered by node, namespace
	// and interface.
	Owners []Owner
	// Ended are the conflicts that this judgement ends. Conflicts are the active ones afterwards: one of them
	// may be the next episode of one that has ended.
	Conflicts []Conflict
	Ended     []Ended
	// Check are the nodes that must read the address again now.
	Check []*Node
	// Again is when to judge again even if nothing changes; 0 for never.
	Again Stamp
	// Contested is set if the address should be watched more closely on the wire.
	Contested bool
	// Expired are wire claims that can be deleted.
	Expired []*Claim
	// Spoofs are claims to the address by senders other than its owner. Clones are claims in frames
	// with the hardware address of another namespace.
	Spoofs, Clones []Spoof
}
