package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// acknowledging returns a server with one conflict of 10.0.0.7 and two of 10.0.0.8, and the last
// request that it received.
func acknowledging(t *testing.T) (*console, *pb.AcknowledgeConflictRequest) {
	t.Helper()
	asked := &pb.AcknowledgeConflictRequest{}
	one, two := conflict("abc", pb.Conflict_CONFIRMED), conflict("def", pb.Conflict_SUSPECTED)
	two.Scope = &pb.Scope{Kind: pb.Scope_LINK, Name: "n1/eth0"}
	return serve(t, handler{
		"/v1/conflicts": func(r *http.Request) (int, string) {
			list := &pb.ListConflictsResponse{}
			switch r.URL.Query().Get("about") {
			case "10.0.0.7", "abc":
				list.Conflicts = []*pb.Conflict{one}
			case "10.0.0.8":
				one, two := proto.CloneOf(one), proto.CloneOf(two)
				one.Address, two.Address = "10.0.0.8", "10.0.0.8"
				list.Conflicts = []*pb.Conflict{one, two}
			}
			return ok(list)(r)
		},
		"/v1/conflicts/abc:acknowledge": func(r *http.Request) (int, string) {
			raw, err := io.ReadAll(r.Body)
			if err == nil {
				err = protojson.Unmarshal(raw, asked)
			}
			if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("got %s %s %s, %v; want JSON posted", r.Method, r.Header, raw, err)
			}
			c := proto.CloneOf(one)
			if !asked.GetWithdraw() {
				c.Acknowledgement = &pb.Acknowledgement{Reason: asked.GetReason(), AcknowledgedAt: timestamppb.New(now), ExpiresAt: asked.GetExpiresAt()}
			}
			return ok(c)(r)
		},
	}), asked
}

func TestAcknowledge(t *testing.T) {
	for name, args := range map[string][]string{
		"by id":      {"acknowledge", "abc", "--reason", "NET-42", "--for", "24h"},
		"by address": {"acknowledge", "10.0.0.7", "--reason", "NET-42", "--for", "1d"},
		"in short":   {"ack", "abc", "--for=1440m", "--reason=NET-42"},
	} {
		t.Run(name, func(t *testing.T) {
			c, asked := acknowledging(t)
			c.run(t, 0, args...)
			want := &pb.AcknowledgeConflictRequest{Reason: "NET-42", ExpiresAt: timestamppb.New(now.Add(24 * time.Hour))}
			if !proto.Equal(asked, want) {
				t.Errorf("got requests %v, want %v", asked, want)
			}
			if got, want := c.stdout.String(), "Conflict abc of 10.0.0.7 (a/x | b/y) is acknowledged until 2026-03-15 15:09:26 UTC: NET-42\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			c.wantStderr(t, "")
		})
	}
}

func TestAcknowledgementIsWithdrawnByTheCommand(t *testing.T) {
	c, asked := acknowledging(t)
	c.run(t, 0, "acknowledge", "10.0.0.7", "--withdraw")
	if want := (&pb.AcknowledgeConflictRequest{Withdraw: true}); !proto.Equal(asked, want) {
		t.Errorf("got requests %v, want %v", asked, want)
	}
	if got, want := c.stdout.String(), "Conflict abc of 10.0.0.7 (a/x | b/y) is not acknowledged.\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAcknowledgeForPrograms(t *testing.T) {
	c, _ := acknowledging(t)
	c.run(t, 0, "acknowledge", "abc", "--reason", "NET-42", "--for", "24h", "-o", "json")
	got := &pb.Conflict{}
	if err := protojson.Unmarshal(c.stdout.Bytes(), got); err != nil || got.GetAcknowledgement().GetReason() != "NET-42" {
		t.Errorf("got %s, %v, want the conflict with its acknowledgement", &c.stdout, err)
	}
}

func TestAcknowledgeReportsMissingArguments(t *testing.T) {
	usage := "Run 'ipwitness acknowledge --help' for usage.\n"
	for name, test := range map[string]struct {
		args string
		want string
	}{
		"nothing":   {"acknowledge", "ipwitness: acknowledge needs the ID or the ADDRESS of a conflict, or another THING that is in conflict: 'ipwitness conflicts' lists them\n" + usage},
		"no id":     {"acknowledge a/b --withdraw", "ipwitness: no conflict of a/b: 'ipwitness explain a/b' shows why\n"},
		"no reason": {"acknowledge abc --for 1h", "ipwitness: --reason is missing: give a reason, like --reason \"NET-42: moves on Friday\"\n"},
		"no time":   {"acknowledge abc --reason x", "ipwitness: --for is missing: give a duration, like --for 24h\n"},
		"a bad time": {
			"acknowledge abc --reason x --for tomorrow",
			"ipwitness: --for: \"tomorrow\" is not a duration greater than 0: write it like 500ms, 30m or 7d\n" + usage,
		},
		"both":        {"acknowledge abc --withdraw --for 1h", "ipwitness: --withdraw cannot be combined with --reason or --for: remove --withdraw, or both of the others\n"},
		"no conflict": {"acknowledge 10.0.0.9 --withdraw", "ipwitness: no conflict of 10.0.0.9: 'ipwitness explain 10.0.0.9' shows why\n"},
		"two conflicts": {
			"acknowledge 10.0.0.8 --reason x --for 1h",
			"ipwitness: 10.0.0.8 is in 2 conflicts: select one by its id:\n  abc  a/x | b/y\n  def  LINK n1/eth0  a/x | b/y\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, asked := acknowledging(t)
			c.run(t, 1, strings.Fields(test.args)...)
			c.wantStderr(t, test.want)
			if !proto.Equal(asked, &pb.AcknowledgeConflictRequest{}) {
				t.Errorf("got requests %v, want none", asked)
			}
		})
	}
}

func TestExplainReportsMissingArguments(t *testing.T) {
	c, _ := acknowledging(t)
	c.run(t, 1, "explain")
	c.wantStderr(t, "ipwitness: explain needs an ADDRESS, or another THING that has one: 'ipwitness owners' and 'ipwitness conflicts' list them\n"+
		"Run 'ipwitness explain --help' for usage.\n")
}

func TestParsePeriod(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "7d": 7 * 24 * time.Hour,
		"": 0, "0": 0, "0d": 0, "-1h": 0, "-1d": 0, "1.5d": 0, "7": 0, "4000000000d": 0, "1w": 0,
	} {
		if got, err := parsePeriod(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
}
