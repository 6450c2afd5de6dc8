package kube

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// fakeAPI is a fake API server for responses that a real one cannot be made to give. It has
// pods and custom resources; its other lists are empty.
type fakeAPI struct {
	*httptest.Server
	t testing.TB

	mu      sync.Mutex
	pods    map[string][]byte // encoded, by name
	version int
	watches map[chan watch.Event]bool
	// paged makes it refuse to stream listings.
	paged bool
	// unwatched makes it refuse watches of pods.
	unwatched bool
	// expired makes it report that all resource versions are too old.
	expired bool
	// lists and pages count the requested listings and pages.
	lists, pages int
	// down makes it answer like a server whose etcd is unavailable.
	down bool
	// opened counts the watches of pods.
	opened int
	// silent makes it send no responses until the channel is closed.
	silent chan struct{}
	// forbidden are the resources that may not be listed.
	forbidden map[string]bool
	// broken is a resource for which all requests fail.
	broken string
	// quota is a namespace whose quota for events is exhausted. events counts the events in
	// other namespaces.
	quota  string
	events int
	nodes  []corev1.Node
	// custom has the custom resources.
	custom fakeCustom
}

var (
	fakeCodecs  = newCodecs()
	protobuf, _ = runtime.SerializerInfoForMediaType(fakeCodecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	inProtobuf  = fakeCodecs.EncoderForVersion(protobuf.Serializer, corev1.SchemeGroupVersion)
)

func newFakeAPI(t testing.TB) *fakeAPI {
	f := &fakeAPI{t: t, pods: map[string][]byte{}, watches: map[chan watch.Event]bool{}, forbidden: map[string]bool{}, version: 1}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// open returns a mirror of the server that does not run yet.
func (f *fakeAPI) open() *Cluster {
	f.t.Helper()
	by := &rest.Config{Host: f.URL}
	c, err := openAt(by, slog.New(slog.NewTextHandler(f.t.Output(), nil)), Config{Version: "test"})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func encode(o runtime.Object) []byte {
	b, err := runtime.Encode(inProtobuf, o)
	if err != nil {
		panic(err)
	}
	return b
}

// put creates or changes a pod.
func (f *fakeAPI) put(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	pod.ResourceVersion = strconv.Itoa(f.version)
	kind := watch.Modified
	if f.pods[pod.Name] == nil {
		kind = watch.Added
	}
	f.pods[pod.Name] = encode(pod)
	f.publish(watch.Event{Type: kind, Object: pod.DeepCopy()})
}

// drop deletes a pod.
func (f *fakeAPI) drop(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	pod.ResourceVersion = strconv.Itoa(f.version)
	delete(f.pods, pod.Name)
	f.publish(watch.Event{Type: watch.Deleted, Object: pod.DeepCopy()})
}

func (f *fakeAPI) publish(e watch.Event) {
	for w := range f.watches {
		w <- e
	}
}

// cut ends all watches.
func (f *fakeAPI) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watches {
		close(w)
		delete(f.watches, w)
	}
	for w := range f.custom.watches {
		close(w)
		delete(f.custom.watches, w)
	}
}

func (f *fakeAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// ServeHTTP implements http.Handler.
func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f.mu.Lock()
	if silent := f.silent; silent != nil {
		f.mu.Unlock()
		select {
		case <-silent:
		case <-r.Context().Done():
		}
		return
	}
	if strings.HasPrefix(r.URL.Path, "/apis") && !strings.HasPrefix(r.URL.Path, "/apis/coordination.k8s.io/") && !f.down {
		f.serveCustom(w, r)
		return
	}
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch {
	case f.down:
		f.mu.Unlock()
		http.Error(w, "etcd is away", http.StatusInternalServerError)
	case r.URL.Path == "/readyz":
		f.mu.Unlock()
	case r.Method == http.MethodPost && f.quota != "" && strings.Contains(r.URL.Path, "/"+f.quota+"/"):
		f.mu.Unlock()
		f.refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case r.Method == http.MethodPost:
		f.events++
		f.mu.Unlock()
	case f.broken != "" && f.broken == resource:
		f.mu.Unlock()
		f.refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case f.forbidden[resource]:
		f.mu.Unlock()
		f.refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case q.Get("sendInitialEvents") == "true" && f.paged:
		f.mu.Unlock()
		f.refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case q.Get("watch") != "" && f.unwatched && resource == "pods":
		f.mu.Unlock()
		f.refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case q.Get("watch") != "":
		f.watch(w, r, resource)
	default:
		f.list(w, q.Get("limit"), q.Get("continue"), resource)
	}
}

func (f *fakeAPI) refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
}

// list sends a page. The caller holds the lock, and list releases it.
func (f *fakeAPI) list(w http.ResponseWriter, limit, from, resource string) {
	defer f.mu.Unlock()
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	switch resource {
	case "pods":
	case "nodes":
		_, _ = w.Write(encode(&corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}))
		return
	case "services":
		_, _ = w.Write(encode(&corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}))
		return
	case "events":
		_, _ = w.Write(encode(&corev1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}))
		return
	case "leases":
		list := &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		b, err := runtime.Encode(fakeCodecs.EncoderForVersion(protobuf.Serializer, coordinationv1.SchemeGroupVersion), list)
		if err != nil {
			panic(err)
		}
		_, _ = w.Write(b)
		return
	default:
		f.t.Errorf("unexpected request for a page of %s", resource)
		return
	}
	if f.pages++; from == "" {
		f.lists++
	}
	names := slices.Sorted(maps.Keys(f.pods))
	first, _ := strconv.Atoi(from)
	size, _ := strconv.Atoi(limit)
	if size == 0 {
		size = len(names)
	}
	page := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(f.version)}}
	if first+size < len(names) {
		page.Continue = strconv.Itoa(first + size)
	}
	for _, name := range names[first:min(len(names), first+size)] {
		page.Items = append(page.Items, *decode(f.pods[name]))
	}
	_, _ = w.Write(encode(page))
}

func decode(b []byte) *corev1.Pod {
	o, err := runtime.Decode(fakeCodecs.UniversalDeserializer(), b)
	if err != nil {
		panic(err)
	}
	return o.(*corev1.Pod)
}

// watch sends changes, and before them the existing objects if the request asks for them. The
// caller holds the lock.
func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request, resource string) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	send := func(kind watch.EventType, object []byte) {
		event, err := (&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object}}).Marshal()
		if err != nil {
			panic(err)
		}
		// The framing of k8s.io/apimachinery/pkg/util/framer. The envelope in a stream has no
		// kind.
		_, _ = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...)) //nolint:gosec // small
	}
	flush := w.(http.Flusher).Flush
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	var present [][]byte
	version := f.version
	expired := f.expired && !initial
	events := make(chan watch.Event, 1024)
	if resource == "pods" {
		if initial {
			f.lists++
			present = slices.Collect(maps.Values(f.pods))
		}
		f.watches[events] = true
		f.opened++
	}
	if resource == "nodes" && initial {
		for i := range f.nodes {
			present = append(present, encode(&f.nodes[i]))
		}
	}
	f.mu.Unlock()
	defer f.set(func() { delete(f.watches, events) })
	w.WriteHeader(http.StatusOK)
	if expired {
		send(watch.Error, encode(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired}))
		return
	}
	for _, pod := range present {
		send(watch.Added, pod)
	}
	if initial {
		send(watch.Bookmark, encode(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}))
	}
	flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, open := <-events:
			if !open {
				return
			}
			send(e.Type, encode(e.Object))
			flush()
		}
	}
}
