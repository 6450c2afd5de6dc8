package aggregator

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// A serverEvent is a server-sent event as a browser dispatches it.
type serverEvent struct{ kind, data, lastID string }

// An eventSource reads server-sent events as a browser does.
type eventSource struct {
	t      *testing.T
	lines  *bufio.Scanner
	header http.Header
	retry  string
	lastID string
}

// subscribe opens an event source that resumes with an id, if that is not empty.
func subscribe(t *testing.T, url, id string) *eventSource {
	t.Helper()
	headers := []string{"Accept", "text/event-stream"}
	if id != "" {
		headers = append(headers, "Last-Event-ID", id)
	}
	r := open(t, "GET", url, headers...)
	if got := r.Header.Get("Content-Type"); r.StatusCode != 200 || got != "text/event-stream" {
		t.Fatalf("got %d %s, want an event stream", r.StatusCode, got)
	}
	return &eventSource{t: t, lines: bufio.NewScanner(r.Body), header: r.Header, lastID: id}
}

// next returns the next event.
func (s *eventSource) next() (e serverEvent) {
	s.t.Helper()
	for s.lines.Scan() {
		field, value, _ := strings.Cut(s.lines.Text(), ":")
		switch value = strings.TrimPrefix(value, " "); field {
		case "":
			if e.data != "" {
				e.lastID = s.lastID
				return e
			}
		case "event":
			e.kind = value
		case "data":
			e.data += value
		case "id":
			s.lastID = value
		case "retry":
			s.retry = value
		default:
			s.t.Fatalf("got the line %q, want a field of an event", s.lines.Text())
		}
	}
	s.t.Fatalf("the stream ended: %v", s.lines.Err())
	return e
}

// until returns the events up to the first one of a type.
func (s *eventSource) until(kind string) (all []serverEvent) {
	s.t.Helper()
	for {
		e := s.next()
		var content struct{ Type string }
		if err := json.Unmarshal([]byte(e.data), &content); err != nil || content.Type != e.kind {
			s.t.Errorf("got %+v, want JSON of that type: %v", e, err)
		}
		if all = append(all, e); e.kind == kind {
			return all
		}
	}
}

func TestABrowserFollowsAWatch(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir()})
	url := l.serve()
	agent := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	for _, path := range []string{"/v1/conflicts:watch", "/v1/findings:watch", "/v1/nodes:watch", "/v1/events:watch"} {
		if last := subscribe(t, url+path, "").until("BOOKMARK"); last[len(last)-1].lastID == "" {
			t.Errorf("%s: got %v, want a bookmark with an id", path, last)
		}
	}
	s := subscribe(t, url+"/v1/owners:watch", "")
	first := s.until("BOOKMARK")
	if len(first) != 2 || first[0].kind != "ADDED" || !strings.Contains(first[0].data, `"address":"`+addr+`"`) || first[0].lastID != "" {
		t.Errorf("got %v, want the owner, without an id, and a bookmark", first)
	}
	if s.retry == "" || s.header.Get("Cache-Control") != "no-store" || s.header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("got retry %q and %v, want a time, and that nothing keeps the stream", s.retry, s.header)
	}
	token := first[1].lastID
	agent.send(podVeth(3, "b", "10.244.0.6")).sync()
	added := s.until("ADDED")
	for _, e := range added[:len(added)-1] { // the coverage may have changed
		token = e.lastID
	}
	if last := added[len(added)-1]; !strings.Contains(last.data, `"name":"b"`) || last.lastID != token {
		t.Errorf("got %+v, want the new owner, after which a browser resumes at the bookmark", last)
	}

	// The browser resumes with the last id, which is newer than the token in its URL.
	resumed := subscribe(t, url+"/v1/owners:watch?resume_token=x-1", token)
	again := resumed.until("ADDED")
	if len(again) != 2 || again[0].kind != "BOOKMARK" || !strings.Contains(again[1].data, `"name":"b"`) {
		t.Errorf("got %v, want what followed the id", again)
	}
	lost := subscribe(t, url+"/v1/owners:watch", "elsewhere-1").until("BOOKMARK")
	if lost[0].kind != "LOST" || lost[0].lastID != "" || len(lost) != 4 {
		t.Errorf("got %v, want LOST, which resets the id, and the present state", lost)
	}
	if r, body := ask(t, "GET", url+"/v1/owners:watch", "Accept", "text/event-stream", "Last-Event-ID", "nonsense"); r.StatusCode != 400 ||
		!strings.Contains(message(t, body), "resume_token is invalid") {
		t.Errorf("got %d %s, want 400", r.StatusCode, body)
	}
	if r := open(t, "GET", url+"/v1/owners", "Accept", "text/event-stream"); r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %v for a list, want JSON", r.Header)
	}
	l.stop()
	for { // other events may precede it
		if e := s.next(); e.kind == "ERROR" {
			if message(t, e.data) == "" {
				t.Errorf("got %+v, want the reason", e)
			}
			break
		}
	}
}
