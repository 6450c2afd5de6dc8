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
		{name: "a new namespace has the number of one in a later message", epoch: 2, change: func(all []*pb.ReportRequest) []*pb.ReportRequest {
			return slices.Concat(all[:1], numbered(map[uint32]uint32{5: 3}, pod(5, "10.0.0.5")), numbered(map[uint32]uint32{2: 4, 3: 2}, all[1:]...))
		}, want: [4]string{byGuest, byOutside, byKernel, byRefused}},
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

// What a former agent has witnessed ends in time, however often agents are restarted since: frames after they were seen, and
// refused addresses after that agent was replaced.
func TestRestartsDoNotExtendWhatAFormerAgentHasWitnessed(t *testing.T) {
	const guest, refused = "10.0.0.50", "fd00::5"
	s := newScene(t)
	failed := assigned(2, refused)
	failed.Kind, failed.Flags = pb.Evidence_DAD_FAILED, verdict.FlagDADFailed
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), records.Claims(announced(2, guest, []byte{2, 9, 9, 9, 9, 9}), failed))
	s.after(policyForTests.StaleAfter) // until then, it is heard
	a.report(records.Claims(announced(2, guest, []byte{2, 9, 9, 9, 9, 9})))
	a.leave()
	const most = 5 // restarts until the frames are outdated
	for i := range most + 1 {
		s.after(2 * policyForTests.StaleAfter / most)
		a = s.joins("n1", "b1", uint64(i+2), pod(2, "10.0.0.2")) //nolint:gosec // few
		s.Ring()
		for addr, until := range map[string]int{guest: most - 1, refused: most} {
			if got, want := s.held(addr) != "", i < until; got != want {
				t.Errorf("restart %d: got %s held %t, want %t", i, addr, got, want)
			}
		}
		a.leave()
	}
	s.check(t, "after the restarts")
}

// The clock of a node is set back after its agent was restarted: the times of the former agent follow, in whichever order
// the present one reports its own times again and answers a ping.
func TestTimesOfAFormerAgentFollowTheClock(t *testing.T) {
	const addr, guest = "10.0.0.2", "10.0.0.50"
	mac := []byte{2, 9, 9, 9, 9, 9}
	for _, test := range []struct {
		name       string
		step       time.Duration
		reported   bool // the times are reported before the ping is answered
		held, wire string
	}{
		{"set back", -700 * time.Second, false, "1 of b1/4002 700/200", "2 of b1/4002 0/800"},
		{"set back, and reported before", -700 * time.Second, true, "1 of b1/4002 700/200", "2 of b1/4002 0/800"},
		{"set forward", 100 * time.Second, false, "1 of b1/4002 1500/1000", "2 of b1/4002 0/1600"},
		{"a slow answer", -leastSkewChange, false, "1 of b1/4002 1400/900", "2 of b1/4002 0/1500"},
	} {
		s := newScene(t)
		frame := at(records.Claims(announced(2, guest, mac)), 0, 1500)
		a := s.joins("n1", "b1", 1, at(pod(2, addr), 1400, 900), frame) // it was down meanwhile
		s.Heard(a.p, a.n, new(Skew))
		a.leave()
		a = s.joins("n1", "b1", 2, at(pod(2, addr), 1000, 1600))
		ahead := int64(0)
		if test.step.Abs() > leastSkewChange {
			ahead = int64(test.step / time.Second)
		}
		now := at(pod(2, addr), 1000+ahead, 1600+ahead)
		if test.reported {
			a.snapshot(now)
		}
		s.Heard(a.p, a.n, &Skew{Ahead: test.step})
		a.snapshot(now)
		a.snapshot(now)
		if got := s.held(addr); got != test.held {
			t.Errorf("%s: got %q, want %q", test.name, got, test.held)
		}
		if got := s.held(guest); got != test.wire {
			t.Errorf("%s: got %q of frames, want %q", test.name, got, test.wire)
		}
		s.check(t, test.name)
	}
}
