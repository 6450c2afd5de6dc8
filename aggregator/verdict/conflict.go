package verdict

import (
	"net/netip"
	"slices"
)

// Phase is how far a conflict has come. The numbers are the contract's.
type Phase uint8

// The phases of a conflict.
const (
	Suspected Phase = iota + 1
	Confirmed
	Resolved
)

// A Conflict is two or more owners alive at once in one scope.
type Conflict struct {
	Address netip.Addr
	Identity
	Course
	Owners []Owner
	// Order has indexes of Owners in the order in which they got the address.
	Order []uint32
	// Bystanders are other owners of the address that the reasons name: those that only answer for
	// it if the rival of the only owner is not known, and the victims of a sender.
	Bystanders []Owner
	Why
	// Titles are what is known about the owners' right to the address, for each of Parties.
	Titles []Title
	// Keeper is the id of the owner that is to keep the address, and Right is the reason.
	// Keeper is empty if that is undecided.
	Keeper string
	Right  Right
	// Allocations are what IPAMs say about the address, Pools are the pools of IPAMs that it is
	// from.
	Allocations []*Allocation
	Pools       []*Pool
	// Checks are what is to be seen where a person would look.
	Checks []Check
	// Ending is how a resolved conflict ended.
	Ending Ending
}

// Identity is what a conflict is known by.
type Identity struct {
	ID      string
	Episode uint32
	// Kind and Scope are the scope as it was when the conflict was detected.
	Kind  ScopeKind
	Scope string
}

// Course is how far a conflict has come, and by which rule it is one.
type Course struct {
	Phase Phase
	Rule  string
	// LinkProof is how the links on which the owners meet are known to be one; 0 if they meet
	// on one link of one node or in a wider scope.
	LinkProof                           LinkProof
	DetectedAt, ConfirmedAt, ResolvedAt Stamp
	// Asked is when the owners' nodes were last asked to read again.
	Asked Stamp
}

// Why is why a conflict came about.
type Why struct {
	// Cause is its name; CauseUnknown if it is not known.
	Cause string
	// Headline sums the cause up; nil if the rule does. Facts are what it follows from.
	Headline *Fact
	Facts    []Fact
	// RuledOut are the causes that were ruled out. If the cause is unknown, they include those
	// that cannot be ruled out for want of facts.
	RuledOut []RuledOut
	// Wrong are the ids of the owners that are to give the address up, if the cause tells.
	Wrong []string
	// From are the pools that the cause is about.
	From []*Pool
	// Networks are the networks or nodes whose ranges overlap.
	Networks []Origin
	// Gateway is set if a node has the address as the gateway of pods.
	Gateway bool
	// Kubernetes is set if the ranges of nodes overlap in Node.spec.podCIDRs.
	Kubernetes bool
	// Uncovered is set if there may be nodes without an agent.
	Uncovered bool
}

// RuledOut is a cause that was considered, and the fact that rules it out.
type RuledOut struct {
	Cause string
	Fact  Fact
	// Open is set if the cause is not ruled out: the facts that would decide it are not known.
	Open bool
}

// Origin is the network, bridge or node that an owner has the address from.
type Origin struct {
	// Owner is the id of the owner.
	Owner string
	// Node is the node of the owner.
	Node NodeKey
	// Network is a CNI network, Device a bridge; empty for none.
	Network, Device string
	Ranges          Ranges
	// Pool gives its addresses; nil if that is not known.
	Pool *Pool
}

// Check is what is to be seen in one step of a diagnosis by hand.
type Check struct {
	Step  string
	Facts []Fact
}

// The steps of a diagnosis by hand.
const (
	StepEvents    = "events"
	StepPods      = "pods"
	StepCNIPlugin = "cni-plugin"
	StepIPAM      = "ipam"
	StepPodCIDRs  = "pod-cidrs"
	StepNewNodes  = "new-nodes"
)

// EndKind is how a conflict ended.
type EndKind string

// The ways in which conflicts end.
const (
	// EndRebooted: the node of an owner was booted anew.
	EndRebooted EndKind = "node-rebooted"
	// EndTimedOut: the node of an owner was not heard from for too long.
	EndTimedOut EndKind = "node-timed-out"
	// EndRivalKnown: the rival of the only owner is known now. Another conflict has both.
	EndRivalKnown EndKind = "rival-known"
	// EndNoOwner: no owner has the address any more.
	EndNoOwner EndKind = "no-owner"
	// EndOneOwner: one owner is left.
	EndOneOwner EndKind = "one-owner"
	// EndExcluded: an owner is no longer compared.
	EndExcluded EndKind = "not-compared"
	// EndWiderScope: another conflict has the owners in a wider scope.
	EndWiderScope EndKind = "wider-scope"
	// EndLinksApart: no frame shows any more that the owners' links are one.
	EndLinksApart EndKind = "links-apart"
	// EndScopesApart: the owners are no longer in one scope.
	EndScopesApart EndKind = "scopes-apart"
)

// Ended is a conflict that ended.
type Ended struct {
	ID string
	At Stamp
	Ending
}

// Ending is how a conflict ended.
type Ending struct {
	Kind EndKind
	// Owner is the id of the owner that is left, or whose node is gone.
	Owner string
	// Excluded is why an owner is no longer compared.
	Excluded *Exclusion
}

// Memory is what the next judgement needs to know about a conflict.
type Memory struct {
	Identity
	Course
	Owners []Member
}

// Member is what the next judgement needs to know about an owner of a conflict. Node, the name of
// its node, and Who are only needed for explanations.
type Member struct {
	ID, Node string
	Who      Who
	// External is set for a device outside of all nodes, which is known by its MAC.
	External bool
	MAC      MAC
	// Orphaned is what the Kubernetes API said about the pod of a sandbox that was left behind;
	// nil for other owners.
	Orphaned *PodObject
}

// Memory returns what the next judgement needs to know about the conflict.
func (c *Conflict) Memory() Memory {
	m := Memory{Identity: c.Identity, Course: c.Course, Owners: make([]Member, len(c.Owners))}
	for i := range c.Owners {
		o := &c.Owners[i]
		m.Owners[i] = Member{ID: o.ID, Node: o.Node.Name, External: o.Namespace == nil, MAC: o.MAC}
		if o.Namespace != nil {
			m.Owners[i].Who = o.Namespace.Who
		}
		if o.Orphaned {
			m.Owners[i].Orphaned = o.Pod
		}
	}
	return m
}

// Active reports whether the conflict is not over.
func (c *Course) Active() bool { return c.Phase != Resolved }

// Expected reports whether a conflict is what a hand-over looks like, so that there is nothing
// to find out yet.
func (c *Course) Expected() bool {
	return c.Phase == Suspected && (c.Rule == RuleSamePod || c.Rule == RuleSameVM || c.Rule == RuleSplitBrain)
}

// End returns the conflict as it is after it ended. Owners are those of the same judgement.
func (c Conflict) End(e *Ended, owners []Owner) Conflict {
	c.Phase, c.ResolvedAt, c.Ending = Resolved, e.At, e.Ending
	c.Owners = slices.Clone(c.Owners)
	for i := range c.Owners {
		if k := slices.IndexFunc(owners, func(o Owner) bool { return o.ID == c.Owners[i].ID }); k >= 0 {
			c.Owners[i] = owners[k]
		} else {
			c.Owners[i].State = Gone
		}
	}
	c.Bystanders = nil
	if e.Excluded != nil {
		for _, o := range owners {
			if slices.Contains(e.Excluded.Victims, o.ID) {
				c.Bystanders = append(c.Bystanders, o)
			}
		}
	}
	return c
}

// Owner returns the owner with an id; nil if the conflict has none.
func (c *Conflict) Owner(id string) *Owner {
	if i := slices.IndexFunc(c.Owners, func(o Owner) bool { return o.ID == id }); i >= 0 {
		return &c.Owners[i]
	}
	return nil
}

// mostParties is the number of owners that a cause is looked for: each two are compared.
const mostParties = 32

// Parties returns the owners for which a cause and the rightful one are looked for: the first of
// very many.
func (c *Conflict) Parties() []*Owner {
	parties := make([]*Owner, min(len(c.Owners), mostParties))
	for i := range parties {
		parties[i] = &c.Owners[i]
	}
	return parties
}

// Right is the reason why one of several owners is to keep the address.
type Right uint8

// The reasons, the strongest first.
const (
	// RightUndecided: the known facts do not decide which owner is to keep the address.
	RightUndecided Right = iota
	// RightAllocation: an IPAM has the address for this owner and for no other one.
	RightAllocation
	// RightOlderAssignment: this owner's kernel was given the address first.
	RightOlderAssignment
	// RightIntent: a CNI plugin, the container runtime or the Kubernetes API meant this owner
	// and no other one to have the address.
	RightIntent
)

// A Title is what is known about an owner's right to the address.
type Title struct {
	// Owner is its id.
	Owner string
	// Pool has the address for the owner; nil for none.
	Pool *Pool
	// Gateway is set if the owner is a node that has the gateway address of its own pool on the
	// bridge that the pool serves.
	Gateway bool
	// Unclear is set if an IPAM may have the address for the owner, because an allocation does not
	// identify an owner clearly.
	Unclear bool
	// Given is set if it is known that somebody whose task it is gave the owner the address.
	Given bool
	// Missing are the pools that gave the owner the address and have no record of it.
	Missing []*Pool
}

// Allocated reports whether an IPAM has the address for the owner, either as an allocation or as
// the gateway of a pool.
func (t Title) Allocated() bool { return t.Pool != nil || t.Gateway }
