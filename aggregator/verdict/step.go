package verdict

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
)

// A Step is a rule that was evaluated, with its outcome. The rule determines which operands are
// set.
type Step struct {
	Rule  string
	Scope Scope
	// Applied is the outcome.
	Applied bool
	// Owners are the owners that the rule is about, with the scopes in which they are compared.
	Owners []Compared
	// Seen are the places where an owner was witnessed, or the place where a frame was seen.
	Seen []Place
	// MAC is the hardware address in a frame's claim. Source is the Ethernet source if it differs.
	MAC, Source MAC
	// Node is the node that has the hardware address.
	Node string
	// Network is the network that gave the address, NetworkOfRuntime or NetworkOfAPI if only the
	// container runtime or the Kubernetes API says that it is a pod's, NetworkOfDevice if only a node's
	// device says so, or the declared network with Prefix. Annotated is set if annotations of the pod name the network.
	Network   string
	Prefix    netip.Prefix
	Annotated bool
	// Overlay is set if the network is that of a container engine on several nodes.
	Overlay bool
	// Joints are the evidence that the links of a domain are one; nil for a link of one node.
	Joints []Joint
	// Service is the Service whose address it is, and what nodes do with packets for it (RuleService).
	Service *ipam.Redirect
	// Conflict is the ID of the conflict that the rule makes. Excludes is set if the rule excludes
	// the owner.
	Conflict string
	Excludes bool
}

// A Place is where a claim was witnessed: an interface of a kernel, or a port of a node for frames.
type Place struct {
	// Node is empty for a claim of a kernel.
	Node, Interface string
}

// A Joint is the evidence that two links are one: a frame of a node on Home entered Entered.
type Joint struct {
	Entered, Home LinkKey
	MAC           MAC
	// Back is the hardware address of a frame in the opposite direction; empty if there was none.
	Back  MAC
	Proof LinkProof
}

// Compared is the ID of an owner and the scopes in which it is compared.
type Compared struct {
	Owner  string
	Scopes []Scope
}
