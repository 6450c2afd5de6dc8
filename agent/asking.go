package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/agent/form"
	"github.com/ipwitness/ipwitness/agent/wake"
)

// How cri asks the runtime that it found: it lists the sandboxes when a namespace
// came that it knows none for, follows the runtime's events where there are any,
// and asks for each sandbox once.

// namespaces takes the namespaces that no sandbox is known for.
func (c *cri) namespaces(unnamed []uint64) {
	if len(c.sockets) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, before := time.Now(), c.unnamed
	c.unnamed = make(map[uint64]*attempt, len(unnamed))
	for _, ns := range unnamed {
		a := before[ns]
		if a == nil {
			a = &attempt{last: now}
			defer wake.Poke(c.poked)
		}
		c.unnamed[ns] = a
	}
}

// serve asks the runtime until its connection is lost.
func (c *cri) serve(ctx context.Context, conn *grpc.ClientConn) {
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
	c.begin()
	if c.mayFollow() {
		g.Go(func() { c.follow(ctx, client) }) // before the list, so that nothing comes between
	}
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

// begin has everything asked anew that the runtime did not know.
func (c *cri) begin() {
	clear(c.unanswered)
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.told)
	for _, a := range c.unnamed {
		*a = attempt{last: time.Now()}
	}
}

// listing says when to list.
type listing struct {
	next     time.Time // without a reason
	soonest  time.Time // with one
	failures int
}

// due is when to list, with a reason to do so at a time that is zero for none.
func (l *listing) due(reason time.Time) time.Time {
	if reason.IsZero() || l.failures > 0 || reason.After(l.next) {
		return l.next
	}
	if reason.Before(l.soonest) {
		return l.soonest
	}
	return reason
}

// done takes the end of a list that was begun at a time.
func (l *listing) done(begun time.Time, err error) {
	now := time.Now()
	if err != nil {
		l.next = now.Add(min(findEvery, firstTry<<min(l.failures, 10)))
		l.failures++
		return
	}
	l.failures, l.next = 0, now.Add(listEvery)
	l.soonest = now.Add(max(firstTry, listShare*now.Sub(begun)))
}

// soonest gives the earlier one of two times; zero is never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// unnamedDue is when the next namespace without a sandbox wants a list; zero: never.
func (c *cri) unnamedDue() (next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := firstTry
	if c.events {
		first = eventsFirst
	}
	for _, a := range c.unnamed {
		next = soonest(next, a.due(first))
	}
	return next
}

// unansweredDue is when to ask for a sandbox again.
func (c *cri) unansweredDue() (next time.Time) {
	for _, a := range c.unanswered {
		next = soonest(next, a.due(firstTry))
	}
	return next
}

func readySandboxes() *runtimev1.ListPodSandboxRequest {
	return &runtimev1.ListPodSandboxRequest{
		Filter: &runtimev1.PodSandboxFilter{State: &runtimev1.PodSandboxStateValue{State: runtimev1.PodSandboxState_SANDBOX_READY}},
	}
}

// list lists the sandboxes that are ready: those that are not known yet are to
// be asked for, and those that are gone are forgotten.
func (c *cri) list(ctx context.Context, client runtimev1.RuntimeServiceClient) error {
	begun := time.Now()
	r, err := call(ctx, c, "ListPodSandbox", client.ListPodSandbox, readySandboxes())
	if err != nil {
		if ctx.Err() == nil {
			c.failed(errors.New("it lists no sandboxes: " + status.Convert(err).Message()))
		}
		return err
	}
	c.answers()
	c.mu.Lock()
	for _, a := range c.unnamed {
		if !a.last.After(begun) {
			a.last = begun
			a.tries++
		}
	}
	c.mu.Unlock()

	ready := make(map[string]bool, len(r.GetItems()))
	tooMany := 0
	for _, s := range r.GetItems() {
		switch id := s.GetId(); {
		case id == "" || len(id) > form.MaxLength || s.GetState() != runtimev1.PodSandboxState_SANDBOX_READY:
		case len(ready) < maxSandboxes:
			ready[id] = true
		default:
			tooMany++
		}
	}
	before := len(c.known)
	maps.DeleteFunc(c.known, func(id string, _ *sandbox) bool { return !ready[id] })
	maps.DeleteFunc(c.unanswered, func(id string, _ *attempt) bool { return !ready[id] })
	for id := range ready {
		switch a := c.unanswered[id]; {
		case c.known[id] != nil:
		case a == nil:
			c.unanswered[id] = &attempt{} // at once
		case a.tries >= mostTries && begun.Sub(a.last) >= listEvery:
			a.tries = mostTries - 1 // once more
		}
	}
	if len(c.known) != before {
		c.publish()
	}
	c.mu.Lock()
	other := tooMany != c.tooMany
	c.tooMany = tooMany
	c.mu.Unlock()
	if other {
		c.statusChanged()
	}
	return nil
}

// ask asks for the sandboxes that the runtime listed or told of.
func (c *cri) ask(ctx context.Context, client runtimev1.RuntimeServiceClient) {
	c.mu.Lock()
	told := c.told
	c.told = map[string]bool{}
	c.mu.Unlock()
	gone := false
	for id, there := range told {
		switch _, known := c.known[id]; {
		case !there:
			delete(c.known, id)
			delete(c.unanswered, id)
			gone = gone || known
		case !known && len(c.known)+len(c.unanswered) < maxSandboxes:
			c.unanswered[id] = &attempt{}
		}
	}
	if gone {
		c.publish()
	}
	var ids []string
	now := time.Now()
	for id, a := range c.unanswered {
		if due := a.due(firstTry); !due.IsZero() && !due.After(now) {
			ids = append(ids, id)
		}
	}
	for round := range slices.Chunk(ids, askPerRound) {
		if !c.askRound(ctx, client, round) {
			return
		}
	}
}

// askRound asks for some sandboxes, and publishes what is known then. It gives
// false where the runtime takes too long.
func (c *cri) askRound(ctx context.Context, client runtimev1.RuntimeServiceClient, ids []string) bool {
	type answer struct {
		sandbox *sandbox
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
	_ = g.Wait() // they give none
	if ctx.Err() != nil {
		return false
	}
	news := false
	for i, id := range ids {
		switch s, err := answers[i].sandbox, answers[i].err; {
		case err == nil && s.id == id:
			if s.process.PID != 0 {
				s.process, _ = c.procDir.Process(s.process.PID)
			}
			c.known[id] = s
			delete(c.unanswered, id)
			news = true
		case errors.Is(err, errNotReady), status.Code(err) == codes.NotFound:
			delete(c.unanswered, id) // it has ended
		default:
			if err == nil {
				err = fmt.Errorf("the answer is about sandbox %q", s.id)
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

// publish has others see the sandboxes that are known.
func (c *cri) publish() {
	out := make([]*sandbox, 0, len(c.known))
	for _, s := range c.known {
		if s.workload != nil {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *sandbox) int { return cmp.Compare(a.id, b.id) })
	c.sandboxes.Store(&out)
	c.changed()
}

// now gives the sandboxes that the runtime has, or had when it answered last.
func (c *cri) now() []*sandbox {
	if all := c.sandboxes.Load(); all != nil {
		return *all
	}
	return nil
}

// mayFollow says whether to listen takes nothing from others. containerd 1.7 gives
// each event to one listener alone (containerEventsChan in pkg/cri): what we
// heard kubelet would miss, which waits for events where it has EventedPLEG.
func (c *cri) mayFollow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !strings.HasPrefix(c.runtime, "containerd 1.")
}

// follow takes what the runtime tells of sandboxes by itself, if it does.
func (c *cri) follow(ctx context.Context, client runtimev1.RuntimeServiceClient) {
	defer c.setEvents(false)
	stream, err := client.GetContainerEvents(ctx, &runtimev1.GetEventsRequest{})
	for err == nil {
		var e *runtimev1.ContainerEventResponse
		if e, err = stream.Recv(); err != nil {
			break
		}
		// Some have a stream on which nothing is ever told.
		c.setEvents(true)
		s := e.GetPodSandboxStatus()
		id := cmp.Or(s.GetId(), e.GetContainerId())
		ready := s.GetState() == runtimev1.PodSandboxState_SANDBOX_READY
		if s == nil {
			ready = false // it has been removed; or it is no sandbox, and is not known
		}
		if id == "" || len(id) > form.MaxLength {
			continue
		}
		c.mu.Lock()
		if len(c.told) < maxSandboxes {
			c.told[id] = ready
		}
		c.mu.Unlock()
		wake.Poke(c.poked)
	}
	if ctx.Err() != nil {
		err = nil
	}
	c.count("GetContainerEvents", err)
	if err != nil {
		c.log.Debug("the container runtime does not tell of sandboxes: they are listed when namespaces come", "error", err)
	}
}

func (c *cri) setEvents(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = on
}
