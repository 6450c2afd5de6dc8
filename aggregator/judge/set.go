package judge

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A FindingsListener is notified of findings. Its methods are called while the facts are held.
type FindingsListener interface {
	// FindingChanged is called with a new or changed finding and with its previous version, which
	// is nil for a new finding.
	FindingChanged(now, was *Found)
	// FindingEnded is called when a finding has ended. superseded is set if a conflict replaced it.
	FindingEnded(over *Found, superseded bool)
}

// Set holds the current findings and publishes their changes.
type Set struct {
	facts    *facts.Facts
	pools    *Pools
	listener FindingsListener
	// inOrder has the findings in the order of lists.
	inOrder *index.Set[*Found]

	// awaits reports whether facts are awaited without which a finding is not found.
	awaits func(*verdict.Finding) bool
	wake   signal

	mu    sync.Mutex
	byID  map[string]*Found
	kinds map[string]int
	// doubtful are the findings that end unless they are found again before the facts are complete.
	doubtful map[string]struct{}
	// joining is held while a finding about several addresses of an interface is published. parts has the
	// findings about each address, in the order of the addresses.
	joining sync.Mutex
	parts   map[string][]verdict.Finding
	// waiting has the findings that are not published yet, because they may disappear by themselves, with
	// their nodes.
	waiting map[string][]string
}

// Found is a finding with the time at which it began. There may be a hundred thousand of them, so
// their text is made only when they are published. It is immutable.
type Found struct {
	*verdict.Finding
	Place FindingPlace
	Since verdict.Stamp
	// Recalled is set if the finding was known before the start, and Unjudged until it is found again.
	// Only what filters need of it is known then: the nodes are those of an Overlap.
	Recalled, Unjudged bool
}

// Less reports whether a finding comes before another one in lists.
func (f *Found) Less(o *Found) bool { return f.Place.Compare(o.Place) < 0 }

// InOrder returns the findings in the order of lists.
func (f *Set) InOrder() *index.Set[*Found] { return f.inOrder }

// Audited publishes the findings of an audit of an address, and ends the previous ones that are
// gone. The caller holds the facts.
func (f *Set) Audited(_ index.Address, owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	// Old findings end first, because a finding of a renamed node gets another ID.
	for i := range before {
		was := &before[i]
		at := slices.IndexFunc(found, func(now verdict.Finding) bool { return now.ID == was.ID })
		if at < 0 {
			f.waits(was, false)
		}
		switch {
		case at >= 0 && (was.Waiting || !found[at].Waiting):
		case was.Source == audit.SourceLooped:
			f.join(was, false, contested)
		case at < 0 && slices.ContainsFunc(found, func(now verdict.Finding) bool { return renames(&now, was, before) }):
			f.conclude(was.ID, contested)
		default:
			f.End(was.ID, contested)
		}
	}
	for i := range found {
		now := &found[i]
		publish := !now.Waiting || f.known(now)
		f.waits(now, !publish)
		switch {
		case now.Source == audit.SourceLooped:
			f.join(now, true, false)
		case publish:
			now.Waiting = false // also in what the address remembers
			f.Publish(now)
			f.pools.updateOwners(now, owners)
		}
	}
}

// renames reports whether a finding is a previous one under the new name of its node.
func renames(now, was *verdict.Finding, before []verdict.Finding) bool {
	return now.Kind == was.Kind && len(now.Owners) > 0 && len(was.Owners) > 0 && now.Owners[0].ID == was.Owners[0].ID &&
		!slices.ContainsFunc(before, func(b verdict.Finding) bool { return b.ID == now.ID })
}

// join publishes a finding about several addresses of an interface after that about one of them has changed, or has
// ended (is is false). After a start, it waits for all addresses from before: decide publishes those that are found again.
func (f *Set) join(part *verdict.Finding, is, superseded bool) {
	f.joining.Lock()
	defer f.joining.Unlock()
	parts := slices.DeleteFunc(f.parts[part.ID], func(p verdict.Finding) bool { return p.Address == part.Address })
	if is {
		parts = append(parts, *part)
	}
	if len(parts) == 0 {
		delete(f.parts, part.ID)
		f.End(part.ID, superseded)
		return
	}
	slices.SortFunc(parts, func(a, b verdict.Finding) int { return a.Address.Compare(b.Address) })
	f.parts[part.ID] = parts
	whole := joined(parts)
	if was := f.Get(part.ID); was != nil && was.Unjudged && slices.ContainsFunc(append(audit.Addresses(was.Finding), was.Address), func(a netip.Addr) bool {
		return !slices.ContainsFunc(parts, func(p verdict.Finding) bool { return p.Address == a })
	}) {
		return
	}
	f.Publish(&whole)
}

// joined returns the finding about all addresses of an interface.
func joined(parts []verdict.Finding) verdict.Finding {
	whole := parts[0]
	if len(parts) > 1 {
		for i := range parts {
			whole.Addresses = append(whole.Addresses, parts[i].Address)
		}
	}
	return whole
}

// known reports whether a finding that may disappear by itself has lasted since before the start.
func (f *Set) known(now *verdict.Finding) bool {
	was := f.Get(now.ID)
	return was != nil && was.Recalled && (len(was.Owners) == 0 || len(now.Owners) == 0 || was.Owners[0].ID == now.Owners[0].ID)
}

// waits records whether a finding is waiting, unless it does so for minutes.
func (f *Set) waits(one *verdict.Finding, is bool) {
	if one.Kind == verdict.FindingLeaked {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if is {
		f.waiting[one.ID] = audit.Nodes(one)
	} else {
		delete(f.waiting, one.ID)
	}
}

// Waits reports whether a finding about a node is waiting that would be published within seconds.
func (f *Set) Waits(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, nodes := range f.waiting {
		if slices.Contains(nodes, node) {
			return true
		}
	}
	return false
}

// Publish publishes a finding if it is new or has changed. The caller holds the facts.
func (f *Set) Publish(one *verdict.Finding) {
	one = new(*one)
	now := &Found{Finding: one, Place: PlaceOf(one), Since: f.facts.Clock()}
	f.mu.Lock()
	was := f.byID[one.ID]
	if was != nil {
		now.Since, now.Recalled = was.Since, was.Recalled
	}
	delete(f.doubtful, one.ID)
	f.store(now)
	f.mu.Unlock()
	first := was == nil || was.Unjudged
	if !first {
		of := f.facts.Pool(was.Pool)
		if first = of != nil && of != f.facts.Pool(one.Pool); first { // another node has the name now
			f.pools.count(was.Finding, false, false)
		} else if audit.Same(was.Finding, one) {
			return // only the stored owners are updated
		}
	}
	f.pools.count(one, true, first)
	f.listener.FindingChanged(now, was)
}

// End removes a finding and publishes its end, as soon as the facts about it are complete. superseded is
// set if a conflict replaced it. The caller holds the facts.
func (f *Set) End(id string, superseded bool) {
	one := f.Get(id)
	switch {
	case one == nil:
		return
	case !superseded && f.awaits(one.Finding):
		f.mu.Lock()
		if f.byID[id] != nil { // otherwise another one has ended it meanwhile
			f.doubtful[id] = struct{}{}
		}
		f.mu.Unlock()
		f.wake.set()
		return
	}
	f.conclude(id, superseded)
}

func (f *Set) conclude(id string, superseded bool) {
	f.mu.Lock()
	over := f.byID[id]
	if over != nil {
		delete(f.byID, id)
		delete(f.doubtful, id)
		f.inOrder.Delete(over)
		f.kinds[over.Kind]--
	}
	f.mu.Unlock()
	if over != nil {
		if !over.Unjudged {
			f.pools.count(over.Finding, false, false)
		}
		f.listener.FindingEnded(over, superseded)
	}
}

// Recall adds findings from before the start, until they are found again or the facts show that they
// have ended. Those that were found already began when they began before the start.
func (f *Set) Recall(all []*Found) {
	f.facts.Update(func() {
		for _, one := range all {
			f.recall(one)
		}
	})
	f.wake.set()
}

func (f *Set) recall(one *Found) {
	f.mu.Lock()
	if found := f.byID[one.ID]; found != nil {
		defer f.mu.Unlock()
		now := *found
		now.Since, now.Recalled = one.Since, true
		f.store(&now)
		return
	}
	one.Recalled, one.Unjudged = true, true
	f.doubtful[one.ID] = struct{}{}
	f.store(one)
	f.mu.Unlock()
	f.listener.FindingChanged(one, nil)
}

const (
	// decideEvery is how often it is checked whether doubtful findings have ended, and decidedAtOnce is the
	// number of those that end before others may use the facts again.
	decideEvery   = 200 * time.Millisecond
	decidedAtOnce = 64
	// FoundWithin is the time after the report of a node within which problems that last are found again.
	FoundWithin = time.Second
	// SeenWithin is the time after a start of its agent within which a node has seen everything on the wire
	// again that it saw before: agents report known bindings every 30 s.
	SeenWithin = 35 * time.Second
)

// decide ends the doubtful findings for which the facts are complete, and returns when to call it
// again; 0 for never.
func (f *Set) decide() verdict.Stamp {
	f.mu.Lock()
	var some []*Found
	for id := range f.doubtful {
		one := f.byID[id]
		if _, waits := f.waiting[id]; !waits || !one.Unjudged { // a problem from before the start may be found again
			some = append(some, one)
		}
	}
	f.mu.Unlock()
	f.facts.RLock()
	some = slices.DeleteFunc(some, func(one *Found) bool {
		return f.early(one) || !f.decidable(one) || f.awaits(one.Finding)
	})
	f.facts.RUnlock()
	for over := range slices.Chunk(some, decidedAtOnce) {
		f.facts.Update(func() { // so that none is found again while it ends
			for _, one := range over {
				if !f.isDoubtful(one.ID) {
					continue
				}
				f.joining.Lock()
				if parts := f.parts[one.ID]; len(parts) > 0 {
					f.Publish(new(joined(parts)))
				} else {
					f.conclude(one.ID, false)
				}
				f.joining.Unlock()
			}
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.doubtful) == 0 {
		return 0
	}
	return f.facts.Clock().Add(decideEvery)
}

func (f *Set) isDoubtful(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, is := f.doubtful[id]
	return is
}

// decidable reports whether it can be found that a finding has ended: that is known already, or its IPAM can
// be read. The caller holds the facts.
func (f *Set) decidable(one *Found) bool {
	return !one.Unjudged || one.Pool == nil || f.facts.Readable(one.Pool)
}

// early reports whether it is too early to find a finding from before the start again. The caller
// holds the facts.
func (f *Set) early(one *Found) bool {
	within := FoundWithin
	switch {
	case !one.Unjudged:
		return false
	case one.Kind == verdict.FindingIntendedNotObserved:
		within = audit.IntendedAfter + decideEvery
	case one.byFrames(), one.Kind == verdict.FindingPodCIDROverlap:
		within = SeenWithin
	}
	now := f.facts.Clock()
	return slices.ContainsFunc(audit.Nodes(one.Finding), func(name string) bool {
		return slices.ContainsFunc(f.facts.Shown(name), func(n *facts.Node) bool {
			return now < n.JudgedAt.Add(within) || one.byFrames() && now < f.facts.FramesKnown(n)
		})
	})
}

// byFrames reports whether a finding from before the start depends on frames, which may be minutes apart.
func (f *Found) byFrames() bool {
	return f.Unjudged && (f.Kind == verdict.FindingAddressSpoofed || f.Kind == verdict.FindingMACCloned ||
		f.Kind != verdict.FindingIntendedNotObserved && slices.ContainsFunc(f.Owners, func(o verdict.Owner) bool { return !o.Assigned }))
}

// Undecided returns the number of doubtful findings that are not known to last, although their IPAM can
// be read and they do not depend on frames. The caller holds the facts.
func (f *Set) Undecided() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.doubtful {
		if one := f.byID[id]; f.decidable(one) && !one.byFrames() {
			n++
		}
	}
	return n
}

// store adds a finding and replaces the one with the same ID, if any.
func (f *Set) store(one *Found) {
	if before := f.byID[one.ID]; before == nil {
		f.kinds[one.Kind]++
	} else if before.Place != one.Place {
		f.inOrder.Delete(before)
	}
	f.byID[one.ID] = one
	f.inOrder.Put(one)
}

// Get returns a finding; nil if there is none.
func (f *Set) Get(id string) *Found {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byID[id]
}

// finding returns the finding with an ID; nil if there is none, or if it is not judged yet.
func (f *Set) finding(id string) *verdict.Finding {
	if one := f.Get(id); one != nil && !one.Unjudged {
		return one.Finding
	}
	return nil
}

// All returns all findings, in no order.
func (f *Set) All() (all []*Found) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.byID {
		all = append(all, one)
	}
	return all
}

// Count returns the number of findings of each kind, including kinds without findings.
func (f *Set) Count() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := make(map[string]int)
	for _, kind := range verdict.FindingKinds() {
		count[kind] = f.kinds[kind]
	}
	return count
}

// FindingPlace is the sort key of a finding in lists.
type FindingPlace struct{ Kind, Address, ID string }

// PlaceOf returns the place of a finding.
func PlaceOf(f *verdict.Finding) FindingPlace {
	at := FindingPlace{Kind: f.Kind, ID: f.ID}
	switch {
	case f.Address.IsValid():
		at.Address = f.Address.String()
	case f.Overlap != nil:
		at.Address = f.Overlap.Range.String()
	}
	return at
}

// Compare orders places by kind, address and ID.
func (p FindingPlace) Compare(other FindingPlace) int {
	return cmp.Or(cmp.Compare(p.Kind, other.Kind), cmp.Compare(p.Address, other.Address), cmp.Compare(p.ID, other.ID))
}
