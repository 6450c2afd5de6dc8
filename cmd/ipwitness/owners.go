package main

import (
	"context"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newOwners(sys system) *cobra.Command {
	q := &query{sys: sys}
	var watch bool
	var narrow narrowing
	var at moment
	var linkLocal bool
	cmd := &cobra.Command{
		Use:   "owners [ADDRESS|CIDR|NAMESPACE/POD|MAC] [flags]",
		Short: "List the owners of addresses",
		Long: `List the current owners of addresses, as seen in the kernels and on the wire.

Owners can also be selected by the name in the WORKLOAD column (container/NAME,
host/NODE), and pods of the namespace that --namespace selects by their name alone.

CONFLICT is the state of the conflict that an owner takes part in, or "shared" if another
listed owner has the address without a conflict; 'explain ADDRESS' says why. Tables leave
out link-local addresses that are in no conflict, unless --link-local is set or an
address or prefix is selected.

The filters can be combined: an owner must match all of them.

With --at, list the owners at a time in the past.
` + timesHelp,
		Example: `
  ipwitness owners
  ipwitness owners 10.244.0.7 -o wide
  ipwitness owners 10.244.0.0/16 --watch
  ipwitness owners default/web-1 -o json
  ipwitness owners web-1 -n default
  ipwitness owners --node node-7 --state stale
  ipwitness owners -n kube-system --scope network --cidr 10.244.0.0/16
  ipwitness owners --sort-by age --no-headers
  ipwitness owners -n shop -o jsonpath='{range .owners[*]}{.node} {.address}{"\n"}{end}'
  ipwitness owners 10.244.0.7 --at "yesterday 14:03"`,
		Args:              atMostOne("an ADDRESS, CIDR, NAMESPACE/POD or MAC"),
		ValidArgsFunction: q.completeArgument(&narrow, pods, ownerAddresses),
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, err := narrow.selector(slices.Concat(args, []string{""})[0])
			if err != nil {
				return err
			}
			if sel.query == nil {
				sel.query = url.Values{}
			}
			if err := narrow.ask(sel.query); err != nil {
				return err
			}
			q.within(sel.query)
			switch {
			case watch && q.format == show.FormatCSV:
				return errCSVWatch
			case watch && q.sortBy != "":
				return errSortWatch
			case watch && at.set():
				return errWatchAt
			case watch:
				return q.watchOwners(cmd.Context(), sel)
			}
			return q.owners(cmd.Context(), sel, &at, linkLocal)
		},
	}
	q.addListFlags(cmd)
	q.addTableFlags(cmd, "owners", show.OwnerOrders())
	watchFlag(cmd, &watch)
	at.addFlag(cmd, sys)
	q.addClusterFlag(cmd, "owners")
	narrow.addFlags(cmd, "owners", "node", "namespace", "workload", "cidr", "mac", "scope")
	narrow.ownerState(cmd)
	q.completeFilters(cmd, &narrow)
	cmd.Flags().BoolVar(&linkLocal, "link-local", false, "include link-local addresses (fe80::/10, 169.254.0.0/16) in the table")
	return cmd
}

// watchFlag adds -w.
func watchFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVarP(to, "watch", "w", false, "continue with every change until Ctrl-C")
}

func (q *query) owners(ctx context.Context, sel selector, at *moment, linkLocal bool) error {
	var owners []*pb.Owner
	filtered := len(sel.query) > 0
	at.ask(sel.query)
	coverage, err := pages(ctx, q.client(), "/v1/owners", sel.query, (*pb.ListOwnersResponse)(nil), func(page *pb.ListOwnersResponse) {
		at.read(page)
		for _, o := range page.GetOwners() {
			if sel.keep(o) {
				owners = append(owners, o)
			}
		}
	})
	if err != nil {
		return err
	}
	if len(owners) == 0 && !at.set() {
		if err := q.checkNode(ctx, sel.query.Get("node")); err != nil {
			return err
		}
	}
	show.SortOwners(owners, q.sortBy)
	q.warn(coverage)
	q.noteMoment(at)
	var marks *show.Marks
	if len(owners) > 0 && (!q.format.ForPrograms() || q.format == show.FormatCSV) {
		if marks, err = q.marks(ctx, owners, sel, at); err != nil {
			q.note("Warning: owners in conflict are not marked, because the conflicts cannot be listed: %s", err)
		}
	}
	switch {
	case q.format.ForPrograms():
		basis := at.basis(coverage)
		basis.Marks = marks
		return show.List(q.sys.stdout, q.format, "owners", owners, basis)
	case len(owners) == 0 && sel.what != "":
		q.note("No owner %s.", sel.what)
		return nil
	case len(owners) == 0 && filtered:
		q.note("No owner matches.")
		return nil
	case len(owners) == 0 && at.set():
		q.note("No owners.")
		return nil
	case len(owners) == 0:
		q.note("No owners: no agent has reported an address yet. '%s nodes' lists the agents.", q.sys.program)
		return nil
	}
	if !linkLocal && sel.query.Get("address") == "" && sel.query.Get("cidr") == "" {
		others := marks.WithoutLinkLocal(owners)
		if left := len(owners) - len(others); left > 0 {
			q.note("%s left out: --link-local shows them.", show.Count(left, "link-local address is", "link-local addresses are"))
		}
		if owners = others; len(owners) == 0 {
			return nil
		}
	}
	if err := show.Owners(q.sys.stdout, owners, marks, q.layout(), at.now(q.sys)); err != nil {
		return err
	}
	for _, o := range owners {
		if text := show.Previous(o, at.now(q.sys)); text != "" {
			q.note("%s", text)
		}
	}
	return nil
}

// marks requests the conflicts of the selected addresses.
func (q *query) marks(ctx context.Context, owners []*pb.Owner, sel selector, at *moment) (*show.Marks, error) {
	ask := url.Values{}
	for _, name := range []string{"address", "cidr"} { // an owner in conflict has other owners, which may not match the other filters
		if text := sel.query.Get(name); text != "" {
			ask.Set(name, text)
		}
	}
	at.ask(q.within(ask))
	var conflicts []*pb.Conflict
	_, err := pages(ctx, q.client(), "/v1/conflicts", ask, (*pb.ListConflictsResponse)(nil), func(page *pb.ListConflictsResponse) {
		conflicts = append(conflicts, page.GetConflicts()...)
	})
	if err != nil {
		return nil, err
	}
	return show.NewMarks(owners, conflicts), nil
}

func (q *query) watchOwners(ctx context.Context, sel selector) error {
	return followTable(ctx, q, "/v1/owners:watch", sel.query, show.NewOwnerWatch(q.sys.stdout, q.layout()), "owner",
		(*pb.WatchOwnersResponse).GetOwner, sel.keep, nil)
}
