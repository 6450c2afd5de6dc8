package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/chaos"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// during notes a fault, and which replicas it does not touch.
func (s *stage) during(what string, untouched []*stagedReplica, fault func() (leads time.Duration)) {
	s.t.Helper()
	s.t.Logf("%s: %s, after %d duplicates and %d changes", time.Since(s.began).Round(time.Second), what, len(s.all.Episodes()), s.changes.Load())
	from := time.Now()
	leads := fault()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, stagedFault{what, from, time.Now(), untouched, leads})
}

// awaitComplete waits until agents of all nodes report to some replicas, and notes how long that took at most.
func (s *stage) awaitComplete(of []*stagedReplica) {
	s.t.Helper()
	begin := time.Now()
	for _, r := range of {
		wait.Until(s.t, "all agents at "+r.Name, r.complete)
	}
	s.complete = max(s.complete, time.Since(begin))
}

// another waits until one of some replicas leads, and returns how long that took.
func (s *stage) another(of []*stagedReplica) time.Duration {
	s.t.Helper()
	begin := time.Now()
	wait.Until(s.t, "another leader", func() bool { return slices.ContainsFunc(of, (*stagedReplica).leads) })
	return time.Since(begin)
}

// kill kills the process of a replica with SIGKILL.
func (r *stagedReplica) kill() {
	s := r.stage
	s.mu.Lock()
	s.slack = max(s.slack, 5*s.disk.slowest()) // an overloaded machine delays the writes of a replica, too
	s.mu.Unlock()
	r.Killed()
	r.program.Kill()
	r.unwatch()
}

// moves waits until a duplicate that begins now was known to all replicas in service, several times.
func (s *stage) moves() {
	s.t.Helper()
	for range 3 {
		known := len(s.all.Episodes())
		wait.Until(s.t, "more duplicates", func() bool {
			all := s.all.Episodes()
			return len(all) > known && s.seen(all[known].Pod, pb.Conflict_CONFIRMED) || len(all) > known+quickPairs
		})
	}
}

func (s *stage) killTheLeader() {
	s.t.Helper()
	leader := s.leader()
	others := s.except(leader)
	s.during("SIGKILL of the leader", others, func() (leads time.Duration) {
		leader.kill()
		s.awaitComplete(others)
		leads = s.another(others)
		s.moves()
		return leads
	})
	leader.start()
	leader.returns()
}

func (s *stage) killAFollower() {
	s.t.Helper()
	follower := s.except(s.leader())[0]
	s.during("SIGKILL of a follower", s.except(follower), func() time.Duration {
		follower.kill()
		s.awaitComplete(s.except(follower))
		s.moves()
		return 0
	})
	follower.start()
	follower.returns()
}

func (s *stage) pauseTheLeader() {
	s.t.Helper()
	leader := s.leader()
	others := s.except(leader)
	signal := func(what syscall.Signal) {
		if err := leader.program.Cmd.Process.Signal(what); err != nil {
			s.t.Fatal(err)
		}
	}
	s.during("SIGSTOP of the leader", others, func() (leads time.Duration) {
		leader.Leave()
		signal(syscall.SIGSTOP)
		leads = s.another(others)
		s.moves()
		return leads
	})
	signal(syscall.SIGCONT)
	leader.returns()
}

func (s *stage) cutTheLeaderFromTheAPI() {
	s.t.Helper()
	leader := s.leader()
	s.during("the leader without API server", s.replicas, func() (leads time.Duration) {
		leader.Mute(true)
		leader.api.Cut()
		leads = s.another(s.except(leader))
		s.moves()
		leader.api.Mend()
		return leads
	})
	wait.Until(s.t, "the API server at the former leader", func() bool {
		m, err := leader.nodesList()
		return err == nil && m.GetKubernetes().GetState() == pb.Kubernetes_LIVE
	})
	leader.Mute(false)
}

func (s *stage) cutAgentsFromAReplica() {
	s.t.Helper()
	cut := s.replicas[rand.IntN(len(s.replicas))]
	leads, from := cut == s.leader(), time.Now()
	s.during("a replica without agents", s.except(cut), func() time.Duration {
		cut.Leave()
		cut.agents.Cut()
		s.moves()
		s.moves()
		cut.agents.Mend()
		return 0
	})
	cut.returns()
	if leads {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unled = append(s.unled, chaos.Outage{From: from, Until: time.Now()})
	}
}

// acknowledge acknowledges the conflict of a steady duplicate through one of the replicas.
func (s *stage) acknowledge(n int, through *stagedReplica) {
	s.t.Helper()
	addr := s.steadyAddress(n)
	reason := fmt.Sprintf("NET-%d by %s", len(s.faults), through.Name)
	wait.Until(s.t, "the conflict to be acknowledged", func() bool {
		_, err := through.client.AcknowledgeConflict(s.t.Context(), &pb.AcknowledgeConflictRequest{
			Id: through.Latest(addr).ID, Reason: reason, ExpiresAt: timestamppb.New(time.Now().Add(time.Hour)),
		})
		return err == nil
	})
	s.acknowledged[addr] = reason
}

// withdraw withdraws the acknowledgement of a steady duplicate.
func (s *stage) withdraw(n int, through *stagedReplica) {
	s.t.Helper()
	addr := s.steadyAddress(n)
	wait.Until(s.t, "the acknowledgement to be withdrawn", func() bool {
		_, err := through.client.AcknowledgeConflict(s.t.Context(), &pb.AcknowledgeConflictRequest{Id: through.Latest(addr).ID, Withdraw: true})
		return err == nil
	})
	delete(s.acknowledged, addr)
}

func (s *stage) steadyAddress(n int) string { return s.all.Episodes()[n].Address }

// readNotification reads a CloudEvent.
func readNotification(body []byte) (n chaos.Notification, err error) {
	var e struct {
		ID, Type string
		Data     json.RawMessage
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return n, err
	}
	var event pb.Event
	if err := protojson.Unmarshal(e.Data, &event); err != nil {
		return n, err
	}
	n.ID, n.Type = e.ID, strings.TrimPrefix(e.Type, "io.github.ipwitness.")
	n.Told = chaos.ToldOf(event.GetConflict(), event.GetTime().AsTime())
	return n, nil
}

// learnt asks all replicas, and returns everything that the test knows.
func (s *stage) learnt() *chaos.Run {
	s.t.Helper()
	run := &chaos.Run{Episodes: s.all.Episodes(), Events: s.events()}
	for _, r := range s.replicas {
		r.History, r.Gaps = r.history()
		r.Active = r.active()
		run.Replicas = append(run.Replicas, r.Replica)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	run.Notifications, run.Acknowledged, run.Unled, run.Slack = slices.Clone(s.notified), maps.Clone(s.acknowledged), s.unled, s.slack
	return run
}

// active lists the conflicts that last.
func (r *stagedReplica) active() (all []chaos.Told) {
	r.stage.t.Helper()
	out, err := r.client.ListConflicts(r.stage.t.Context(), &pb.ListConflictsRequest{PageSize: 10_000})
	if err != nil {
		r.stage.t.Fatal(err)
	}
	for _, c := range out.GetConflicts() {
		all = append(all, chaos.ToldOf(c, time.Now()))
	}
	return all
}

// history lists the records of conflicts, and the gaps.
func (r *stagedReplica) history() (all []chaos.Told, gaps []chaos.Outage) {
	r.stage.t.Helper()
	q := &pb.ListEventsRequest{Kind: pb.Event_CONFLICT, PageSize: 10_000}
	for {
		out, err := r.client.ListEvents(r.stage.t.Context(), q)
		if err != nil {
			r.stage.t.Fatal(err)
		}
		for _, e := range out.GetEvents() {
			all = append(all, chaos.ToldOf(e.GetConflict(), e.GetTime().AsTime()))
		}
		for _, g := range out.GetGaps() {
			gaps = append(gaps, chaos.Outage{From: g.GetFrom().AsTime(), Until: g.GetUntil().AsTime()})
		}
		if q.PageToken = out.GetNextPageToken(); q.PageToken == "" {
			return all, gaps
		}
	}
}

// events counts the Events of the API server.
func (s *stage) events() map[chaos.About]int {
	addresses := make(map[string]string) // by id of the conflict
	for _, r := range s.replicas {
		for _, t := range r.History {
			addresses[t.ID] = t.Address
		}
	}
	all := make(map[chaos.About]int)
	for _, o := range s.api.Objects("events") {
		text := func(path ...string) string { v, _, _ := unstructured.NestedString(o.Object, path...); return v }
		count, _, _ := unstructured.NestedInt64(o.Object, "count")
		all[chaos.About{Object: text("involvedObject", "name"), Reason: text("reason"), Address: addresses[o.GetAnnotations()["ipwitness/conflict"]]}] += int(count)
	}
	return all
}

// report logs what was measured.
func (s *stage) report() {
	s.t.Logf("%d changes, %.0f per second; after a replica was killed, the others had the reports of all agents within %s",
		s.changes.Load(), float64(s.changes.Load())/s.moved.Seconds(), s.complete.Round(time.Millisecond))
	episodes := s.all.Episodes()
	for _, f := range s.faults {
		line := f.what
		if f.leads > 0 {
			line += fmt.Sprintf(": another replica leads after %s", f.leads.Round(100*time.Millisecond))
		}
		for _, r := range f.untouched {
			longest, of := r.Latency(episodes, f.from, f.until)
			line += fmt.Sprintf("; %s knows %d new duplicates, each within %s", r.Name, of, longest.Round(time.Millisecond))
		}
		s.t.Log(line)
	}
}
