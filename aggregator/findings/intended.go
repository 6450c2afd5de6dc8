package findings

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Intended finds namespaces that lack addresses that they were meant to have.
type Intended struct {
	facts *facts.Facts
	tell  *Teller
	// builders lends makers of cases.
	builders sync.Pool
	wake     chan struct{}

	mu sync.Mutex
	// due is when a namespace is looked at, next when the first one is.
	due  map[intent]verdict.Stamp
	next verdict.Stamp
	// waiting are those that were due while a snapshot of their node was applied.
	waiting map[*facts.Node][]intent
	// lacks are the findings about namespaces.
	lacks map[intent][]verdict.Finding

	// looking is held while findings are made.
	looking sync.Mutex
}

// intent is a namespace by its node and its identity: its number may become another one's.
type intent struct {
	node *facts.Node
	id   string
}

func newIntended(f *facts.Facts, tell *Teller) *Intended {
	return &Intended{
		facts: f, tell: tell, builders: sync.Pool{New: func() any { return f.Builder() }},
		wake: make(chan struct{}, 1), due: make(map[intent]verdict.Stamp), waiting: make(map[*facts.Node][]intent),
		lacks: make(map[intent][]verdict.Finding),
	}
}

// arm has a namespace looked at at a time. One that is looked at sooner stays as it is.
func (x *Intended) arm(of intent, at verdict.Stamp) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if was, set := x.due[of]; set && was <= at {
		return
	}
	x.due[of] = at
	if x.next == 0 || at < x.next {
		x.next = at
		select {
		case x.wake <- struct{}{}:
		default:
		}
	}
}

// wait has a namespace looked at when Resume is called for its node.
func (x *Intended) wait(of intent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.waiting[of.node] = append(x.waiting[of.node], of)
}

// Resume has the namespaces of a node looked at that waited for its snapshot.
func (x *Intended) Resume(n *facts.Node) {
	x.mu.Lock()
	all := x.waiting[n]
	delete(x.waiting, n)
	x.mu.Unlock()
	for _, of := range all {
		x.arm(of, 1)
	}
}

// state reports whether a namespace is looked at some time, and has findings.
func (x *Intended) state(of intent) (pending, lacks bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, pending = x.due[of]
	return pending, len(x.lacks[of]) > 0
}

// take returns the namespaces that are due, and when the next one is; 0 for never.
func (x *Intended) take(now verdict.Stamp) (due []intent, next verdict.Stamp) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.next == 0 || x.next > now {
		return nil, x.next
	}
	x.next = 0
	for of, at := range x.due {
		switch {
		case at <= now:
			due = append(due, of)
			delete(x.due, of)
		case x.next == 0 || at < x.next:
			x.next = at
		}
	}
	return due, x.next
}

// swap puts findings in the place of those of before.
func (x *Intended) swap(of intent, now []verdict.Finding) (before []verdict.Finding) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before = x.lacks[of]
	if len(now) > 0 {
		x.lacks[of] = now
	} else {
		delete(x.lacks, of)
	}
	return before
}

// MayLack has it looked at whether a namespace has all addresses that it was meant to
// have: soon for what its agent says, later for what the Kubernetes API does. The facts are held.
func (x *Intended) MayLack(n *facts.Node, record uint32) {
	if record == verdict.OwnRecord {
		return
	}
	ns := n.NamespaceOf(record)
	if ns == nil {
		return
	}
	of := intent{n, ns.ID}
	pending, lacks := x.state(of)
	if lacks || n.Intends(record) {
		x.arm(of, x.facts.Clock()) // once its interfaces are known, too
		return
	}
	if !x.facts.Followed || pending {
		return
	}
	if p := x.facts.PodObject(ns); p != nil && !p.HostNetwork && len(p.IPs) > 0 {
		x.arm(of, x.facts.Clock().Add(audit.IntendedAfter))
	}
}

// ring makes the findings about namespaces that are due, and returns when the next one is.
func (x *Intended) ring() verdict.Stamp {
	x.looking.Lock()
	defer x.looking.Unlock()
	due, next := x.take(x.facts.Clock())
	for _, of := range due {
		x.intend(of)
	}
	if len(due) > 0 { // others may be due by now
		_, next = x.take(0)
	}
	return next
}

// intend makes the findings about addresses that a namespace lacks.
func (x *Intended) intend(of intent) {
	x.facts.RLock()
	defer x.facts.RUnlock()
	if of.node.Applying() {
		x.wait(of)
		return
	}
	var now []verdict.Finding
	record := of.node.RecordOf(of.id)
	switch ns := of.node.NamespaceOf(record); {
	case ns == nil:
	case of.node.Rec.Unheard && of.node.HasInterfaces(record):
		return // what was found stays found
	default:
		now = x.lacking(of, ns, of.node.SinceOf(record))
	}
	before := x.swap(of, now)
	for i := range now {
		x.tell.Tell(&now[i])
	}
	for i := range before {
		if !slices.ContainsFunc(now, func(f verdict.Finding) bool { return f.ID == before[i].ID }) {
			x.tell.End(before[i].ID, false)
		}
	}
}

// lacking are the findings about a namespace, which is there since a time.
func (x *Intended) lacking(of intent, ns *verdict.Namespace, since verdict.Stamp) []verdict.Finding {
	interfaces := of.node.InterfacesOf(ns.Record)
	if len(interfaces) == 0 {
		return nil
	}
	inside := slices.MinFunc(interfaces, func(a, b *verdict.Interface) int {
		switch aLocal, bLocal := a.Attachment == verdict.Local, b.Attachment == verdict.Local; {
		case aLocal && !bLocal:
			return 1
		case bLocal && !aLocal:
			return -1
		}
		return cmp.Compare(a.Index, b.Index)
	})
	o := verdict.Owner{
		ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: inside, MAC: inside.MAC, State: verdict.Live, Pod: x.facts.PodObject(ns),
	}
	out := audit.Missing(x.facts.Policy, &o, x.Lacking(&o), since, x.facts.Clock())
	if out.Again != 0 {
		x.arm(of, out.Again)
	}
	return out.Findings
}

// Lacking returns the addresses that an owner was meant to have and has not. The facts are held.
func (x *Intended) Lacking(o *verdict.Owner) []audit.Meant {
	return slices.DeleteFunc(audit.Intended(o), func(m audit.Meant) bool {
		return m.Source == audit.SourceKubernetes && x.facts.Holds(o.ID, index.AddressOf(m.Address)) || x.speaks(o.ID, m.Address)
	})
}

// speaks reports whether the wire shows an address with an owner: a guest in it, or a
// network stack that is no kernel's (gVisor), may have it.
func (x *Intended) speaks(id string, addr netip.Addr) bool {
	a := index.AddressOf(addr)
	if !x.facts.Wired(a) {
		return false
	}
	b := x.builders.Get().(*facts.Builder)
	defer x.builders.Put(b)
	judged := x.facts.Policy.Judge(b.Case(a, false))
	return slices.ContainsFunc(judged.Owners, func(o verdict.Owner) bool {
		return o.ID == id && slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool {
			return c.Wire() && !c.Weak() && !slices.Contains(judged.Expired, c) // else it is about to go
		})
	})
}
