package facts

import (
	"slices"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The cause of a conflict depends on the subnets of a node that contain the address: those that the
// node gains, loses or changes.
func TestDisputesAreJudgedAgainBySubnets(t *testing.T) {
	s := newScene(t)
	s.told.contested = []string{"10.0.0.9", "10.0.1.9", "10.1.0.9", "fe80::9"}
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.9"), pod(3, "10.0.1.9"), pod(4, "10.1.0.9"), pod(5, "fe80::9"))
	count := uint32(0)
	own := func(prefix uint32, gone bool) {
		s.judgeAll()
		s.told.heard = nil
		count++
		a.tell(&pb.ReportRequest{Claims: []*pb.ClaimRecord{{
			Address: []byte{10, 0, 0, 1}, Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 9, Count: count, PrefixLength: prefix, Gone: gone,
		}}})
	}
	for _, test := range []struct {
		why    string
		prefix uint32
		gone   bool
		judged []string
		ranges bool
	}{
		{"a new address", 24, false, []string{"10.0.0.1", "10.0.0.9"}, true},
		{"it is seen again", 24, false, []string{"10.0.0.1"}, false},
		{"its subnet becomes wider", 16, false, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9"}, true},
		{"and wider", 8, false, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9", "10.1.0.9"}, true},
		{"it becomes narrower", 32, false, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9", "10.1.0.9"}, true},
		{"it is seen again in no subnet", 32, false, []string{"10.0.0.1"}, false},
		{"it gets a subnet", 16, false, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9"}, true},
		{"it is gone", 0, true, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9"}, true},
	} {
		own(test.prefix, test.gone)
		s.wantJudged(test.why, test.judged...)
		if ranges := slices.Contains(s.told.heard, "ranges n1"); ranges != test.ranges {
			t.Errorf("%s: got told that the ranges of n1 changed %t, want %t", test.why, ranges, test.ranges)
		}
		s.check(t, test.why)
	}
	s.judgeAll()
	a.tell(lan(2))
	s.wantJudged("its interface changes", s.told.contested...)
}
