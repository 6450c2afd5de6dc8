package judge

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

// Intended finds namespaces that lack addresses which they were meant to have.
type Intended struct {
	facts *facts.Facts
	set   *Set
	// builders has case builders for reuse.
	builders sync.Pool
	wake     signal

	mu sync.Mutex
	// due is when each namespace is checked; next is the earliest of these times.
	due  map[intent]verdict.Stamp
	next verdict.Stamp
	// waiting has the namespaces that were due while a snapshot of their node was being applied.
	waiting map[*facts.Node][]intent
	// lacks has the findings about each namespace.
	lacks map[intent][]verdict.Finding

	// checking is held while namespaces are checked.
	checking sync.Mutex
}

// intent identifies a namespace by its node and ID, because its record number may be reused.
type intent struct {
	node *facts.Node
	id   string
}

// arm schedules a check of a namespace, unless an earlier one is scheduled.
func (x *Intended) arm(of intent, at verdict.Stamp) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if was, set := x.due[of]; set && was <= at {
		return
	}
	x.due[of] = at
	if x.next == 0 || at < x.next {
		x.next = at
		x.wake.set()
	}
}

// Resume schedules the checks that waited for the snapshot of a node.
func (x *Intended) Resume(n *facts.Node) {
	x.mu.Lock()
	all := x.waiting[n]
	delete(x.waiting, n)
	x.mu.Unlock()
	for _, of := range all {
		x.arm(of, 1)
	}
}

// take removes and returns the namespaces that are due, and returns when the next one is due; 0 for
// never.
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

// swap replaces the findings about a namespace and returns the previous ones.
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

// formerly schedules a check of a namespace that has ended or got another ID, if it lacked addresses.
func (x *Intended) formerly(n *facts.Node, id string) {
	of := intent{n, id}
	x.mu.Lock()
	lacks := len(x.lacks[of]) > 0
	x.mu.Unlock()
	if lacks {
		x.arm(of, x.facts.Clock())
	}
}

// mayLack schedules a check of the addresses that a namespace was meant to have: at once if its
// agent or a finding reports that it lacks some, and after audit.IntendedAfter if only the
// Kubernetes API lists any. The caller holds the facts.
func (x *Intended) mayLack(n *facts.Node, record uint32) {
	intends := n.Intends(record)
	x.mu.Lock()
	some := len(x.lacks) > 0
	x.mu.Unlock()
	if record == verdict.OwnRecord || !intends && !x.facts.Followed && !some {
		return // fast path: called several times for each namespace of a snapshot
	}
	ns := n.NamespaceOf(record)
	if ns == nil {
		return
	}
	of := intent{n, ns.ID}
	x.mu.Lock()
	_, pending := x.due[of]
	lacks := len(x.lacks[of]) > 0
	x.mu.Unlock()
	if lacks || intends {
		x.arm(of, x.facts.Clock()) // not now, because its interfaces may not be known yet
		return
	}
	if !x.facts.Followed || pending {
		return
	}
	if p := x.facts.PodObject(ns); p != nil && !p.HostNetwork && len(p.IPs) > 0 {
		x.arm(of, x.facts.Clock().Add(audit.IntendedAfter))
	}
}

// Spoke schedules a check whether an address that an owner uses on the wire was meant for it. The caller holds
// the facts.
func (x *Intended) Spoke(o *verdict.Owner) {
	if n := x.facts.Node(o.Namespace.Node); n != nil {
		x.mayLack(n, o.Namespace.Record)
	}
}

// run checks the namespaces that are due, and returns when the next one is due; 0 for never.
func (x *Intended) run() verdict.Stamp {
	x.checking.Lock()
	defer x.checking.Unlock()
	due, next := x.take(x.facts.Clock())
	for _, of := range due {
		x.check(of)
	}
	if len(due) > 0 { // the checks may have taken a while
		_, next = x.take(0)
	}
	return next
}

// check updates the findings about the addresses that a namespace lacks.
func (x *Intended) check(of intent) {
	x.facts.RLock()
	defer x.facts.RUnlock()
	if of.node.Applying {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.waiting[of.node] = append(x.waiting[of.node], of) // until Resume
		return
	}
	var now []verdict.Finding
	record := of.node.RecordOf(of.id)
	switch ns := of.node.NamespaceOf(record); {
	case ns == nil:
	case of.node.Rec.Unheard && of.node.HasInterfaces(record):
		return // keep the findings while the node is disconnected
	default:
		now = x.lacking(of, ns, of.node.SinceOf(record))
	}
	before := x.swap(of, now)
	for i := range now {
		x.set.Publish(&now[i])
	}
	for i := range before {
		if !slices.ContainsFunc(now, func(f verdict.Finding) bool { return f.ID == before[i].ID }) {
			x.set.End(before[i].ID, false)
		}
	}
}

// lacking returns the findings about a namespace. since is when it was first reported.
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

// Lacking returns the addresses that an owner was meant to have and does not have, except those of which the judgement of the
// address says why. The caller holds the facts.
func (x *Intended) Lacking(o *verdict.Owner) []verdict.Intent {
	return slices.DeleteFunc(audit.Intended(o), func(m verdict.Intent) bool {
		return m.Source == audit.SourceKubernetes && x.facts.Holds(o.ID, index.AddressOf(m.Address)) || x.speaksOrFailed(o.ID, m.Address)
	})
}

// speaksOrFailed reports whether an owner uses an address on the wire, or detection of duplicates failed in its kernel. A guest
// in its namespace, or a network stack outside of the kernel (gVisor), may have the address.
func (x *Intended) speaksOrFailed(id string, addr netip.Addr) bool {
	a := index.AddressOf(addr)
	if !x.facts.WiredOrFailed(a) {
		return false
	}
	b := x.builders.Get().(*facts.Builder)
	defer x.builders.Put(b)
	judged := x.facts.Policy.Judge(b.Case(a, false))
	return slices.ContainsFunc(judged.Owners, func(o verdict.Owner) bool {
		return o.ID == id && (o.DADFailed() && !o.Yielded() || slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool {
			return c.Wire() && !c.Weak() && !slices.Contains(judged.Expired, c) // expired claims are about to be deleted
		}))
	})
}
