package facts

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Known returns an enumeration value of the API; 0 for an unknown value, which a newer agent may
// send.
func Known[E ~int32, T ~uint8](number E, last T) T {
	if number < 0 || number > E(last) {
		return 0
	}
	return T(number)
}

// Stamp returns a time that an agent sent; 0 if it is missing or out of range.
func Stamp(t *timestamppb.Timestamp) verdict.Stamp {
	if t.GetSeconds() < 0 || t.GetSeconds() >= maxSeconds || t.GetNanos() < 0 || t.GetNanos() >= 1e9 {
		return 0
	}
	return verdict.Stamp(t.GetSeconds()*1e9 + int64(t.GetNanos()))
}

// FromKernel reports whether a record is a kernel claim and not a wire claim.
func FromKernel(rec *pb.ClaimRecord) bool {
	return rec.GetKind() == pb.Evidence_ASSIGNED || rec.GetKind() == pb.Evidence_DAD_FAILED
}

// kernelClaims returns the number of kernel claims that a message may add.
func kernelClaims(m *pb.ReportRequest) (n int) {
	for _, c := range m.GetClaims() {
		if FromKernel(c) && !c.GetGone() {
			n++
		}
	}
	return n
}

// residence returns the longest time that a claim of a message has spent in the agent.
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
