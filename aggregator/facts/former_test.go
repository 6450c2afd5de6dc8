package facts

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// numbered returns reports in which namespaces have other record numbers.
func numbered(numbers map[uint32]uint32, reports ...*pb.ReportRequest) (all []*pb.ReportRequest) {
	change := func(id *uint32) {
		if now := numbers[*id]; now != 0 {
			*id = now
		}
	}
	for _, m := range reports {
		m = proto.CloneOf(m)
		for _, rec := range m.GetNamespaces() {
			change(&rec.Id)
		}
		for _, rec := range m.GetInterfaces() {
			change(&rec.Namespace)
			change(&rec.PeerNamespace)
		}
		for _, rec := range m.GetClaims() {
			change(&rec.Namespace)
		}
		all = append(all, m)
	}
	return all
}

// at returns a report with the times of its claims in seconds. A time of 0 is not known.
func at(m *pb.ReportRequest, assigned, first int64) *pb.ReportRequest {
	for _, c := range m.GetClaims() {
		c.FirstSeen, c.LastSeen = &timestamppb.Timestamp{Seconds: first}, &timestamppb.Timestamp{Seconds: first}
		if assigned != 0 {
			c.AssignedAt = &timestamppb.Timestamp{Seconds: assigned}
		}
	}
	return m
}

// held returns what is claimed of an address: the kinds of the claims, their owners and their times.
func (s *scene) held(addr string) string {
	var all []string
	for _, o := range s.owners(addr) {
		for _, c := range o.Claims {
			all = append(all, fmt.Sprintf("%d of %s %d/%d", c.Kind, o.ID, c.AssignedAt.Sub(0)/time.Second, c.First.Sub(0)/time.Second))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// A new agent has seen no frames yet, numbers namespaces otherwise, and does not know since when a kernel has used an
// address that it had before. What the agent before it has witnessed of the same machine counts on.
func TestWhatAFormerAgentHasWitnessed(t *testing.T) {
	const guest, outside, plain, refused = "10.0.0.50", "10.0.0.9", "10.0.0.2", "fd00::5"
	mac := []byte{2, 9, 9, 9, 9, 9}
	failed := func(flags uint32) *pb.ReportRequest {
		c := assigned(3, refused)
		c.Kind, c.Flags = pb.Evidence_DAD_FAILED, flags|verdict.FlagDADFailed
		return records.Claims(c)
	}
	ports := func() []*pb.ReportRequest {
		return []*pb.ReportRequest{lan(1), at(pod(2, plain), 1000, 1000), at(pod(3, "10.0.0.3"), 1000, 1000)}
	}
	frames := func(first int64) []*pb.ReportRequest {
		return []*pb.ReportRequest{at(records.Claims(announced(2, guest, mac)), 0, first), at(seen(outside, mac, 5), 0, first)}
	}
	const (
		byGuest, byOutside  = "2 of b1/4002 0/1500", "2 of b1/1/eth0/02:09:09:09:09:09 0/1500"
		byKernel, byRefused = "1 of b1/4002 1400/900", "5 of b1/4003 0/1500"
	)
	for _, test := range []struct {
		name   string
		epoch  uint64
		flags  uint32
		change func(all []*pb.ReportRequest) []*pb.ReportRequest // of what the next agent reports
		after  time.Duration
		want   [4]string
	}{
		{name: "the agent reconnects", epoch: 1, want: [4]string{"", "", byKernel, ""}},
		{name: "another agent", epoch: 2, want: [4]string{byGuest, byOutside, byKernel, byRefused}},
		{name: "other numbers", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			return numbered(map[uint32]uint32{2: 3, 3: 2}, all...)
		}, want: [4]string{byGuest, byOutside, byKernel, byRefused}},
		{name: "the number of another namespace", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			return numbered(map[uint32]uint32{2: 3}, slices.Delete(all, 2, 3)...)
		}, want: [4]string{byGuest, byOutside, byKernel, ""}},
		{name: "the frames are seen again", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			return append(all, frames(1700)...)
		}, want: [4]string{byGuest, byOutside, byKernel, byRefused}},
		{name: "the ports are gone", epoch: 2, change: func([]*pb.ReportRequest) []*pb.ReportRequest { return nil }},
		{name: "another namespace is behind the port", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			all[1].Namespaces[1].Netns = "4999"
			return all
		}, want: [4]string{"", byOutside, "1 of b1/4999 1000/1600", byRefused}},
		{name: "the port has another hardware address", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			all[0].Interfaces[0].Mac[5]++
			return all
		}, want: [4]string{byGuest, "", byKernel, byRefused}},
		{name: "the port is on another link", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			all[0].Links[0].Name, all[0].Interfaces[0].Link = "br0", "br0"
			return all
		}, want: [4]string{byGuest, "", byKernel, byRefused}},
		{name: "the address was set again meanwhile", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			all[1].Claims[0].AssignedAt.Seconds = 1550
			return all
		}, want: [4]string{byGuest, byOutside, "1 of b1/4002 1550/1600", byRefused}},
		{name: "the refused address was set again", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			return append(all, at(records.Claims(assigned(3, refused)), 1600, 1600))
		}, want: [4]string{byGuest, byOutside, byKernel, "1 of b1/4003 1600/1600"}},
		{name: "the kernel had kept the refused address", epoch: 2, flags: verdict.FlagPermanent, want: [4]string{byGuest, byOutside, byKernel, ""}},
		{name: "nothing is seen for long", epoch: 2, after: 2 * policyForTests.StaleAfter, want: [4]string{"", "", byKernel, ""}},
	} {
		s := newScene(t)
		first := append(ports(), at(failed(test.flags), 0, 1500))
		first[1] = at(first[1], 1400, 900) // it was down meanwhile
		a := s.joins("n1", "b1", 1, append(first, frames(1500)...)...)
		a.leave()
		next := ports()
		next[1] = at(next[1], 1000, 1600)
		if test.epoch == 1 {
			next[1] = at(next[1], 1400, 900)
		}
		if test.change != nil {
			next = test.change(next)
		}
		a = s.joins("n1", "b1", test.epoch, next...)
		a.snapshot(next...) // it is asked again
		if test.epoch == 2 && len(next) > 1 {
			later := records.Claims(proto.CloneOf(next[1].Claims[0]))
			later.Claims[0].Count, later.Claims[0].Routed = 2, true
			a.report(later)
		}
		s.after(test.after)
		s.Ring()
		for i, addr := range []string{guest, outside, plain, refused} {
			if got := s.held(addr); got != test.want[i] {
				t.Errorf("%s: got %q of %s, want %q", test.name, got, addr, test.want[i])
			}
		}
		s.check(t, test.name)
	}
}
