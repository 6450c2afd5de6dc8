package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// resolver answers questions by their addresses, and keeps the questions of each request.
type resolver struct {
	*testing.T
	asked [][]*pb.ResolveOwnersRequest_Question
}

func (s *resolver) answer(r *http.Request) (int, string) {
	raw, err := io.ReadAll(r.Body)
	q := &pb.ResolveOwnersRequest{}
	if err != nil || protojson.Unmarshal(raw, q) != nil {
		s.Errorf("got %q and %v", raw, err)
	}
	s.asked = append(s.asked, q.GetQuestions())
	web := &pb.ResolvedOwner{Kind: pb.Workload_POD, Namespace: "shop", Name: "web-1", Node: "n1"}
	device := &pb.ResolvedOwner{Kind: pb.Workload_EXTERNAL, Mac: "02:00:00:00:00:01", Node: "n1"}
	out := &pb.ResolveOwnersResponse{}
	for _, one := range q.GetQuestions() {
		a := map[string]*pb.Resolution{
			"10.0.0.1": {Certainty: pb.Resolution_KNOWN, Owner: web},
			"10.0.0.2": {Certainty: pb.Resolution_KNOWN},
			"10.0.0.3": {Certainty: pb.Resolution_AMBIGUOUS, Candidates: []*pb.ResolvedOwner{web, device}, CandidatesLeftOut: 1},
			"10.0.0.4": {Certainty: pb.Resolution_NOT_OBSERVED, Reason: pb.Resolution_BEFORE_JOURNAL, Candidates: []*pb.ResolvedOwner{web}},
			"10.0.0.5": {Certainty: pb.Resolution_KNOWN, Owner: &pb.ResolvedOwner{Kind: pb.Workload_UNKNOWN, Name: "x", Node: "=cmd|n1"}},
		}[one.GetAddress()]
		if a == nil {
			a = &pb.Resolution{Error: fmt.Sprintf("%q is not an address", one.GetAddress())}
		}
		out.Answers = append(out.Answers, a)
	}
	return http.StatusOK, protojson.Format(out)
}

func newResolver(t *testing.T) (*console, *resolver) {
	s := &resolver{T: t}
	return serve(t, handler{"/v1/owners:resolve": s.answer}), s
}

func TestOwnersAreAddedToCSV(t *testing.T) {
	c, s := newResolver(t)
	file := filepath.Join(t.TempDir(), "flows.csv")
	in := "ts,src,dst,\"by,tes\",node\n" +
		"2026-03-14T10:00:00Z,10.0.0.1,10.0.0.2, 17 ,n7\n" +
		"1773482400,10.0.0.3,10.0.0.4,\"a \"\"b\"\"\",\r\n" +
		"1773482400123,10.0.0.5,nonsense,\"two\nlines\",n1\n" +
		"\n" +
		"never,10.0.0.1,10.0.0.1,=1+1,n1\n" +
		"2026-03-14T10:00:00Z,,10.0.0.1,,n1\n" +
		"2026-03-14T10:00:00Z,10.0.0.1\n" +
		"2026-03-14T10:00:00Z,\"10.0.0.1,10.0.0.1,,n1\n" +
		"2026-03-14T10:00:00Z,10.0.0.2,10.0.0.2,,n1"
	if err := os.WriteFile(file, []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	c.run(t, 0, "resolve", file)
	want := "ts,src,dst,\"by,tes\",node,src_kind,src_owner,src_owner_node,src_certainty,dst_kind,dst_owner,dst_owner_node,dst_certainty\n" +
		"2026-03-14T10:00:00Z,10.0.0.1,10.0.0.2, 17 ,n7,pod,shop/web-1,n1,known,none,,,known\n" +
		"1773482400,10.0.0.3,10.0.0.4,\"a \"\"b\"\"\",,pod; external,shop/web-1; external/02:00:00:00:00:01,n1; n1,ambiguous: 1 more,,,,not observed: before journal\r\n" +
		"1773482400123,10.0.0.5,nonsense,\"two\nlines\",n1,unknown,netns/x,'=cmd|n1,known,,,,\"error: \"\"nonsense\"\" is not an address\"\n" +
		"\n" +
		"never,10.0.0.1,10.0.0.1,=1+1,n1" + strings.Repeat(",,,,\"error: \"\"never\"\" is not a time in RFC 3339, nor a number of seconds, milliseconds, microseconds or nanoseconds since 1970\"", 2) + "\n" +
		"2026-03-14T10:00:00Z,,10.0.0.1,,n1,,,,error: there is no address,pod,shop/web-1,n1,known\n" +
		"2026-03-14T10:00:00Z,10.0.0.1,,," + strings.Repeat(",,,,error: it has 2 values instead of 5", 2) + "\n" +
		"2026-03-14T10:00:00Z,\"10.0.0.1,10.0.0.1,,n1" + strings.Repeat(`,,,,"error: extraneous or missing "" in quoted-field"`, 2) + "\n" +
		"2026-03-14T10:00:00Z,10.0.0.2,10.0.0.2,,n1,none,,,known,none,,,known"
	if got := c.stdout.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	c.wantStderr(t, "16 addresses: 6 known, 1 ambiguous, 1 not observed, 8 with errors.\n")
	if len(s.asked) != 1 || len(s.asked[0]) != 9 {
		t.Fatalf("got requests %v", s.asked)
	}
	if q := s.asked[0][0]; q.GetNode() != "n7" || !q.GetTime().AsTime().Equal(time.Date(2026, 3, 14, 10, 0, 0, 0, time.UTC)) {
		t.Errorf("got %v", q)
	}
	if q := s.asked[0][4]; q.GetTime().AsTime().UnixMilli() != 1773482400123 {
		t.Errorf("got %v, want a time in milliseconds", q)
	}
}

func TestOwnersAreAddedToJSONLines(t *testing.T) {
	c, s := newResolver(t)
	c.stdin = strings.NewReader("{ \"source.ip\":\"10.0.0.1\", \"@timestamp\": 1773482400.5, \"n\": {\"a\":[1, 2]} } \n" +
		"\n[1]\nnonsense\n" +
		"{\"@timestamp\":1773482400500000000,\"source.ip\":\"10.0.0.2\"}\r\n{}\n{\"source.ip\":7,\"@timestamp\":\"2026-03-14T10:00:00.5Z\"}")
	c.run(t, 3, "resolve", "-", "--exit-code")
	want := "{ \"source.ip\":\"10.0.0.1\", \"@timestamp\": 1773482400.5, \"n\": {\"a\":[1, 2]} ,\"source.ip_kind\":\"pod\",\"source.ip_owner\":\"shop/web-1\",\"source.ip_owner_node\":\"n1\",\"source.ip_certainty\":\"known\"}\n" +
		"\n[1]\nnonsense\n" +
		"{\"@timestamp\":1773482400500000000,\"source.ip\":\"10.0.0.2\",\"source.ip_kind\":\"none\",\"source.ip_owner\":\"\",\"source.ip_owner_node\":\"\",\"source.ip_certainty\":\"known\"}\r\n" +
		"{\"source.ip_kind\":\"\",\"source.ip_owner\":\"\",\"source.ip_owner_node\":\"\",\"source.ip_certainty\":\"error: there is no time\"}\n" +
		"{\"source.ip\":7,\"@timestamp\":\"2026-03-14T10:00:00.5Z\",\"source.ip_kind\":\"\",\"source.ip_owner\":\"\",\"source.ip_owner_node\":\"\",\"source.ip_certainty\":\"error: \\\"7\\\" is not an address\"}"
	if got := c.stdout.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	c.wantStderr(t, "6 addresses: 2 known, 0 ambiguous, 0 not observed, 4 with errors.\n")
	for _, q := range s.asked[0] {
		if q.GetTime().AsTime().UnixMilli() != 1773482400500 {
			t.Errorf("got %v, want one time", q)
		}
	}
}

func TestColumnsAreNamedOrGuessed(t *testing.T) {
	for _, one := range []struct {
		header string
		args   []string
		want   string // an error, or what the question has
	}{
		{"ip", nil, "10.0.0.1 - - -"},
		{"Source-Address", nil, "10.0.0.1 - - -"},
		{"peer,ts,VPC", []string{"--address-column", "peer", "--network-column", "VPC"}, "10.0.0.1 2026 - blue"},
		{"ip,begun,host", []string{"--time-column", "begun", "--node-column", "host"}, "10.0.0.1 2026 blue -"},
		{"peer,vpc", nil, "no column has the name of an address: name one of peer, vpc with --address-column"},
		{"ip,ts,time", nil, "the columns ts and time may be meant: name one of them with --time-column"},
		{"ip,ts,time", []string{"--time-column", "ts"}, "10.0.0.1 2026 - -"},
		{"ip,ip", nil, "2 columns have the name ip: rename all but one"},
		{"ip", []string{"--time-column", "end"}, "there is no column end: the columns are ip"},
		{"ip,ip_owner", nil, "there is a column ip_owner already: rename it, or resolve the original file"},
		{"\ufeffip", nil, "10.0.0.1 - - -"},
	} {
		c, s := newResolver(t)
		c.stdin = strings.NewReader(one.header + "\n" + strings.Join([]string{"10.0.0.1", "2026-03-14T10:00:00Z", "blue"}[:1+strings.Count(one.header, ",")], ",") + "\n")
		if !strings.HasPrefix(one.want, "10.") {
			c.run(t, 1, append([]string{"resolve"}, one.args...)...)
			if got := c.stderr.String(); !strings.Contains(got, one.want) || c.stdout.Len() > 0 {
				t.Errorf("%s: got %q and %q, want %q", one.header, got, c.stdout.String(), one.want)
			}
			continue
		}
		c.run(t, 0, append([]string{"resolve"}, one.args...)...)
		q := s.asked[0][0]
		text := func(s string) string {
			return strings.ReplaceAll("-"+s, "-"+s, map[bool]string{true: "-", false: s}[s == ""])
		}
		year := ""
		if q.GetTime() != nil {
			year = fmt.Sprint(q.GetTime().AsTime().Year())
		}
		if got := strings.Join([]string{q.GetAddress(), text(year), text(q.GetNode()), text(q.GetNetwork())}, " "); got != one.want {
			t.Errorf("%s %q: got %q, want %q", one.header, one.args, got, one.want)
		}
	}
}

func TestAFileWithoutRowsGetsAHeader(t *testing.T) {
	c, s := newResolver(t)
	c.stdin = strings.NewReader("\ufeffip,ts\r\n")
	c.run(t, 0, "resolve")
	if got := c.stdout.String(); got != "\ufeffip,ts,ip_kind,ip_owner,ip_owner_node,ip_certainty\r\n" || len(s.asked) > 0 {
		t.Errorf("got %q and %d requests", got, len(s.asked))
	}
}

func TestFlowsAreResolvedInBatches(t *testing.T) {
	c, s := newResolver(t)
	const rows = 12_000
	c.stdin = strings.NewReader("src,dst\n" + strings.Repeat("10.0.0.1,10.0.0.2\n", rows))
	c.run(t, 0, "resolve")
	lines, err := csv.NewReader(&c.stdout).ReadAll()
	if err != nil || len(lines) != rows+1 || lines[rows][3] != "shop/web-1" {
		t.Errorf("got %d lines and %v", len(lines), err)
	}
	var sizes []int
	for _, q := range s.asked {
		sizes = append(sizes, len(q))
	}
	if raw, _ := json.Marshal(sizes); string(raw) != "[10000,10000,4000]" {
		t.Errorf("got requests of %s questions, want two full ones and the rest", raw)
	}
	c.wantStderr(t, "There is no column of times: the current owners are added.\n24000 addresses: 24000 known, 0 ambiguous, 0 not observed, 0 with errors.\n")
}

func TestFilesThatCannotBeResolvedAreErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":            "the file is empty: it must be CSV with a header, or have a JSON object in each line",
		" \n\n":       "the file is empty",
		"a\"b,ip\n":   "the header: bare \" in non-quoted-field",
		"{\"a\":1}\n": "no column has the name of an address",
		"ip\n10.0.0.1\n" + strings.Repeat("x", maxFlow+1): "line 3 is longer than 1048576 bytes",
	} {
		c, _ := newResolver(t)
		c.stdin = strings.NewReader(in)
		c.run(t, 1, "resolve")
		if got := c.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("%.20q: got %q, want %q", in, got, want)
		}
	}
	c := newConsole()
	c.run(t, 1, "resolve", filepath.Join(t.TempDir(), "none.csv"))
	c.stdin = strings.NewReader("ip\n10.0.0.1\n")
	c.run(t, 1, "resolve", "--server", "http://127.0.0.1:1")
}

func TestTimesOfFlows(t *testing.T) {
	for text, want := range map[string]string{
		"2026-03-14T15:09:26+01:00": "2026-03-14T14:09:26Z", "2026-03-14T15:09:26.123456789Z": "2026-03-14T15:09:26.123456789Z",
		"1773500966": "2026-03-14T15:09:26Z", "1773500966.25": "2026-03-14T15:09:26.25Z", "1773500966250": "2026-03-14T15:09:26.25Z",
		"1773500966250001": "2026-03-14T15:09:26.250001Z", "1773500966250001002": "2026-03-14T15:09:26.250001002Z", "1.773500966e9": "2026-03-14T15:09:26Z", "0": "1970-01-01T00:00:00Z",
		"": "", "-1": "", "yesterday": "", "2026-03-14 15:09:26": "", "1/2": "", "0x10": "", "NaN": "", "Inf": "", "1e19": "", "1e30": "", "1e999999999": "", "1e-900000": "1970-01-01T00:00:00Z",
	} {
		at, err := parseFlowTime(text)
		if got := at.UTC().Format(time.RFC3339Nano); err == nil && got != want || err != nil && want != "" {
			t.Errorf("%q: got %s and %v, want %q", text, got, err, want)
		}
	}
}
