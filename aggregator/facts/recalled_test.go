package facts

import (
	"fmt"
	"testing"
	"time"

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
