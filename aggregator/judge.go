package aggregator

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// judgedAtOnce is after how many judgements others get the lock.
const judgedAtOnce = 256

// received is what came before a judgement: for the detection time.
type received struct {
	// at is when the message was received, 0 where there is none to measure.
	at verdict.Stamp
	// residence is how long its change was in the agent.
	residence time.Duration
}

// touch has an entry judged at the end of what is being done.
func (s *store) touch(e *entry) {
	if !e.alarm.dirty {
		e.alarm.dirty = true
		s.touched = append(s.touched, e)
	}
}

func (s *store) touchAll(list []*holding) {
	for _, h := range list {
		s.touch(h.entry)
	}
}

// judgeTouched judges what was touched since the stack had base entries. The
// last touched come first, so that who has little to do needs not wait for one
// who has much, and gives up the lock in between.
func (s *store) judgeTouched(base int, r received) {
	s.mergeLinks()
	for n := 1; len(s.touched) > base; n++ {
		last := len(s.touched) - 1
		e := s.touched[last]
		s.touched[last] = nil
		s.touched = s.touched[:last]
		e.alarm.dirty = false
		s.judge(e, r)
		if n%judgedAtOnce == 0 {
			s.sendChecks()
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	if cap(s.touched) > 1<<16 && len(s.touched) == 0 {
		s.touched = nil
	}
	s.sendChecks()
	s.lookAtPools()
}

// judge judges one address and makes the outcome known.
func (s *store) judge(e *entry, r received) {
	in := s.caseOf(e, false)
	out := s.policy.Judge(in)
	if len(out.Expired) > 0 {
		for _, h := range slices.Clone(e.holdings) {
			if slices.Contains(out.Expired, &h.Claim) {
				s.unlist(s.nodeOf(h), h)
			}
		}
		in = s.caseOf(e, false)
		out = s.policy.Judge(in)
	}

	s.takeOwners(e, out.Owners)
	for i := range out.Conflicts {
		s.takeConflict(e, &out.Conflicts[i], r)
	}
	for i := range out.Ended {
		over := e.conflict(out.Ended[i].ID).End(&out.Ended[i], out.Owners)
		s.takeConflict(e, &over, r)
	}
	if out.Contested || e.dispute != nil && e.dispute.told != nil {
		s.contest(e, out.Contested)
	}
	for _, n := range out.Check {
		if n := s.nodes[idOf(n)]; n != nil && n.session != nil {
			s.checks[n] = append(s.checks[n], e.addr)
		}
	}
	if out.Again != 0 {
		s.arm(e, out.Again)
	}
	s.audit(e, in, &out)
	s.noteClones(e, out.Clones)
	if len(e.holdings) == 0 {
		if e.booking == nil {
			s.disarm(e)
		}
		s.table.drop(e)
	}
}

// takeOwners makes known how the owners of an address changed.
func (s *store) takeOwners(e *entry, owners []verdict.Owner) {
	old := e.owners
	e.owners = owners
	for i := range owners {
		o := &owners[i]
		was := findOwner(old, i, o.ID)
		s.ownerCount[o.Scope.Kind]++
		switch {
		case was == nil:
			s.publishOwner(added, e, o, nil)
			s.lackOfSpeaker(o)
		case !was.Same(o):
			s.publishOwner(updated, e, o, was)
			s.lackOfSpeaker(o)
		}
	}
	for i := range old {
		o := &old[i]
		s.ownerCount[o.Scope.Kind]--
		if findOwner(owners, i, o.ID) == nil {
			o.State = verdict.Gone
			s.publishOwner(removed, e, o, nil)
			s.lackOfSpeaker(o)
		}
	}
}

// publishOwner makes an owner known, if anybody listens.
func (s *store) publishOwner(typ watchType, e *entry, o, before *verdict.Owner) {
	if !s.owners.heard(s.clock()) {
		return
	}
	out := event{typ: typ, addr: e.addr, holder: holder{*o, o.Node.Name}, owner: s.ownerProto(e.addr, o)}
	if before != nil {
		out.before = holder{*before, before.Node.Name}
	}
	s.owners.publish(out)
}

// findOwner looks for an owner, first where it is likely to be.
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

// takeConflict makes known how a conflict changed.
func (s *store) takeConflict(e *entry, c *verdict.Conflict, r received) {
	was := e.conflict(c.ID)
	if was == nil {
		d := e.disputed()
		d.conflicts = append(d.conflicts, *c)
		s.byID[c.ID] = e
	}
	opened := c.Active() && (was == nil || !was.Active())
	changed := was == nil || !was.Same(c)
	if was != nil {
		*was = *c
	}
	s.recall(c)
	if s.lapse(e, c) {
		changed = true
	}
	if !changed {
		return
	}
	typ := updated
	if opened {
		typ = added
		if r.at != 0 {
			s.metrics.detection.Observe((r.residence + s.clock().Sub(r.at)).Seconds())
		}
	}
	s.conflicts.publish(event{typ: typ, addr: c.Address, conflict: s.conflictProto(c)})
	if !c.Active() {
		s.resolved = append(s.resolved, ended{e, c.ID, c.ResolvedAt})
		s.forget(s.clock())
	}
}

// ended is a conflict that is over, and kept for a while.
type ended struct {
	entry *entry
	id    string
	at    verdict.Stamp
}

const (
	keepResolved    = 10_000
	keepResolvedFor = 24 * time.Hour
)

// forget drops the conflicts that were over for long enough.
func (s *store) forget(now verdict.Stamp) {
	for len(s.resolved) > 0 && (len(s.resolved) > keepResolved || s.resolved[0].at.Add(keepResolvedFor) <= now) {
		old := s.resolved[0]
		s.resolved[0] = ended{}
		s.resolved = s.resolved[1:]
		c := old.entry.conflict(old.id)
		if c == nil || c.Active() || c.ResolvedAt != old.at {
			continue // it came back
		}
		e := old.entry
		e.dispute.conflicts = slices.DeleteFunc(e.dispute.conflicts, func(c verdict.Conflict) bool { return c.ID == old.id })
		e.settle()
		delete(s.byID, old.id)
		s.table.drop(e)
	}
}

// contest tells the nodes that have claims of an address to look at it more
// closely, or no longer.
func (s *store) contest(e *entry, contested bool) {
	d := e.disputed()
	if !contested {
		for n := range d.told {
			if n.session != nil {
				n.session.contest(e.addr, false)
			}
		}
		d.told = nil
		e.settle()
		delete(s.contested, e)
		return
	}
	if d.told == nil {
		d.told = make(map[*node]struct{})
		s.contested[e] = struct{}{}
	}
	for _, h := range e.holdings {
		n := s.nodeOf(h)
		if _, ok := d.told[n]; !ok && n.session != nil {
			d.told[n] = struct{}{}
			n.session.contest(e.addr, true)
		}
	}
}

// sendChecks asks each node once for all addresses that it is to read again.
func (s *store) sendChecks() {
	for n, addrs := range s.checks {
		if n.session != nil {
			n.session.check(addrs)
		}
		delete(s.checks, n)
	}
}

// answers counts the addresses that a hardware address only ever answered for on a link, and
// the owners that have one of them by their kernels. It stops where that tells a proxy.
func (s *store) answers(l *verdict.Link, mac verdict.MAC) (addresses, owners int) {
	if l == nil {
		return 0, 0
	}
	hw := s.hardware(l.Node, mac)
	if hw == nil {
		return 0, 0
	}
	var answered []*entry
	var owned []string
	for _, h := range hw.claims {
		if h.Link == nil || h.Link.Name != l.Name || slices.Contains(answered, h.entry) || !h.onlyAnswered() {
			continue
		}
		answered = append(answered, h.entry)
		if id := h.entry.assignee(); id != "" && !slices.Contains(owned, id) {
			owned = append(owned, id)
		}
		if len(answered) >= verdict.ManyAnswers || len(owned) >= verdict.SeveralOwned {
			break
		}
	}
	return len(answered), len(owned)
}

// onlyAnswered tells whether a claim of the wire is an answer, and whether its
// sender never claimed the address unasked on that link.
func (h *holding) onlyAnswered() bool {
	if h.Kind != verdict.Answered || h.Weak() {
		return false
	}
	among := h.entry.holdings
	if len(h.mac.claims) < len(among) {
		among = h.mac.claims
	}
	return !slices.ContainsFunc(among, func(o *holding) bool {
		return o.entry == h.entry && o.mac == h.mac && o.link == h.link && !o.Weak() && (o.Kind == verdict.Announced || o.Kind == verdict.Used)
	})
}

// assignee is an owner that has the address by its kernel: the first by id;
// empty for none.
func (e *entry) assignee() (id string) {
	for _, h := range e.holdings {
		if h.mac != nil {
			break // the kernels' come first
		}
		at := h.Interface.Attachment
		if h.Kind != verdict.Assigned || at == verdict.Local || at == verdict.Private {
			continue
		}
		if id == "" || h.Interface.Namespace.ID < id {
			id = h.Interface.Namespace.ID
		}
	}
	return id
}

// hardware is a node's entry of a MAC that claims name; nil where there is none.
func (s *store) hardware(rec *verdict.Node, mac verdict.MAC) *hardware {
	if n := s.nodes[idOf(rec)]; n != nil {
		return n.hardware.get(mac)
	}
	return nil
}

// explain says why an address is, or is not, in conflict.
func (s *store) explain(a netip.Addr) (verdict.Explanation, []verdict.Conflict) {
	e := s.table.get(a)
	if e == nil {
		e = &entry{addr: a}
	}
	return s.policy.Explain(s.caseOf(e, true)), e.conflicts()
}
