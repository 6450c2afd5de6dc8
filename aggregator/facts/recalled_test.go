package facts

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// Since when an owner has had an address is what was recorded, unless the kernel reports that it was set again.
func TestRecordedTenuresContinue(t *testing.T) {
	const addr = "10.0.0.2"
	mac := []byte{2, 9, 9, 9, 9, 9}
	second := func(s int64) verdict.Stamp { return verdict.Stamp(s) * verdict.Stamp(time.Second) }
	kernel := Tenure{Address: key(addr), Boot: "b1", Owner: "b1/4002", MAC: verdict.MAC(records.MAC(2)), Assigned: second(1400), First: second(900)}
	guest := Tenure{Address: key(addr), Boot: "b1", Owner: "b1/4003", MAC: verdict.MAC(mac), First: second(1100)}
	const frame = "2 of b1/4003 0/1100"
	for _, test := range []struct {
		name     string
		change   func(of *Tenure)
		assigned int64
		want     string
	}{
		{"it was down meanwhile", func(*Tenure) {}, 1000, "1 of b1/4002 1400/900, " + frame},
		{"it was set again", func(*Tenure) {}, 1500, "1 of b1/4002 1500/1600, " + frame},
		{"another boot", func(of *Tenure) { of.Boot = "b0" }, 1000, "1 of b1/4002 1000/1600, " + frame},
		{"another namespace", func(of *Tenure) { of.Owner = "b1/4999" }, 1000, "1 of b1/4002 1000/1600, " + frame},
		{"another interface", func(of *Tenure) { of.MAC = "other" }, 1000, "1 of b1/4002 1000/1600, " + frame},
	} {
		for _, early := range []bool{true, false} {
			s := newScene(t)
			one := kernel
			test.change(&one)
			if early {
				s.RecallTenures([]Tenure{one, guest})
			}
			a := s.joins("n1", "b1", 1, at(pod(2, addr), test.assigned, 1600), pod(3, "10.0.0.3"), at(records.Claims(announced(3, addr, mac)), 0, 1600))
			if !early {
				s.RecallTenures([]Tenure{one, guest})
			}
			later := at(records.Claims(assigned(2, addr)), test.assigned, 1600)
			later.Claims[0].Count, later.Claims[0].Routed = 2, true
			a.report(later)
			if got := s.held(addr); got != test.want {
				t.Errorf("%s, before the report %t: got %q, want %q", test.name, early, got, test.want)
			}
			s.check(t, test.name)
		}
	}
}

// Addresses for which a kernel would answer were first seen when that was recorded, too.
func TestTheFirstSightOfAnAnswerContinues(t *testing.T) {
	const addr = "10.0.0.9"
	s := newScene(t)
	s.RecallTenures([]Tenure{{Address: key(addr), Boot: "b1", Owner: "b1/4002", MAC: verdict.MAC(records.MAC(2)), First: verdict.Stamp(900 * time.Second)}})
	answer := assigned(2, addr)
	answer.Kind, answer.Answer = pb.Evidence_WOULD_ANSWER, pb.ClaimRecord_ADDRESS
	s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), at(records.Claims(answer), 0, 1600))
	if got, want := s.held(addr), fmt.Sprintf("%d of b1/4002 0/900", verdict.WouldAnswer); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A program that moves virtual addresses, and that an agent or the journal knows from before, has ended if an agent that
// sees the processes of the node does not see it.
func TestAProgramThatAFormerAgentHasSeen(t *testing.T) {
	status := func(program string, ended, sees bool) *pb.ReportRequest {
		return &pb.ReportRequest{Status: &pb.StatusRecord{VipProgram: program, VipProgramEnded: ended, SeesProcesses: sees}}
	}
	for _, test := range []struct {
		name   string
		before *pb.ReportRequest // nil if it was recorded
		now    *pb.ReportRequest
		ended  bool
	}{
		{"it had ended", status("keepalived", true, true), status("", false, true), true},
		{"it has ended since", status("keepalived", false, true), status("", false, true), true},
		{"it still runs", status("keepalived", false, true), status("keepalived", false, true), false},
		{"the new agent cannot tell", status("keepalived", false, true), status("", false, false), false},
		{"it was recorded", nil, status("", false, true), true},
	} {
		for _, early := range []bool{true, false} {
			s := newScene(t)
			recorded := map[NodeID]string{{Boot: "b1", Netns: "1"}: "keepalived"}
			if test.before != nil {
				s.joins("n1", "b1", 1, test.before).leave()
			} else if early {
				s.RecallPrograms(recorded)
			}
			a := s.joins("n1", "b1", 2, test.now)
			if test.before == nil && !early {
				s.RecallPrograms(recorded)
			}
			if got := a.n.Rec; got.VIPProgram != "keepalived" || got.VIPProgramEnded != test.ended {
				t.Errorf("%s, before the report %t: got %q, ended %t", test.name, early, got.VIPProgram, got.VIPProgramEnded)
			}
		}
	}
	s := newScene(t)
	s.RecallPrograms(map[NodeID]string{{Boot: "b1", Netns: "1"}: "keepalived"})
	if a := s.joins("n1", "b2", 1, status("", false, true)); a.n.Rec.VIPProgram != "" {
		t.Errorf("got %q after a reboot, want no program", a.n.Rec.VIPProgram)
	}
}

// Frames of an owner that left before the start show no owner once its node confirms it.
func TestFramesOfRecordedOwnersThatLeft(t *testing.T) {
	const addr = "10.0.0.2"
	mac := []byte{2, 2, 0, 0, 0, 2}
	host := func(mac byte) *pb.ReportRequest {
		c := assigned(1, addr)
		c.Index = 9
		return records.Merge(lan(mac), records.Claims(c))
	}
	aged := func(d time.Duration) *pb.ReportRequest {
		m := seen(addr, mac, 1)
		m.Claims[0].Age = durationpb.New(d)
		return m
	}
	for _, test := range []struct {
		name string
		left time.Duration // before now; 0 if it is not known when
		age  time.Duration
		two  func(s *scene)
		want int // frames
	}{
		{"before it left", 5 * time.Second, 8 * time.Second, func(s *scene) { s.joins("n2", "b2", 1, lan(2)) }, 0},
		{"since it left", 5 * time.Second, 2 * time.Second, func(s *scene) { s.joins("n2", "b2", 1, lan(2)) }, 1},
		{"before its node lacked it", 0, 2 * time.Second, func(s *scene) { s.joins("n2", "b2", 1, lan(2)) }, 0},
		{"it has the address again", 5 * time.Second, 8 * time.Second, func(s *scene) { s.joins("n2", "b2", 1, host(2)) }, 1},
		{"its machine has rebooted", 0, 2 * time.Second, func(s *scene) { s.joins("n2", "b9", 1, lan(2)) }, 0},
		{"its machine has rebooted and has it again", 0, 2 * time.Second, func(s *scene) { s.joins("n2", "b9", 1, host(2)) }, 1},
		{"its node does not see all addresses", 5 * time.Second, 8 * time.Second, func(s *scene) {
			s.joins("n2", "b2", 1, lan(2), &pb.ReportRequest{Status: &pb.StatusRecord{Blind: true}})
		}, 1},
		{"its node is not connected", 5 * time.Second, 8 * time.Second, func(*scene) {}, 1},
		{"the snapshot of its node is not complete", 5 * time.Second, 8 * time.Second, func(s *scene) {
			_, _ = s.hello(&pb.Hello{Node: "n2", BootId: "b2", Netns: "1", Epoch: 1}, "")
		}, 1},
	} {
		for order := range 3 {
			s := newScene(t)
			gone := Departure{Address: key(addr), Node: "n2", MAC: verdict.MAC(mac)}
			if test.left != 0 {
				gone.At = s.now.Add(-test.left)
			}
			recall := func() { s.RecallDepartures([]Departure{gone}) }
			see := func() { s.joins("n3", "b3", 1, records.Merge(lan(3), aged(test.age))) }
			two := func() { test.two(s) }
			for _, do := range [][]func(){{recall, two, see}, {see, recall, two}, {two, see, recall}}[order] {
				do()
			}
			s.joins("n1", "b1", 1, host(1))
			frames := 0
			for _, o := range s.owners(addr) {
				for _, c := range o.Claims {
					if c.Wire() {
						frames++
					}
				}
			}
			if frames != test.want {
				t.Errorf("%s, order %d: got %d frames of it, want %d", test.name, order, frames, test.want)
			}
			s.check(t, test.name)
		}
	}
}
