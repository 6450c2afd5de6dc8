package tests

import (
	"flag"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/chaos"
	"github.com/ipwitness/ipwitness/tests/wait"
)

var (
	stageReplicas = flag.Int("replicas", 2, "number of replicas of TestReplicasUnderFaultsAndLoad")
	stageFor      = flag.Duration("for", 0, "how long TestReplicasUnderFaultsAndLoad repeats its faults; it has each once at least")
	stageRate     = flag.Int("rate", 20_000, "changes per second of TestReplicasUnderFaultsAndLoad, or less on a slow machine")
)

const (
	// mostDescribed is the number of addresses with problems that are described.
	mostDescribed = 8
	// settling is the time within which everything is told after the last fault.
	settling = 45 * time.Second
	// problemsEnd is the time within which all problems end: a foreign message is one for five minutes.
	problemsEnd = 7 * time.Minute
)

// Replicas are killed, paused and cut off, their disks are full, they may open no file, and something else publishes to their
// stream in NATS, while their agents report up to 20,000 changes per second. Afterwards no replica has a problem, and each replica knows exactly the conflicts that there are, with the same ids and acknowledgements. Its history
// has what happened while it was in service, once, and nothing that did not happen. The webhook and the Events
// of Kubernetes were told of each episode, and nothing twice with different ids.
func TestReplicasUnderFaultsAndLoad(t *testing.T) {
	slow(t) // and without other tests, because it floods
	s := newStage(t, *stageReplicas)
	one := func() *stagedReplica { return s.replicas[rand.IntN(len(s.replicas))] }
	s.acknowledge(0, one())
	rounds := 0
	for began := time.Now(); rounds == 0 || time.Since(began) < *stageFor; rounds++ {
		faults := []func(){
			s.killTheLeader, s.pauseTheLeader, s.cutTheLeaderFromTheAPI, s.cutAgentsFromAReplica, s.killAFollower, s.fillADisk, s.takeDescriptors,
			s.publishForeign,
		}
		rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, fault := range faults {
			fault()
			s.acknowledge(1+rand.IntN(steadyPairs-1), one())
		}
	}
	s.withdraw(0, one())
	s.calm()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(problemsEnd); ; <-tick.C {
		var left []string
		for _, r := range s.replicas {
			left = append(left, r.problems()...)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got problems %q long after the last fault, want none", left)
		}
	}

	result := s.check()
	for _, problem := range result.Problems {
		t.Error(problem)
	}
	for _, addr := range result.Addresses[:min(len(result.Addresses), mostDescribed)] {
		t.Log(s.learnt().Describe(addr))
	}
	if t.Failed() {
		for _, r := range s.replicas {
			text, err := r.program.Text(t.Context(), "/metrics")
			t.Log(r.Name, err, regexp.MustCompile(`(?m)^ipwitness_(kubernetes_events|export).*$`).FindAllString(text, -1))
		}
	}
	t.Log(result)
	s.report()
	if want := 20 * rounds; result.Episodes < want || result.Whole == 0 {
		t.Errorf("got %d episodes, %d of them with all replicas in service, want more", result.Episodes, result.Whole)
	}
}

// check waits until everything is as it must be, or for too long, and until receivers were told of an episode
// that begins after that.
func (s *stage) check() (result chaos.Result) {
	s.t.Helper()
	deadline := time.Now().Add(settling)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	settle := func() {
		for result = chaos.Check(s.learnt()); len(result.Problems) > 0 && time.Now().Before(deadline); result = chaos.Check(s.learnt()) {
			<-tick.C
		}
	}
	if settle(); len(result.Problems) > 0 {
		return result
	}
	d := s.cycling[0]
	e := s.begin(d)
	wait.Until(s.t, "the last duplicate, also in the stream", func() bool {
		s.mu.Lock()
		streamed := slices.ContainsFunc(s.streamed, func(told chaos.Told) bool { return told.Pod == e.Pod && told.State == pb.Conflict_CONFIRMED })
		s.mu.Unlock()
		return streamed && s.seen(e.Pod, pb.Conflict_CONFIRMED)
	})
	settle()
	return result
}
