package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/top"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestTopNeedsATerminal(t *testing.T) {
	c := serve(t, handler{"/v1/nodes": ok(&pb.ListNodesResponse{})})
	c.run(t, 1, "top")
	c.wantStderr(t, "ipwitness: top needs a terminal that it can draw on: use 'ipwitness conflicts -w', which prints changes line by line\n")

	c = serve(t, handler{})
	c.terminal, c.env["TERM"] = true, "dumb"
	c.run(t, 1, "top")
	if got := c.stderr.String(); !strings.Contains(got, "top needs a terminal that it can draw on") {
		t.Errorf("got %q with TERM=dumb, want that top needs a terminal", got)
	}
}

func TestTopReportsAServerThatCannotBeReachedBeforeItDraws(t *testing.T) {
	c := newConsole()
	c.terminal = true
	c.run(t, 1, "top", "--server", "http://127.0.0.1:1")
	if got := c.stderr.String(); !strings.Contains(got, "cannot reach http://127.0.0.1:1") || c.stdout.Len() > 0 {
		t.Errorf("got %q and %q, want that the server cannot be reached and nothing on stdout", got, c.stdout.String())
	}
}

func TestFiltersOfTopAreParsed(t *testing.T) {
	shop := url.Values{"namespace": {"shop"}}
	tests := map[string]struct {
		filter string
		ask    url.Values
		want   string // parameters, or the error
	}{
		"empty":                 {"", nil, ""},
		"an address":            {"10.0.0.7", nil, "about=10.0.0.7"},
		"a prefix and a node":   {" 10.0.0.0/24  node=n1 ", nil, "about=10.0.0.0%2F24&node=n1"},
		"a container":           {"container/web state=stale", nil, "about=container%2Fweb&state=stale"},
		"two things":            {"10.0.0.0/24 web", nil, "about=10.0.0.0%2F24+web"},
		"within a prefix":       {"web", url.Values{"about": {"10.0.0.0/24"}}, "about=10.0.0.0%2F24+web"},
		"within the flags":      {"node=n1", shop, "namespace=shop&node=n1"},
		"the same as a flag":    {"namespace=shop", shop, "namespace=shop"},
		"other than a flag":     {"namespace=red", shop, "the namespace is selected twice, as shop and as red"},
		"an unknown parameter":  {"name=web", nil, `"name=web" is not a filter: use node=VALUE, namespace=VALUE, scope=VALUE, state=VALUE`},
		"a parameter of no use": {"node=", nil, `"node=" is not a filter: use node=VALUE, namespace=VALUE, scope=VALUE, state=VALUE`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ask := test.ask
			if ask == nil {
				ask = url.Values{}
			}
			query, err := parseFilter(test.filter, ask)
			got := query.Encode()
			if err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// topServer returns the server of top for a console.
func topServer(c *console, ask url.Values) *top.Server {
	command := &query{sys: c.system, server: c.env["IPWITNESS_SERVER"]}
	return command.shown(ask)
}

func TestTopIsToldOfEachConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		bookmark := `{"result":{"type":"BOOKMARK","resumeToken":"t"}}` + "\n"
		s := &script{
			begin: time.Now(), cancel: cancel,
			tries: []try{{err: fmt.Errorf("refused")}, {status: 200, body: bookmark}, {status: 200, body: bookmark}, {status: 403, body: `{"code":7,"message":"denied"}`}},
		}
		c := newConsole()
		c.transport, c.env["IPWITNESS_SERVER"] = s, "http://127.0.0.1:1"
		var said []string
		err := topServer(c, url.Values{}).WatchConflicts(ctx, top.Stream[*pb.WatchConflictsResponse]{
			Connected:    func(whole bool) { said = append(said, fmt.Sprint("connected ", whole)) },
			Disconnected: func(err error) { said = append(said, "disconnected: "+err.Error()) },
			Event:        func(e *pb.WatchConflictsResponse) { said = append(said, e.GetType().String()) },
		})
		want := []string{
			"disconnected: refused",
			"connected true", "BOOKMARK", "disconnected: the server closed the connection",
			"connected false", "BOOKMARK", "disconnected: the server closed the connection",
		}
		if !slices.Equal(said, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
		}
		if err == nil || err.Error() != "denied" {
			t.Errorf("got %v, want the rejection", err)
		}
		if got := c.stderr.String(); got != "" {
			t.Errorf("got %q on stderr, want nothing: the screen would be destroyed", got)
		}
	})
}
