package kube

import (
	"context"
	"errors"
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

// list is a page of objects.
type list interface {
	runtime.Object
	metav1.ListInterface
}

// feed keeps a store equal to a resource of the API server. It lists the objects and then watches their changes.
// A reflector of client-go would not report failed requests, would list all objects again after most of them, and
// would wait up to a minute although the server is back.
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
}

// resourceName returns the resource as messages name it.
func (f *feed) resourceName() string {
	if f.source != nil {
		return f.source.reads.String()
	}
	return f.resource
}

func (f *feed) run(ctx context.Context) {
	for f.source == nil || f.source.await(ctx) {
		f.reflect(ctx)
		if ctx.Err() != nil {
			return
		}
	}
}

// reflect follows the resource until ctx ends, or until the server stops serving it or serves
// another kind of it.
func (f *feed) reflect(ctx context.Context) {
	version, backoff := "", firstBackoff // the version up to which changes are known; empty before a listing
	for {
		back, begun := f.cluster.health.back(), time.Now()
		var err error
		if version == "" {
			version, err = f.listAll(ctx)
		}
		if err == nil {
			version, err = f.watch(ctx, version)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
		case expired(err):
			version = ""
		case f.source != nil && apierrors.IsNotFound(err):
			f.source.vanished()
			return
		default:
			f.cluster.failed(f, err)
		}
		if time.Since(begun) > maxBackoff {
			backoff = firstBackoff
		}
		pause(ctx, backoff+rand.N(backoff/2), back)
		backoff = min(2*backoff, maxBackoff)
		if f.source != nil && !f.source.readBy(f.client) {
			return
		}
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

// request returns a request for objects. It is retried by reflect and not by the client, so that failures are known
// at once.
func (f *feed) request(options metav1.ListOptions) *rest.Request {
	options.FieldSelector = f.fields
	return f.client.Get().NamespaceIfScoped(f.namespace, f.namespace != "").Resource(f.resource).
		VersionedParams(&options, metav1.ParameterCodec).MaxRetries(0)
}

// listAll replaces the contents of the store by all objects, and returns their version.
func (f *feed) listAll(ctx context.Context) (version string, err error) {
	var reduced []any
	for next := ""; ; {
		page := f.list()
		if err := f.request(metav1.ListOptions{Limit: pageSize, Continue: next}).Do(ctx).Into(page); err != nil {
			return "", err
		}
		f.cluster.recordResponse()
		if err := meta.EachListItem(page, func(o runtime.Object) error {
			reduced = append(reduced, f.into.Reduce(readable(o)))
			return nil
		}); err != nil {
			return "", err
		}
		if next = page.GetContinue(); next == "" {
			f.cluster.replace(f.into, reduced)
			f.cluster.listed(f)
			return page.GetResourceVersion(), nil
		}
	}
}

// watch follows the changes after a version until the watch ends. It returns the version up to which it has followed
// them; empty if the server does not know that version any more.
func (f *feed) watch(ctx context.Context, version string) (string, error) {
	f.unfollow()
	seconds := int64(5*60 + rand.N(5*60)) // not all feeds at the same time
	w, err := f.request(metav1.ListOptions{Watch: true, AllowWatchBookmarks: true, ResourceVersion: version, TimeoutSeconds: &seconds}).Watch(ctx)
	if err != nil {
		return version, err
	}
	if _, open := w.(*watch.StreamWatcher); !open { // client-go returns an empty watch if the connection has ended or timed out
		return version, io.ErrUnexpectedEOF
	}
	defer f.unfollow()
	defer w.Stop()
	f.cluster.worked(f)
	silence := f.cluster.health.pulse.silence // never changes
	quiet := time.AfterFunc(silence, w.Stop)
	defer quiet.Stop()
	for e := range w.ResultChan() {
		quiet.Reset(silence)
		if e.Type == watch.Error {
			if expired(apierrors.FromObject(e.Object)) {
				version = ""
			}
			return version, nil // otherwise the connection is lost
		}
		f.cluster.recordResponse()
		o, err := meta.Accessor(e.Object)
		if err != nil {
			return "", err
		}
		version = o.GetResourceVersion()
		switch e.Type {
		case watch.Added, watch.Modified:
			f.cluster.put(f.into, e.Object)
		case watch.Deleted:
			f.cluster.drop(f.into, e.Object)
		default: // a bookmark has only the version
		}
	}
	return version, nil
}

// expired reports whether the server does not have a version any more, or not yet.
func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// unfollow records that the feed misses changes until a watch is open.
func (f *feed) unfollow() {
	if f.name == podFeed {
		f.cluster.following.Store(0)
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
