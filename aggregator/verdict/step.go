package verdict

import "net/netip"

// A Step is a rule that was asked, with its answer. Which operands are set depends on the rule.
type Step struct {
	Rule  string
	Scope Scope
	// Applied is the answer.
	Applied bool
	// Owners are the owners that the rule is about, and where they are compared.
	Owners []Compared
	// Seen are the places where an owner is witnessed, or the one where a frame was.
	Seen []Place
	// MAC is the hardware address that a frame claims the address for, Source that of its sender,
	// if it is another.
	MAC, Source MAC
	// Node is the node that has the hardware address.
	Node string
	// Network is the network that the address was given by, NetworkOfRuntime if only the container
	// runtime tells of it, or the declared network with Prefix.
	Network string
	Prefix  netip.Prefix
	// Joints are how the links of a domain are known to be one; nil for a link of one node.
	Joints []Joint
	// Conflict is the id of the conflict that the rule makes. Excludes is set if the rule excludes
	// the owner.
	Conflict string
	Excludes bool
}

// Place is where a claim was witnessed: on an interface by its kernel, or by frames on it.
type Place struct {
	// Node is empty for a kernel.
	Node, Interface string
}

// Joint is how two links are known to be one: a frame of a node on Home entered Entered.
type Joint struct {
	Entered, Home LinkKey
	MAC           MAC
	// Back is the hardware address of a frame that went the other way; empty for none.
	Back  MAC
	Proof LinkProof
}

// Compared is an owner by its id, and the scopes in which it is compared.
type Compared struct {
	Owner  string
	Scopes []Scope
}
