package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// watchNodes runs 'nodes -w' on a server with these answers, and returns the lines of stdout.
func watchNodes(t *testing.T, tries []try, args ...string) (code int, lines []string, c *console) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c = newConsole()
		c.transport = &script{tries: tries, cancel: cancel, begin: time.Now()}
		code = execute(ctx, c.system, append([]string{"nodes", "-w"}, args...))
		lines = strings.Split(strings.TrimRight(c.stdout.String(), "\n"), "\n")
	})
	return code, lines, c
}

const (
	node1     = `{"name":"one","bootId":"b1","netns":"1","state":"LIVE","wire":"tcx","ports":3,"lag":"0.001s"}`
	node1Lag  = `{"name":"one","bootId":"b1","netns":"1","state":"LIVE","wire":"tcx","ports":4,"lag":"0.002s"}`
	node1Ill  = `{"name":"one","bootId":"b1","netns":"1","state":"LIVE","wire":"off","ports":0,"problems":["frames are not seen"]}`
	node2     = `{"name":"two","bootId":"b2","netns":"2","state":"LIVE","wire":"tcx"}`
	node2Off  = `{"name":"two","bootId":"b2","netns":"2","state":"DISCONNECTED","wire":"tcx"}`
	node2Gone = `{"name":"two","bootId":"b2","netns":"2"}`
	bookmark  = `{"result":{"type":"BOOKMARK"}}` + "\n"
)

// nodeEvents returns events of one type about nodes.
func nodeEvents(kind string, nodes ...string) (lines string) {
	for _, node := range nodes {
		lines += `{"result":{"type":"` + kind + `","node":` + node + "}}\n"
	}
	return lines
}

func TestNodeWatch(t *testing.T) {
	tries := []try{
		{status: 200, body: nodeEvents("ADDED", node1, node2) + bookmark + nodeEvents("UPDATED", node2Off, node2, node1Lag) + bookmark},
		{status: 200, body: `{"result":{"type":"LOST"}}` + "\n" + nodeEvents("ADDED", node1Ill) + bookmark + nodeEvents("ADDED", node2) + nodeEvents("REMOVED", node2Gone)},
	}
	code, lines, c := watchNodes(t, tries)
	want := []string{
		"EVENT NAME STATE VERSION KERNEL WIRE LOST PROBLEMS",
		"ADDED one LIVE - - tcx 0 -",
		"ADDED two LIVE - - tcx 0 -",
		"UPDATED two DISCONNECTED - - tcx 0 -",
		"UPDATED two LIVE - - tcx 0 -",
		"UPDATED one LIVE - - off 0 frames are not seen",
		"REMOVED two LIVE - - tcx 0 -",
		"ADDED two LIVE - - tcx 0 -",
		"REMOVED two LIVE - - tcx 0 -",
	}
	var got []string
	for _, line := range lines {
		got = append(got, strings.Join(strings.Fields(line)[1:], " "))
	}
	if code != 0 || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got exit code %d and\n%s\nwant 0 and\n%s\nstderr: %s", code, strings.Join(got, "\n"), strings.Join(want, "\n"), &c.stderr)
	}
}

func TestNodeWatchAsJSONHasOneObjectALine(t *testing.T) {
	_, lines, _ := watchNodes(t, []try{
		{status: 200, body: nodeEvents("ADDED", node1, node2) + bookmark + nodeEvents("UPDATED", node2Off, node1Lag,
			strings.Replace(node1Lag, "0.002s", "0.003s", 1)) + nodeEvents("REMOVED", node2Gone)}, // the third is no change
	}, "-o", "json")
	want := []string{
		`{"type":"ADDED","node":{"name":"one",`, `{"type":"ADDED","node":{"name":"two",`,
		`{"type":"UPDATED","node":{"name":"two","state":"DISCONNECTED"`, `{"type":"UPDATED","node":{"name":"one",`, `{"type":"REMOVED","node":{"name":"two",`,
	}
	if len(lines) != len(want) {
		t.Fatalf("got %q, want %d lines", lines, len(want))
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("got line %s, want it to begin with %s", lines[i], want[i])
		}
	}
}

func TestNodeWatchEndsWhenTheServerRefuses(t *testing.T) {
	code, _, c := watchNodes(t, []try{
		{status: 403, body: `{"code":7,"message":"cannot list nodes"}`},
	})
	if code != 1 || c.stderr.String() != "ipwitness: cannot list nodes\n" {
		t.Errorf("got exit code %d and %q, want 1 and the server's message", code, &c.stderr)
	}
}

// Changes of the aggregator's own problems are printed.
func TestNodeWatchShowsProblemsOfTheAggregator(t *testing.T) {
	const full = "acknowledgements cannot be written: no space left on device"
	ill := `{"result":{"type":"BOOKMARK","problems":["` + full + `"]}}` + "\n"
	tries := func() []try {
		return []try{{status: 200, body: nodeEvents("ADDED", node1) + bookmark + ill + ill + bookmark}}
	}
	_, lines, c := watchNodes(t, tries())
	if got, want := c.stderr.String(), "Problem of the aggregator: "+full+"\nThe aggregator no longer has problems.\n"; !strings.HasPrefix(got, want) || len(lines) != 2 {
		t.Errorf("got %q and %q, want %q first and one node", got, lines, want)
	}
	_, lines, _ = watchNodes(t, tries(), "-o", "json")
	if len(lines) != 3 || lines[1] != `{"type":"BOOKMARK","problems":["`+full+`"]}` || lines[2] != `{"type":"BOOKMARK","problems":[]}` {
		t.Errorf("got %q, want the beginning and the end of the problem", lines)
	}
}

func TestOneNode(t *testing.T) {
	one := &pb.Node{Name: "one", BootId: "b1", Netns: "1", State: pb.Node_LIVE, Wire: "tcx", Ports: 3, Kernel: "6.12.1"}
	h := handler{
		"/v1/nodes/one": ok(one),
		"/v1/nodes/":    func(*http.Request) (int, string) { return http.StatusNotFound, `{"code":5,"message":"no such node"}` },
		"/v1/nodes":     ok(&pb.ListNodesResponse{Nodes: []*pb.Node{one}, Coverage: &pb.Coverage{Expected: 2, Heard: 1, SilentNodes: []string{"silent"}}}),
	}
	for _, test := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"nodes one", 0, "The agent of node one is connected.\n", ""},
		{"nodes one -o json", 0, `{
  "name": "one",`, ""},
		{"nodes two", 1, "", "ipwitness: nothing has the ID or name \"two\": 'ipwitness owners', 'ipwitness nodes' and 'ipwitness incidents' list what is known\n"},
		{"nodes -w two", 1, "", "ipwitness: there is no node \"two\": the known nodes are one, silent\n"},
		{"nodes silent", 1, "", "ipwitness: no agent has reported from node \"silent\" yet\n"},
		{"nodes one two", 1, "", "ipwitness: nodes takes one argument, an ADDRESS, CIDR, MAC, ID, NODE, NAMESPACE/POD or a part of a NAME, not 2: one two\nRun 'ipwitness nodes --help' for usage.\n"},
	} {
		c := serve(t, h)
		c.run(t, test.code, strings.Fields(test.args)...)
		if got := c.stdout.String(); !strings.HasPrefix(got, test.stdout) || test.stdout == "" && got != "" {
			t.Errorf("%s: got\n%s\nwant\n%s", test.args, got, test.stdout)
		}
		c.wantStderr(t, test.stderr)
	}

	var asked string
	h["/v1/nodes:watch"] = func(r *http.Request) (int, string) {
		asked = r.URL.RawQuery
		return http.StatusForbidden, `{"code":7,"message":"enough"}`
	}
	serve(t, h).run(t, 1, "nodes", "-w", "one")
	if asked != "name=one" {
		t.Errorf("got the query %q, want the name of the node", asked)
	}
	c := serve(t, h)
	c.run(t, 0, "__complete", "nodes", "")
	if got := c.stdout.String(); !strings.HasPrefix(got, "one") {
		t.Errorf("got completions %q, want the nodes", got)
	}
}
