package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/ipwitness/ipwitness/ipam"
)

const (
	// pageSize is the maximum number of objects in a page of a listing. It bounds the
	// memory that whole objects need while they are listed.
	pageSize = 500
	// firstBackoff and maxBackoff bound the time between two attempts.
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 30 * time.Second
)

type list interface {
	runtime.Object
	metav1.ListInterface
}

// feed keeps a store equal to a resource of the API server. A client-go
// reflector decides when to list and when to watch; the feed makes its requests and
// retries them itself. A reflector alone would not report failed requests, would list
// all objects again after most of them, and would wait up to a minute although the
// server is back.
type feed struct {
	cluster *Cluster
	// name identifies the feed, and lost names what is missing without it.
	name, lost string
	client     *rest.RESTClient
	// resource, namespace and fields select the objects to follow. An empty namespace
	// means all namespaces.
	resource, namespace, fields string
	into                        ipam.Store
	list                        func() list // returns an empty page
	// source is the custom resource that the feed reads, which may come and go. It is
	// nil for resources that every cluster has.
	source *source
	// read is set once the objects were listed. refused is the number of times in a row that the API server refused
	// them. The cluster's mu guards both.
	read    bool
	refused int

	// stop ends the reflector. quiet closes its watch if the server is silent.
	stop  context.CancelFunc
	quiet *time.Timer
}

func (f *feed) resourceName() string {
	if f.source != nil {
		return f.source.reads.String()
	}
	return f.resource
}

// newBackoff returns the times to wait between attempts.
func newBackoff() wait.DelayFunc {
	return wait.Backoff{Duration: firstBackoff, Cap: maxBackoff, Steps: 10, Factor: 2, Jitter: 0.5}.DelayWithReset(clock.RealClock{}, 2*maxBackoff)
}

// run follows the resource until ctx ends, and waits while the server does not serve it.
func (f *feed) run(ctx context.Context) {
	for ctx.Err() == nil && (f.source == nil || f.source.await(ctx)) {
		f.reflect(ctx)
	}
}

// reflect follows the resource until ctx ends, or until the server stops serving it or serves
// another kind of it.
func (f *feed) reflect(ctx context.Context) {
	ctx, f.stop = context.WithCancel(ctx)
	defer f.stop()
	r := cache.NewReflectorWithOptions(&cache.ListWatch{ListWithContextFunc: f.page, WatchFuncWithContext: f.watch},
		nil, store{f}, cache.ReflectorOptions{Name: f.name})
	r.WatchListPageSize = pageSize
	delay := newBackoff()
	for ctx.Err() == nil {
		back := f.cluster.back()
		_ = r.ListAndWatchWithContext(ctx) // attempt has reported it
		pause(ctx, delay(), back)
	}
}

// pause waits for a while, or until the server is back.
func pause(ctx context.Context, d time.Duration, back <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-back:
	case <-time.After(d):
	}
}

// attempt repeats a request until it succeeds or the reflector has to take another action.
func (f *feed) attempt(ctx context.Context, options metav1.ListOptions, do func(*rest.Request) error) error {
	options.FieldSelector = f.fields
	delay := newBackoff()
	// A reflector that has been stopped may still begin a listing in a goroutine.
	for ctx.Err() == nil {
		if f.isOutdated() {
			f.stop()
			break
		}
		back := f.cluster.back()
		// It is retried here and not by the client, so that failures are known at once.
		err := do(f.client.Get().NamespaceIfScoped(f.namespace, f.namespace != "").Resource(f.resource).
			VersionedParams(&options, metav1.ParameterCodec).MaxRetries(0))
		switch {
		case err == nil, ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err),
			apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
			return err
		case options.SendInitialEvents != nil && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)):
			return err // a server before 1.32 cannot stream a listing: the reflector lists pages
		case f.source != nil && apierrors.IsNotFound(err):
			f.source.vanished()
			f.stop()
			return err
		}
		f.cluster.failed(f, err)
		pause(ctx, delay(), back)
	}
	return ctx.Err()
}

// isOutdated reports whether the server no longer serves the resource, or serves another kind of it.
func (f *feed) isOutdated() bool {
	f.cluster.mu.RLock()
	defer f.cluster.mu.RUnlock()
	s := f.source
	return s != nil && (s.state <= strange || f.cluster.clients.custom[versionOf(s.reads)] != f.client)
}

func (f *feed) page(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	// With a version, the server ignores the limit and sends all objects at once.
	options.ResourceVersion = ""
	page := f.list()
	if err := f.attempt(ctx, options, func(r *rest.Request) error { return r.Do(ctx).Into(page) }); err != nil {
		return nil, fmt.Errorf("list %s: %w", f.name, err)
	}
	f.cluster.recordResponse()
	small := &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: page.GetResourceVersion(), Continue: page.GetContinue()}}
	return small, meta.EachListItem(page, func(o runtime.Object) error {
		small.Items = append(small.Items, reduce(f.into, o))
		return nil
	})
}

func (f *feed) watch(ctx context.Context, options metav1.ListOptions) (w watch.Interface, err error) {
	f.unfollow()
	options.Watch = true
	if err := f.attempt(ctx, options, func(r *rest.Request) error { w, err = r.Watch(ctx); return err }); err != nil {
		return nil, fmt.Errorf("watch %s: %w", f.name, err)
	}
	if options.SendInitialEvents == nil {
		f.cluster.worked(f)
	}
	f.quiet = time.AfterFunc(f.cluster.health.pulse.silence, w.Stop) // silence never changes
	return openWatch{w, f}, nil
}

// unfollow records that the feed misses changes until a watch is open.
func (f *feed) unfollow() {
	if f.name == podFeed {
		f.cluster.following.Store(0)
	}
}

// openWatch is a watch that a reflector reads.
type openWatch struct {
	watch.Interface
	by *feed
}

// Stop implements watch.Interface. A reflector calls it when the watch has ended, too.
func (w openWatch) Stop() {
	w.by.unfollow()
	w.by.quiet.Stop()
	w.Interface.Stop()
}

// store is the store of a feed's reflector.
type store struct{ *feed }

func (s store) recordResponse() {
	s.quiet.Reset(s.cluster.health.pulse.silence)
	s.cluster.recordResponse()
}

// Add implements cache.ReflectorStore.
func (s store) Add(o any) error {
	s.recordResponse()
	s.cluster.put(s.into, o.(runtime.Object))
	return nil
}

func (s store) Update(o any) error { return s.Add(o) }

func (s store) Delete(o any) error {
	s.recordResponse()
	s.cluster.drop(s.into, o.(runtime.Object))
	return nil
}

func (s store) Replace(items []any, _ string) error {
	s.cluster.replace(s.into, items)
	s.cluster.listed(s.feed)
	return nil
}

func (s store) Resync() error { return nil }

// Bookmark implements cache.ReflectorBookmarkStore.
func (s store) Bookmark(string) error {
	s.recordResponse()
	return nil
}

// Transformer implements cache.TransformingStore. It reduces the objects of a streamed listing
// one by one.
func (s store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		s.recordResponse()
		return reduce(s.into, o.(runtime.Object)), nil
	}
}

// unreachable reports whether an error means that the API server cannot be reached, rather
// than that it refuses the request.
func unreachable(err error) bool {
	status := apierrors.APIStatus(nil)
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError
}

// answered reports whether an error is an answer of the API server.
func answered(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status)
}
