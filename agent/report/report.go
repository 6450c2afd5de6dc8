// Package report sends the table to the aggregators. Each of them gets a stream that begins
// with a snapshot and continues with changes.
//
// It contains no sources of claims.
package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/agent/table"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Reporter sends the table to one aggregator.
type Reporter struct {
	log       *slog.Logger
	table     *table.Table
	hello     *ipwitnessv1.Hello
	client    ipwitnessv1.ReportServiceClient
	check     func([]netip.Addr) bool // see New
	departed  func(netip.Addr, string)
	believed  func(netip.Addr) *ipwitnessv1.BeliefAnswer
	contests  *Contests
	instances *Instances
	state     atomic.Int32
	// ended gets a token when a stream has ended.
	ended chan<- struct{}
}

// The states of a stream.
const (
	streamDisconnected = iota
	streamConnected    // the aggregator has answered to a report
	streamRedundant    // another stream of the agent leads to the same aggregator
)

// New returns a reporter to the aggregator that conn leads to. check reads addresses
// again from their sources, and reports whether it could. departed takes the owners on other nodes that have given an address
// up, with their MACs, and believed answers a question about an address. The reporters of an agent share its
// contests and instances.
func New(log *slog.Logger, t *table.Table, hello *ipwitnessv1.Hello, conn grpc.ClientConnInterface,
	check func([]netip.Addr) bool, departed func(netip.Addr, string), believed func(netip.Addr) *ipwitnessv1.BeliefAnswer, contests *Contests, instances *Instances,
) *Reporter {
	return &Reporter{
		log: log, table: t, hello: hello, client: ipwitnessv1.NewReportServiceClient(conn), check: check, departed: departed, believed: believed, contests: contests, instances: instances,
	}
}

// The first and the longest wait between two attempts to connect, and between two streams
// that end early.
const (
	FirstBackoff = 100 * time.Millisecond
	LastBackoff  = 3 * time.Second
)

// takenOverBackoff is the wait after the stream of another agent took over. Otherwise two agents would
// take over from each other again and again, each with a snapshot.
const takenOverBackoff = time.Minute

// silentFor is how long an aggregator that pings may be silent. Aggregators ping every few
// seconds.
const silentFor = 30 * time.Second

var (
	errEnded  = errors.New("the aggregator ended the stream")
	errSilent = fmt.Errorf("the aggregator has sent nothing for %s", silentFor)
)

// Run keeps a stream open until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	backoff := FirstBackoff
	logged := "" // the last logged reason, which is not logged again
	for {
		lasted, err := r.stream(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if taken := (*takenError)(nil); errors.As(err, &taken) {
			r.state.Store(streamRedundant)
			r.log.Info("another address leads to the same aggregator: reporting to it only once")
			select {
			case <-ctx.Done():
				return nil
			case <-taken.until:
			}
			r.state.Store(streamDisconnected)
			backoff, logged = FirstBackoff, ""
			continue
		}
		table.Poke(r.ended)
		if lasted > LastBackoff {
			backoff, logged = FirstBackoff, ""
		}
		reason := status.Convert(err).Message()
		if status.Code(err) == codes.Aborted {
			// No stream of this agent can be the cause: two of them never lead to one aggregator.
			backoff = takenOverBackoff
			reason += ": was this machine cloned while it ran?"
		}
		wait := backoff/2 + rand.N(backoff/2)
		level := slog.LevelDebug
		if reason != logged {
			level, logged = slog.LevelWarn, reason
		}
		r.log.Log(ctx, level, "report stream to the aggregator ended, trying again", "error", reason, "wait", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		backoff = min(backoff*2, LastBackoff)
	}
}

// stream opens one stream, serves it until it ends, and returns how long it lasted.
func (r *Reporter) stream(ctx context.Context) (lasted time.Duration, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	g, ctx := errgroup.WithContext(ctx)
	stream, err := r.client.Report(ctx)
	if status.Code(err) == codes.Unavailable && ctx.Err() == nil {
		r.log.Warn("cannot reach the aggregator: claims are kept, and reported when it is reachable",
			"error", status.Convert(err).Message())
		// The connection retries with a backoff of its own.
		stream, err = r.client.Report(ctx, grpc.WaitForReady(true))
	}
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	first, err := stream.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return 0, errEnded
	case err != nil:
		return 0, err
	}
	release, taken := r.instances.hold(first.GetInstance())
	if taken != nil {
		return 0, &takenError{until: taken}
	}
	defer release()
	reader := r.table.Attach()
	defer reader.Detach()
	contests := r.contests.of()
	defer contests.end()
	defer r.state.Store(streamDisconnected)
	g.Go(func() error { return r.receive(stream, reader, contests, end) })
	g.Go(func() error {
		err := r.send(ctx, stream, reader)
		if errors.Is(err, io.EOF) {
			return nil // the stream has ended, and receive gets the reason
		}
		return err
	})
	_ = g.Wait() // the cause is more specific
	return time.Since(begin), context.Cause(ctx)
}

func (r *Reporter) send(ctx context.Context, stream ipwitnessv1.ReportService_ReportClient, reader *table.Reader) error {
	hello := r.hello
	for sequence := uint64(1); ; sequence++ {
		m := reader.Take(time.Now())
		for ; m == nil; m = reader.Take(time.Now()) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-reader.Wake():
			}
		}
		m.Sequence, m.Hello, hello = sequence, hello, nil
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}

// receive serves the requests of the aggregator. If an aggregator that pings falls silent,
// receive ends the stream.
func (r *Reporter) receive(stream ipwitnessv1.ReportService_ReportClient, reader *table.Reader, contests *contestsOf, end func(error)) error {
	silence := time.AfterFunc(silentFor, func() { end(errSilent) })
	silence.Stop() // until the first ping: older aggregators do not ping
	defer silence.Stop()
	pings := false
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errEnded
		case err != nil:
			return err
		}
		if pings = pings || m.GetPing() != 0; pings {
			silence.Reset(silentFor)
		}
		if r.state.Swap(streamConnected) != streamConnected {
			r.log.Info("reporting to the aggregator")
		}
		for _, c := range m.GetContests() {
			if addr, ok := netip.AddrFromSlice(c.GetAddress()); ok {
				contests.set(addr.Unmap(), c.GetContested())
			}
		}
		for _, d := range m.GetDepartures() {
			if addr, ok := netip.AddrFromSlice(d.GetAddress()); ok {
				r.departed(addr.Unmap(), string(d.GetMac()))
			}
		}
		if c := m.GetCheck(); c != nil {
			var addrs []netip.Addr
			for _, b := range c.GetAddresses() {
				if addr, ok := netip.AddrFromSlice(b); ok {
					addrs = append(addrs, addr.Unmap())
				}
			}
			if r.check(addrs) { // otherwise the aggregator repeats the check
				reader.Answer(table.Questions{Checks: []uint64{c.GetId()}})
			}
		}
		for _, q := range m.GetQuestions() {
			if addr, ok := netip.AddrFromSlice(q.GetAddress()); ok {
				answer := r.believed(addr.Unmap())
				answer.Id = q.GetId()
				reader.Answer(table.Questions{Beliefs: []*ipwitnessv1.BeliefAnswer{answer}})
			}
		}
		if id := m.GetPing(); id != 0 {
			reader.Answer(table.Questions{Ping: id})
		}
		if m.GetResync() {
			reader.Resync()
		}
	}
}
