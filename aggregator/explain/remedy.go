package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// telling is one finding about an address that is being put into words. Each IPAM has its
// remedies in a file of its own.
type telling struct {
	f    *verdict.Finding
	pool *verdict.Pool
	use  verdict.PoolUse
	// owner is who holds the address, nil for nobody; booked is what IPAM says of it,
	// empty for nothing.
	owner  *verdict.Owner
	booked *verdict.Allocation
	told   Told
}

// tellAddress puts a finding about one address into words.
func tellAddress(f *verdict.Finding, use verdict.PoolUse) Told {
	t := &telling{f: f, pool: f.Pool, use: use}
	if t.pool == nil {
		t.pool = &verdict.Pool{}
	}
	if len(f.Owners) > 0 {
		t.owner = &f.Owners[0]
	}
	t.booked = &verdict.Allocation{}
	if len(f.Allocations) > 0 {
		t.booked = f.Allocations[0]
	}
	switch f.Kind {
	case verdict.FindingInUseUnallocated:
		t.inUseUnallocated()
	case verdict.FindingBookedElsewhere:
		t.bookedElsewhere()
	case verdict.FindingLeaked:
		t.leaked()
	case verdict.FindingDoubleAllocated:
		t.doubleAllocated()
	case verdict.FindingIntendedNotObserved:
		t.intendedNotObserved()
	case verdict.FindingAddressSpoofed:
		t.addressSpoofed()
	case verdict.FindingMACCloned:
		t.macCloned()
	case verdict.FindingSharedAddressAnswered:
		t.sharedAnswered()
	}
	return t.told
}

// evidence adds a fact.
func (t *telling) evidence(format string, args ...any) {
	t.told.Evidence = append(t.told.Evidence, fmt.Sprintf(format, args...))
}

// advise adds an action without a command.
func (t *telling) advise(format string, args ...any) { t.act(say(format, args...)) }

// act adds actions.
func (t *telling) act(actions ...Action) { t.told.Remedy = append(t.told.Remedy, actions...) }

// plan returns the steps that write the script which repairs IPAM and run its part for a node.
// An empty node means the part for the cluster.
func plan(node string) []Action {
	run := "sh plan.sh cluster"
	if node != "" {
		run = "sh plan.sh node " + quote(node)
	}
	return []Action{
		say("Make the plan that puts it right.").by("", makePlan),
		say("Read plan.sh, and run its part for %s.", cmp.Or(after("node ", node), "the cluster")).by(node, run),
	}
}

// fix adds a command.
func (t *telling) fix(f Fix) { t.told.Fixes = append(t.told.Fixes, f) }

// byHand adds what must be done by a person, with the command for it, if there is one.
func (t *telling) byHand(node, command, format string, args ...any) {
	t.fix(Fix{Node: node, What: fmt.Sprintf(format, args...), Command: command, Manual: true})
}

// inUseUnallocated: somebody has the address, and IPAM takes it for free.
func (t *telling) inUseUnallocated() {
	t.told.Summary = fmt.Sprintf("%s is held by %s, and %s takes it for free: it will give it to %s.",
		t.f.Address, t.holder(), poolName(t.pool), poolNext(t.pool))
	if t.pool.IPAM == verdict.Cilium {
		t.told.Summary = fmt.Sprintf("%s is held by %s, and no CiliumEndpoint tells of that. If Cilium's agent does not know of it either, it gives the address to one of the next pods there.",
			t.f.Address, t.holder())
	}
	t.holding()
	switch p := t.pool; {
	case p.State == verdict.PoolMissing:
		t.evidence("%s has no records at all%s.", poolBegin(p), poolLost(p))
	case p.LostAt != 0:
		t.evidence("%s has no record of the address. It lost %s at once%s.", poolBegin(p), plural(p.Lost, "record", "records"), poolLost(p))
	default:
		t.evidence("%s has no record of the address.", poolBegin(p))
	}
	t.history()
	t.fullness()
	switch t.remedied() {
	case verdict.HostLocal:
		t.reserveHostLocal()
	case verdict.Whereabouts:
		t.reserveWhereabouts()
	case verdict.Calico:
		t.reserveCalico()
	case verdict.Cilium:
		t.reserveCilium()
	case ofNode:
		t.leaveOut()
	default:
		t.restart("it asks for an address that is free")
	}
	t.closing()
}

// bookedElsewhere: somebody has the address, and IPAM has it for somebody else.
func (t *telling) bookedElsewhere() {
	t.told.Summary = fmt.Sprintf("%s is held by %s, and %s has it booked for %s. %s",
		t.f.Address, t.holder(), poolName(t.pool), allocationName(t.booked), t.elsewhereEnds())
	t.holding()
	t.bookings()
	t.history()
	t.fullness()
	switch t.remedied() {
	case verdict.HostLocal:
		t.rebookHostLocal()
	case verdict.Whereabouts:
		t.rebookWhereabouts()
	case verdict.Calico:
		t.rebookCalico()
	case verdict.Cilium:
		t.rebookCilium()
	case ofNode:
		t.leaveOut()
	default:
		t.restart("it asks for an address that is free")
	}
	t.closing()
}

// ofNode stands for whatever IPAM there is, where a node itself has the address: to
// restart it would change nothing.
const ofNode = "node"

// remedied is the IPAM whose remedies there are.
func (t *telling) remedied() string {
	if t.owner != nil && t.owner.Kind() == verdict.Host && t.pool.IPAM != "" {
		return ofNode
	}
	return t.pool.IPAM
}

// leaveOut has a pool leave out the address of a node itself, or Calico book it for its
// tunnel.
func (t *telling) leaveOut() {
	node, name := t.owner.Node.Name, kubernetesName(t.owner)
	if t.pool.IPAM == verdict.Calico && t.owner.Interface != nil && t.owner.Interface.Tunnel() != "" {
		t.act(say("Restart Calico on node %s: it looks then whether the address of its tunnel is booked, and has it booked.", node).by("", restartCalicoNode(name)))
		t.byHand("", restartCalicoNode(name), "Restart calico-node on node %s: it has an address booked for its %s.", node, t.owner.Interface.Name)
		return
	}
	how := "give it a range that has no address of a node"
	switch t.pool.IPAM {
	case verdict.HostLocal:
		how = "set rangeStart and rangeEnd in " + cmp.Or(t.pool.Config, "its CNI configuration") + " so that it is outside"
	case verdict.Whereabouts:
		how = "write it into exclude of its NetworkAttachmentDefinition"
	case verdict.Calico:
		how = fmt.Sprintf("make an IPReservation with it (reservedCIDRs: [%s])", netip.PrefixFrom(t.f.Address, t.f.Address.BitLen()))
	}
	t.advise("The address is node %s's own: no restart changes that. Have %s leave it out: %s. A range in which the nodes themselves are should be another one.", node, poolName(t.pool), how)
	t.byHand(t.node(), "", "Have %s leave out %s, which is node %s's own: %s.", poolName(t.pool), t.f.Address, node, how)
	if al := t.booked; al.Pod != "" {
		t.act(say("Delete pod %s/%s, for which the address is booked: its successor gets another one.", al.Namespace, al.Pod).by("", deletePod(al.Namespace, al.Pod)))
	}
}

// elsewhereEnds says what comes of a wrong booking.
func (t *telling) elsewhereEnds() string {
	own := t.owner != nil && t.booked.Pod != "" && t.booked.Namespace+"/"+t.booked.Pod == t.ownerName()
	switch {
	case t.remedied() == ofNode:
		return "As soon as that one is up with it, it is a duplicate."
	case t.pool.IPAM == verdict.Cilium:
		return "If Cilium's agent has it so, too, the address is freed with that one, and given to another pod while it is in use."
	case t.pool.IPAM == verdict.Calico && own:
		return "Calico's garbage collector takes such a booking for leaked and frees the address 15 minutes after it finds it (leakGracePeriod); then another pod gets the address."
	}
	return "When that one ends, the address is freed, and given to another pod while it is in use."
}

// leaked: IPAM has given the address to somebody who is not there.
func (t *telling) leaked() {
	t.told.Summary = fmt.Sprintf("%s has %s booked for %s, and nobody alive holds it%s. No pod gets it while that is so.%s",
		poolBegin(t.pool), t.f.Address, allocationName(t.booked), t.since(), t.exhaustion())
	t.bookings()
	t.evidence("No kernel of a node that the pool serves has the address, by what their agents report.")
	t.fullness()
	switch t.pool.IPAM {
	case verdict.HostLocal:
		t.releaseHostLocal()
	case verdict.Whereabouts:
		t.releaseWhereabouts()
	case verdict.Calico:
		t.releaseCalico()
	case verdict.Cilium:
		t.releaseCilium()
	}
	t.closing()
}

// doubleAllocated: IPAM has given the address twice.
func (t *telling) doubleAllocated() {
	names := each(t.f.Allocations, func(al **verdict.Allocation) string { return allocationName(*al) })
	t.told.Summary = fmt.Sprintf("%s has %s twice: for %s. As soon as both are up, it is a duplicate.",
		poolBegin(t.pool), t.f.Address, list(names))
	switch t.pool.IPAM {
	case verdict.Cilium:
		t.told.Summary = fmt.Sprintf("%s has %s twice: for %s. One of them may be left over; if both are up, it is a duplicate.",
			poolBegin(t.pool), t.f.Address, list(names))
	case verdict.KubernetesAPI:
		t.told.Summary = fmt.Sprintf("%s is in the status of several running pods: %s. One of them has it wrongly, or each has it.",
			t.f.Address, list(names))
	}
	t.bookings()
	t.holding()
	t.fullness()
	t.act(say("See who really has the address.").by("", "ipwitness owners "+t.f.Address.String()))
	t.keepOne()
	t.advise("Find out how it came about: a reservation that was restored from a copy, two IPAM daemons, an edit by hand.")
	t.closing()
}

// keepOne adds the steps that keep one of several allocations and release the others. It keeps
// the allocation of the holder that a kernel reports, otherwise the oldest one.
func (t *telling) keepOne() {
	kept := -1
	for i, al := range t.f.Allocations {
		if t.owner != nil && al.For(t.owner) {
			if kept >= 0 { // several may be for the holder
				kept = -1
				break
			}
			kept = i
		}
	}
	why := "has it by its kernel"
	if t.owner == nil {
		if kept = t.oldest(); kept >= 0 {
			why = "was given it first"
		}
	}
	if kept >= 0 {
		t.advise("Leave %s as it is, which %s.", allocationName(t.f.Allocations[kept]), why)
		for i, al := range t.f.Allocations {
			if i != kept {
				t.act(t.undo(al))
				t.byHand(t.undoneOn(al), t.undo(al).Command, "%s", t.undo(al).Text)
			}
		}
		return
	}
	choice := say("Decide which one keeps the address: nothing that is known decides it. Whoever runs them knows which of them clients mean by it.")
	for i, keep := range t.f.Allocations {
		a := either(allocationName(keep) + " keeps the address")
		for k, al := range t.f.Allocations {
			if k != i {
				a.Actions = append(a.Actions, t.undo(al))
			}
		}
		choice.Choice = append(choice.Choice, a)
	}
	t.act(choice)
	t.byHand("", "", "Decide which one keeps %s, %s, and end the other one: ipwitness audit %[1]s says how.", t.f.Address,
		strings.Join(each(t.f.Allocations, func(al **verdict.Allocation) string { return allocationName(*al) }), " or "))
}

// oldest returns the index of the allocation that was made first; -1 if that is not known.
func (t *telling) oldest() int {
	first := -1
	for i, al := range t.f.Allocations {
		switch {
		case al.AllocatedAt == 0:
			return -1
		case first < 0 || al.AllocatedAt < t.f.Allocations[first].AllocatedAt:
			first = i
		}
	}
	for i, al := range t.f.Allocations {
		if i != first && al.AllocatedAt == t.f.Allocations[first].AllocatedAt {
			return -1
		}
	}
	return first
}

// undo returns the action that ends an allocation together with its workload.
func (t *telling) undo(al *verdict.Allocation) Action {
	if al.Pod != "" {
		return say("Delete pod %s/%s, so that it gets another address: its controller, if it has one, makes a new one.", al.Namespace, al.Pod).by("", deletePod(al.Namespace, al.Pod))
	}
	return say("Stop %s, and start it anew, so that it gets another address; if it is no more, take its record away (%s).", allocationName(al), allocationPlace(al))
}

// undoneOn returns the node on which an allocation is ended; empty for any host with kubectl.
func (t *telling) undoneOn(al *verdict.Allocation) string {
	if al.Pod != "" {
		return ""
	}
	return t.node()
}

// intendedNotObserved: an owner does not have what it was meant to have.
func (t *telling) intendedNotObserved() {
	t.told.Summary = fmt.Sprintf("%s was meant to have %s, and no interface in it has it. Who reaches for it there reaches nobody, or somebody else.",
		capital(t.holder()), t.f.Address)
	if t.f.Source != "" {
		t.evidence("It was to have the address: %s says so.", intends(t.f.Source))
	}
	t.bookings()
	t.act(say("See what it has instead.").by("", "ipwitness owners "+argument(cmp.Or(t.ownerName(), t.f.Address.String()))))
	t.advise("Look for what took the address away: a script or a sidecar with NET_ADMIN, an interface that is down, a CNI plugin that failed half-way (the kubelet's log and the events of the pod say so).")
	t.restart("its sandbox is set up anew, with all of its addresses")
	t.closing()
}

// intends names who means an owner to have an address.
func intends(source string) string {
	switch source {
	case "cri":
		return "the container runtime (CRI)"
	case "cni-result":
		return "the result of its CNI plugin (/var/lib/cni/results)"
	case "kubernetes":
		return "the Kubernetes API (Pod.status.podIPs)"
	}
	return source
}

// closing says how the finding ends.
func (t *telling) closing() {
	t.act(say("The finding is over by itself as soon as IPAM and the kernels agree. See that it is.").by("", "ipwitness audit "+t.f.Address.String()))
}

// holder names who has the address.
func (t *telling) holder() string {
	if t.owner == nil {
		return "somebody who is not known"
	}
	return placed(t.owner)
}

// ownerName is the owner as NAMESPACE/POD, empty where it is no pod.
func (t *telling) ownerName() string {
	if t.owner == nil || t.owner.Kind() != verdict.Pod {
		return ""
	}
	namespace, name := t.owner.Named()
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// node is the one that a node's own pool is of; empty for a pool of the whole cluster.
func (t *telling) node() string {
	if t.pool.Node == nil {
		return ""
	}
	return t.pool.Node.Name
}

// since says for how long it has been so.
func (t *telling) since() string {
	if t.f.Since == 0 {
		return ""
	}
	return ", since " + stampText(t.f.Since)
}

// holding tells who has the address, by whom that is witnessed.
func (t *telling) holding() {
	for i := range t.f.Owners {
		o := &t.f.Owners[i]
		fact := fmt.Sprintf("The kernel of node %s has %s on %s", o.Node.Name, t.f.Address, placed(o))
		if o.Namespace != nil && o.Namespace.Netns != "" {
			fact += ", network namespace " + o.Namespace.Netns
		}
		if at := o.AssignedAt(); at != 0 {
			fact += ", since " + stampText(at) + " by its clock"
		}
		var read verdict.Stamp
		for _, c := range o.Claims {
			if c.Kind == verdict.Assigned {
				read = max(read, c.Last)
			}
		}
		if read != 0 {
			fact += ", last read " + stampText(read)
		}
		t.evidence("%s.", fact)
	}
}

// bookings tell what IPAM says of the address.
func (t *telling) bookings() {
	for _, al := range t.f.Allocations {
		fact := fmt.Sprintf("%s books it for %s", capital(allocationPlace(al)), allocationName(al))
		if al.AllocatedAt != 0 {
			fact += ", since " + stampText(al.AllocatedAt)
		}
		t.evidence("%s.", fact)
	}
}

// history tells what IPAM said before.
func (t *telling) history() {
	for _, past := range t.f.Past {
		if t.owner == nil || past.Owner != t.owner.ID || past.Allocation == nil || slices.ContainsFunc(t.f.Allocations, past.Allocation.Is) {
			continue
		}
		t.evidence("Until %s %s booked it for %s.", stampText(past.Since), allocationPlace(past.Allocation), allocationName(past.Allocation))
	}
}

// fullness tells how full the pool is.
func (t *telling) fullness() {
	if t.use.Size > 0 {
		t.evidence("%s", fullness(t.use, t.pool))
	}
}

// exhaustion says when the pool has none left, where that is soon.
func (t *telling) exhaustion() string {
	switch {
	case t.use.Size > 0 && t.use.Allocated >= t.use.Size:
		return " The pool has none left."
	case t.use.ExhaustedIn > 0:
		return fmt.Sprintf(" At the rate of the last hour the pool has none left in %s.", secondsText(t.use.ExhaustedIn))
	}
	return ""
}
