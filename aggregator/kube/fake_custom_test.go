package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ipwitness/ipwitness/ipam"
)

// fakeCustom has the custom resources of a fakeAPI.
type fakeCustom struct {
	served  map[ipam.Kind]bool
	objects map[ipam.Kind]map[ipam.Key]map[string]any
	watches map[chan fakeEvent]ipam.Kind
	// hidden makes discovery forbidden.
	hidden bool
	// mute makes discovery end without an answer.
	mute bool
	// away is a group of an aggregated API server that does not answer.
	away  string
	asked int // requests for that group
	lists map[ipam.Kind]int
	past  []fakePast
}

// native returns the alternative of a kind of Calico.
func native(k ipam.Kind) ipam.Kind {
	k.Group, k.Version = "projectcalico.org", "v3"
	return k
}

// fakePast is a past change.
type fakePast struct {
	version int
	of      ipam.Kind
	event   fakeEvent
}

type fakeEvent struct {
	kind   string
	object any
}

// install makes the server serve custom resources.
func (f *fakeAPI) install(kinds ...ipam.Kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.custom.served == nil {
		f.custom = fakeCustom{
			served: map[ipam.Kind]bool{}, objects: map[ipam.Kind]map[ipam.Key]map[string]any{}, watches: map[chan fakeEvent]ipam.Kind{},
			hidden: f.custom.hidden, asked: f.custom.asked, lists: map[ipam.Kind]int{},
		}
	}
	for _, k := range kinds {
		f.custom.served[k] = true
		f.custom.objects[k] = map[ipam.Key]map[string]any{}
	}
}

// uninstall makes the server stop serving a custom resource.
func (f *fakeAPI) uninstall(k ipam.Kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.custom.served, k)
	for w, of := range f.custom.watches {
		if of == k {
			close(w)
			delete(f.custom.watches, w)
		}
	}
}

// apply creates or changes an object, given as YAML.
func (f *fakeAPI) apply(k ipam.Kind, text string) {
	f.t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		f.t.Fatal(err)
	}
	f.applyObject(k, o)
}

func (f *fakeAPI) applyObject(k ipam.Kind, o map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o["apiVersion"], o["kind"] = k.Group+"/"+k.Version, k.Name
	meta := o["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.Itoa(f.version)
	namespace, _ := meta["namespace"].(string)
	at := ipam.Key{Namespace: namespace, Name: meta["name"].(string)}
	event := "MODIFIED"
	if f.custom.objects[k][at] == nil {
		event = "ADDED"
	}
	f.custom.objects[k][at] = o
	f.sendCustom(k, fakeEvent{event, o})
}

// remove deletes an object.
func (f *fakeAPI) remove(k ipam.Kind, at ipam.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.custom.objects[k][at]
	delete(f.custom.objects[k], at)
	f.version++
	o = maps.Clone(o)
	o["metadata"] = maps.Clone(o["metadata"].(map[string]any))
	o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(f.version)
	f.sendCustom(k, fakeEvent{"DELETED", o})
}

func (f *fakeAPI) sendCustom(k ipam.Kind, e fakeEvent) {
	f.custom.past = append(f.custom.past, fakePast{f.version, k, e})
	for w, of := range f.custom.watches {
		if of == k {
			w <- e
		}
	}
}

// serveCustom serves discovery and custom resources. The caller holds the lock.
func (f *fakeAPI) serveCustom(w http.ResponseWriter, r *http.Request) {
	answer := func(o any) {
		defer f.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o)
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[1:]
	switch {
	case len(parts) == 0 && f.custom.mute:
		f.mu.Unlock()
		panic(http.ErrAbortHandler)
	case len(parts) == 0 && f.custom.hidden:
		f.mu.Unlock()
		f.refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case len(parts) == 0:
		f.custom.asked++
		all := metav1.APIGroupList{Groups: []metav1.APIGroup{{Name: "apps", Versions: []metav1.GroupVersionForDiscovery{{Version: "v1"}}}}}
		for k := range f.custom.served {
			i := slices.IndexFunc(all.Groups, func(g metav1.APIGroup) bool { return g.Name == k.Group })
			if i < 0 {
				i = len(all.Groups)
				all.Groups = append(all.Groups, metav1.APIGroup{Name: k.Group})
			}
			if version := (metav1.GroupVersionForDiscovery{Version: k.Version}); !slices.Contains(all.Groups[i].Versions, version) {
				all.Groups[i].Versions = append(all.Groups[i].Versions, version)
			}
		}
		answer(all)
	case len(parts) == 2 && parts[0] == f.custom.away:
		f.mu.Unlock()
		f.refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case len(parts) == 2:
		var list metav1.APIResourceList
		for k := range f.custom.served {
			if k.Group == parts[0] && k.Version == parts[1] {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.Resource}, metav1.APIResource{Name: k.Resource + "/status"})
			}
		}
		answer(list)
	default:
		kinds := customKinds()
		i := slices.IndexFunc(kinds, func(k ipam.Kind) bool {
			return k.Group == parts[0] && k.Version == parts[1] && k.Resource == parts[2]
		})
		if i < 0 {
			f.t.Errorf("unexpected request for %s", r.URL.Path)
			f.mu.Unlock()
			return
		}
		f.serveKind(w, r, kinds[i])
	}
}

// serveKind serves a list or watch request. The caller holds the lock.
func (f *fakeAPI) serveKind(w http.ResponseWriter, r *http.Request, k ipam.Kind) {
	q := r.URL.Query()
	switch {
	case f.forbidden[k.String()]: // a forbidden resource looks the same whether it is installed or not
		f.mu.Unlock()
		f.refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	case !f.custom.served[k]:
		f.mu.Unlock()
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	case f.broken == k.String():
		f.mu.Unlock()
		f.refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	case q.Get("sendInitialEvents") == "true" && f.paged:
		f.mu.Unlock()
		f.refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	all := func() (items []any) {
		f.custom.lists[k]++
		for _, o := range f.custom.objects[k] {
			items = append(items, o)
		}
		return items
	}
	w.Header().Set("Content-Type", "application/json")
	if q.Get("watch") == "" {
		defer f.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": k.Group + "/" + k.Version, "kind": k.Name + "List", "items": append([]any{}, all()...),
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(f.version)},
		})
		return
	}
	if f.expired && q.Get("sendInitialEvents") == "" {
		f.mu.Unlock()
		f.refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	send := func(e fakeEvent) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": e.kind, "object": e.object})
	}
	if q.Get("sendInitialEvents") == "true" {
		for _, o := range all() {
			send(fakeEvent{"ADDED", o})
		}
		send(fakeEvent{"BOOKMARK", map[string]any{
			"apiVersion": k.Group + "/" + k.Version, "kind": k.Name, "metadata": map[string]any{
				"resourceVersion": fmt.Sprint(f.version), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"},
			},
		}})
	}
	if version, err := strconv.Atoi(q.Get("resourceVersion")); err == nil {
		for _, p := range f.custom.past {
			if p.of == k && p.version > version {
				send(p.event)
			}
		}
	}
	events := make(chan fakeEvent, 1024)
	f.custom.watches[events] = k
	f.mu.Unlock()
	defer f.set(func() { delete(f.custom.watches, events) })
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, open := <-events:
			if !open {
				return
			}
			send(e)
			w.(http.Flusher).Flush()
		}
	}
}
