package kube

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// key is the place of an object among those of its kind.
type key struct{ namespace, name string }

// mirror holds one record of each object of a resource. Records never change. It
// is behind the cluster's mu, and written by one feed only.
type mirror[R any] struct {
	cluster *Cluster
	// read is what is kept of an object; nil for one that is of no interest. It is
	// called without the lock.
	read func(runtime.Object) (key, *R)
	// same tells whether two records say the same.
	same func(a, b *R) bool
	// changed is called, under the lock, with what is known of an object before
	// and after: nil for one that was or is not there.
	changed func(at key, before, after *R)
	// settled is called, under the lock, after one change or a whole listing.
	settled func()
	// limit is how many objects of a listing are remembered; 0 for all.
	limit   int
	records map[key]*R
}

// put is for sink.
func (m *mirror[R]) put(o runtime.Object) {
	at, after := m.read(o)
	m.cluster.mu.Lock()
	m.set(at, after)
	m.settle()
	m.cluster.mu.Unlock()
	m.cluster.pending.ring()
}

// drop is for sink.
func (m *mirror[R]) drop(o runtime.Object) {
	at, _ := m.read(o)
	m.cluster.mu.Lock()
	m.set(at, nil)
	m.settle()
	m.cluster.mu.Unlock()
	m.cluster.pending.ring()
}

// set has the record of an object: nil for none.
func (m *mirror[R]) set(at key, after *R) {
	before := m.records[at]
	switch {
	case before == nil && after == nil, before != nil && after != nil && m.same(before, after):
		return
	case after == nil:
		delete(m.records, at)
	default:
		if before != nil {
			delete(m.records, at) // or the key would hold the strings of the first record
		}
		m.records[at] = after
	}
	m.changed(at, before, after)
}

func (m *mirror[R]) settle() {
	if m.settled != nil {
		m.settled()
	}
}

// anew is for sink.
func (m *mirror[R]) anew() listing { return &anew[R]{mirror: m, records: make(map[key]*R)} }

// anew is what a listing has told until now.
type anew[R any] struct {
	mirror  *mirror[R]
	records map[key]*R
}

func (a *anew[R]) put(o runtime.Object) {
	at, r := a.mirror.read(o)
	if r == nil {
		delete(a.records, at)
		return
	}
	if limit := a.mirror.limit; limit != 0 && len(a.records) >= limit && a.records[at] == nil {
		return
	}
	a.records[at] = r
}

func (a *anew[R]) drop(o runtime.Object) {
	at, _ := a.mirror.read(o)
	delete(a.records, at)
}

// hold is for how many records the lock is held at a time: who waits for it is the
// aggregator.
const hold = 512

// complete replaces what is known by what was listed.
func (a *anew[R]) complete() {
	m := a.mirror
	c := m.cluster
	n := 0
	pause := func() {
		if n++; n%hold == 0 {
			c.mu.Unlock()
			c.mu.Lock()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Only this goroutine writes m.records.
	for at := range m.records {
		if a.records[at] == nil {
			m.set(at, nil)
		}
		pause()
	}
	for at, r := range a.records {
		m.set(at, r)
		pause()
	}
	a.records = nil
	m.settle()
}

// pending are the changes that were not told yet.
type pending struct {
	changes Changes
	// related are the nodes of changes.Related.
	related map[string]struct{}
	// compact is how many pods there may be before those told twice are left out.
	compact int
	// compactIPAM is the same of what IPAMs say.
	compactIPAM int
	bell        chan struct{}
}

const firstCompact = 8192

func newPending() pending {
	return pending{related: make(map[string]struct{}), compact: firstCompact, bell: make(chan struct{}, 1)}
}

// ring has the changes told.
func (p *pending) ring() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// pod notes a pod as it was or is.
func (p *pending) pod(o *verdict.PodObject) {
	p.changes.Pods = append(p.changes.Pods, o)
	if len(p.changes.Pods) >= p.compact {
		p.changes.Pods = firstAndLast(p.changes.Pods)
		p.compact = max(firstCompact, 2*len(p.changes.Pods))
	}
}

// firstAndLast leaves out what a pod was in between.
func firstAndLast(pods []*verdict.PodObject) []*verdict.PodObject {
	last := make(map[string]int, len(pods))
	for i, p := range pods {
		last[p.UID] = i
	}
	first := make(map[string]struct{}, len(last))
	kept := pods[:0]
	for i, p := range pods {
		if _, known := first[p.UID]; !known || last[p.UID] == i {
			first[p.UID] = struct{}{}
			kept = append(kept, p)
		}
	}
	clear(pods[len(kept):])
	return kept
}

// maxRelated is how many nodes are told of at once.
const maxRelated = 4096

// relate notes that there may be something new about a node.
func (p *pending) relate(node string) {
	if node != "" && len(p.related) < maxRelated {
		p.related[node] = struct{}{}
	}
}

// take is what is to be told now.
func (c *Cluster) take() (changes Changes, any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.pending
	changes = p.changes
	for node := range p.related {
		changes.Related = append(changes.Related, node)
	}
	clear(p.related)
	p.changes, p.compact, p.compactIPAM = Changes{}, firstCompact, firstCompact
	return changes, len(changes.Pods) > 0 || len(changes.Networks) > 0 || changes.State || len(changes.Nodes) > 0 || len(changes.Related) > 0 || len(changes.IPAM) > 0
}
