package aggregator

import (
	"cmp"
	"slices"
	"sync"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// intents are the namespaces that may lack addresses that they were meant to have.
type intents struct {
	wake chan struct{}

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

func newIntents() intents {
	return intents{
		wake: make(chan struct{}, 1), due: make(map[intent]verdict.Stamp), waiting: make(map[*facts.Node][]intent),
		lacks: make(map[intent][]verdict.Finding),
	}
}

// arm has a namespace looked at at a time. One that is looked at sooner stays as it is.
func (x *intents) arm(of intent, at verdict.Stamp) {
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

// wait has a namespace looked at when resume is called for its node.
func (x *intents) wait(of intent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.waiting[of.node] = append(x.waiting[of.node], of)
}

// resume has the namespaces of a node looked at that waited for its snapshot.
func (x *intents) resume(n *facts.Node) {
	x.mu.Lock()
	all := x.waiting[n]
	delete(x.waiting, n)
	x.mu.Unlock()
	for _, of := range all {
		x.arm(of, 1)
	}
}

// state reports whether a namespace is looked at some time, and has findings.
func (x *intents) state(of intent) (pending, lacks bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, pending = x.due[of]
	return pending, len(x.lacks[of]) > 0
}

// take returns the namespaces that are due, and when the next one is; 0 for never.
func (x *intents) take(now verdict.Stamp) (due []intent, next verdict.Stamp) {
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
func (x *intents) swap(of intent, now []verdict.Finding) (before []verdict.Finding) {
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

// lack has it looked at whether a namespace has all addresses that it was meant to
// have: soon for what its agent says, later for what the Kubernetes API does. The facts are held.
func (s *store) lack(n *facts.Node, record uint32) {
	if record == verdict.OwnRecord {
		return
	}
	ns := n.NamespaceOf(record)
	if ns == nil {
		return
	}
	of := intent{n, ns.ID}
	pending, lacks := s.intended.state(of)
	if lacks || n.Intends(record) {
		s.intended.arm(of, s.clock()) // once its interfaces are known, too
		return
	}
	if s.kube == nil || pending {
		return
	}
	if p := s.facts.PodObject(ns); p != nil && !p.HostNetwork && len(p.IPs) > 0 {
		s.intended.arm(of, s.clock().Add(audit.IntendedAfter))
	}
}

// intendAll makes the findings about namespaces that are due, and returns when the next one is.
func (s *store) intendAll() verdict.Stamp {
	s.intended.looking.Lock()
	defer s.intended.looking.Unlock()
	due, next := s.intended.take(s.clock())
	for _, of := range due {
		s.intend(of)
	}
	if len(due) > 0 { // others may be due by now
		_, next = s.intended.take(0)
	}
	return next
}

// intend makes the findings about addresses that a namespace lacks.
func (s *store) intend(of intent) {
	s.facts.RLock()
	defer s.facts.RUnlock()
	if of.node.Applying() {
		s.intended.wait(of)
		return
	}
	var now []verdict.Finding
	record := of.node.RecordOf(of.id)
	switch ns := of.node.NamespaceOf(record); {
	case ns == nil:
	case of.node.Rec.Unheard && of.node.HasInterfaces(record):
		return // what was found stays found
	default:
		now = s.lacks(of, ns, of.node.SinceOf(record))
	}
	before := s.intended.swap(of, now)
	for i := range now {
		s.tellFinding(&now[i])
	}
	for i := range before {
		if !slices.ContainsFunc(now, func(f verdict.Finding) bool { return f.ID == before[i].ID }) {
			s.endFinding(before[i].ID, false)
		}
	}
}

// lacks are the findings about a namespace, which is there since a time.
func (s *store) lacks(of intent, ns *verdict.Namespace, since verdict.Stamp) []verdict.Finding {
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
		ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: inside, MAC: inside.MAC, State: verdict.Live, Pod: s.facts.PodObject(ns),
	}
	out := audit.Missing(&s.policy, &o, s.lacking(&o), since, s.clock())
	if out.Again != 0 {
		s.intended.arm(of, out.Again)
	}
	return out.Findings
}
