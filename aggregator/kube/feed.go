package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	// pageSize is how many objects are asked for at once: what is read of them is
	// all that has to be in memory.
	pageSize = 500
	// watchFor is how long a watch lasts at least; at most it is twice that.
	watchFor = 5 * time.Minute
	// firstBackoff and maxBackoff are when it is tried again what did not work.
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 30 * time.Second
)

// list is the answer to a listing.
type list interface {
	runtime.Object
	metav1.ListInterface
}

// sink takes what a feed reads.
type sink interface {
	// put has a new or changed object, drop one that is gone.
	put(runtime.Object)
	drop(runtime.Object)
	// anew begins a listing: what it was not told until complete is gone.
	anew() listing
}

// listing takes the objects that there are.
type listing interface {
	put(runtime.Object)
	drop(runtime.Object)
	complete()
}

// feed keeps a sink equal to what the API server has of a resource: it lists, then
// follows from there, and lists again only where the server cannot say any more what
// happened since.
//
// This is what client-go's Reflector does. It is not used because it cannot be told
// that the server is back (it waits up to a minute), does not say whether it is
// connected, and holds all objects whole while it lists.
type feed struct {
	cluster *Cluster
	// name is of the resource and what of it; lost is what is missing without it.
	name, lost string
	client     *rest.RESTClient
	// resource, namespace and fields say what is followed: all namespaces where
	// none is given.
	resource, namespace, fields string
	into                        sink
	list                        func() list // an empty one
	// source is of a custom resource, which may come and go; nil for what is always there.
	source *source

	// version is the last one that was heard; empty for none.
	version string
	// unstreamed tells that the server cannot stream a listing (before 1.32).
	unstreamed bool
}

// said is the resource in words.
func (f *feed) said() string {
	if f.source != nil {
		return f.source.kind.String()
	}
	return f.resource
}

// run follows until ctx ends.
func (f *feed) run(ctx context.Context) {
	backoff := firstBackoff
	for {
		if f.source != nil && !f.source.await(ctx) {
			return
		}
		back := f.cluster.health.back()
		worked, err := f.follow(ctx)
		if f.name == podFeed {
			f.cluster.following.Store(0)
		}
		if ctx.Err() != nil {
			return
		}
		if worked {
			backoff = firstBackoff
		}
		if err == nil {
			continue
		}
		wait := backoff
		backoff = min(2*backoff, maxBackoff)
		switch {
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			f.version = ""
			if worked {
				continue
			}
		case f.source != nil && f.source.gone(err):
			f.source.vanished()
			backoff = firstBackoff
			continue // and wait until it is there again
		default:
			f.cluster.failed(f, err)
		}
		timer := time.NewTimer(time.Duration((0.75 + rand.Float64()/2) * float64(wait))) //nolint:gosec // no secret
		select {
		case <-ctx.Done():
		case <-back: // the server is heard again, and may still begin
			backoff = firstBackoff
		case <-timer.C:
		}
		timer.Stop()
	}
}

// errShort is of a watch that the server ends at once.
var errShort = errors.New("the API server ends each watch at once")

// follow lists, if that is needed, and watches once. It tells whether anything
// worked, and no error where the watch ended as watches do.
func (f *feed) follow(ctx context.Context) (worked bool, err error) {
	begun := time.Now()
	var w watch.Interface
	var into listing
	if f.version == "" {
		if w, into, err = f.relist(ctx); err != nil {
			return false, err
		}
		worked = true
	}
	if w == nil {
		if w, err = f.watch(ctx, metav1.ListOptions{ResourceVersion: f.version}); err != nil {
			return worked, err
		}
		f.cluster.worked(f)
	}
	heard, err := f.hear(ctx, w, into)
	switch {
	case err != nil:
		return worked || heard > 0, err
	case heard == 0 && time.Since(begun) < time.Second:
		return worked, errShort
	}
	return true, nil
}

// relist begins a listing as a stream and returns it, or does it in pages.
func (f *feed) relist(ctx context.Context) (watch.Interface, listing, error) {
	if !f.unstreamed {
		yes := true
		w, err := f.watch(ctx, metav1.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
		if err == nil {
			return w, f.into.anew(), nil
		}
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			return nil, nil, err
		}
		f.unstreamed = true
		f.cluster.log.Debug("the Kubernetes API server cannot stream listings: they come in pages", "resource", f.name)
	}
	return nil, nil, f.pages(ctx)
}

// pages lists page by page.
func (f *feed) pages(ctx context.Context) error {
	into := f.into.anew()
	options := metav1.ListOptions{Limit: pageSize, FieldSelector: f.fields}
	for {
		page := f.list()
		err := f.request(options).Do(ctx).Into(page)
		if err != nil {
			return fmt.Errorf("list %s: %w", f.name, err)
		}
		f.cluster.hear()
		if err := meta.EachListItem(page, func(o runtime.Object) error { into.put(o); return nil }); err != nil {
			return fmt.Errorf("list %s: %w", f.name, err)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			into.complete()
			f.version = page.GetResourceVersion()
			f.cluster.listed(f)
			return nil
		}
	}
}

func (f *feed) request(options metav1.ListOptions) *rest.Request {
	// It is tried again here, not there: what does not work is to be known at once.
	r := f.client.Get().Resource(f.resource).VersionedParams(&options, metav1.ParameterCodec).MaxRetries(0)
	if f.namespace != "" {
		r = r.Namespace(f.namespace)
	}
	return r
}

// watch opens a watch.
func (f *feed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	seconds := int64(watchFor.Seconds() * (1 + rand.Float64())) //nolint:gosec // no secret
	options.Watch, options.AllowWatchBookmarks, options.TimeoutSeconds = true, true, &seconds
	options.FieldSelector = f.fields
	w, err := f.request(options).Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", f.name, err)
	}
	return w, nil
}

// hear takes what a watch tells until it ends, and counts. What comes before a
// listing is complete is of the listing.
func (f *feed) hear(ctx context.Context, w watch.Interface, into listing) (heard int, err error) {
	defer w.Stop()
	silence := f.cluster.health.pulse.silence // never changes
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return heard, ctx.Err()
		case <-quiet.C: // it may hang, though the server answers: then it is as one that ended
		case event, open = <-w.ResultChan():
			quiet.Reset(silence)
		}
		if !open {
			if into != nil { // the listing is not complete: it is worth nothing
				return 0, fmt.Errorf("list %s: %w", f.name, io.ErrUnexpectedEOF)
			}
			return heard, nil
		}
		if event.Type == watch.Error {
			return heard, fmt.Errorf("watch %s: %w", f.name, apierrors.FromObject(event.Object))
		}
		object, err := meta.Accessor(event.Object)
		if err != nil {
			return heard, fmt.Errorf("watch %s: %w", f.name, err)
		}
		f.cluster.hear()
		heard++
		var to interface {
			put(runtime.Object)
			drop(runtime.Object)
		} = f.into
		if into != nil {
			to = into
		}
		switch event.Type {
		case watch.Added, watch.Modified:
			to.put(event.Object)
		case watch.Deleted:
			to.drop(event.Object)
		case watch.Bookmark:
			if into != nil && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				into.complete()
				into = nil
				f.version = object.GetResourceVersion()
				f.cluster.listed(f)
			}
		}
		if into == nil {
			f.version = object.GetResourceVersion()
		}
	}
}

// unreachable tells whether an error says that the API server is not there, and
// not that it does not want.
func unreachable(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return true
	}
	return status.Status().Code >= http.StatusInternalServerError
}

// answered tells whether an error is an answer of the API server, good or bad.
func answered(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status)
}
