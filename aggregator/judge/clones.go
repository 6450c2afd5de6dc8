package judge

import (
	"cmp"
	"maps"
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
	facts *facts.Facts
	set   *Set
	// waiting returns the number of addresses that are queued for judgement.
	waiting func() int
	wake    signal
	// publishing is held while findings about clones are published.
	publishing sync.Mutex

	mu    sync.Mutex
	byKey map[cloneKey]*clone
	// of lists, for each address, the clones in claims to it.
	of map[index.Address][]cloneKey
	// hidden is when the first of the clones vanished that may no longer be in any claim; 0 if there are none.
	hidden verdict.Stamp
}

func cloneKeyOf(spoof *verdict.Spoof) cloneKey {
	port := spoof.Port
	return cloneKey{facts.IDOf(port.Namespace.Node), port.Namespace.Record, port.Index, spoof.MACs[0]}
}

// Cloned publishes the cloned hardware addresses in claims to an address. The caller holds the facts.
func (all *Clones) Cloned(a index.Address, found []verdict.Spoof) {
	all.publishing.Lock()
	defer all.publishing.Unlock()
	all.mu.Lock()
	before := all.of[a]
	delete(all.of, a)
	clones := make([]*clone, len(found))
	for i := range found {
		key := cloneKeyOf(&found[i])
		c := all.byKey[key]
		if c == nil {
			c = &clone{shown: make(map[index.Address]verdict.Spoof)}
			all.byKey[key] = c
		}
		c.shown[a], clones[i] = found[i], c
		all.of[a] = append(all.of[a], key)
	}
	for _, key := range before {
		if slices.Contains(all.of[a], key) {
			continue
		}
		c := all.byKey[key]
		if delete(c.shown, a); len(c.shown) == 0 {
			all.hidden = cmp.Or(all.hidden, all.facts.Clock())
			all.wake.set()
		}
	}
	all.mu.Unlock()
	for i, c := range clones {
		f := audit.Clone(all.facts.Policy, &found[i]) // only the newest claim; Whole adds the others
		if c.published != "" && c.published != f.ID {
			all.set.End(c.published, false) // its node or port was renamed
		}
		c.published = f.ID
		all.set.Publish(&f)
	}
}

// end ends the findings about hardware addresses that are in no claim any longer. Because a queued
// address may have such a claim, it waits until the queue is empty, at most for collectFor. It
// returns when to call it again; 0 if there is nothing to wait for.
func (all *Clones) end() verdict.Stamp {
	all.mu.Lock()
	since := all.hidden
	all.mu.Unlock()
	switch at := since.Add(collectFor); {
	case since == 0:
		return 0
	case all.facts.Clock() < at && all.waiting() > 0:
		return at
	}
	all.facts.RLock()
	defer all.facts.RUnlock()
	all.publishing.Lock()
	defer all.publishing.Unlock()
	all.mu.Lock()
	all.hidden = 0
	var over []*clone
	maps.DeleteFunc(all.byKey, func(_ cloneKey, c *clone) bool {
		if len(c.shown) > 0 {
			return false
		}
		over = append(over, c)
		return true
	})
	all.mu.Unlock()
	for _, c := range over {
		all.set.End(c.published, false)
	}
	return 0
}

// wakeIfWaiting wakes the check of clones that may no longer be in any claim.
func (all *Clones) wakeIfWaiting() {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.hidden != 0 {
		all.wake.set()
	}
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
		all.mu.Lock()
		if c := all.byKey[cloneKeyOf(&spoof)]; c != nil {
			spoof.Count, spoof.Addresses = 0, nil
			for _, one := range c.shown {
				spoof.Merge(&one)
			}
		}
		all.mu.Unlock()
	}
	whole := *f
	whole.Spoof = &spoof
	return &whole
}
