package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

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
}

// addFlags adds the flags that all such commands have.
func (q *query) addFlags(cmd *cobra.Command) {
	q.server = defaultServer
	cmd.Flags().Var(value[string]{&q.server, "URL", parseServer}, "server", "the server to ask")
	clientTLSFlags(cmd.Flags(), &q.files)
	outputFlag(cmd, &q.format)
}

// outputFlag adds -o.
func outputFlag(cmd *cobra.Command, to *show.Format) {
	choiceFlag(cmd, to, "output", "o", "how to show it",
		show.FormatTable, show.FormatWide, show.FormatJSON, show.FormatYAML)
}

// wide tells whether tables have all columns.
func (q *query) wide() bool { return q.format == show.FormatWide }

// client makes the client for the server that was named.
func (q *query) client() *client {
	if q.by == nil {
		q.by = q.transport()
	}
	return &client{base: q.server, program: q.sys.program, http: http.Client{Transport: q.by}}
}

// transport is how a server is reached by what the flags say.
func (q *query) transport() http.RoundTripper {
	t := q.sys.transport
	config, err := q.files.Client()
	switch {
	case err != nil:
		return secure.NewProblem(err)
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
	fmt.Fprintf(q.sys.stderr, format+"\n", args...)
}

// event is what the events of all watches have.
type event interface {
	GetType() pb.Watch_Type
	GetLost() uint32
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
	_ = pages(ctx, q.client(), "/v1/conflicts", nil, (*pb.ListConflictsResponse)(nil), func(page *pb.ListConflictsResponse) {
		for _, c := range page.GetConflicts() {
			about := fmt.Sprintf("%s %s: %s", show.ConflictState(c), c.GetAddress(), show.ConflictNames(c))
			out = append(out, cobra.CompletionWithDesc(c.GetId(), about))
		}
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
