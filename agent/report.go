package agent

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

// reporter sends the table to one aggregator: a snapshot, then changes.
type reporter struct {
	log       *slog.Logger
	table     *table.Table
	hello     *ipwitnessv1.Hello
	client    ipwitnessv1.ReportServiceClient
	check     func([]netip.Addr) bool // reads addresses again from their sources, and says whether it could
	contests  *contests
	connected atomic.Bool // the aggregator has answered on the stream
}

// Waits between two tries to connect, and between two streams that end early.
const (
	FirstBackoff = 100 * time.Millisecond
	LastBackoff  = 3 * time.Second
)

// takenOverBackoff is how long one of two streams to the same aggregator leaves
// that to the other: each takes over from the other, with a snapshot.
const takenOverBackoff = time.Minute

// silentFor is how long an aggregator that pings may say nothing: it pings every
// few seconds.
const silentFor = 30 * time.Second

var (
	errEnded  = errors.New("the aggregator ended the stream")
	errSilent = fmt.Errorf("the aggregator has said nothing for %s", silentFor)
)

// run keeps a stream until ctx ends.
func (r *reporter) run(ctx context.Context) error {
	backoff := FirstBackoff
	said := "" // why streams end, so that it is not said again and again
	for {
		lasted, err := r.stream(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if lasted > LastBackoff {
			backoff, said = FirstBackoff, ""
		}
		reason := status.Convert(err).Message()
		if status.Code(err) == codes.Aborted {
			// Not by our own next stream: that begins when this one has ended.
			backoff = takenOverBackoff
			reason += ": is this the same aggregator as that of another --aggregator, or was this machine cloned while it ran?"
		}
		wait := backoff/2 + rand.N(backoff/2)
		level := slog.LevelDebug
		if reason != said {
			level, said = slog.LevelWarn, reason
		}
		r.log.Log(ctx, level, "report to the aggregator ended, trying again", "error", reason, "wait", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		backoff = min(backoff*2, LastBackoff)
	}
}

// stream is one stream, from hello to its end, and says how long it lasted.
func (r *reporter) stream(ctx context.Context) (lasted time.Duration, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	g, ctx := errgroup.WithContext(ctx)
	stream, err := r.client.Report(ctx)
	if status.Code(err) == codes.Unavailable && ctx.Err() == nil {
		r.log.Warn("cannot reach the aggregator: what is witnessed is kept, and reported once it can be reached",
			"error", status.Convert(err).Message())
		// From here on the connection is tried again, with a backoff of its own.
		stream, err = r.client.Report(ctx, grpc.WaitForReady(true))
	}
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	reader := r.table.Attach()
	defer reader.Detach()
	contests := r.contests.of()
	defer contests.end()
	defer r.connected.Store(false)
	g.Go(func() error { return r.receive(stream, reader, contests, end) })
	g.Go(func() error {
		err := r.send(ctx, stream, reader)
		if errors.Is(err, io.EOF) {
			return nil // it has ended, and the other half is told why
		}
		return err
	})
	_ = g.Wait() // the cause says more
	return time.Since(begin), context.Cause(ctx)
}

// send sends the table, and what changes of it.
func (r *reporter) send(ctx context.Context, stream ipwitnessv1.ReportService_ReportClient, reader *table.Reader) error {
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

// receive does what the aggregator asks. Where that says nothing any more, it
// ends the stream.
func (r *reporter) receive(stream ipwitnessv1.ReportService_ReportClient, reader *table.Reader, contests *contestsOf, end func(error)) error {
	silence := time.AfterFunc(silentFor, func() { end(errSilent) })
	silence.Stop() // until the first ping: an older aggregator has none
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
		if !r.connected.Swap(true) {
			r.log.Info("reporting to the aggregator")
		}
		for _, c := range m.GetContests() {
			if addr, ok := netip.AddrFromSlice(c.GetAddress()); ok {
				contests.set(addr.Unmap(), c.GetContested())
			}
		}
		if c := m.GetCheck(); c != nil {
			var addrs []netip.Addr
			for _, b := range c.GetAddresses() {
				if addr, ok := netip.AddrFromSlice(b); ok {
					addrs = append(addrs, addr.Unmap())
				}
			}
			if r.check(addrs) { // no answer: it will be asked again
				reader.Answer(table.Questions{Checks: []uint64{c.GetId()}})
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
