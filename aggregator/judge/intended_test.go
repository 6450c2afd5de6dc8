package judge

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestALateAddressIsNoLongerMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		n, s := w.node("n1", pod(2, "a", "10.244.0.9"))
		w.facts.RLock() // the lock under which the Kubernetes API's state is updated
		b := w.facts.Builder()
		lacks := []verdict.Finding{{
			ID: "x", Kind: verdict.FindingIntendedNotObserved, Severity: verdict.Warning, Address: netip.MustParseAddr("10.244.0.2"), Source: "kubernetes",
			Owners: w.facts.Policy.Judge(b.Case(index.AddressOf(netip.MustParseAddr("10.244.0.9")), false)).Owners,
		}}
		b.Keep()
		w.swap(intent{n, n.NamespaceOf(2).ID}, lacks)
		w.Publish(&lacks[0])
		w.facts.RUnlock()
		if w.Intended.run(); w.Get("x") == nil || len(w.ended) != 0 {
			t.Fatalf("got %v ended, want that it lacks one", w.ended)
		}
		if _, err := w.facts.Delta(s, n, &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(2, "10.244.0.2")}}, 0, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if w.Intended.run(); w.Get("x") != nil || !slices.Equal(w.ended, []string{"x"}) {
			t.Errorf("got %v ended, want that it has it now", w.ended)
		}
	})
}

// cluster is a Kubernetes API with one pod.
type cluster struct{ pod *verdict.PodObject }

func (c cluster) Pod(string, string, string, string) *verdict.PodObject { return c.pod }
func (c cluster) PodNamed(string, string) *verdict.PodObject            { return c.pod }
func (cluster) KnownUntil() verdict.Stamp                               { return 0 }
func (cluster) InPodCIDR(netip.Addr) bool                               { return false }
func (cluster) OneTenant() bool                                         { return false }
func (cluster) FormerEndpoints(netip.Addr) ([]ipam.Endpoint, bool)      { return nil, true }
func (cluster) Internal(string, netip.Addr) bool                        { return false }
func (cluster) InPodCIDROf(string, netip.Addr) bool                     { return false }
func (cluster) NodesCovered(func(string) bool) (all, asked bool)        { return true, true }

// After a node has rebooted, the API lists the pods' old addresses for a while.
func TestPodAddressesInTheAPIMayBeOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &verdict.PodObject{
			Namespace: "default", Name: "web", UID: "uid-web", Phase: "Running", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.6")},
			Heard: verdict.At(time.Now()),
		}
		w := newWorld(t, cluster{p})
		n, _ := w.node("n1", pod(2, "web", "10.0.0.5"))
		w.facts.RLock()
		defer w.facts.RUnlock()
		ns := n.NamespaceOf(2)
		const long = verdict.Stamp(audit.IntendedAfter)
		for _, test := range []struct {
			sandbox, pod verdict.Stamp // age of each
			found        int
		}{{0, long, 0}, {long, 0, 0}, {long, long, 1}} {
			heard := p.Heard
			p.Heard = heard - test.pod
			if got := w.lacking(intent{n, ns.ID}, ns, n.SinceOf(2)-test.sandbox); len(got) != test.found {
				t.Errorf("the sandbox is %s older, and the pod %s: got %d findings, want %d", time.Duration(test.sandbox), time.Duration(test.pod), len(got), test.found)
			}
			p.Heard = heard
		}
	})
}
