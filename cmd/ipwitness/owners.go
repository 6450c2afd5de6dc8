package main

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

type ownersCommand struct {
	query
	linkLocal bool
}

func newOwners(sys system) *cobra.Command {
	c := &ownersCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:               "owners [ADDRESS|CIDR|NAMESPACE/POD|MAC] [flags]",
		Short:             "List the owners of addresses",
		Args:              argument("an ADDRESS, CIDR, NAMESPACE/POD or MAC", ""),
		ValidArgsFunction: c.completeArgument(pods, ownerAddresses),
		RunE: func(cmd *cobra.Command, args []string) error {
			arg := strings.Join(args, "")
			sel, err := parseSelector(arg)
			if namespace := c.filters.get("namespace"); err != nil && namespace != "" && podName.MatchString(arg) {
				sel, err = parseSelector(namespace + "/" + arg)
			}
			if err := cmp.Or(err, c.checkWatch()); err != nil {
				return err
			}
			if err := c.filters.ask(sel.query); err != nil {
				return err
			}
			if c.watch {
				return tableWatch[*pb.WatchOwnersResponse, *pb.Owner]{
					kind: show.OwnerKind, ask: sel.query, item: (*pb.WatchOwnersResponse).GetOwner, keep: sel.keep,
				}.run(cmd.Context(), &c.query)
			}
			return c.list(cmd.Context(), sel)
		},
	}
	c.addListFlags(cmd)
	c.addTableFlags(cmd, "owners", show.OwnerKind.Orders)
	c.addWatchFlag(cmd)
	c.addAtFlag(cmd)
	c.addClusterFlag(cmd, "owners in the cluster")
	c.addFilters(cmd, "owners", pb.Owner_State_value, "node", "namespace", "workload", "cidr", "mac", "scope", "state")
	cmd.Flags().BoolVar(&c.linkLocal, "link-local", false, "include link-local addresses (fe80::/10, 169.254.0.0/16) in the table")
	return cmd
}

// list lists the selected owners.
func (c *ownersCommand) list(ctx context.Context, sel selector) error {
	owners, coverage, err := list(ctx, &c.query, "/v1/owners", sel.query, func(page *pb.ListOwnersResponse) []*pb.Owner {
		return slices.DeleteFunc(page.GetOwners(), func(o *pb.Owner) bool { return !sel.keep(o) })
	})
	if err != nil {
		return err
	}
	if len(owners) == 0 {
		if err := c.checkNode(ctx, sel.query.Get("node")); err != nil {
			return err
		}
	}
	show.OwnerKind.Sort(owners, c.sortBy)
	c.warn(coverage)
	var marks *show.Marks
	if len(owners) > 0 && (!c.format.ForPrograms() || c.format == show.FormatCSV) {
		ask := url.Values{}
		for _, name := range []string{"address", "cidr"} { // an owner in conflict has other owners, which may not match the other filters
			if text := sel.query.Get(name); text != "" {
				ask.Set(name, text)
			}
		}
		if conflicts, _, err := c.conflicts(ctx, ask); err == nil {
			marks = show.NewMarks(owners, conflicts)
		} else {
			c.note("Warning: owners in conflict are not marked, because the conflicts cannot be listed: %s", err)
		}
	}
	if c.format.ForPrograms() {
		return show.List(c.sys.stdout, c.format, marks.Kind(), owners, c.basis(coverage)...)
	}
	if len(owners) == 0 {
		switch {
		case sel.what != "":
			c.note("No owner %s.", sel.what)
		case c.filtered():
			c.note("No owner matches these filters.")
		case !c.at.IsZero():
			c.note("No owners.")
		default:
			c.note("No owners: no agent has reported an address yet. '%s nodes' lists the agents.", c.sys.program)
		}
		return nil
	}
	if !c.linkLocal && sel.query.Get("address") == "" && sel.query.Get("cidr") == "" {
		others := marks.WithoutLinkLocal(owners)
		if left := len(owners) - len(others); left > 0 {
			c.note("%s left out: --link-local shows them.", show.Count(left, "link-local address is", "link-local addresses are"))
		}
		if owners = others; len(owners) == 0 {
			return nil
		}
	}
	if err := show.Owners(c.sys.stdout, owners, marks, c.layout(), c.now()); err != nil {
		return err
	}
	for _, o := range owners {
		if text := show.Previous(o, c.now()); text != "" {
			c.note("%s", text)
		}
	}
	return nil
}
