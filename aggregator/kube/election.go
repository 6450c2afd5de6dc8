package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// leaseTimes are the times of an election. Their values are those of Kubernetes' own controllers.
type leaseTimes struct {
	// lasts is the time after its last renewal after which another replica takes the lease.
	lasts time.Duration
	// within is the time after the last renewal after which the leader stops. It is shorter than lasts,
	// so that there are never two leaders.
	within time.Duration
	// every is the time between two attempts.
	every time.Duration
}

var usualLease = leaseTimes{lasts: 15 * time.Second, within: 10 * time.Second, every: 2 * time.Second}

// electionProblem is the key of the problem that no leader can be elected.
const electionProblem = "elect a leader"

// election elects the leader of the replicas by a Lease. It follows the rules of
// client-go/tools/leaderelection and uses the same fields, but not that package: it depends on the typed
// clientset, whose scheme alone takes 15 MB of program, and 9 MB of memory in every aggregator and agent.
//
// The API server decides: an update of the Lease fails if another replica has changed it. A replica takes
// the Lease if it has not changed for its duration, by the replica's own clock.
type election struct {
	cluster *Cluster
	// namespace and name are those of the Lease. Without a name there is no election.
	namespace, name string
	identity        string
	times           leaseTimes

	// seen is the last known state of the Lease, and seenAt the time since which it has had that spec.
	// Only the goroutine of run uses them.
	seen   *coordinationv1.Lease
	seenAt time.Time

	mu sync.Mutex
	// holder is the identity of the leader; empty if there is none. until is the time until which this
	// replica leads, unless it renews the lease; zero if it does not lead.
	holder string
	until  time.Time
}

// newElection returns the election by a Lease, NAMESPACE/NAME; empty for none.
func newElection(c *Cluster, lease string) (*election, error) {
	e := &election{cluster: c, times: usualLease}
	if lease == "" {
		return e, nil
	}
	var found bool
	if e.namespace, e.name, found = strings.Cut(lease, "/"); !found || e.namespace == "" || e.name == "" {
		return nil, fmt.Errorf("use lease %q: it must be NAMESPACE/NAME", lease)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("use lease: %w", err)
	}
	// A container that starts again has the name of the one before, but must not take over its lease.
	e.identity = fmt.Sprintf("%s_%016x", host, rand.Uint64())
	return e, nil
}

// Lead calls do whenever this replica becomes the leader, until ctx ends. The context that it passes ends
// as soon as the replica does not lead any longer. Without an election, there is one replica, which always
// leads.
func (c *Cluster) Lead(ctx context.Context, do func(context.Context)) {
	if c == nil || c.election.name == "" {
		do(ctx)
		return
	}
	e := c.election
	for e.acquire(ctx) {
		e.lead(ctx, do)
	}
}

// Election returns which replica leads; nil if there is no election.
func (c *Cluster) Election() *pb.Election {
	if c == nil || c.election.name == "" {
		return nil
	}
	e := c.election
	leads := e.leads()
	e.mu.Lock()
	defer e.mu.Unlock()
	name := func(identity string) string {
		host, _, _ := strings.Cut(identity, "_")
		return ipam.Plain(host)
	}
	return &pb.Election{Replica: name(e.identity), Leader: name(e.holder), Leads: leads}
}

// leads reports whether this replica leads now. A process that was paused for too long does not.
func (e *election) leads() bool {
	if e.name == "" {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Now().Before(e.until)
}

// set sets the leader, and the time until which this replica leads.
func (e *election) set(holder string, until time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holder, e.until = holder, until
}

// acquire waits until this replica leads. It returns false if ctx ends before.
func (e *election) acquire(ctx context.Context) bool {
	for {
		begun := time.Now()
		held, err := e.attempt(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case held:
			e.set(e.identity, begun.Add(e.times.within))
			e.cluster.log.Info("this replica leads: it writes Events and exports", "lease", e.namespace+"/"+e.name)
			return true
		case err != nil:
			e.cluster.log.Debug("cannot take the lease: trying again", "error", err)
		}
		// Replicas that start together do not ask at the same times.
		if !e.pause(ctx, e.times.every+rand.N(e.times.every/2)) {
			return false
		}
	}
}

// lead calls do until ctx ends or the lease is lost, and then gives the lease up.
func (e *election) lead(ctx context.Context, do func(context.Context)) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(working)
	}()
	e.keep(ctx)
	stop()
	<-done
	if e.leads() {
		e.release(context.WithoutCancel(ctx))
	}
	e.set("", time.Time{})
	e.cluster.log.Info("this replica does not lead any longer", "lease", e.namespace+"/"+e.name)
}

// keep renews the lease until ctx ends or the lease is lost.
func (e *election) keep(ctx context.Context) {
	for e.pause(ctx, e.times.every) {
		e.mu.Lock()
		until := e.until
		e.mu.Unlock()
		begun := time.Now()
		trying, cancel := context.WithDeadline(ctx, until)
		held, err := e.attempt(trying)
		cancel()
		switch {
		case held:
			e.set(e.identity, begun.Add(e.times.within))
		case err == nil:
			e.set("", time.Time{}) // another replica leads
			return
		case !e.leads():
			if ctx.Err() == nil {
				e.cluster.log.Warn("cannot renew the lease", "error", err)
			}
			return
		}
	}
}

// pause waits, and reports whether ctx lasts.
func (e *election) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt takes or renews the lease, and reports whether this replica holds it. Without an error, another
// replica does.
func (e *election) attempt(ctx context.Context) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.times.within/2)
	defer cancel()
	defer func() { e.report(ctx, err) }()
	if e.mine() { // usually nobody else has changed it
		if err := e.put(ctx); err == nil {
			return true, nil
		}
	}
	lease := new(coordinationv1.Lease)
	err = e.cluster.clients.coordination.Get().Namespace(e.namespace).Resource("leases").Name(e.name).Do(ctx).Into(lease)
	switch {
	case apierrors.IsNotFound(err):
		return e.create(ctx)
	case err != nil:
		return false, fmt.Errorf("read lease: %w", err)
	}
	now := time.Now()
	if e.seen == nil || !reflect.DeepEqual(lease.Spec, e.seen.Spec) {
		e.seenAt = now
	}
	e.seen = lease
	if holder := valueOf(lease.Spec.HolderIdentity); holder != "" && holder != e.identity {
		lasts := time.Duration(valueOf(lease.Spec.LeaseDurationSeconds)) * time.Second
		if now.Before(e.seenAt.Add(lasts)) {
			e.set(holder, time.Time{})
			return false, nil
		}
	}
	if err := e.put(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// mine reports whether this replica held the lease when it was last seen.
func (e *election) mine() bool {
	return e.seen != nil && valueOf(e.seen.Spec.HolderIdentity) == e.identity
}

// create makes the Lease.
func (e *election) create(ctx context.Context) (bool, error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: e.name}, Spec: e.spec(nil)}
	made := new(coordinationv1.Lease)
	if err := e.cluster.clients.coordination.Post().Namespace(e.namespace).Resource("leases").Body(lease).Do(ctx).Into(made); err != nil {
		return false, fmt.Errorf("create lease: %w", err)
	}
	e.seen, e.seenAt = made, time.Now()
	return true, nil
}

// put takes or renews the Lease as it was last seen.
func (e *election) put(ctx context.Context) error {
	next := e.seen.DeepCopy()
	next.Spec = e.spec(&e.seen.Spec)
	return e.update(ctx, next)
}

// release gives the lease up, so that another replica can take it at once.
func (e *election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.times.every)
	defer cancel()
	next := e.seen.DeepCopy()
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = new(""), new(int32(1))
	if err := e.update(ctx, next); err != nil {
		e.cluster.log.Warn("cannot give up the lease: the next leader waits until it expires", "error", err)
	}
}

func (e *election) update(ctx context.Context, next *coordinationv1.Lease) error {
	made := new(coordinationv1.Lease)
	if err := e.cluster.clients.coordination.Put().Namespace(e.namespace).Resource("leases").Name(e.name).Body(next).Do(ctx).Into(made); err != nil {
		return fmt.Errorf("update lease: %w", err)
	}
	e.seen, e.seenAt = made, time.Now()
	return nil
}

// spec returns the spec with which this replica holds the Lease.
func (e *election) spec(before *coordinationv1.LeaseSpec) coordinationv1.LeaseSpec {
	now := metav1.NowMicro()
	s := coordinationv1.LeaseSpec{
		HolderIdentity: new(e.identity), LeaseDurationSeconds: new(int32((e.times.lasts + time.Second - 1) / time.Second)),
		AcquireTime: &now, RenewTime: &now, LeaseTransitions: new(int32(0)),
	}
	switch {
	case before == nil:
	case valueOf(before.HolderIdentity) == e.identity:
		s.AcquireTime, s.LeaseTransitions = before.AcquireTime, before.LeaseTransitions
	default:
		s.LeaseTransitions = new(valueOf(before.LeaseTransitions) + 1)
	}
	return s
}

// report reports that no leader can be elected, or that it can again.
func (e *election) report(ctx context.Context, err error) {
	text := ""
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // another replica was faster
	case apierrors.IsForbidden(err):
		text = fmt.Sprintf("no permission to use Lease %s/%s: no replica leads, so nothing is exported and no Events are written; "+
			"grant ipwitness's Role get, create and update of leases", e.namespace, e.name)
	case errors.Is(ctx.Err(), context.Canceled), unreachable(err):
		return // there is a problem about the server already
	default:
		text = fmt.Sprintf("cannot use Lease %s/%s: no replica leads, so nothing is exported and no Events are written: %s",
			e.namespace, e.name, ipam.Shorten(err.Error()))
	}
	e.cluster.mu.Lock()
	defer e.cluster.mu.Unlock()
	e.cluster.problem(electionProblem, text)
}

// valueOf returns the value of an optional field.
func valueOf[T any](p *T) (value T) {
	if p != nil {
		return *p
	}
	return value
}
