package aggregator

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestFloodingPortsAreListedWithTheirWorkloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		since := timestamppb.New(time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC))
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).send(&pb.ReportRequest{Status: &pb.StatusRecord{Flooding: []*pb.FloodingRecord{
			{Index: 102, Interface: "veth2", LeftOut: 7000, Rate: 300, Since: since},
			{Index: 9, Interface: "eth0", LeftOut: 5, Since: since},
		}}}).sync()
		node := func() *pb.Node {
			t.Helper()
			list, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
			if err != nil || len(list.GetNodes()) != 1 {
				t.Fatalf("got %v, %v, want one node", list, err)
			}
			return list.GetNodes()[0]
		}
		n := node()
		if len(n.GetFlooding()) != 2 {
			t.Fatalf("got %v, want two ports", n.GetFlooding())
		}
		veth, eth := n.GetFlooding()[0], n.GetFlooding()[1]
		if veth.GetInterface() != "veth2" || veth.GetWorkload().GetName() != "a" || veth.GetLeftOut() != 7000 || veth.GetRate() != 300 ||
			!veth.GetSince().AsTime().Equal(since.AsTime()) {
			t.Errorf("got %v, want veth2 with pod a behind it", veth)
		}
		if eth.GetInterface() != "eth0" || eth.GetWorkload() != nil {
			t.Errorf("got %v, want eth0 without a workload", eth)
		}
		const tail = " frames and claims were dropped since 2026-03-14 15:09:26 UTC, currently "
		const advice = "Claims to addresses that this node or its IPAM knows are still processed, but other claims from this port may be missing. " +
			"Look for a scanner, a loop or an attack behind the port"
		want := []string{
			"veth2 (pod default/a) floods the agent with new bindings: 7000" + tail + "300 per second. " + advice,
			"eth0 floods the agent with new bindings: 5" + tail + "0 per second. " + advice,
		}
		if got := n.GetProblems(); !slices.Equal(got, want) {
			t.Errorf("got problems %q, want %q", got, want)
		}

		a.send(&pb.ReportRequest{Status: &pb.StatusRecord{}}).sync()
		if n := node(); len(n.GetFlooding()) != 0 || len(n.GetProblems()) != 0 {
			t.Errorf("got %v after its end, want no flood", n)
		}
	})
}
