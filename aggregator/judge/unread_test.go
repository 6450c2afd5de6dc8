package judge

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
)

// A finding about a pool of the Kubernetes API from before the start does not end because the records of its IPAM are not
// read yet, or cannot be read.
func TestAFindingDoesNotEndBeforeTheRecordsOfItsIPAMAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &cluster{})
		w.node("n1")
		pool := &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Name: "pool"}}
		one := &verdict.Finding{ID: "f", Kind: verdict.FindingLeaked, Address: netip.MustParseAddr("10.244.0.5"), Pool: pool}
		w.facts.RecordsChanged(map[string]ipam.State{calico.IPAM.Name: ipam.Reading})
		w.Recall([]*Found{{Finding: one, Place: PlaceOf(one)}})
		for _, state := range []ipam.State{ipam.Reading, ipam.Unreadable} {
			w.facts.RecordsChanged(map[string]ipam.State{calico.IPAM.Name: state})
			time.Sleep(time.Minute)
			if w.decide(); len(w.ended) > 0 {
				t.Errorf("state %d: the finding has ended", state)
			}
			w.facts.RLock()
			if unread := w.facts.Unread(); slices.Contains(unread, calico.IPAM.Name) != (state == ipam.Reading) {
				t.Errorf("state %d: got %q awaited", state, unread)
			}
			w.facts.RUnlock()
		}
		w.facts.RecordsChanged(map[string]ipam.State{}) // all is read, or the IPAM is not installed
		if w.decide(); len(w.ended) != 1 {
			t.Errorf("got %q, want the end of the finding", w.ended)
		}
	})
}
