package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

type leaseTimes struct {
	// lasts is the time after its last renewal after which another replica takes the lease.
	lasts time.Duration
	// within is the time after the last renewal after which the leader stops. It is shorter than lasts,
	// so that the leader has stopped when another replica takes the lease.
	within time.Duration
	// every is the time between two attempts.
	every time.Duration
}

// usualLease replaces a leader that was killed within 10 to 15 seconds, because a replica that does not lead
// waits up to twice as long between two attempts. With the times of Kubernetes' own controllers it would be up
// to 24 seconds.
var usualLease = leaseTimes{lasts: 10 * time.Second, within: 7 * time.Second, every: time.Second}

const electionProblem = "elect a leader"

// election elects the leader of the replicas by a Lease, with the semantics of client-go's
// tools/leaderelection, which would link the clients of all Kubernetes APIs. Clocks of machines are not
// compared: another replica takes the lease if it has not seen the Lease change for as long as the lease
// lasts. The leader counts from before it sent the renewal, so it has stopped by then. The resource version
// makes sure that only one of several replicas takes the lease.
type election struct {
	cluster *Cluster
	// namespace and name are those of the Lease. Without a name there is no election.
	namespace, name string
	identity        string
	times           leaseTimes

	mu sync.Mutex
	// lease is the Lease as it was last read or written, and changed is when this replica saw that it differs
	// from before. It is empty if there was none. The object never changes.
	lease   *coordinationv1.Lease
	changed time.Time
	// renewed is the time before the last successful request that took or renewed the lease.
	renewed time.Time
}

// newElection returns the election by a Lease, NAMESPACE/NAME; empty for none.
func newElection(c *Cluster, lease string) (*election, error) {
	e := &election{cluster: c, times: usualLease, lease: new(coordinationv1.Lease)}
	if lease == "" {
		return e, nil
	}
	var found bool
	if e.namespace, e.name, found = strings.Cut(lease, "/"); !found || e.namespace == "" || e.name == "" {
		return nil, fmt.Errorf("--lease %q: it must be NAMESPACE/NAME", lease)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host name for the lease: %w", err)
	}
	// A container that starts again has the name of the one before, but must not take over its lease.
	e.identity = fmt.Sprintf("%s_%016x", host, rand.Uint64())
	return e, nil
}

// Lead calls do whenever this replica becomes the leader, until ctx ends. The context that it passes ends
// soon after the replica has lost the lease. Without an election, there is one replica, which always leads.
// It is called once. While fit returns false, this replica leaves the lead to others.
func (c *Cluster) Lead(ctx context.Context, fit func() bool, do func(context.Context)) error {
	if c == nil || c.election.name == "" {
		do(ctx)
		return nil
	}
	e := c.election
	for ctx.Err() == nil {
		e.report(ctx, e.attempt(ctx, fit()))
		if !e.leads() {
			pause(ctx, e.times.every+rand.N(e.times.every), nil)
			continue
		}
		e.term(ctx, fit, do)
		if e.holder() != e.identity {
			continue
		}
		// This replica gives the lease up, so that another one need not wait until it expires.
		releasing := context.WithoutCancel(ctx)
		err := e.read(releasing)
		if err == nil && e.holder() == e.identity {
			err = e.write(releasing, "")
		}
		e.report(releasing, err)
	}
	return nil
}

// Leads reports whether this replica leads now. One replica alone always does.
func (c *Cluster) Leads() bool { return c == nil || c.election.leads() }

// Election returns which replica leads; nil if there is no election.
func (c *Cluster) Election() *pb.Election {
	if c == nil || c.election.name == "" {
		return nil
	}
	e := c.election
	leader, leads := e.holder(), e.leads()
	if leader == e.identity && !leads {
		leader = "" // its lease has expired
	}
	name := func(identity string) string {
		host, _, _ := strings.Cut(identity, "_")
		return ipam.Plain(host)
	}
	return &pb.Election{Replica: name(e.identity), Leader: name(leader), Leads: leads}
}

// leads reports whether this replica leads now. A process that was paused for too long does not.
func (e *election) leads() bool { return e.name == "" || e.left() > 0 }

// left returns how long this replica leads if it does not renew the lease.
func (e *election) left() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if holderOf(e.lease) != e.identity {
		return 0
	}
	return e.times.within - time.Since(e.renewed)
}

func (e *election) holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return holderOf(e.lease)
}

func (e *election) taken() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	lasts := time.Duration(ptr.Deref(e.lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	holder := holderOf(e.lease)
	return holder != "" && holder != e.identity && time.Since(e.changed) < lasts
}

func holderOf(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

// term calls do, and renews the lease until do has ended. The context of do ends with ctx, or if the lease
// could not be renewed in time.
func (e *election) term(ctx context.Context, fit func() bool, do func(context.Context)) {
	lease := e.namespace + "/" + e.name
	e.cluster.log.Info("this replica leads: it writes Events and exports", "lease", lease)
	working, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do(working)
		<-working.Done()
	}()
	defer func() {
		stop()
		<-ended
		e.cluster.log.Info("this replica does not lead any longer", "lease", lease)
	}()
	renewing := context.WithoutCancel(ctx)
	for e.leads() {
		select {
		case <-ended:
			return
		case <-time.After(min(e.times.every, e.left())):
			if e.leads() { // otherwise the work ends first
				e.report(renewing, e.attempt(renewing, fit()))
			}
		}
	}
}

// attempt takes the lease if it is free, or renews it. A replica that should not lead only reads it.
func (e *election) attempt(ctx context.Context, fit bool) error {
	if left := e.left(); left > 0 {
		if !fit {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		err := e.write(ctx, e.identity)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		// The answer to an earlier renewal was lost, or somebody has edited the Lease.
		if err := e.read(ctx); err != nil || e.holder() != e.identity {
			return err
		}
		return e.write(ctx, e.identity)
	}
	if err := e.read(ctx); err != nil || !fit || e.taken() {
		return err
	}
	return e.write(ctx, e.identity)
}

func (e *election) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.times.within/2) // so that there is time for another request before the lease is lost
	defer cancel()
	lease := new(coordinationv1.Lease)
	err := e.cluster.clients.coordination.Get().Namespace(e.namespace).Resource("leases").Name(e.name).MaxRetries(0).Do(ctx).Into(lease)
	switch {
	case apierrors.IsNotFound(err):
		lease = new(coordinationv1.Lease)
	case err != nil:
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if lease.UID != e.lease.UID || lease.ResourceVersion != e.lease.ResourceVersion {
		e.changed = time.Now()
	}
	e.lease = lease
	return nil
}

// write makes a replica the holder of the Lease, or none, if the Lease is still as it was last read or written.
func (e *election) write(ctx context.Context, holder string) error {
	ctx, cancel := context.WithTimeout(ctx, e.times.within/2) // so that there is time for another request before the lease is lost
	defer cancel()
	begun, lease := time.Now(), e.lease.DeepCopy() // only run changes it
	now, lasts, transitions := metav1.NewMicroTime(begun), int32(e.times.lasts/time.Second), ptr.Deref(lease.Spec.LeaseTransitions, 0)
	acquired := lease.Spec.AcquireTime
	if holderOf(lease) != holder {
		acquired = &now
		if holder != "" && lease.ResourceVersion != "" {
			transitions++
		}
	}
	lease.Namespace, lease.Name = e.namespace, e.name
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: &lasts, LeaseTransitions: &transitions, AcquireTime: acquired, RenewTime: &now,
	}
	client := e.cluster.clients.coordination
	request := client.Post()
	if lease.ResourceVersion != "" {
		request = client.Put().Name(e.name)
	}
	written := new(coordinationv1.Lease)
	if err := request.Namespace(e.namespace).Resource("leases").Body(lease).MaxRetries(0).Do(ctx).Into(written); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease, e.changed, e.renewed = written, time.Now(), begun
	return nil
}

// report reports that no leader can be elected, or that it can again.
func (e *election) report(ctx context.Context, err error) {
	text := ""
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // another replica was faster
	case apierrors.IsForbidden(err):
		text = fmt.Sprintf("no permission to use Lease %s/%s: if no other replica leads, nothing is exported and no Events are written; "+
			"grant ipwitness's Role get, create and update of leases", e.namespace, e.name)
	case errors.Is(ctx.Err(), context.Canceled), unreachable(err):
		return // there is a problem about the server already
	default:
		text = fmt.Sprintf("cannot use Lease %s/%s: if no other replica leads, nothing is exported and no Events are written: %s",
			e.namespace, e.name, ipam.Shorten(err.Error()))
	}
	e.cluster.setProblem(electionProblem, text)
}
