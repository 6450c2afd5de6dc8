package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A listing lists the items of one kind: those that match the filters and, with an argument, are about one thing.
type listing[P paged, E watched, T proto.Message] struct {
	*query
	kind  show.Kind[T]
	items func(P) []T
	item  func(E) T
	// prepare returns the items to show of those that a request lists, in their usual order; nil for those of the server.
	prepare func(context.Context, url.Values, []T) []T
	// more adds the parameters of the flags that only this list has; nil for none.
	more func(url.Values)
	// counts reports whether --exit-code counts an item.
	counts func(T) bool
	// page shows all details of an item, which an ID selects and, if paged is set, an address, too.
	page  func(context.Context, T) error
	paged bool
	table func(context.Context, []T) error
	// none says why there are no items, if the list knows; nil for the usual sentences.
	none func(ctx context.Context, about string, coverage *pb.Coverage) error
}

// thing describes the argument of all commands about one thing.
const thing = "an ADDRESS, CIDR, MAC, ID, NODE, NAMESPACE/POD or a part of a NAME"

// command returns the command of a list. usual completes its argument.
func (l *listing[P, E, T]) command(use, short string, usual ...source) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: argument(thing, ""), ValidArgsFunction: l.completeThing(usual...),
		RunE: func(cmd *cobra.Command, args []string) error { return l.run(cmd.Context(), strings.Join(args, "")) },
	}
}

// add adds the flags of a list, of which found names the items that --exit-code counts.
func (l *listing[P, E, T]) add(cmd *cobra.Command, found string, states map[string]int32, filters ...string) {
	of := l.kind.Plural()
	l.addListFlags(cmd)
	l.addTableFlags(cmd, of, l.kind.Orders)
	l.addClusterFlag(cmd, of+" in the cluster")
	l.addFilters(cmd, of, states, filters...)
	l.addWatchFlag(cmd)
	l.addAtFlag(cmd)
	l.addExitCodeFlag(cmd, found)
}

// ask returns the parameters of a request.
func (l *listing[P, E, T]) ask(about string) (url.Values, error) {
	ask := url.Values{}
	if about != "" {
		ask.Set("about", about)
	}
	if l.more != nil {
		l.more(ask)
	}
	return ask, l.filters.ask(ask)
}

// run lists or follows the items about a thing; all if it is empty.
func (l *listing[P, E, T]) run(ctx context.Context, about string) error {
	if err := l.checkWatch(); err != nil {
		return err
	}
	ask, err := l.ask(about)
	if err != nil {
		return err
	}
	if l.watch {
		return tableWatch[E, T]{kind: l.kind, ask: ask, item: l.item}.run(ctx, l.query)
	}
	items, coverage, err := l.list(ctx, ask)
	if err != nil {
		return l.unknownAt(err)
	}
	l.warn(coverage)
	if len(items) == 0 {
		if err := l.checkNode(ctx, l.filters.get("node")); err != nil {
			return err
		}
		if err := l.checkThing(ctx, about, coverage); err != nil {
			return err
		}
	}
	return errors.Join(l.show(ctx, about, items, coverage), l.found(items, coverage))
}

// list requests the items, and puts them into their order.
func (l *listing[P, E, T]) list(ctx context.Context, ask url.Values) ([]T, *pb.Coverage, error) {
	items, coverage, err := list(ctx, l.query, "/v1/"+l.kind.Plural(), ask, l.items)
	if l.prepare != nil {
		items = l.prepare(ctx, ask, items)
	}
	l.kind.Sort(items, l.sortBy)
	return items, coverage, err
}

// show shows the items about a thing.
func (l *listing[P, E, T]) show(ctx context.Context, about string, items []T, coverage *pb.Coverage) error {
	one := len(items) == 1 && l.page != nil && l.kind.ID(items[0]) == about
	switch {
	case one && l.format.ForPrograms() && l.format != show.FormatName && l.format != show.FormatCSV:
		if l.format.Whole() {
			l.noteGap() // which the item does not contain
		}
		return show.Message(l.sys.stdout, l.format, items[0])
	case l.format.ForPrograms():
		return show.List(l.sys.stdout, l.format, l.kind, items, l.basis(coverage)...)
	case len(items) == 0 && l.none != nil:
		return l.none(ctx, about, coverage)
	case len(items) == 0:
		l.noteNone(about, coverage)
		return nil
	case one || l.paged && isAddress(about):
		return inFull(l.query, items, func(item T) error { return l.page(ctx, item) })
	}
	return l.table(ctx, items)
}

// noteNone prints that there are no items.
func (l *listing[P, E, T]) noteNone(about string, coverage *pb.Coverage) {
	unseen := coverage.GetIncomplete() || l.gap != nil
	switch {
	case about != "" && unseen:
		l.note("No %s about %s is known.", l.kind.Name, about)
	case about != "" && l.filtered():
		l.note("No %s about %s matches these filters.", l.kind.Name, about)
	case about != "" && l.at.IsZero() && isAddress(about):
		l.note("No %s is about %s. '%s explain %s' shows why.", l.kind.Name, about, l.sys.program, about)
	case about != "":
		l.note("No %s is about %s.", l.kind.Name, about)
	case unseen:
		l.note("No %s are known.", l.kind.Plural())
	case l.filtered():
		l.note("No %s matches these filters.", l.kind.Name)
	default:
		l.note("No %s.", l.kind.Plural())
	}
}

// found returns the exit code for items.
func (l *listing[P, E, T]) found(items []T, coverage *pb.Coverage) error {
	if !l.exitCode {
		return nil
	}
	return l.conclude(slices.ContainsFunc(items, l.counts), coverage)
}

func isAddress(about string) bool {
	_, err := netip.ParseAddr(about)
	return err == nil
}

// addressed reports whether a thing is an address or a prefix.
func addressed(about string) bool {
	before, _, _ := strings.Cut(about, "/")
	return isAddress(before)
}

// checkThing returns an error that names similar things if nothing has the name of a thing. An address or a pod that nothing
// is known of is an answer.
func (q *query) checkThing(ctx context.Context, about string, coverage *pb.Coverage) error {
	if about == "" || !q.at.IsZero() || strings.ContainsAny(about, "/: ") || addressed(about) {
		return nil
	}
	var owners pb.ListOwnersResponse
	if err := q.client().get(ctx, "/v1/owners", q.within(url.Values{"about": {about}, "page_size": {"1"}}), &owners); err != nil || len(owners.GetOwners()) > 0 {
		return err
	}
	c := &candidates{query: q, seen: map[string]bool{}, near: about}
	for _, s := range []source{nodeNames, incidentIDs, conflictItems, findingIDs, workloadNames} {
		s(ctx, c)
	}
	switch {
	case c.known:
		return nil
	case q.exitCode && coverage.GetIncomplete():
		q.note("Nothing with the ID or name %s is known so far.", about)
		return exitCannotTell // what is not seen may have this name
	case len(c.found) == 0:
		return fmt.Errorf("nothing has the ID or name %[1]q: '%[2]s owners', '%[2]s nodes' and '%[2]s incidents' list what is known", about, q.sys.program)
	}
	return fmt.Errorf("nothing has the ID or name %q: did you mean %s?", about, strings.Join(c.found[:min(len(c.found), mostSimilar)], " or "))
}

// mostSimilar is the largest number of similar names in an error.
const mostSimilar = 3

// similar reports whether a name, or its last part, differs from another one by few letters.
func similar(name, other string) bool {
	_, last, _ := strings.Cut(name, "/")
	for _, text := range []string{name, last} {
		if text != "" && distance(text, other) <= max(1, len(other)/4) {
			return true
		}
	}
	return false
}

// distance returns how many letters have to be added, removed or replaced to make one text of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := before
			if a[i] != b[j] {
				replaced++
			}
			before = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
