package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/top"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newTop(sys system) *cobra.Command {
	c := &query{sys: sys}
	cmd := &cobra.Command{
		Use:               "top [flags]",
		Short:             "Show conflicts, findings, owners, nodes and incidents live, on the full screen",
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !sys.terminal || sys.getenv("TERM") == "dumb" {
				return fmt.Errorf("top needs a terminal that it can draw on: use '%s conflicts -w', which prints changes line by line", sys.program)
			}
			return c.top(cmd.Context())
		},
	}
	c.addServerFlags(cmd)
	c.addFilters(cmd, "conflicts, findings and owners", nil, "node", "namespace", "cidr")
	return cmd
}

// top shows the server until the user quits.
func (q *query) top(ctx context.Context) error {
	ask := url.Values{}
	if err := q.filters.ask(ask); err != nil {
		return err
	}
	// Before the screen is cleared, because this is likely to fail if the flags are wrong.
	if _, err := q.nodes(ctx); err != nil {
		return err
	}
	var environment []string // that describes the terminal
	for _, name := range []string{"TERM", "TERM_PROGRAM", "COLORTERM", "TMUX", "STY", "WT_SESSION", "SSH_TTY", "COLUMNS", "LINES"} {
		if value := q.sys.getenv(name); value != "" {
			environment = append(environment, name+"="+value)
		}
	}
	return top.Run(ctx, q.shown(ask), top.Config{
		In: q.sys.stdin, Out: q.sys.stdout,
		Program:     q.sys.program,
		Color:       q.color.on(q.sys),
		Environment: environment,
		Now:         q.sys.now,
	})
}

// ownersAtOnce is the number of owners on a page.
const ownersAtOnce = "500"

// shown returns the server that the flags select, restricted to what the parameters select.
func (q *query) shown(ask url.Values) *top.Server {
	client := q.client()
	return &top.Server{
		Name: client.base,
		WatchConflicts: func(ctx context.Context, to top.Stream[*pb.WatchConflictsResponse]) error {
			return stream(ctx, client, "/v1/conflicts:watch", ask, to)
		},
		WatchFindings: func(ctx context.Context, to top.Stream[*pb.WatchFindingsResponse]) error {
			return stream(ctx, client, "/v1/findings:watch", ask, to)
		},
		WatchIncidents: func(ctx context.Context, to top.Stream[*pb.WatchIncidentsResponse]) error {
			return stream(ctx, client, "/v1/incidents:watch", incidentsOf(ask), to)
		},
		Members: q.members,
		Get:     client.get,
		CheckFilter: func(filter string) error {
			_, err := parseFilter(filter, ask)
			return err
		},
		Matching: func(ctx context.Context, of, filter string) (map[string]bool, error) {
			if of == show.IncidentKind.Plural() {
				return matching(ctx, q, show.IncidentKind, filter, incidentsOf(ask), (*pb.ListIncidentsResponse).GetIncidents)
			}
			if of == show.FindingKind.Plural() {
				return matching(ctx, q, show.FindingKind, filter, ask, (*pb.ListFindingsResponse).GetFindings)
			}
			all := maps.Clone(ask)
			all.Set("all", "true") // resolved ones stay for a while
			return matching(ctx, q, show.ConflictKind, filter, all, (*pb.ListConflictsResponse).GetConflicts)
		},
		Owners: func(ctx context.Context, filter, token string) (*pb.ListOwnersResponse, error) {
			return ownersPage(ctx, client, ask, filter, token)
		},
	}
}

// incidentsOf returns the parameters of a request for incidents: those with an address in the prefix, on the node.
func incidentsOf(ask url.Values) url.Values {
	of := url.Values{}
	for name, to := range map[string]string{"node": "node", "cidr": "about"} {
		if value := ask.Get(name); value != "" {
			of.Set(to, value)
		}
	}
	return of
}

// stream follows a watch.
func stream[T watched](ctx context.Context, c *client, path string, ask url.Values, to top.Stream[T]) error {
	w := &watcher[T]{client: c, path: path, query: ask, connected: to.Connected, disconnected: to.Disconnected, event: func(e T) error {
		to.Event(e)
		return nil
	}}
	return w.run(ctx)
}

// matching returns the keys of the items of a kind that match a filter.
func matching[P paged, T proto.Message](ctx context.Context, q *query, kind show.Kind[T], filter string, ask url.Values, items func(P) []T) (map[string]bool, error) {
	ask, err := parseFilter(filter, ask)
	if err != nil {
		return nil, err
	}
	all, _, err := list(ctx, q, "/v1/"+kind.Plural(), ask, items)
	keys := map[string]bool{}
	for _, item := range all {
		keys[kind.Key(item)] = true
	}
	return keys, err
}

// parseFilter returns the parameters of a filter: things, or PARAMETER=VALUE.
func parseFilter(filter string, ask url.Values) (url.Values, error) {
	out := maps.Clone(ask)
	about := strings.Fields(ask.Get("about"))
	for word := range strings.FieldsSeq(filter) {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			about = append(about, word)
			continue
		}
		known := []string{"node", "namespace", "scope", "state"}
		if !slices.Contains(known, name) || value == "" {
			return out, fmt.Errorf("%q is not a filter: use %s=VALUE", word, strings.Join(known, "=VALUE, "))
		}
		if other := out.Get(name); other != "" && other != value {
			return out, fmt.Errorf("the %s is selected twice, as %s and as %s", name, other, value)
		}
		out.Set(name, value)
	}
	if len(about) > 0 {
		out.Set("about", strings.Join(about, " "))
	}
	return out, nil
}

// ownersPage requests a page of owners.
func ownersPage(ctx context.Context, c *client, ask url.Values, filter, token string) (*pb.ListOwnersResponse, error) {
	query, err := parseFilter(filter, ask)
	if err != nil {
		return nil, err
	}
	query.Set("page_size", ownersAtOnce)
	if token != "" {
		query.Set("page_token", token)
	}
	page := &pb.ListOwnersResponse{}
	return page, c.get(ctx, "/v1/owners", query, page)
}
