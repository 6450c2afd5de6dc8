package audit

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// maxFormer is the largest number of former owners that are remembered of one address.
const maxFormer = 4

// Departed returns the owners that have left an address, the latest first: those that are remembered,
// and the owners of the last judgement that a kernel had and that are gone now. It leaves out the
// owners of disconnected nodes, which have left at an unknown time. An owner that has lost its name is
// among them without a time, because a namespace may lose its name before its addresses.
func Departed(remembered []verdict.Former, before, now []verdict.Owner, at verdict.Stamp) []verdict.Former {
	var left []verdict.Former
	for i := range before {
		o := before[i]
		if o.State != verdict.Live || !o.Assigned || !compared(&o) { // a stack outside of the kernel may only be silent
			continue
		}
		f := verdict.Former{Owner: o}
		f.Owner.Claims = nil
		switch still := held(now, &o); {
		case still == nil:
			f.Until = at
			if k := formerly(remembered, &o); k >= 0 && !named(&o) {
				f.Owner = remembered[k].Owner
			}
		case !named(&o) || named(still):
			continue
		}
		left = append(left, f)
	}
	if left == nil {
		return remembered
	}
	for _, f := range remembered {
		if formerly(left, &f.Owner) < 0 {
			left = append(left, f)
		}
	}
	return left[:min(len(left), maxFormer)]
}

// formerly returns the index of an owner among former ones; -1 if it is not one of them.
func formerly(former []verdict.Former, o *verdict.Owner) int {
	return slices.IndexFunc(former, func(f verdict.Former) bool { return same(&f.Owner, o) })
}

// held returns an owner as it is now if it is alive and has the address; nil otherwise.
func held(owners []verdict.Owner, was *verdict.Owner) *verdict.Owner {
	for i := range owners {
		if o := &owners[i]; same(was, o) && o.Alive() && o.Has() {
			return o
		}
	}
	return nil
}

// same reports whether two owners are the same, as far as that is known: kernels use the inode of a
// network namespace, and so the ID, again.
func same(a, b *verdict.Owner) bool {
	return a.ID == b.ID && (!named(a) || !named(b) || sameWorkload(a, b))
}

// sameWorkload reports whether the workloads of two owners have the same kind and name.
func sameWorkload(a, b *verdict.Owner) bool {
	v, w := a.Workload(), b.Workload()
	return v.Kind == w.Kind && v.Namespace == w.Namespace && v.Name == w.Name
}

// named reports whether the workload of an owner is known by name.
func named(o *verdict.Owner) bool {
	w := o.Workload()
	return w.Kind == verdict.Host || w.Name != ""
}

// auditReuse checks whether an owner has taken the address over too soon after its former owner left.
func (a *addressAudit) auditReuse() {
	if a.policy.ReusedWithin == 0 || slices.ContainsFunc(a.in.Allocations, func(al verdict.AllocationFacts) bool { return al.Pool.Assigns }) {
		return // controllers hand such addresses over
	}
	for _, f := range a.in.Former {
		still := held(a.judged.Owners, &f.Owner)
		if still != nil && f.Until != 0 && still.Begun() >= f.Until && !named(still) {
			still = nil // it may be the next owner, with the same ID
		}
		if still != nil || f.Until == 0 {
			if still != nil && f.Until == 0 && !named(still) {
				a.out.Former = append(a.out.Former, f) // its name, which it has lost
			}
			continue
		}
		next := a.successor(&f)
		if f.Next != "" && next == nil || a.in.Now >= a.expiry(&f) {
			continue
		}
		if next != nil {
			a.recordReuse(&f, next)
		}
		a.again(a.expiry(&f))
		a.out.Former = append(a.out.Former, f)
	}
}

// expiry returns until when a former owner is remembered. The names of an owner that took the address
// over become known after it.
func (a *addressAudit) expiry(f *verdict.Former) verdict.Stamp {
	if f.Next != "" {
		return f.Since.Add(verdict.ReusedFor)
	}
	return f.Until.Add(a.policy.ReusedWithin + recordDelay + a.policy.Settle)
}

// successor returns the owner that took the address over from a former owner, as far as that is known;
// nil if there is none.
func (a *addressAudit) successor(f *verdict.Former) *verdict.Owner {
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		if holds(o) && (f.Next == o.ID || f.Next == "" && a.arrived(o, f)) && sameNetwork(&f.Owner, o) && !handsOver(&f.Owner, o) {
			return o
		}
	}
	return nil
}

// arrived reports whether an owner was seen to begin soon after a former owner left. It may also have
// begun a moment before, because the end of a pod may be reported late. An owner that an agent
// listed when it connected may have begun long before.
func (a *addressAudit) arrived(o *verdict.Owner, f *verdict.Former) bool {
	begun := o.Begun()
	return begun > o.Node.Listed && begun > f.Until.Add(-a.policy.Settle) && begun <= f.Until.Add(a.policy.ReusedWithin)
}

// recordReuse records that an owner took the address over too soon. Once that is reported, f names the
// owner.
func (a *addressAudit) recordReuse(f *verdict.Former, next *verdict.Owner) {
	reused := *f
	if reused.Next == "" {
		reused.Next, reused.Since = next.ID, next.Begun()
	}
	one := verdict.Finding{Kind: verdict.FindingReusedTooSoon, Severity: verdict.Warning, Owners: []verdict.Owner{*next}, Former: &reused, Pool: a.poolOf(next)}
	patience := a.policy.Settle
	if f.Next != "" {
		patience = 0
	}
	subject := next.Scope.Text() + " "
	a.record(one, subject, patience)
	id := a.id(one.Kind, subject)
	if slices.ContainsFunc(a.out.Findings, func(found verdict.Finding) bool {
		return found.ID == id && !found.Waiting && found.Former.Owner.ID == f.Owner.ID
	}) {
		*f = reused
	}
}

// poolOf returns the pool that has allocated the address to an owner, or the only one that may have
// done so; nil if it is not known.
func (a *addressAudit) poolOf(o *verdict.Owner) *verdict.Pool {
	pools := a.poolsOf(o)
	for _, p := range pools {
		if booked, _ := a.allocated(p, o); booked {
			return p
		}
	}
	if len(pools) == 1 {
		return pools[0]
	}
	return nil
}

// sameNetwork reports whether two owners of the address, one after the other, are in the same scope.
func sameNetwork(was, is *verdict.Owner) bool {
	if was.Scope == is.Scope {
		return true
	}
	l, other := was.Interface.Link, is.Interface.Link
	return was.Scope.Kind == verdict.LinkScope && is.Scope.Kind == verdict.LinkScope && l != nil && other != nil && l.Domain.Is(other.Domain)
}

// handsOver reports whether a former owner may have handed the address over to the next one on purpose:
// to its own successor, to another node, or to a workload that is not known by name.
func handsOver(was, is *verdict.Owner) bool {
	v, w := was.Workload(), is.Workload()
	switch {
	case v.Kind == verdict.Host && w.Kind == verdict.Host, was.MAC.Virtual(), is.MAC.Virtual():
		return true
	case !named(was), !named(is):
		return true
	case v.VirtualMachine != "" && v.VirtualMachine == w.VirtualMachine && v.Namespace == w.Namespace && v.Kind == w.Kind:
		return true
	}
	return sameWorkload(was, is) && (v.Kind == verdict.Pod || was.Node.Is(is.Node))
}
