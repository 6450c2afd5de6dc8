package aggregator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	uid "k8s.io/apimachinery/pkg/types"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// fakeAPI is an API server that only lists, watches and accepts Events. tests/kubernetes tests
// against a real one.
type fakeAPI struct {
	testing.TB
	*httptest.Server
	mu      sync.Mutex
	version int
	objects map[string]map[string]any // by resource and name
	changed chan struct{}
	history []apiEvent
	events  []corev1.Event
	over    chan struct{}
	lease   *coordinationv1.Lease
	once    sync.Once
	// slow is the end of the paths that are answered once answers is closed: all of them if it is empty.
	slow    string
	answers chan struct{}
	// patched counts the patches of Nodes, which are refused if refusesPatches is set.
	patched        int
	refusesPatches bool
}

// await waits until a path is answered.
func (a *fakeAPI) await(r *http.Request) {
	a.mu.Lock()
	answers, waits := a.answers, a.answers != nil && strings.HasSuffix(r.URL.Path, a.slow)
	a.mu.Unlock()
	if waits {
		select {
		case <-answers:
		case <-r.Context().Done():
		case <-a.over:
		}
	}
}

// delay has paths answered only after the function that it returns is called.
func (a *fakeAPI) delay(slow string) (answer func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slow, a.answers = slow, make(chan struct{})
	return sync.OnceFunc(func() { close(a.answers) })
}

type apiEvent struct {
	resource, typ string
	object        any
}

func newAPI(t testing.TB) *fakeAPI {
	a := &fakeAPI{TB: t, objects: map[string]map[string]any{}, changed: make(chan struct{}), over: make(chan struct{})}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.down)
	return a
}

// down closes the server and all connections of watches.
func (a *fakeAPI) down() {
	a.once.Do(func() { close(a.over) })
	a.Close()
}

// kubeconfig returns a kubeconfig for the server.
func (a *fakeAPI) kubeconfig() string {
	a.Helper()
	file := filepath.Join(a.TempDir(), "config")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {}}]}`, a.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		a.Fatal(err)
	}
	return file
}

// set changes an object; typ is ADDED, MODIFIED or DELETED.
func (a *fakeAPI) set(typ string, object metav1.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := "pods"
	switch object := object.(type) {
	case *corev1.Node:
		resource = "nodes"
	case *unstructured.Unstructured:
		resource = strings.ToLower(object.GetKind()) + "s"
	}
	a.version++
	object.SetResourceVersion(fmt.Sprint(a.version))
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]any{}
	}
	if typ == "DELETED" {
		delete(a.objects[resource], object.GetName())
	} else {
		a.objects[resource][object.GetName()] = object
	}
	a.history = append(a.history, apiEvent{resource, typ, object})
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	a.await(r)
	switch {
	case r.URL.Path == "/readyz":
		return
	case r.URL.Path == "/apis":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a.groups())
		return
	case r.URL.Path == "/apis/discovery.k8s.io/v1":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "endpointslices"}}})
		return
	case strings.Contains(r.URL.Path, "/namespaces/witness/leases"):
		a.takeLease(w, r)
		return
	case r.Method == http.MethodPatch && resource == "status":
		a.patchNode(w, r)
		return
	case strings.Contains(r.URL.Path, "/addressconflictacknowledgements") && r.Method != http.MethodGet:
		a.takeAcknowledgement(w, r)
		return
	case r.Method == http.MethodPost:
		a.take(w, r)
		return
	case r.URL.Query().Get("watch") == "":
		http.Error(w, "list as a watch", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	send := func(typ string, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": typ, "object": object})
	}
	a.mu.Lock()
	next := len(a.history)
	for _, o := range a.objects[resource] {
		send("ADDED", o)
	}
	mark := &corev1.Pod{TypeMeta: kindOf(resource)}
	mark.ResourceVersion = fmt.Sprint(a.version)
	mark.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	a.mu.Unlock()
	send("BOOKMARK", mark)
	for {
		a.mu.Lock()
		for ; next < len(a.history); next++ {
			if e := a.history[next]; e.resource == resource {
				send(e.typ, e.object)
			}
		}
		changed := a.changed
		a.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-a.over:
			return
		case <-changed:
		}
	}
}

// patchNode sets conditions of a Node, by a strategic merge patch.
func (a *fakeAPI) patchNode(w http.ResponseWriter, r *http.Request) {
	name := strings.Split(r.URL.Path, "/")[4]
	var patch corev1.Node
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil || r.Header.Get("Content-Type") != string(uid.StrategicMergePatchType) {
		http.Error(w, "invalid patch", http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	node, _ := a.objects["nodes"][name].(*corev1.Node)
	a.patched++
	refused := a.refusesPatches
	a.mu.Unlock()
	switch {
	case refused:
		refuse(w, http.StatusForbidden, "Forbidden")
		return
	case node == nil:
		refuse(w, http.StatusNotFound, "NotFound")
		return
	case node.UID != patch.UID:
		refuse(w, http.StatusConflict, "Conflict")
		return
	}
	node = node.DeepCopy()
	for _, next := range patch.Status.Conditions {
		before := corev1.NodeCondition{}
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			if c.Type == next.Type {
				before = c
			}
			return c.Type == next.Type
		})
		if next.LastTransitionTime.IsZero() {
			next.LastTransitionTime = before.LastTransitionTime
		}
		node.Status.Conditions = append(node.Status.Conditions, next)
	}
	a.set("MODIFIED", node)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(node)
}

// take records an Event.
func (a *fakeAPI) take(w http.ResponseWriter, r *http.Request) {
	var e corev1.Event
	if err := decodeEvent(r, &e); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.events = append(a.events, e)
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	e.TypeMeta = kindOf("events")
	_ = json.NewEncoder(w).Encode(e)
}

// decodeEvent decodes an Event in protobuf, as client-go sends it: four magic bytes, then
// runtime.Unknown, whose second field is the object.
func decodeEvent(r *http.Request, e *corev1.Event) error {
	raw, err := io.ReadAll(r.Body)
	if err != nil || len(raw) < 4 {
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(raw[4:]); err != nil {
		return err
	}
	return e.Unmarshal(unknown.Raw)
}

func kindOf(resource string) metav1.TypeMeta {
	switch resource {
	case acknowledgementResource:
		return metav1.TypeMeta{Kind: "AddressConflictAcknowledgement", APIVersion: "ipwitness.io/v1alpha1"}
	case "endpointslices":
		return metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"}
	case "leases":
		return metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
	}
	return metav1.TypeMeta{Kind: map[string]string{"pods": "Pod", "nodes": "Node", "services": "Service", "events": "Event"}[resource], APIVersion: "v1"}
}

// groups returns the API groups: that of EndpointSlices, if there has been one.
func (a *fakeAPI) groups() (all metav1.APIGroupList) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.objects["endpointslices"] != nil {
		all.Groups = []metav1.APIGroup{{Name: "discovery.k8s.io", Versions: []metav1.GroupVersionForDiscovery{{Version: "v1"}}}}
	}
	return all
}

// apiSlice returns an EndpointSlice of a Service, with an endpoint of a pod.
func apiSlice(name, service, addr string, pod *corev1.Pod) *unstructured.Unstructured {
	kind := kindOf("endpointslices")
	return &unstructured.Unstructured{Object: map[string]any{
		"kind": kind.Kind, "apiVersion": kind.APIVersion, "addressType": "IPv4",
		"metadata": map[string]any{"namespace": "default", "name": name, "labels": map[string]any{
			"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
		}},
		"endpoints": []any{map[string]any{
			"addresses": []any{addr}, "conditions": map[string]any{"ready": true},
			"targetRef": map[string]any{"kind": "Pod", "namespace": pod.Namespace, "name": pod.Name, "uid": string(pod.UID)},
		}},
	}}
}

// apiPod returns the API object of a pod of podVeth, created by Deployment web.
func apiPod(name, node string, addrs ...string) *corev1.Pod {
	yes := true
	p := &corev1.Pod{
		TypeMeta: kindOf("pods"),
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: uid.UID("uid-" + name), Labels: map[string]string{"pod-template-hash": "5d9"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d9", Controller: &yes}},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

func apiNode(name string, cidrs ...string) *corev1.Node {
	return &corev1.Node{TypeMeta: kindOf("nodes"), ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid.UID("node-" + name)}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

// owner returns the owner of an address on a node.
func (l *lab) owner(addr, node string) *pb.Owner {
	for _, o := range l.owners(&pb.ListOwnersRequest{Address: addr}) {
		if o.GetNode() == node {
			return o
		}
	}
	return nil
}

func TestKubernetesNamesOwners(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	a.set("ADDED", apiPod("web-5d9-x", "n1", "10.0.0.5"))
	l := newLab(t, Config{Kubeconfig: a.kubeconfig()})
	report := podVeth(2, "", "10.0.0.5") // the node knows only the UID, from a cgroup
	report.Namespaces[0].Workload.Uid, report.Namespaces[0].Workload.Namespace = "uid-web-5d9-x", ""
	report.Namespaces[0].Workload.Source = "cgroup"
	l.dial().send(snapshot(hello("n1", 1), report)).sync()
	wait.Until(t, "the controller of the pod", func() bool { return l.owner("10.0.0.5", "n1").GetWorkload().GetController() != nil })

	w := l.owner("10.0.0.5", "n1").GetWorkload()
	if w.GetName() != "web-5d9-x" || w.GetNamespace() != "default" || w.GetPhase() != "Running" ||
		w.GetController().GetKind() != "Deployment" || w.GetController().GetName() != "web" {
		t.Errorf("got %v, want the pod's name, phase and Deployment", w)
	}
	if s := w.GetSources(); w.GetSource() != "cgroup" || s["name"] != "kubernetes" || s["controller"] != "kubernetes" || s["uid"] != "" {
		t.Errorf("got source %s and %v, want the uid from the cgroup and the rest from Kubernetes", w.GetSource(), s)
	}
	for _, q := range []*pb.ListOwnersRequest{{Namespace: "default", Pod: "web-5d9-x"}, {Namespace: "default"}} {
		if got := l.owners(q); len(got) != 1 {
			t.Errorf("got %d owners for %v, want the one that only Kubernetes can name", len(got), q)
		}
	}

	// Data that the API reports later is added to the owner, and watchers receive the change.
	watch, err := l.client.WatchOwners(l.ctx, &pb.WatchOwnersRequest{Address: "10.0.0.5"})
	if err != nil {
		t.Fatal(err)
	}
	ended := apiPod("web-5d9-x", "n1", "10.0.0.5")
	now := metav1.Now()
	ended.DeletionTimestamp = &now
	for updated := false; !updated; {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		switch m.GetType() {
		case pb.Watch_BOOKMARK:
			a.set("MODIFIED", ended)
		case pb.Watch_UPDATED:
			updated = m.GetOwner().GetWorkload().GetDeletionTimestamp() != nil
		}
	}
}

func TestKubernetesAndTheKernelDiffer(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	a.set("ADDED", apiPod("web", "n1", "10.0.0.5", "10.0.0.6", "fd00::5"))
	l := newLab(t, Config{Kubeconfig: a.kubeconfig()})
	report := podVeth(2, "web", "10.0.0.5")
	report.Claims = append(report.Claims, assigned(2, "fd00::5"))
	report.Namespaces[0].Intended = []*pb.Intended{{Address: "10.0.0.7", Source: "cri", Interface: "eth0"}, {Address: "nonsense", Source: "cri"}}
	l.dial().send(snapshot(hello("n1", 1), report)).sync()
	wait.Until(t, "the phase of the pod", func() bool { return l.owner("10.0.0.5", "n1").GetWorkload().GetPhase() != "" })
	var got []string
	for _, i := range l.owner("10.0.0.5", "n1").GetIntended() {
		got = append(got, i.GetAddress()+" "+i.GetSource()+" "+i.GetInterface())
	}
	if want := []string{"10.0.0.7 cri eth0", "10.0.0.6 kubernetes "}; !slices.Equal(got, want) {
		t.Errorf("got missing intended addresses %q, want %q", got, want)
	}
}

// The runtime of a pod with a RuntimeClass may have its own network stack.
func TestPodOfARuntimeClassIsNotJudgedByTheKernel(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	sandboxed := apiPod("web", "n1", "10.0.0.5", "10.0.0.6")
	sandboxed.Spec.RuntimeClassName = new("gvisor")
	a.set("ADDED", sandboxed)
	a.set("ADDED", apiPod("plain", "n1", "10.0.0.15", "10.0.0.16"))
	l := newLab(t, Config{Kubeconfig: a.kubeconfig()})
	report, plain := podVeth(2, "web", "10.0.0.5"), podVeth(3, "plain", "10.0.0.15")
	for _, m := range []*pb.ReportRequest{report, plain} {
		m.Namespaces[0].Intended = []*pb.Intended{{Address: "10.0.0.7", Source: "cni-result", Interface: "eth0"}}
	}
	l.dial().send(snapshot(hello("n1", 1), report, plain)).sync()
	for _, addr := range []string{"10.0.0.5", "10.0.0.15"} {
		wait.Until(t, "the phase of the pod", func() bool { return l.owner(addr, "n1").GetWorkload().GetPhase() != "" })
	}
	if got := l.owner("10.0.0.15", "n1").GetIntended(); len(got) != 2 {
		t.Errorf("got %v of a pod without a RuntimeClass, want the addresses of the CNI result and the API", got)
	}
	if got := l.owner("10.0.0.5", "n1").GetIntended(); len(got) != 0 {
		t.Errorf("got %v, want no missing intended address", got)
	}
}

// The node knows a static pod by a different UID than the API.
func TestStaticPodThatTheAPIHearsOfLate(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	l := newLab(t, Config{Kubeconfig: a.kubeconfig()})
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "static-n1", "10.0.0.5"))).sync()
	wait.Until(t, "the pod to be orphaned", func() bool { return l.owner("10.0.0.5", "n1").GetWorkload().GetOrphaned() })
	mirror := apiPod("static-n1", "n1", "10.0.0.5")
	mirror.UID, mirror.Annotations = "of-the-mirror", map[string]string{corev1.MirrorPodAnnotationKey: "uid-static-n1"}
	a.set("ADDED", mirror)
	wait.Until(t, "the pod to be running", func() bool {
		w := l.owner("10.0.0.5", "n1").GetWorkload()
		return !w.GetOrphaned() && w.GetPhase() == "Running"
	})
}

func TestRangesOfNodesAreANetwork(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	l := newLab(t, Config{Kubeconfig: a.kubeconfig()})
	for _, n := range []string{"n1", "n2"} {
		l.dial().send(snapshot(hello(n, 1), podVeth(2, "web-"+n, "10.244.1.5"))).sync()
	}
	if got := l.conflicts(); len(got) != 0 {
		t.Fatalf("got %v before the pods' range is known", got)
	}
	a.set("ADDED", apiNode("n2", "10.244.1.0/24", "fd00::/64"))
	wait.Until(t, "a conflict", func() bool { return len(l.conflicts()) == 1 })
	if c := l.conflict(pb.Conflict_SUSPECTED); c.GetScope().GetKind() != pb.Scope_NETWORK || c.GetScope().GetName() != "pods" {
		t.Errorf("got scope %v, want NETWORK pods", c.GetScope())
	}
	a.set("DELETED", apiNode("n2", "10.244.1.0/24"))
	wait.Until(t, "the conflict to be resolved", func() bool { return l.conflicts()[0].GetState() == pb.Conflict_RESOLVED })
}

// While the Kubernetes API is being read, no conflict ends because its network is not known. It does so as soon as all is
// read.
func TestTheEndOfAConflictWaitsUntilTheKubernetesAPIIsRead(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	answer := a.delay("apis")
	ranged := apiNode("n2", "10.244.1.0/24")
	a.set("ADDED", apiNode("n1"))
	a.set("ADDED", ranged)
	l := newLab(t, Config{Kubeconfig: a.kubeconfig()})
	for _, n := range []string{"n1", "n2"} {
		l.dial().send(snapshot(hello(n, 1), podVeth(2, "web-"+n, "10.244.1.5"))).sync()
	}
	wait.Until(t, "a conflict", func() bool { return len(l.conflicts()) == 1 })
	a.set("DELETED", ranged)
	time.Sleep(time.Second)
	if got := l.conflicts(); len(got) != 1 || got[0].GetState() == pb.Conflict_RESOLVED {
		t.Errorf("got %v before everything is read, want the conflict", got)
	}
	answer()
	wait.Until(t, "the conflict to be resolved", func() bool { return l.conflicts()[0].GetState() == pb.Conflict_RESOLVED })
}

// A machine is replaced by another one, which is assigned its range.
func TestTheRangeOfANodeThatWasRemovedIsAnotherOnes(t *testing.T) {
	a := newAPI(t)
	l := newLab(t, Config{Kubeconfig: a.kubeconfig()})
	node := func(name string, octet int) *agent {
		a.set("ADDED", apiNode(name))
		addr := fmt.Sprintf("10.244.1.%d", octet)
		return l.dial().send(snapshot(hello(name, 1), kindPod(2, name, addr), poolOf(hostLocal("10.244.1.0/24", pb.Pool_KNOWN)), given(allocated(addr, "sandbox-"+name)))).sync()
	}
	removed := node("n1", 2)
	a.set("DELETED", apiNode("n1"))
	removed.cancel()
	_ = removed.ended()
	node("n2", 3)
	node("n3", 4)
	wait.Until(t, "the overlap of n2 and n3", func() bool {
		out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{Kind: verdict.FindingPodCIDROverlap})
		return err == nil && len(out.GetFindings()) == 1 && slices.Equal(out.GetFindings()[0].GetNodes(), []string{"n2", "n3"})
	})
}

func TestOrphanAndItsEvents(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	a.set("ADDED", apiNode("n2"))
	old := apiPod("old", "n1", "10.244.1.5")
	a.set("ADDED", old)
	l := newLab(t, Config{Kubeconfig: a.kubeconfig(), Networks: []verdict.Network{{Name: "pods", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}, Settle: 1})
	left := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "old", "10.244.1.5"))).sync()
	wait.Until(t, "the pod to be running", func() bool { return l.owner("10.244.1.5", "n1").GetWorkload().GetPhase() == "Running" })
	a.set("DELETED", old)
	wait.Until(t, "the pod to be orphaned", func() bool { return l.owner("10.244.1.5", "n1").GetWorkload().GetOrphaned() })

	a.set("ADDED", apiPod("new", "n2", "10.244.1.5"))
	fresh := l.dial().send(snapshot(hello("n2", 1), podVeth(2, "new", "10.244.1.5"))).sync()
	for _, node := range []*agent{left, fresh} {
		node.send(&pb.ReportRequest{Checked: []uint64{node.check().GetId()}}).sync()
	}
	wait.Until(t, "the conflict to be confirmed", func() bool { return l.conflicts()[0].GetState() == pb.Conflict_CONFIRMED })
	c := l.conflict(pb.Conflict_CONFIRMED)
	if c.GetCause() != "orphaned-sandbox" || !strings.Contains(c.GetSummary(), "Pod default/old with uid uid-old does not exist") {
		t.Errorf("got cause %s, %q", c.GetCause(), c.GetSummary())
	}
	// A deleted pod gets no Event, but its node does.
	wait.Until(t, "three Events of the conflict", func() bool { return len(a.written("AddressConflict")) == 3 })
	if got, want := a.written("AddressConflict"), []string{"Node n1", "Node n2", "Pod new"}; !slices.Equal(got, want) {
		t.Errorf("got events about %q, want %q", got, want)
	}
	left.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}}).sync()
	wait.Until(t, "three Events of its end", func() bool { return len(a.written("AddressConflictResolved")) == 3 })

	// When the API server is unreachable, its data is kept and marked as stale.
	a.down()
	wait.Until(t, "the state to be stale", func() bool { return l.kubernetes().GetState() == pb.Kubernetes_STALE })
	if w := l.owner("10.244.1.5", "n2").GetWorkload(); w.GetController().GetName() != "web" || l.kubernetes().GetPods() != 1 {
		t.Errorf("got %v and %v, want the known state", w, l.kubernetes())
	}
}

// written returns the objects of the Events with a reason.
func (a *fakeAPI) written(reason string) (about []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.events {
		if e.Reason == reason {
			about = append(about, e.InvolvedObject.Kind+" "+e.InvolvedObject.Name)
		}
	}
	slices.Sort(about)
	return about
}

func (l *lab) kubernetes() *pb.Kubernetes {
	l.Helper()
	out, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
	if err != nil {
		l.Fatal(err)
	}
	return out.GetKubernetes()
}

func TestWithoutKubernetes(t *testing.T) {
	l := newLab(t, Config{Kubeconfig: "off"})
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", "10.0.0.5"))).sync()
	if w := l.owner("10.0.0.5", "n1").GetWorkload(); w.GetName() != "web" || w.GetOrphaned() || w.GetPhase() != "" {
		t.Errorf("got %v, want only the node's information", w)
	}
	if got := l.kubernetes().GetState(); got != pb.Kubernetes_OFF {
		t.Errorf("got %s, want OFF", got)
	}
	if _, err := New(Config{Kubeconfig: "/no/such/file"}, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}
