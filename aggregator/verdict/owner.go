package verdict

import (
	"cmp"
	"net/netip"
	"slices"
)

// State is whether an owner still exists. The numbers are those of the API.
type State uint8

// The states of an owner.
const (
	Live State = iota + 1
	Stale
	Unheard
	Gone
)

// Owner is one network namespace or external device that holds the address, with all of its claims
// merged.
type Owner struct {
	ID   string
	Node *Node
	// Namespace is nil for an external device.
	Namespace *Namespace
	// Interface has the address. For an owner known from the wire only, it is the port that its
	// frames enter through.
	Interface *Interface
	MAC       MAC
	// Scope is the widest scope of the owner; zero for an address that is not compared.
	Scope Scope
	State State
	// Assigned is set if the address is configured on an interface that counts.
	Assigned bool
	// Served is what gave the owner the address if a network stack outside of its kernel has it; nil otherwise.
	Served *Intent
	// Excluded is why the owner is not compared with others; nil if it is compared.
	Excluded *Exclusion
	Claims   []*Claim
	// Here are the claims of a kernel by which a conflict compares the owner with others; nil if it is in none.
	Here []*Claim
	// OnLink is set if the conflict is on a link and Here has claims: what the owner has on other links is not contested there.
	OnLink bool
	// Pod is what the Kubernetes API says about the owner; nil if that is not known.
	Pod *PodObject
	// Orphaned is set if the owner has the address but its pod has ended or no longer exists.
	Orphaned bool
}

// An Exclusion is the reason why an owner is not compared with others. It never changes.
type Exclusion struct {
	Rule string
	// Proxy is how the owner answers for others (RuleReachableVia).
	Proxy Proxy
	// MAC is the hardware address with which a plugin answers (RuleReachableVia), that belongs
	// to another owner (RuleMACCloned), or with which several nodes answer (RuleLoadShared).
	MAC MAC
	// Port is the interface through which the frames of a sender enter. Victims are the IDs of the
	// owners of the address (RuleAddressSpoofed).
	Port    string
	Victims []string
	// Reason is the operator's reason (RuleDeclaredShared).
	Reason string
}

// Same reports whether two owners are excluded for the same reason.
func (e *Exclusion) Same(other *Exclusion) bool {
	if e == nil || other == nil {
		return e == other
	}
	return e.Rule == other.Rule && e.Proxy == other.Proxy && e.MAC == other.MAC && e.Port == other.Port &&
		slices.Equal(e.Victims, other.Victims) && e.Reason == other.Reason
}

// Proxy is how an owner is known to answer for the addresses of others. The first one that applies
// counts.
type Proxy uint8

// The kinds of proxies.
const (
	// ByPlugin: the sender uses a hardware address with which a network plugin answers for others.
	ByPlugin Proxy = iota + 1
	// ByNoOverride: the sender advertises the address without the Override flag.
	ByNoOverride
	// ByManyAddresses: the sender only ever answers, for ManyAnswers addresses or more.
	ByManyAddresses
	// ByOwnMAC: the sender answers with its own hardware address, and its kernel lacks the address.
	ByOwnMAC
	// BySeveralOwners: the sender only ever answers, for addresses of several owners.
	BySeveralOwners
	// ByKernel: the kernel of the node answers, or takes packets, and lacks the address.
	ByKernel
)

// ExcludedBy reports whether a rule excludes the owner.
func (o *Owner) ExcludedBy(rule string) bool { return o.Excluded != nil && o.Excluded.Rule == rule }

// Routed reports whether the node's own route for the address leads to the owner.
func (o *Owner) Routed() bool {
	return slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Kind == Assigned && c.Routed })
}

// onOVSPort reports whether the owner is on a port of Open vSwitch.
func (o *Owner) onOVSPort() bool {
	return slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		l := c.Interface.Link
		return l != nil && l.Kind == OVSPort
	})
}

// Has reports whether the owner has the address: its kernel, or a network stack outside of it to which it was given.
func (o *Owner) Has() bool { return o.Assigned || o.Served != nil }

// Alive reports whether the owner is live, or was live when its node was disconnected.
func (o *Owner) Alive() bool { return o.State == Live || o.State == Unheard }

// Workload returns the workload of the owner as its node reports it, completed by the Kubernetes
// API.
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

// Named returns the namespace and the name of the owner's workload.
func (o *Owner) Named() (namespace, name string) {
	if o.Namespace == nil {
		return "", ""
	}
	if name = o.Namespace.Who.Name(); name == "" && o.Pod != nil {
		return o.Pod.Namespace, o.Pod.Name
	}
	return o.Namespace.Who.Namespace(), name
}

// Kind returns the kind of the owner's workload.
func (o *Owner) Kind() WorkloadKind {
	if o.Namespace == nil {
		return External
	}
	return o.Namespace.Who.Kind()
}

// AssignedAt returns when a kernel first had the address for the owner, by the clock of its node; 0
// if it is not known. Only interfaces on which the address is compared count, unless there is none:
// the time that an address spent on a loopback device says nothing about who had it first on a link. The owner of a
// conflict has been one since it has had the address in the scope of the conflict.
func (o *Owner) AssignedAt() Stamp {
	var first Stamp
	claims := o.tenure()
	counts := slices.ContainsFunc(claims, (*Claim).Counts)
	for _, c := range claims {
		if (c.Kind == Assigned || c.yielded()) && c.Counts() == counts && c.AssignedAt != 0 && (first == 0 || c.AssignedAt < first) {
			first = c.AssignedAt
		}
	}
	return first
}

// TenureSince returns since when the owner has had the address, but for short interruptions, by the clock of its node: it
// may have been restarted and got the address again. It is 0 if that is not known.
func (o *Owner) TenureSince() Stamp {
	since := o.AssignedAt()
	for _, c := range o.tenure() {
		if c.Kind == Assigned && c.Counts() && c.AssignedAt != 0 && c.First != 0 {
			since = min(since, c.First)
		}
	}
	return since
}

// tenure returns the claims that show since when the owner has had the address.
func (o *Owner) tenure() []*Claim {
	if o.Here != nil {
		return o.Here
	}
	return o.Claims
}

// VIPProgram returns the program that moves virtual addresses on the owner's node or inside of its
// namespace; empty if none was seen. ended is set if it has ended.
func (o *Owner) VIPProgram() (name string, ended bool) {
	if o.Kind() == Host {
		return o.Node.VIPProgram, o.Node.VIPProgramEnded
	}
	w := o.Workload()
	return w.VIPProgram, w.VIPProgramEnded
}

// moves reports whether the owner may hand a virtual address over: a program in its namespace does so, or it is a node that
// has the address where neighbours would learn of its new owner.
func (c *Case) moves(o *Owner) bool { return o.Kind() == Host && !c.confined(o) || o.hasVIPProgram() }

// confined reports whether the owner is a node that has the address only where no other node would take it over: as the main
// one of bridges that docker, podman or libvirt made, on tunnels without neighbours, or on bridges or veths that lead to
// nothing outside of the node.
func (c *Case) confined(o *Owner) bool {
	return o.Kind() == Host && o.Assigned && !slices.ContainsFunc(o.Claims, func(has *Claim) bool {
		i := has.Interface
		return has.Counts() && !has.setByEngine(c.Address) && !i.WithoutNeighbours() &&
			!slices.ContainsFunc(c.node(o.Node).Subnets, func(s Subnet) bool { return s.Inside() && s.Interface.Is(i) })
	})
}

// setByEngine reports whether the owner is a node that has the address only as the main one of bridges that docker, podman
// or libvirt made.
func (o *Owner) setByEngine(a netip.Addr) bool {
	return o.Kind() == Host && o.Assigned && !slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Counts() && !c.setByEngine(a) })
}

// setByEngine reports whether docker, podman or libvirt has set the address, as the main one of the bridge that it made. It
// sets the address on each node alike, and moves none.
func (c *Claim) setByEngine(a netip.Addr) bool {
	return MadeByEngine(c.Interface.Name) && int(c.PrefixLength) < a.BitLen() && c.Flags&FlagSecondary == 0
}

// withoutOrder returns the owner as if its address were the first one of its subnet.
func (o *Owner) withoutOrder() *Owner {
	first := *o
	first.Claims = make([]*Claim, len(o.Claims))
	for i, c := range o.Claims {
		claim := *c
		claim.Flags &^= FlagSecondary
		first.Claims[i] = &claim
	}
	return &first
}

// hasVIPProgram reports whether a program that moves virtual addresses runs or ran on the owner's node, or
// inside of its namespace.
func (o *Owner) hasVIPProgram() bool {
	program, _ := o.VIPProgram()
	return program != ""
}
