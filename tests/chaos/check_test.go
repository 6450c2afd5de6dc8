package chaos

import (
	"slices"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// after the start of a run.
func seconds(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

const (
	movingAddress, steadyAddress   = "10.0.0.1", "10.0.0.2"
	first, second, third, lasting  = podPrefix + "1", podPrefix + "2", podPrefix + "3", podPrefix + "lasting"
	movingConflict, steadyConflict = "moving", "steady"
)

// newRun returns a run of two replicas without errors: one address has three episodes, another one a conflict that
// lasts. The second replica is killed during the third episode.
func newRun() *Run {
	run := &Run{
		Episodes: []*Episode{
			{Address: steadyAddress, Held: "a", Pod: lasting, Nodes: [2]string{"n1", "n2"}, Told: true, Begun: seconds(1)},
			{Address: movingAddress, Held: "b", Pod: first, Nodes: [2]string{"n1", "n2"}, Told: true, Begun: seconds(10), Ended: seconds(20)},
			{Address: movingAddress, Held: "b", Pod: second, Nodes: [2]string{"n1", "n2"}, Told: true, Begun: seconds(30), Ended: seconds(40)},
			{Address: movingAddress, Held: "b", Pod: third, Nodes: [2]string{"n1", "n2"}, Told: true, Begun: seconds(50), Ended: seconds(60)},
		},
		Events: make(map[About]int), Acknowledged: map[string]string{steadyAddress: "NET-1"},
	}
	states := []pb.Conflict_State{pb.Conflict_SUSPECTED, pb.Conflict_CONFIRMED, pb.Conflict_RESOLVED}
	for i := range 2 {
		r := &Replica{Name: []string{"r1", "r2"}[i], first: make(map[string]time.Time)}
		for n, e := range run.Episodes {
			for k, state := range states {
				t := Told{At: e.Begun.Add(time.Duration(10*k+i) * time.Millisecond), ID: movingConflict, Address: e.Address, Pod: e.Pod, State: state, Number: uint32(n)} //nolint:gosec // few
				if e.Pod == lasting {
					t.ID = steadyConflict
				}
				if state == pb.Conflict_RESOLVED {
					t.At = e.Ended.Add(time.Millisecond)
				}
				if state == pb.Conflict_RESOLVED && !e.over() {
					continue
				}
				if r.told = append(r.told, t); i == 0 || e.Pod != third || state == pb.Conflict_SUSPECTED {
					r.History = append(r.History, t)
				}
			}
		}
		r.Active = []Told{{ID: steadyConflict, Address: steadyAddress, Pod: lasting, State: pb.Conflict_CONFIRMED, Acknowledged: "NET-1"}}
		run.Replicas = append(run.Replicas, r)
	}
	killed := run.Replicas[1]
	killed.told = killed.told[:len(killed.told)-1]
	killed.kills = []time.Time{seconds(50.1)}
	killed.outages = []Outage{{seconds(50.1), seconds(70)}}
	for _, t := range run.Replicas[0].History {
		switch t.State {
		case pb.Conflict_CONFIRMED:
			run.Notifications = append(run.Notifications, Notification{ID: t.Pod + "+", Type: confirmedType, Told: t})
		case pb.Conflict_RESOLVED:
			run.Notifications = append(run.Notifications, Notification{ID: t.Pod + "-", Type: resolvedType, Told: t})
		}
	}
	for _, object := range []string{"n1", "n2"} {
		run.Events[About{object, ConflictReason, steadyAddress}] = 1
		run.Events[About{object, ConflictReason, movingAddress}] = 3
		run.Events[About{object, ResolvedReason, movingAddress}] = 3
	}
	run.Events[About{"a", ConflictReason, steadyAddress}] = 1
	run.Events[About{lasting, ConflictReason, steadyAddress}] = 1
	run.Events[About{"b", ConflictReason, movingAddress}] = 3
	run.Events[About{"b", ResolvedReason, movingAddress}] = 3
	return run
}

func TestARunWithoutErrorsPasses(t *testing.T) {
	got := Check(newRun())
	for _, problem := range got.Problems {
		t.Error(problem)
	}
	if got.Episodes != 4 || got.Told != 4 || got.Lost != 1 || got.Earliest <= 0 || got.Earliest > Bound {
		t.Errorf("got %+v, want 4 episodes, all told, and one change lost by the kill", got)
	}
}

// A notification that arrives again with its id is the same one.
func TestARepeatedNotificationIsCounted(t *testing.T) {
	run := newRun()
	run.Notifications = append(run.Notifications, run.Notifications[1])
	if got := Check(run); len(got.Problems) > 0 || got.Repeated != 1 {
		t.Errorf("got %+v, want one repeated notification and no problem", got)
	}
}

// A new leader may repeat what happened before, and deliver what the former one did not.
func TestNotificationsMayBeLate(t *testing.T) {
	run := newRun()
	late := run.Notifications[1]
	run.Notifications = append(append(run.Notifications[:1:1], run.Notifications[2:]...), late, run.Notifications[3])
	if got := Check(run); len(got.Problems) > 0 || got.Repeated != 1 {
		t.Errorf("got %+v, want no problem and one repeated notification", got)
	}
}

// What no replica has recorded need not be told, and what happens while the leader is cut off.
func TestWhatHasToBeTold(t *testing.T) {
	run := newRun()
	run.Notifications = slices.DeleteFunc(run.Notifications, func(n Notification) bool { return n.Pod == third })
	if got := Check(run); len(got.Problems) != 2 || got.Due != 4 {
		t.Errorf("got %+v, want two problems among four that had to be told", got)
	}
	lost := newRun() // the only replica in service was overloaded, and has recorded nothing of it
	lost.Notifications = run.Notifications
	lost.Replicas[0].told = nil
	lost.Replicas[0].History = slices.DeleteFunc(lost.Replicas[0].History, func(t Told) bool { return t.Pod == third && t.State == pb.Conflict_CONFIRMED })
	if got := Check(lost); len(got.Problems) > 0 || got.Due != 3 {
		t.Errorf("got %+v, want no problem among three that were recorded", got)
	}
	lost = newRun() // the only replica in service could not lead
	lost.Notifications = run.Notifications
	lost.Replicas[0].mutes = []Outage{{From: seconds(61)}}
	if got := Check(lost); len(got.Problems) > 0 || got.Due != 2 {
		t.Errorf("got %+v, want no problem among the two that ended before", got)
	}
	run.Unled = []Outage{{seconds(45), seconds(55)}}
	if got := Check(run); len(got.Problems) > 0 || got.Due != 2 {
		t.Errorf("got %+v, want no problem among the two that ended before", got)
	}
}

// Each error that a replica or a receiver could make is a problem.
func TestTheCheckerSeesWhatIsDroppedDoubledOrInvented(t *testing.T) {
	record := func(r *Replica, pod string, state pb.Conflict_State) int {
		return slices.IndexFunc(r.History, func(t Told) bool { return t.Pod == pod && t.State == state })
	}
	notification := func(run *Run, id string) int {
		return slices.IndexFunc(run.Notifications, func(n Notification) bool { return n.ID == id })
	}
	drop := func(run *Run, id string) {
		i := notification(run, id)
		run.Notifications = slices.Delete(run.Notifications, i, i+1)
	}
	forget := func(r *Replica, pod string, state pb.Conflict_State) {
		i := record(r, pod, state)
		r.History = slices.Delete(r.History, i, i+1)
	}
	for name, change := range map[string]func(*Run, *Replica){
		"a conflict is missing in a list":       func(_ *Run, r *Replica) { r.Active = nil },
		"a conflict is listed twice":            func(_ *Run, r *Replica) { r.Active = append(r.Active, r.Active[0]) },
		"a conflict is listed with another pod": func(_ *Run, r *Replica) { r.Active[0].Pod = first },
		"a conflict is listed as suspected":     func(_ *Run, r *Replica) { r.Active[0].State = pb.Conflict_SUSPECTED },
		"a conflict has another id":             func(_ *Run, r *Replica) { r.Active[0].ID = "other" },
		"an acknowledgement is missing":         func(_ *Run, r *Replica) { r.Active[0].Acknowledged = "" },
		"the history lacks that a conflict was confirmed": func(_ *Run, r *Replica) {
			r.told = nil
			forget(r, second, pb.Conflict_CONFIRMED)
			forget(r, second, pb.Conflict_SUSPECTED)
		},
		"the history lacks the end of a conflict":            func(_ *Run, r *Replica) { r.told = nil; forget(r, first, pb.Conflict_RESOLVED) },
		"the history lacks what a watch delivered":           func(run *Run, _ *Replica) { forget(run.Replicas[1], second, pb.Conflict_SUSPECTED) },
		"the history lacks what was delivered before a kill": func(run *Run, _ *Replica) { run.Replicas[1].kills[0] = seconds(50.3) },
		"the history has a conflict that did not happen": func(_ *Run, r *Replica) {
			r.History = append(r.History, Told{At: seconds(99), ID: "x", Address: "10.0.0.9", State: pb.Conflict_SUSPECTED})
		},
		"the history has an episode before it began": func(_ *Run, r *Replica) { r.History[record(r, second, pb.Conflict_SUSPECTED)].At = seconds(29) },
		"the history has an end before the end":      func(_ *Run, r *Replica) { r.History[record(r, second, pb.Conflict_RESOLVED)].At = seconds(39) },
		"the history has the end of a conflict that lasts": func(_ *Run, r *Replica) {
			last := r.Active[0]
			last.At, last.State = seconds(99), pb.Conflict_RESOLVED
			r.History = append(r.History, last)
		},
		"the history has an end twice": func(_ *Run, r *Replica) {
			r.History = append(r.History, r.History[record(r, first, pb.Conflict_RESOLVED)])
		},
		"the receiver was not told of a conflict":                       func(run *Run, _ *Replica) { drop(run, first+"+"); drop(run, first+"-") },
		"the receiver was not told of a conflict that one replica knew": func(run *Run, _ *Replica) { drop(run, third+"+"); drop(run, third+"-") },
		"the receiver was told of an end too early":                     func(run *Run, _ *Replica) { run.Notifications[notification(run, first+"-")].At = seconds(19) },
		"the receiver was not told of a conflict that lasts":            func(run *Run, _ *Replica) { drop(run, lasting+"+") },
		"the receiver was told only of an end":                          func(run *Run, _ *Replica) { drop(run, third+"+") },
		"the receiver was not told of an end":                           func(run *Run, _ *Replica) { drop(run, second+"-") },
		"the receiver was not told of the last end":                     func(run *Run, _ *Replica) { drop(run, third+"-") },
		"the receiver was told of a conflict with two ids": func(run *Run, _ *Replica) {
			n := run.Notifications[0]
			n.ID = "other"
			run.Notifications = append(run.Notifications, n)
		},
		"the receiver was told of an end with two ids": func(run *Run, _ *Replica) {
			n := run.Notifications[notification(run, first+"-")]
			n.ID = "other"
			run.Notifications = append(run.Notifications, n)
		},
		"two notifications have one id": func(run *Run, _ *Replica) { run.Notifications[notification(run, second+"+")].ID = first + "+" },
		"the receiver was told of what did not happen": func(run *Run, _ *Replica) {
			n := run.Notifications[0]
			n.ID, n.Pod = "other", podPrefix+"0"
			run.Notifications = append(run.Notifications, n)
		},
		"the stream has a conflict that did not happen": func(run *Run, _ *Replica) {
			run.Streamed = append(run.Streamed, Told{At: seconds(99), ID: "x", Address: "10.0.0.9", State: pb.Conflict_SUSPECTED})
		},
		"an Event is missing":                                func(run *Run, _ *Replica) { delete(run.Events, About{"a", ConflictReason, steadyAddress}) },
		"an Event of a pod that has several is missing":      func(run *Run, _ *Replica) { run.Events[About{"b", ConflictReason, movingAddress}] = 1 },
		"an Event about an end is missing":                   func(run *Run, _ *Replica) { run.Events[About{"n1", ResolvedReason, movingAddress}] = 1 },
		"an Event was repeated for one episode":              func(run *Run, _ *Replica) { run.Events[About{lasting, ConflictReason, steadyAddress}] = 2 },
		"there is an Event about an end that did not happen": func(run *Run, _ *Replica) { run.Events[About{"n1", ResolvedReason, steadyAddress}] = 1 },
		"there is an Event about what has no part in it":     func(run *Run, _ *Replica) { run.Events[About{"n3", ConflictReason, steadyAddress}] = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			run := newRun()
			change(run, run.Replicas[0])
			if got := Check(run); len(got.Problems) == 0 {
				t.Error("got no problem, want one")
			}
		})
	}
}
