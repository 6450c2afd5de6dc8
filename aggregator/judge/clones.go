package judge

import (
	"slices"
	"sync"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// cloneKey identifies a hardware address in frames that enter through the port of a namespace to
// which it does not belong.
type cloneKey struct {
	node          facts.NodeID
	record, index uint32 // of the port
	mac           verdict.MAC
}

// clone collects the claims with one cloned hardware address. Together they make one finding.
type clone struct {
	shown map[index.Address]verdict.Spoof
	// published is the ID of the published finding.
	published string
}

// Clones tracks cloned hardware addresses.
type Clones struct {
	facts     *facts.Facts
	publisher *Publisher
	// waiting returns the number of addresses that are queued for judgement.
	waiting func() int
	wake    chan struct{}
	// publishing is held while findings about clones are published.
	publishing sync.Mutex

	mu    sync.Mutex
	byKey map[cloneKey]*clone
	// of lists, for each address, the clones in claims to it.
	of map[index.Address][]cloneKey
	// hidden lists the clones that may no longer be in any claim. since is when the first of them
	// was listed.
	hidden []cloneKey
	since  verdict.Stamp
}

func newClones(f *facts.Facts, publisher *Publisher, waiting func() int) *Clones {
	return &Clones{facts: f, publisher: publisher, waiting: waiting, wake: make(chan struct{}, 1), byKey: make(map[cloneKey]*clone), of: make(map[index.Address][]cloneKey)}
}

func cloneKeyOf(spoof *verdict.Spoof) cloneKey {
	port := spoof.Port
	return cloneKey{facts.IDOf(port.Namespace.Node), port.Namespace.Record, port.Index, spoof.MACs[0]}
}

// Note records the cloned hardware addresses in claims to an address. The caller holds the facts.
func (all *Clones) Note(a index.Address, found []verdict.Spoof) {
	all.publishing.Lock()
	defer all.publishing.Unlock()
	publisher := all.note(a, found, all.facts.Clock())
	for _, one := range publisher {
		f := audit.Clone(all.facts.Policy, &one.spoof) // only the newest claim; Whole adds the others
		if previous := one.clone.published; previous != "" && previous != f.ID {
			all.publisher.End(previous, false) // its node or port was renamed
		}
		one.clone.published = f.ID
		all.publisher.Publish(&f)
	}
}

// end ends the findings about hardware addresses that are in no claim any longer. Because a queued
// address may have such a claim, it waits until the queue is empty, at most for collectFor. It
// returns when to call it again; 0 if there is nothing to wait for.
func (all *Clones) end() verdict.Stamp {
	all.mu.Lock()
	at, idle := all.since.Add(collectFor), len(all.hidden) == 0
	all.mu.Unlock()
	switch {
	case idle:
		return 0
	case all.facts.Clock() < at && all.waiting() > 0:
		return at
	}
	all.facts.RLock()
	defer all.facts.RUnlock()
	all.publishing.Lock()
	defer all.publishing.Unlock()
	for _, c := range all.takeHidden() {
		all.publisher.End(c.published, false)
	}
	return 0
}

type newClone struct {
	clone *clone
	spoof verdict.Spoof
}

// note records the clones in the claims to an address, and returns those to publish.
func (all *Clones) note(a index.Address, found []verdict.Spoof, now verdict.Stamp) (publisher []newClone) {
	all.mu.Lock()
	defer all.mu.Unlock()
	before := all.of[a]
	delete(all.of, a)
	for _, spoof := range found {
		key := cloneKeyOf(&spoof)
		c := all.byKey[key]
		if c == nil {
			c = &clone{shown: make(map[index.Address]verdict.Spoof)}
			all.byKey[key] = c
		}
		c.shown[a] = spoof
		all.of[a] = append(all.of[a], key)
		publisher = append(publisher, newClone{c, spoof})
	}
	for _, key := range before {
		if slices.Contains(all.of[a], key) {
			continue
		}
		c := all.byKey[key]
		if delete(c.shown, a); len(c.shown) == 0 {
			if len(all.hidden) == 0 {
				all.since = now
			}
			all.hidden = append(all.hidden, key)
			select {
			case all.wake <- struct{}{}:
			default:
			}
		}
	}
	return publisher
}

// Rested wakes the check of clones that may no longer be in any claim.
func (all *Clones) Rested() {
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.hidden) > 0 {
		select {
		case all.wake <- struct{}{}:
		default:
		}
	}
}

// takeHidden removes and returns the clones that are in no claim any longer.
func (all *Clones) takeHidden() (over []*clone) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, key := range all.hidden {
		if c := all.byKey[key]; c != nil && len(c.shown) == 0 {
			delete(all.byKey, key)
			over = append(over, c)
		}
	}
	all.hidden = nil
	return over
}

// Whole returns a finding about a spoof with all claims of the clone and with the namespaces that
// false claims may have deceived. The caller holds the facts.
func (all *Clones) Whole(f *verdict.Finding) *verdict.Finding {
	if f.Spoof == nil {
		return f
	}
	spoof := *f.Spoof
	spoof.Exposed = all.facts.OnLink(spoof.Link, spoof.Sender)
	if f.Kind == verdict.FindingMACCloned {
		all.sum(&spoof)
	}
	whole := *f
	whole.Spoof = &spoof
	return &whole
}

// sum adds up all claims with a cloned hardware address.
func (all *Clones) sum(spoof *verdict.Spoof) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if c := all.byKey[cloneKeyOf(spoof)]; c != nil {
		spoof.Count, spoof.Addresses = 0, nil
		for _, one := range c.shown {
			spoof.Merge(&one)
		}
	}
}
