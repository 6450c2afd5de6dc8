package shard_test

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Nobody is told that the owners and conflicts of a partition are gone because another replica serves it
// now. If it is gained again, they are found again.
func TestAPartitionThatIsLostIsForgottenSilently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		w.build(2, true)
		defer w.run()()
		lost, kept := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.3")
		var both, one facts.PartitionSet
		both[index.AddressOf(lost).Partition()], both[index.AddressOf(kept).Partition()] = true, true
		one[index.AddressOf(kept).Partition()] = true
		w.facts.Serve(both)
		n := w.connect("n1")
		by := func(revision uint64, messages ...*pb.ReportRequest) []*pb.ReportRequest {
			for _, m := range messages {
				m.Partitions, m.Complete = revision, revision
			}
			return messages
		}
		n.report(by(2, pod(2, lost.String()), pod(3, lost.String()), pod(4, kept.String()))...)
		all := []string{
			"added 10.0.0.1 p2 live of 2", "added 10.0.0.1 p3 live of 2", "added 10.0.0.3 p4 live of 1", "n1: contest 10.0.0.1 true",
			"opened 10.0.0.1 suspected episode 1 was suspected of 2", "detected in 5ms",
		}
		w.wantHeard("there is a conflict", all...)

		dropped, _ := w.facts.Serve(one)
		w.shards.Drop(dropped)
		delete(w.addrs, lost)
		w.wantHeard("its partition is lost", "n1: contest 10.0.0.1 false")
		w.wantKept("its partition is lost", 0, 0)
		w.facts.Serve(one)
		n.report(by(2, pod(2, lost.String()))...) // on its way since before
		delete(w.addrs, lost)
		w.wantHeard("a late claim")

		w.facts.Serve(both)
		n.report(by(4, pod(2, lost.String()), pod(3, lost.String()))...)
		all = slices.DeleteFunc(all, func(line string) bool { return line == "added 10.0.0.3 p4 live of 1" })
		w.wantHeard("its partition is gained again", all...)
	})
}
