package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/chaos"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/netlab"
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
	s.harm("a replica without agents", func(cut *stagedReplica) {
		cut.agents.Cut()
		s.moves()
		s.moves()
		cut.agents.Mend()
	})
}

// harm has a fault of one of the replicas, which may lead meanwhile although it cannot do all that a leader does.
func (s *stage) harm(what string, fault func(one *stagedReplica)) {
	s.t.Helper()
	one := s.replicas[rand.IntN(len(s.replicas))]
	leads, from := one == s.leader(), time.Now()
	s.during(what, s.except(one), func() time.Duration {
		one.Leave()
		fault(one)
		return 0
	})
	one.returns()
	if leads {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unled = append(s.unled, chaos.Outage{From: from, Until: time.Now()})
	}
}

// problems returns what a replica says is wrong with itself.
func (r *stagedReplica) problems() []string {
	m, err := r.nodesList()
	if err != nil {
		return []string{err.Error()}
	}
	return m.GetProblems()
}

const (
	// dataDir is the data directory of each replica, a tmpfs of its own.
	dataDir, dataSize = "/run/data", 16 << 30
	natsAt            = "nats://127.0.0.1:4222"
	stageCluster      = "chaos"
)

// fillADisk leaves no space in the data directory of a replica.
func (s *stage) fillADisk() {
	s.t.Helper()
	s.harm("a full disk", func(r *stagedReplica) {
		wait.Until(s.t, "the disk of "+r.Name+" to be full", func() bool { // it grows meanwhile
			_, err := r.host.Output(r.host.Command("sh", "-c", "mount -o remount,size=$(($(df -B1 --output=used "+dataDir+" | tail -1) + 65536)) "+dataDir))
			return err == nil
		})
		wait.Until(s.t, r.Name+" to say that the journal is not written", func() bool { return len(r.problems()) > 0 })
		s.moves()
		if _, err := r.host.Run("mount -o remount,size=%d %s", dataSize, dataDir); err != nil {
			s.t.Fatal(err)
		}
		wait.Until(s.t, r.Name+" to write the journal", func() bool {
			return !slices.ContainsFunc(r.problems(), func(p string) bool { return strings.Contains(p, "journal") })
		})
	})
}

// takeDescriptors lets a replica open nothing for a while.
func (s *stage) takeDescriptors() {
	s.t.Helper()
	s.harm("no descriptors", func(r *stagedReplica) {
		pid := r.program.Cmd.Process.Pid
		var before unix.Rlimit
		err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before)
		if err == nil {
			err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}, nil)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.moves()
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			s.t.Fatal(err)
		}
	})
}

// publishForeign publishes what is no transition to the stream, again and again.
func (s *stage) publishForeign() {
	s.t.Helper()
	s.during("foreign messages in the stream", s.replicas, func() time.Duration {
		for i := range 3 {
			for range 1 + rand.IntN(100) {
				if err := s.nats.conn.Publish("ipwitness."+stageCluster+".owner", []byte("abc")); err != nil {
					s.t.Fatal(err)
				}
			}
			s.moves()
			wait.Until(s.t, fmt.Sprint("the leader to name them, ", i), func() bool {
				return slices.ContainsFunc(s.leader().problems(), func(p string) bool { return strings.Contains(p, "no transitions of the cluster") })
			})
		}
		return 0
	})
}

// A stagedNATS is the NATS server of a stage, on a host of its own.
type stagedNATS struct {
	host *netlab.Host
	conn *natsclient.Conn
}

// startNATS starts the server, and notes which conflicts are in the stream.
func (s *stage) startNATS() *stagedNATS {
	s.t.Helper()
	n := &stagedNATS{host: newHost(s.t)}
	bin, err := nats.Binary("..")
	if err != nil {
		s.t.Fatal(err)
	}
	server, err := nats.Start(n.host, bin, s.t.TempDir(), nats.Config{Name: "one", Port: 4222})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(server.Kill)
	if n.conn, err = nats.Connect(n.host, natsAt); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(n.conn.Close)
	for _, content := range []string{"conflict", "several"} {
		if _, err := n.conn.Subscribe("ipwitness."+stageCluster+"."+content, func(m *natsclient.Msg) {
			b := new(pb.TransitionBatch)
			if proto.Unmarshal(m.Data, b) != nil || b.GetPart() != pb.TransitionBatch_UNSPECIFIED {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, t := range b.GetTransitions() {
				if c := t.GetEvent().GetConflict(); c != nil && t.GetEvent().GetType() != pb.Watch_REMOVED {
					s.streamed = append(s.streamed, chaos.ToldOf(c, t.GetEvent().GetTime().AsTime()))
				}
			}
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	return n
}

// serve lets a replica reach the server at natsAt.
func (n *stagedNATS) serve(r *stagedReplica) {
	t := r.stage.t
	t.Helper()
	at := strings.TrimPrefix(natsAt, "nats://")
	var l net.Listener
	if err := r.host.Do(func() (err error) { l, err = net.Listen("tcp", at); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			var out net.Conn
			if err := n.host.Do(func() (err error) { out, err = net.Dial("tcp", at); return err }); err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				}()
			}
		}
	}()
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
	run.Streamed = slices.Clone(s.streamed)
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

// ofEvent matches the address in the message of an Event.
var ofEvent = regexp.MustCompile(` More: ipwitness explain (\S+)`)

// events counts the Events of the API server. Their messages have the addresses: a conflict from the first moments may be in no history.
func (s *stage) events() map[chaos.About]int {
	all := make(map[chaos.About]int)
	for _, o := range s.api.Objects("events") {
		text := func(path ...string) string { v, _, _ := unstructured.NestedString(o.Object, path...); return v }
		count, _, _ := unstructured.NestedInt64(o.Object, "count")
		about := chaos.About{Object: text("involvedObject", "name"), Reason: text("reason")}
		if m := ofEvent.FindStringSubmatch(text("message")); m != nil && o.GetAnnotations()["ipwitness/conflict"] != "" {
			about.Address = m[1]
		}
		all[about] += int(count)
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
