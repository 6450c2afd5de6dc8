package verdict

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// What a finding is told as: the words, and the commands that would put IPAM right.
// Nothing here runs anything. Each IPAM has its remedies in a file of its own.

// Told is a finding in words.
type Told struct {
	// Summary is one or two sentences for a person.
	Summary string
	// Evidence lists the facts that the finding follows from.
	Evidence []string
	// Remedy is the steps to take, in order.
	Remedy []Action
	// Fixes are commands that would put it right, in order.
	Fixes []Fix
}

// Tell puts a finding about one address into words. The pool's use may be the zero
// value where nothing is known of it.
func (p *Policy) Tell(f *Finding, use PoolUse) Told {
	t := &telling{policy: p, f: f, pool: f.Pool, use: use}
	if t.pool == nil {
		t.pool = &Pool{}
	}
	if len(f.Owners) > 0 {
		t.owner = &f.Owners[0]
	}
	t.booked = &Allocation{}
	if len(f.Allocations) > 0 {
		t.booked = f.Allocations[0]
	}
	switch f.Kind {
	case FindingInUseUnallocated:
		t.inUseUnallocated()
	case FindingBookedElsewhere:
		t.bookedElsewhere()
	case FindingLeaked:
		t.leaked()
	case FindingDoubleAllocated:
		t.doubleAllocated()
	case FindingIntendedNotObserved:
		t.intendedNotObserved()
	case FindingAddressSpoofed:
		t.addressSpoofed()
	case FindingMACCloned:
		t.macCloned()
	case FindingSharedAddressAnswered:
		t.sharedAnswered()
	}
	return t.told.readable()
}

// telling is one finding that is being put into words.
type telling struct {
	policy *Policy
	f      *Finding
	pool   *Pool
	use    PoolUse
	// owner is who holds the address, nil for nobody; booked is what IPAM says of it,
	// empty for nothing.
	owner  *Owner
	booked *Allocation
	told   Told
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
		t.f.Address, t.holder(), t.pool.call(), t.pool.next())
	if t.pool.IPAM == Cilium {
		t.told.Summary = fmt.Sprintf("%s is held by %s, and no CiliumEndpoint tells of that. If Cilium's agent does not know of it either, it gives the address to one of the next pods there.",
			t.f.Address, t.holder())
	}
	t.holding()
	switch p := t.pool; {
	case p.State == PoolMissing:
		t.evidence("%s has no records at all%s.", p.begin(), p.lost())
	case p.LostAt != 0:
		t.evidence("%s has no record of the address. It lost %s at once%s.", p.begin(), plural(p.Lost, "record", "records"), p.lost())
	default:
		t.evidence("%s has no record of the address.", p.begin())
	}
	t.history()
	t.fullness()
	switch t.remedied() {
	case HostLocal:
		t.reserveHostLocal()
	case Whereabouts:
		t.reserveWhereabouts()
	case Calico:
		t.reserveCalico()
	case Cilium:
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
		t.f.Address, t.holder(), t.pool.call(), t.booked.call(), t.elsewhereEnds())
	t.holding()
	t.bookings()
	t.history()
	t.fullness()
	switch t.remedied() {
	case HostLocal:
		t.rebookHostLocal()
	case Whereabouts:
		t.rebookWhereabouts()
	case Calico:
		t.rebookCalico()
	case Cilium:
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
	if t.owner != nil && t.owner.Kind() == Host && t.pool.IPAM != "" {
		return ofNode
	}
	return t.pool.IPAM
}

// leaveOut has a pool leave out the address of a node itself, or Calico book it for its
// tunnel.
func (t *telling) leaveOut() {
	node, name := t.owner.Node.Name, t.owner.kubernetesName()
	if t.pool.IPAM == Calico && t.owner.Interface != nil && t.owner.Interface.tunnel() != "" {
		t.act(say("Restart Calico on node %s: it looks then whether the address of its tunnel is booked, and has it booked.", node).by("", restartCalicoNode(name)))
		t.byHand("", restartCalicoNode(name), "Restart calico-node on node %s: it has an address booked for its %s.", node, t.owner.Interface.Name)
		return
	}
	how := "give it a range that has no address of a node"
	switch t.pool.IPAM {
	case HostLocal:
		how = "set rangeStart and rangeEnd in " + cmp.Or(t.pool.Config, "its CNI configuration") + " so that it is outside"
	case Whereabouts:
		how = "write it into exclude of its NetworkAttachmentDefinition"
	case Calico:
		how = fmt.Sprintf("make an IPReservation with it (reservedCIDRs: [%s])", netip.PrefixFrom(t.f.Address, t.f.Address.BitLen()))
	}
	t.advise("The address is node %s's own: no restart changes that. Have %s leave it out: %s. A range in which the nodes themselves are should be another one.", node, t.pool.call(), how)
	t.byHand(t.node(), "", "Have %s leave out %s, which is node %s's own: %s.", t.pool.call(), t.f.Address, node, how)
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
	case t.pool.IPAM == Cilium:
		return "If Cilium's agent has it so, too, the address is freed with that one, and given to another pod while it is in use."
	case t.pool.IPAM == Calico && own:
		return "Calico's garbage collector takes such a booking for leaked and frees the address 15 minutes after it finds it (leakGracePeriod); then another pod gets the address."
	}
	return "When that one ends, the address is freed, and given to another pod while it is in use."
}

// leaked: IPAM has given the address to somebody who is not there.
func (t *telling) leaked() {
	t.told.Summary = fmt.Sprintf("%s has %s booked for %s, and nobody alive holds it%s. No pod gets it while that is so.%s",
		t.pool.begin(), t.f.Address, t.booked.call(), t.since(), t.exhaustion())
	t.bookings()
	t.evidence("No kernel of a node that the pool serves has the address, by what their agents report.")
	t.fullness()
	switch t.pool.IPAM {
	case HostLocal:
		t.releaseHostLocal()
	case Whereabouts:
		t.releaseWhereabouts()
	case Calico:
		t.releaseCalico()
	case Cilium:
		t.releaseCilium()
	}
	t.closing()
}

// doubleAllocated: IPAM has given the address twice.
func (t *telling) doubleAllocated() {
	names := each(t.f.Allocations, func(al **Allocation) string { return (*al).call() })
	t.told.Summary = fmt.Sprintf("%s has %s twice: for %s. As soon as both are up, it is a duplicate.",
		t.pool.begin(), t.f.Address, list(names))
	switch t.pool.IPAM {
	case Cilium:
		t.told.Summary = fmt.Sprintf("%s has %s twice: for %s. One of them may be left over; if both are up, it is a duplicate.",
			t.pool.begin(), t.f.Address, list(names))
	case KubernetesAPI:
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
		t.advise("Leave %s as it is, which %s.", t.f.Allocations[kept].call(), why)
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
		a := either(keep.call() + " keeps the address")
		for k, al := range t.f.Allocations {
			if k != i {
				a.Actions = append(a.Actions, t.undo(al))
			}
		}
		choice.Choice = append(choice.Choice, a)
	}
	t.act(choice)
	t.byHand("", "", "Decide which one keeps %s, %s, and end the other one: ipwitness audit %[1]s says how.", t.f.Address,
		strings.Join(each(t.f.Allocations, func(al **Allocation) string { return (*al).call() }), " or "))
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
func (t *telling) undo(al *Allocation) Action {
	if al.Pod != "" {
		return say("Delete pod %s/%s, so that it gets another address: its controller, if it has one, makes a new one.", al.Namespace, al.Pod).by("", deletePod(al.Namespace, al.Pod))
	}
	return say("Stop %s, and start it anew, so that it gets another address; if it is no more, take its record away (%s).", al.call(), al.place())
}

// undoneOn returns the node on which an allocation is ended; empty for any host with kubectl.
func (t *telling) undoneOn(al *Allocation) string {
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
	return t.owner.placed()
}

// ownerName is the owner as NAMESPACE/POD, empty where it is no pod.
func (t *telling) ownerName() string {
	if t.owner == nil || t.owner.Kind() != Pod {
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
		fact := fmt.Sprintf("The kernel of node %s has %s on %s", o.Node.Name, t.f.Address, o.placed())
		if o.Namespace != nil && o.Namespace.Netns != "" {
			fact += ", network namespace " + o.Namespace.Netns
		}
		if at := o.AssignedAt(); at != 0 {
			fact += ", since " + stampText(at) + " by its clock"
		}
		var read Stamp
		for _, c := range o.Claims {
			if c.Kind == Assigned {
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
		fact := fmt.Sprintf("%s books it for %s", capital(al.place()), al.call())
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
		t.evidence("Until %s %s booked it for %s.", stampText(past.Since), past.Allocation.place(), past.Allocation.call())
	}
}

// fullness tells how full the pool is.
func (t *telling) fullness() {
	if t.use.Size > 0 {
		t.evidence("%s", t.use.text(t.pool))
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

// restart advises to restart the holder, and says what that is good for. The command
// is to be run by hand.
func (t *telling) restart(then string) {
	actions, fix := t.restarting(then)
	t.act(actions...)
	if fix.What != "" {
		t.fix(fix)
	}
}

// restarting returns the steps that restart the holder; none if the holder is not known.
func (t *telling) restarting(then string) ([]Action, Fix) {
	if t.owner == nil {
		return nil, Fix{}
	}
	w := t.owner.Workload()
	switch {
	case t.owner.static():
		s := say("%s, so that %s.", t.owner.again(), then)
		return []Action{s}, Fix{Node: t.owner.Node.Name, What: s.Text, Manual: true}
	case w.OnlyNetns():
		del := fmt.Sprintf("ip -n %s addr del %s/%d dev %s", quote(w.Name), t.f.Address, t.owner.prefixLength(), quote(t.owner.Interface.Name))
		have := say("See whether %s can have another address: whoever made it can tell.", t.owner.placed()).or(
			either("it can", say("Take the address away from it, and see that what set it does not set it again.").by(t.owner.Node.Name, del)),
			either("it cannot do without this very address", outOfRange([]*Pool{t.pool}, t.f.Address)...))
		return []Action{have}, Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Give %s another address than %s, or have %s leave that out: ipwitness audit %[2]s says how.", t.owner.name(), t.f.Address, t.pool.call()), Manual: true}
	case w.Kind != Pod || w.Name == "" || w.Namespace == "":
		return []Action{say("Restart %s, so that %s.", t.owner.placed(), then)}, Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Restart %s, so that %s.", t.owner.name(), then), Manual: true}
	}
	return t.owner.deletion(), Fix{Command: deletePod(w.Namespace, w.Name), What: fmt.Sprintf("Restart pod %s/%s: %s.", w.Namespace, w.Name, then), Manual: true}
}

// restartNow is restart with a command that may be run as it is, where something makes
// a new pod: it waits for that, so that of several not all are gone at once. A Job's pod,
// or that of a virtual machine, is for a person to end.
func (t *telling) restartNow(then string) {
	t.restart(then)
	if t.owner == nil || t.owner.Pod == nil || t.owner.Workload().UID == "" {
		return
	}
	w := t.owner.Workload()
	restart := "  " + deletePod(w.Namespace, w.Name)
	switch p := t.owner.Pod; p.ControllerKind {
	case "Deployment", "StatefulSet", "DaemonSet":
		restart = script(restart, "  kubectl rollout status -n "+quote(w.Namespace)+" "+quote(strings.ToLower(p.ControllerKind)+"/"+p.Controller)+" --timeout=5m")
	case "ReplicaSet":
	default:
		return
	}
	t.told.Fixes[len(t.told.Fixes)-1] = Fix{
		What: fmt.Sprintf("Restart pod %s/%s, which holds %s: %s.", w.Namespace, w.Name, t.f.Address, then),
		Command: script(
			"if uid=$(kubectl get pod -n "+quote(w.Namespace)+" "+quote(w.Name)+" --ignore-not-found -o 'jsonpath={.metadata.uid}') && [ \"$uid\" = "+quote(w.UID)+" ]; then",
			restart,
			"else",
			"  echo "+quote("pod "+w.Namespace+"/"+w.Name+" of then is gone: nothing to do"),
			"fi"),
	}
}

// prefixLength returns the prefix length in bits with which the owner's kernel has the address.
func (o *Owner) prefixLength() uint8 {
	for _, c := range o.Claims {
		if c.Counts() && c.Interface.Is(o.Interface) {
			return c.PrefixLength
		}
	}
	return o.Claims[0].PrefixLength
}

// deletePod is the command that deletes a pod.
func deletePod(namespace, name string) string {
	return "kubectl delete pod -n " + quote(namespace) + " " + argument(name)
}

// call names a pool in a sentence.
func (p *Pool) call() string {
	switch {
	case p.IPAM == HostLocal && p.Node != nil:
		return fmt.Sprintf("host-local on node %s (%s)", p.Node.Name, p.Name)
	case p.IPAM == Whereabouts:
		return "whereabouts (IPPool " + p.Name + ")"
	case p.IPAM == Calico:
		return "Calico (IPPool " + p.Name + ")"
	case p.IPAM == Cilium && p.Node != nil:
		return "Cilium on node " + p.Node.Name
	case p.IPAM == Cilium:
		return "Cilium (CiliumNode " + p.Name + ")"
	case p.IPAM == KubernetesAPI:
		return "the Kubernetes API"
	case p.IPAM == "":
		return "its IPAM"
	}
	return p.IPAM + " (" + p.Name + ")"
}

// begin names a pool at the beginning of a sentence: names of plugins stay as they are.
func (p *Pool) begin() string {
	if p.IPAM == HostLocal || p.IPAM == Whereabouts {
		return p.call()
	}
	return capital(p.call())
}

// next says who will be given a free address of the pool.
func (p *Pool) next() string {
	switch {
	case p.Node != nil:
		return "one of the next pods that start there"
	case p.IPAM == Whereabouts:
		return "one of the next pods of that network, on whatever node"
	}
	return "one of the next pods, most likely on the same node"
}

// lost says when the pool's records were lost.
func (p *Pool) lost() string {
	if p.LostAt == 0 {
		return ""
	}
	return ": they were lost at " + stampText(p.LostAt)
}

// text says how full a pool is.
func (u PoolUse) text(p *Pool) string {
	if u.Size == 0 {
		return fmt.Sprintf("%s has given %s.", p.begin(), plural(u.Allocated, "address", "addresses"))
	}
	s := fmt.Sprintf("%s has given %d of %s (%s)", p.begin(), u.Allocated, u.count(u.Size), u.percent())
	if u.Leaked > 0 {
		s += fmt.Sprintf(", %d of which nobody holds", u.Leaked)
	}
	if u.ExhaustedIn > 0 {
		s += fmt.Sprintf("; at the rate of the last hour it has none left in %s", secondsText(u.ExhaustedIn))
	}
	return s + "."
}

// count is a number of its addresses in words.
func (u PoolUse) count(n uint64) string {
	of := ""
	if u.Family != "" {
		of = u.Family + " "
	}
	return plural(n, of+"address", of+"addresses")
}

// percent is how much of the pool is given.
func (u PoolUse) percent() string {
	p := float64(u.Allocated) / float64(u.Size) * 100
	if p > 0 && p < 1 {
		return "less than 1 %"
	}
	return fmt.Sprintf("%d %%", int(p))
}

// call names whom an allocation is for.
func (al *Allocation) call() string {
	who := "somebody"
	switch {
	case al.Purpose != "" && al.Node == "":
		who = "the " + al.Purpose // of no node
	case al.Purpose != "":
		who = "the node itself (" + al.Purpose + ")"
	case al.Pod != "":
		who = "pod " + al.Namespace + "/" + al.Pod
	case al.ContainerID != "":
		who = "container " + shortID(al.ContainerID)
		if al.Interface != "" {
			who += " (" + al.Interface + ")"
		}
	}
	if al.Node != "" {
		who += " on node " + al.Node
	}
	return who
}

// place is where an allocation is written.
func (al *Allocation) place() string {
	switch {
	case al.Location != "":
		return al.Location
	case al.Pool != nil && al.Pool.IPAM == HostLocal:
		return strings.TrimSuffix(al.Pool.Name, "/") + "/" + al.Address.String()
	case al.Pool != nil:
		return al.Pool.call()
	}
	return "IPAM"
}

// script joins the lines of a command.
func script(text ...string) string { return strings.Join(text, "\n") }

// stampText is a stamp as people read it.
func stampText(s Stamp) string { return s.Time().Format("2006-01-02 15:04:05 MST") }

// secondsText is a number of seconds as people read it.
func secondsText(seconds float64) string {
	const most = float64(1<<63-1) / float64(time.Second)
	d := time.Duration(min(seconds, most) * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// plural is a number with its noun.
func plural[N ~uint32 | ~uint64 | ~int](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// addressList lists addresses as people do; many are only counted.
func addressList(all []netip.Addr) string {
	return list(each(all, func(a *netip.Addr) string { return a.String() }))
}
