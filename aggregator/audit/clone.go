package audit

import "github.com/ipwitness/ipwitness/aggregator/verdict"

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
