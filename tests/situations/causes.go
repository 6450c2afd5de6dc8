package situations

import (
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// causes maps rows to the expected causes of their conflicts.
var causes = map[string]string{
	"T1": "ipam-state-lost", "T2": "ipam-state-lost", "T4": "ipam-state-lost",
	"T3-calico": "ipam-booked-elsewhere",
	// The host-local of each node has allocated the address to the node's own pod.
	"T3": "pod-cidr-overlap", "T4-nodes": "pod-cidr-overlap", "T5": "pod-cidr-overlap", "T5-gateway": "pod-cidr-overlap",
	"T6": "static-address", "T6-guest": "static-address", "T11-bridge": "static-address",
	"T7": "external-device", "T7-pod": "external-device", "T7-ipv6": "external-device", "T7-nodes": "external-device",
	"T8": "split-brain", "T8-announced": "split-brain",
	"T10": "orphaned-sandbox",
	"T11": "tunnel-address",
	"T14": "overlapping-networks",
	// There is no evidence of the source of an address in a namespace created by hand, or on two
	// external machines.
	"T3-declared": "unknown", "T7-externals": "unknown", "T9": "unknown", "T12": "unknown", "T13": "unknown",
}

// WantCause fails if the conflict of a row does not have the expected cause, with the facts from
// which it follows.
func WantCause(t testing.TB, id string, ask func() Output) {
	t.Helper()
	want := causes[id]
	if want == "" {
		return
	}
	const most = 100
	var got []string
	for range most { // CNI names and results may be known later than the conflict
		got = nil
		for _, c := range ask().Explanation.GetConflicts() {
			if c.GetState() == ipwitnessv1.Conflict_RESOLVED {
				continue
			}
			if c.GetCause() == want && (len(c.GetBecause()) > 0) == (want != "unknown") {
				return
			}
			got = append(got, c.GetCause())
		}
	}
	t.Errorf("row %s: got causes %q, want %s and the facts that it follows from", id, got, want)
}
