package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/forward"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
)

// defaultServer is the default address of ipwitness run.
const defaultServer = "http://127.0.0.1:9641"

// query contains the flags and state of the commands that query a server.
type query struct {
	sys    system
	server string
	files  secure.Files
	format show.Format
	// by is the transport to the server; nil until the first request.
	by http.RoundTripper

	portForward bool
	forward     forward.Config

	noHeaders bool
	sortBy    string
	color     colorChoice
	// clusters are the selected clusters of a fleet; all if there are none.
	clusters []string
	filters  narrowing

	watch, exitCode bool
	at              time.Time // of the state that is shown; zero for the current state
	gap             *pb.Gap   // gap in the journal that contains this time
}

// addFlags adds the flags that select the server and the output format. The additional formats are
// specific to this command.
func (q *query) addFlags(cmd *cobra.Command, formats ...show.Format) {
	q.addServerFlags(cmd)
	outputFlag(cmd, &q.format, formats...)
}

// addListFlags is like addFlags for a list of items with names.
func (q *query) addListFlags(cmd *cobra.Command) {
	q.addServerFlags(cmd)
	formats := []string{string(show.FormatTable), string(show.FormatWide), string(show.FormatJSON), string(show.FormatYAML), string(show.FormatName), string(show.FormatCSV)}
	known := strings.Join(formats, ", ") + ", jsonpath=TEMPLATE"
	parse := func(s string) (show.Format, error) {
		template, err := show.Format(s).Template()
		if template == nil && err == nil && !slices.Contains(formats, s) {
			err = fmt.Errorf("%q is not one of %s", s, known)
		}
		return show.Format(s), err
	}
	q.format = show.FormatTable
	cmd.Flags().VarP(cli.NewValue(&q.format, "FORMAT", parse), "output", "o", "format: "+known)
	cli.CompleteFlag(cmd, "output", append(formats, show.JSONPath))
}

// addServerFlags adds the flags that select the server.
func (q *query) addServerFlags(cmd *cobra.Command) {
	q.server = defaultServer
	colorFlag(cmd, &q.color)
	defer cli.Topic(cmd, "connection")()
	fs := cmd.Flags()
	fs.Var(cli.NewValue(&q.server, "URL", parseServer), "server", "URL of the server")
	usage := "query the aggregator in Kubernetes through a port-forward, with the kubeconfig of kubectl"
	if q.sys.plugin {
		usage += "; off with --server or -P=false"
	}
	fs.BoolVarP(&q.portForward, portForward, "P", q.sys.plugin, usage)
	fs.StringVar(&q.forward.Context, "context", "", "with -P: `NAME` of the kubeconfig context (default: the current context)")
	fs.StringVar(&q.forward.Kubeconfig, "kubeconfig", "", "with -P: kubeconfig `FILE` (default: $KUBECONFIG or ~/.kube/config, as for kubectl)")
	fs.StringVar(&q.forward.Namespace, "aggregator-namespace", "", "with -P: `NAME` of the aggregator's namespace (default: any namespace)")
	cli.OnlyOnCommandLine(cmd, "kubeconfig") // elsewhere, it is the kubeconfig of an aggregator
	cli.CompleteFlagWith(cmd, "context", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return forward.Contexts(q.forward.Kubeconfig), cobra.ShellCompDirectiveNoFileComp
	})
	cli.ClientTLSFlags(fs, &q.files)
}

// addClusterFlag adds --cluster. It is only taken from the command line, because variables and files name the
// cluster of an aggregator.
func (q *query) addClusterFlag(cmd *cobra.Command, what string) {
	cmd.Flags().Var(cli.NewList(&q.clusters, "NAME", ",", cli.ParseName), "cluster", what+" with this name, of a fleet; repeatable")
	cli.CompleteFlagWith(cmd, "cluster", q.complete(clusterNames))
	cli.OnlyOnCommandLine(cmd, "cluster")
}

// addWatchFlag adds -w.
func (q *query) addWatchFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&q.watch, "watch", "w", false, "continue with every change until Ctrl-C")
}

// addAtFlag adds --at.
func (q *query) addAtFlag(cmd *cobra.Command) {
	timeFlag(cmd, q.sys, &q.at, "at", "state at this time, from the aggregator's journal")
}

// addExitCodeFlag adds --exit-code. found names the results with which the command exits with 2.
func (q *query) addExitCodeFlag(cmd *cobra.Command, found string) {
	cmd.Flags().BoolVar(&q.exitCode, "exit-code", false, "exit 2 on "+found+", 0 if none, 3 if not everything is seen, 1 on error")
}

// outputFlag adds -o with the usual formats and additional ones.
func outputFlag(cmd *cobra.Command, to *show.Format, more ...show.Format) {
	cli.ChoiceFlag(cmd, to, "output", "o", "output format",
		append([]show.Format{show.FormatTable, show.FormatWide, show.FormatJSON, show.FormatYAML}, more...)...)
}

// addTableFlags adds the flags of a list that is shown as a table and can be sorted in several orders.
func (q *query) addTableFlags(cmd *cobra.Command, of string, orders []string) {
	cmd.Flags().BoolVar(&q.noHeaders, "no-headers", false, "print tables without their header")
	wordFlag(cmd, &q.sortBy, "sort-by", "FIELD", "sort "+of+" by a field: "+strings.Join(orders, ", "), "an order of "+of, orders)
}

// exclusive returns an error about two flags if both are set.
func exclusive(both bool, one, other, because string) error {
	if !both {
		return nil
	}
	return fmt.Errorf("%s and %s cannot be combined, because %s: remove one of them", one, other, because)
}

// checkWatch returns an error if a flag is set that means nothing for a watch.
func (q *query) checkWatch() error {
	if !q.watch {
		return nil
	}
	return cmp.Or(
		exclusive(q.exitCode, "--exit-code", "--watch", "a watch does not end"),
		exclusive(q.format == show.FormatCSV, "--output csv", "--watch", "CSV has no events"),
		exclusive(q.sortBy != "", "--sort-by", "--watch", "a watch shows changes in the order of their time"),
		exclusive(!q.at.IsZero(), "--at", "--watch", "the past does not change"),
	)
}

// layout returns the layout of output for people.
func (q *query) layout() show.Layout {
	layout := q.sys.terminalLayout(q.color)
	layout.Wide, layout.NoHeaders = q.format == show.FormatWide, q.noHeaders
	return layout
}

// portForward is the name of the flag that cannot be combined with --server.
const portForward = "port-forward"

// settle reads the flags from all sources, and rejects invalid combinations of the flags that select the
// server.
func settle(cmd *cobra.Command, getenv func(string) string) error {
	fs := cmd.Flags()
	flag := fs.Lookup(portForward)
	if flag == nil { // a command that queries no server
		if all := fs.Lookup(cli.AllFlags); all != nil && all.Changed {
			return errors.New("--all is for --help")
		}
		return cli.ApplySettings(cmd, getenv)
	}
	on := func() bool { return flag.Value.String() == "true" }
	if fs.Changed("server") {
		if on() && flag.Changed {
			return errors.New("--server and --port-forward cannot be combined: remove one of them")
		}
		if err := fs.Set(portForward, "false"); err != nil { // whatever a variable or a file says
			return err
		}
	}
	var without error
	for _, name := range []string{"context", "kubeconfig", "aggregator-namespace"} {
		if fs.Changed(name) {
			without = fmt.Errorf("--%s selects the aggregator in Kubernetes and needs -P", name)
		}
	}
	err := cli.ApplySettings(cmd, getenv)
	switch {
	case err != nil:
		return err
	case on() && fs.Changed("server") && !flag.Changed: // a server replaces the default of a plugin
		return errors.Join(flag.Value.Set("false"), without)
	case on():
		return nil
	}
	return without
}

// client returns the client of the selected server.
func (q *query) client() *client {
	if q.by == nil {
		q.by = q.transport()
	}
	c := &client{base: q.server, program: q.sys.program, http: http.Client{
		Transport: q.by,
		// The token must only be sent to the selected server.
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			return secure.NewProblem(fmt.Errorf("the server redirects to %s: if that is an ipwitness server, use it with --server", r.URL))
		},
	}}
	if q.portForward {
		c.base = "http://" + forward.Host
	}
	return c
}

// transport returns the transport to the server that the flags select.
func (q *query) transport() http.RoundTripper {
	t := q.sys.transport
	config, err := q.files.Client()
	for _, name := range q.files.Exposed() {
		q.note("Warning: every user of this host can read %s. Restrict it with 'chmod o= %s'.", name, name)
	}
	switch {
	case err != nil:
		return secure.NewProblem(err)
	case q.portForward:
		q.forward.UserAgent = "ipwitness/" + cli.ReadBuild().Version
		q.forward.TLS, q.forward.Verified = config, q.files.CA != ""
		if q.files.Token != "" {
			q.forward.Token = secure.Token(q.files.Token).RoundTripper
		}
		return forward.New(q.forward)
	case config != nil:
		own := newTransport()
		own.TLSClientConfig = config
		t = own
	}
	if q.files.Token != "" {
		t = secure.Token(q.files.Token).RoundTripper(t)
	}
	return t
}

// within returns the parameters of a request with the selected clusters and time.
func (q *query) within(ask url.Values) url.Values {
	if ask == nil {
		ask = url.Values{}
	}
	if len(q.clusters) > 0 {
		ask["cluster"] = q.clusters
	}
	if !q.at.IsZero() {
		ask.Set("at", q.at.UTC().Format(time.RFC3339Nano))
	}
	return ask
}

// list requests all pages of a list. It returns the coverage of the first page, and keeps the gap.
func list[P paged, T any](ctx context.Context, q *query, path string, ask url.Values, items func(P) []T) (all []T, coverage *pb.Coverage, err error) {
	coverage, err = pages(ctx, q.client(), path, q.within(ask), func(page P) bool {
		if at, ok := any(page).(interface{ GetGap() *pb.Gap }); ok && at.GetGap() != nil {
			q.gap = at.GetGap()
		}
		all = append(all, items(page)...)
		return true
	})
	return all, coverage, err
}

func (q *query) conflicts(ctx context.Context, ask url.Values) ([]*pb.Conflict, *pb.Coverage, error) {
	return list(ctx, q, "/v1/conflicts", ask, (*pb.ListConflictsResponse).GetConflicts)
}

// nodes requests the nodes.
func (q *query) nodes(ctx context.Context) (*pb.ListNodesResponse, error) {
	nodes := &pb.ListNodesResponse{}
	return nodes, q.client().get(ctx, "/v1/nodes", q.within(nil), nodes)
}

// checkNode returns an error that names the known nodes if no node has the name. If not all nodes are
// known, it prints that instead.
func (q *query) checkNode(ctx context.Context, name string) error {
	if name == "" || !q.at.IsZero() {
		return nil
	}
	nodes, err := q.nodes(ctx)
	if err != nil {
		return err
	}
	all := knownNodes(nodes)
	switch {
	case slices.Contains(all, name):
		return nil
	case nodes.GetCoverage().GetIncomplete():
		q.note("No node %q is known so far: %s.", name, show.KnownNodes(all))
		return nil
	}
	return fmt.Errorf("there is no node %q: %s", name, show.KnownNodes(all))
}

// knownNodes returns the names of the nodes that are known, in order.
func knownNodes(nodes *pb.ListNodesResponse) []string {
	all := slices.Clone(nodes.GetCoverage().GetSilentNodes())
	for _, n := range nodes.GetNodes() {
		all = append(all, n.GetName())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// filtered reports whether the flags select some of the items.
func (q *query) filtered() bool { return len(q.filters.given()) > 0 || len(q.clusters) > 0 }

// now returns the time from which tables and pages count.
func (q *query) now() time.Time {
	if !q.at.IsZero() {
		return q.at
	}
	return q.sys.now()
}

// basis returns what a list is based on.
func (q *query) basis(coverage *pb.Coverage) []show.Field {
	var at *timestamppb.Timestamp
	if !q.at.IsZero() {
		at = timestamppb.New(q.at)
	}
	return []show.Field{{Name: "at", Value: at}, {Name: "gap", Value: q.gap}, {Name: "coverage", Value: coverage}}
}

// note writes a sentence that is not part of the output.
func (q *query) note(format string, args ...any) {
	var layout show.Layout
	if q.sys.oneTerminal {
		layout = q.layout()
	}
	fmt.Fprintln(q.sys.stderr, show.Hanging("", form.VisibleLines(fmt.Sprintf(format, args...)), layout))
}

// warn prints what an answer does not cover and the time of the state, unless the output is for programs, which
// find both in the answer itself.
func (q *query) warn(c *pb.Coverage) {
	if q.format.Whole() {
		return
	}
	q.noteUnseen(c)
	if !q.at.IsZero() {
		q.note("The state at %s, %s ago:", utc(q.at), show.Duration(q.sys.now().Sub(q.at)))
		q.noteGap()
	}
}

func (q *query) noteUnseen(c *pb.Coverage) {
	for _, s := range show.Unseen(c) {
		q.note("Warning: %s", s)
	}
}

// noteGap prints that the state may be incomplete.
func (q *query) noteGap() {
	if q.gap != nil {
		q.note("Warning: nothing was recorded %s: changes in this period may be missing.", show.GapPeriod(q.gap))
	}
}

// conclude returns the exit code for an answer. Finding something is always a result;
// finding nothing is one only if everything is seen.
func (q *query) conclude(found bool, c *pb.Coverage) error {
	switch {
	case found:
		return exitFound
	case c == nil:
		q.note("Cannot tell whether the result is complete: this server does not report which nodes are connected.")
	case c.GetIncomplete():
		if q.format.Whole() {
			q.noteUnseen(c) // otherwise warn has printed it already
		}
	case q.gap != nil:
		if q.format.Whole() {
			q.noteGap() // otherwise warn has printed it already
		}
	default:
		return nil
	}
	return exitCannotTell
}

// unknownAt returns the exit code for a state that the journal does not have, or else the error of
// the request.
func (q *query) unknownAt(err error) error {
	if refused, ok := errors.AsType[*serverError](err); ok && refused.code == codes.OutOfRange && !q.at.IsZero() && q.exitCode {
		q.note("Cannot tell: %s", refused.message)
		return exitCannotTell
	}
	return err
}

// inFull shows the details of items, one after the other.
func inFull[T any](q *query, items []T, page func(T) error) error {
	for i, item := range items {
		if i > 0 {
			if _, err := fmt.Fprint(q.sys.stdout, "\n\n"); err != nil {
				return err
			}
		}
		if err := page(item); err != nil {
			return err
		}
	}
	return nil
}
