package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// reporter sends the table to one aggregator: a snapshot, then changes.
type reporter struct {
	log       *slog.Logger
	table     *table
	hello     *ipwitnessv1.Hello
	client    ipwitnessv1.ReportServiceClient
	check     func([]netip.Addr) bool        // reads addresses again from their sources, and says whether it could
	contest   func(addr netip.Addr, on bool) // looks at an address more often
	connected atomic.Bool
}

// Waits between two tries to connect.
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 10 * time.Second
)

// run connects again and again until ctx ends.
func (r *reporter) run(ctx context.Context) error {
	backoff := firstBackoff
	for {
		begin := time.Now()
		err := r.stream(ctx)
		r.connected.Store(false)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begin) > lastBackoff {
			backoff = firstBackoff
		}
		wait := backoff/2 + rand.N(backoff)
		r.log.Warn("connection to the aggregator ended, trying again", "error", err, "wait", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		backoff = min(backoff*2, lastBackoff)
	}
}

// stream is one connection, from hello to its end.
func (r *reporter) stream(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := r.client.Report(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	resync := make(chan struct{}, 1)
	g.Go(func() error { return r.receive(stream, resync) })
	g.Go(func() error {
		err := r.send(ctx, stream, resync)
		// Either half takes the other with it.
		_ = stream.CloseSend()
		return err
	})
	return g.Wait()
}

// send sends the table, and what changes of it.
func (r *reporter) send(ctx context.Context, stream ipwitnessv1.ReportService_ReportClient, resync <-chan struct{}) error {
	var sequence uint64
	begin := true
	for {
		if begin {
			r.table.snapshot(time.Now())
		}
		for {
			m, more := r.table.take(time.Now())
			if m == nil {
				if !begin {
					break
				}
				m = &ipwitnessv1.ReportRequest{} // an empty table is a snapshot, too
			}
			if begin {
				m.SnapshotBegin = true
				begin = false
				if sequence == 0 {
					m.Hello = r.hello
				}
				for more { // a snapshot ends with the message that says so
					sequence++
					m.Sequence = sequence
					if err := stream.Send(m); err != nil {
						return err
					}
					if m, more = r.table.take(time.Now()); m == nil {
						m, more = &ipwitnessv1.ReportRequest{}, false
					}
				}
				m.SnapshotEnd = true
			}
			sequence++
			m.Sequence = sequence
			if err := stream.Send(m); err != nil {
				return err
			}
			r.connected.Store(true)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-resync:
			begin = true
		case <-r.table.wake:
		}
	}
}

// receive does what the aggregator asks.
func (r *reporter) receive(stream ipwitnessv1.ReportService_ReportClient, resync chan<- struct{}) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, c := range m.GetContests() {
			if addr, ok := netip.AddrFromSlice(c.GetAddress()); ok {
				r.contest(addr, c.GetContested())
			}
		}
		if c := m.GetCheck(); c != nil {
			var addrs []netip.Addr
			for _, b := range c.GetAddresses() {
				if addr, ok := netip.AddrFromSlice(b); ok {
					addrs = append(addrs, addr)
				}
			}
			if r.check(addrs) { // no answer: it will be asked again
				r.table.update(func() { r.table.checked = append(r.table.checked, c.GetId()) })
			}
		}
		if m.GetResync() {
			poke(resync)
		}
	}
}
