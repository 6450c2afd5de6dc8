package audit

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Clone returns the finding about frames with a hardware address that belongs to another namespace
// than the one behind their port, or of a machine outside.
func Clone(p *verdict.Policy, s *verdict.Spoof) verdict.Finding {
	severity := verdict.Critical
	if s.Sender == nil {
		severity = verdict.Warning // anybody on the LAN can send such a frame
	}
	return verdict.Finding{
		Kind: verdict.FindingMACCloned, Severity: severity, Owners: append([]verdict.Owner{s.Owner}, s.Victims...), Spoof: s,
		ID: verdict.FindingID(p.Cluster, verdict.FindingMACCloned, s.Port.Namespace.Node.Name+" "+s.Port.Name+" "+s.MACs[0].String()),
	}
}

const (
	// aliveWithin is how long ago a copy of a virtual machine may have sent, to count as running. An agent reports the
	// same frame again after 30 s.
	aliveWithin = 45 * time.Second
	// bothFor is how long both copies must run. When a machine is migrated, it sends through its former tap no longer.
	bothFor = 2 * time.Minute
)

// auditCopies checks whether a virtual machine runs on several nodes: as one of two copies moves the machine's address to and
// fro between the ports of bridges and switches, both lose frames, and they may write to one disk.
func (a *addressAudit) auditCopies() {
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		copies := o.Copies()
		if len(copies) == 0 || !compared(o) || a.in.Address.IsLinkLocalUnicast() {
			continue
		}
		f := verdict.Finding{Kind: verdict.FindingMACCloned, Severity: verdict.Critical}
		subject, within := string(o.MAC)+" on several nodes ", aliveWithin
		if id := a.id(f.Kind, subject); slices.ContainsFunc(a.in.Before, func(b verdict.Finding) bool { return b.ID == id && !b.Waiting }) {
			within = a.policy.StaleAfter
		}
		a.again(a.in.Now.Add(aliveWithin / 2)) // further frames of an owner without a rival are no reason to judge it again
		for _, c := range copies {
			if a.in.Now >= c.Seen.Add(within) {
				continue
			}
			one := *o
			one.Interface, one.Node, one.Claims = c.Interface, c.Node(), []*verdict.Claim{c}
			f.Owners = append(f.Owners, one)
		}
		if len(f.Owners) < 2 {
			continue
		}
		first := &f.Owners[0]
		f.Spoof = &verdict.Spoof{
			Port: first.Interface, Link: first.Claims[0].Link, Owner: *first, Victims: f.Owners[1:], MACs: []verdict.MAC{o.MAC}, Addresses: []netip.Addr{a.in.Address},
		}
		a.record(f, subject, bothFor)
	}
}
