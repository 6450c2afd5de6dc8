package kube

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// readable returns an object as a store reads it.
func readable(o runtime.Object) any {
	if o, ok := o.(*object); ok {
		return &ipam.Object{
			Namespace: o.Namespace, Name: o.Name, Version: o.ResourceVersion, Created: o.CreationTimestamp.Time, Labels: o.Labels, Spec: o.Spec, Status: o.Status,
			Endpoints: o.Endpoints, EndpointsNamespace: o.EndpointsNamespace,
		}
	}
	return o
}

// put stores a new or changed object.
func (c *Cluster) put(into ipam.Store, o runtime.Object) {
	reduced := into.Reduce(readable(o))
	c.mu.Lock()
	into.Put(reduced)
	c.mu.Unlock()
	c.pending.ring()
}

// drop removes an object.
func (c *Cluster) drop(from ipam.Store, o runtime.Object) {
	reduced := from.Reduce(readable(o))
	c.mu.Lock()
	from.Drop(reduced)
	c.mu.Unlock()
	c.pending.ring()
}

// item is a reduced object of a listing. It implements runtime.Object, which the items of a list
// must do.
type item struct{ reduced any }

// GetObjectKind implements runtime.Object.
func (*item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Items never change.
func (i *item) DeepCopyObject() runtime.Object { return i }

// reduce returns the part of an object that replace needs.
func reduce(into ipam.Store, o runtime.Object) *item { return &item{into.Reduce(readable(o))} }

// hold is the number of objects after which the lock is released, because the aggregator waits
// for it.
const hold = 512

// replace replaces the contents of a store with the items of a complete listing.
func (c *Cluster) replace(into ipam.Store, items []any) {
	reduced := make([]any, len(items))
	for i := range items {
		reduced[i] = items[i].(*item).reduced
	}
	n := 0
	c.mu.Lock()
	defer c.mu.Unlock()
	into.Replace(reduced, func() {
		if n++; n%hold == 0 {
			c.mu.Unlock()
			c.mu.Lock()
		}
	})
}

// pending are the changes that the subscriber has not received yet.
type pending struct {
	changes Changes
	// related are the nodes of changes.Related.
	related map[string]struct{}
	bell    chan struct{}
}

func newPending() pending {
	return pending{related: make(map[string]struct{}), bell: make(chan struct{}, 1)}
}

// ring wakes up notifyChanges.
func (p *pending) ring() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// pod queues the previous or current state of a pod.
func (p *pending) pod(o *verdict.PodObject) { p.changes.Pods = append(p.changes.Pods, o) }

// ipam queues a change of an IPAM.
func (p *pending) ipam(change IPAMChange) {
	p.changes.IPAM = append(p.changes.IPAM, change)
	p.ring()
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
	p.changes = Changes{}
	return changes, len(changes.Pods) > 0 || len(changes.Networks) > 0 || changes.State || len(changes.Nodes) > 0 || len(changes.Related) > 0 || len(changes.IPAM) > 0 || changes.Acknowledgements
}
