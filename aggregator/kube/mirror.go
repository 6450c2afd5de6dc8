package kube

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// key identifies an object among those of its kind.
type key struct{ namespace, name string }

// mirror holds one record of each object of a resource. Records never change. The
// cluster's mu guards it, and only one feed writes it.
type mirror[R any] struct {
	cluster *Cluster
	// read returns the record of an object, or nil for an object of no interest. It is
	// called without the lock.
	read func(runtime.Object) (key, *R)
	// same reports whether two records are equal.
	same func(a, b *R) bool
	// changed is called under the lock with the records of an object before and after a
	// change. A record is nil if there was or is none.
	changed func(at key, before, after *R)
	// settled is called under the lock after one change or a whole listing.
	settled func()
	// limit is the maximum number of records of a listing; 0 for no limit.
	limit   int
	records map[key]*R
}

// put implements sink.
func (m *mirror[R]) put(o runtime.Object) {
	at, after := m.read(o)
	m.cluster.mu.Lock()
	m.set(at, after)
	m.settle()
	m.cluster.mu.Unlock()
	m.cluster.pending.ring()
}

// drop implements sink.
func (m *mirror[R]) drop(o runtime.Object) {
	at, _ := m.read(o)
	m.cluster.mu.Lock()
	m.set(at, nil)
	m.settle()
	m.cluster.mu.Unlock()
	m.cluster.pending.ring()
}

// set replaces the record of an object: nil for none.
func (m *mirror[R]) set(at key, after *R) {
	before := m.records[at]
	switch {
	case before == nil && after == nil, before != nil && after != nil && m.same(before, after):
		return
	case after == nil:
		delete(m.records, at)
	default:
		if before != nil {
			delete(m.records, at) // otherwise the map's key would keep the strings of the first record alive
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

// reduced implements runtime.Object, which the items of a list must do.
type reduced struct{}

// GetObjectKind implements runtime.Object.
func (reduced) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Records never change.
func (r reduced) DeepCopyObject() runtime.Object { return r }

// entry is a record of a listing.
type entry[R any] struct {
	reduced
	at     key
	record *R // nil for an object of no interest
}

// reduce implements sink.
func (m *mirror[R]) reduce(o runtime.Object) runtime.Object {
	e := &entry[R]{}
	e.at, e.record = m.read(o)
	return e
}

// hold is the number of records after which the lock is released, because the aggregator waits
// for it.
const hold = 512

// replace implements sink.
func (m *mirror[R]) replace(entries []any) {
	listed := make(map[key]*R, len(entries))
	for _, e := range entries {
		if e := e.(*entry[R]); e.record != nil && (m.limit == 0 || len(listed) < m.limit) {
			listed[e.at] = e.record
		}
	}
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
		if listed[at] == nil {
			m.set(at, nil)
		}
		pause()
	}
	for at, r := range listed {
		m.set(at, r)
		pause()
	}
	m.settle()
}

// pending are the changes that the subscriber has not been told yet.
type pending struct {
	changes Changes
	// related are the nodes of changes.Related.
	related map[string]struct{}
	// compact is the number of pods at which intermediate changes are removed.
	compact int
	// compactIPAM is the same for changes of IPAMs.
	compactIPAM int
	bell        chan struct{}
}

const firstCompact = 8192

func newPending() pending {
	return pending{related: make(map[string]struct{}), compact: firstCompact, bell: make(chan struct{}, 1)}
}

// ring wakes up tell.
func (p *pending) ring() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// pod queues the previous or current state of a pod.
func (p *pending) pod(o *verdict.PodObject) {
	p.changes.Pods = append(p.changes.Pods, o)
	if len(p.changes.Pods) >= p.compact {
		p.changes.Pods = firstAndLast(p.changes.Pods)
		p.compact = max(firstCompact, 2*len(p.changes.Pods))
	}
}

// firstAndLast removes the intermediate states of each pod.
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

// maxRelated is the maximum number of nodes in Changes.Related.
const maxRelated = 4096

// relate queues a node for which Related may return something new.
func (p *pending) relate(node string) {
	if node != "" && len(p.related) < maxRelated {
		p.related[node] = struct{}{}
	}
}

// take returns and clears the pending changes.
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
