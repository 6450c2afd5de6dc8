package verdict

import (
	"net/netip"
	"slices"
)

// Phase is the phase of a conflict. The numbers are those of the API.
type Phase uint8

// The phases of a conflict.
const (
	Suspected Phase = iota + 1
	Confirmed
	Resolved
)

// A Conflict is two or more live owners in one scope.
type Conflict struct {
	Address netip.Addr
	Identity
	Course
	// Moves is set if the owners may hand the address over, so that they have the grace of a hand-over: nodes on a LAN may, also
	// if nothing shows that the address is meant to move. The rule is split-brain if something does, or would be if detection
	// of duplicates had not failed in one of them.
	Moves  bool
	Owners []Owner
	// Order has the indexes of Owners in the order in which they got the address.
	Order []uint32
	// Bystanders are other owners that the reasons name: senders that answer for the address while
	// the rival of the only owner is not known, the victims of a spoof, and group MACs with which owners answer.
	Bystanders []Owner
	Why
	// Titles are the owners' rights to the address, one for each of Parties.
	Titles []Title
	// Keeper is the ID of the owner that should keep the address, and Right is the reason. Keeper
	// is empty if that is undecided.
	Keeper string
	Right  Right
	// Allocations are the IPAM records of the address. Pools are the IPAM pools that contain it.
	Allocations []*Allocation
	Pools       []*Pool
	// Past has earlier states of the IPAM records.
	Past []Past
	// Checks are the known facts for the steps of a diagnosis by hand.
	Checks []Check
	// Ending is how a resolved conflict ended.
	Ending Ending
	// Recalled is set if the conflict was detected before the start of the aggregator and was not
	// judged since: only its identity, course and owners are known.
	Recalled bool
}

// Identity identifies a conflict.
type Identity struct {
	ID      string
	Episode uint32
	// Kind and Scope are the scope in which the conflict was detected.
	Kind  ScopeKind
	Scope string
}

// Course is the current state of a conflict and the rule by which it is one.
type Course struct {
	Phase Phase
	Rule  string
	// LinkProof is the evidence that the links on which the owners meet are one; 0 if they meet on
	// one link of one node or in a wider scope.
	LinkProof                           LinkProof
	DetectedAt, ConfirmedAt, ResolvedAt Stamp
	// Eldest is the ID of the owner that had the address first when that became known; empty if it is not. It stays the
	// eldest if it loses the address and gets it again, also in the next episode.
	Eldest string
	// Asked is when the owners' nodes were last asked to read the address again.
	Asked Stamp
	// Awaited is set for a conflict from before the start of the aggregator, until the nodes of its
	// owners have reported or have timed out. It does not end before that.
	Awaited bool
	// Resumed is when the conflict was first judged after the start of the aggregator, if it was
	// detected before; otherwise 0.
	Resumed Stamp
	// Parted are the owners whose detection of duplicates failed because of the conflict, and that have left its scope.
	Parted []Parted
}

// Parted is an owner that does not use the address because detection of duplicates failed in its kernel. Rival is an owner that
// had the address then. The two had no common scope any longer, or the rival had left, at Until.
type Parted struct {
	Owner, Rival Member
	Until        Stamp
}

// Why is the cause of a conflict with its reasons.
type Why struct {
	// Cause is the name of the cause; CauseUnknown if it is not known.
	Cause string
	// Headline summarises the cause; nil if the rule is enough. Facts are the facts that the cause
	// follows from.
	Headline *Fact
	Facts    []Fact
	// RuledOut are the causes that were ruled out. If the cause is unknown, they include the causes
	// that could not be decided.
	RuledOut []RuledOut
	// Wrong are the IDs of the owners that should give the address up, if the cause determines
	// them.
	Wrong []string
	// From are the pools involved in the cause.
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
	// Open is set if the cause is not ruled out because the facts that would decide it are not
	// known.
	Open bool
}

// Origin is the network, bridge or node from which an owner has the address.
type Origin struct {
	// Owner is the ID of the owner.
	Owner string
	// Node is the node of the owner.
	Node NodeKey
	// Network is a CNI network; Device is a bridge. Either may be empty.
	Network, Device string
	// Bridge is the bridge that the CNI plugin made for the network, and makes again with another range after
	// it was deleted; empty if there is none.
	Bridge string
	Ranges Ranges
	// Pool is the pool of the network; nil if it is not known.
	Pool *Pool
}

// A Check is one step of a diagnosis by hand with the facts that are known.
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
	StepRoutes    = "routes"
	StepNewNodes  = "new-nodes"
)

// EndKind is how a conflict ended.
type EndKind string

// The ways in which conflicts end.
const (
	// EndRebooted: the node of an owner rebooted.
	EndRebooted EndKind = "node-rebooted"
	// EndTimedOut: the node of an owner was disconnected for too long.
	EndTimedOut EndKind = "node-timed-out"
	// EndRivalKnown: the rival of the only owner is now known. Another conflict has both.
	EndRivalKnown EndKind = "rival-known"
	// EndNoOwner: no owner has the address any longer.
	EndNoOwner EndKind = "no-owner"
	// EndOneOwner: one owner is left.
	EndOneOwner EndKind = "one-owner"
	// EndRefused: the only owner left does not use the address, because detection of duplicates failed in
	// its kernel. EndYielded: a program, such as its DHCP client, gave the address up.
	EndRefused EndKind = "refused"
	EndYielded EndKind = "yielded"
	// EndExcluded: an owner is no longer compared.
	EndExcluded EndKind = "not-compared"
	// EndWiderScope: the owners are now in conflict in a wider scope.
	EndWiderScope EndKind = "wider-scope"
	// EndNoCarrier: an owner is on a link without a carrier.
	EndNoCarrier EndKind = "no-carrier"
	// EndLinksApart: there is no evidence any longer that the owners' links are one.
	EndLinksApart EndKind = "links-apart"
	// EndScopesApart: the owners are no longer in one scope.
	EndScopesApart EndKind = "scopes-apart"
)

// Ended is a conflict that has ended.
type Ended struct {
	ID string
	At Stamp
	Ending
}

// Ending is how a conflict ended.
type Ending struct {
	Kind EndKind
	// Owner is the ID of the owner that is left, or whose node is gone.
	Owner string
	// Excluded is why an owner is no longer compared.
	Excluded *Exclusion
}

// Memory is the state of a conflict that the next judgement needs.
type Memory struct {
	Identity
	Course
	Owners []Member
	// End is how the conflict ended; empty while it is active, and if it ended before the start of the
	// aggregator.
	End EndKind
}

// Member is the state of an owner of a conflict that the next judgement needs. Node is the name of
// its node.
type Member struct {
	ID, Node string
	Who      Who
	// External is set for an external device, which is identified by its MAC.
	External bool
	MAC      MAC
	// Record is the number that the agent gave to a namespace of which nothing else is known yet, so that its ID will change; 0 for
	// any other owner.
	Record uint32
	// Assigned is set if a kernel had the address for it.
	Assigned bool
	// TimedOut is set if the node has not reported since the start of the aggregator, and is not
	// awaited any longer.
	TimedOut bool
	// Awaited is set if the node has not reported since the start of the aggregator, and may still do so.
	Awaited bool
	// Orphaned is what the Kubernetes API said about the pod of an orphaned sandbox; nil for other
	// owners.
	Orphaned *PodObject
}

// Memory returns the state of the conflict that the next judgement needs.
func (c *Conflict) Memory() Memory {
	m := Memory{Identity: c.Identity, Course: c.Course, Owners: make([]Member, len(c.Owners)), End: c.Ending.Kind}
	for i := range c.Owners {
		o := &c.Owners[i]
		m.Owners[i] = Member{ID: o.ID, Node: o.Node.Name, External: o.Namespace == nil, MAC: o.MAC, Assigned: o.Assigned, TimedOut: c.Recalled && o.Node.TimedOut}
		if o.Namespace != nil {
			m.Owners[i].Who = o.Namespace.Who
			if o.Namespace.Netns == "" {
				m.Owners[i].Record = o.Namespace.Record
			}
		}
		if o.Orphaned {
			m.Owners[i].Orphaned = o.Pod
		}
	}
	return m
}

// Continue returns a conflict that was detected before it was known that the aggregator had detected
// it before its start: it continues that episode, or is the next one. If its owners are others, it returns that conflict, which
// another judgement ends.
func (c Conflict) Continue(was *Conflict) Conflict {
	m := was.Memory()
	if was.Active() && !m.lasts(c.Owners) {
		return *was
	}
	c.Eldest = m.eldest(c.Parties())
	if !was.Active() {
		c.Episode = was.Episode + 1
		return c
	}
	c.Episode, c.DetectedAt, c.Resumed = was.Episode, was.DetectedAt, c.DetectedAt
	if was.LinkProof == Proven && c.LinkProof == OneWay {
		c.LinkProof = Proven // for as long as a proof lasts: see ProofLasts
	}
	c.Owners = slices.Clone(c.Owners) // others may read those of a conflict
	restoreOrphaned(c.Owners, m.Owners)
	if was.Phase == Confirmed && c.Phase != Resolved && !c.Unplaced() && c.LinkProof != OneWay && m.has(c.Owners) {
		c.Phase, c.ConfirmedAt = Confirmed, was.ConfirmedAt
	}
	return c
}

// AllExternal reports whether only frames of devices without an agent show the conflict. A node or a namespace
// that only frames show is known by its hardware address.
func (c *Conflict) AllExternal() bool {
	return c.Rule == RuleExternalsAlternate && !slices.ContainsFunc(c.Owners, func(o Owner) bool { return o.Namespace != nil })
}

// Unplaced reports whether an agent knows none of the owners, and behind the tap of no node there is only one of them: nothing
// shows that they are several machines.
func (c *Conflict) Unplaced() bool {
	return c.AllExternal() && !slices.ContainsFunc(c.Owners, func(o Owner) bool {
		return o.Guest() == TapGuest && !slices.ContainsFunc(c.Owners, func(other Owner) bool { return other.ID != o.ID && o.Interface.Is(other.Interface) })
	})
}

// severalGuests reports whether a virtual machine and another owner have both announced the address since a time, or have both
// sent requests with it. A machine with two cards on one LAN answers with both MACs, but announces an address with that of its
// card, and sends requests with that of its route.
func (c *Conflict) severalGuests(since Stamp) bool {
	return slices.ContainsFunc([]Evidence{Announced, Used}, func(k Evidence) bool {
		n, guests := 0, 0
		for i := range c.Owners {
			if o := &c.Owners[i]; o.claimedAs(k, since) {
				n++
				if o.Guest() == TapGuest {
					guests++
				}
			}
		}
		return n > 1 && guests > 0
	})
}

// SamePod reports whether all owners are sandboxes of one pod, also if detection of duplicates failed in one of
// them.
func (c *Conflict) SamePod() bool {
	return c.Rule == RuleSamePod || c.Rule == RuleDADFailed && len(c.Owners) > 1 && samePod(c.Owners) && !c.Copied()
}

// SameVM reports whether all owners are pods of one virtual machine, also if detection of duplicates failed in one
// of them.
func (c *Conflict) SameVM() bool {
	return c.Rule == RuleSameVM || c.Rule == RuleDADFailed && len(c.Owners) > 1 && sameVM(c.Owners)
}

// Active reports whether the conflict is not resolved.
func (c *Course) Active() bool { return c.Phase != Resolved }

// Expected reports whether a conflict may be an ordinary hand-over, so that its cause is not sought
// yet.
func (c *Conflict) Expected() bool {
	return c.Phase == Suspected && (c.Moves || c.Rule == RuleSamePod || c.Rule == RuleSameVM || c.Rule == RuleDADFailed)
}

// End returns the conflict in its resolved state. The owners are those of the judgement that ended
// it.
func (c Conflict) End(e *Ended, owners []Owner) Conflict {
	c.Phase, c.ResolvedAt, c.Ending = Resolved, e.At, e.Ending
	c.Owners = slices.Clone(c.Owners)
	for i := range c.Owners {
		if k := slices.IndexFunc(owners, func(o Owner) bool {
			return o.ID == c.Owners[i].ID || c.Recalled && o.Namespace == nil && c.Owners[i].Namespace == nil && o.MAC == c.Owners[i].MAC
		}); k >= 0 {
			was := c.Owners[i]
			c.Owners[i] = owners[k]
			if c.Owners[i].Here, c.Owners[i].OnLink = was.Here, was.OnLink; was.OnLink {
				c.Owners[i].Interface, c.Owners[i].MAC = was.Interface, was.MAC
			}
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

// Owner returns the owner with an ID; nil if the conflict has none.
func (c *Conflict) Owner(id string) *Owner {
	if i := slices.IndexFunc(c.Owners, func(o Owner) bool { return o.ID == id }); i >= 0 {
		return &c.Owners[i]
	}
	return nil
}

// GroupMAC returns the group MAC with which owners have answered for the address, so that they may share its load; empty
// if there is none.
func (c *Conflict) GroupMAC() MAC {
	for _, o := range c.Bystanders {
		if o.MAC.multicast() {
			return o.MAC
		}
	}
	return ""
}

// maxParties is the largest number of owners for which a cause is sought, because every pair is
// compared.
const maxParties = 32

// Parties returns the owners for which a cause and a keeper are sought: the first ones if there are
// very many.
func (c *Conflict) Parties() []*Owner {
	parties := make([]*Owner, min(len(c.Owners), maxParties))
	for i := range parties {
		parties[i] = &c.Owners[i]
	}
	return parties
}

// Right is the reason why an owner should keep the address.
type Right uint8

// The reasons.
const (
	// RightUndecided: the known facts do not decide which owner should keep the address.
	RightUndecided Right = iota
	// RightAssignment: the controller of the virtual address wants this owner's node to hold it.
	RightAssignment
	// RightAllocation: an IPAM has the address for this owner and no other one.
	RightAllocation
	// RightProgram: the program that moves virtual addresses runs on this owner's node, and has ended
	// on the nodes of the others.
	RightProgram
	// RightMachine: the virtual machine that all owners run, or ran, runs on this owner's node.
	RightMachine
	// RightOlderAssignment: the kernel of this owner got the address first.
	RightOlderAssignment
	// RightIntent: only this owner was meant to have the address, according to a CNI plugin, the
	// container runtime or the Kubernetes API.
	RightIntent
	// RightKept: IPAMs have the address for several owners, and this one is the only one that gets it
	// again after a restart.
	RightKept
	// RightAlive: processes run in this owner only, and none in the namespaces of the others.
	RightAlive
	// RightCurrent: this owner is the current network namespace of the container that the others
	// belonged to.
	RightCurrent
	// RightNode: the owner is the only node whose own address it is, according to the Kubernetes API, or because
	// it had the address before a network on its LAN assigned it to others.
	RightNode
)

// A Title is what is known about an owner's right to the address.
type Title struct {
	// Owner is the ID of the owner.
	Owner string
	// Internal is set if the owner is a node whose own address it is, according to the Kubernetes API.
	Internal bool
	// First is set if the owner is a node that had the address as its main one before networks assigned it to
	// the others, on the same LAN.
	First bool
	// Controller is the pool of the controller that wants the owner's node to hold the address; nil if
	// there is none.
	Controller *Pool
	// Pool is the pool that has the address for the owner; nil if there is none.
	Pool *Pool
	// Kept is the pool that keeps the address for the owner, or did so until it lost the record, so
	// that a restart may not change the address; nil if there is none.
	Kept *Pool
	// Gateway is set if the owner is a node that has the gateway address of its own pool on the
	// bridge that the pool serves.
	Gateway bool
	// Unclear is set if an IPAM may have the address for the owner, because an allocation does not
	// identify its holder clearly.
	Unclear bool
	// Given is set if an IPAM, a runtime or Kubernetes is known to have given the owner the
	// address.
	Given bool
	// Own is set if the owner is a node that has the address as its own, and others have it as a virtual one.
	Own bool
	// Missing are the pools that assigned the address to the owner but have no record of it.
	Missing []*Pool
}

// Allocated reports whether an IPAM has the address for the owner, either as an allocation or as
// the gateway of a pool.
func (t Title) Allocated() bool { return t.Pool != nil || t.Gateway }

// OfNode reports whether the owner is a node whose own address it is.
func (t Title) OfNode() bool { return t.Internal || t.First }
