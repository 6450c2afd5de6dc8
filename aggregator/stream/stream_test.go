package stream

import (
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestNamesOfClustersAreNamesOfStreams(t *testing.T) {
	for cluster, want := range map[string]string{
		"prod":      "ipwitness_prod",
		"eu.west":   "ipwitness_eu=2Ewest",
		"eu=2Ewest": "ipwitness_eu=3D2Ewest",
		"a*>b":      "ipwitness_a=2A=3Eb",
		"Zürich-1":  "ipwitness_Z=C3=BCrich-1",
		"under_1":   "ipwitness_under_1",
	} {
		got := Name(cluster)
		if got != want {
			t.Errorf("%q: got %q, want %q", cluster, got, want)
		}
		if !regexp.MustCompile(`^[A-Za-z0-9_=-]+$`).MatchString(got) {
			t.Errorf("%q: got %q, which JetStream does not accept", cluster, got)
		}
		if got, want := Subjects(cluster), "ipwitness."+want[len(prefix):]+".>"; got != want {
			t.Errorf("%q: got subjects %q, want %q", cluster, got, want)
		}
	}
}

func ownerEvent(typ pb.Watch_Type, addr string) *pb.Transition {
	return &pb.Transition{Item: 1, Event: &pb.Event{Kind: pb.Event_OWNER, Type: typ, Owner: &pb.Owner{Address: addr}}}
}

func conflictEvent(state pb.Conflict_State) *pb.Transition {
	return &pb.Transition{Event: &pb.Event{Kind: pb.Event_CONFLICT, Type: pb.Watch_UPDATED, Conflict: &pb.Conflict{Id: "c1", State: state}}}
}

func findingEvent(typ pb.Watch_Type) *pb.Transition {
	return &pb.Transition{Event: &pb.Event{Kind: pb.Event_FINDING, Type: typ, Finding: &pb.Finding{Id: "f1"}}}
}

func nodeEvent(state pb.Node_State) *pb.Transition {
	return &pb.Transition{Event: &pb.Event{Kind: pb.Event_NODE, Type: pb.Watch_UPDATED, Node: &pb.Node{Name: "n1", State: state}}}
}

func TestTheSubjectSaysWhatAMessageHas(t *testing.T) {
	gap := &pb.Transition{Gap: &pb.Gap{From: timestamppb.Now()}}
	for want, b := range map[string]*pb.TransitionBatch{
		"owner":       {Transitions: []*pb.Transition{ownerEvent(pb.Watch_ADDED, "10.0.0.1"), ownerEvent(pb.Watch_REMOVED, "10.0.0.2")}},
		"conflict":    {Transitions: []*pb.Transition{conflictEvent(pb.Conflict_SUSPECTED)}},
		"finding":     {Transitions: []*pb.Transition{findingEvent(pb.Watch_ADDED)}},
		"node":        {Transitions: []*pb.Transition{nodeEvent(pb.Node_LIVE)}},
		"several":     {Transitions: []*pb.Transition{ownerEvent(pb.Watch_ADDED, "10.0.0.1"), gap}},
		"coverage":    {},
		"state.begin": {Part: pb.TransitionBatch_STATE_BEGINS, Transitions: []*pb.Transition{ownerEvent(pb.Watch_ADDED, "10.0.0.1")}},
		"state.part":  {Part: pb.TransitionBatch_STATE},
		"state.end":   {Part: pb.TransitionBatch_STATE_ENDS},
	} {
		b.Cluster = "eu.west"
		if got := subject(b); got != "ipwitness.eu=2Ewest."+want {
			t.Errorf("got %q, want %q at its end", got, want)
		}
	}
	mixed := &pb.TransitionBatch{Cluster: "a", Transitions: []*pb.Transition{ownerEvent(pb.Watch_ADDED, "10.0.0.1"), conflictEvent(pb.Conflict_SUSPECTED)}}
	if got := subject(mixed); got != "ipwitness.a.several" {
		t.Errorf("got %q, want ipwitness.a.several", got)
	}
}

// The problem of foreign messages names the last one, and ends.
func TestTheProblemOfForeignMessagesEnds(t *testing.T) {
	var f Foreign
	at := time.Unix(0, 0)
	if got := f.Problem("prod", at); got != "" {
		t.Errorf("got %q without a message, want none", got)
	}
	for _, number := range []uint64{7, 9, 9} {
		f.Note(number, at)
	}
	if got := f.Problem("prod", at.Add(foreignFor-1)); !strings.HasPrefix(got, "2 messages of the stream ipwitness_prod ") || !strings.Contains(got, "with number 9:") {
		t.Errorf("got %q, want both messages, and the number of the last one", got)
	}
	if got := f.Problem("prod", at.Add(foreignFor)); got != "" {
		t.Errorf("got %q later, want none", got)
	}
}

// A stream that is too small is a problem of the replica that publishes to it.
func TestTheProblemOfASmallStreamEndsWithTheLead(t *testing.T) {
	p, err := New(Config{Settings: Settings{Servers: []string{"nats://n-0:4222"}}, Cluster: "prod", Log: slog.New(slog.DiscardHandler), Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	p.small = true
	if got := p.Problems(); len(got) != 1 || !strings.Contains(got[0], "has dropped the state within minutes") {
		t.Errorf("got %q, want the problem", got)
	}
	p.use(nil)
	if got := p.Problems(); len(got) != 0 {
		t.Errorf("got %q from a replica that does not publish, want none", got)
	}
}

func TestPausesGrowUpToALimit(t *testing.T) {
	for attempts, most := range map[int]time.Duration{0: firstPause, 1: firstPause, 3: 4 * firstPause, 50: lastPause} {
		if got := pause(attempts); got < most/2 || got > most {
			t.Errorf("after %d attempts: got %s, want %s to %s", attempts, got, most/2, most)
		}
	}
}

func TestOnlyHostsOfServersAreShown(t *testing.T) {
	s := Settings{Servers: []string{"nats://n-0:4222", "tls://n-1:4222"}}
	if got := s.Hosts(); got != "n-0:4222,n-1:4222" {
		t.Errorf("got %q, want n-0:4222,n-1:4222", got)
	}
}
