package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
)

const (
	// chartMemory is the chart's memory limit in MiB, and chartGOMEMLIMIT the GOMEMLIMIT
	// that the chart derives from it.
	chartMemory     = 512
	chartGOMEMLIMIT = "483183820"
	floodedNodes    = 8
	// wellBehavedOwners is the number of owners on one additional node, whose data must be
	// complete.
	wellBehavedOwners = 110
)

// memoryRows measures the memory of the aggregator under the chart's limit with the
// largest reports that it accepts: one flooded node, eight nodes one after the other,
// and eight at once after a restart. The data of an honest node beside them must be
// complete.
func memoryRows(ctx context.Context, bin string) (rows []row, err error) {
	host, err := netlab.New()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if err := os.Setenv("GOMEMLIMIT", chartGOMEMLIMIT); err != nil { // this process has already read its own
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Unsetenv("GOMEMLIMIT")) }()
	c := &crowd{site: site{Host: host}, bin: bin}
	defer c.kill()
	for _, nodes := range []int{1, floodedNodes} {
		for _, together := range []bool{false, true} {
			if nodes == 1 && together {
				continue
			}
			measured, err := c.flood(ctx, nodes, together)
			if rows = append(rows, measured...); err != nil {
				return rows, err
			}
		}
	}
	return rows, nil
}

// size is the number of records that a flooded node reports.
type size struct{ namespaces, kernel, wire int }

// worst is close to the most that one node may report. much is several times the share
// of one node among many.
var worst, much = size{40_000, 240_000, 240_000}, size{5_000, 20_000, 20_000}

// flood measures the given number of flooded nodes, one after the other or all together.
func (c *crowd) flood(ctx context.Context, nodes int, together bool) ([]row, error) {
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	defer c.kill()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams, streaming := errgroup.WithContext(ctx)
	defer func() { _ = streams.Wait() }() // they end with ctx
	defer cancel()
	taken := make(chan struct{}, nodes)
	each := much
	if nodes == 1 {
		each = worst
	}
	for n := range nodes {
		conn, err := sim.Dial(c.Host, local+":9640")
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		streams.Go(func() error {
			for { // a slow aggregator ends a stream, and the agent reconnects
				err := flooded(streaming, ipwitnessv1.NewReportServiceClient(conn), n, each, taken)
				if status.Code(err) != codes.DeadlineExceeded {
					return err
				}
			}
		})
		if !together {
			if err := wait(streaming, streams, taken, 1); err != nil {
				return nil, err
			}
		}
	}
	if together {
		if err := wait(streaming, streams, taken, nodes); err != nil {
			return nil, err
		}
	}
	fleet, err := sim.Start(c.Host, local+":9640", sim.Size{Nodes: 1, Owners: wellBehavedOwners})
	if err != nil {
		return nil, err
	}
	defer fleet.Stop()
	wellBehaved, err := c.wellBehaved(ctx)
	if err != nil {
		return nil, err
	}
	rss, rssErr := c.rss()
	peak, peakErr := c.memory("VmHWM")
	text, textErr := c.program.Text(ctx, "/metrics")
	if err := errors.Join(rssErr, peakErr, textErr); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%d flooded nodes, one after the other", nodes)
	switch {
	case nodes == 1:
		what = "one flooded node"
	case together:
		what = fmt.Sprintf("%d flooded nodes that come at once", nodes)
	}
	used, limit := sum(text, "ipwitness_aggregator_budget_used_bytes "), sum(text, "ipwitness_aggregator_budget_bytes ")
	return []row{
		{
			fmt.Sprintf("RSS of the aggregator with %s, peak", what), fmt.Sprintf("%.0f MiB", peak),
			fmt.Sprintf("≤ %d MiB", chartMemory), peak <= chartMemory,
		},
		{"  afterwards", fmt.Sprintf("%.0f MiB", rss), "", true},
		{"  used budget", fmt.Sprintf("%d of %d MiB", used>>20, limit>>20), "", used <= limit},
		{"  records dropped of a well-behaved node meanwhile", fmt.Sprint(wellBehaved.GetLeftOut()), "0", !wellBehaved.GetIncomplete() && wellBehaved.GetLeftOut() == 0},
	}, nil
}

// wait waits until the reports of all nodes are accepted.
func wait(ctx context.Context, streams *errgroup.Group, taken <-chan struct{}, nodes int) error {
	for range nodes {
		select {
		case <-taken:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), streams.Wait())
		}
	}
	return nil
}

// wellBehaved waits for all owners of the honest node.
func (c *crowd) wellBehaved(ctx context.Context) (*ipwitnessv1.Node, error) {
	for deadline := time.Now().Add(time.Minute); ; {
		nodes, err := c.program.Nodes(ctx)
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			if n.GetName() == "node-0" && n.GetState() == ipwitnessv1.Node_LIVE {
				return n, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, errors.New("timed out waiting for the well-behaved node")
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// flooded reports as the agent of a node that is flooded or lies, until ctx ends.
func flooded(ctx context.Context, client ipwitnessv1.ReportServiceClient, node int, each size, taken chan<- struct{}) error {
	stream, err := client.Report(ctx)
	if err != nil {
		return err
	}
	pings, acknowledged := make(chan uint64, 1), make(chan uint64, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			m, err := stream.Recv()
			if err != nil {
				return err
			}
			latest(acknowledged, m.GetAcknowledged())
			if m.GetPing() != 0 {
				latest(pings, m.GetPing())
			}
		}
	})
	g.Go(func() error {
		sequence, last := uint64(0), false
		send := func(m *ipwitnessv1.ReportRequest) error {
			sequence++
			m.Sequence = sequence
			return stream.Send(m)
		}
		for m := range floodMessages(node, each) {
			select {
			case id := <-pings:
				m.Pong = &ipwitnessv1.Pong{Id: id, SentAt: timestamppb.Now()}
			default:
			}
			if err := send(m); err != nil {
				return err
			}
		}
		whole := sequence
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case id := <-pings:
				if err := send(&ipwitnessv1.ReportRequest{Pong: &ipwitnessv1.Pong{Id: id, SentAt: timestamppb.Now()}}); err != nil {
					return err
				}
			case n := <-acknowledged:
				if n >= whole && !last {
					last = true
					taken <- struct{}{}
				}
			}
		}
	})
	return g.Wait()
}

// latest replaces the number in a channel.
func latest(to chan uint64, n uint64) {
	select {
	case <-to:
	default:
	}
	to <- n
}

// floodMessages yields the snapshot of a flooded node: two of its namespaces have each
// address, and a third one claims it on the wire.
func floodMessages(node int, each size) func(func(*ipwitnessv1.ReportRequest) bool) {
	const atOnce = 4096
	now := timestamppb.Now()
	name := fmt.Sprintf("flooded-%d", node)
	mac := func(i int) []byte {
		return binary.BigEndian.AppendUint32([]byte{2, byte(node)}, uint32(i))
	}
	address := func(i int) []byte { return binary.BigEndian.AppendUint32(nil, 100<<24|uint32(node)<<20|uint32(i)) }
	return func(yield func(*ipwitnessv1.ReportRequest) bool) {
		m := &ipwitnessv1.ReportRequest{
			Hello:         &ipwitnessv1.Hello{Node: name, BootId: name, Netns: "4026531840", Epoch: 1, Version: "v0.0.0-sim", Kernel: "6.18.0"},
			SnapshotBegin: true,
			Namespaces:    []*ipwitnessv1.NamespaceRecord{{Id: 1, Netns: "4026531840", Workload: &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_HOST, Name: name}}},
			Links:         []*ipwitnessv1.LinkRecord{{Name: "br0", Kind: ipwitnessv1.LinkRecord_BRIDGE}},
			Interfaces:    []*ipwitnessv1.InterfaceRecord{{Namespace: 1, Index: 2, Name: "port", Kind: "veth", Mac: mac(0), Attachment: ipwitnessv1.InterfaceRecord_OWN, Link: "br0"}},
			Status:        &ipwitnessv1.StatusRecord{Wire: "tcx"},
		}
		records := 0
		next := func(claim *ipwitnessv1.ClaimRecord) bool {
			if claim != nil {
				claim.FirstSeen, claim.LastSeen, claim.Count, claim.Age = now, now, 1, durationpb.New(time.Second)
				m.Claims = append(m.Claims, claim)
			}
			if records++; records%atOnce != 0 {
				return true
			}
			full := m
			m = &ipwitnessv1.ReportRequest{}
			return yield(full)
		}
		for i := range each.namespaces {
			m.Namespaces = append(m.Namespaces, &ipwitnessv1.NamespaceRecord{Id: uint32(i + 2), Netns: fmt.Sprint(4026532000 + i), Workload: &ipwitnessv1.Workload{
				Kind: ipwitnessv1.Workload_POD, Namespace: "default", Name: fmt.Sprintf("pod-%d-%d", node, i), Uid: fmt.Sprintf("%036x", i), ContainerId: fmt.Sprintf("%064x", node<<24|i), Source: "cri",
			}})
			m.Interfaces = append(m.Interfaces, &ipwitnessv1.InterfaceRecord{
				Namespace: uint32(i + 2), Index: 2, Name: "eth0", Kind: "veth", Mac: mac(1<<28 | i),
				Attachment: ipwitnessv1.InterfaceRecord_PEER, Link: "br0", HostInterface: "port",
			})
			if !next(nil) {
				return
			}
		}
		for i := range each.kernel {
			if !next(&ipwitnessv1.ClaimRecord{Address: address(i / 2), Kind: ipwitnessv1.Evidence_ASSIGNED, Namespace: uint32(2 + i%each.namespaces), Index: 2, PrefixLength: 24, AssignedAt: now}) {
				return
			}
		}
		for i := range each.wire {
			if !next(&ipwitnessv1.ClaimRecord{Address: address(i), Kind: ipwitnessv1.Evidence_ANNOUNCED, Namespace: 1, Index: 2, Mac: mac(2<<28 | i), Link: "br0"}) {
				return
			}
		}
		m.SnapshotEnd = true
		yield(m)
	}
}
