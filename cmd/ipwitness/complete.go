package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/forward"
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
	filters *narrowing // nil if the command has none
	begun   string     // what the user has typed
	found   []cobra.Completion
	seen    map[string]bool
}

// source adds the values of one kind to candidates. Errors end it, and are not shown.
type source func(ctx context.Context, c *candidates)

// add adds a value if it continues what the user has typed. It returns false if there are enough.
func (c *candidates) add(value, about string) bool {
	if strings.HasPrefix(value, c.begun) && !c.seen[value] && value != "" {
		c.seen[value] = true
		c.found = append(c.found, cobra.CompletionWithDesc(form.Visible(value), form.Visible(about)))
	}
	return len(c.found) < mostCandidates
}

// complete returns a completion with the values that the server knows. Without a server, there are
// none, and nothing is printed.
func (q *query) complete(filters *narrowing, sources ...source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if err := placed(cmd, func() error { return cli.ApplySettings(cmd, q.sys.getenv) }); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		quiet, timeout := *q, completeTimeout
		quiet.sys.stderr = io.Discard
		if q.portForward {
			timeout = completeForwardTimeout
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		c := &candidates{query: &quiet, filters: filters, begun: begun, seen: map[string]bool{}}
		for _, s := range sources {
			s(ctx, c)
		}
		return c.found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeArgument is like complete, for the only argument of a command.
func (q *query) completeArgument(filters *narrowing, sources ...source) cobra.CompletionFunc {
	complete := q.complete(filters, sources...)
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}

// completeFilters completes the values of filters that the server knows.
func (q *query) completeFilters(cmd *cobra.Command, n *narrowing) {
	for name, s := range map[string]source{"node": nodeNames, "namespace": namespaces, "workload": workloads, "scope": scopes} {
		if cmd.Flags().Lookup(name) != nil {
			cli.CompleteFlagWith(cmd, name, q.complete(n, s))
		}
	}
}

// owners passes the owners that match to take, until it returns false.
func (c *candidates) owners(ctx context.Context, ask url.Values, take func(*pb.Owner) bool) {
	ask.Set("page_size", scanPage)
	for {
		page := &pb.ListOwnersResponse{}
		if err := c.client().get(ctx, "/v1/owners", ask, page); err != nil {
			return
		}
		for _, o := range page.GetOwners() {
			if !take(o) {
				return
			}
		}
		if page.GetNextPageToken() == "" {
			return
		}
		ask.Set("page_token", page.GetNextPageToken())
	}
}

// narrowed returns the parameters of the filters that are set, except some.
func (c *candidates) narrowed(except ...string) url.Values {
	ask := url.Values{}
	if c.filters == nil || c.filters.ask(ask) != nil {
		return url.Values{}
	}
	maps.DeleteFunc(ask, func(name string, _ []string) bool { return slices.Contains(except, name) })
	return ask
}

// conflicts passes the conflicts to take, until it returns false.
func (c *candidates) conflicts(ctx context.Context, take func(*pb.Conflict) bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, _ = pages(ctx, c.client(), "/v1/conflicts", nil, (*pb.ListConflictsResponse)(nil), func(page *pb.ListConflictsResponse) {
		for _, one := range page.GetConflicts() {
			if !take(one) {
				cancel() // there are enough
				return
			}
		}
	})
}

// aboutConflict describes a conflict beside its id or address.
func aboutConflict(of *pb.Conflict) string {
	return fmt.Sprintf("%s: %s", show.ConflictState(of), show.ConflictNames(of))
}

// conflictIDs adds the ids of active conflicts.
func conflictIDs(ctx context.Context, c *candidates) {
	c.conflicts(ctx, func(one *pb.Conflict) bool {
		return c.add(one.GetId(), fmt.Sprintf("%s %s: %s", show.ConflictState(one), one.GetAddress(), show.ConflictNames(one)))
	})
}

// conflictAddresses adds the addresses of active conflicts, once an address is begun.
func conflictAddresses(ctx context.Context, c *candidates) {
	if c.begun == "" { // the ids have the addresses beside them
		return
	}
	c.conflicts(ctx, func(one *pb.Conflict) bool { return c.add(one.GetAddress(), aboutConflict(one)) })
}

// ownerAddresses adds the addresses of owners, once an address is begun.
func ownerAddresses(ctx context.Context, c *candidates) {
	if c.begun == "" || strings.Trim(c.begun, "0123456789abcdefABCDEF.:") != "" {
		return
	}
	ask := c.narrowed()
	if ask.Get("cidr") == "" {
		if prefix := begunPrefix(c.begun); prefix.IsValid() {
			ask.Set("cidr", prefix.String())
		}
	}
	c.owners(ctx, ask, func(o *pb.Owner) bool { return c.add(o.GetAddress(), show.Name(o)) })
}

// begunPrefix returns the prefix of all addresses that begin with a text, as far as its whole octets or
// groups say.
func begunPrefix(begun string) netip.Prefix {
	if at := strings.LastIndexByte(begun, '.'); at > 0 && !strings.Contains(begun, ":") {
		octets := strings.Split(begun[:at], ".")
		for len(octets) < 4 {
			octets = append(octets, "0")
		}
		return prefixOf(strings.Join(octets, "."), 8*(strings.Count(begun[:at], ".")+1))
	}
	if at := strings.LastIndexByte(begun, ':'); at > 0 && !strings.Contains(begun, "::") {
		return prefixOf(begun[:at]+"::", 16*(strings.Count(begun[:at], ":")+1))
	}
	return netip.Prefix{}
}

func prefixOf(address string, bits int) netip.Prefix {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, bits)
}

// pods adds pods as NAMESPACE/POD, or by their names if a namespace is selected.
func pods(ctx context.Context, c *candidates) {
	ask := c.narrowed()
	namespace, _, begun := strings.Cut(c.begun, "/")
	short := ask.Get("namespace") != "" && !begun
	if begun {
		ask.Set("namespace", namespace)
	}
	c.owners(ctx, ask, func(o *pb.Owner) bool {
		w := o.GetWorkload()
		if w.GetKind() != pb.Workload_POD || w.GetName() == "" {
			return true
		}
		name := w.GetNamespace() + "/" + w.GetName()
		if short {
			name = w.GetName()
		}
		return c.add(name, o.GetAddress()+" on "+o.GetNode())
	})
}

// longPods adds pods as NAMESPACE/POD.
func longPods(ctx context.Context, c *candidates) {
	without := *c
	without.filters = nil
	pods(ctx, &without)
	c.found = without.found
}

// namespaces adds the Kubernetes namespaces of owners.
func namespaces(ctx context.Context, c *candidates) {
	c.owners(ctx, c.narrowed("namespace", "pod"), func(o *pb.Owner) bool { return c.add(o.GetWorkload().GetNamespace(), "") })
}

// workloads adds namespaces and, once one is complete, the pods in it.
func workloads(ctx context.Context, c *candidates) {
	if strings.Contains(c.begun, "/") {
		longPods(ctx, c)
		return
	}
	namespaces(ctx, c)
}

// nodeNames adds the names of nodes.
func nodeNames(ctx context.Context, c *candidates) {
	var list pb.ListNodesResponse
	if err := c.client().get(ctx, "/v1/nodes", nil, &list); err != nil {
		return
	}
	for _, n := range list.GetNodes() {
		c.add(n.GetName(), n.GetState().String())
	}
	for _, name := range list.GetCoverage().GetSilentNodes() {
		c.add(name, "disconnected")
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

// findingIDs adds the ids of findings, the most severe first.
func findingIDs(ctx context.Context, c *candidates) {
	var findings []*pb.Finding
	_, _ = pages(ctx, c.client(), "/v1/findings", c.narrowed(), (*pb.ListFindingsResponse)(nil), func(page *pb.ListFindingsResponse) {
		findings = append(findings, page.GetFindings()...)
	})
	show.SortFindings(findings)
	for _, f := range findings {
		if !c.add(f.GetId(), show.FindingLine(f)) {
			return
		}
	}
	if c.begun == "" {
		return
	}
	for _, f := range findings {
		if !c.add(f.GetAddress(), show.FindingLine(f)) {
			return
		}
	}
}

// completeContexts completes the contexts of the kubeconfig.
func (q *query) completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return forward.Contexts(q.forward.Kubeconfig), cobra.ShellCompDirectiveNoFileComp
}

// completeFormats completes formats. A template follows those that have one.
func completeFormats(formats []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		directive := cobra.ShellCompDirectiveNoFileComp
		var found []cobra.Completion
		for _, f := range append(slices.Clone(formats), show.JSONPath) {
			if strings.HasPrefix(f, begun) {
				found = append(found, f)
			}
		}
		if len(found) == 1 && strings.HasSuffix(found[0], "=") {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return found, directive
	}
}
