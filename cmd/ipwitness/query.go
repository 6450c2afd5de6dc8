package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/forward"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/cmd/secure"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// defaultServer is the default address of ipwitness run.
const defaultServer = "http://127.0.0.1:9641"

// query contains the flags and state that all commands that query a server share.
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
		f, is, err := show.ParseTemplate(s)
		if err == nil && !is && !slices.Contains(formats, s) {
			err = fmt.Errorf("%q is not one of %s", s, known)
		}
		return f, err
	}
	q.format = show.FormatTable
	cmd.Flags().VarP(cli.NewValue(&q.format, "FORMAT", parse), "output", "o", "format: "+known)
	cli.CompleteFlagWith(cmd, "output", completeFormats(formats))
}

// errCSVWatch is the error for flags that exclude each other.
var errCSVWatch = errors.New("--output csv and --watch cannot be combined, because CSV has no events: use -o json, or remove one of them")

// addServerFlags adds the flags that select the server.
func (q *query) addServerFlags(cmd *cobra.Command) {
	q.server = defaultServer
	fs := cmd.Flags()
	fs.Var(cli.NewValue(&q.server, "URL", parseServer), "server", "URL of the server")
	usage := "query the aggregator in Kubernetes through a port-forward, with the kubeconfig of kubectl"
	if q.sys.plugin {
		usage += "; off with --server or -P=false"
	}
	fs.BoolVarP(&q.portForward, portForward, "P", q.sys.plugin, usage)
	cli.ReplacedBy(cmd, portForward, "server")
	fs.StringVar(&q.forward.Context, "context", "", "with -P: `NAME` of the kubeconfig context (default: the current context)")
	fs.StringVar(&q.forward.Kubeconfig, kubeconfig, "", "with -P: kubeconfig `FILE` (default: $KUBECONFIG or ~/.kube/config, as for kubectl)")
	fs.StringVar(&q.forward.Namespace, aggregatorNamespace, "", "with -P: `NAME` of the aggregator's namespace (default: any namespace)")
	cli.OnlyOnCommandLine(cmd, kubeconfig) // elsewhere, it is the kubeconfig of an aggregator
	cli.CompleteFlagWith(cmd, "context", q.completeContexts)
	cli.ClientTLSFlags(fs, &q.files)
	colorFlag(cmd, &q.color)
}

// outputFlag adds -o with the usual formats and additional ones.
func outputFlag(cmd *cobra.Command, to *show.Format, more ...show.Format) {
	cli.ChoiceFlag(cmd, to, "output", "o", "output format",
		append([]show.Format{show.FormatTable, show.FormatWide, show.FormatJSON, show.FormatYAML}, more...)...)
}

// addTableFlags adds the flags of a list that is shown as a table and can be sorted in several orders.
func (q *query) addTableFlags(cmd *cobra.Command, of string, orders []string) {
	cmd.Flags().BoolVar(&q.noHeaders, "no-headers", false, "print tables without their header")
	parse := func(s string) (string, error) {
		if !slices.Contains(orders, s) {
			return "", fmt.Errorf("%q is not an order of %s: use one of %s", s, of, strings.Join(orders, ", "))
		}
		return s, nil
	}
	cmd.Flags().Var(cli.NewValue(&q.sortBy, "FIELD", parse), "sort-by", "sort "+of+" by a field: "+strings.Join(orders, ", "))
	cli.CompleteFlag(cmd, "sort-by", orders)
}

// layout returns the layout of output for people.
func (q *query) layout() show.Layout {
	layout := q.sys.terminalLayout(q.color)
	layout.Wide, layout.NoHeaders = q.format == show.FormatWide, q.noHeaders
	return layout
}

// errSortWatch is the error for flags that exclude each other.
var errSortWatch = errors.New("--sort-by and --watch cannot be combined, because a watch shows changes in the order of their time: remove one of them")

// checkNode returns an error that names the known nodes if no node has the name. If not all nodes are
// known, it prints that instead.
func (q *query) checkNode(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	var list pb.ListNodesResponse
	if err := q.client().get(ctx, "/v1/nodes", q.within(nil), &list); err != nil {
		return err
	}
	known := list.GetCoverage().GetSilentNodes()
	for _, n := range list.GetNodes() {
		known = append(known, n.GetName())
	}
	slices.Sort(known)
	known = slices.Compact(known)
	switch {
	case slices.Contains(known, name):
		return nil
	case list.GetCoverage().GetIncomplete():
		q.note("No node %q is known so far: %s.", name, show.KnownNodes(known))
		return nil
	}
	return fmt.Errorf("there is no node %q: %s", name, show.KnownNodes(known))
}

const (
	// portForward is the name of the flag that cannot be combined with --server.
	portForward = "port-forward"
	// aggregatorNamespace is the name of the flag that says where the aggregator is. --namespace selects
	// pods.
	aggregatorNamespace = "aggregator-namespace"
	// kubeconfig is the name of the flag with the user's kubeconfig.
	kubeconfig = "kubeconfig"
)

// placed calls settle, which reads the flags from all sources, and rejects invalid combinations of
// the flags that select the server.
func placed(cmd *cobra.Command, settle func() error) error {
	fs := cmd.Flags()
	if on, err := fs.GetBool(portForward); err == nil && on && fs.Changed("server") && fs.Changed(portForward) {
		return errors.New("--server and --port-forward cannot be combined: remove one of them")
	}
	var without error
	for _, name := range []string{"context", kubeconfig, aggregatorNamespace} {
		if fs.Changed(name) {
			without = fmt.Errorf("--%s selects the aggregator in Kubernetes and needs -P", name)
		}
	}
	if err := settle(); err != nil {
		return err
	}
	on, err := fs.GetBool(portForward)
	if err != nil {
		return nil // a command that queries no server has no such flag
	}
	if on && fs.Changed("server") && !fs.Changed(portForward) { // a server replaces the default of a plugin
		on = false
		if err := fs.Lookup(portForward).Value.Set("false"); err != nil {
			return err
		}
	}
	if on {
		return nil
	}
	return without
}

// client returns the client of the selected server.
func (q *query) client() *client {
	if q.by == nil {
		q.by = q.transport()
	}
	c := &client{base: q.server, program: q.sys.program, http: http.Client{Transport: q.by, CheckRedirect: stay}}
	if q.portForward {
		c.base = "http://" + forward.Host
	}
	return c
}

// stay rejects redirects, because the token must only be sent to the selected server.
func stay(r *http.Request, _ []*http.Request) error {
	return secure.NewProblem(fmt.Errorf("the server redirects to %s: if that is an ipwitness server, use it with --server", r.URL))
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

// note writes a sentence that is not part of the output.
func (q *query) note(format string, args ...any) {
	var layout show.Layout
	if q.sys.oneTerminal {
		layout = q.layout()
	}
	fmt.Fprintln(q.sys.stderr, show.Hanging("", form.VisibleLines(fmt.Sprintf(format, args...)), layout))
}

// warn prints what an answer does not cover, unless the output is for programs, which find it in
// the answer itself.
func (q *query) warn(c *pb.Coverage) {
	if !q.format.Whole() {
		q.noteUnseen(c)
	}
}

func (q *query) noteUnseen(c *pb.Coverage) {
	for _, s := range show.Unseen(c) {
		q.note("Warning: %s", s)
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
		return exitCannotTell
	case c.GetIncomplete():
		if q.format.Whole() {
			q.noteUnseen(c) // otherwise warn has printed it already
		}
		return exitCannotTell
	}
	return nil
}

// coverage requests the coverage of the server.
func (q *query) coverage(ctx context.Context) (*pb.Coverage, error) {
	var list pb.ListConflictsResponse
	err := q.client().get(ctx, "/v1/conflicts", q.within(url.Values{"page_size": {"1"}}), &list)
	return list.GetCoverage(), err
}

// event contains the methods that the events of all watches have.
type event interface {
	GetType() pb.Watch_Type
	GetLost() uint32
}

// coverageWatch prints during a watch what the server does not see, each time that it changes.
type coverageWatch struct {
	*query
	last *pb.Coverage
}

// follow handles one event.
func (w *coverageWatch) follow(e interface{ GetCoverage() *pb.Coverage }) error {
	c := e.GetCoverage()
	if c == nil || proto.Equal(c, w.last) || w.last == nil && !c.GetIncomplete() && c.GetWithoutFrames() == 0 {
		return nil
	}
	first := w.last == nil
	w.last = c
	if w.format.Whole() {
		return show.Event(w.sys.stdout, w.format, pb.Watch_BOOKMARK.String(), "coverage", c)
	}
	w.noteUnseen(c)
	if !first && len(show.Unseen(c)) == 0 {
		w.note("Everything is seen now: %s.", show.Count(int(c.GetHeard()), "node", "nodes"))
	}
	return nil
}

// encodeEvent writes an event about an item, or an event that reports lost events.
func (q *query) encodeEvent(e event, name string, item proto.Message) error {
	switch e.GetType() {
	case pb.Watch_ADDED, pb.Watch_UPDATED, pb.Watch_REMOVED:
		return show.Event(q.sys.stdout, q.format, e.GetType().String(), name, item)
	case pb.Watch_LOST:
		if !q.format.Whole() {
			q.noteLost(e)
			return nil
		}
		return show.Lost(q.sys.stdout, q.format, e.GetType().String(), e.GetLost())
	default:
		return nil
	}
}

// noteLost prints that a watch lost events.
func (q *query) noteLost(e event) {
	switch {
	case e.GetType() != pb.Watch_LOST:
	case e.GetLost() == 0:
		q.note("Some events have expired; the current state follows.")
	default:
		q.note("%d events came too fast and were dropped; the current state follows.", e.GetLost())
	}
}

// itemEvent is an event about an item, with the coverage of a bookmark.
type itemEvent interface {
	watched
	event
	GetCoverage() *pb.Coverage
}

// followTable shows the items of a watch as they appear, change and end. keep may be nil; begun, if set,
// is called at the first bookmark.
func followTable[E itemEvent, T interface {
	comparable
	proto.Message
}](ctx context.Context, q *query, path string, ask url.Values, table *show.Watch[T], name string, item func(E) T, keep func(T) bool, begun func() error) error {
	seen := coverageWatch{query: q}
	w := &watcher[E]{
		client: q.client(), notice: q.sys.stderr, path: path, query: ask, begin: table.Begin,
		event: func(e E) error {
			if err := seen.follow(e); err != nil {
				return err
			}
			table.Of(e.GetCoverage())
			if e.GetType() == pb.Watch_BOOKMARK && begun != nil {
				if err := begun(); err != nil {
					return err
				}
				begun = nil
			}
			var none T
			if of := item(e); of != none && keep != nil && !keep(of) {
				return nil
			}
			if q.format.ForPrograms() {
				return q.encodeEvent(e, name, item(e))
			}
			q.noteLost(e)
			return table.Event(e.GetType(), item(e), q.sys.now())
		},
	}
	return w.run(ctx)
}
