package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

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

func TestFiltersOfOwnersAreParsed(t *testing.T) {
	shop := url.Values{"namespace": {"shop"}}
	tests := map[string]struct {
		filter string
		ask    url.Values
		want   string // parameters, or the error
		name   string
	}{
		"empty":                 {"", nil, "", ""},
		"an address":            {"10.0.0.7", nil, "address=10.0.0.7", ""},
		"a prefix and a node":   {" 10.0.0.0/24  node=n1 ", nil, "cidr=10.0.0.0%2F24&node=n1", ""},
		"a pod":                 {"shop/web-1", nil, "namespace=shop&pod=web-1", ""},
		"a container":           {"container/web state=stale", nil, "state=stale", "container/web"},
		"within the flags":      {"node=n1", shop, "namespace=shop&node=n1", ""},
		"the same as a flag":    {"namespace=shop", shop, "namespace=shop", ""},
		"other than a flag":     {"namespace=red", shop, "the namespace is selected twice, as shop and as red", ""},
		"an unknown parameter":  {"name=web", nil, `"name=web" is not a filter: use node=VALUE, namespace=VALUE, scope=VALUE, state=VALUE`, ""},
		"a parameter of no use": {"node=", nil, `"node=" is not a filter: use node=VALUE, namespace=VALUE, scope=VALUE, state=VALUE`, ""},
		"a word":                {"web", nil, notSelector("web").Error(), ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ask := test.ask
			if ask == nil {
				ask = url.Values{}
			}
			sel, err := parseOwnerFilter(test.filter, ask)
			got := sel.query.Encode()
			if err != nil {
				got = err.Error()
			}
			if got != test.want || sel.name != test.name {
				t.Errorf("got %s and name %q, want %s and name %q", got, sel.name, test.want, test.name)
			}
		})
	}
}

// topServer returns the server of top for a console.
func topServer(c *console, ask url.Values) *top.Server {
	command := &query{sys: c.system, server: c.env["IPWITNESS_SERVER"]}
	return command.shown(ask)
}

func TestTopSkipsPagesWithoutASelectedContainer(t *testing.T) {
	container := func(name string) *pb.Owner {
		return &pb.Owner{Address: "10.0.0.7", Workload: &pb.Workload{Kind: pb.Workload_CONTAINER, Name: name}}
	}
	var asked []string
	c := serve(t, handler{"/v1/owners": func(r *http.Request) (int, string) {
		asked = append(asked, r.URL.RawQuery)
		page := &pb.ListOwnersResponse{Owners: []*pb.Owner{container("db")}, NextPageToken: "2"}
		switch r.URL.Query().Get("page_token") {
		case "2":
			page.NextPageToken = "3"
		case "3":
			page.Owners, page.NextPageToken = []*pb.Owner{container("db"), container("web")}, "4"
		}
		return http.StatusOK, protojson.Format(page)
	}})
	page, err := topServer(c, url.Values{}).Owners(t.Context(), "container/web", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(page.GetOwners()) != 1 || page.GetOwners()[0].GetWorkload().GetName() != "web" || page.GetNextPageToken() != "4" {
		t.Errorf("got %v, want web and the token of the page after it", page)
	}
	if want := []string{"page_size=500", "page_size=500&page_token=2", "page_size=500&page_token=3"}; !slices.Equal(asked, want) {
		t.Errorf("got requests %v, want %v", asked, want)
	}
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
