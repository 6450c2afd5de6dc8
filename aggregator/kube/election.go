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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

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

// election elects the leader of the replicas by a Lease, with client-go's leaderelection.
type election struct {
	cluster *Cluster
	// namespace and name are those of the Lease. Without a name there is no election.
	namespace, name string
	identity        string
	times           leaseTimes

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
	for ctx.Err() == nil {
		c.election.term(ctx, do)
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

// term waits until this replica leads, and calls do until ctx ends or the lease is lost. The lease is given
// up after do has returned.
func (e *election) term(ctx context.Context, do func(context.Context)) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	// The lock reports errors.
	ctx = klog.NewContext(ctx, klog.Logger{})
	done := make(chan struct{})
	lock := e.newLock(end, done)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: e.name, ReleaseOnCancel: true,
		LeaseDuration: e.times.lasts, RenewDeadline: e.times.within, RetryPeriod: e.times.every,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				defer close(done)
				e.cluster.log.Info("this replica leads: it writes Events and exports", "lease", lock.Describe())
				do(ctx)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		panic(err) // the times contradict each other
	}
	elector.Run(ctx)
	if lock.expiry == nil {
		return // it never led
	}
	lock.expiry.Stop()
	end()
	<-done
	if e.leads() {
		e.cluster.log.Warn("cannot give up the lease: the next leader waits until it expires", "lease", lock.Describe())
	}
	e.set("", time.Time{})
	e.cluster.log.Info("this replica does not lead any longer", "lease", lock.Describe())
}

// leaseLock is the lock of one term. It limits the time of requests, reports their errors, and keeps the
// time until which this replica leads: client-go itself ends a term up to one retry period later, and the
// work of the leader only after the attempt to give the lease up.
type leaseLock struct {
	resourcelock.LeaseLock
	election *election
	// end ends the term, and done is closed when the work of the leader has ended.
	end  func()
	done <-chan struct{}
	// expiry ends the term if the lease is not renewed; nil before this replica leads.
	expiry *time.Timer
}

func (e *election) newLock(end func(), done <-chan struct{}) *leaseLock {
	return &leaseLock{
		LeaseLock: resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: e.name},
			Client:     coordinationclient.New(e.cluster.clients.coordination),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
		},
		election: e, end: end, done: done,
	}
}

// Get implements resourcelock.Interface.
func (l *leaseLock) Get(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	record, raw, err = l.LeaseLock.Get(ctx)
	if !apierrors.IsNotFound(err) { // it is created next
		l.election.report(ctx, err)
	}
	if err == nil && record.HolderIdentity != l.Identity() {
		l.election.set(record.HolderIdentity, time.Time{})
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *leaseLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.LeaseLock.Create)
}

// Update implements resourcelock.Interface. A record without a holder gives the lease up.
func (l *leaseLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		l.end()
		<-l.done
	}
	return l.write(ctx, record, l.LeaseLock.Update)
}

func (l *leaseLock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, by func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	ctx, cancel := l.limit(ctx)
	defer cancel()
	begun := time.Now()
	err := by(ctx, record)
	l.election.report(ctx, err)
	switch until := begun.Add(l.election.times.within); {
	case err != nil:
		return err
	case record.HolderIdentity == "":
		l.election.set("", time.Time{})
	default:
		l.election.set(record.HolderIdentity, until)
		if l.expiry == nil {
			l.expiry = time.AfterFunc(time.Until(until), l.end)
		} else {
			l.expiry.Reset(time.Until(until))
		}
	}
	return nil
}

// limit limits the time of a request, so that there is time for another one before the lease is lost.
func (l *leaseLock) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.election.times.within/2)
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
