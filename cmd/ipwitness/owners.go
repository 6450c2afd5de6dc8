package main

import (
	"context"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newOwners(sys system) *cobra.Command {
	q := &query{sys: sys}
	var linkLocal, selected bool // selected is set if addresses are
	var marks *show.Marks
	l := &listing[*pb.ListOwnersResponse, *pb.WatchOwnersResponse, *pb.Owner]{
		query: q, kind: show.OwnerKind, items: (*pb.ListOwnersResponse).GetOwners, item: (*pb.WatchOwnersResponse).GetOwner,
		counts: func(*pb.Owner) bool { return true },
		none: func(_ context.Context, about string, _ *pb.Coverage) error {
			switch {
			case about != "":
				q.note("No owner of %s.", about)
			case q.filtered():
				q.note("No owner matches these filters.")
			case !q.at.IsZero():
				q.note("No owners.")
			default:
				q.note("No owners: no agent has reported an address yet. '%s nodes' lists the agents.", sys.program)
			}
			return nil
		},
		table: func(_ context.Context, owners []*pb.Owner) error {
			if !linkLocal && !selected {
				others := marks.WithoutLinkLocal(owners)
				if left := len(owners) - len(others); left > 0 {
					q.note("%s left out: --link-local shows them.", show.Count(left, "link-local address is", "link-local addresses are"))
				}
				if owners = others; len(owners) == 0 {
					return nil
				}
			}
			if err := show.Owners(sys.stdout, owners, marks, q.layout(), q.now()); err != nil {
				return err
			}
			for _, o := range owners {
				if text := show.Previous(o, q.now()); text != "" {
					q.note("%s", text)
				}
			}
			return nil
		},
	}
	l.prepare = func(ctx context.Context, ask url.Values, owners []*pb.Owner) []*pb.Owner {
		of := url.Values{} // an owner in conflict has other owners, which may not match the other filters
		for _, name := range []string{"about", "cidr"} {
			if text := ask.Get(name); addressed(text) {
				of.Set(name, text)
			}
		}
		selected = len(of) > 0
		if len(owners) == 0 || q.format.ForPrograms() && q.format != show.FormatCSV {
			return owners
		}
		conflicts, _, err := q.conflicts(ctx, of)
		if err != nil {
			q.note("Warning: owners in conflict are not marked, because the conflicts cannot be listed: %s", err)
			return owners
		}
		marks = show.NewMarks(owners, conflicts)
		l.kind = marks.Kind()
		return owners
	}
	cmd := l.command("owners [THING] [flags]", "List the owners of addresses", workloadNames)
	l.add(cmd, "an owner", pb.Owner_State_value, "node", "namespace", "workload", "cidr", "mac", "scope", "state")
	cmd.Flags().BoolVar(&linkLocal, "link-local", false, "include link-local addresses (fe80::/10, 169.254.0.0/16) in the table")
	return cmd
}
