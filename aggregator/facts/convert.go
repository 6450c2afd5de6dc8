package facts

import (
	"net/netip"
	"slices"
	"strings"
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
	return Known(rec.GetKind(), verdict.WouldAnswer).Kernel()
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

// MaxWord is the largest length in bytes of a field, source or interface of a workload.
const MaxWord = 64

func who(w *pb.Workload) verdict.Who {
	kind := Known(w.GetKind(), verdict.Unknown)
	if kind == 0 {
		kind = verdict.Unknown
	}
	return verdict.Workload{
		Kind: kind, Namespace: w.GetNamespace(), Name: w.GetName(), UID: w.GetUid(),
		ContainerID: w.GetContainerId(), Source: w.GetSource(), Process: w.GetProcess(), PID: w.GetProcessId(), Ended: w.GetProcessEnded(),
		Idle: w.GetIdle(), MayForward: w.GetMayForward(), VIPProgram: w.GetVipProgram(), VIPProgramEnded: w.GetVipProgramEnded(),
		VirtualMachine: w.GetVirtualMachine(), Sources: sources(w.GetSources()),
	}.Who()
}

// sources packs the sources of a workload's fields.
func sources(fields map[string]string) string {
	if len(fields) == 0 {
		return ""
	}
	words := make([]string, 0, len(fields))
	for field, source := range fields {
		if len(field) <= MaxWord && len(source) <= MaxWord && !strings.ContainsAny(field+source, "=,") {
			words = append(words, field+"="+source)
		}
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

// intended packs the addresses that a namespace was meant to have and does not have. verdict.Namespace reads them.
func intended(list []*pb.Intended) string {
	fits := func(word string) bool { return len(word) <= MaxWord && !strings.ContainsAny(word, " \n") }
	lines := make([]string, 0, len(list))
	for _, i := range list {
		a, err := netip.ParseAddr(i.GetAddress())
		if err != nil || !fits(i.GetSource()) || !fits(i.GetInterface()) {
			continue
		}
		line := a.Unmap().WithZone("").String() + " " + i.GetSource() + " " + i.GetInterface()
		if network := i.GetNetwork(); network != "" && fits(network) {
			line += " " + network
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}
