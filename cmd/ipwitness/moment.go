package main

import (
	"errors"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// moment is the time of the state that a command shows, with --at.
type moment struct {
	at  time.Time // zero for the current state
	gap *pb.Gap   // gap in the journal that contains this time
}

// errWatchAt is the error for flags that exclude each other.
var errWatchAt = errors.New("--at and --watch cannot be combined, because the past does not change: remove one of them")

// addFlag adds --at.
func (m *moment) addFlag(cmd *cobra.Command, sys system) {
	timeFlag(cmd, sys, &m.at, "at", "state at this time, from the aggregator's journal")
}

// set reports whether the state is of the past.
func (m *moment) set() bool { return !m.at.IsZero() }

// ask adds the time to the parameters of a request.
func (m *moment) ask(to url.Values) {
	if m.set() {
		to.Set("at", m.at.UTC().Format(time.RFC3339Nano))
	}
}

// read takes the gap from a page of a list.
func (m *moment) read(page interface{ GetGap() *pb.Gap }) {
	if page.GetGap() != nil {
		m.gap = page.GetGap()
	}
}

// now returns the time from which tables and pages count.
func (m *moment) now(sys system) time.Time {
	if m.set() {
		return m.at
	}
	return sys.now()
}

// basis returns the basis of a list.
func (m *moment) basis(coverage *pb.Coverage) show.Basis {
	b := show.Basis{Gap: m.gap, Coverage: coverage}
	if m.set() {
		b.At = timestamppb.New(m.at)
	}
	return b
}

// noteMoment prints the time of the state, unless the output is for programs, which find it in the
// output itself.
func (q *query) noteMoment(m *moment) {
	if q.format.Whole() || !m.set() {
		return
	}
	q.note("The state at %s, %s ago:", utc(m.at), show.Duration(q.sys.now().Sub(m.at)))
	q.noteGap(m)
}

// noteGap prints that the state may be incomplete.
func (q *query) noteGap(m *moment) {
	if m.gap != nil {
		q.note("Warning: nothing was recorded %s: changes in this period may be missing.", show.GapPeriod(m.gap))
	}
}

// concludeAt is like query.conclude for the state at a time.
func (q *query) concludeAt(m *moment, found bool, c *pb.Coverage) error {
	if err := q.conclude(found, c); err != nil || m.gap == nil {
		return err
	}
	if q.format.Whole() {
		q.noteGap(m) // otherwise noteMoment has printed it already
	}
	return exitCannotTell
}

// unknownAt returns the exit code for a state that the journal does not have, or else the error of
// the request.
func (q *query) unknownAt(m *moment, exitCode bool, err error) error {
	if refused, ok := errors.AsType[*serverError](err); ok && refused.code == codes.OutOfRange && m.set() && exitCode {
		q.note("Cannot tell: %s", refused.message)
		return exitCannotTell
	}
	return err
}
