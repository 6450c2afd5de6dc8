package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// leaseTimes are the times of an election.
type leaseTimes struct {
	// lasts is the time after its last renewal after which another replica takes the lease.
	lasts time.Duration
	// within is the time after the last renewal after which the leader stops. It is shorter than lasts,
	// so that the leader has stopped when another replica takes the lease.
	within time.Duration
	// every is the time between two attempts.
	every time.Duration
}

// usualLease replaces a leader that was killed within 10 to 15 seconds: client-go waits up to 2.2 times the
// time between two attempts. With the times of Kubernetes' own controllers it would be up to 24 seconds.
var usualLease = leaseTimes{lasts: 10 * time.Second, within: 7 * time.Second, every: time.Second}

// errUnfit is the error of a replica that leaves the lead to others.
var errUnfit = errors.New("this replica lacks agents")

// electionProblem is the key of the problem that no leader can be elected.
const electionProblem = "elect a leader"

// election elects the leader of the replicas by a Lease, with client-go's leaderelection.
type election struct {
	cluster *Cluster
	// namespace and name are those of the Lease. Without a name there is no election.
	namespace, name string
	identity        string
	times           leaseTimes
	// elector is nil before Lead.
	elector atomic.Pointer[leaderelection.LeaderElector]
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
// soon after the replica has lost the lease. Without an election, there is one replica, which always leads.
// It is called once. While fit returns false, this replica leaves the lead to others.
func (c *Cluster) Lead(ctx context.Context, fit func() bool, do func(context.Context)) error {
	if c == nil || c.election.name == "" {
		do(ctx)
		return nil
	}
	return c.election.run(ctx, fit, do)
}

// Leads reports whether this replica leads now. One replica alone always does.
func (c *Cluster) Leads() bool { return c == nil || c.election.leads() }

// Election returns which replica leads; nil if there is no election.
func (c *Cluster) Election() *pb.Election {
	if c == nil || c.election.name == "" {
		return nil
	}
	e, leader := c.election, ""
	leads := e.leads()
	if elector := e.elector.Load(); elector != nil {
		leader = elector.GetLeader()
	}
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
func (e *election) leads() bool {
	if e.name == "" {
		return true
	}
	elector := e.elector.Load()
	return elector != nil && elector.IsLeader() && elector.Check(e.times.within-e.times.lasts) == nil
}

func (e *election) run(ctx context.Context, fit func() bool, do func(context.Context)) error {
	lock := &reportingLock{election: e, fit: fit, LeaseLock: resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: e.name},
		Client:     coordinationclient.New(e.cluster.clients.coordination),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
	}}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: e.name, ReleaseOnCancel: true,
		LeaseDuration: e.times.lasts, RenewDeadline: e.times.within, RetryPeriod: e.times.every,
		// client-go ends the context of OnStartedLeading only after an attempt to release the lease, which
		// may take longer than the lease lasts. The loop below follows leads instead.
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}
	e.elector.Store(elector)

	// The lease is released after the work of the leader has ended. The lock reports errors.
	electing, release := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), klog.Logger{}))
	var group sync.WaitGroup
	group.Go(func() {
		for electing.Err() == nil {
			elector.Run(electing)
		}
	})
	for e.await(ctx, true) {
		e.cluster.log.Info("this replica leads: it writes Events and exports", "lease", lock.Describe())
		working, stop := context.WithCancel(ctx)
		group.Go(func() { e.await(working, false); stop() })
		do(working)
		<-working.Done()
		e.cluster.log.Info("this replica does not lead any longer", "lease", lock.Describe())
	}
	release()
	group.Wait()
	return nil
}

// await waits until this replica leads, or does not lead. It returns false if ctx ends before.
func (e *election) await(ctx context.Context, leads bool) bool {
	look := time.NewTicker(e.times.every / 4)
	defer look.Stop()
	for e.leads() != leads {
		select {
		case <-ctx.Done():
			return false
		case <-look.C:
		}
	}
	return ctx.Err() == nil
}

// reportingLock is a LeaseLock that limits the time of requests, and reports their errors. It neither takes nor
// renews the lease while this replica should not lead.
type reportingLock struct {
	resourcelock.LeaseLock
	election *election
	fit      func() bool
	// holder is the identity that the Lease had when it was last read.
	holder string
}

// Get implements resourcelock.Interface.
func (l *reportingLock) Get(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	if record, raw, err = l.LeaseLock.Get(ctx); err == nil {
		l.holder = record.HolderIdentity
	}
	if !apierrors.IsNotFound(err) { // it is created next
		l.election.report(ctx, err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *reportingLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if !l.fit() {
		return errUnfit
	}
	ctx, cancel := l.limit(ctx)
	defer cancel()
	return l.wrote(ctx, record, l.LeaseLock.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l *reportingLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	switch {
	case record.HolderIdentity == "" && l.holder != l.Identity():
		// client-go reads the Lease before it releases it, but compares what it has read before that.
		return errNotLeading
	case record.HolderIdentity != "" && !l.fit():
		return errUnfit
	}
	ctx, cancel := l.limit(ctx)
	defer cancel()
	return l.wrote(ctx, record, l.LeaseLock.Update(ctx, record))
}

// wrote notes the result of a write.
func (l *reportingLock) wrote(ctx context.Context, record resourcelock.LeaderElectionRecord, err error) error {
	if err == nil {
		l.holder = record.HolderIdentity
	}
	l.election.report(ctx, err)
	return err
}

// limit limits the time of a request, so that there is time for another one before the lease is lost.
func (l *reportingLock) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.election.times.within/2)
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
	e.cluster.mu.Lock()
	defer e.cluster.mu.Unlock()
	e.cluster.problem(electionProblem, text)
}
