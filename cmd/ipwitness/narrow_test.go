package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestFiltersAreParametersOfTheRequest(t *testing.T) {
	for args, want := range map[string]string{
		"owners -n shop --scope Network/pods --cidr 10.1.2.3/16 --mac 02-00-00-00-00-01 --node n1 --state live": "/v1/owners?cidr=10.1.2.3/16&mac=02-00-00-00-00-01&namespace=shop&node=n1&scope=Network/pods&state=live",

		"conflicts --namespace shop --scope link --cause split-brain --cidr fd00::/64": "/v1/conflicts?cause=split-brain&cidr=fd00::/64&namespace=shop&scope=link",

		"owners shop/web -n shop":                          "/v1/owners?about=shop/web&namespace=shop",
		"owners --workload shop/web -n shop":               "/v1/owners?namespace=shop&pod=web",
		"owners 02:00:00:00:00:0A --mac 02-00-00-00-00-0a": "/v1/owners?about=02:00:00:00:00:0A&mac=02-00-00-00-00-0a",
		"owners 10.1.0.0/16 --cidr 10.1.2.3/16":            "/v1/owners?about=10.1.0.0/16&cidr=10.1.2.3/16",
		"owners --sort-by age --no-headers":                "/v1/owners?",
		"audit -n shop --node n1":                          "/v1/findings?namespace=shop&node=n1",
		"history -n shop --node n1":                        "/v1/events?namespace=shop&node=n1",
		"history 10.0.0.1 -n shop --cidr 10.0.0.0/8":       "/v1/events?about=10.0.0.1&cidr=10.0.0.0/8&namespace=shop",
	} {
		t.Run(args, func(t *testing.T) {
			var asked string
			h := audited(finding("abc", "leaked", "10.0.0.7", pb.Finding_WARNING))
			note := func(answer func(*http.Request) (int, string)) func(*http.Request) (int, string) {
				return func(r *http.Request) (int, string) {
					if text, err := url.QueryUnescape(r.URL.RawQuery); err == nil && asked == "" {
						asked = r.URL.Path + "?" + text
					}
					return answer(r)
				}
			}
			h["/v1/owners"] = note(ok(&pb.ListOwnersResponse{Owners: []*pb.Owner{{Address: "10.0.0.7"}}}))
			h["/v1/conflicts"] = note(ok(&pb.ListConflictsResponse{Conflicts: []*pb.Conflict{conflict("abc", pb.Conflict_CONFIRMED)}}))
			h["/v1/findings"] = note(h["/v1/findings"])
			h["/v1/events"] = note(ok(&pb.ListEventsResponse{}))
			c := serve(t, h)
			c.run(t, 0, strings.Fields(args)...)
			if asked != want {
				t.Errorf("got the request %s, want %s", asked, want)
			}
		})
	}
}

func TestFiltersThatCannotMatchAreRefused(t *testing.T) {
	c := serve(t, audited())
	for args, want := range map[string]string{
		"owners --state lively":              `--state: "lively" is not a state: use one of disconnected, live, stale`,
		"owners --cidr=":                     "--cidr: it is empty: give a value, or leave the flag out",
		"owners --mac=":                      "--mac: it is empty: give a value, or leave the flag out",
		"conflicts --scope=":                 "--scope: it is empty: give a value, or leave the flag out",
		"owners -n Shop":                     `--namespace: "Shop" is not the name of a namespace: write it like kube-system`,
		"owners --sort-by name":              `--sort-by: "name" is not an order of owners: use one of address, age, interface, node, scope, state, workload`,
		"owners --sort-by age -w":            "--sort-by and --watch cannot be combined, because a watch shows changes in the order of their time: remove one of them",
		"owners --workload shop -n red":      "--namespace selects the namespace red, but shop is also selected: remove one of them",
		"conflicts --sort-by age":            `--sort-by: "age" is not an order of conflicts: use one of address, cause, id, owners, scope, since, state`,
		"conflicts --cause split-brian":      `--cause: "split-brian" is not a cause: use one of address-taken-along, cloned-machine, `,
		"conflicts --workload shop/a -n red": "--namespace selects the namespace red, but shop is also selected: remove one of them",
		"audit --node node-3":                `there is no node "node-3": the known nodes are node-1, node-2`,
	} {
		c.stderr.Reset()
		c.run(t, 1, strings.Fields(args)...)
		if got := c.stderr.String(); !strings.HasPrefix(got, "ipwitness: "+want) {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
}

func TestAnEmptyListNamesTheNodesIfTheNodeIsUnknown(t *testing.T) {
	seen := audited()
	seen["/v1/owners"], seen["/v1/conflicts"] = ok(&pb.ListOwnersResponse{}), ok(&pb.ListConflictsResponse{})
	unseen := audited()
	unseen["/v1/owners"], unseen["/v1/conflicts"] = seen["/v1/owners"], seen["/v1/conflicts"]
	unseen["/v1/nodes"] = ok(&pb.ListNodesResponse{Nodes: []*pb.Node{{Name: "node-1"}}, Coverage: oneSilent})
	for _, command := range []string{"owners", "conflicts"} {
		for _, test := range []struct {
			server handler
			node   string
			code   int
			want   string
		}{
			{seen, "node-1", 0, "matches these filters."},
			{seen, "node-9", 1, `there is no node "node-9": the known nodes are node-1, node-2`},
			{unseen, "node-3", 0, "matches these filters."}, // disconnected
			{unseen, "node-9", 0, `No node "node-9" is known so far: the known nodes are node-1, node-3`},
		} {
			c := serve(t, test.server)
			c.run(t, test.code, command, "--node", test.node)
			if got := c.stderr.String(); !strings.Contains(got, test.want) {
				t.Errorf("%s --node %s: got %q, want %q in it", command, test.node, got, test.want)
			}
		}
	}
}

func TestTablesAreSortedAndHaveNoHeaderIfAsked(t *testing.T) {
	at := func(address, node string, age int64) *pb.Owner {
		return &pb.Owner{Address: address, Node: node, FirstSeen: &timestamppb.Timestamp{Seconds: now.Unix() - age}}
	}
	one, two := conflict("one", pb.Conflict_CONFIRMED), conflict("two", pb.Conflict_SUSPECTED)
	one.Address, two.Address = "10.0.0.10", "10.0.0.9"
	c := serve(t, handler{
		"/v1/owners":    ok(&pb.ListOwnersResponse{Owners: []*pb.Owner{at("10.0.0.10", "b", 60), at("10.0.0.9", "a", 30), at("10.0.0.8", "c", 90)}}),
		"/v1/conflicts": ok(&pb.ListConflictsResponse{Conflicts: []*pb.Conflict{one, two}}),
	})
	for args, want := range map[string]string{
		"owners":                                 "ADDRESS 10.0.0.10 10.0.0.9 10.0.0.8",
		"owners --no-headers":                    "10.0.0.10 10.0.0.9 10.0.0.8",
		"owners --sort-by address --no-headers":  "10.0.0.8 10.0.0.9 10.0.0.10",
		"owners --sort-by age --no-headers":      "10.0.0.8 10.0.0.10 10.0.0.9",
		"owners --sort-by node":                  "ADDRESS 10.0.0.9 10.0.0.10 10.0.0.8",
		"conflicts --no-headers":                 "one two",
		"conflicts --sort-by address":            "ID two one",
		"conflicts --sort-by state --no-headers": "two one",
	} {
		c.stdout.Reset()
		c.run(t, 0, strings.Fields(args)...)
		var first []string
		for line := range strings.Lines(c.stdout.String()) {
			first = append(first, strings.Fields(line)[0])
		}
		if got := strings.Join(first, " "); got != want {
			t.Errorf("%s: got %s, want %s", args, got, want)
		}
	}
}
