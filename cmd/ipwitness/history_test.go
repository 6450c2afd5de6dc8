package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// journal returns a server with these pages of events, and the parameters of the requests to it.
func journal(t *testing.T, gaps []*pb.Gap, all ...[]*pb.Event) (*console, *[]url.Values) {
	t.Helper()
	asked := &[]url.Values{}
	return serve(t, handler{"/v1/events": func(r *http.Request) (int, string) {
		n := len(*asked)
		*asked = append(*asked, r.URL.Query())
		page := &pb.ListEventsResponse{Coverage: everything}
		if n == 0 {
			page.Gaps, page.ReachesBackTo = gaps, ago(24*time.Hour)
		}
		if n < len(all) {
			page.Events = all[n]
		}
		if n+1 < len(all) {
			page.NextPageToken = fmt.Sprint("page", n+2)
		}
		return ok(page)(r)
	}}), asked
}

func TestHistoryAsksForItsSubject(t *testing.T) {
	for _, test := range []struct {
		args []string
		want url.Values
	}{
		{nil, url.Values{}},
		{[]string{"10.0.0.7"}, url.Values{"about": {"10.0.0.7"}}},
		{[]string{"FD00::7"}, url.Values{"about": {"FD00::7"}}},
		{[]string{"10.0.0.7/24"}, url.Values{"about": {"10.0.0.7/24"}}},
		{[]string{"default/web-1"}, url.Values{"about": {"default/web-1"}}},
		{[]string{"0A-58-0a-f4-00-07"}, url.Values{"about": {"0A-58-0a-f4-00-07"}}},
		{[]string{"node-1"}, url.Values{"about": {"node-1"}}},
		{[]string{"ip-10-0-0-7.eu-central-1.compute.internal"}, url.Values{"about": {"ip-10-0-0-7.eu-central-1.compute.internal"}}},
		{[]string{"worker@8d0f"}, url.Values{"about": {"worker@8d0f"}}},
		{[]string{"container/web"}, url.Values{"about": {"container/web"}}},
		{[]string{"node-1", "--kind", "conflict"}, url.Values{"about": {"node-1"}, "kind": {"CONFLICT"}}},
		{[]string{"--since", "-2h"}, url.Values{"since": {"2026-03-14T13:09:26Z"}}},
		{[]string{"--since=-2h"}, url.Values{"since": {"2026-03-14T13:09:26Z"}}},
		{[]string{"node-1", "--since", "yesterday 22:00", "--until", "6:00"}, url.Values{
			"about": {"node-1"}, "since": {"2026-03-13T22:00:00Z"}, "until": {"2026-03-14T06:00:00Z"},
		}},
		{[]string{"--until", "6:00", "--since", "14:00"}, url.Values{"since": {"2026-03-14T14:00:00Z"}, "until": {"2026-03-14T15:09:26Z"}}}, // now
		{[]string{"--until", "2026-03-15"}, url.Values{"until": {"2026-03-15T00:00:00Z"}}},                                                  // to the end of today
		{[]string{"10.0.0.7", "--at", "14:03"}, url.Values{"about": {"10.0.0.7"}, "until": {"2026-03-14T14:03:00.000000001Z"}}},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			c, asked := journal(t, nil)
			c.run(t, 0, append([]string{"history"}, test.args...)...)
			if len(*asked) != 1 || (*asked)[0].Encode() != test.want.Encode() {
				t.Errorf("got requests %v, want one with %v", *asked, test.want)
			}
		})
	}
}

func TestHistoryRefuses(t *testing.T) {
	const usage = "\nRun 'ipwitness history --help' for usage.\n"
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"a", "b"}, "ipwitness: history takes one argument, an ADDRESS, CIDR, MAC, ID, NODE, NAMESPACE/POD or a part of a NAME, not 2: a b" + usage},
		{[]string{"--kind", "pod"}, "ipwitness: --kind: \"pod\" is not a kind of item: use one of conflict, finding, node, owner" + usage},
		{[]string{"--since", "16:00 local+"}, "ipwitness: --since: \"16:00 local+\" is not a time: write it like 14:03, 14:03:20, \"yesterday 14:03\", -2h, 3d ago, 2026-11-20, \"2026-11-20 14:03\" or 2026-11-20T14:03:00Z; times are in UTC unless an offset (+01:00) or the word local follows" + usage},
		{[]string{"--since", "today 16:00"}, "ipwitness: --since: \"today 16:00\" is in the future: it is 2026-03-14 15:09:26 UTC now" + usage},
		{[]string{"--since", "14:00", "--until", "today 13:00"}, "ipwitness: --since is 2026-03-14 14:00:00 UTC and --until is 2026-03-14 13:00:00 UTC: --since must be before --until\n"},
		{[]string{"--at", "14:00", "--until", "15:00"}, "ipwitness: --at and --until cannot be combined, because both end the period: remove one of them\n"},
		{[]string{"--at", "14:00", "--watch"}, "ipwitness: --at and --watch cannot be combined, because a watch does not end: remove one of them\n"},
	} {
		c, asked := journal(t, nil)
		c.run(t, 1, append([]string{"history"}, test.args...)...)
		c.wantStderr(t, test.want)
		if len(*asked) > 0 {
			t.Errorf("%q: got requests %v, want none", test.args, *asked)
		}
	}
}

// Pages are written as they arrive, and the gaps of the first page are between the events of all.
func TestHistoryFollowsPages(t *testing.T) {
	gap := &pb.Gap{From: ago(150 * time.Minute), Until: ago(130 * time.Minute), Reason: pb.Gap_NOT_RUNNING}
	pages := [][]*pb.Event{
		{recorded(4*time.Hour, "a"), recorded(3*time.Hour, "b")},
		{recorded(2*time.Hour, "c")},
		{recorded(time.Hour, "d")},
	}
	c, asked := journal(t, []*pb.Gap{gap}, pages...)
	c.run(t, 0, "history", "10.0.0.7", "-o", "json")
	var tokens []string
	for _, q := range *asked {
		tokens = append(tokens, q.Get("about")+" "+q.Get("page_token"))
	}
	if got, want := strings.Join(tokens, ", "), "10.0.0.7 , 10.0.0.7 page2, 10.0.0.7 page3"; got != want {
		t.Errorf("got requests %s, want %s", got, want)
	}
	lines := strings.Split(strings.TrimSuffix(c.stdout.String(), "\n"), "\n")
	var got []string
	for i, line := range lines {
		var kind struct{ Type string }
		if err := json.Unmarshal([]byte(line), &kind); err != nil {
			t.Fatalf("line %d is not an object: %v: %s", i, err, line)
		}
		e := &pb.Event{}
		switch kind.Type {
		case "GAP":
			read := struct{ Gap json.RawMessage }{}
			g := &pb.Gap{}
			if err := json.Unmarshal([]byte(line), &read); err != nil {
				t.Fatal(err)
			}
			if err := protojson.Unmarshal(read.Gap, g); err != nil || !proto.Equal(g, gap) {
				t.Errorf("got %v, %v, want %v", g, err, gap)
			}
			got = append(got, "GAP")
		case "BOOKMARK":
			end := &pb.ListEventsResponse{}
			if err := decode([]byte(line), end); err != nil || !end.GetReachesBackTo().AsTime().Equal(now.Add(-24*time.Hour)) || !proto.Equal(end.GetCoverage(), everything) {
				t.Errorf("got %s, %v, want the reach of the journal and the coverage", line, err)
			}
			got = append(got, "BOOKMARK")
		default:
			if err := protojson.Unmarshal([]byte(line), e); err != nil {
				t.Error(err)
			}
			got = append(got, e.GetOwner().GetWorkload().GetName())
		}
	}
	if got, want := strings.Join(got, " "), "a b GAP c d BOOKMARK"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.wantStderr(t, "")

	c, _ = journal(t, []*pb.Gap{gap}, pages...)
	c.run(t, 0, "history", "10.0.0.7", "-o", "yaml")
	if got := strings.Count(c.stdout.String(), "---\n"); got != len(lines) {
		t.Errorf("got %d documents of YAML, want %d:\n%s", got, len(lines), &c.stdout)
	}
}

func TestHistorySaysWhatIsNotKnown(t *testing.T) {
	const silent = "Warning: 1 of 3 nodes is disconnected (node-3): what happens there is not observed.\n"
	one := []*pb.Event{recorded(time.Hour, "web")}
	gaps := []*pb.Gap{{From: ago(2 * time.Hour), Until: ago(time.Hour), Reason: pb.Gap_DAMAGED}}
	hours := func(n int) *timestamppb.Timestamp { return ago(time.Duration(n) * time.Hour) }
	for _, test := range []struct {
		name   string
		server *pb.ListEventsResponse
		args   string
		code   int // with --exit-code
		stderr string
	}{
		{
			"all", &pb.ListEventsResponse{Events: one, ReachesBackTo: hours(48)}, "10.0.0.7", 2,
			"The journal begins at 2026-03-12 15:09:26 UTC.\n",
		},
		{"since", &pb.ListEventsResponse{Events: one, ReachesBackTo: hours(48)}, "10.0.0.7 --since -1d", 2, ""},
		{
			"since before the journal", &pb.ListEventsResponse{Events: one, ReachesBackTo: hours(12)}, "10.0.0.7 --since -1d", 2,
			"The journal begins at 2026-03-14 03:09:26 UTC.\n",
		},
		{
			"nothing", &pb.ListEventsResponse{ReachesBackTo: hours(48)}, "10.0.0.7", 0,
			"No events for 10.0.0.7. The journal begins at 2026-03-12 15:09:26 UTC.\n",
		},
		{
			"nothing since", &pb.ListEventsResponse{ReachesBackTo: hours(48)}, "node-1 --since -1d --kind conflict", 0,
			"No conflict events for node-1 since 2026-03-13 15:09:26 UTC. The journal begins at 2026-03-12 15:09:26 UTC.\n",
		},
		{
			"nothing, and the journal begins later", &pb.ListEventsResponse{ReachesBackTo: hours(12)}, "default/web --since -1d --until -1h", 3,
			"No events for default/web between 2026-03-13 15:09:26 UTC and 2026-03-14 14:09:26 UTC. The journal begins at 2026-03-14 03:09:26 UTC.\n",
		},
		{"nothing, and no journal", &pb.ListEventsResponse{}, "--since -1d", 3, "No events since 2026-03-13 15:09:26 UTC. The journal is empty.\n"},
		{
			"nothing, with a gap", &pb.ListEventsResponse{ReachesBackTo: hours(48), Gaps: gaps}, "10.0.0.7 --since -1d", 3,
			"No events for 10.0.0.7 since 2026-03-13 15:09:26 UTC. The journal begins at 2026-03-12 15:09:26 UTC.\n",
		},
		{
			"a silent node", &pb.ListEventsResponse{ReachesBackTo: hours(48), Coverage: oneSilent}, "10.0.0.7 --since -1d", 3,
			silent + "No events for 10.0.0.7 since 2026-03-13 15:09:26 UTC. The journal begins at 2026-03-12 15:09:26 UTC.\n",
		},
		{
			"a node that is silent now", &pb.ListEventsResponse{ReachesBackTo: hours(48), Coverage: oneSilent}, "10.0.0.7 --until -1d", 0,
			"No events for 10.0.0.7 before 2026-03-13 15:09:26 UTC. The journal begins at 2026-03-12 15:09:26 UTC.\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.server.GetCoverage() == nil {
				test.server.Coverage = everything
			}
			server := handler{"/v1/events": ok(test.server)}
			args := append([]string{"history"}, strings.Fields(test.args)...)
			c := serve(t, server)
			c.run(t, 0, args...)
			c.wantStderr(t, test.stderr)
			c = serve(t, server)
			c.run(t, test.code, append(args, "--exit-code")...)
			c = serve(t, server)
			c.run(t, test.code, append(args, "--exit-code", "-o", "json")...)
			if (test.code == 3) != (c.stderr.Len() > 0) {
				t.Errorf("got exit code %d and %q on stderr, want a reason with 3 alone", test.code, &c.stderr)
			}
		})
	}
}

// closed is an output that nobody reads any more.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestHistoryEndsWithItsOutput(t *testing.T) {
	c, asked := journal(t, nil, []*pb.Event{recorded(2*time.Hour, "a")}, []*pb.Event{recorded(time.Hour, "b")})
	c.system.stdout = closed{}
	c.run(t, 1, "history", "10.0.0.7")
	c.wantStderr(t, "ipwitness: broken pipe\n")
	if len(*asked) != 1 {
		t.Errorf("got %d requests, want one", len(*asked))
	}
}

func TestCompletionOffersKindsOfEvents(t *testing.T) {
	c := newConsole()
	c.run(t, 0, "__complete", "history", "--kind", "")
	if got, want := c.stdout.String(), "conflict\nfinding\nnode\nowner\n:4\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, flag := range []string{"--since", "--until", "--at"} {
		c = newConsole()
		c.run(t, 0, "__complete", "history", flag, "")
		if got, want := c.stdout.String(), ":4\n"; got != want {
			t.Errorf("%s: got %q, want no files", flag, got)
		}
	}
}

// message returns a line of a watch of events.
func message(m *pb.WatchEventsResponse) string {
	raw, err := protojson.Marshal(m)
	if err != nil {
		panic(err)
	}
	return `{"result":` + string(raw) + "}\n"
}

// A watch continues after the last message that it has received, also after a gap, and says what is lost.
func TestHistoryWatchContinuesWhereItWas(t *testing.T) {
	event := func(token, name string) string {
		e := recorded(time.Hour, name)
		return message(&pb.WatchEventsResponse{Type: e.GetType(), Event: e, ResumeToken: token})
	}
	gap := message(&pb.WatchEventsResponse{Type: pb.Watch_GAP, Gap: &pb.Gap{From: ago(2 * time.Hour), Until: ago(time.Hour), Reason: pb.Gap_NOT_RUNNING}, ResumeToken: "i-0-4"})
	bookmark := message(&pb.WatchEventsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: "i-0-5", Coverage: everything, ReachesBackTo: ago(12 * time.Hour)})
	lost := message(&pb.WatchEventsResponse{Type: pb.Watch_LOST, ResumeToken: "i-0-6"})
	for _, test := range []struct{ format, stdout, stderr string }{
		{"json", "ADDED a, ADDED b, ADDED c, GAP , LOST , ADDED d", ""},
		{"table", "EVENT OWNER, ADDED a, ADDED b, ADDED c, GAP , ADDED d", "The journal begins at 2026-03-14 03:09:26 UTC.\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{begin: time.Now(), tries: []try{
				{status: 200, body: event("i-0-1", "a") + event("i-0-2", "b")},
				{status: 200, body: event("i-0-3", "c") + gap + bookmark},
				{status: 200, body: lost + event("i-0-7", "d"), hang: true},
			}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s.cancel = cancel
			c := newConsole()
			c.transport = s
			if code := execute(ctx, c.system, []string{"history", "10.0.0.7", "-w", "--since", "-1d", "-o", test.format}); code != 0 {
				t.Errorf("got exit code %d, want 0", code)
			}
			const ask = "about=10.0.0.7&"
			const since = "since=2026-03-13T15%3A09%3A26Z"
			if got, want := s.asked[:4], []string{ask + since, ask + "resume_token=i-0-2&" + since, ask + "resume_token=i-0-5&" + since, ask + "resume_token=i-0-7&" + since}; !slices.Equal(got, want) {
				t.Errorf("got requests %q, want %q", got, want)
			}
			var got []string
			for line := range strings.Lines(c.stdout.String()) {
				var one struct {
					Type  string
					Owner struct{ Workload struct{ Name string } }
				}
				if f := strings.Fields(line); test.format == "table" && strings.Contains(line, "no records until") {
					one.Type = "GAP"
				} else if test.format == "table" {
					one.Type, one.Owner.Workload.Name = f[1], strings.TrimPrefix(f[5], "container/")
				} else if err := json.Unmarshal([]byte(line), &one); err != nil {
					t.Fatal(err)
				}
				got = append(got, one.Type+" "+one.Owner.Workload.Name)
			}
			if strings.Join(got, ", ") != test.stdout {
				t.Errorf("%s: got %q, want %s\n%s", test.format, got, test.stdout, &c.stdout)
			}
			if lines := strings.Count(c.stderr.String(), "The journal no longer has all events"); (lines == 1) != (test.format == "table") || !strings.Contains(c.stderr.String(), test.stderr) {
				t.Errorf("%s: got %q on stderr", test.format, &c.stderr)
			}
		})
	}
}

func TestHistoryWatchRefuses(t *testing.T) {
	for _, flags := range []string{"--until 15:00", "--exit-code"} {
		c, asked := journal(t, nil)
		c.run(t, 1, append([]string{"history", "-w"}, strings.Fields(flags)...)...)
		if len(*asked) > 0 || !strings.Contains(c.stderr.String(), "cannot be combined") {
			t.Errorf("%s: got requests %v and %q, want an error", flags, *asked, &c.stderr)
		}
	}
}
