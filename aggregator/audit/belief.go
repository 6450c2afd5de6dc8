package audit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// auditBeliefs checks whether namespaces send packets for the address to a hardware address that no owner of it has. There is
// one finding for each such hardware address.
func (a *addressAudit) auditBeliefs() {
	// Most are borne out, as those of all nodes about each other on an overlay. Any change of claims has the address judged again.
	beliefs := slices.DeleteFunc(slices.Clone(a.in.Beliefs), func(b verdict.Belief) bool {
		return slices.ContainsFunc(a.judged.Owners, func(o verdict.Owner) bool { return o.State != verdict.Gone && b.BorneOut(&o) })
	})
	for i := range a.judged.Owners {
		c := a.judged.Owners[i].Announced()
		if c == nil || c.Seen.Add(a.policy.StaleAfter) <= a.in.Now {
			continue
		}
		for k := range beliefs {
			if b := &beliefs[k]; b.MAC == c.MAC {
				b.Left, b.HadMAC = c.HadMACUntil, c.HadMAC
			}
		}
		a.again(c.Seen.Add(a.policy.StaleAfter))
		beliefs = append(beliefs, verdict.Belief{Link: c.Link, MAC: c.MAC, State: verdict.EntryInUse, Left: c.HadMACUntil, HadMAC: c.HadMAC})
	}
	slices.SortStableFunc(beliefs, func(x, y verdict.Belief) int {
		return cmp.Or(strings.Compare(string(x.MAC), string(y.MAC)), strings.Compare(x.Link.Node.Name, y.Link.Node.Name), strings.Compare(x.Link.Name, y.Link.Name))
	})
	for len(beliefs) > 0 {
		n := 1
		for n < len(beliefs) && beliefs[n].MAC == beliefs[0].MAC {
			n++
		}
		a.auditBelief(beliefs[:n:n])
		beliefs = beliefs[n:]
		if len(a.judged.Owners) > 0 {
			a.again(a.in.Now.Add(a.policy.HandoverGrace)) // the interfaces that have the hardware address may change without the address
		}
	}
}

// auditBelief checks beliefs in one hardware address.
func (a *addressAudit) auditBelief(beliefs []verdict.Belief) {
	subject := beliefs[0].MAC.String() + " "
	id := a.id(verdict.FindingStaleBelief, subject)
	var before *verdict.Finding
	if i := slices.IndexFunc(a.in.Before, func(f verdict.Finding) bool { return f.ID == id }); i >= 0 {
		before = &a.in.Before[i]
	}
	f := verdict.Finding{Kind: verdict.FindingStaleBelief, Severity: verdict.Warning}
	patience := a.policy.Settle
	for _, b := range beliefs {
		if before != nil && b.Left == 0 { // the aggregator remembers for a limited time who left
			if i := slices.IndexFunc(before.Beliefs, func(was verdict.Belief) bool { return was.Link.Is(b.Link) }); i >= 0 {
				b.Left, b.Former = before.Beliefs[i].Left, before.Beliefs[i].Former
			}
		}
		known := before != nil && !before.Waiting
		owners, wait := a.misled(&b, known)
		if len(owners) == 0 {
			continue
		}
		f.Beliefs, patience = append(f.Beliefs, b), max(patience, wait)
		if b.State == verdict.EntryInUse && !b.ToNode() {
			f.Severity = verdict.Critical
		}
		for _, o := range owners {
			if !slices.ContainsFunc(f.Owners, func(other verdict.Owner) bool { return other.ID == o.ID }) {
				f.Owners = append(f.Owners, o)
			}
		}
	}
	if len(f.Beliefs) > 0 {
		a.record(f, subject, patience)
	}
}

// misled returns the owners that do not receive what the holders of a belief send, and how long a hand-over of the address to
// them may take; none if the belief may be right. known is set if the belief was found to be wrong before: the owner of a
// disconnected node may have changed its hardware address.
func (a *addressAudit) misled(b *verdict.Belief, known bool) (owners []verdict.Owner, wait time.Duration) {
	if !b.Witnessed() || b.Link.Node.Unheard && !known {
		return nil, 0
	}
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		switch {
		case o.State == verdict.Gone:
		case len(b.Relayed(o)) > 0:
			b.RelayedBy = b.Relayed(o)
		case b.OfOwner(o): // also one that is not compared: a proxy, or one that was not seen for long
			return nil, 0
		case !compared(o) || !b.Meets(o, a.in.Address):
		case o.State == verdict.Unheard && !known:
			return nil, 0
		default:
			owners = append(owners, *o)
			if program, _ := o.VIPProgram(); program != "" || o.Kind() == verdict.Host || o.Kind() == verdict.External || a.in.Virtual() {
				wait = max(wait, a.policy.HandoverGrace)
			}
			if o.Pod != nil && o.Pod.Migrating {
				wait = max(wait, a.policy.MigrationGrace)
			}
		}
	}
	return owners, wait
}
