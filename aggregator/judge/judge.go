package judge

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// judge judges one address and publishes the outcome. The caller holds the facts for reading.
func (w *worker) judge(item *facts.Item) {
	s, a := w.shards, item.Address
	e := w.entries[a]
	in := w.builder.Case(a, e != nil && e.disputed())
	in.Vanished, in.Former = item.Vanished, nil
	if e != nil {
		in.Conflicts, in.Past, in.Before, in.Former = w.remembered(e), e.pastOf(in), slices.Concat(e.found, e.recalled.Orphans), e.formerOwners()
	}
	out := w.verdicts.Judge(in)
	if len(out.Expired) > 0 {
		w.expired = append(w.expired, expired{item, w.builder.Refs(out.Expired)})
		return // it is judged again without them
	}

	watched := s.Facts.OwnersWatched()
	var before []verdict.Owner
	known := watched || s.Policy.ReusedWithin > 0
	if known {
		before, known = w.before(e, item)
	}
	if watched && known {
		w.keep() // subscribers may retain the owners
		w.publishOwners(a, out.Owners, before, item.Pods && (e == nil || e.owners == nil))
	}
	if s.Policy.ReusedWithin > 0 {
		in.Former = w.former(e, item, in, before, out.Owners)
	}
	if before == nil && e != nil {
		before = e.owners
	}
	w.reportWireOwners(out.Owners, before)
	w.remember(e, a, in, &out, item)
	plain := len(out.Owners) == 1 && out.Owners[0].State == verdict.Live && out.Owners[0].Excluded == nil
	if e := w.entries[a]; e != nil {
		plain = plain && !e.disputed() && len(e.found) == 0 && len(e.former) == 0 && !e.cloned
	}
	s.Facts.Settle(a, plain)
}

// keep makes the case and the judgement valid beyond the next ones.
func (w *worker) keep() {
	w.builder.Keep()
	w.verdicts.Keep()
}

// maxFormer is the number of addresses per goroutine whose former owners are remembered. That limits
// their memory if many owners leave at the same time.
const maxFormer = 1 << 14

// former returns the owners that have recently left an address. before are the owners of the last
// judgement. Owners that a snapshot no longer has have left at an unknown time.
func (w *worker) former(e *entry, item *facts.Item, in *verdict.Case, before, now []verdict.Owner) []verdict.Former {
	var former []verdict.Former
	if e != nil {
		former = e.formerOwners()
	}
	if item.Listed || !item.Touched() || len(former) == 0 && w.withFormer >= maxFormer {
		return former
	}
	return audit.Departed(former, before, now, in.Now)
}

// before returns the owners of the last judgement, if they are known.
func (w *worker) before(e *entry, item *facts.Item) (owners []verdict.Owner, known bool) {
	switch {
	case e != nil && e.owners != nil:
		return e.owners, true
	case !w.lists(item.Address): // also if nobody watched when the address changed, so that nothing was derived
		return nil, true
	case e == nil || item.Touched():
		return item.Before, item.Derived
	}
	s := w.shards // only the time has changed since the last judgement
	c := w.second.Case(item.Address, false)
	c.Now = e.judgedAt
	judged := s.Policy.Judge(c)
	w.second.Keep()
	return judged.Owners, true
}

// lists reports whether the index has an address, which then had owners at its last judgement.
func (w *worker) lists(a index.Address) bool {
	_, there := w.shards.index.Get(From(a))
	return there
}

// remember stores the outcome of a judgement, and publishes the changes.
func (w *worker) remember(e *entry, a index.Address, in *verdict.Case, out *verdict.Judgement, item *facts.Item) {
	w.count(e, a, out.Owners, item.New && len(in.Allocations) == 0)
	var found audit.Result
	audited := w.audits(e, in, out)
	if audited {
		found = audit.Address(w.shards.Policy, in, out)
	}
	again := out.Again
	if found.Again != 0 && (again == 0 || found.Again < again) {
		again = found.Again
	}
	plain := len(out.Owners) <= 1 && len(out.Conflicts) == 0 && !out.Contested && len(found.Findings) == 0 && len(found.Past) == 0 && len(found.Former) == 0 && len(out.Clones) == 0
	switch {
	case e == nil && plain && again == 0:
		return
	case e == nil:
		e = &entry{addr: a}
		w.entries[a] = e
	}
	if plain && e.bare() { // its owner can be derived, so nothing is kept of the case
		e.judgedAt = in.Now
		w.check(in, out)
		w.schedule(e, again)
		w.settle(e)
		return
	}
	w.keep()
	e.owners, e.judgedAt = out.Owners, in.Now
	for i := range out.Ended {
		over := e.conflicts[e.conflict(out.Ended[i].ID)].End(&out.Ended[i], out.Owners)
		w.takeConflict(e, &over, item)
	}
	for i := range out.Conflicts {
		w.takeConflict(e, &out.Conflicts[i], item)
	}
	if out.Contested || e.contesting != nil {
		w.contest(e, out.Contested)
	}
	w.check(in, out)
	if audited {
		before := e.found
		if e.active() && !slices.Equal(e.past, found.Past) {
			again = in.Now // the cause of the conflict may depend on the new past
		}
		w.withFormer += min(1, len(found.Former)) - min(1, len(e.former))
		e.past, e.found, e.former = found.Past, found.Findings, found.Former
		w.shards.Listener.Audited(a, out.Owners, e.found, before, e.active())
	}
	if len(out.Clones) > 0 || e.cloned {
		e.cloned = len(out.Clones) > 0
		w.shards.Listener.Cloned(a, out.Clones)
	}
	w.schedule(e, again)
	w.forgetOld(e)
	w.settle(e)
}

// schedule sets when an entry is judged again even if nothing changes, 0 for never.
func (w *worker) schedule(e *entry, again verdict.Stamp) {
	if again != 0 {
		w.arm(e, again)
	} else if !e.active() { // an active conflict may wait for the end of its acknowledgement
		w.disarm(e)
	}
}

// audits reports whether an address must be audited.
func (w *worker) audits(e *entry, in *verdict.Case, out *verdict.Judgement) bool {
	return len(in.Former)+len(in.Beliefs)+len(in.Endpoints) > 0 || e != nil && (len(e.past)+len(e.found) > 0 || !e.recalled.isEmpty()) || len(in.Allocations) > 0 || len(in.Vanished) > 0 || len(in.Pools)+len(in.ServicePools) > 0 || len(out.Spoofs) > 0 ||
		slices.ContainsFunc(in.Nodes, func(n verdict.NodeFacts) bool { return len(n.Subnets) > 1 }) ||
		slices.ContainsFunc(out.Owners, func(o verdict.Owner) bool {
			return o.Orphaned || o.DADFailed() || o.Copies() != nil || o.Announced() != nil || o.WouldAnswer() || len(out.Owners) > 1 && o.ExcludedBy(verdict.RuleReachableVia)
		})
}

// active reports whether the address has an active conflict.
func (e *entry) active() bool {
	return slices.ContainsFunc(e.conflicts, func(c *verdict.Conflict) bool { return c.Active() })
}

// count updates the index entry of an address and the numbers of owners by scope. isNew is set if
// the address is not in the index yet.
func (w *worker) count(e *entry, a index.Address, now []verdict.Owner, isNew bool) {
	p := w.shards.index
	var place Place
	there := false
	if e != nil || !isNew {
		place, there = p.Get(From(a))
	}
	switch {
	case there && place.kind != several:
		if len(now) == 1 && uint8(now[0].Scope.Kind) == place.kind {
			return
		}
		w.counts[place.kind].Add(-1)
	case there:
		for i := range e.owners {
			w.counts[e.owners[i].Scope.Kind].Add(-1)
		}
	}
	for i := range now {
		w.counts[now[i].Scope.Kind].Add(1)
	}
	switch len(now) {
	case 0:
		if there {
			p.Delete(From(a))
		}
	case 1:
		p.Put(Place{a.Bytes(), uint8(now[0].Scope.Kind)})
	default:
		p.Put(Place{a.Bytes(), several})
	}
}

// publishOwners publishes the changes of the owners of an address. pods is set if the Kubernetes API
// changed pods among them; the previous owners already include that change.
func (w *worker) publishOwners(a index.Address, now, before []verdict.Owner, pods bool) {
	l := w.shards.Listener
	for i := range now {
		o := &now[i]
		was := findOwner(before, i, o.ID)
		switch {
		case was == nil:
			l.OwnerChanged(Added, a, o, nil, now)
		case !o.Same(was), pods && o.Namespace != nil && o.Namespace.Who.Kind() == verdict.Pod:
			l.OwnerChanged(Updated, a, o, was, now)
		}
	}
	for i := range before {
		if was := &before[i]; findOwner(now, i, was.ID) == nil {
			gone := *was
			gone.State = verdict.Gone
			l.OwnerChanged(Removed, a, &gone, was, before)
		}
	}
}

// reportWireOwners reports the owners that are, or were, only seen on the wire, because their pods
// may have been meant to have the address.
func (w *worker) reportWireOwners(now, before []verdict.Owner) {
	for i := range now {
		if onlyOnWire(&now[i]) {
			w.shards.Listener.Spoke(&now[i])
		}
	}
	for i := range before {
		if o := findOwner(now, i, before[i].ID); onlyOnWire(&before[i]) && (o == nil || !onlyOnWire(o)) {
			w.shards.Listener.Spoke(&before[i])
		}
	}
}

// onlyOnWire reports whether an owner is only seen on the wire, or its namespace lacks intended
// addresses.
func onlyOnWire(o *verdict.Owner) bool {
	return o.Namespace != nil && (!o.Assigned || o.Namespace.Intended != "")
}

// findOwner returns the owner with an ID; nil if there is none. It looks at the position hint
// first.
func findOwner(owners []verdict.Owner, hint int, id string) *verdict.Owner {
	if hint < len(owners) && owners[hint].ID == id {
		return &owners[hint]
	}
	for i := range owners {
		if owners[i].ID == id {
			return &owners[i]
		}
	}
	return nil
}

// takeConflict stores a conflict and publishes how it changed.
func (w *worker) takeConflict(e *entry, c *verdict.Conflict, item *facts.Item) {
	s := w.shards
	kept := new(*c)
	before, opened, changed := kept, c.Active(), true
	if at := e.conflict(c.ID); at >= 0 {
		before = e.conflicts[at]
		opened, changed = opened && !before.Active(), !before.Same(c)
		e.conflicts[at] = kept
	} else {
		e.conflicts = append(e.conflicts, kept)
	}
	s.Conflicts.put(e.addr, kept)
	until, lapsed := s.Listener.Acknowledged(kept)
	if until != 0 {
		w.arm(e, until)
	}
	if !changed && !lapsed && (!item.Republish || !c.Active()) {
		return
	}
	if opened && item.At != 0 {
		s.Listener.Detected(item.Residence + s.Clock().Sub(item.At))
	}
	s.Listener.ConflictChanged(kept, before, opened)
	if !c.Active() {
		s.Conflicts.addResolved(conflictPlace{e.addr, c.ID, c.ResolvedAt})
		s.Forget()
	}
}

// contest asks the nodes with claims to an address to watch it more closely, or to stop doing so.
func (w *worker) contest(e *entry, contested bool) {
	if !contested {
		for p := range e.contesting {
			p.Contest(e.addr.Addr(), false)
		}
		e.contesting = nil
		return
	}
	before := e.contesting
	e.contesting = make(map[facts.Peer]struct{})
	for _, n := range w.shards.Facts.NodesOf(e.addr) {
		if n.Peer == nil {
			continue
		}
		if _, ok := before[n.Peer]; !ok {
			n.Peer.Contest(e.addr.Addr(), true)
		}
		e.contesting[n.Peer] = struct{}{}
	}
	for p := range before {
		if _, still := e.contesting[p]; !still {
			e.contesting[p] = struct{}{} // it must be notified when the dispute is over
		}
	}
}

// check asks nodes to read an address again.
func (w *worker) check(in *verdict.Case, out *verdict.Judgement) {
	for _, rec := range out.Check {
		if n := w.shards.Facts.Node(rec); n != nil && n.Peer != nil {
			n.Peer.Check(in.Address)
		}
	}
}
