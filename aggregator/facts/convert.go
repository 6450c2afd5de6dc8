package facts

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Known is a number of the contract; 0 for one that a newer agent may send.
func Known[E ~int32, T ~uint8](number E, last T) T {
	if number < 0 || number > E(last) {
		return 0
	}
	return T(number)
}

// Stamp is a time of an agent; 0 where it is none, or one that no clock shows.
func Stamp(t *timestamppb.Timestamp) verdict.Stamp {
	if t.GetSeconds() < 0 || t.GetSeconds() >= maxSeconds || t.GetNanos() < 0 || t.GetNanos() >= 1e9 {
		return 0
	}
	return verdict.Stamp(t.GetSeconds()*1e9 + int64(t.GetNanos()))
}

// FromKernel reports whether a record says what a kernel has, not what the wire shows.
func FromKernel(rec *pb.ClaimRecord) bool {
	return rec.GetKind() == pb.Evidence_ASSIGNED || rec.GetKind() == pb.Evidence_DAD_FAILED
}

// kernelClaims is how many claims more a message may make its kernels have.
func kernelClaims(m *pb.ReportRequest) (n int) {
	for _, c := range m.GetClaims() {
		if FromKernel(c) && !c.GetGone() {
			n++
		}
	}
	return n
}

// residence is how long the slowest claim of a message was in the agent.
func residence(m *pb.ReportRequest) (longest time.Duration) {
	for _, c := range m.GetClaims() {
		if !c.GetGone() {
			longest = max(longest, c.GetResidence().AsDuration())
		}
	}
	return longest
}

// kernelFirst reorders claims so that wire claims come last.
func kernelFirst(claims []*pb.ClaimRecord) []*pb.ClaimRecord {
	ordered := make([]*pb.ClaimRecord, 0, len(claims))
	for _, kernel := range []bool{true, false} {
		for _, c := range claims {
			if FromKernel(c) == kernel {
				ordered = append(ordered, c)
			}
		}
	}
	return ordered
}
