package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// line returns a line of a watch, with or without an owner.
func line(kind, address string) string {
	owner := ""
	if address != "" {
		owner = `,"owner":{"address":"` + address + `","netns":"1","state":"LIVE","workload":{"kind":"POD","namespace":"a","name":"x"}}`
	}
	return `{"result":{"type":"` + kind + `"` + owner + "}}\n"
}

// try is the server's response to one request of a watch.
type try struct {
	status int
	body   string
	hang   bool // sends nothing more, but stays open
	err    error
}

// script is a transport that returns one try after the other, and then cancels the context.
type script struct {
	tries  []try
	at     []time.Duration // time of each request
	asked  []string        // URL of each request
	begin  time.Time
	cancel context.CancelFunc
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.at = append(s.at, time.Since(s.begin))
	s.asked = append(s.asked, r.URL.RawQuery)
	if len(s.at) > len(s.tries) {
		s.cancel() // like Ctrl-C
		return nil, r.Context().Err()
	}
	t := s.tries[len(s.at)-1]
	if t.err != nil {
		return nil, t.err
	}
	body, server := io.Pipe()
	go func() {
		_, _ = io.WriteString(server, t.body)
		if t.hang {
			<-r.Context().Done()
			_ = server.CloseWithError(r.Context().Err())
			return
		}
		_ = server.Close()
	}()
	return &http.Response{StatusCode: t.status, Status: http.StatusText(t.status), Body: body, Request: r}, nil
}

// watchOwners runs 'owners -w' on a script.
func watchOwners(t *testing.T, s *script, args ...string) (code int, c *console) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.cancel, s.begin = cancel, time.Now()
	c = newConsole()
	c.transport = s
	return execute(ctx, c.system, append([]string{"owners", "-w"}, args...)), c
}

func TestWatchRestartsWhenItIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{tries: []try{
			{status: 200, body: line("ADDED", "10.0.0.1") + line("ADDED", "10.0.0.2") + line("BOOKMARK", "")},
			{err: errors.New("connection refused")},
			{status: 502, body: "bad gateway"},
			{status: 200, body: line("ADDED", "10.0.0.2") + line("ADDED", "10.0.0.3") + line("BOOKMARK", "") + `{"result":{"ty`},
			{status: 200, body: `{"error":{"code":14,"message":"the server stops"}}` + "\n"},
			{status: 200, body: line("ADDED", "10.0.0.2") + line("ADDED", "10.0.0.3") + line("BOOKMARK", ""), hang: true},
		}}
		code, c := watchOwners(t, s)
		if code != 0 {
			t.Errorf("got exit code %d after Ctrl-C, want 0", code)
		}
		want := []time.Duration{
			0, 500 * time.Millisecond, 1500 * time.Millisecond, 3500 * time.Millisecond, // 0.5 s, 1 s, 2 s
			4 * time.Second, 5 * time.Second, // after a successful response, the delays start again
			5*time.Second + silence + 500*time.Millisecond, // after a long silence
		}
		if len(s.at) != len(want) {
			t.Fatalf("got requests at %v, want %v", s.at, want)
		}
		for i := range want {
			if s.at[i] != want[i] {
				t.Errorf("got requests at %v, want %v", s.at, want)
				break
			}
		}
		wantNotices := []string{"was disconnected (the server closed the connection)", "continues", "was disconnected (the server closed the connection)", "continues", "was disconnected (no event for 45s)"}
		notices := strings.Split(strings.TrimSpace(c.stderr.String()), "\n")
		for i, want := range wantNotices {
			if len(notices) != len(wantNotices) || !strings.Contains(notices[i], want) {
				t.Fatalf("got notices %q, want %q", notices, wantNotices)
			}
		}
		var events []string
		for line := range strings.Lines(c.stdout.String()) {
			f := strings.Fields(line)
			events = append(events, f[1]+" "+f[2])
		}
		got, wantEvents := strings.Join(events, ", "), "EVENT ADDRESS, ADDED 10.0.0.1, ADDED 10.0.0.2, ADDED 10.0.0.3, REMOVED 10.0.0.1"
		if got != wantEvents {
			t.Errorf("got %q, want %q", got, wantEvents)
		}
	})
}

func TestWatchResumesAfterADisconnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cutOff := `{"error":{"code":8,"message":"the watch was cut off","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo",` +
			`"reason":"WATCH_CUT_OFF","domain":"ipwitness","metadata":{"resume_token":"abc-1"}}]}}` + "\n"
		s := &script{tries: []try{
			{status: 200, body: line("ADDED", "10.0.0.1") + line("BOOKMARK", "") + line("ADDED", "10.0.0.2") + cutOff},
			{status: 200, body: line("BOOKMARK", "") + line("ADDED", "10.0.0.2") + line("ADDED", "10.0.0.3") + cutOff},
			{status: 200, body: `{"result":{"type":"LOST","lost":0}}` + "\n" + line("ADDED", "10.0.0.4") + line("BOOKMARK", "")},
		}}
		_, c := watchOwners(t, s, "10.0.0.0/24")
		if got, want := strings.Join(s.asked, " "), "about=10.0.0.0%2F24 about=10.0.0.0%2F24&resume_token=abc-1 "+
			"about=10.0.0.0%2F24&resume_token=abc-1 about=10.0.0.0%2F24"; got != want {
			t.Errorf("got requests %q, want %q", got, want)
		}
		if s.at[2] != 0 {
			t.Errorf("got requests at %v, want the watch to resume at once", s.at)
		}
		if got := c.stderr.String(); !strings.HasPrefix(got, "Some events have expired") || strings.Count(got, "\n") != 2 {
			t.Errorf("got notices %q, want one about dropped events and one about the end", got)
		}
		var events []string
		for line := range strings.Lines(c.stdout.String()) {
			f := strings.Fields(line)
			events = append(events, f[1]+" "+f[2])
		}
		got, want := strings.Join(events[1:], ", "), "ADDED 10.0.0.1, ADDED 10.0.0.2, ADDED 10.0.0.3, ADDED 10.0.0.4, "+
			"REMOVED 10.0.0.1, REMOVED 10.0.0.2, REMOVED 10.0.0.3"
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A watch that was disconnected continues from the last bookmark. If the server no longer knows it, the
// whole state follows.
func TestWatchContinuesFromTheLastBookmark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bookmark := func(token string) string {
			return `{"result":{"type":"BOOKMARK","resumeToken":"` + token + "\"}}\n"
		}
		s := &script{tries: []try{
			{status: 200, body: line("ADDED", "10.0.0.1") + line("ADDED", "10.0.0.2")},
			{status: 200, body: line("ADDED", "10.0.0.1") + line("ADDED", "10.0.0.2") + bookmark("a-1") + line("REMOVED", "10.0.0.2")},
			{err: errors.New("connection refused")},
			{status: 200, body: line("REMOVED", "10.0.0.2") + bookmark("b-0-1") + bookmark("b-2-3") + line("ADDED", "10.0.0.3")},
			{status: 200, body: `{"result":{"type":"LOST","lost":0}}` + "\n" + line("ADDED", "10.0.0.3")},
			{status: 200, body: line("ADDED", "10.0.0.3") + line("ADDED", "10.0.0.4") + bookmark("c-1")},
		}}
		_, c := watchOwners(t, s)
		if got, want := strings.Join(s.asked, " "), "  resume_token=a-1 resume_token=a-1 resume_token=b-2-3  resume_token=c-1"; got != want {
			t.Errorf("got requests %q, want %q", got, want)
		}
		var events []string
		for line := range strings.Lines(c.stdout.String()) {
			f := strings.Fields(line)
			events = append(events, f[1]+" "+f[2])
		}
		got, want := strings.Join(events[1:], ", "), "ADDED 10.0.0.1, ADDED 10.0.0.2, REMOVED 10.0.0.2, ADDED 10.0.0.3, ADDED 10.0.0.4, REMOVED 10.0.0.1"
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := c.stderr.String(); !strings.Contains(got, "Some events have expired") {
			t.Errorf("got notices %q, want one about the events that expired", got)
		}
	})
}

func TestWatchEndsWhenTheServerRefuses(t *testing.T) {
	refusal := `{"code":3,"message":"that is no address"}`
	for name, tries := range map[string][]try{
		"at once":       {{status: 400, body: refusal}},
		"in the stream": {{status: 200, body: `{"error":` + refusal + "}\n"}},
		"later":         {{status: 200, body: line("BOOKMARK", "")}, {status: 400, body: refusal}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				code, c := watchOwners(t, &script{tries: tries})
				if code != 1 || !strings.HasSuffix(c.stderr.String(), "ipwitness: that is no address\n") {
					t.Errorf("got exit code %d and %q, want 1 and the server's message", code, &c.stderr)
				}
			})
		})
	}
}

func TestWatchFailsWhenItNeverBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code, c := watchOwners(t, &script{tries: []try{{err: errors.New("no route to host")}}})
		if code != 1 || !strings.Contains(c.stderr.String(), "cannot reach http://127.0.0.1:9641: no route to host") {
			t.Errorf("got exit code %d and %q, want 1 and the reason", code, &c.stderr)
		}
	})
}

func TestWatchAsJSONHasOneObjectALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{tries: []try{{status: 200, body: line("ADDED", "10.0.0.1") + line("BOOKMARK", "") +
			`{"result":{"type":"LOST","lost":3}}` + "\n" + line("NODE", "") + line("REMOVED", "10.0.0.1")}}}
		_, c := watchOwners(t, s, "-o", "json")
		lines := strings.Split(strings.TrimSpace(c.stdout.String()), "\n")
		for i, want := range []string{`{"type":"ADDED","owner":{"address":"10.0.0.1",`, `{"type":"LOST","lost":3}`, `{"type":"REMOVED","owner":`} {
			if len(lines) != 3 || !strings.HasPrefix(lines[i], want) {
				t.Fatalf("got %q, want line %d to begin with %s", lines, i, want)
			}
		}
	})
}

// errWriter fails like a full disk.
type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestWatchEndsWhenTheOutputFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConsole()
		c.system.stdout = errWriter{}
		c.transport = &script{tries: []try{{status: 200, body: line("BOOKMARK", ""), hang: true}}, begin: time.Now()}
		c.run(t, 1, "owners", "-w")
		c.wantStderr(t, "ipwitness: no space left on device\n")
	})
}
