package aggregator

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// resolve asks questions through REST.
func resolve(t *testing.T, url, body string) (code int, answers []*pb.Resolution, text string) {
	t.Helper()
	r, err := http.Post(url+"/v1/owners:resolve", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := &pb.ResolveOwnersResponse{}
	if r.StatusCode == http.StatusOK {
		if err := protojson.Unmarshal(raw, out); err != nil {
			t.Fatal(err)
		}
	}
	return r.StatusCode, out.GetAnswers(), string(raw)
}

func TestOwnersAreResolvedThroughREST(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir(), Alone: true})
	url := l.serve()
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr))).sync()
	l.settled()
	l.await("web", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool { return e.GetOwner() != nil })
	l.await("the node", &pb.ListEventsRequest{Kind: pb.Event_NODE, Node: "n1"}, func(e *pb.Event) bool { return e.GetNode().GetState() == pb.Node_LIVE })
	a.send(gone(assigned(2, addr))).sync()
	left := l.await("web to leave", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool { return e.GetType() == pb.Watch_REMOVED }).GetTime().AsTime()

	at := func(t time.Time) string {
		return `{"address":"` + addr + `","time":"` + t.UTC().Format(time.RFC3339Nano) + `"}`
	}
	code, answers, text := resolve(t, url, `{"questions":[`+at(left.Add(-time.Microsecond))+`,{"address":"x"},{"address":"`+addr+`"},`+at(left.Add(-time.Hour))+`,`+at(left)+`]}`)
	if code != 200 || len(answers) != 5 {
		t.Fatalf("got %d %s", code, text)
	}
	if o := answers[0].GetOwner(); answers[0].GetCertainty() != pb.Resolution_KNOWN || o.GetName() != "web" || o.GetNamespace() != "default" || o.GetNode() != "n1" || o.GetKind() != pb.Workload_POD {
		t.Errorf("got %v, want web", answers[0])
	}
	if answers[1].GetError() == "" || answers[1].GetCertainty() != 0 {
		t.Errorf("got %v, want an error", answers[1])
	}
	none := func(a *pb.Resolution) bool { return a.GetCertainty() == pb.Resolution_KNOWN && a.GetOwner() == nil }
	if !none(answers[4]) {
		t.Errorf("got %v, want that there is no owner", answers[4])
	}
	wait.Until(t, "the answer that there is no owner now", func() bool { // the coverage may be incomplete for a moment
		_, answers, _ := resolve(t, url, `{"questions":[{"address":"`+addr+`"}]}`)
		return none(answers[0])
	})
	if answers[3].GetReason() != pb.Resolution_BEFORE_JOURNAL {
		t.Errorf("got %v, want that the journal begins later", answers[3])
	}
	out, err := l.client.ResolveOwners(l.ctx, &pb.ResolveOwnersRequest{Questions: []*pb.ResolveOwnersRequest_Question{{Address: addr, Time: timestamppb.New(left.Add(-time.Microsecond))}}})
	if err != nil || out.GetAnswers()[0].GetOwner().GetName() != "web" {
		t.Errorf("gRPC: got %v, %v, want web", out, err)
	}

	many := strings.TrimSuffix(strings.Repeat(at(left)+",", 10_000), ",")
	if code, answers, text := resolve(t, url, `{"questions":[`+many+`]}`); code != 200 || len(answers) != 10_000 {
		t.Errorf("10,000 questions: got %d %.100s", code, text)
	}
	if code, _, text := resolve(t, url, `{"questions":[`+many+`,{"address":"x"}]}`); code != 400 || !strings.Contains(message(t, text), "10001 questions are too many: ask at most 10000") {
		t.Errorf("10,001 questions: got %d %.200s", code, text)
	}
	for _, body := range []string{`{"questions":[{"address":"` + addr + `","time":"yesterday"}]}`, `{"cluster":["other"]}`, `{"nonsense":1}`, `{"questions":[` + strings.Repeat(" ", 4<<20) + `]}`} {
		if code, _, text := resolve(t, url, body); code != 400 {
			t.Errorf("%.80s: got %d %.200s, want 400", body, code, text)
		}
	}
}

func TestOwnersOfNowAreResolvedWithoutAJournal(t *testing.T) {
	l := newLab(t, Config{})
	url := l.serve()
	question := `{"questions":[{"address":"` + addr + `"},{"address":"` + addr + `","node":"n2"},{"address":"10.9.9.9","node":"n2"},{"address":"` + addr + `","time":"2026-01-01T00:00:00Z"}]}`
	if _, answers, text := resolve(t, url, question); answers[0].GetReason() != pb.Resolution_DISCONNECTED {
		t.Errorf("without agents: got %s", text)
	}
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr))).sync()
	var answers []*pb.Resolution
	wait.Until(t, "the owner", func() bool {
		_, answers, _ = resolve(t, url, question)
		return answers[0].GetOwner().GetName() == "web"
	})
	if answers[2].GetReason() != pb.Resolution_DISCONNECTED {
		t.Errorf("on a node that is not known: got %v", answers[2])
	}
	if !strings.Contains(answers[3].GetError(), "records no history") {
		t.Errorf("about the past: got %v", answers[3])
	}
}
