package aggregator

import (
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// eth1 is a second uplink of a node, on the LAN of the first.
func eth1(mac []byte) *pb.ReportRequest {
	return &pb.ReportRequest{
		Links: []*pb.LinkRecord{{Name: "eth1", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: 3, Name: "eth1", Mac: mac, Attachment: pb.InterfaceRecord_OWN, Link: "eth1", Uplink: true,
		}},
	}
}

func TestANodeWithTwoUplinksOnOneLANTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		agents := l.onLAN(2, onlyOn(1, eth1([]byte{2, 2, 9, 0, 0, 1})))
		second := entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))
		second.Index, second.Link = 3, "eth1"
		agents[0].send(claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)), second)).sync()
		agents[1].cancel()
		synctest.Wait()
		time.Sleep(time.Second)
		agents[0].cancel()
		synctest.Wait()
		time.Sleep(6 * time.Minute)
		if len(l.store.macs) != 0 || len(l.store.domains) != 0 {
			t.Errorf("got %d MACs and %d domains, want none", len(l.store.macs), len(l.store.domains))
		}
	})
}
