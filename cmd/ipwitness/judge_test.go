package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ipwitness/ipwitness/aggregator/casefile"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// caseFile returns the path of the case that was recorded for a row of docs/situations.md.
func caseFile(row string) string {
	return filepath.Join("../../aggregator/casefile/testdata/cases", row+".json")
}

// explaining returns a server that explains each address with the case of a row.
func explaining(t *testing.T, row string) handler {
	t.Helper()
	raw, err := os.ReadFile(caseFile(row))
	if err != nil {
		t.Fatal(err)
	}
	var c structpb.Struct
	if err := c.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return handler{"/v1/explain": func(r *http.Request) (int, string) {
		answer := &pb.ExplainResponse{Address: r.URL.Query().Get("address")}
		if r.URL.Query().Get("case") == "true" {
			answer.Case = &c
		}
		return ok(answer)(r)
	}}
}

func TestACaseIsWrittenAsItWasRecorded(t *testing.T) {
	want, err := os.ReadFile(caseFile("T1"))
	if err != nil {
		t.Fatal(err)
	}
	c := serve(t, explaining(t, "T1"))
	c.run(t, 0, "explain", "10.244.0.2", "-o", "case")
	f, err := casefile.Decode(c.stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := casefile.Encode(f); err != nil || string(got) != string(want) || c.stderr.Len() > 0 {
		t.Errorf("got\n%s, %v\nand on stderr\n%s\nwant\n%s", got, err, &c.stderr, want)
	}
}

func TestJudge(t *testing.T) {
	edited := func(row, old, replacement string) string {
		raw, err := os.ReadFile(caseFile(row))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "case.json")
		text := strings.Replace(string(raw), old, replacement, 1)
		if text == string(raw) {
			t.Fatalf("%q is not in the case of %s", old, row)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	judged := func(row, judged string) string {
		return edited(row, `"ipwitnessCase": 2,`, `"ipwitnessCase": 2, "judged": {`+judged+`},`)
	}
	const of = ` of conflict 42ijzx4wow5hihf6": `
	const t1 = `"the number of conflicts": "1", "the state` + of + `"CONFIRMED", "the rule` + of + `"assigned-twice", "the keeper` + of + `"pod default/new1 (b0070000-0000-4000-8000-000000000001/4026532003)", "the cause` + of
	incomplete := edited("L1", `"Now":`, `"Incomplete": true, "Now":`)
	for _, test := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{caseFile("T1"), 0, "Conflict. 10.244.0.2 is held twice", ""},
		{caseFile("T1") + " --exit-code", 2, "Conflict. 10.244.0.2 is held twice", ""},
		{caseFile("T1") + " --exit-code -o json", 2, `"state": "CONFIRMED"`, ""},
		{caseFile("T1") + " -o yaml", 0, "state: CONFIRMED", ""},
		{caseFile("L1") + " --exit-code", 0, "No conflict", ""},
		{judged("T1", t1+`"ipam-state-lost"`), 0, "Conflict. 10.244.0.2 is held twice", ""},
		{judged("T1", t1+`"static-address"`) + " -o json", 0, `"state": "CONFIRMED"`, "judged differently: the cause of conflict 42ijzx4wow5hihf6 was static-address and is ipam-state-lost."},
		{judged("T1", `"the number of conflicts": "0"`), 0, "Conflict. 10.244.0.2 is held twice", "the rule of conflict 42ijzx4wow5hihf6 was none and is assigned-twice."},
		{judged("L1", `"the number of conflicts": "0", "the exclusion of node n1": "reachable-via"`), 0, "No conflict", "the exclusion of node n1 was reachable-via and is none."},
		{incomplete + " --exit-code", 3, "No conflict", "Warning: not all nodes were seen when the case was written."},
		{incomplete + " --exit-code -o json", 3, `"incomplete": true`, ""},
		{caseFile("T7-externals") + " --exit-code", 0, "Suspected conflict", ""},
		{edited("T1", `"ipwitnessCase": 2`, `"ipwitnessCase": 7`), 1, "", "read case: format 7 is not supported, only format 2 is"},
		{edited("T1", `"Claims": [`, `"Claims": [null, `), 1, "", "read case: Case.Claims[0]: missing"},
		{"nowhere.json", 1, "", "open nowhere.json: no such file or directory"},
		{"", 1, "", "judge needs a FILE that 'ipwitness explain ADDRESS -o case' wrote, or - for standard input"},
		{"a b", 1, "", "judge takes one argument, a FILE or -, not 2: a b"},
	} {
		c := newConsole()
		c.run(t, test.code, append([]string{"judge"}, strings.Fields(test.args)...)...)
		if !strings.Contains(c.stdout.String(), test.stdout) || !strings.Contains(c.stderr.String(), test.stderr) || (test.stderr == "") != (c.stderr.Len() == 0) {
			t.Errorf("judge %s: got\n%s\nand on stderr\n%s\nwant %q and %q", test.args, &c.stdout, &c.stderr, test.stdout, test.stderr)
		}
	}
}

// TestJudgeReadsStandardInput also checks that ages are relative to the time of the case, and not
// to the current time.
func TestJudgeReadsStandardInput(t *testing.T) {
	file, err := os.Open(caseFile("T1"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := newConsole()
	c.stdin = file
	c.run(t, 0, "judge", "-")
	if !strings.Contains(c.stdout.String(), "s ago)") || strings.Contains(c.stdout.String(), "d ago)") {
		t.Errorf("got\n%s\nwant ages in seconds", &c.stdout)
	}
	c = newConsole()
	c.stdin = strings.NewReader(protojson.Format(&pb.ExplainResponse{}))
	c.run(t, 1, "judge", "-")
	c.wantStderr(t, "ipwitness: read case: no \"ipwitnessCase\": this is not a case file; write one with `ipwitness explain ADDRESS -o case`\n")
}
