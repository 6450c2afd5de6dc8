package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// api is the part of a Kubernetes API server that an aggregator watches, with objects that a test
// changes.
type api struct {
	mu      sync.Mutex
	objects map[string]map[string]map[string]any // by resource and name
	watches map[chan map[string]any]string       // each with its resource
	ended   chan struct{}
}

// apiKinds are the API version and the kind of each resource. Those with a group of their own are
// found by discovery. A resource that two groups have is followed by its group.
var apiKinds = map[string]string{
	"pods": "v1 Pod", "nodes": "v1 Node", "services": "v1 Service", "events": "v1 Event", "leases": "coordination.k8s.io/v1 Lease",
	"ippools": "crd.projectcalico.org/v1 IPPool", "ipamblocks": "crd.projectcalico.org/v1 IPAMBlock",
	"blockaffinities": "crd.projectcalico.org/v1 BlockAffinity",
	"ciliumnodes":     "cilium.io/v2 CiliumNode", "ciliumendpoints": "cilium.io/v2 CiliumEndpoint", "ciliumendpointslices": "cilium.io/v2alpha1 CiliumEndpointSlice",
	"ippools.crd.antrea.io":          "crd.antrea.io/v1beta1 IPPool",
	"network-attachment-definitions": "k8s.cni.cncf.io/v1 NetworkAttachmentDefinition",
	"subnets":                        "kubeovn.io/v1 Subnet", "ips": "kubeovn.io/v1 IP",
	"spiderippools": "spiderpool.spidernet.io/v2beta1 SpiderIPPool", "spiderendpoints": "spiderpool.spidernet.io/v2beta1 SpiderEndpoint",
	"ippools.whereabouts.cni.cncf.io": "whereabouts.cni.cncf.io/v1alpha1 IPPool", "overlappingrangeipreservations": "whereabouts.cni.cncf.io/v1alpha1 OverlappingRangeIPReservation",
	"virtualmachineinstances": "kubevirt.io/v1 VirtualMachineInstance",
	"servicel2statuses":       "metallb.io/v1beta1 ServiceL2Status", "ipaddresspools": "metallb.io/v1beta1 IPAddressPool", "servicecidrs": "networking.k8s.io/v1 ServiceCIDR", "ipaddresses": "networking.k8s.io/v1 IPAddress", "egressips": "k8s.ovn.org/v1 EgressIP", "endpointslices": "discovery.k8s.io/v1 EndpointSlice",
}

// serveAPI serves an API without objects on a host. It returns a kubeconfig, too.
func serveAPI(t *testing.T, h *netlab.Host) (a *api, kubeconfig string) {
	t.Helper()
	var at net.Listener
	err := h.Do(func() (err error) {
		at, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	a = &api{objects: map[string]map[string]map[string]any{}, watches: map[chan map[string]any]string{}, ended: make(chan struct{})}
	server := &http.Server{Handler: a}
	go func() { _ = server.Serve(at) }()
	t.Cleanup(func() { close(a.ended); _ = server.Close() })
	write(t, h.Path("/run/kubeconfig"), fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "http://%s"}}], users: [{name: u, user: {}}]}`, at.Addr()))
	return a, "/run/kubeconfig"
}

// put creates or changes an object, given as the JSON of its parts other than name and namespace.
func (a *api) put(t *testing.T, resource, namespace, name, parts string) {
	t.Helper()
	object := map[string]any{}
	if err := json.Unmarshal([]byte(parts), &object); err != nil {
		t.Fatal(err)
	}
	version, kind, _ := strings.Cut(apiKinds[resource], " ")
	metadata := map[string]any{"name": name, "uid": "uid-" + name, "resourceVersion": "1"}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	if more, ok := object["metadata"].(map[string]any); ok {
		maps.Copy(metadata, more)
	}
	object["apiVersion"], object["kind"], object["metadata"] = version, kind, metadata
	a.mu.Lock()
	defer a.mu.Unlock()
	change := "MODIFIED"
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]map[string]any{}
	}
	if a.objects[resource][name] == nil {
		change = "ADDED"
	}
	a.objects[resource][name] = object
	a.send(resource, change, object)
}

// has reports whether an object exists.
func (a *api) has(resource, name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objects[resource][name] != nil
}

// apply creates or changes an object, given as YAML.
func (a *api) apply(t *testing.T, resource, text string) {
	t.Helper()
	parts, err := yaml.ToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var named struct {
		Metadata struct{ Namespace, Name string }
	}
	if err := json.Unmarshal(parts, &named); err != nil {
		t.Fatal(err)
	}
	a.put(t, resource, named.Metadata.Namespace, named.Metadata.Name, string(parts))
}

// drop deletes an object.
func (a *api) drop(resource, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.send(resource, "DELETED", a.objects[resource][name])
	delete(a.objects[resource], name)
}

// send sends a change to the watches of a resource.
func (a *api) send(resource, change string, object map[string]any) {
	for w, of := range a.watches {
		if of == resource {
			w <- map[string]any{"type": change, "object": object}
		}
	}
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource := parts[len(parts)-1]
	if parts[0] == "apis" && len(parts) > 3 && apiKinds[resource+"."+parts[1]] != "" {
		resource += "." + parts[1]
	}
	switch {
	case r.URL.Path == "/readyz":
	case r.Method != http.MethodGet:
		http.NotFound(w, r)
	case resource == "apis":
		var groups []any
		for _, kind := range apiKinds {
			version, _, _ := strings.Cut(kind, " ")
			if group, version, ok := strings.Cut(version, "/"); ok {
				groups = append(groups, map[string]any{"name": group, "versions": []any{map[string]any{"version": version}}})
			}
		}
		answerJSON(w, map[string]any{"groups": groups})
	case len(parts) == 3 && parts[0] == "apis":
		var resources []any
		for name, kind := range apiKinds {
			if strings.HasPrefix(kind, parts[1]+"/"+parts[2]+" ") {
				name, _, _ = strings.Cut(name, ".")
				resources = append(resources, map[string]any{"name": name})
			}
		}
		answerJSON(w, map[string]any{"resources": resources})
	case apiKinds[resource] == "" || r.URL.Query().Get("watch") == "":
		http.NotFound(w, r)
	default:
		a.watch(w, r, resource)
	}
}

func answerJSON(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

// watch serves all objects of a resource, and then their changes.
func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string) {
	changes := make(chan map[string]any, 100)
	_, name, named := strings.Cut(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	var all []any
	a.mu.Lock()
	for _, object := range a.objects[resource] {
		all = append(all, map[string]any{"type": "ADDED", "object": object})
	}
	a.watches[changes] = resource
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watches, changes)
		a.mu.Unlock()
	}()
	version, kind, _ := strings.Cut(apiKinds[resource], " ")
	all = append(all, map[string]any{"type": "BOOKMARK", "object": map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"resourceVersion": "1", "annotations": map[string]string{"k8s.io/initial-events-end": "true"}},
	}})
	encode := func(change any) {
		object := change.(map[string]any)["object"].(map[string]any)
		if of := object["metadata"].(map[string]any)["name"]; !named || of == nil || of == name {
			_ = json.NewEncoder(w).Encode(change)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	for _, change := range all {
		encode(change)
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-a.ended:
			return
		case change := <-changes:
			encode(change)
			w.(http.Flusher).Flush()
		}
	}
}
