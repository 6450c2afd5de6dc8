package aggregator

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/fleet"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

func TestNodeThatKeepsReconnectingTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{NodeTimeout: time.Minute})
		l.dial().send(snapshot(hello("n1", 1))).sync().cancel()
		time.Sleep(time.Minute + facts.ForgetNodeAfter - 10*time.Second)
		a := l.dial().send(&pb.ReportRequest{Hello: hello("n1", 1), SnapshotBegin: true}).sync()
		time.Sleep(20 * time.Second)
		a.cancel()
		time.Sleep(facts.ForgetNodeAfter - time.Minute)
		if got, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{}); err != nil || len(got.GetNodes()) != 1 {
			t.Errorf("got %v, %v, want the node: it was connected less than an hour ago", got, err)
		}
		time.Sleep(facts.ForgetNodeAfter + time.Minute)
		if got, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{}); err != nil || len(got.GetNodes()) != 0 {
			t.Errorf("got %v, %v, want none", got, err)
		}
	})
}

func TestSettingsThatAreRefusedAreNamedAsFlags(t *testing.T) {
	for want, cfg := range map[string]Config{
		"--settle -1s: it must not be negative":                          {Settle: -time.Second},
		"--network lan: only a fleet knows networks of several clusters": {SharedNetworks: []fleet.Network{{Name: "lan"}}},
		"--lease needs the Kubernetes API":                               {Lease: "default/ipwitness"},
	} {
		cfg.Kubeconfig = kube.Off
		if _, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want an error that begins with %q", err, want)
		}
	}
}

func TestASilentNodeResolvesNothingUntilItTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{NodeTimeout: time.Minute})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		a.cancel()
		time.Sleep(59 * time.Second)
		c := l.conflict(pb.Conflict_SUSPECTED)
		if !strings.Contains(c.GetSummary(), "disconnected") || c.GetOwners()[0].GetState() != pb.Owner_DISCONNECTED {
			t.Errorf("got %v, want it to say that the node is disconnected", c)
		}
		time.Sleep(2 * time.Second)
		c = l.conflict(pb.Conflict_RESOLVED)
		if !strings.Contains(c.GetSummary(), "was disconnected for 1m0s") {
			t.Errorf("got %q, want the reason", c.GetSummary())
		}
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 0 {
			t.Errorf("got %v, want no owner", got)
		}
		nodes, _ := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
		if len(nodes.GetNodes()) != 1 || nodes.GetNodes()[0].GetState() != pb.Node_DISCONNECTED {
			t.Errorf("got %v, want the node as DISCONNECTED", nodes)
		}
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || got[0].GetState() != pb.Owner_LIVE {
			t.Errorf("got %v, want a LIVE again", got)
		}
		time.Sleep(2 * time.Minute)
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 {
			t.Errorf("got %v, want a to remain", got)
		}
	})
}

func TestSightingsEndWithTheirOwner(t *testing.T) {
	for name, end := range map[string]*pb.ReportRequest{
		"address":   gone(assigned(2, addr)),
		"interface": {Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Gone: true}}},
		"namespace": {Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{})
				a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", "10.244.0.6"))).sync()
				a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{
					announced(2, addr, records.MAC(2)), announced(3, addr, records.MAC(2)), announced(2, "10.244.0.9", []byte{6, 6, 6, 6, 6, 6}),
				}}).sync()
				if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 1 || len(got[0].GetEvidence()) != 3 {
					t.Fatalf("got %v, want one owner with three kinds of evidence", got)
				}
				a.send(end).sync()
				if got := l.owners(&pb.ListOwnersRequest{Address: addr}); len(got) != 0 {
					t.Errorf("got %v, want nobody", got)
				}
				guests := l.owners(&pb.ListOwnersRequest{Address: "10.244.0.9"})
				if want := 1; name == "namespace" && len(guests) != 0 || name != "namespace" && len(guests) != want {
					t.Errorf("got guests %v, want them to end with the namespace", guests)
				}
			})
		})
	}
}

func TestWireOnlyOwnersExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(2, "10.0.0.9", []byte{6, 6, 6, 6, 6, 6})}}).sync()
		for _, want := range []pb.Owner_State{pb.Owner_LIVE, pb.Owner_STALE} {
			if got := l.owners(&pb.ListOwnersRequest{Address: "10.0.0.9"}); len(got) != 1 || got[0].GetState() != want {
				t.Fatalf("got %v, want one that is %s", got, want)
			}
			time.Sleep(DefaultStaleAfter + time.Second)
		}
		if got := l.owners(&pb.ListOwnersRequest{Address: "10.0.0.9"}); len(got) != 0 {
			t.Errorf("got %v, want nobody", got)
		}
	})
}

func TestTwoNodesOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		twin := hello("n1", 1)
		twin.BootId = "later-boot"
		later := l.dial().send(snapshot(twin, podVeth(2, "b", addr))).sync()
		nodes, _ := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
		if len(nodes.GetNodes()) != 2 || nodes.GetNodes()[1].GetName() != "n1@later-bo" {
			t.Errorf("got %v, want n1 and n1@later-bo", nodes)
		}
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v, want two nodes to be two scopes", got)
		}
		// The names of the nodes do not depend on the order in which they connected.
		third := hello("n1", 1)
		third.BootId = "a-boot"
		l.dial().send(snapshot(third)).sync()
		for _, o := range l.owners(&pb.ListOwnersRequest{Address: addr}) {
			if want := map[string]string{"a": "n1@boot-n1", "b": "n1@later-bo"}[o.GetWorkload().GetName()]; o.GetNode() != want {
				t.Errorf("%s: got node %s, want %s", o.GetWorkload().GetName(), o.GetNode(), want)
			}
		}
		later.send(podVeth(3, "c", addr)).sync()
		if c := l.conflict(pb.Conflict_SUSPECTED); c.GetScope().GetName() != "n1@later-bo" || len(c.GetOwners()) != 2 {
			t.Errorf("got %v, want the two pods of one of them to be a conflict", c)
		}
	})
}
