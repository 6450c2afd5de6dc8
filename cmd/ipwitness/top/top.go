// Package top is the full-screen view of `ipwitness top`: the conflicts, findings, owners, nodes and
// incidents of a server, live.
//
// The watches change a model, which has the state of the screen, many changes at once. Details are
// requested when they are opened, and their text comes from package show. The package does not know how
// to reach the server.
package top

import (
	"context"
	"errors"
	"io"
	"net/url"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// drawEvery is the shortest time between two changes of the lists.
const drawEvery = 100 * time.Millisecond

// Config is where the view is shown.
type Config struct {
	// In and Out are the terminal.
	In  io.Reader
	Out io.Writer
	// Program is how the user invokes this program, for commands in texts.
	Program string
	// Color is whether to use colours.
	Color bool
	// Environment has the variables that describe the terminal.
	Environment []string
	// Now returns the time.
	Now func() time.Time
}

// Run shows the server until the user quits or ctx ends. It returns an error if the server rejects a
// watch, or if the terminal fails.
func Run(ctx context.Context, s *Server, c Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := newModel(ctx, s, c)
	profile := colorprofile.ASCII
	if c.Color {
		profile = colorprofile.ANSI
	}
	p := tea.NewProgram(m, tea.WithInput(c.In), tea.WithOutput(c.Out), tea.WithEnvironment(c.Environment),
		tea.WithColorProfile(profile), tea.WithoutSignalHandler())
	defer context.AfterFunc(ctx, p.Quit)()

	g, ctx := errgroup.WithContext(ctx)
	watch := func(follow func() error) {
		g.Go(func() error {
			if err := follow(); err != nil && ctx.Err() == nil {
				p.Send(failedMsg{err}) // so that the terminal is restored before the error is printed
			}
			return nil
		})
	}
	changes := make(chan change)
	send := func(c change) {
		select {
		case <-ctx.Done():
		case changes <- c:
		}
	}
	watch(func() error { return s.WatchConflicts(ctx, conflictStream(send)) })
	watch(func() error { return s.WatchFindings(ctx, findingStream(send)) })
	watch(func() error { return s.WatchIncidents(ctx, incidentStream(send)) })
	g.Go(func() error { collect(ctx, changes, func(c changesMsg) { p.Send(c) }); return nil })
	g.Go(func() error {
		defer cancel()
		_, err := p.Run()
		return err
	})
	return errors.Join(g.Wait(), m.err)
}

// A Server is the aggregator that is shown. Its functions are called from several goroutines.
type Server struct {
	// Name is the URL of the server, for the title.
	Name string
	// WatchConflicts, WatchFindings and WatchIncidents follow a watch until ctx ends. They reconnect when the watch is
	// disconnected, and return an error only if the server rejects the watch.
	WatchConflicts func(ctx context.Context, to Stream[*pb.WatchConflictsResponse]) error
	WatchFindings  func(ctx context.Context, to Stream[*pb.WatchFindingsResponse]) error
	WatchIncidents func(ctx context.Context, to Stream[*pb.WatchIncidentsResponse]) error
	// Members requests the details of an incident, and its members.
	Members func(context.Context, *pb.Incident) ([]*pb.Conflict, []*pb.Finding, error)
	// Get requests a message, such as the details of one item, from a path of the REST API.
	Get func(ctx context.Context, path string, ask url.Values, into proto.Message) error
	// Matching returns the keys of the conflicts, findings or incidents that match a filter.
	Matching func(ctx context.Context, of, filter string) (map[string]bool, error)
	// CheckFilter returns an error if Owners and Matching do not accept a filter.
	CheckFilter func(filter string) error
	// Owners returns one page of the owners that match a filter; the token of the first page is empty.
	Owners func(ctx context.Context, filter, token string) (*pb.ListOwnersResponse, error)
}

// A Stream is what a watch tells its receiver.
type Stream[E any] struct {
	// Connected is called when the server begins to send. whole reports whether it sends the whole
	// state, or what has changed since the last event.
	Connected func(whole bool)
	// Disconnected is called with the reason.
	Disconnected func(error)
	Event        func(E)
}
