package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// completeTimeout keeps the shell responsive if there is no server. A port-forward needs several
	// requests.
	completeTimeout        = time.Second
	completeForwardTimeout = 2 * time.Second
	// mostCandidates is the maximum number of completions.
	mostCandidates = 100
	// scanPage is the number of owners on a page while candidates are searched.
	scanPage = "500"
)

// candidates gathers completions of a text.
type candidates struct {
	*query
	begun string // what the user has typed
	found []cobra.Completion
	seen  map[string]bool
	// near, if set, is a name: found are names that resemble it, and known is set if it is one, or a part of one.
	near  string
	known bool
}

// source adds the values of one kind to candidates. Errors end it, and are not shown.
type source func(ctx context.Context, c *candidates)

// add adds a value if it continues what the user has typed. It returns false if there are enough.
func (c *candidates) add(value, about string) bool {
	if c.near != "" {
		if c.known = c.known || strings.Contains(value, c.near); similar(value, c.near) && !c.seen[value] {
			c.seen[value] = true
			c.found = append(c.found, form.Visible(value))
		}
		return !c.known
	}
	if strings.HasPrefix(value, c.begun) && !c.seen[value] && value != "" {
		c.seen[value] = true
		c.found = append(c.found, cobra.CompletionWithDesc(form.Visible(value), form.Visible(about)))
	}
	return len(c.found) < mostCandidates
}

// complete returns a completion with the values that the server knows. Without a server, there are
// none, and nothing is printed.
func (q *query) complete(sources ...source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if err := settle(cmd, q.sys.getenv); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		quiet, timeout := *q, completeTimeout
		quiet.sys.stderr = io.Discard
		if q.portForward {
			timeout = completeForwardTimeout
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		c := &candidates{query: &quiet, begun: begun, seen: map[string]bool{}}
		for _, s := range sources {
			s(ctx, c)
		}
		return c.found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeThing completes the only argument of a command: what it usually is, and once something is begun, everything that
// has a name.
func (q *query) completeThing(usual ...source) cobra.CompletionFunc {
	complete := q.complete(append(usual, func(ctx context.Context, c *candidates) {
		for _, s := range []source{conflictItems, incidentIDs, findingIDs, nodeNames, workloadNames, ownerAddresses} {
			if c.begun != "" && len(c.found) < mostCandidates {
				s(ctx, c)
			}
		}
	})...)
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}

// owners passes the owners that the parameters select to take, until it returns false.
func (c *candidates) owners(ctx context.Context, ask url.Values, take func(*pb.Owner) bool) {
	if c.near != "" { // the names of the first owners are enough
		var page pb.ListOwnersResponse
		if c.client().get(ctx, "/v1/owners", c.within(url.Values{"page_size": {"10000"}}), &page) == nil {
			for _, o := range page.GetOwners() {
				take(o)
			}
		}
		return
	}
	ask.Set("page_size", scanPage)
	_, _ = pages(ctx, c.client(), "/v1/owners", ask, func(page *pb.ListOwnersResponse) bool {
		return !slices.ContainsFunc(page.GetOwners(), func(o *pb.Owner) bool { return !take(o) })
	})
}

// narrowed returns the parameters of the filters that are set.
func (c *candidates) narrowed() url.Values {
	ask := url.Values{}
	if c.near != "" || c.filters.ask(ask) != nil {
		return url.Values{}
	}
	return ask
}

// conflictItems adds the ids of active conflicts and, once something is begun, their addresses.
func conflictItems(ctx context.Context, c *candidates) {
	_, _ = pages(ctx, c.client(), "/v1/conflicts", nil, func(page *pb.ListConflictsResponse) bool {
		return !slices.ContainsFunc(page.GetConflicts(), func(one *pb.Conflict) bool {
			state, names := show.ConflictState(one), show.ConflictNames(one)
			return !c.add(one.GetId(), fmt.Sprintf("%s %s: %s", state, one.GetAddress(), names)) ||
				c.begun != "" && !c.add(one.GetAddress(), fmt.Sprintf("%s: %s", state, names))
		})
	})
}

// ownerAddresses adds the addresses of owners, once an address is begun.
func ownerAddresses(ctx context.Context, c *candidates) {
	if c.begun != "" && strings.Trim(c.begun, "0123456789abcdefABCDEF.:") == "" {
		c.owners(ctx, c.narrowed(), func(o *pb.Owner) bool { return c.add(o.GetAddress(), pb.OwnerName(o)) })
	}
}

// workloadNames adds the names of owners or, if a namespace is selected and not begun, of the pods in it.
func workloadNames(ctx context.Context, c *candidates) {
	ask := c.narrowed()
	namespace, _, begun := strings.Cut(c.begun, "/")
	short := ask.Get("namespace") != "" && !begun
	if begun && namespaceName.MatchString(namespace) && !slices.Contains([]string{"container", "vm", "host", "netns", "process", "pod-uid"}, namespace) {
		ask.Set("namespace", namespace)
	}
	c.owners(ctx, ask, func(o *pb.Owner) bool {
		name := pb.OwnerName(o)
		switch w := o.GetWorkload(); {
		case w.GetKind() == pb.Workload_EXTERNAL, w.GetKind() == pb.Workload_HOST && c.near != "": // nodes have the names of hosts
			return true
		case short:
			name = w.GetName()
		}
		return c.add(name, o.GetAddress()+" on "+o.GetNode())
	})
}

// namespaces adds the Kubernetes namespaces of owners.
func namespaces(ctx context.Context, c *candidates) {
	ask := c.narrowed()
	ask.Del("namespace")
	ask.Del("pod")
	c.owners(ctx, ask, func(o *pb.Owner) bool { return c.add(o.GetWorkload().GetNamespace(), "") })
}

// workloads adds namespaces and, once one is complete, the pods in it.
func workloads(ctx context.Context, c *candidates) {
	if strings.Contains(c.begun, "/") {
		workloadNames(ctx, c)
	} else {
		namespaces(ctx, c)
	}
}

// nodeNames adds the names of nodes.
func nodeNames(ctx context.Context, c *candidates) {
	var list pb.ListNodesResponse
	if c.client().get(ctx, "/v1/nodes", nil, &list) != nil {
		return
	}
	for _, n := range list.GetNodes() {
		c.add(n.GetName(), n.GetState().String())
	}
	for _, name := range list.GetCoverage().GetSilentNodes() {
		c.add(name, "disconnected")
	}
}

// clusterNames adds the names of the clusters.
func clusterNames(ctx context.Context, c *candidates) {
	var list pb.ListClustersResponse
	if c.client().get(ctx, "/v1/clusters", nil, &list) != nil {
		return
	}
	for _, one := range list.GetClusters() {
		c.add(one.GetName(), one.GetState().String())
	}
}

// scopes adds the kinds of scopes and, once one is begun, the scopes of that kind.
func scopes(ctx context.Context, c *candidates) {
	kind, _, named := strings.Cut(c.begun, "/")
	if !named {
		for _, kind := range scopeKinds() {
			c.add(kind, "")
		}
		if !slices.Contains(scopeKinds(), c.begun) {
			return
		}
	}
	ask := c.narrowed()
	ask.Set("scope", kind)
	c.owners(ctx, ask, func(o *pb.Owner) bool {
		return c.add(strings.ToLower(o.GetScope().GetKind().String())+"/"+o.GetScope().GetName(), "")
	})
}

// incidentIDs adds the ids of incidents, the most urgent first.
func incidentIDs(ctx context.Context, c *candidates) {
	incidents, _, _ := c.incidents(ctx, nil)
	for _, i := range incidents {
		if !c.add(i.GetId(), show.IncidentLine(i)) {
			return
		}
	}
}

// findingIDs adds the ids of findings and, once something is begun, their addresses, the most severe first.
func findingIDs(ctx context.Context, c *candidates) {
	findings, _, _ := list(ctx, c.query, "/v1/findings", c.narrowed(), (*pb.ListFindingsResponse).GetFindings)
	show.SortFindings(findings)
	for _, f := range findings {
		if !c.add(f.GetId(), show.FindingLine(f)) || c.begun != "" && !c.add(f.GetAddress(), show.FindingLine(f)) {
			return
		}
	}
}
