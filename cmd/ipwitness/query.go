package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/form"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/forward"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// defaultServer is where ipwitness run listens unless it is told otherwise.
const defaultServer = "http://127.0.0.1:9641"

// query has what all commands that ask a server share.
type query struct {
	sys    system
	server string
	files  secure.Files
	format show.Format
	// by is how the server is reached, once it is asked.
	by http.RoundTripper

	portForward bool
	forward     forward.Config
}

// addFlags adds the flags that all such commands have. formats are those that only this one
// has.
func (q *query) addFlags(cmd *cobra.Command, formats ...show.Format) {
	q.server = defaultServer
	fs := cmd.Flags()
	fs.Var(value[string]{&q.server, "URL", parseServer}, "server", "the server to ask")
	fs.BoolVarP(&q.portForward, portForward, "P", false, "ask the aggregator in Kubernetes, by a port-forward; the kubeconfig is that of kubectl")
	fs.StringVar(&q.forward.Context, "context", "", "with -P: the `NAME` of the kubeconfig's context (default the current one)")
	fs.StringVarP(&q.forward.Namespace, "namespace", "n", "", "with -P: the `NAME` of the aggregator's namespace (default wherever it is)")
	clientTLSFlags(fs, &q.files)
	outputFlag(cmd, &q.format, formats...)
}

// outputFlag adds -o, with more formats than the usual ones.
func outputFlag(cmd *cobra.Command, to *show.Format, more ...show.Format) {
	choiceFlag(cmd, to, "output", "o", "how to show it",
		append([]show.Format{show.FormatTable, show.FormatWide, show.FormatJSON, show.FormatYAML}, more...)...)
}

// wide tells whether tables have all columns.
func (q *query) wide() bool { return q.format == show.FormatWide }

// portForward is the flag that excludes --server.
const portForward = "port-forward"

// placed reads the flags that say where the server is by settle, and refuses those
// of the command line that go together with nothing.
func placed(cmd *cobra.Command, settle func() error) error {
	fs := cmd.Flags()
	if fs.Changed("server") && fs.Changed(portForward) {
		return errors.New("--server and --port-forward exclude each other: leave out one of them")
	}
	var without error
	for _, name := range []string{"context", "namespace"} {
		if fs.Changed(name) {
			without = fmt.Errorf("--%s says where the aggregator is in Kubernetes, and needs -P", name)
		}
	}
	if err := settle(); err != nil {
		return err
	}
	if on, err := fs.GetBool(portForward); err != nil || on {
		return nil // a command that asks no server has no such flag
	}
	return without
}

// client makes the client for the server that was named.
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

// stay goes nowhere else: our token is for the server that was named.
func stay(r *http.Request, _ []*http.Request) error {
	return secure.NewProblem(fmt.Errorf("the server sends us to %s: if that is ipwitness, name it with --server", r.URL))
}

// transport is how a server is reached by what the flags say.
func (q *query) transport() http.RoundTripper {
	t := q.sys.transport
	config, err := q.files.Client()
	for _, name := range q.files.Exposed() {
		q.tell("Warning: every user of this host can read %s: take that away with 'chmod o= %s'.", name, name)
	}
	switch {
	case err != nil:
		return secure.NewProblem(err)
	case q.portForward:
		q.forward.UserAgent = "ipwitness/" + readBuild(version).Version
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

// tell writes a sentence that is not part of the output.
func (q *query) tell(format string, args ...any) {
	fmt.Fprintln(q.sys.stderr, form.VisibleLines(fmt.Sprintf(format, args...)))
}

// warn prints what an answer could not take into account, unless the output is for
// programs: they find that in the answer.
func (q *query) warn(c *pb.Coverage) {
	if !q.format.ForPrograms() {
		q.tellUnseen(c)
	}
}

func (q *query) tellUnseen(c *pb.Coverage) {
	for _, s := range show.Unseen(c) {
		q.tell("Warning: %s", s)
	}
}

// conclude returns the exit code for an answer. Finding something is always a result;
// finding nothing is one only if everything is seen.
func (q *query) conclude(found bool, c *pb.Coverage) error {
	switch {
	case found:
		return exitFound
	case c == nil:
		q.tell("Cannot tell whether there is more: this server does not say which nodes it hears from.")
		return exitCannotTell
	case c.GetIncomplete():
		if q.format.ForPrograms() {
			q.tellUnseen(c) // otherwise warn has printed it
		}
		return exitCannotTell
	}
	return nil
}

// coverage asks the server for its coverage.
func (q *query) coverage(ctx context.Context) (*pb.Coverage, error) {
	var list pb.ListConflictsResponse
	err := q.client().get(ctx, "/v1/conflicts", url.Values{"page_size": {"1"}}, &list)
	return list.GetCoverage(), err
}

// event is what the events of all watches have.
type event interface {
	GetType() pb.Watch_Type
	GetLost() uint32
	GetCoverage() *pb.Coverage
}

// coverageWatch prints during a watch what the server does not see, whenever that
// changes.
type coverageWatch struct {
	*query
	last *pb.Coverage
}

// follow handles one event.
func (w *coverageWatch) follow(e event) error {
	c := e.GetCoverage()
	if c == nil || proto.Equal(c, w.last) || w.last == nil && !c.GetIncomplete() && c.GetWithoutFrames() == 0 {
		return nil
	}
	first := w.last == nil
	w.last = c
	if w.format.ForPrograms() {
		return show.Event(w.sys.stdout, w.format, pb.Watch_BOOKMARK.String(), "coverage", c)
	}
	w.tellUnseen(c)
	if !first && len(show.Unseen(c)) == 0 {
		w.tell("All is seen now: %s.", show.Count(int(c.GetHeard()), "node", "nodes"))
	}
	return nil
}

// encodeEvent writes an event that says something of its item, or that events were lost.
func (q *query) encodeEvent(e event, name string, item proto.Message) error {
	switch e.GetType() {
	case pb.Watch_ADDED, pb.Watch_UPDATED, pb.Watch_REMOVED:
		return show.Event(q.sys.stdout, q.format, e.GetType().String(), name, item)
	case pb.Watch_LOST:
		return show.Lost(q.sys.stdout, q.format, e.GetType().String(), e.GetLost())
	default:
		return nil
	}
}

// tellLost says that a watch left out events.
func (q *query) tellLost(e event) {
	switch {
	case e.GetType() != pb.Watch_LOST:
	case e.GetLost() == 0:
		q.tell("Changes are left out that are not known any more; what is there now follows.")
	default:
		q.tell("%d changes came too fast and are left out; what is there now follows.", e.GetLost())
	}
}

// completeTimeout keeps the shell responsive where there is no server.
const completeTimeout = time.Second

// completeConflicts offers the ids of active conflicts, with what they are about.
func (q *query) completeConflicts(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 || applySettings(cmd, q.sys.getenv) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	var out []cobra.Completion
	// Without a server there is nothing to offer, and nobody to tell.
	_, _ = pages(ctx, q.client(), "/v1/conflicts", nil, (*pb.ListConflictsResponse)(nil), func(page *pb.ListConflictsResponse) {
		for _, c := range page.GetConflicts() {
			about := fmt.Sprintf("%s %s: %s", show.ConflictState(c), c.GetAddress(), show.ConflictNames(c))
			out = append(out, cobra.CompletionWithDesc(c.GetId(), about))
		}
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
