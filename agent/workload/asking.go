package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/agent/table"
)

// The sandboxes are listed when there is a new namespace without one. The status of each sandbox is
// requested once. The runtime's events are not followed: containerd 1.7 sends each to one client only
// (containerEventsChan in pkg/cri), which may be kubelet with EventedPLEG.

// Unnamed takes the namespaces that no sandbox is known for.
func (c *Runtime) Unnamed(unnamed []uint64) {
	if len(c.sockets) == 0 {
		return
	}
	c.wanting.Lock()
	defer c.wanting.Unlock()
	now, before := time.Now(), c.unnamed
	c.unnamed = make(map[uint64]*attempt, len(unnamed))
	for _, ns := range unnamed {
		a := before[ns]
		if a == nil {
			a = &attempt{last: now}
			defer table.Poke(c.poked)
		}
		c.unnamed[ns] = a
	}
}

// serve sends requests to the runtime until the connection is lost.
func (c *Runtime) serve(ctx context.Context, conn *grpc.ClientConn) {
	ctx, cancel := context.WithCancel(ctx)
	var g sync.WaitGroup
	defer g.Wait()
	defer cancel()
	g.Go(func() {
		if conn.WaitForStateChange(ctx, connectivity.Ready) {
			cancel()
		}
	})
	client := runtimev1.NewRuntimeServiceClient(conn)
	// Everything that the runtime did not know is requested again.
	clear(c.unanswered)
	c.wanting.Lock()
	for _, a := range c.unnamed {
		*a = attempt{last: time.Now()}
	}
	c.wanting.Unlock()
	lists := listing{next: time.Now()}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		if !lists.due(c.unnamedDue()).After(now) {
			lists.done(now, c.list(ctx, client))
		}
		c.ask(ctx, client)
		timer.Reset(max(0, time.Until(soonest(lists.due(c.unnamedDue()), c.unansweredDue()))))
		select {
		case <-ctx.Done():
		case <-c.poked:
		case <-timer.C:
		}
	}
}

type listing struct {
	next     time.Time // the next list without a reason
	soonest  time.Time // the earliest next list with a reason
	failures int
}

// due returns when to list. reason is the time of a reason to list, or zero.
func (l *listing) due(reason time.Time) time.Time {
	if reason.IsZero() || l.failures > 0 || reason.After(l.next) {
		return l.next
	}
	if reason.Before(l.soonest) {
		return l.soonest
	}
	return reason
}

// done records the result of a list that began at the given time.
func (l *listing) done(begun time.Time, err error) {
	now := time.Now()
	if err != nil {
		l.next = now.Add(min(longestTry, firstTry<<min(l.failures, 10)))
		l.failures++
		return
	}
	l.failures, l.next = 0, now.Add(listEvery)
	l.soonest = now.Add(max(firstTry, listShare*now.Sub(begun)))
}

// soonest returns the earlier one of two times. Zero means never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// unnamedDue returns when to list for the next namespace without a sandbox, zero for never.
func (c *Runtime) unnamedDue() (next time.Time) {
	c.wanting.Lock()
	defer c.wanting.Unlock()
	for _, a := range c.unnamed {
		next = soonest(next, a.due())
	}
	return next
}

// unansweredDue returns when to request the status of a sandbox again, zero for never.
func (c *Runtime) unansweredDue() (next time.Time) {
	for _, a := range c.unanswered {
		next = soonest(next, a.due())
	}
	return next
}

func readySandboxes() *runtimev1.ListPodSandboxRequest {
	return &runtimev1.ListPodSandboxRequest{
		Filter: &runtimev1.PodSandboxFilter{State: &runtimev1.PodSandboxStateValue{State: runtimev1.PodSandboxState_SANDBOX_READY}},
	}
}

// list lists the sandboxes that are ready. It schedules status requests for new ones, and
// forgets those that are gone.
func (c *Runtime) list(ctx context.Context, client runtimev1.RuntimeServiceClient) error {
	begun := time.Now()
	r, err := call(ctx, c, "ListPodSandbox", client.ListPodSandbox, readySandboxes())
	if err != nil {
		if ctx.Err() == nil {
			c.failed(errors.New("cannot list its sandboxes: " + status.Convert(err).Message()))
		}
		return err
	}
	c.answers()
	c.wanting.Lock()
	for _, a := range c.unnamed {
		if !a.last.After(begun) {
			a.last = begun
			a.tries++
		}
	}
	c.wanting.Unlock()

	ready := make(map[string]bool, len(r.GetItems()))
	for _, s := range r.GetItems() {
		if id := s.GetId(); id != "" && len(id) <= table.MaxLength && s.GetState() == runtimev1.PodSandboxState_SANDBOX_READY {
			ready[id] = true
		}
	}
	before := len(c.known)
	maps.DeleteFunc(c.known, func(id string, _ *Sandbox) bool { return !ready[id] })
	maps.DeleteFunc(c.unanswered, func(id string, _ *attempt) bool { return !ready[id] })
	for id := range ready {
		switch a := c.unanswered[id]; {
		case c.known[id] != nil:
		case a == nil:
			c.unanswered[id] = &attempt{} // at once
		case a.tries >= mostTries && begun.Sub(a.last) >= listEvery:
			a.tries = mostTries - 1 // one more attempt
		}
	}
	if len(c.known) != before {
		c.publish()
	}
	return nil
}

// ask requests the status of the sandboxes in the list.
func (c *Runtime) ask(ctx context.Context, client runtimev1.RuntimeServiceClient) {
	var ids []string
	now := time.Now()
	for id, a := range c.unanswered {
		if due := a.due(); !due.IsZero() && !due.After(now) {
			ids = append(ids, id)
		}
	}
	for round := range slices.Chunk(ids, askPerRound) {
		if !c.askRound(ctx, client, round) {
			return
		}
	}
}

// askRound requests the status of some sandboxes and publishes the result. It returns false if
// the runtime takes too long.
func (c *Runtime) askRound(ctx context.Context, client runtimev1.RuntimeServiceClient, ids []string) bool {
	type answer struct {
		sandbox *Sandbox
		err     error
	}
	answers := make([]answer, len(ids))
	var slow atomic.Bool
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for i, id := range ids {
		g.Go(func() error {
			if slow.Load() {
				answers[i].err = context.DeadlineExceeded
				return nil
			}
			r, err := call(ctx, c, "PodSandboxStatus", client.PodSandboxStatus, &runtimev1.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
			if err == nil {
				answers[i].sandbox, err = parseSandbox(r)
			}
			if status.Code(err) == codes.DeadlineExceeded {
				slow.Store(true)
			}
			answers[i].err = err
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	if ctx.Err() != nil {
		return false
	}
	news := false
	for i, id := range ids {
		switch s, err := answers[i].sandbox, answers[i].err; {
		case err == nil && s.ID == id:
			if s.Process.PID != 0 {
				s.Process, _ = c.procDir.Process(s.Process.PID)
			}
			c.known[id] = s
			delete(c.unanswered, id)
			news = true
		case errors.Is(err, errNotReady), status.Code(err) == codes.NotFound:
			delete(c.unanswered, id) // it has ended
		default:
			if err == nil {
				err = fmt.Errorf("the answer is about sandbox %q", s.ID)
			}
			c.log.Debug("cannot get status of sandbox", "id", id, "error", err)
			a := c.unanswered[id]
			a.last = time.Now()
			a.tries++
		}
	}
	if news {
		c.publish()
	}
	return !slow.Load()
}

// publish makes the known sandboxes visible to other goroutines.
func (c *Runtime) publish() {
	out := make([]*Sandbox, 0, len(c.known))
	for _, s := range c.known {
		if s.Workload != nil {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *Sandbox) int { return cmp.Compare(a.ID, b.ID) })
	var unparsed error
	for _, s := range out {
		unparsed = cmp.Or(unparsed, s.Unparsed)
	}
	c.Lacks.note("some addresses of pods are not known, because the container runtime names them in an unknown form", unparsed)
	c.published.Store(&out)
	c.Changed()
}

// Sandboxes returns the sandboxes that the runtime has, or had when it last answered.
func (c *Runtime) Sandboxes() []*Sandbox {
	if all := c.published.Load(); all != nil {
		return *all
	}
	return nil
}
