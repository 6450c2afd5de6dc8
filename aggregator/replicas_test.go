package aggregator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

const acknowledgementResource = "addressconflictacknowledgements"

// refuse answers like an API server that refuses a request.
func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
}

// takeLease keeps the Lease of an election.
func (a *fakeAPI) takeLease(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method != http.MethodGet {
		raw, err := io.ReadAll(r.Body)
		var unknown runtime.Unknown
		var lease coordinationv1.Lease
		if err != nil || unknown.Unmarshal(raw[4:]) != nil || lease.Unmarshal(unknown.Raw) != nil {
			refuse(w, http.StatusBadRequest, "BadRequest")
			return
		}
		if a.lease != nil && lease.ResourceVersion != a.lease.ResourceVersion {
			refuse(w, http.StatusConflict, "Conflict")
			return
		}
		a.version++
		lease.ResourceVersion, lease.TypeMeta = fmt.Sprint(a.version), kindOf("leases")
		a.lease = &lease
	}
	if a.lease == nil {
		refuse(w, http.StatusNotFound, "NotFound")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a.lease)
}

// takeAcknowledgement writes or deletes an AddressConflictAcknowledgement.
func (a *fakeAPI) takeAcknowledgement(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	body := map[string]any{}
	if err != nil || json.Unmarshal(raw, &body) != nil {
		refuse(w, http.StatusBadRequest, "BadRequest")
		return
	}
	o := &unstructured.Unstructured{Object: body}
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if r.Method == http.MethodPost {
		name = o.GetName()
	}
	a.mu.Lock()
	before, _ := a.objects[acknowledgementResource][name].(*unstructured.Unstructured)
	a.mu.Unlock()
	typ := "MODIFIED"
	switch {
	case r.Method == http.MethodPost && before != nil:
		refuse(w, http.StatusConflict, "AlreadyExists")
		return
	case r.Method == http.MethodPost:
		typ = "ADDED"
	case before == nil:
		refuse(w, http.StatusNotFound, "NotFound")
		return
	case r.Method == http.MethodDelete:
		want, given, _ := unstructured.NestedString(body, "preconditions", "resourceVersion")
		if given && want != before.GetResourceVersion() {
			refuse(w, http.StatusConflict, "Conflict")
			return
		}
		typ, o = "DELETED", before.DeepCopy()
	default:
		o = before.DeepCopy()
		maps.Copy(o.Object, body)
	}
	a.set(typ, o)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o)
}

// acknowledgements returns the names of the objects.
func (a *fakeAPI) acknowledgements() (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.objects[acknowledgementResource] {
		names = append(names, name)
	}
	return names
}

// awaitAcknowledged waits until a replica reports the conflict as acknowledged, or as not acknowledged.
func (l *lab) awaitAcknowledged(what string, want bool) (c *pb.Conflict) {
	l.Helper()
	wait.Until(l, what, func() bool {
		out, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{})
		if err != nil || len(out.GetConflicts()) != 1 {
			return false
		}
		c = out.GetConflicts()[0]
		return (c.GetAcknowledgement() != nil) == want
	})
	return c
}

// replicaOf returns a replica that knows a conflict, and the stream of its agent.
func replicaOf(t *testing.T, a *fakeAPI) (*lab, *agent) {
	t.Helper()
	l := newLab(t, Config{Kubeconfig: a.kubeconfig(), Lease: "witness/aggregator", Settle: time.Hour})
	r := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
	return l, r
}

// An acknowledgement through one replica is visible through the other one, and so is its end. One that was
// written by hand has the same effect.
func TestReplicasShareAcknowledgements(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	one, _ := replicaOf(t, a)
	two, _ := replicaOf(t, a)
	c := one.awaitAcknowledged("the conflict", false)
	if other := two.awaitAcknowledged("the conflict in the other replica", false); other.GetId() != c.GetId() {
		t.Fatalf("got the ids %s and %s", c.GetId(), other.GetId())
	}
	one.acknowledge(c.GetId(), time.Hour)
	got := two.awaitAcknowledged("the acknowledgement in the other replica", true).GetAcknowledgement()
	if got.GetReason() != "NET-1: known" || !got.GetExpiresAt().AsTime().Equal(one.awaitAcknowledged("it", true).GetAcknowledgement().GetExpiresAt().AsTime()) {
		t.Errorf("got %v", got)
	}
	// The other one replaces it, and then withdraws it.
	two.acknowledge(c.GetId(), 2*time.Hour)
	wait.Until(t, "the longer acknowledgement", func() bool {
		return time.Until(one.awaitAcknowledged("it", true).GetAcknowledgement().GetExpiresAt().AsTime()) > 90*time.Minute
	})
	if _, err := two.client.AcknowledgeConflict(two.ctx, &pb.AcknowledgeConflictRequest{Id: c.GetId(), Withdraw: true}); err != nil {
		t.Fatal(err)
	}
	one.awaitAcknowledged("that it was withdrawn", false)
	two.awaitAcknowledged("that it was withdrawn, in the other replica", false)
	if got := a.acknowledgements(); len(got) > 0 {
		t.Errorf("got the objects %q, want none", got)
	}

	object := func(name, expires string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "ipwitness.io/v1alpha1", "kind": "AddressConflictAcknowledgement",
			"metadata": map[string]any{"namespace": "witness", "name": name, "creationTimestamp": time.Now().UTC().Format(time.RFC3339)},
			"spec":     map[string]any{"reason": "by hand", "expiresAt": expires},
		}}
	}
	a.set("ADDED", object(c.GetId(), time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	one.awaitAcknowledged("the acknowledgement by hand", true)
	two.awaitAcknowledged("the acknowledgement by hand, in the other replica", true)
	a.set("ADDED", object("bad", time.Now().Add(10*366*24*time.Hour).UTC().Format(time.RFC3339)))
	wait.Until(t, "the problem of the bad object", func() bool {
		for _, p := range one.core.kubernetes.Status().GetProblems() {
			if strings.Contains(p, "witness/bad") {
				return true
			}
		}
		return false
	})
	one.awaitAcknowledged("that the good one is not affected", true)
}

// The problem of a replica's data directory ends although it keeps no acknowledgements there.
func TestTheProblemOfADirectoryOfAReplicaEnds(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, Config{Kubeconfig: a.kubeconfig(), Lease: "witness/aggregator", DataDir: dir})
	if got := l.core.acknowledgements.Problems(); len(got) != 1 || !strings.Contains(got[0], "not a directory") {
		t.Errorf("got problems %q, want the one of the directory", got)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the end of the problem", func() bool { return len(l.core.acknowledgements.Problems()) == 0 })
	if _, err := os.Stat(filepath.Join(dir, acknowledgementsFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for the file, want that it is not written", err)
	}
}

// An acknowledgement ends with its conflict in each replica, and the leader deletes the object.
func TestTheLeaderDeletesEndedAcknowledgements(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	one, first := replicaOf(t, a)
	two, second := replicaOf(t, a)
	c := two.awaitAcknowledged("the conflict", false)
	two.acknowledge(c.GetId(), time.Hour)
	one.awaitAcknowledged("the acknowledgement", true)
	wait.Until(t, "a leader", func() bool { return one.core.kubernetes.Leads() || two.core.kubernetes.Leads() })
	for _, r := range []*agent{first, second} {
		r.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 3, Gone: true}}}).sync()
	}
	wait.Until(t, "the end of the object", func() bool { return len(a.acknowledgements()) == 0 })
	wait.Until(t, "no acknowledgement in memory", func() bool { return one.remembered()+two.remembered() == 0 })
}

// A replica that does not lead keeps an acknowledgement while the conflict lasts elsewhere: its agents may
// report to the leader only.
func TestAReplicaWithFewerAgentsEndsNoAcknowledgement(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	one, first := replicaOf(t, a)
	c := one.awaitAcknowledged("the conflict", false)
	wait.Until(t, "that it leads", one.core.kubernetes.Leads)
	two, second := replicaOf(t, a)
	two.awaitAcknowledged("the conflict in the other replica", false)
	one.acknowledge(c.GetId(), time.Hour)
	two.awaitAcknowledged("the acknowledgement in the other replica", true)
	gone := &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 3, Gone: true}}}
	second.send(gone).sync()
	second.send(podVeth(4, "b", addr)).sync()
	two.awaitAcknowledged("the acknowledgement of the conflict that is detected again", true)
	if n := len(a.acknowledgements()); n != 1 {
		t.Errorf("got %d objects, want that of the acknowledgement", n)
	}
	first.send(gone).sync()
	wait.Until(t, "the end of the object", func() bool { return len(a.acknowledgements()) == 0 })
}

// A replica that starts takes over the acknowledgements that there are.
func TestAReplicaThatStartsKnowsTheAcknowledgements(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	one, _ := replicaOf(t, a)
	c := one.awaitAcknowledged("the conflict", false)
	one.acknowledge(c.GetId(), time.Hour)
	two, _ := replicaOf(t, a)
	two.awaitAcknowledged("the acknowledgement", true)
}

// A replica is not ready, and does not lead, before the agents of all nodes have reported to it.
func TestAReplicaIsReadyWhenItKnowsAllNodes(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	a.set("ADDED", apiNode("n2"))
	l, _ := replicaOf(t, a)
	wait.Until(t, "the Kubernetes API", func() bool { _, known := l.core.kubernetes.AgentNodes(); return known })
	third := l.dial().send(&pb.ReportRequest{Hello: hello("n2", 2), SnapshotBegin: true}).sync() // not all of it
	if l.ready() || l.core.kubernetes.Leads() || l.core.coverage.Complete() {
		t.Error("it is ready before it has the snapshots of all nodes")
	}
	third.send(&pb.ReportRequest{SnapshotEnd: true}).sync()
	wait.Until(t, "that it is ready", l.ready)
	wait.Until(t, "that it leads", l.core.kubernetes.Leads)
}
