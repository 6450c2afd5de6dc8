package verdict

import (
	"cmp"
	"slices"
	"time"
)

// State is how sure it is that an owner is there. The numbers are the contract's.
type State uint8

// The states of an owner.
const (
	Live State = iota + 1
	Stale
	Unheard
	Gone
)

// Owner is one network namespace or external device that holds the address,
// with all of its witnesses merged.
type Owner struct {
	ID   string
	Node *Node
	// Namespace is nil for an external device.
	Namespace *Namespace
	// Interface has the address; for an owner known from the wire only, it is
	// the port that its frames enter by.
	Interface *Interface
	MAC       MAC
	// Scope is the widest that applies, zero for an address that is not compared.
	Scope Scope
	State State
	// Assigned tells that the address is configured on an interface that counts.
	Assigned bool
	// Excluded is why the owner is not compared with others; nil if it is.
	Excluded *Exclusion
	Claims   []*Claim
	// Pod is what the Kubernetes API says of the owner; nil where it says nothing.
	Pod *PodObject
	// Orphaned tells that its kernel has the address, and its pod is no more, or has
	// ended for good.
	Orphaned bool
}

// An Exclusion is the reason why an owner is not compared with others. It never changes.
type Exclusion struct {
	Rule string
	// Proxy is how the owner is known to answer for others (RuleReachableVia).
	Proxy Proxy
	// MAC is the hardware address with which a plugin answers (RuleReachableVia), or which is
	// another owner's (RuleMACCloned).
	MAC MAC
	// Port is the interface that the frames of a sender enter by, Victims are the ids of the
	// owners of the address (RuleAddressSpoofed).
	Port    string
	Victims []string
	// Reason is the operator's (RuleDeclaredShared).
	Reason string
	// Quiet is the time without a frame after which an address counts as handed over
	// (RuleHandedOver).
	Quiet time.Duration
}

// Same reports whether two owners are excluded for the same reason.
func (e *Exclusion) Same(other *Exclusion) bool {
	if e == nil || other == nil {
		return e == other
	}
	return e.Rule == other.Rule && e.Proxy == other.Proxy && e.MAC == other.MAC && e.Port == other.Port &&
		slices.Equal(e.Victims, other.Victims) && e.Reason == other.Reason && e.Quiet == other.Quiet
}

// Proxy is how an owner is known to answer for the addresses of others. Of several ways, the
// first counts.
type Proxy uint8

// The ways.
const (
	// ByPlugin: it answers with a hardware address that a network plugin answers with for others.
	ByPlugin Proxy = iota + 1
	// ByNoOverride: it advertises the address without the Override flag.
	ByNoOverride
	// ByManyAddresses: it only answers for ManyAnswers addresses or more.
	ByManyAddresses
	// ByOwnMAC: it answers with a hardware address of its own, and its kernel lacks the address.
	ByOwnMAC
	// BySeveralOwners: it only answers for addresses of several owners.
	BySeveralOwners
)

// ExcludedBy reports whether a rule excludes the owner.
func (o *Owner) ExcludedBy(rule string) bool { return o.Excluded != nil && o.Excluded.Rule == rule }

// Alive tells whether the owner counts as one of two.
func (o *Owner) Alive() bool { return o.State == Live || o.State == Unheard }

// Workload is who the owner is, as its node says; what that does not know, the
// Kubernetes API may.
func (o *Owner) Workload() Workload {
	if o.Namespace == nil {
		return Workload{Kind: External}
	}
	w := o.Namespace.Who.Workload()
	if p := o.Pod; p != nil && !p.Absent {
		w.Namespace, w.Name, w.UID = cmp.Or(w.Namespace, p.Namespace), cmp.Or(w.Name, p.Name), cmp.Or(w.UID, p.UID)
		w.VirtualMachine = cmp.Or(w.VirtualMachine, p.VirtualMachine)
	}
	return w
}

// Named are the namespace and the name of the owner's workload.
func (o *Owner) Named() (namespace, name string) {
	if o.Namespace == nil {
		return "", ""
	}
	if name = o.Namespace.Who.Name(); name == "" && o.Pod != nil {
		return o.Pod.Namespace, o.Pod.Name
	}
	return o.Namespace.Who.Namespace(), name
}

// Kind is what sort of thing the owner is.
func (o *Owner) Kind() WorkloadKind {
	if o.Namespace == nil {
		return External
	}
	return o.Namespace.Who.Kind()
}

// AssignedAt is when a kernel first gave the address to the owner, by that
// node's clock; 0 where that is not known.
func (o *Owner) AssignedAt() Stamp {
	var first Stamp
	for _, c := range o.Claims {
		if c.Kind == Assigned && c.AssignedAt != 0 && (first == 0 || c.AssignedAt < first) {
			first = c.AssignedAt
		}
	}
	return first
}
