// Package apiserver is a small Kubernetes API server for tests in which several processes share one. It
// keeps objects of any kind by the rules that replicas depend on: creation fails if the object exists, an
// update fails if it was made from another resource version, a deletion has preconditions, and a watch
// continues from a resource version.
//
// It has no permissions, no validation and no pages. tests/kubernetes runs a real API server.
package apiserver

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Server is the API server. Use New.
type Server struct {
	decoder runtime.Decoder

	mu sync.Mutex
	// objects has the objects by resource and NAMESPACE/NAME. They are never changed in place.
	objects map[string]map[string]*unstructured.Unstructured
	// history has all changes. The resource version of an object is the number of changes up to its own.
	history []change
	// changed is closed at the next change.
	changed chan struct{}
}

// A change is a change of an object.
type change struct {
	resource, typ string
	object        *unstructured.Unstructured
}

// New returns an empty server.
func New() (*Server, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return &Server{
		decoder: serializer.NewCodecFactory(scheme).UniversalDeserializer(),
		objects: make(map[string]map[string]*unstructured.Unstructured), changed: make(chan struct{}),
	}, nil
}

// Put creates or replaces an object of a resource.
func (s *Server) Put(resource string, o runtime.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(resource, &unstructured.Unstructured{Object: content})
	return nil
}

// Delete deletes an object of a resource, if it exists.
func (s *Server) Delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(resource, namespace+"/"+name)
}

// Objects returns the objects of a resource.
func (s *Server) Objects(resource string) []*unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.objects[resource]))
}

// store creates or replaces an object, and sets its metadata. The caller holds mu.
func (s *Server) store(resource string, o *unstructured.Unstructured) {
	typ := "MODIFIED"
	key := o.GetNamespace() + "/" + o.GetName()
	if s.objects[resource] == nil {
		s.objects[resource] = make(map[string]*unstructured.Unstructured)
	}
	if before := s.objects[resource][key]; before == nil {
		typ = "ADDED"
		o.SetCreationTimestamp(metav1.Time{Time: time.Now()})
		if o.GetUID() == "" {
			o.SetUID(types.UID(resource + "-" + strconv.Itoa(len(s.history)+1)))
		}
	} else {
		o.SetCreationTimestamp(before.GetCreationTimestamp())
		o.SetUID(before.GetUID())
	}
	s.record(change{resource, typ, o})
	s.objects[resource][key] = o
}

// remove deletes an object, if it exists. The caller holds mu.
func (s *Server) remove(resource, key string) *unstructured.Unstructured {
	o := s.objects[resource][key]
	if o == nil {
		return nil
	}
	o = o.DeepCopy()
	s.record(change{resource, "DELETED", o})
	delete(s.objects[resource], key)
	return o
}

// record appends a change to the history. The caller holds mu.
func (s *Server) record(c change) {
	c.object.SetResourceVersion(strconv.Itoa(len(s.history) + 1))
	s.history = append(s.history, c)
	close(s.changed)
	s.changed = make(chan struct{})
}

// A target is what the path of a request names.
type target struct{ version, namespace, resource, name string }

// parse parses a path like /api/v1/namespaces/NAMESPACE/RESOURCE/NAME.
func parse(path string) (t target, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		t.version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		t.version, parts = parts[1]+"/"+parts[2], parts[3:]
	default:
		return t, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		t.namespace, parts = parts[1], parts[2:]
	}
	if t.resource = parts[0]; len(parts) > 1 {
		t.name = parts[1]
	}
	return t, true
}

func (t target) key() string { return t.namespace + "/" + t.name }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ok := parse(r.URL.Path)
	switch {
	case r.URL.Path == "/readyz":
	case r.URL.Path == "/apis": // discovery: no custom resources of others
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case !ok:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		s.watch(w, r, t)
	case r.Method == http.MethodGet && t.name != "":
		s.mu.Lock()
		o := s.objects[t.resource][t.key()]
		s.mu.Unlock()
		if o == nil {
			refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		answer(w, http.StatusOK, o)
	case r.Method == http.MethodGet: // listings are watches
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	default:
		s.write(w, r, t)
	}
}

// write serves a request that changes an object.
func (s *Server) write(w http.ResponseWriter, r *http.Request, t target) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	body, err := s.decode(raw)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	if r.Method == http.MethodPost {
		t.name = body.GetName()
		body.SetNamespace(t.namespace)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.objects[t.resource][t.key()]
	switch {
	case r.Method == http.MethodPost && before != nil:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	case r.Method != http.MethodPost && before == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	version := body.GetResourceVersion()
	if r.Method == http.MethodDelete {
		version, _, _ = unstructured.NestedString(body.Object, "preconditions", "resourceVersion")
	}
	if before != nil && version != "" && version != before.GetResourceVersion() {
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	switch r.Method {
	case http.MethodPost:
		s.store(t.resource, body)
		answer(w, http.StatusCreated, body)
	case http.MethodPut:
		s.store(t.resource, body)
		answer(w, http.StatusOK, body)
	case http.MethodPatch:
		next := before.DeepCopy()
		merge(next.Object, body.Object)
		s.store(t.resource, next)
		answer(w, http.StatusOK, next)
	case http.MethodDelete:
		answer(w, http.StatusOK, s.remove(t.resource, t.key()))
	}
}

// decode decodes JSON, or an object in protobuf.
func (s *Server) decode(raw []byte) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{Object: make(map[string]any)}
	if !strings.HasPrefix(string(raw), "k8s\x00") {
		if len(raw) == 0 {
			return o, nil
		}
		return o, utiljson.Unmarshal(raw, &o.Object) // whole numbers are not floats
	}
	typed, kind, err := s.decoder.Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	if o.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed); err != nil {
		return nil, err
	}
	o.SetGroupVersionKind(*kind)
	return o, nil
}

// merge is a JSON merge patch (RFC 7396).
func merge(into, patch map[string]any) {
	for key, value := range patch {
		if value == nil {
			delete(into, key)
			continue
		}
		inner, isMap := value.(map[string]any)
		if old, had := into[key].(map[string]any); isMap && had {
			merge(old, inner)
			continue
		}
		into[key] = value
	}
}

// watch sends the objects, if the request asks for them, and all changes.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, t target) {
	q := r.URL.Query()
	selector, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	selected := func(o *unstructured.Unstructured) bool {
		typ, _, _ := unstructured.NestedString(o.Object, "type")
		reason, _, _ := unstructured.NestedString(o.Object, "reason")
		return (t.namespace == "" || o.GetNamespace() == t.namespace) &&
			selector.Matches(fields.Set{"metadata.name": o.GetName(), "type": typ, "reason": reason})
	}
	w.Header().Set("Content-Type", "application/json")
	send := json.NewEncoder(w)
	event := func(typ string, o map[string]any) {
		_ = send.Encode(map[string]any{"type": typ, "object": o})
	}
	next, err := strconv.Atoi(q.Get("resourceVersion"))
	s.mu.Lock()
	if q.Get("sendInitialEvents") == "true" || err != nil || next > len(s.history) {
		next = len(s.history)
		for _, o := range s.objects[t.resource] {
			if selected(o) {
				event("ADDED", o.Object)
			}
		}
		event("BOOKMARK", map[string]any{
			"apiVersion": t.version, "kind": kinds[t.resource], "metadata": map[string]any{
				"resourceVersion": strconv.Itoa(next), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"},
			},
		})
	}
	s.mu.Unlock()
	for {
		s.mu.Lock()
		some, changed := s.history[next:], s.changed
		s.mu.Unlock()
		for _, c := range some {
			if c.resource == t.resource && selected(c.object) {
				event(c.typ, c.object.Object)
			}
		}
		next += len(some)
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// kinds are the kinds of the resources that can be watched.
var kinds = map[string]string{
	"pods": "Pod", "nodes": "Node", "services": "Service", "events": "Event", "leases": "Lease",
	"addressconflictacknowledgements": "AddressConflictAcknowledgement",
}

func answer(w http.ResponseWriter, code int, o *unstructured.Unstructured) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o.Object)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code), //nolint:gosec // an HTTP status
	})
}
